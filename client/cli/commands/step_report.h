// Operands of the commands that run steps, and their reports of plans and steps.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/command_line.h"
#include "client/inspect/verify_step.h"
#include "client/mesh_client.h"
#include "client/types/step.h"
#include "program/program.h"

namespace shardmesh::client {

// Returns the operand that `text` names: a .npy file, or an array of the cluster. A small file is
// sent with the call. A larger file is first put onto the mesh `mesh_id` (empty: default),
// replicated on every device; the cluster releases that array when the command ends.
absl::StatusOr<Operand> OperandOf(const Invocation& invocation, MeshClient* client,
                                  const std::string& text, const std::string& mesh_id = "");

// The flags about a step that has run.
struct InspectFlags {
  std::string trace_path;  // file that gets the step's timeline; empty: none
  bool verify = false;     // whether to compare the results with a recomputation
  VerifyOptions verify_options = {};
};

// Adds --trace. `plan_only`: the option that runs no step.
void AddTraceOption(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only);
// Adds --verify. `plan_only`: the option that runs no step; null without one.
CLI::Option* AddVerifyOption(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only);
// Adds --verify and --verify-samples.
void AddVerifyOptions(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only);

// Adds the comparisons of results to `json`; if `json` is null, prints them.
void ReportVerified(absl::Span<const VerifiedResult> verified, Json* json);

// Finds out about one step what the flags ask for.
//
// Example:
//   auto inspector = StepInspector::Create(flags, client, program, &call.operands);
//   call.output.return_trace = inspector->needs_trace();
//   ...  // run the step
//   inspector->Inspect(result, &json);
class StepInspector {
 public:
  // Call it before the step, which may take long. Checks that the file of the timeline can be
  // written.
  static absl::StatusOr<StepInspector> Create(const InspectFlags& flags);
  // Also prepares the verification of a step of this program, or of the layer of `call`, if the
  // flags ask for it. Replaces the names of operands by ids then. Errors are those of StepVerifier.
  static absl::StatusOr<StepInspector> Create(const InspectFlags& flags, MeshClient* client,
                                              const Program& program,
                                              std::vector<Operand>* operands);
  static absl::StatusOr<StepInspector> Create(const InspectFlags& flags, MeshClient* client,
                                              LinearLayerCall* call);

  bool needs_trace() const { return !flags_.trace_path.empty(); }

  // Writes the timeline of the step, and verifies its results. Adds what it has found out to
  // `json`; if `json` is null, prints it. UNIMPLEMENTED (NOT_AVAILABLE): the coordinator is an
  // older build without timelines. Errors of CheckVerified: results are wrong.
  absl::Status Inspect(const StepResult& result, Json* json) const;

 private:
  explicit StepInspector(InspectFlags flags) : flags_(std::move(flags)) {}

  absl::Status WriteTrace(const StepResult& result, Json* json) const;
  absl::Status Verify(const StepResult& result, Json* json) const;

  InspectFlags flags_;
  std::optional<StepVerifier> verifier_;
};

Json PlanJson(const CompiledProgram& plan);
// Prints the plan's instructions, its memory, and the bytes that devices send.
void PrintPlan(const CompiledProgram& plan);
// Prints the predicted times, as far as the workers measured the rates.
void PrintPlanTimes(const CompiledProgram& plan);
// Prints the symbolic dimension of the program, if it has one, and the figures of its shortest
// length.
void PrintRange(const CompiledProgram& plan);
// Returns name and range as an object.
Json SymbolJson(const SymbolicDimension& symbol);
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
