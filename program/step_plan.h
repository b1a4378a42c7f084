// A program compiled for one mesh: the instructions for each device's tiles, in order.
#ifndef SHARDMESH_PROGRAM_STEP_PLAN_H_
#define SHARDMESH_PROGRAM_STEP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/measured_rates.h"
#include "program/program.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh {

// The type, shape and layout of a value, known before a step computes the value. The plan's mesh,
// `spec` and `cut_points` give each device's tile. Along unreduced axes the tiles are partial sums.
struct ValueDescriptor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  PartitionSpec spec;
  std::vector<CutPoints> cut_points = {};  // as in Tiling::Create; empty if all parts are equal

  friend bool operator==(const ValueDescriptor&, const ValueDescriptor&) = default;
};

// Computes activation(scale * (lhs * rhs) * scales + bias) from the device's own tiles. The product
// contracts the last dimension of lhs. If rhs is a matrix, all other dimensions of lhs are rows.
// Otherwise the dimensions before the last two of either operand are batch dimensions, matched from
// the last one. Along a batch dimension of extent 1, an operand is broadcast.
struct LocalMatmul {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;  // [N]; nullopt if the product is a partial sum
  bool transpose_lhs = false;                     // lhs is [..., K, M], not [..., M, K]
  bool transpose_rhs = false;                     // rhs is [..., N, K], not [..., K, N]
  float scale = 1;
  Activation activation = Activation::kNone;
  // [N], F32; set if and only if rhs is I8, a matrix.
  std::optional<ValueIndex> scales = std::nullopt;

  friend bool operator==(const LocalMatmul&, const LocalMatmul&) = default;
};

// Computes activation(input + bias), with the bias along the last dimension. Rounds to the element
// type of the output.
struct LocalEpilogue {
  ValueIndex input = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  Activation activation = Activation::kNone;

  friend bool operator==(const LocalEpilogue&, const LocalEpilogue&) = default;
};

// Copies the output's tile out of the input's tile on the same device.
struct LocalSlice {
  ValueIndex input = 0;

  friend bool operator==(const LocalSlice&, const LocalSlice&) = default;
};

// Gives the input the layout of the output: each device sends and receives the regions of the
// reshard plan between the two layouts (MovePlan). Input and output have the same element type,
// shape and unreduced axes.
struct MoveRegions {
  ValueIndex input = 0;

  friend bool operator==(const MoveRegions&, const MoveRegions&) = default;
};

// Computes the output's tile from the device's own tiles. The values lie as the op's sharding rule
// (program/sharding_rule.h) says.
struct LocalCompute {
  TensorOp op;

  friend bool operator==(const LocalCompute&, const LocalCompute&) = default;
};

// Exchanges tiles within each group along `axes`. `algorithm` is never kAuto.
using GroupCollective = CollectiveOp;

// An all-gather, and the product of what it gathers, as one instruction: each device multiplies the
// part of a place once it has arrived. The result has the bits of the two instructions one after
// the other. fuse/fuse_exchanges.h says which pairs can be one instruction.
struct GatherMatmul {
  GroupCollective gather = {};
  ValueDescriptor gathered = {};  // the result of `gather`, and an operand of the product
  LocalMatmul matmul = {};   // this operand is gather.input: `gathered` is no value of the plan
  bool gathers_rhs = false;  // `gathered` is the right operand of the product, not the left one

  friend bool operator==(const GatherMatmul&, const GatherMatmul&) = default;
};

// A product, and the reduce-scatter of it, as one instruction: each device sends the part for a
// place once it has computed it. The result has the bits of the two instructions one after the
// other. fuse/fuse_exchanges.h says which pairs can be one instruction.
struct MatmulScatter {
  LocalMatmul matmul = {};
  ValueDescriptor product = {};  // the result of `matmul`, and the input of `scatter`
  GroupCollective scatter = {};  // its `input` is matmul.lhs: `product` is no value of the plan

  friend bool operator==(const MatmulScatter&, const MatmulScatter&) = default;
};

// One op of a FusedCompute.
struct FusedOp {
  // A MapOp or a ConvertOp. Its values below the number of the instruction's inputs are these
  // inputs; those from there on are the results of the instruction's ops, in order.
  TensorOp op;
  std::string label;  // of the op, for error messages: "op 3 (multiply)"

  friend bool operator==(const FusedOp&, const FusedOp&) = default;
};

// Functions of elements as one instruction: each device computes all ops for some elements before
// it goes on to the next ones. The result of the last op is the output. The other results have no
// memory; they are rounded to their types, so that the output has the bits of the ops one after the
// other. fuse/fuse_elementwise.h says which ops can be one instruction.
struct FusedCompute {
  std::vector<ValueIndex> inputs;  // the values of the plan that the ops read, each once
  std::vector<FusedOp> ops;        // 2 to kMaxFusedOps

  friend bool operator==(const FusedCompute&, const FusedCompute&) = default;
};
inline constexpr size_t kMaxFusedOps = 32;

struct Instruction {
  ValueIndex output = 0;
  std::variant<LocalMatmul, LocalEpilogue, LocalSlice, GroupCollective, MoveRegions, LocalCompute,
               GatherMatmul, MatmulScatter, FusedCompute>
      kind;
  // For error messages and flight records: "op 0 (linear): all-reduce over tp".
  std::string label;

  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// The predicted cost of one run of the plan, on the device with the most work.
struct PlanCost {
  int64_t flops = 0;       // multiplications and additions
  int64_t sent_bytes = 0;  // to peers
  // The most bytes that the device uses at the same time, without the operands: PeakBytesOf.
  int64_t memory_bytes = 0;

  friend bool operator==(const PlanCost&, const PlanCost&) = default;
};

// A compiled program, the same for every device: a device derives its own instructions from the
// plan and its rank. A run needs only the plan and the operands. The value with index operand_count
// + i is the output of instruction i.
struct Plan {
  std::string mesh_id;
  int64_t mesh_revision = 0;
  Mesh mesh;
  std::vector<ValueDescriptor> values;  // operands first
  uint32_t operand_count = 0;
  std::vector<Instruction> instructions;
  std::vector<ValueIndex> outputs;
  // The results that become the content of operands when the step commits. Each has the type, shape
  // and layout of its operand.
  std::vector<StateUpdate> updates = {};
  PlanCost cost;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Returns the tiles of `value` on the plan's mesh. Errors of Tiling::Create.
absl::StatusOr<Tiling> TilingOf(const Plan& plan, const ValueDescriptor& value);

// Returns the result that a step can make in the operand's memory if the caller donates the
// operand; nullopt if there is none. Such a result is an output of the plan and comes from a
// collective for which MayOverwriteOperand is true. Its tiles have the size of the operand's tiles.
// No other instruction uses the operand, and no update has it. Requires a plan that CheckPlan
// accepts, and operand < operand_count.
std::optional<ValueIndex> ResultOverOperand(const Plan& plan, ValueIndex operand);
// Returns ResultOverOperand of each operand, in one pass over the instructions.
std::vector<std::optional<ValueIndex>> ResultsOverOperands(const Plan& plan);

// Returns, by value of the plan, the operand in whose memory a step makes the value; nullopt for
// all values that have memory of their own.
//
// Such values are those of a chain that leads from a state operand to the value of its update: each
// is the result of an UpdateRowsOp on the one before it, the first on the operand. All values of
// the chain lie as the operand. No instruction after an UpdateRowsOp of the chain reads its input,
// and no value of the chain except the last is an output or the value of an update. Instructions
// before that UpdateRowsOp may read its input, and those after it the result. A chain that is
// broken gives no places at all.
//
// While a step makes such values, the operand's array is neither the old nor the new state. A step
// that does not commit must restore the rows that it has replaced: those at the positions of the
// chain's ops. If the same array is also another operand of the step, the step must give the values
// of the chain memory of their own. Requires a plan that CheckPlan accepts. Takes O(n) for n
// instructions.
std::vector<std::optional<ValueIndex>> StatePlaces(const Plan& plan);

// Returns the values that an instruction reads.
std::vector<ValueIndex> InputsOf(const Instruction& instruction);

// The rates at which each device runs kernels. The defaults apply if nothing was measured.
struct KernelRates {
  // The rate of products of F32. Where `costs` has no other cost, also that of all other products.
  double flops_per_second = 50e9;
  // To read a byte of an operand, or write one of a result, where `costs` has no cost.
  double seconds_per_byte = 1 / 10e9;
  double seconds_per_product = 2e-6;  // to start one matrix product, where `costs` has no cost
  KernelCosts costs = {};             // 0 if no worker has measured it
  bool is_measured = false;           // if false, all rates are the defaults
  // Whether all devices run fused instructions of rows (FuseExchanges): all workers of the mesh
  // have the feature kOverlapFeature (rpc/contract.h).
  bool may_overlap = false;
  // Whether they run GatherMatmul and MatmulScatter of all other kinds too: all workers have the
  // feature kOverlapPartsFeature. Counts only if may_overlap is true.
  bool may_overlap_parts = false;
  // Whether all devices run FusedCompute: all workers of the mesh have the feature
  // kFusedComputeFeature (rpc/contract.h).
  bool may_fuse_ops = false;
};

// The mesh for which a program is planned, in the mesh's current definition. Also the settings by
// which the planner chooses algorithms.
struct PlanTarget {
  std::string mesh_id;
  int64_t mesh_revision = 0;
  Mesh mesh;
  // The cost of the links between the mesh's ranks, from which the planner chooses the algorithms
  // of collectives.
  LinkCost links = {};
  // The configured algorithms for collectives whose algorithm the program leaves open.
  PreferredAlgorithms preferred = {};
  // The rates of the slowest of the mesh's workers. With `links`, they give the time of a plan.
  KernelRates kernels = {};
};

// Plans a program for operands with the given layouts.
//
// For each product, the planner considers layouts in which every mesh axis partitions one dimension
// of the product or none, and takes the layout whose instructions have the least predicted time.
// Among layouts with the same time, it takes the one that sends fewer bytes, and then the one that
// leaves the right operand in place. An axis partitions only dimensions that it partitions in one
// of the operands. The result gets the layout that it has if the right operand stays in place, or
// if the left one does and fewer bytes are sent then. This layout does not depend on the target's
// rates. If a reshard is the only op that uses a product's result, the product is planned for this
// layout of its result, and an axis may partition any dimension. Axes that partition the contracted
// dimension make partial sums, which the step reduces before bias and activation. If the result has
// to be partitioned along these axes, the reduction is a reduce-scatter, else an all-reduce.
// Partial sums of F16 and BF16 are F32. Operands may have cut points: the result keeps those of the
// dimensions that it gets from them. At last, if the target's workers run such
// instructions, FuseExchanges makes one of an exchange and a product where this saves time, and
// FuseElementwise makes one of functions of elements.
//
// For each tensor op, the planner compares layouts of the factors of its sharding rule: those that
// its inputs have, the largest input first, and those with which its result lies as a reader wants
// it (LayoutWishesOf). It takes the layout with the least time at the default rates, together with
// the time until the result lies as wanted. Partial sums are summed at once, unless a collective
// reads them. The value of a state update gets the layout of its operand.
//
// INVALID_ARGUMENT in the following cases. If an op is wrong, the message names it.
// - SHAPE_MISMATCH: the shapes of an op's inputs, or of a state update, do not fit each other.
// - INVALID_SHAPE: a product has more than 2^63 - 1 elements.
// - UNSUPPORTED_DTYPE: the op does not support the element type, or the value of a state update has
//   another type than its operand.
// - AXIS_NOT_IN_MESH: the mesh has no axis of this name.
// - NOT_DIVISIBLE: axes do not divide the dimension that they partition.
// - BAD_FIELD: the program is malformed. If an op reads a value that it or a later op makes, the
//   message names the ops between them.
// - INVALID_SPEC: the operand of a state update has unreduced axes, and its value does not.
// - LIMIT_EXCEEDED: the program has more than kMaxProgramSize operands, ops or outputs, or its ops
//   have more than kMaxProgramInputs inputs.
// - For a reshard: INVALID_SPEC if the new layout has unreduced axes, INVALID_CUT_POINTS if
//   part_starts has more lists than the value has dimensions, and errors of Tiling::Create and
//   MovePlan.
// - For a collective: see ExchangeAxes, CheckCollective and SplitPoints (collective_check.h).
absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target);

// A plan for a program with products, and the layouts in which it computes the products.
struct PlanCandidate {
  Plan plan;
  // RolesText of the layout: "dp: M, tp: K". Of several products, each with its op:
  // "op 0 (linear): tp: N; op 1 (linear): tp: K".
  std::string roles;
  double seconds = 0;  // the predicted time of one run
};

// The most products of a program that has candidates.
inline constexpr size_t kMostCandidateProducts = 8;

// Returns plans of a program with 1 to kMostCandidateProducts products, at most `most`. The first
// is the plan that PlanProgram returns. The others have the next least predicted time, the fastest
// first. Requires most >= 1.
//
// If there is one product, the plans are those that PlanProgram compares. If there are several, the
// plans combine such layouts. After each product, at most 64 / products combinations are kept:
// those whose products up to there take the least time. Other ops are laid out as PlanProgram does
// for these layouts of products.
//
// Errors: those of PlanProgram, and INVALID_ARGUMENT (BAD_FIELD) if the program has no product or
// too many.
absl::StatusOr<std::vector<PlanCandidate>> PlanCandidates(
    const Program& program, absl::Span<const ValueDescriptor> operands, const PlanTarget& target,
    size_t most);

// Returns whether the plan multiplies batches: only workers with the feature kBatchesFeature
// (rpc/contract.h) run such a plan.
bool MultipliesBatches(const Plan& plan);

// Returns whether the plan multiplies values of F16, or by weights of I8: only workers with the
// feature kShortProductsFeature (rpc/contract.h) run such a plan.
bool MultipliesShortTypes(const Plan& plan);

// Returns whether the plan has a GatherMatmul or a MatmulScatter: only workers with the feature
// kOverlapFeature (rpc/contract.h) run such a plan.
bool OverlapsExchanges(const Plan& plan);

// Returns whether the plan has a FusedCompute: only workers with the feature kFusedComputeFeature
// (rpc/contract.h) run such a plan.
bool HasFusedOps(const Plan& plan);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_STEP_PLAN_H_
