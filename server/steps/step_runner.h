// Runs steps: from a call with its operands to a committed result, or to an error that leaves no
// result.
#ifndef SHARDMESH_SERVER_STEPS_STEP_RUNNER_H_
#define SHARDMESH_SERVER_STEPS_STEP_RUNNER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "program/collective_choice.h"
#include "program/program.h"
#include "rpc/caller.h"
#include "rpc/metrics/metrics.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/state/step_memory.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"
#include "server/steps/step_call.h"
#include "server/steps/step_operands.h"
#include "server/steps/step_overhead.h"

namespace shardmesh::server {

// The objects that the runner uses. All of them outlive the runner.
struct StepRunnerParts {
  Clock* clock = nullptr;
  const DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  ArrayRegistry* registry = nullptr;
  SessionTable* sessions = nullptr;
  const LinkTable* links = nullptr;
  const Recovery* recovery = nullptr;
  Planner* planner = nullptr;
  Sequencer* sequencer = nullptr;
  rpc::Metrics* metrics = nullptr;  // counts steps by outcome
  PreferredAlgorithms preferred_algorithms = {};
  StepMemoryOptions memory = {};
};

// The answer to a step, as StepMemory keeps it for repeated requests.
using StepAnswer = absl::StatusOr<v1::ExecuteResponse>;

// Runs steps through the sequencer. The phases of a step:
//   checked -> outputs staged, operands pinned -> donated operands given -> submitted -> ended
// A step holds its pins until it has ended. A step that fails, in whichever phase, leaves no output
// staged, no operand pinned and no operand given. The exception is a donated operand whose memory a
// result would use. If the step fails after workers may have begun it, that operand is lost. The
// error names the lost operand.
//
// A step that updates an array writes it: the sequencer starts the step after all earlier steps
// that read or update the array, and later ones wait for it. The first update of an array waits for
// the disk, in the caller's thread.
//
// A repeated request id in a session does not run the step again: see StepMemory.
//
// Thread-safe. The sequencer must have ended all steps before the runner is destroyed.
class StepRunner {
 public:
  using Callback = absl::AnyInvocable<void(StepAnswer) &&>;

  explicit StepRunner(const StepRunnerParts& parts);

  struct CompiledPlan {
    std::shared_ptr<const PreparedPlan> prepared;
    // The plans of PlanCandidates. Their times are predicted from the figures of `prepared`, so the
    // first is the prepared plan.
    std::vector<PlanCandidate> candidates = {};
    std::vector<int64_t> rank_peak_bytes = {};  // empty for more than kMostRankPeaks ranks
    // The lengths of a program with a symbolic dimension. `prepared` is the plan for the longest.
    struct Lengths {
      int64_t longest = 0;
      int64_t shortest = 0;
      std::shared_ptr<const PreparedPlan> at_shortest = nullptr;
    };
    std::optional<Lengths> lengths = std::nullopt;
  };
  static constexpr int64_t kMostRankPeaks = 4096;

  // Returns whether planning may take longer than some tens of milliseconds, by the program's ops
  // and the mesh's devices. Such a program is not to be planned in a reaction (gRPC callback).
  bool PlansLong(const Program& program, const StepOperands& operands) const;
  bool PlansLong(const StepCall& call) const;

  // Returns the plan that a call with these operands would run, and at most `candidates` of the
  // plans that were compared. Errors: those of OperandFinder and of Planner::Prepare, those of
  // PlanCandidates if `candidates` is above 0, and those of CheckWorkersRun if the mesh has all its
  // workers.
  // With `layer`, plans its program for the operands, and `program` has no effect; errors also
  // those of ProgramOfLayer.
  // A program with a symbolic dimension is planned for its longest and its shortest length; errors
  // also those of LengthOf for the operands, and of CheckStepRoom for the longest one.
  absl::StatusOr<CompiledPlan> Compile(const rpc::Caller& caller, Program program,
                                       StepOperands operands, size_t candidates,
                                       const LayerCall* layer = nullptr) const;

  // Runs the step. Calls `callback` once, from any thread, perhaps before Run returns. Returns the
  // ticket for Sequencer::Cancel, if the step was submitted.
  std::optional<Sequencer::StepTicket> Run(StepCall call, Callback callback);
  void Cancel(Sequencer::StepTicket ticket) { parts_.sequencer->Cancel(ticket); }

 private:
  // The metrics of all steps that have the same outcome.
  struct Outcome {
    Outcome(rpc::Metrics* metrics, const std::string& outcome);

    rpc::Counter steps;
    rpc::Histogram seconds;
  };
  // A step between its admission and its end.
  struct Running {
    std::string session_id;
    StepOutputs options;
    std::shared_ptr<const PreparedPlan> prepared;
    std::vector<FoundOperand> operands;
    std::vector<ArrayDescriptor> outputs;  // the outputs that are staged
    std::vector<std::string> updated;      // ids of the arrays that the step updates
    absl::Time started;
    absl::Time submitted;   // to the sequencer
    Revision revision = 0;  // revision of the step's commit
  };
  using RunningPtr = std::shared_ptr<Running>;

  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Prepare(
      const rpc::Caller& caller, const Program& program, const std::vector<FoundOperand>& operands,
      const PlanTarget& target) const;
  // Sets the plan of the longest length, and `lengths`.
  absl::Status CompileLengths(const rpc::Caller& caller, const Program& program,
                              const FoundOperands& found, CompiledPlan* compiled) const;
  // Returns the program with a symbolic dimension that the hash names; null: it names none.
  std::shared_ptr<const SymbolicProgram> SymbolicOf(const StepCall& call) const;
  // Returns the plan of the call's program. If the call names a plan by its hash, returns the plan
  // with this hash; an error if that plan does not suit the operands. If the hash is that of a
  // program with a symbolic dimension, returns its plan for the operands.
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> PlanOf(const StepCall& call,
                                                             const FoundOperands& found) const;
  // Does all work that precedes the submission of the step to the sequencer. Fills in the fields of
  // `step` that the sequencer needs.
  absl::StatusOr<RunningPtr> Admit(StepCall call, StepRequest* step);
  // Admits again if the array of a name was replaced and released before the step pinned it.
  absl::StatusOr<RunningPtr> AdmitNamed(StepCall call, StepRequest* step);
  absl::Status StageOutputs(Running* running, Revision ranks_revision) const;
  // Pins the operands until End. Returns an error if an operand no longer exists.
  absl::Status PinOperands(Running* running) const;
  // Makes the arrays that the step updates state, and waits for the disk if they were not: see
  // ArrayRegistry::MakeState. DEADLINE_EXCEEDED (DEADLINE): the call's time ends first.
  absl::Status MakeState(Running* running, absl::Duration time_left) const;
  // Gives the step the donated operands that it may have, and lists the arrays that the step reads
  // and writes.
  void GiveOperands(Running* running, StepRequest* step) const;
  EncodedStep MessageOf(const Running& running, absl::Duration timeout) const;
  void Commit(const RunningPtr& running, const WorkOutcome& outcome,
              absl::AnyInvocable<void(absl::Status) &&> decided);
  // Releases the step's pins. After a failure also discards its outputs, and takes back donated
  // operands that the step did not destroy. `began`: workers may have run a part of the step.
  void End(const Running& running, const absl::Status& status, bool began = false);
  // Replaces `status` with RECOVERING if the client may run the step again unchanged. This requires
  // that all array operands are on disk and none was donated. It also requires that all workers of
  // the mesh are durable, and that the lost workers among them are expected back. Returns other
  // errors unchanged.
  absl::Status WithSecondRun(const Running& running, absl::Status status) const;
  // Returns the step's error, extended by the donated operands that the step destroyed.
  static absl::Status WithLosses(const Running& running, const WorkOutcome& outcome);
  absl::StatusOr<StepResult> ResultOf(const Running& running, const WorkOutcome& outcome);
  // Returns the overhead that steps of the plan's mesh had before, and learns that of this one.
  std::optional<absl::Duration> LearnOverhead(const PreparedPlan& prepared,
                                              absl::Duration overhead);

  const StepRunnerParts parts_;
  const OperandFinder finder_;
  const Outcome committed_;
  const Outcome failed_;
  const Outcome cancelled_;  // cancelled by the client, or because the coordinator stops
  StepMemory memory_;
  absl::Mutex overheads_mutex_;
  absl::flat_hash_map<std::string, StepOverhead> overheads_
      ABSL_GUARDED_BY(overheads_mutex_);  // by mesh
};

// Cancels a step that another thread submits. Thread-safe.
class PendingStep {
 public:
  // Cancels the step, now or when it gets its ticket.
  void Cancel(StepRunner* runner) {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    if (ticket_.has_value()) runner->Cancel(*ticket_);
  }

  // Sets the ticket that StepRunner::Run returned. nullopt: there is no step to cancel.
  void Submitted(StepRunner* runner, std::optional<Sequencer::StepTicket> ticket) {
    absl::MutexLock lock(&mutex_);
    ticket_ = ticket;
    if (is_cancelled_ && ticket_.has_value()) runner->Cancel(*ticket_);
  }

  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return is_cancelled_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Sequencer::StepTicket> ticket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_RUNNER_H_
