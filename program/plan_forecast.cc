// Adds up the costs of a plan's collectives, and follows its values from first to last use.
#include "program/plan_forecast.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "absl/numeric/int128.h"
#include "program/value_layout.h"
#include "tensor/dtype.h"

namespace shardmesh {
namespace {

AxisTraffic& TrafficAlong(const std::vector<std::string>& axes, PlanForecast* forecast) {
  const auto found =
      std::find_if(forecast->traffic.begin(), forecast->traffic.end(),
                   [&axes](const AxisTraffic& traffic) { return traffic.axes == axes; });
  if (found != forecast->traffic.end()) return *found;
  AxisTraffic& added = forecast->traffic.emplace_back();
  added.axes = axes;
  return added;
}

int64_t PeakBytesOf(const Plan& plan) {
  // The instruction after which each value is freed; outputs never are.
  std::vector<size_t> last_use(plan.values.size(), 0);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    last_use[plan.instructions[i].output] = i;
    for (const ValueIndex input : InputsOf(plan.instructions[i])) last_use[input] = i;
  }
  for (const ValueIndex output : plan.outputs) last_use[output] = plan.instructions.size();
  // Wider than the sizes: a sum that is cut off could not be taken apart again.
  absl::int128 now = 0;
  absl::int128 peak = 0;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    now += TileBytes(plan.mesh, plan.values[instruction.output]);
    peak = std::max(peak, now);
    std::vector<ValueIndex> used = InputsOf(instruction);
    used.push_back(instruction.output);
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (const ValueIndex value : used) {
      if (value >= plan.operand_count && last_use[value] == i) {
        now -= TileBytes(plan.mesh, plan.values[value]);
      }
    }
  }
  return static_cast<int64_t>(std::min<absl::int128>(peak, std::numeric_limits<int64_t>::max()));
}

}  // namespace

CollectiveLoad LoadOf(const Mesh& mesh, const ValueDescriptor& operand,
                      const std::vector<std::string>& axes) {
  return {.ranks = AxesSize(mesh, axes),
          .bytes = TileBytes(mesh, operand),
          .partial_bytes = BytesOf(TileElements(mesh, operand), PartialSumType(operand.dtype))};
}

PlanForecast ForecastOf(const Plan& plan, const LinkCost& links) {
  PlanForecast forecast;
  for (const Instruction& instruction : plan.instructions) {
    const auto* const op = std::get_if<GroupCollective>(&instruction.kind);
    if (op == nullptr) continue;
    const CollectiveCost cost =
        CostOf(op->kind, op->algorithm, LoadOf(plan.mesh, plan.values[op->input], op->axes));
    const double seconds = PredictedSeconds(cost, links);
    AxisTraffic& traffic = TrafficAlong(op->axes, &forecast);
    ++traffic.collectives;
    AddTo(traffic.sent_bytes, cost.sent_bytes);
    traffic.seconds += seconds;
    forecast.exchange_seconds += seconds;
  }
  forecast.peak_bytes = PeakBytesOf(plan);
  return forecast;
}

}  // namespace shardmesh
