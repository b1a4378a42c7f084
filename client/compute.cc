// The calls of ComputeClient, over the transport and the session of ClientCore.
#include "client/compute.h"

#include <optional>
#include <utility>
#include <variant>

#include "client/client_core.h"
#include "process/steady_deadline.h"
#include "status/reason.h"

namespace shardmesh::client {

absl::StatusOr<CompiledProgram> ComputeClient::Compile(const Program& program,
                                                       absl::Span<const Operand> operands,
                                                       const std::string& mesh_id) {
  absl::StatusOr<CompiledProgram> compiled =
      core_->coordinator().Compile(program, operands, mesh_id, core_->CallDeadline());
  if (compiled.ok()) {
    core_->programs().Add(compiled->plan_hash, program);
  }
  return compiled;
}

absl::StatusOr<StepResult> ComputeClient::Execute(const ExecuteCall& call) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  return core_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        absl::StatusOr<StepResult> result = core_->coordinator().Execute(session_id, call, options);
        const std::string* const hash = std::get_if<std::string>(&call.work);
        if (hash == nullptr || ReasonOf(result.status()) != Reason::kNotFound) {
          return result;
        }
        // The coordinator has forgotten the plan, as one that was restarted has forgotten all.
        std::optional<Program> program = core_->programs().Find(*hash);
        if (!program.has_value()) {
          return result;
        }
        ExecuteCall again = call;
        again.work = *std::move(program);
        return core_->coordinator().Execute(session_id, again, Until(deadline));
      });
}

absl::StatusOr<StepResult> ComputeClient::Linear(const LinearCall& call) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  return core_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return core_->coordinator().Linear(session_id, call, options);
                          });
}

absl::StatusOr<StepResult> ComputeClient::Matmul(const MatmulCall& call) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  return core_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return core_->coordinator().Matmul(session_id, call, options);
                          });
}

absl::StatusOr<StepResult> ComputeClient::Collective(const CollectiveCall& call) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  return core_->InSession(deadline,
                          [&](const std::string& session_id, const rpc::CallOptions& options) {
                            return core_->coordinator().Collective(session_id, call, options);
                          });
}

}  // namespace shardmesh::client
