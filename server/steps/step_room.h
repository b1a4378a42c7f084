// Whether the workers of a mesh have the memory that a step needs.
#ifndef SHARDMESH_SERVER_STEPS_STEP_ROOM_H_
#define SHARDMESH_SERVER_STEPS_STEP_ROOM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/step_plan.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/steps/step_operands.h"

namespace shardmesh::server {

// The maximum number of workers that one error names.
inline constexpr size_t kShortWorkersNamed = 16;

// Returns the bytes that each rank needs for one run of the plan, beyond what is in use before:
// `memory_bytes` (the peak of the plan's cost, or LeastBytesOf), without results that are made in
// the memory of donated operands. Ranks whose tiles of the results are smaller than those of others
// need less.
std::vector<int64_t> NeedOfStep(const Plan& plan, absl::Span<const FoundOperand> operands,
                                int64_t memory_bytes);

// Returns OK if each rank's worker may have the memory for one run of the plan. A step is refused
// only if it certainly does not fit: both the worker's last heartbeat and the arrays in the
// registry leave too little, for LeastBytesOf the plan. The error names the peak as the need.
// Memory of steps that run at this time therefore refuses no step, and neither does memory that was
// released since the heartbeat. Cached tiles count as free. Counts the arrays, which takes time,
// only if the heartbeats leave too little.
//
// The error is RESOURCE_EXHAUSTED (MEMORY_LIMIT). The message and the facts `rank` and `identity`
// name the first kShortWorkersNamed workers that have too little, the message each with what it has
// and needs. The facts `have` and `need` are those of the first one.
absl::Status CheckStepRoom(const Plan& plan, absl::Span<const FoundOperand> operands,
                           const MembershipView& view, const ArrayRegistry& registry);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_ROOM_H_
