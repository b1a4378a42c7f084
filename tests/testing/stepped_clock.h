// A clock that simulates a host whose wall clock was stepped after the process started.
#ifndef SHARDMESH_TESTS_TESTING_STEPPED_CLOCK_H_
#define SHARDMESH_TESTS_TESTING_STEPPED_CLOCK_H_

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::test {

// Shows the time of `clock` plus `ahead`. `clock` outlives this object. Thread-safe.
class SteppedClock final : public Clock {
 public:
  SteppedClock(Clock* clock, absl::Duration ahead) : clock_(clock), ahead_(ahead) {}

  absl::Time Now() const override { return clock_->Now() + ahead_; }
  TimerId CallAt(absl::Time when, std::function<void()> function) override {
    return clock_->CallAt(when - ahead_, std::move(function));
  }
  bool Cancel(TimerId timer) override { return clock_->Cancel(timer); }

 private:
  Clock* const clock_;
  const absl::Duration ahead_;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_STEPPED_CLOCK_H_
