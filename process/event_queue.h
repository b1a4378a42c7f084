// Calls to listeners, queued under the owner's lock and made in order without that lock.
#ifndef SHARDMESH_PROCESS_EVENT_QUEUE_H_
#define SHARDMESH_PROCESS_EVENT_QUEUE_H_

#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh {

// Lets an object notify its listeners in the order of events, without holding its own lock during
// the calls. The object calls Add while it holds its lock, and MakeCalls after it releases the
// lock.
//
// One thread at a time runs the queued calls. While it runs them, MakeCalls on another thread or in
// a queued call returns at once: the running thread also runs the newly queued calls. MakeCalls may
// therefore return before the calls that its caller added have run. The queued calls never run out
// of order or concurrently.
//
// Thread-safe. The destructor expects an empty queue.
class EventQueue {
 public:
  void Add(absl::AnyInvocable<void() &&> call) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(std::move(call));
  }

  // Runs the queued calls. The caller must not hold a lock that a queued call may take.
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

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_EVENT_QUEUE_H_
