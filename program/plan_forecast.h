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

// The bytes and numbers of ranks of one collective along `axes` over an operand.
CollectiveLoad LoadOf(const Mesh& mesh, const ValueDescriptor& operand,
                      const std::vector<std::string>& axes);

// The exchange of one run along one list of mesh axes.
struct AxisTraffic {
  std::vector<std::string> axes;  // as the collectives name them, major first
  int64_t collectives = 0;
  int64_t sent_bytes = 0;  // by the busiest device
  double seconds = 0;      // PredictedSeconds of the collectives, one after the other

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

// The exchange of one run from one rank to another.
struct LinkTraffic {
  DeviceId sender = 0;
  DeviceId receiver = 0;
  int64_t sent_bytes = 0;

  friend bool operator==(const LinkTraffic&, const LinkTraffic&) = default;
};

// The most links that a forecast lists.
inline constexpr size_t kMostBusiestLinks = 32;
// The most link pairs (LinkPairsOf) for which a forecast by link is made. Bounds its time, to some
// 30 ms, and its memory.
inline constexpr int64_t kMostLinkPairs = int64_t{1} << 18;

// The exchange of one run by links, which are ordered pairs of ranks. Counts the contents of
// messages, not their frames.
struct LinkTrafficSummary {
  // At most kMostBusiestLinks, the one with the most bytes first. Equal ones are ordered by sender,
  // then by receiver.
  std::vector<LinkTraffic> busiest;
  int64_t link_count = 0;  // links that carry bytes
  int64_t sent_bytes = 0;  // over all links

  friend bool operator==(const LinkTrafficSummary&, const LinkTrafficSummary&) = default;
};

struct PlanForecast {
  std::vector<AxisTraffic> traffic;  // each list of axes once, in the order of the instructions
  // Nullopt if LinkPairsOf exceeds kMostLinkPairs.
  std::optional<LinkTrafficSummary> link_traffic = std::nullopt;
  // The most bytes of values that exist together on one device. A value exists from the instruction
  // that makes it to the last that reads it; an output exists to the end. No operands.
  int64_t peak_bytes = 0;
  double exchange_seconds = 0;  // of all traffic

  friend bool operator==(const PlanForecast&, const PlanForecast&) = default;
};

// Returns the work of a forecast by link: the pairs of a sender and a receiver that it looks at. A
// collective counts with the pairs of one group, and each list of mesh axes once more with the
// pairs of all its groups. A collective on unequal tiles counts with the pairs of all groups
// instead, and with the dimensions of all its tiles. Takes O(instructions).
int64_t LinkPairsOf(const Plan& plan);

// Numbers beyond 64 bits are capped. Requires a plan that CheckPlan accepts. `links` are the
// figures of the mesh's slowest link.
PlanForecast ForecastOf(const Plan& plan, const LinkCost& links);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_FORECAST_H_
