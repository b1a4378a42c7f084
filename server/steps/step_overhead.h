// StepOverhead: how long steps of one mesh take beside their kernels and collectives.
#ifndef SHARDMESH_SERVER_STEPS_STEP_OVERHEAD_H_
#define SHARDMESH_SERVER_STEPS_STEP_OVERHEAD_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace shardmesh::server {

// The times of a step, by the coordinator's clock.
struct StepTimes {
  absl::Time admitted = absl::InfinitePast();
  absl::Time submitted = absl::InfinitePast();  // to the sequencer
  absl::Time started = absl::InfinitePast();    // when the sequencer let it run
  absl::Time ended = absl::InfinitePast();
  // Kernels and collectives of the rank that was busy longest.
  absl::Duration busy = absl::ZeroDuration();
  // How long the orders of the step waited on a worker for other steps, on the rank where they
  // waited least.
  absl::Duration queued = absl::ZeroDuration();
};

// Returns the overhead of a step: the time from its admission to its end without kernels and
// collectives, and without the time in which it only waited for other steps. At least zero.
inline absl::Duration OverheadOf(const StepTimes& times) {
  const absl::Duration waited =
      std::max(times.started - times.submitted, absl::ZeroDuration()) + times.queued;
  return std::max(times.ended - times.admitted - waited - times.busy, absl::ZeroDuration());
}

// Predicts the overhead of a step (OverheadOf). That is the time for orders and reports between
// coordinator and workers, for the memory and the checksums of results, and for the commit.
//
// Learns from the last kRemembered steps. A step with n instructions is taken to have 1 + n /
// kInstructionsOfStep parts; the time of a part is the lower quartile of these steps. So first runs
// change little. That an instruction costs a 64th of what a step costs is an assumption.
//
// Example: after steps without instructions that took 200 us each, a step of 32 instructions is
// predicted to have an overhead of 300 us.
//
// Not thread-safe.
class StepOverhead {
 public:
  static constexpr size_t kRemembered = 64;
  static constexpr double kInstructionsOfStep = 64;

  // Takes the overhead of a step with so many instructions. A negative one counts as zero.
  void Learn(absl::Duration overhead, size_t instructions) {
    const absl::Duration part = std::max(overhead, absl::ZeroDuration()) / PartsOf(instructions);
    if (parts_.size() < kRemembered) {
      parts_.push_back(part);
    } else {
      parts_[next_] = part;
    }
    next_ = (next_ + 1) % kRemembered;
  }

  // nullopt before the first Learn.
  std::optional<absl::Duration> Predict(size_t instructions) const {
    if (parts_.empty()) return std::nullopt;
    std::vector<absl::Duration> parts = parts_;
    const auto quartile = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 4);
    std::nth_element(parts.begin(), quartile, parts.end());
    return *quartile * PartsOf(instructions);
  }

 private:
  static double PartsOf(size_t instructions) {
    return 1 + static_cast<double>(instructions) / kInstructionsOfStep;
  }

  std::vector<absl::Duration> parts_;  // at most kRemembered
  size_t next_ = 0;                    // the place of the next one
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_OVERHEAD_H_
