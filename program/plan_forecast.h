// PlanForecast: bytes, memory and time of one run of a plan, predicted from the plan only.
#ifndef SHARDMESH_PROGRAM_PLAN_FORECAST_H_
#define SHARDMESH_PROGRAM_PLAN_FORECAST_H_

#include <cstdint>
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

struct PlanForecast {
  std::vector<AxisTraffic> traffic;  // each list of axes once, in the order of the instructions
  // The most bytes of values that exist together on one device. A value exists from the instruction
  // that makes it to the last that reads it; an output exists to the end. No operands.
  int64_t peak_bytes = 0;
  double exchange_seconds = 0;  // of all traffic

  friend bool operator==(const PlanForecast&, const PlanForecast&) = default;
};

// Numbers beyond 64 bits are capped. Requires a plan that CheckPlan accepts. `links` are the
// figures of the mesh's slowest link.
PlanForecast ForecastOf(const Plan& plan, const LinkCost& links);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_FORECAST_H_
