// Threads for work that a gRPC reaction must not do: long computation, and waits for disks or
// peers. Also threads of a process whose host may allow no more of them.
#ifndef SHARDMESH_PROCESS_THREAD_POOL_H_
#define SHARDMESH_PROCESS_THREAD_POOL_H_

#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh {

// Returns the RESOURCE_EXHAUSTED of StartThread. `error`: of the std::system_error that the
// constructor of std::thread throws.
absl::Status NoThread(const std::error_code& error);

// Starts a thread, which the caller joins. RESOURCE_EXHAUSTED: the host allows no more threads
// (ulimit -u, or the limit of a container). The constructor of std::thread throws there. Failpoint:
// thread.start.
absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void() &&> run);

// Calls `body(i)` for each i in [0, count), on at most `max_threads` >= 1 threads, one of which is
// the calling one. Returns after the last call. If the host allows no more threads, those that
// there are make all calls: a call must not wait for another one.
void RunOnThreads(size_t count, size_t max_threads, absl::FunctionRef<void(size_t i)> body);

// Runs tasks on its own threads. Tasks of one key begin in the order of their Run calls. Keys take
// turns, so that no key can starve another. Thread-safe.
class ThreadPool {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // Upper bounds on the tasks that wait for a thread.
  struct Limits {
    size_t waiting = std::numeric_limits<size_t>::max();         // tasks of all keys together
    size_t waiting_of_key = std::numeric_limits<size_t>::max();  // tasks of one key
  };

  // Requires threads >= 1. A single thread runs tasks one after the other. Without limits, callers
  // must bound the number of waiting tasks.
  explicit ThreadPool(int threads);
  ThreadPool(int threads, const Limits& limits);
  // Like the constructor, which ends the process if the host allows no more threads. This function
  // returns RESOURCE_EXHAUSTED there.
  static absl::StatusOr<std::unique_ptr<ThreadPool>> Start(int threads);
  // Runs all waiting tasks, then joins the threads.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Adds a task. Returns false, and drops the task, if a limit is reached.
  bool Run(std::string_view key, Task task);
  // Adds a task under the empty key; for a pool without limits.
  void Push(Task task) { Run("", std::move(task)); }

 private:
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || waiting_ > 0;
  }
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  Task TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  absl::Mutex mutex_;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // waiting tasks of all keys together
  std::map<std::string, std::deque<Task>, std::less<>> of_key_ ABSL_GUARDED_BY(mutex_);
  std::string last_key_ ABSL_GUARDED_BY(mutex_);  // key of the last task that began
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: threads start when all members above exist
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_THREAD_POOL_H_
