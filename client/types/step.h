// Computations on arrays as a client asks for them, and what came of them.
#ifndef SHARDMESH_CLIENT_TYPES_STEP_H_
#define SHARDMESH_CLIENT_TYPES_STEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "client/types/array.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"

namespace shardmesh::client {

// What a computation takes: an array of the cluster, or a small tensor that every device gets
// whole.
struct Operand {
  Operand(ArraySelector array) : value(std::move(array)) {}  // NOLINT: an array is an operand.
  Operand(Literal literal) : value(std::move(literal)) {}    // NOLINT: a literal is one too.

  std::variant<ArraySelector, Literal> value;
  // The step may use the array's memory; the array is gone after it. An all-reduce, broadcast or
  // barrier makes its result there if tiles keep their size; then it is gone even if the step
  // fails, as the error says. An array that has a name, or that others hold, is left alone.
  bool donate = false;
};

// What is to become of results.
struct OutputOptions {
  // By result, in order; an empty or missing name leaves it without one.
  std::vector<std::string> names = {};
  // Of the names; missing means kAnyVersion.
  std::vector<int64_t> expected_versions = {};
  // Return the elements too, at most 1 MiB together.
  bool return_literals = false;
};

struct StepOutput {
  Array array;
  std::optional<Literal> literal;
};

struct StepTimings {
  absl::Duration total = absl::ZeroDuration();       // from admission to commit
  absl::Duration kernel = absl::ZeroDuration();      // the longest of any rank
  absl::Duration collective = absl::ZeroDuration();  // the longest of any rank
  int64_t sent_bytes = 0;                            // between workers, all ranks together
};

struct StepResult {
  std::vector<StepOutput> outputs;
  int64_t sequence = 0;
  StepTimings timings;
};

// A program, or the hash of a plan that Compile returned, with as many operands as it takes.
struct ExecuteCall {
  std::variant<Program, std::string> work;
  std::vector<Operand> operands;
  // Needed where no operand is an array.
  std::string mesh_id = {};
  OutputOptions output = {};
};

// activation(scale * input * weight + bias).
struct LinearCall {
  Operand input;  // [..., in]
  Operand weight;
  std::optional<Operand> bias = std::nullopt;  // [out]
  WeightLayout weight_layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  float scale = 1;
  OutputOptions output = {};
};

struct MatmulCall {
  Operand lhs;  // [M, K]; [K, M] if transposed
  Operand rhs;  // [K, N]; [N, K] if transposed
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  OutputOptions output = {};
};

// See CollectiveOp.
struct CollectiveCall {
  Operand input;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::string> axes;
  int64_t dimension = 0;
  Reduction reduction = Reduction::kSum;
  int64_t root = 0;
  int64_t split_dimension = 0;
  std::vector<PermutePair> permutation = {};
  std::vector<int64_t> counts = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  CollectiveOrder order = CollectiveOrder::kReproducible;
  OutputOptions output = {};
};

struct CompiledProgram {
  std::string plan_hash;  // 32 raw bytes
  Plan plan;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_STEP_H_
