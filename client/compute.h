// ComputeClient: programs and single operators over arrays of a cluster.
#ifndef SHARDMESH_CLIENT_COMPUTE_H_
#define SHARDMESH_CLIENT_COMPUTE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/call_options.h"
#include "client/types/step.h"

namespace shardmesh::client {

class ClientCore;

// Computation over arrays of a cluster.
//
// Example:
//   auto y = client->compute().Linear({.input = x, .weight = w, .output = {.names = {"y"}}});
//
// Errors, retries and time limits are those of MeshClient, which owns this object. Thread-safe.
class ComputeClient {
 public:
  // `core` outlives this object.
  explicit ComputeClient(ClientCore* core) : core_(core) {}
  ComputeClient(const ComputeClient&) = delete;
  ComputeClient& operator=(const ComputeClient&) = delete;

  // Every rank of the mesh takes part in each computation. After a computation, either all of its
  // results exist or none. A computation does not change its operands, unless they are donated.
  absl::StatusOr<CompiledProgram> Compile(const Program& program,
                                          absl::Span<const Operand> operands,
                                          const std::string& mesh_id = "",
                                          const CallOptions& options = {});
  // As Compile, for a program of one product, perhaps with a reshard of its result. The answer also
  // has at most `candidates` of the plans that the planner compared, 1 to 64.
  absl::StatusOr<CompiledProgram> ComparePlans(const Program& program,
                                               absl::Span<const Operand> operands,
                                               int32_t candidates, const std::string& mesh_id = "",
                                               const CallOptions& options = {});
  absl::StatusOr<StepResult> Execute(const ExecuteCall& call, const CallOptions& options = {});
  absl::StatusOr<StepResult> Linear(const LinearCall& call, const CallOptions& options = {});
  // Computes a linear layer, with one output for each part. A coordinator that lacks the feature
  // linear_layers refuses the call (BAD_FIELD).
  absl::StatusOr<StepResult> LinearLayer(const LinearLayerCall& call,
                                         const CallOptions& options = {});
  // Returns the plan that LinearLayer would run, without candidates.
  absl::StatusOr<CompiledProgram> CompileLayer(const LinearLayerCall& call,
                                               const CallOptions& options = {});
  absl::StatusOr<StepResult> Matmul(const MatmulCall& call, const CallOptions& options = {});
  absl::StatusOr<StepResult> Collective(const CollectiveCall& call,
                                        const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_COMPUTE_H_
