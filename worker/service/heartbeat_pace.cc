// HeartbeatPace: finds running instructions that are slow, and computes when to check again.
#include "worker/service/heartbeat_pace.h"

#include <algorithm>

namespace shardmesh::worker {

HeartbeatPace::Running HeartbeatPace::RunningOf(const StepProgress& step) {
  return {step.step, step.instruction.has_value() ? step.instruction->op : -1};
}

void HeartbeatPace::Begin(absl::Duration interval, absl::Time now) {
  interval_ = std::max(interval, kMinInterval);
  next_ = now + interval_;
  told_.clear();
}

std::optional<absl::Time> HeartbeatPace::NotDueUntil(const std::vector<StepProgress>& progress,
                                                     absl::Time now) const {
  absl::Time slow_at = absl::InfiniteFuture();
  for (const StepProgress& step : progress) {
    // Skip an instruction that the last heartbeat reported: it is reported as slow only once.
    if (std::find(told_.begin(), told_.end(), RunningOf(step)) != told_.end()) continue;
    const std::optional<FlightRecord>& instruction = step.instruction;
    slow_at = std::min(
        slow_at, (instruction.has_value() ? instruction->started : step.started) + kSlowAfter);
  }
  if (now >= next_ || now >= slow_at) {
    return std::nullopt;
  }
  return progress.empty() ? next_ : std::min({next_, slow_at, now + kSlowAfter});
}

absl::Time HeartbeatPace::Sent(const std::vector<StepProgress>& progress, absl::Time now) {
  told_.clear();
  for (const StepProgress& step : progress) told_.push_back(RunningOf(step));
  next_ = now + interval_;
  // While a step runs, its next instruction may become slow too.
  return progress.empty() ? next_ : std::min(next_, now + kSlowAfter);
}

}  // namespace shardmesh::worker
