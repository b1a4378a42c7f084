// A step as its caller asks for it, and the result of a step.
#ifndef SHARDMESH_SERVER_STEPS_STEP_CALL_H_
#define SHARDMESH_SERVER_STEPS_STEP_CALL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "program/program.h"
#include "rpc/caller.h"
#include "server/state/array_selection.h"
#include "server/state/arrays.h"
#include "sharding/spec.h"
#include "tensor/literal.h"

namespace shardmesh::server {

// An operand of a program: an array of the cluster, or a tensor that the call brings.
struct StepOperand {
  std::variant<ArrayReference, Literal> value = {};
  // The step may use the array's memory, and the array is gone after it.
  bool donate = false;
};

// The operands of a program, and the mesh if none of them is an array.
struct StepOperands {
  std::vector<StepOperand> operands = {};
  std::string mesh_id = {};  // empty: "default"
};

// What becomes of the results, in their order. An empty name, or a missing one, leaves a result
// without a name.
struct StepOutputs {
  std::vector<std::string> names = {};
  // Of the names, as in NameMove; may be shorter.
  std::vector<std::optional<int64_t>> expected_versions = {};
  bool return_literals = false;
  // How the results are to lie; nullopt, or missing: as the planner lays them out.
  std::vector<std::optional<PartitionSpec>> specs = {};

  // Empty where the result gets no name.
  const std::string& NameOf(size_t output) const {
    static const std::string none;
    return output < names.size() ? names[output] : none;
  }
};

// The SHA-256 of a plan's bytes.
struct PlanHash {
  std::string bytes;
};

// A call that runs a step.
struct StepCall {
  // Request ids are told apart by session and method.
  std::string request_id = {};
  std::string session_id = {};
  std::string method = {};
  // A digest of the request: another request with the same id has another one.
  std::string fingerprint = {};
  rpc::Caller caller = {};
  absl::Duration time_left = absl::InfiniteDuration();  // of the call
  // The step's own time limit, if the caller gave one.
  std::optional<absl::Duration> timeout = {};

  std::variant<Program, PlanHash> work = {};
  StepOperands operands = {};
  StepOutputs outputs = {};
};

// The result of a committed step.
struct StepResult {
  struct Output {
    ArrayPtr array;
    NameEntry name;  // `version` 0: it got no name
    std::optional<Literal> literal = {};
  };
  std::vector<Output> outputs = {};
  int64_t sequence = 0;
  std::string plan_hash = {};
  absl::Duration total = {};       // from its admission to its end
  absl::Duration kernel = {};      // of the rank that spent most
  absl::Duration collective = {};  // of the rank that spent most
  int64_t sent_bytes = 0;          // by all ranks
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_CALL_H_
