// The request and the result of a step.
#ifndef SHARDMESH_SERVER_STEPS_STEP_CALL_H_
#define SHARDMESH_SERVER_STEPS_STEP_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "program/flight_record.h"
#include "program/graph/layer_program.h"
#include "program/program.h"
#include "rpc/caller.h"
#include "server/state/array_registry.h"
#include "server/state/array_selection.h"
#include "sharding/spec.h"
#include "tensor/literal.h"

namespace shardmesh::server {

struct PreparedPlan;  // planner.h
class StepChain;      // sequencer.h

// An operand of a program: an array of the cluster, or a literal tensor in the call.
struct StepOperand {
  std::variant<ArrayReference, Literal> value = {};
  // Whether the caller donates the array. If so, the step may overwrite the array's memory, and the
  // step's commit deletes the array. See CheckDonor for arrays that the session does not pin.
  bool donate = false;
};

// The operands of a program. `mesh_id` is used only if no operand is an array.
struct StepOperands {
  std::vector<StepOperand> operands = {};
  std::string mesh_id = {};  // empty: "default"
};

// The caller's requests about the results of a program. Each list is in the order of the results.
// An empty or missing name leaves a result without a name.
struct StepOutputs {
  std::vector<std::string> names = {};
  // Expected versions of the names, as in NameMove. May be shorter than `names`.
  std::vector<std::optional<int64_t>> expected_versions = {};
  bool return_literals = false;
  bool return_trace = false;  // whether the result has the step's timeline
  // The requested layouts of the results. Nullopt or missing: the planner chooses the layout.
  std::vector<std::optional<PartitionSpec>> specs = {};
  // The parts of the results' definitions beside the descriptors, such as the origin of a result
  // that has the elements of another array. The descriptors here have no effect. May be shorter
  // than the list of results.
  std::vector<ArrayDefinition> definitions = {};
  OtherMoves other_moves = nullptr;          // gets the id of the first result
  std::vector<std::string> superseded = {};  // as CommitRequest::superseded

  // Returns the name of a result; empty if the result gets no name.
  const std::string& NameOf(size_t output) const {
    static const std::string none;
    return output < names.size() ? names[output] : none;
  }
};

// The SHA-256 of a plan's bytes.
struct PlanHash {
  std::string bytes;
};

// The plan of the last step of a stream, for the next one. Thread-safe.
class KeptPlan {
 public:
  std::shared_ptr<const PreparedPlan> get() const {
    absl::MutexLock lock(&mutex_);
    return plan_;
  }
  void Set(std::shared_ptr<const PreparedPlan> plan) {
    absl::MutexLock lock(&mutex_);
    plan_ = std::move(plan);
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const PreparedPlan> plan_ ABSL_GUARDED_BY(mutex_);
};

// A call that runs a step.
struct StepCall {
  // Identifies the request within its session and method. A repeated request gets the answer of the
  // first request, unless `is_remembered` is false.
  std::string request_id = {};
  bool is_remembered = true;
  std::string session_id = {};
  std::string method = {};
  // A digest of the request. It detects a different request that reuses the id.
  std::string fingerprint = {};
  rpc::Caller caller = {};
  absl::Duration time_left = absl::InfiniteDuration();  // until the call's deadline
  // The caller's time limit for the step; nullopt: no limit.
  std::optional<absl::Duration> timeout = {};

  std::variant<Program, PlanHash> work = {};
  // If set, gets the plan of the step. A PlanHash of the plan that it has needs no cached plan.
  std::shared_ptr<KeptPlan> kept_plan = nullptr;
  std::shared_ptr<StepChain> chain = nullptr;  // see StepRequest::chain
  // If set, the work is the program of this layer for the operands, and `work` has no effect.
  std::optional<LayerCall> layer = std::nullopt;
  StepOperands operands = {};
  StepOutputs outputs = {};
  // See StepRequest::received.
  std::function<void(std::string_view identity, int64_t bytes)> received = nullptr;
  std::string operation_id = {};  // see WorkRef::operation_id
};

// The prediction for one run of a plan, as v1::StepPrediction. nullopt: not known.
struct StepPrediction {
  std::optional<absl::Duration> kernel = std::nullopt;
  std::optional<absl::Duration> collective = std::nullopt;
  std::optional<absl::Duration> overhead = std::nullopt;  // see StepOverhead
  std::optional<int64_t> sent_bytes = std::nullopt;       // sum over all ranks
  int64_t peak_bytes = 0;
};

// The result of a committed step.
struct StepResult {
  struct Output {
    ArrayPtr array;
    NameEntry name;  // version 0: the result has no name
    std::optional<Literal> literal = {};
  };
  std::vector<Output> outputs = {};
  int64_t sequence = 0;
  std::string plan_hash = {};
  absl::Duration total = {};       // from admission to the end
  absl::Duration kernel = {};      // largest kernel time of a rank
  absl::Duration collective = {};  // largest collective time of a rank
  int64_t sent_bytes = 0;          // sum over all ranks
  StepPrediction predicted = {};
  std::optional<StepTrace> trace = std::nullopt;  // if StepOutputs::return_trace
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_CALL_H_
