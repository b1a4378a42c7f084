// Detects pauses of this process. During a pause, the process reads no messages. The silence of
// other processes during a pause therefore means nothing.
#ifndef SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_
#define SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_

#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::server {

// Reads the clock at regular intervals. A gap between two readings means that the process was
// stopped, or got no processor. Messages that arrived in the gap wait in the sockets, and the
// process reads the clock before it reads these messages. Code that measures another party's
// silence must therefore count the silence from RunsSince at the earliest.
//
// Thread-safe. `clock` must outlive this object.
class PauseWatch {
 public:
  // A gap of more than `limit` is a pause. `whose` names the silent party for the log, and must be
  // a literal.
  PauseWatch(Clock* clock, absl::Duration limit, std::string_view whose);

  // Returns the end of the last pause; InfinitePast if there was none. `now` must be the clock's
  // time.
  absl::Time RunsSince(absl::Time now);

 private:
  void Look();

  Clock* const clock_;
  const absl::Duration limit_;
  const std::string_view whose_;

  absl::Mutex mutex_;
  absl::Time last_look_ ABSL_GUARDED_BY(mutex_);
  absl::Time runs_since_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  Alarm alarm_;  // last: its destructor waits for Look
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_
