// The loop of each thread. Keys take turns; a thread runs the oldest task of the next key.
#include "process/thread_pool.h"

#include <utility>

#include "process/start_thread.h"
#include "status/status_macros.h"

namespace shardmesh {

ThreadPool::ThreadPool(int threads) : ThreadPool(threads, Limits()) {}

ThreadPool::ThreadPool(int threads, const Limits& limits) : limits_(limits) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

absl::StatusOr<std::unique_ptr<ThreadPool>> ThreadPool::Start(int threads) {
  auto pool = std::make_unique<ThreadPool>(0);
  for (int i = 0; i < threads; ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(std::thread thread,
                               StartThread([raw = pool.get()] { raw->Work(); }));
    pool->threads_.push_back(std::move(thread));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool ThreadPool::Run(std::string_view key, Task task) {
  absl::MutexLock lock(&mutex_);
  if (waiting_ >= limits_.waiting) {
    return false;
  }
  auto tasks = of_key_.find(key);
  if (tasks == of_key_.end()) {
    tasks = of_key_.emplace(key, std::deque<Task>()).first;
  }
  if (tasks->second.size() >= limits_.waiting_of_key) {
    return false;
  }
  tasks->second.push_back(std::move(task));
  ++waiting_;
  return true;
}

void ThreadPool::Work() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ThreadPool::HasWorkOrStops));
      if (waiting_ == 0) {
        return;
      }
      task = TakeNext();
    }
    std::move(task)();
  }
}

ThreadPool::Task ThreadPool::TakeNext() {
  auto next = of_key_.upper_bound(last_key_);
  if (next == of_key_.end()) {
    next = of_key_.begin();
  }
  last_key_ = next->first;
  Task task = std::move(next->second.front());
  next->second.pop_front();
  --waiting_;
  if (next->second.empty()) {
    of_key_.erase(next);
  }
  return task;
}

}  // namespace shardmesh
