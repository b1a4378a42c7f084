// Detects pauses of this process, during which the silence of others means nothing.
#ifndef SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_
#define SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_

#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::server {

// Reads the clock regularly. A gap means that the process was stopped, or had no processor.
// Messages that others sent meanwhile wait in the sockets, and the process reads the clock before
// it reads them. Code that measures another's silence must count it from RunsSince at the earliest.
//
// Thread-safe. The clock outlives it.
class PauseWatch {
 public:
  // A gap of more than `limit` is a pause. `whose`: the silent party, for the log; a literal.
  PauseWatch(rpc::Clock* clock, absl::Duration limit, std::string_view whose);

  // The end of the last pause; InfinitePast: there was none. `now` is the clock's time.
  absl::Time RunsSince(absl::Time now);

 private:
  void Look();

  rpc::Clock* const clock_;
  const absl::Duration limit_;
  const std::string_view whose_;

  absl::Mutex mutex_;
  absl::Time last_look_ ABSL_GUARDED_BY(mutex_);
  absl::Time runs_since_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  rpc::Alarm alarm_;  // last: its destructor waits for Look
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_PAUSE_WATCH_H_
