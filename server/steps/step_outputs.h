// The results of a step: how they are checked, committed and returned.
#ifndef SHARDMESH_SERVER_STEPS_STEP_OUTPUTS_H_
#define SHARDMESH_SERVER_STEPS_STEP_OUTPUTS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "server/state/array_registry.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"
#include "server/steps/step_call.h"
#include "server/steps/step_operands.h"
#include "tensor/array_descriptor.h"
#include "tensor/literal.h"

namespace shardmesh::server {

// INVALID_ARGUMENT (BAD_FIELD): the plan has no results, there are more names than results, a name
// is malformed, or literals are requested that cannot be returned.
absl::Status CheckOutputs(const StepOutputs& outputs, const Plan& plan);

// The program with a reshard after each result that has a given spec. INVALID_ARGUMENT (BAD_FIELD):
// there are more specs than results.
absl::StatusOr<Program> WithOutputSpecs(Program program, const StepOutputs& outputs);

// The plan's results as arrays with new ids. `ranks_revision`: RanksRevisionOf the mesh, which
// partial sums get.
std::vector<ArrayDescriptor> DescribeOutputs(const Plan& plan, Revision ranks_revision);

// INVALID_ARGUMENT (LIMIT_EXCEEDED): the message to the workers, or the answer, does not fit into
// one message.
absl::Status CheckMessageSizes(const PreparedPlan& plan, const std::vector<FoundOperand>& operands,
                               const std::vector<ArrayDescriptor>& described,
                               const StepOutputs& outputs);

// Makes the results available and gives them their names.
CommitRequest CommitOf(const std::vector<ArrayDescriptor>& described, const StepOutputs& outputs,
                       const WorkOutcome& outcome);

// The complete result, assembled from the tiles in the reports of `ranks`, which are in order.
// INTERNAL: a report lacks a tile.
absl::StatusOr<Literal> AssembleLiteral(const ArrayDescriptor& descriptor,
                                        absl::Span<const RankResult> ranks);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_OUTPUTS_H_
