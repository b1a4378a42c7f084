// Calls to listeners: queued under the owner's lock, made in order and without it.
#ifndef SHARDMESH_PROCESS_EVENT_QUEUE_H_
#define SHARDMESH_PROCESS_EVENT_QUEUE_H_

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// An object that must tell others what happened, in the order in which it happened, without
// holding its own lock: it adds a call while it holds the lock and makes the calls when it has let
// go. One thread at a time makes calls; another that comes meanwhile leaves its own to that one, as
// does a call that leads back to the owner. So a caller of MakeCalls may return before its calls
// were made, but they are never made out of order or at once.
//
// Thread-safe. The destructor expects an empty queue.
class EventQueue {
 public:
  void Add(absl::AnyInvocable<void() &&> call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }

  // Never with a lock held that a call may take.
  void MakeCalls() {
    absl::MutexLock lock(&mutex_);
    if (busy_) return;
    busy_ = true;
    while (!calls_.empty()) {
      absl::AnyInvocable<void()&&> call = std::move(calls_.front());
      calls_.pop_front();
      mutex_.Unlock();
      std::move(call)();
      call = nullptr;
      mutex_.Lock();
    }
    busy_ = false;
  }

 private:
  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void() &&>> calls_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_PROCESS_EVENT_QUEUE_H_
