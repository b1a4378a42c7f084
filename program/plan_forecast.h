// PlanForecast: bytes, memory and time of one run of a plan, predicted from the plan only.
#ifndef SHARDMESH_PROGRAM_PLAN_FORECAST_H_
#define SHARDMESH_PROGRAM_PLAN_FORECAST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/collective_choice.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"

namespace shardmesh {

// Returns the load of one collective along `axes` over an operand: its bytes, and the number of
// ranks in a group.
CollectiveLoad LoadOf(const Mesh& mesh, const ValueDescriptor& operand,
                      const std::vector<std::string>& axes);

// The traffic of all collectives and moves along one list of mesh axes, in one run of the plan.
struct AxisTraffic {
  std::vector<std::string> axes;  // as the collectives name the axes, or MoveAxes; major first
  int64_t collectives = 0;        // number of collectives and moves along these axes
  int64_t sent_bytes = 0;         // sent by the busiest device along these axes
  // Sum of their predicted times, without what fused instructions hide (ExchangeSeconds).
  double seconds = 0;

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

// The bytes that one rank sends to another rank in one run of the plan.
struct LinkTraffic {
  DeviceId sender = 0;
  DeviceId receiver = 0;
  int64_t sent_bytes = 0;

  friend bool operator==(const LinkTraffic&, const LinkTraffic&) = default;
};

// The most links that a forecast lists.
inline constexpr size_t kMostBusiestLinks = 32;
// The most link pairs (LinkPairsOf) for which a forecast has traffic by link. This limit bounds the
// forecast's time, to some 30 ms, and its memory.
inline constexpr int64_t kMostLinkPairs = int64_t{1} << 18;

// The traffic of one run by link. A link is an ordered pair of ranks. Counts the contents of
// messages, not their frames.
struct LinkTrafficSummary {
  // At most kMostBusiestLinks links. The link with the most bytes comes first. Links with equally
  // many bytes are ordered by sender, then by receiver.
  std::vector<LinkTraffic> busiest;
  int64_t link_count = 0;  // links that carry bytes
  int64_t sent_bytes = 0;  // over all links

  friend bool operator==(const LinkTrafficSummary&, const LinkTrafficSummary&) = default;
};

struct PlanForecast {
  std::vector<AxisTraffic> traffic;  // each list of axes once, in the order of first use
  // nullopt if LinkPairsOf exceeds kMostLinkPairs.
  std::optional<LinkTrafficSummary> link_traffic = std::nullopt;
  int64_t peak_bytes = 0;       // PeakBytesOf the plan (memory_plan.h)
  double exchange_seconds = 0;  // sum of AxisTraffic::seconds over `traffic`
  double kernel_seconds = 0;    // sum of KernelSeconds over all instructions

  friend bool operator==(const PlanForecast&, const PlanForecast&) = default;
};

// The parts of a forecast that the answer to a step has beside what the step took.
struct StepForecast {
  double kernel_seconds = 0;    // as PlanForecast::kernel_seconds
  double exchange_seconds = 0;  // as PlanForecast::exchange_seconds
  // Sent over all links in one run. nullopt if LinkPairsOf exceeds kMostStepLinkPairs.
  std::optional<int64_t> sent_bytes = std::nullopt;

  friend bool operator==(const StepForecast&, const StepForecast&) = default;
};
// The most link pairs (LinkPairsOf) that are looked at in a reaction (gRPC callback), such as for
// the forecast of a step. This takes about a millisecond.
inline constexpr int64_t kMostStepLinkPairs = int64_t{1} << 13;

// Returns the work of a forecast by link, counted in pairs of a sender and a receiver that the
// forecast examines. A collective on equal tiles adds the pairs of one group. Each list of mesh
// axes of such collectives adds the pairs of all its groups, once. A collective on unequal tiles
// adds the pairs of all its groups. It also adds, for each device, the number of dimensions of the
// operand's tile and of the result's tile. A move adds the pairs of a device and a tile of its
// input. Takes O(instructions).
int64_t LinkPairsOf(const Plan& plan);

// Returns the forecast of one run. Numbers beyond 64 bits are capped. Requires a plan that
// CheckPlan accepts. `links` are the figures of the mesh's slowest link, `kernels` those of its
// slowest worker.
PlanForecast ForecastOf(const Plan& plan, const LinkCost& links, const KernelRates& kernels = {});

// Returns the parts of ForecastOf that a step needs. Takes less time than ForecastOf. Has the same
// requirements.
StepForecast StepForecastOf(const Plan& plan, const LinkCost& links, const KernelRates& kernels);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_FORECAST_H_
