// Requests for computations on arrays, and their results.
#ifndef SHARDMESH_CLIENT_TYPES_STEP_H_
#define SHARDMESH_CLIENT_TYPES_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/array.h"
#include "program/flight_record.h"
#include "program/graph/layer_program.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "program/tensor_op.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"

namespace shardmesh::client {

// An operand of a computation: an array of the cluster, or a small tensor that every device gets
// whole.
struct Operand {
  Operand(ArraySelector array) : value(std::move(array)) {}  // NOLINT: an array is an operand.
  Operand(Literal literal) : value(std::move(literal)) {}    // NOLINT: a literal is an operand.

  std::variant<ArraySelector, Literal> value;
  // Whether the step may consume the array: use its memory for results and delete the array. An
  // all-reduce, broadcast or barrier of a donated array works in the array's memory if its tiles
  // keep their size. In that case the array is lost even if the step fails, and the error says that
  // the array is lost. An array is never consumed if it has a name, or if another session or
  // running work holds it.
  bool donate = false;
};

// How a step stores and returns its results.
struct OutputOptions {
  // The names of the results, in order. A result whose name is empty or missing gets no name.
  std::vector<std::string> names = {};
  // The states in which the step expects the names of the results, in order. Nullopt or missing:
  // any state.
  std::vector<Precondition> preconditions = {};
  // Whether the answer also has the results' elements, at most 1 MiB in all.
  bool return_literals = false;
  // Whether the answer also has the step's timeline (StepTimings::trace). A coordinator without the
  // feature step_traces returns none.
  bool return_trace = false;
  // The spec of each result, which must fit without correction. If the spec of a result is nullopt
  // or missing, the planner chooses it.
  std::vector<std::optional<PartitionSpec>> specs = {};
};

struct StepOutput {
  Array array;
  std::optional<Literal> literal;
};

// The time, bytes and memory that were predicted for a step when its plan was made.
struct StepPrediction {
  std::optional<absl::Duration> kernel;      // unset: no worker of the mesh had measured kernels
  std::optional<absl::Duration> collective;  // unset: no link of the mesh was measured
  // Sum over all ranks. Unset for plans with very many links; see v1::StepPrediction.
  std::optional<int64_t> sent_bytes;
  int64_t peak_bytes = 0;  // the most bytes on one device of values that are not operands
  // The time beside kernels and collectives, learned from earlier steps: with these, it compares
  // with StepTimings::total. Nullopt for the first step of a mesh, or from an older coordinator.
  std::optional<absl::Duration> overhead = std::nullopt;
};

struct StepTimings {
  absl::Duration total = absl::ZeroDuration();       // from admission to commit
  absl::Duration kernel = absl::ZeroDuration();      // kernel time of the slowest rank
  absl::Duration collective = absl::ZeroDuration();  // communication time of the slowest rank
  int64_t sent_bytes = 0;                            // sent between workers, sum over all ranks
  std::optional<StepPrediction> predicted;           // nullopt: the coordinator is an older build
  // If OutputOptions::return_trace; nullopt also if the coordinator is an older build.
  std::optional<StepTrace> trace = std::nullopt;
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
  // With a hash: the program that is sent instead if the coordinator no longer has the plan. Null:
  // that which the client compiled last with this hash, if it is among the last 1,000.
  std::shared_ptr<const Program> program = nullptr;
};

// The end of one step of a StepStream.
struct StreamedStep {
  int64_t number = 0;  // of the Send of the stream that asked for it: 1 for the first
  absl::StatusOr<StepResult> result = absl::UnknownError("");
};

// Computes activation(scale * (input * weight) * scales + bias), as LinearOp in program/program.h.
struct LinearCall {
  Operand input;  // [..., in]
  Operand weight;
  std::optional<Operand> bias = std::nullopt;    // [out]
  std::optional<Operand> scales = std::nullopt;  // [out], F32: of a weight of I8
  WeightLayout weight_layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  float scale = 1;
  OutputOptions output = {};
};

// Computes a linear layer with settings of its own: see LayerCall in program/graph/layer_program.h.
// The mesh of its config is ignored: the operands' mesh is used.
struct LinearLayerCall {
  Operand input;                     // [..., in]
  std::vector<Operand> weights;      // one for each part, or one merged weight
  std::vector<Operand> biases = {};  // none, or one for each weight
  std::vector<Operand> scales = {};  // none, or one for each weight, which is I8
  // options.layer.use_bias and options.has_scales are ignored: they follow from `biases` and
  // `scales`.
  LayerCall layer = {};
  OutputOptions output = {};  // for the results of all parts, in order

  // Returns the operands in the order of ProgramOfLayer, as pointers into the call. Requires as
  // many biases, and as many scales, as weights, or none.
  std::vector<const Operand*> operands() const {
    std::vector<const Operand*> result = {&input};
    for (size_t i = 0; i < weights.size(); ++i) {
      result.push_back(&weights[i]);
      if (!biases.empty()) result.push_back(&biases[i]);
      if (!scales.empty()) result.push_back(&scales[i]);
    }
    return result;
  }
};

struct MatmulCall {
  Operand lhs;  // [batch..., M, K]; [batch..., K, M] if transposed
  Operand rhs;  // [batch..., K, N]; [batch..., N, K] if transposed
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  OutputOptions output = {};
};

// See CollectiveOp.
struct CollectiveCall {
  Operand input;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::string> axes;
  // `dimension`, `root` and `split_dimension` must be 0 for kinds that do not use them.
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

// One instruction of a plan. Every device of the mesh runs the instruction on its own tiles.
struct PlannedInstruction {
  std::string label;  // shown in errors and records, such as "op 0 (linear): all-reduce over tp"
  // Nullopt: no collective. The devices exchange data only if `axes` is not empty: then a change of
  // layout moves regions of tiles.
  std::optional<CollectiveKind> collective;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;  // not kAuto if there is a collective
  // Mesh axes along which the devices exchange data, major first.
  std::vector<std::string> axes;
};

// The data that one run of a plan exchanges along one list of mesh axes.
struct PlannedTraffic {
  std::vector<std::string> axes;  // major first
  int64_t collectives = 0;        // collectives, and changes of layout that move regions of tiles
  int64_t sent_bytes = 0;         // sent by the device that sends the most
  // The predicted time of the exchange, from the slowest measured link of the mesh. Nullopt if no
  // link has been measured yet.
  std::optional<absl::Duration> exchange_time;
};

// The bytes that one run of a plan sends from one rank of its mesh to another.
struct PlannedLink {
  int64_t sender_rank = 0;
  int64_t receiver_rank = 0;
  int64_t sent_bytes = 0;
};

// The bytes that one run of a plan sends over each link: bytes of tiles, partial sums and barriers,
// without the headers of frames.
struct PlannedLinks {
  // The links with the most bytes: at most 32. Sorted by descending number of bytes, then by sender
  // and receiver. If at most 32 links carry bytes, the list has all of these links.
  std::vector<PlannedLink> busiest;
  int64_t link_count = 0;  // links that carry bytes
  int64_t sent_bytes = 0;  // over all links
};

// A plan that the planner compared with others for a product.
struct CandidatePlan {
  std::string roles;  // the dimension that each mesh axis partitions: "dp: M, tp: K"
  absl::Duration time = absl::ZeroDuration();           // predicted, of one run
  absl::Duration kernel_time = absl::ZeroDuration();    // the part of `time` in kernels
  absl::Duration exchange_time = absl::ZeroDuration();  // the part of `time` in exchanges
  PlanCost cost = {};
  int64_t peak_bytes = 0;  // as CompiledProgram::peak_bytes
  std::vector<PlannedInstruction> instructions = {};
};

// A result of a plan.
struct PlannedOutput {
  TensorType type;
  PartitionSpec spec;
};

// The plan for one length of a program's symbolic dimension.
struct LengthPlan {
  int64_t length = 0;
  int64_t peak_bytes = 0;                       // as CompiledProgram::peak_bytes
  std::optional<absl::Duration> exchange_time;  // as CompiledProgram::exchange_time
  std::optional<absl::Duration> kernel_time;    // as CompiledProgram::kernel_time
  std::vector<PlannedOutput> outputs = {};
};

// A handle of a program that ComputeClient::Compile has planned, with a summary of the plan. Runs
// by the handle send the hash of the plan instead of the program. If the coordinator no longer has
// the plan, ComputeClient::Execute sends the program once, and so does a StepStream for its first
// step.
//
// If the program has a symbolic dimension, one handle serves all lengths: the length of a run
// follows from its operands. The summary is that of the longest length.
//
// Example:
//   auto compiled = client->compute().Compile(program, {x, w});
//   for (const Operand& x : inputs) {
//     auto result = client->compute().Execute(compiled->Call({x, w}));
//   }
//
// A value: may be copied, and outlive the client.
struct CompiledProgram {
  // Returns the call that runs the plan. The operands must have the types, shapes and layouts of
  // those for which it was compiled; with a symbolic dimension, any length of the range, and any
  // layouts. output.specs must be empty.
  ExecuteCall Call(std::vector<Operand> operands, OutputOptions output = {}) const {
    return {.work = plan_hash,
            .operands = std::move(operands),
            .mesh_id = mesh_id,
            .output = std::move(output),
            .program = program};
  }

  std::string plan_hash;                         // 32 raw bytes
  std::vector<PlannedInstruction> instructions;  // in order
  PlanCost cost;                                 // predicted cost of one run
  std::vector<PlannedTraffic> traffic;           // one entry for each list of axes
  // Nullopt: the plan has too many pairs of ranks to add up their bytes, or the coordinator is an
  // older build.
  std::optional<PlannedLinks> links;
  int64_t peak_bytes = 0;  // peak of the bytes of values on one device, without operands
  // The predicted time of all collectives of a run, without kernels. Nullopt if no link of the mesh
  // has been measured yet.
  std::optional<absl::Duration> exchange_time;
  // The predicted time of all kernels of a run. Nullopt if no worker has measured its kernels, or
  // if the coordinator is an older build.
  std::optional<absl::Duration> kernel_time;
  // The plans that the planner compared, the fastest first, if ComparePlans asked for them. The
  // first is the plan that runs. Empty if the coordinator is an older build.
  std::vector<CandidatePlan> candidates;
  // In the order of the program's outputs. Empty if the coordinator is an older build.
  std::vector<PlannedOutput> outputs = {};
  // As `peak_bytes`, by rank. Empty for meshes of more than 4,096 devices, or if the coordinator is
  // an older build.
  std::vector<int64_t> rank_peak_bytes = {};
  std::shared_ptr<const Program> program = nullptr;  // null for that of a layer
  std::string mesh_id = {};                          // as it was given to Compile
  // Set if the program has a symbolic dimension.
  std::optional<LengthPlan> shortest = std::nullopt;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_STEP_H_
