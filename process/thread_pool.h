// Threads that do what a reaction must not: compute for long, or wait for disks and peers.
#ifndef SHARDMESH_PROCESS_THREAD_POOL_H_
#define SHARDMESH_PROCESS_THREAD_POOL_H_

#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh {

// Runs tasks on its own threads. It begins the tasks of one key in the order in which they came,
// and takes the keys by turns. Thread-safe.
class ThreadPool {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // How many tasks may wait for a thread.
  struct Limits {
    size_t waiting = std::numeric_limits<size_t>::max();         // in all
    size_t waiting_of_key = std::numeric_limits<size_t>::max();  // of one key
  };

  // `threads` >= 1. With one, tasks run one after the other. Without limits the callers bound how
  // many tasks wait.
  explicit ThreadPool(int threads);
  ThreadPool(int threads, const Limits& limits);
  // Runs the tasks that wait, and joins the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Adds a task. Returns false, and drops the task, where a limit is reached.
  bool Run(std::string_view key, Task task);
  // Adds a task of a pool without limits.
  void Push(Task task) { Run("", std::move(task)); }

 private:
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || waiting_ > 0;
  }
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  Task TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  absl::Mutex mutex_;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // in all
  std::map<std::string, std::deque<Task>, std::less<>> of_key_ ABSL_GUARDED_BY(mutex_);
  std::string last_key_ ABSL_GUARDED_BY(mutex_);  // whose turn it was
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they start when everything above is there
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_THREAD_POOL_H_
