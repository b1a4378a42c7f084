// Makes one instruction of functions of elements that read one another's results, so that a device
// reads and writes the elements once for all of them.
#ifndef SHARDMESH_PROGRAM_FUSE_FUSE_ELEMENTWISE_H_
#define SHARDMESH_PROGRAM_FUSE_FUSE_ELEMENTWISE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "program/step_plan.h"

namespace shardmesh {

// Returns the plan in which groups of MapOps and ConvertOps are one FusedCompute each. An op joins
// the group of the ops that read its result if
//   - only these ops read the result, and it is neither an output nor the value of an update;
//   - the results of all ops of the group have one shape and one layout, so that an op whose result
//     is broadcast later stays alone;
//   - the group has at most kMaxFusedOps ops then;
//   - no UpdateRowsOp writes over one of the op's inputs (StatePlaces) between the op and the last
//     op of the group;
//   - no instruction stands between the op and the group, or the op's inputs, which are in use
//     until the last op of the group then, take no more memory than its result would.
//
// The fused instruction stands where the last op of the group stood. Its label names all ops: "op 6
// (multiply+add+silu): compute". Does not change the cost. Takes O(n) for n instructions, and
// O(kMaxFusedOps) more for each op of a group.
//
// The result needs at most kMostMoreBytes more memory by LeastBytesOf than the plan. If it would
// need more, fuses only ops whose inputs take no more memory than their results; and if that does
// not help, nothing. Requires a plan that CheckPlan accepts.
Plan FuseElementwise(Plan plan);
inline constexpr int64_t kMostMoreBytes = 64 << 10;

// Returns a fused instruction as a plan of one LocalCompute for each op: `fused.inputs` are its
// operands, in this order, and its only output is described as the value `output` of `plan`.
// Requires inputs and an output that are values of the plan. CheckPlan may refuse the result.
//
// INVALID_ARGUMENT: BAD_FIELD if the ops are too few or too many, are no MapOps and ConvertOps,
// read results of later ops, or if an input is listed twice, or an input or result is not read.
// Errors of ResultTypeOf, which name the op.
absl::StatusOr<Plan> PlainFormOf(const Plan& plan, const FusedCompute& fused, ValueIndex output);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_FUSE_FUSE_ELEMENTWISE_H_
