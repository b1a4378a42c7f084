// Operands of the commands that run steps, and their reports of plans and steps.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/mesh_client.h"
#include "client/types/step.h"

namespace shardmesh::client {

// Returns the operand that `text` names: a .npy file, or an array of the cluster. A small file is
// sent with the call. A larger file is first put onto the mesh `mesh_id` (empty: default),
// replicated on every device; the cluster releases that array when the command ends.
absl::StatusOr<Operand> OperandOf(const Invocation& invocation, MeshClient* client,
                                  const std::string& text, const std::string& mesh_id = "");

Json PlanJson(const CompiledProgram& plan);
// Prints the plan's instructions, its memory, and the bytes that devices send.
void PrintPlan(const CompiledProgram& plan);
// Prints the predicted times, as far as the workers measured the rates.
void PrintPlanTimes(const CompiledProgram& plan);
// Prints the plans that the planner compared, and the instructions of each.
void PrintCandidates(const CompiledProgram& plan);

// The times and bytes of a step, and those predicted, as members of an object.
Json TimingsJson(const StepTimings& timings);
// Returns text such as `took 3.1 ms: kernels 2.0 ms, collectives 0.5 ms, 24.0 KiB between workers`.
std::string FormatTimings(const StepTimings& timings);
// Returns what is known of a prediction, such as `kernels 1.9 ms, peak 2.00 MiB on a device`.
std::string FormatPrediction(const StepPrediction& predicted);
// Prints the texts of both as two lines.
void PrintTimings(const StepResult& result);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_
