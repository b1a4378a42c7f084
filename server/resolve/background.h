// Threads for answers that take too long for a reaction (a gRPC callback).
#ifndef SHARDMESH_SERVER_RESOLVE_BACKGROUND_H_
#define SHARDMESH_SERVER_RESOLVE_BACKGROUND_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "process/thread_pool.h"

namespace shardmesh::server {

// Runs tasks on a few threads. The tasks of one caller start in their order of arrival; callers
// take turns. Thread-safe.
class Background {
 public:
  using Task = ThreadPool::Task;

  // Maximum number of waiting tasks. Each waiting task is a call whose client waits. A longer queue
  // would only lengthen the wait.
  static constexpr size_t kMaxWaiting = 64;
  // Maximum number of waiting tasks of one caller, so that other callers find room in the queue.
  static constexpr size_t kMaxWaitingOfCaller = 32;
  // Time limit of a running task, also if the client has set no deadline.
  static constexpr absl::Duration kTimeLimit = absl::Minutes(5);

  explicit Background(int threads)
      : pool_(threads, {.waiting = kMaxWaiting, .waiting_of_key = kMaxWaitingOfCaller}) {}

  // Queues the task. Returns false and drops the task if kMaxWaiting tasks wait already, or
  // kMaxWaitingOfCaller tasks of this caller (rpc::Caller::name).
  bool Run(std::string_view caller, Task task) { return pool_.Run(caller, std::move(task)); }

 private:
  ThreadPool pool_;
};

// Status for calls whose task was refused: RESOURCE_EXHAUSTED (OVERLOADED), with a retry
// delay.
absl::Status TooManyWait();

// Tells a call that runs in the background when to stop: when it is cancelled, or has run for
// Background::kTimeLimit. Thread-safe.
class BackgroundStop {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Starts the time limit of the call. Time in the queue does not count.
  void Begin() { limit_ns_.store(SteadyNow() + absl::ToInt64Nanoseconds(Background::kTimeLimit)); }
  bool is_due() const { return cancelled_.load(std::memory_order_relaxed) || is_over_time(); }
  // Returns the status with which the call ends: DEADLINE_EXCEEDED if the time limit ended the
  // call, else `status`.
  absl::Status Explain(const absl::Status& status) const;

 private:
  static int64_t SteadyNow() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  bool is_over_time() const { return SteadyNow() >= limit_ns_.load(std::memory_order_relaxed); }

  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> limit_ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_BACKGROUND_H_
