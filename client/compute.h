// ComputeClient: programs and single operators over arrays of a cluster.
#ifndef SHARDMESH_CLIENT_COMPUTE_H_
#define SHARDMESH_CLIENT_COMPUTE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/types/call_options.h"
#include "client/types/step.h"

namespace shardmesh::client {

class ClientCore;
class StepCallStream;

// Runs steps back to back, without waiting for one before the next is sent. The coordinator runs
// the steps of one stream in order where they share arrays that one of them updates.
//
// Example: a loop that updates the array "count".
//   auto stream = client->compute().OpenStream();
//   ExecuteCall call{.work = program, .operands = {ArraySelector{.name = "count"}}};
//   for (int i = 0; i < 100; ++i) {
//     (*stream)->Send(call);
//     call.work = "";  // the same plan
//   }
//   (*stream)->EndSends();
//   for (auto step = (*stream)->Next(); step.ok(); step = (*stream)->Next()) Use(step->result);
//
// One thread may send while another one reads. The coordinator reads no further step while 64 are
// not answered, and Send then waits: a thread that both sends and reads keeps fewer open. Must not
// outlive the client.
class StepStream {
 public:
  // Cancels the steps that have not ended, unless Next has returned OUT_OF_RANGE.
  ~StepStream();
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  // Sends a step. If `work` is an empty hash, the step runs the plan of the step before, and its
  // operands must have the types, shapes and layouts of those. UNAVAILABLE: the stream has ended,
  // and Next says why.
  absl::Status Send(const ExecuteCall& call);
  // Says that no further step comes.
  void EndSends();
  // Waits for the next step that has ended, in any order. After a step has failed, later ones fail
  // with ABORTED, unless the stream was opened to go on. OUT_OF_RANGE: all steps have ended, and
  // EndSends was called. Otherwise the error that ended the stream.
  absl::StatusOr<StreamedStep> Next();

 private:
  friend class ComputeClient;
  StepStream(ClientCore* core, std::string session_id, std::unique_ptr<StepCallStream> stream,
             bool continue_after_errors);

  ClientCore* const core_;
  const std::string session_id_;
  const std::unique_ptr<StepCallStream> stream_;
  const bool continue_after_errors_;
  absl::Mutex mutex_;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  struct SentStep {
    std::vector<std::string> names = {};  // of the step's results
    std::vector<std::string> consumed =
        {};  // ids of operands that the step consumes if it succeeds
  };
  // By number, the steps that have not ended.
  std::map<int64_t, SentStep> sent_steps_ ABSL_GUARDED_BY(mutex_);
};

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
  // Opens a stream of steps. `continue_after_errors`: steps go on after one has failed. The stream
  // has no time limit unless `options` has one. FAILED_PRECONDITION or UNIMPLEMENTED, from
  // StepStream::Next: the coordinator is an older build.
  absl::StatusOr<std::unique_ptr<StepStream>> OpenStream(bool continue_after_errors = false,
                                                         const CallOptions& options = {});
  absl::StatusOr<StepResult> Linear(const LinearCall& call, const CallOptions& options = {});
  // Computes a linear layer, with one output for each part. A coordinator that lacks the feature
  // linear_layers, or layer_scales if there are scales, refuses the call (BAD_FIELD).
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
