// ComputeClient: programs and single operators over arrays of a cluster.
#ifndef SHARDMESH_CLIENT_COMPUTE_H_
#define SHARDMESH_CLIENT_COMPUTE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
//   auto compiled = client->compute().Compile(program, {ArraySelector{.name = "count"}});
//   auto stream = client->compute().OpenStream();
//   for (int i = 0; i < 100; ++i) {
//     (*stream)->Send(compiled->Call({ArraySelector{.name = "count"}}));
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
  // operands must have the types, shapes and layouts of those, or another length of its symbolic
  // dimension. UNAVAILABLE: the stream has ended, and Next says why. UNIMPLEMENTED (NOT_AVAILABLE):
  // as Execute.
  //
  // If the first step is given by a hash, and the coordinator no longer has the plan, the steps are
  // sent again with the program (ExecuteCall::program), unless the stream goes on after errors. At
  // most 64 steps are therefore sent before the first answer: Send then waits for it, and keeps it
  // for Next. A later step whose plan the coordinator no longer has fails with NOT_FOUND.
  absl::Status Send(const ExecuteCall& call);
  // Says that no further step comes.
  void EndSends();
  // Waits for the next step that has ended, in any order. After a step has failed, later ones fail
  // with ABORTED, unless the stream was opened to go on. OUT_OF_RANGE: all steps have ended, and
  // EndSends was called. Otherwise the error that ended the stream.
  absl::StatusOr<StreamedStep> Next();

 private:
  friend class ComputeClient;
  using OpenCall = std::function<std::shared_ptr<StepCallStream>()>;
  using CheckProgram = std::function<absl::Status(const Program& program)>;
  // `open` opens a call of ExecuteStream. `check_program` returns OK if the coordinator runs the
  // program for any length.
  StepStream(ClientCore* core, std::string session_id, OpenCall open, CheckProgram check_program,
             bool continue_after_errors);

  struct SentStep {
    std::vector<std::string> names = {};  // of the step's results
    // Ids of operands that the step consumes if it succeeds.
    std::vector<std::string> consumed = {};
    std::shared_ptr<const ExecuteCall> call = nullptr;  // while it may be sent again
  };

  // Decides, at the first step, whether the steps may have to be sent again.
  void Begin(const ExecuteCall& first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MaySend() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns when MaySend is true; reads the first answer for that if no other thread does.
  void AwaitSend() ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the next step that has ended.
  absl::StatusOr<StreamedStep> ReadStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);
  // The first answer has come, or no answer will: no step is sent again.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes the step; `number` is its number.
  bool Write(int64_t number, const ExecuteCall& call, StepCallStream* stream) const;
  // If the error of the first step says that the coordinator lacks its plan, opens another call and
  // sends the steps again, the first one with its program. Returns whether it did.
  bool SendAgain(int64_t number, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<StepCallStream> stream() const ABSL_LOCKS_EXCLUDED(mutex_);

  ClientCore* const core_;
  const std::string session_id_;
  const OpenCall open_;
  const CheckProgram check_program_;
  const bool continue_after_errors_;
  absl::Mutex read_mutex_ ABSL_ACQUIRED_BEFORE(send_mutex_);  // held while an answer is read
  // The first answer, if Send has read it and Next has not returned it.
  std::optional<absl::StatusOr<StreamedStep>> early_ ABSL_GUARDED_BY(read_mutex_);
  absl::Mutex send_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while a request is written
  mutable absl::Mutex mutex_;
  std::shared_ptr<StepCallStream> stream_ ABSL_GUARDED_BY(mutex_);
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_ended_sends_ ABSL_GUARDED_BY(mutex_) = false;
  // The program of the first step, until Settle; null: no step is sent again.
  std::shared_ptr<const Program> first_program_ ABSL_GUARDED_BY(mutex_);
  bool is_sending_again_ ABSL_GUARDED_BY(mutex_) = false;
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
  //
  // Compile plans a program and returns a handle: see CompiledProgram. If the program has a
  // symbolic dimension, it is planned for its shortest and its longest length, and the operands may
  // have any length of the range. RESOURCE_EXHAUSTED (MEMORY_LIMIT): it certainly does not fit at
  // the longest length. UNIMPLEMENTED (NOT_AVAILABLE): the coordinator is an older build.
  absl::StatusOr<CompiledProgram> Compile(const Program& program,
                                          absl::Span<const Operand> operands,
                                          const std::string& mesh_id = "",
                                          const CallOptions& options = {});
  // As Compile, for a program of 1 to 8 products. The answer also has at most `candidates` of the
  // plans that the planner compared, 1 to 64. A coordinator of an older build takes one product,
  // perhaps with a reshard of its result, and no other op (BAD_FIELD).
  absl::StatusOr<CompiledProgram> ComparePlans(const Program& program,
                                               absl::Span<const Operand> operands,
                                               int32_t candidates, const std::string& mesh_id = "",
                                               const CallOptions& options = {});
  // UNIMPLEMENTED (NOT_AVAILABLE): ops of the call's program depend on a length, and the
  // coordinator is an older build, which would ignore that. The client asks it for its features
  // before it sends such a program; calls by a handle need no such question.
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
  // Returns the plan that LinearLayer would run, and at most `candidates` of the plans that the
  // planner compared, 0 to 64. A coordinator of an older build refuses candidates of a layer
  // (BAD_FIELD).
  absl::StatusOr<CompiledProgram> CompileLayer(const LinearLayerCall& call, int32_t candidates = 0,
                                               const CallOptions& options = {});
  absl::StatusOr<StepResult> Matmul(const MatmulCall& call, const CallOptions& options = {});
  absl::StatusOr<StepResult> Collective(const CollectiveCall& call,
                                        const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_COMPUTE_H_
