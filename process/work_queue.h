// Threads for work that blocks, such as disk access or waiting for the coordinator; reactions must
// not block.
#ifndef SHARDMESH_PROCESS_WORK_QUEUE_H_
#define SHARDMESH_PROCESS_WORK_QUEUE_H_

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::worker {

// Runs functions on its own threads and starts them in the order of the pushes. The caller bounds
// the number of waiting functions. Thread-safe.
class WorkQueue {
 public:
  // Requires thread_count >= 1. With one thread, functions run one after the other.
  explicit WorkQueue(int thread_count) {
    for (int i = 0; i < thread_count; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  // Runs the waiting functions, and joins the threads.
  ~WorkQueue() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void Push(absl::AnyInvocable<void() &&> function) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(function));
  }

 private:
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  }

  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      absl::AnyInvocable<void() &&> function;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &WorkQueue::HasWorkOrStops));
        if (waiting_.empty()) {
          return;
        }
        function = std::move(waiting_.front());
        waiting_.pop_front();
      }
      std::move(function)();
    }
  }

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void() &&>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: the threads start when all members above exist
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_PROCESS_WORK_QUEUE_H_
