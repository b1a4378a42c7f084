// Counts the work in progress, and moves the callback out of the object before the callback runs.
#include "rpc/stream/finish_once.h"

#include <utility>

namespace shardmesh::rpc {

absl::Status FinishOnce::BeginWork() {
  absl::MutexLock lock(&mutex_);
  if (ended_) {
    return absl::CancelledError("the stream has ended");
  }
  ++works_;
  return absl::OkStatus();
}

void FinishOnce::EndWork(absl::Status status) {
  const bool ends = !status.ok();
  Note(std::move(status), ends, -1);
}

void FinishOnce::End(absl::Status status) { Note(std::move(status), /*ends=*/true, 0); }

bool FinishOnce::has_ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

bool FinishOnce::is_at_work() const {
  absl::MutexLock lock(&mutex_);
  return works_ > 0;
}

void FinishOnce::Note(absl::Status status, bool ends, int works) {
  Finish finish;
  absl::Status outcome;
  {
    absl::MutexLock lock(&mutex_);
    works_ += works;
    // Keeps the first error. The status of a second End does not count, but work may still fail
    // after End.
    if (status_.ok() && (works != 0 || !ended_)) {
      status_ = std::move(status);
    }
    ended_ |= ends;
    if (!ended_ || works_ > 0 || finish_ == nullptr) {
      return;
    }
    finish = std::exchange(finish_, nullptr);
    outcome = status_;
  }
  std::move(finish)(outcome);
}

}  // namespace shardmesh::rpc
