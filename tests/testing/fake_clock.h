// FakeClock: a clock that the test advances.
#ifndef SHARDMESH_TESTS_TESTING_FAKE_CLOCK_H_
#define SHARDMESH_TESTS_TESTING_FAKE_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::test {

// A clock that stands still until Advance. Advance calls due functions in order of time, in its own
// thread. While a function runs, the clock shows that function's time. Thread-safe, one Advance at
// a time.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch() + absl::Hours(24 * 365 * 50))
      : now_(start) {}

  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  TimerId CallAt(absl::Time when, std::function<void()> function) override {
    absl::MutexLock lock(&mutex_);
    const TimerId id(std::max(when, now_), next_id_++);
    timers_.emplace(id, std::move(function));
    return id;
  }

  bool Cancel(TimerId timer) override {
    absl::MutexLock lock(&mutex_);
    return timers_.erase(timer) > 0;
  }

  // Advances the clock by `duration`; 0 runs the functions due now.
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    const absl::Time until = now_ + duration;
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      now_ = std::max(now_, timers_.begin()->first.first);
      std::function<void()> function = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      mutex_.Unlock();
      function();
      function = nullptr;
      mutex_.Lock();
    }
    now_ = until;
  }

  // Simulates a stopped process: the time moves on, and no function is called until Advance.
  void Pause(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

  // The number of functions that are not due yet.
  int64_t pending() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(timers_.size());
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  std::map<TimerId, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_FAKE_CLOCK_H_
