// Requests for computations on arrays, and their results.
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

// An operand of a computation: an array of the cluster, or a small tensor that every device gets
// whole.
struct Operand {
  Operand(ArraySelector array) : value(std::move(array)) {}  // NOLINT: an array is an operand.
  Operand(Literal literal) : value(std::move(literal)) {}    // NOLINT: a literal is an operand.

  std::variant<ArraySelector, Literal> value;
  // Whether the step may reuse the array's memory; the array no longer exists afterwards. An
  // all-reduce, broadcast or barrier works in place if tiles keep their size. The array is then
  // lost even if the step fails, as the error states. An array that has a name, or that others
  // hold, is never consumed.
  bool donate = false;
};

// How a step stores and returns its results.
struct OutputOptions {
  // The names of the results, in order. A result whose name is empty or missing gets no name.
  std::vector<std::string> names = {};
  // The expected states of the names, in order; nullopt or missing means any state.
  std::vector<Precondition> preconditions = {};
  // Whether to return the results' elements too, at most 1 MiB in all.
  bool return_literals = false;
  // The spec of each result, which must fit without correction. If nullopt or missing, the planner
  // chooses the spec.
  std::vector<std::optional<PartitionSpec>> specs = {};
};

struct StepOutput {
  Array array;
  std::optional<Literal> literal;
};

struct StepTimings {
  absl::Duration total = absl::ZeroDuration();       // from admission to commit
  absl::Duration kernel = absl::ZeroDuration();      // kernel time of the slowest rank
  absl::Duration collective = absl::ZeroDuration();  // communication time of the slowest rank
  int64_t sent_bytes = 0;                            // sent between workers, sum over all ranks
};

struct StepResult {
  std::vector<StepOutput> outputs;
  int64_t sequence = 0;
  StepTimings timings;
};

// Asks to run a program with its operands. `work` is the program, or the hash of a plan that
// Compile returned.
struct ExecuteCall {
  std::variant<Program, std::string> work;
  std::vector<Operand> operands;
  // The mesh's name; required if no operand is an array of the cluster.
  std::string mesh_id = {};
  OutputOptions output = {};
};

// Computes activation(scale * input * weight + bias).
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
  int64_t dimension = 0;  // must be 0 for kinds without it; likewise root and split_dimension
  Reduction reduction = Reduction::kSum;
  int64_t root = 0;
  int64_t split_dimension = 0;
  std::vector<PermutePair> permutation = {};
  std::vector<int64_t> counts = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  CollectiveOrder order = CollectiveOrder::kReproducible;
  OutputOptions output = {};
};

// One instruction of a plan. Every device of the mesh runs it on its own tiles.
struct PlannedInstruction {
  std::string label;  // shown in errors and records, such as "op 0 (linear): all-reduce over tp"
  // Nullopt: the devices exchange nothing.
  std::optional<CollectiveKind> collective;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;  // not kAuto if there is a collective
  // Mesh axes of the collective, major first.
  std::vector<std::string> axes;
};

// The data that one run of a plan exchanges along one list of mesh axes.
struct PlannedTraffic {
  std::vector<std::string> axes;  // major first
  int64_t collectives = 0;
  int64_t sent_bytes = 0;  // sent by the busiest device
  // The predicted time of the exchange, from the slowest measured link of the mesh. Nullopt if no
  // link has been measured yet.
  std::optional<absl::Duration> exchange_time;
};

// The exchange of one run of a plan from one rank of its mesh to another.
struct PlannedLink {
  int64_t sender_rank = 0;
  int64_t receiver_rank = 0;
  int64_t sent_bytes = 0;
};

// The exchange of one run of a plan by links: bytes of tiles, partial sums and barriers, without
// the headers of frames.
struct PlannedLinks {
  // Most bytes first, then by sender and receiver: at most 32, and all of them if there are no
  // more.
  std::vector<PlannedLink> busiest;
  int64_t link_count = 0;  // links that carry bytes
  int64_t sent_bytes = 0;  // over all links
};

// Summary of a plan.
struct CompiledProgram {
  std::string plan_hash;                         // 32 raw bytes
  std::vector<PlannedInstruction> instructions;  // in order; at least one for each op
  PlanCost cost;                                 // predicted cost of one run
  std::vector<PlannedTraffic> traffic;           // one entry for each list of axes
  // Nullopt: the program has too many pairs of ranks to sum up, or the coordinator is an older
  // build.
  std::optional<PlannedLinks> links;
  int64_t peak_bytes = 0;  // most bytes of values on a device at any time, without operands
  // The predicted time of all collectives of a run, without kernels. Nullopt as in PlannedTraffic.
  std::optional<absl::Duration> exchange_time;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_STEP_H_
