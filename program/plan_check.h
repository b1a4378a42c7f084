// Checks plans that came over the wire.
#ifndef SHARDMESH_PROGRAM_PLAN_CHECK_H_
#define SHARDMESH_PROGRAM_PLAN_CHECK_H_

#include "absl/status/status.h"
#include "program/step_plan.h"

namespace shardmesh {

// Returns OK if the plan has the properties that PlanProgram guarantees: indices are in range and
// in order, and the tiles of each instruction's inputs and output fit each other. Else returns
// INVALID_ARGUMENT; the message names the instruction, value or output that is wrong.
absl::Status CheckPlan(const Plan& plan);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_CHECK_H_
