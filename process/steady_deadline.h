// A deadline that an adjustment of the wall clock does not move.
#ifndef SHARDMESH_PROCESS_STEADY_DEADLINE_H_
#define SHARDMESH_PROCESS_STEADY_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace shardmesh {

// A deadline for loops that retry. gRPC calls and Abseil's waits take a wall-clock time, and
// convert it to a remaining time when they begin. Call wall() anew for each such call or wait.
class SteadyDeadline {
 public:
  using Steady = std::chrono::steady_clock;

  // Returns the deadline `time` from now; InfiniteDuration means never.
  static SteadyDeadline After(absl::Duration time) {
    return SteadyDeadline(time == absl::InfiniteDuration()
                              ? Steady::time_point::max()
                              : Steady::now() +
                                    absl::ToChronoNanoseconds(std::clamp(time, absl::ZeroDuration(),
                                                                         absl::Hours(24 * 365))));
  }
  // Returns the deadline that corresponds to `wall`, provided that the wall clock was not adjusted
  // since `wall` was computed.
  static SteadyDeadline At(absl::Time wall) {
    return wall == absl::InfiniteFuture() ? After(absl::InfiniteDuration())
                                          : After(wall - absl::Now());
  }

  // Returns the remaining time; at least 0.
  absl::Duration left() const {
    return at_ == Steady::time_point::max()
               ? absl::InfiniteDuration()
               : std::max(absl::FromChrono(at_ - Steady::now()), absl::ZeroDuration());
  }
  bool is_over() const { return left() == absl::ZeroDuration(); }
  // Returns the time that the wall clock will show at the deadline, unless the wall clock is
  // adjusted before.
  absl::Time wall() const { return absl::Now() + left(); }

 private:
  explicit SteadyDeadline(Steady::time_point at) : at_(at) {}

  Steady::time_point at_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_STEADY_DEADLINE_H_
