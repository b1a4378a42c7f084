// A deadline that an adjusted wall clock does not move.
#ifndef SHARDMESH_PROCESS_STEADY_DEADLINE_H_
#define SHARDMESH_PROCESS_STEADY_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace shardmesh::rpc {

// For loops that try again until a time is over. Calls and waits take times of the wall clock,
// which count from the moment at which they are given: wall() is that time, to be asked for each.
class SteadyDeadline {
 public:
  using Steady = std::chrono::steady_clock;

  // The present and `time`; InfiniteDuration: never.
  static SteadyDeadline After(absl::Duration time) {
    return SteadyDeadline(time == absl::InfiniteDuration()
                              ? Steady::time_point::max()
                              : Steady::now() +
                                    absl::ToChronoNanoseconds(std::clamp(time, absl::ZeroDuration(),
                                                                         absl::Hours(24 * 365))));
  }
  // What `wall` is, as long as nobody adjusts the wall clock between its making and this.
  static SteadyDeadline At(absl::Time wall) {
    return wall == absl::InfiniteFuture() ? After(absl::InfiniteDuration())
                                          : After(wall - absl::Now());
  }

  // What is left; at least 0.
  absl::Duration left() const {
    return at_ == Steady::time_point::max()
               ? absl::InfiniteDuration()
               : std::max(absl::FromChrono(at_ - Steady::now()), absl::ZeroDuration());
  }
  bool is_over() const { return left() == absl::ZeroDuration(); }
  // What the wall clock will show then, if it goes on as it does.
  absl::Time wall() const { return absl::Now() + left(); }

 private:
  explicit SteadyDeadline(Steady::time_point at) : at_(at) {}

  Steady::time_point at_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_STEADY_DEADLINE_H_
