// Checks, describes, commits and returns the results of a step.
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

// Checks the requested outputs. INVALID_ARGUMENT (BAD_FIELD): the plan has no results; there are
// more names than results; a name is malformed; or literals are requested of results that are
// partial sums or together too large.
absl::Status CheckOutputs(const StepOutputs& outputs, const Plan& plan);

// Returns the program with a reshard after each result that has a requested spec. INVALID_ARGUMENT
// (BAD_FIELD): there are more specs than results.
absl::StatusOr<Program> WithOutputSpecs(Program program, const StepOutputs& outputs);

// Describes the plan's results as arrays with new ids. Partial sums get `ranks_revision`
// (RanksRevisionOf of the mesh) as their mesh revision.
std::vector<ArrayDescriptor> DescribeOutputs(const Plan& plan, Revision ranks_revision);

// Checks the sizes of the messages of a step. INVALID_ARGUMENT (LIMIT_EXCEEDED): the message to the
// workers, or the answer to the client, exceeds the limit of one message.
absl::Status CheckMessageSizes(const PreparedPlan& plan, const std::vector<FoundOperand>& operands,
                               const std::vector<ArrayDescriptor>& described,
                               const StepOutputs& outputs);

// Returns the registry's commit of a step: the commit makes the results available and moves the
// names to the results. `updated`: ids of the arrays that the step updates.
CommitRequest CommitOf(const std::vector<ArrayDescriptor>& described, const StepOutputs& outputs,
                       const WorkOutcome& outcome, std::vector<std::string> updated = {});

// Assembles a complete result from the tiles in the reports of `ranks`, which are sorted by rank.
// INTERNAL: a report lacks a tile.
absl::StatusOr<Literal> AssembleLiteral(const ArrayDescriptor& descriptor,
                                        absl::Span<const RankResult> ranks);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_OUTPUTS_H_
