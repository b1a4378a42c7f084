// Checks plans that came over the wire.
#ifndef SHARDMESH_PROGRAM_PLAN_CHECK_H_
#define SHARDMESH_PROGRAM_PLAN_CHECK_H_

#include "absl/status/status.h"
#include "program/step_plan.h"

namespace shardmesh {

// Returns OK if the plan has the properties that PlanProgram guarantees: indices in range and in
// order, and tiles of inputs and outputs that fit each other. INVALID_ARGUMENT names the
// instruction.
absl::Status CheckPlan(const Plan& plan);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_CHECK_H_
