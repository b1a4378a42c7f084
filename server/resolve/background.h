// Threads for answers that take too long for a reaction.
#ifndef SHARDMESH_SERVER_RESOLVE_BACKGROUND_H_
#define SHARDMESH_SERVER_RESOLVE_BACKGROUND_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shardmesh::server {

// Runs a few tasks at a time: tasks of one caller in their order of arrival, callers in turns.
// Thread-safe.
class Background {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // Most waiting tasks: each is a call that a client waits for, and a longer queue would only add
  // waiting time.
  static constexpr size_t kMaxWaiting = 64;
  // Most waiting tasks of one caller, which leaves places for others.
  static constexpr size_t kMaxWaitingOfCaller = 32;
  // Longest run of a task, also if its caller has set no deadline.
  static constexpr absl::Duration kTimeLimit = absl::Minutes(5);

  explicit Background(int threads);
  // Runs the waiting tasks, and waits for the running ones.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // False, and the task is dropped, if kMaxWaiting tasks wait already, or kMaxWaitingOfCaller of
  // this caller's (rpc::Caller::name).
  bool Run(std::string_view caller, Task task);

 private:
  void Work();

  absl::Mutex mutex_;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // in all
  std::map<std::string, std::deque<Task>, std::less<>> of_caller_ ABSL_GUARDED_BY(mutex_);
  std::string last_caller_ ABSL_GUARDED_BY(mutex_);  // whose turn it was
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

// Status for calls whose task was not taken: RESOURCE_EXHAUSTED (LIMIT_EXCEEDED), with a retry
// delay.
absl::Status TooManyWait();

// Tells a call that runs in the background when to stop: once it is cancelled, or has run for
// Background::kTimeLimit. Thread-safe.
class BackgroundStop {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // The call runs from now on: waiting does not count.
  void Begin() { limit_ns_.store(SteadyNow() + absl::ToInt64Nanoseconds(Background::kTimeLimit)); }
  bool is_due() const { return cancelled_.load(std::memory_order_relaxed) || is_over_time(); }
  // Returns the status of a call that ended: its own status, or DEADLINE_EXCEEDED if the time limit
  // ended it.
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
