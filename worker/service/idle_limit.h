// Ends streams that make no progress.
#ifndef SHARDMESH_WORKER_SERVICE_IDLE_LIMIT_H_
#define SHARDMESH_WORKER_SERVICE_IDLE_LIMIT_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::worker {

// Calls a function if a stream makes no progress for `limit`. Without such a limit, a client that
// stops in the middle of a tile could hold the tile's memory indefinitely.
class IdleLimit {
 public:
  // `clock` outlives the object. `give_up` may end the stream, and thereby destroy this object.
  IdleLimit(Clock* clock, absl::Duration limit, std::function<void()> give_up)
      : clock_(clock),
        limit_(limit),
        give_up_(std::move(give_up)),
        progress_time_(clock->Now()),
        alarm_(clock, [this] { Check(); }) {
    alarm_.SetNoLaterThan(clock->Now() + limit);
  }

  void NoteProgress() {
    absl::MutexLock lock(&mutex_);
    progress_time_ = clock_->Now();
  }
  // Starts the time limit again from now. `give_up` must call StartAnew if it does not end the
  // stream.
  void StartAnew() {
    NoteProgress();
    alarm_.SetNoLaterThan(clock_->Now() + limit_);
  }
  absl::Duration limit() const { return limit_; }

 private:
  void Check() {
    absl::Time due;
    {
      absl::MutexLock lock(&mutex_);
      due = progress_time_ + limit_;
    }
    if (clock_->Now() < due) {
      return alarm_.SetNoLaterThan(due);
    }
    give_up_();
  }

  Clock* const clock_;
  const absl::Duration limit_;
  const std::function<void()> give_up_;
  absl::Mutex mutex_;
  absl::Time progress_time_ ABSL_GUARDED_BY(mutex_);
  Alarm alarm_;  // last member, because it calls Check
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_IDLE_LIMIT_H_
