// The loop of each thread. Keys take turns; a thread runs the oldest task of the next key.
#include "process/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "process/failpoint.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {

absl::Status NoThread(const std::error_code& error) {
  return absl::ResourceExhaustedError(
      StrCat("cannot start a thread: ", error.message(),
             "; the host allows this user or container no more threads: end other processes, or "
             "raise the limit (ulimit -u)"));
}

absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void() &&> run) {
  if (SHARDMESH_FAILS("thread.start")) {
    return NoThread({EAGAIN, std::system_category()});
  }
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return NoThread(error.code());
  }
}

void RunOnThreads(size_t count, size_t max_threads, absl::FunctionRef<void(size_t i)> body) {
  std::atomic<size_t> next = 0;
  const auto work = [&next, count, body] {
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(count, max_threads); ++i) {
    absl::StatusOr<std::thread> other = StartThread(work);
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  work();
  for (std::thread& other : others) other.join();
}

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
