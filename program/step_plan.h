// A program compiled for one mesh: the instructions for each device's tiles, in order.
#ifndef SHARDMESH_PROGRAM_STEP_PLAN_H_
#define SHARDMESH_PROGRAM_STEP_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/collective_choice.h"
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

// Computes activation(scale * lhs * rhs + bias) from the device's own tiles. The product contracts
// the last dimension of lhs; all other dimensions of lhs are rows. rhs is a matrix.
struct LocalMatmul {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;  // [N]; nullopt if the product is a partial sum
  bool transpose_lhs = false;                     // lhs is [K, M], not [..., K]
  bool transpose_rhs = false;                     // rhs is [N, K], not [K, N]
  float scale = 1;
  Activation activation = Activation::kNone;

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

// Exchanges tiles within each group along `axes`. `algorithm` is never kAuto.
using GroupCollective = CollectiveOp;

struct Instruction {
  ValueIndex output = 0;
  std::variant<LocalMatmul, LocalEpilogue, LocalSlice, GroupCollective, MoveRegions> kind;
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
  PlanCost cost;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Returns the tiles of `value` on the plan's mesh. Errors of Tiling::Create.
absl::StatusOr<Tiling> TilingOf(const Plan& plan, const ValueDescriptor& value);

// Returns the result that a step can make in the operand's memory if the caller donates the
// operand; nullopt if there is none. Such a result is an output of the plan and comes from a
// collective for which MayOverwriteOperand is true. Its tiles have the size of the operand's tiles.
// No other instruction uses the operand. Requires a plan that CheckPlan accepts, and operand <
// operand_count.
std::optional<ValueIndex> ResultOverOperand(const Plan& plan, ValueIndex operand);

// Returns the values that an instruction reads.
std::vector<ValueIndex> InputsOf(const Instruction& instruction);

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
};

// Plans a program for operands with the given layouts.
//
// A product keeps one operand in place and moves the other operand to it. The planner keeps in
// place the operand with which the product sends fewer bytes. If both choices send equally many, it
// keeps the right operand in place. Axes that partition the contracted dimension make partial sums,
// which the step reduces before bias and activation. Partial sums of F16 and BF16 are F32. Operands
// may have cut points: the result keeps those of the dimensions that it gets from them.
//
// INVALID_ARGUMENT in the following cases. If an op is wrong, the message names it.
// - SHAPE_MISMATCH: the shapes of the operands do not fit each other.
// - UNSUPPORTED_DTYPE: the op does not support the element type.
// - AXIS_NOT_IN_MESH: the mesh has no axis of this name.
// - NOT_DIVISIBLE: axes do not divide the dimension that they partition.
// - BAD_FIELD: the program is malformed.
// - LIMIT_EXCEEDED: the program has more than kMaxProgramSize operands, ops or outputs.
// - For a reshard: INVALID_SPEC if the new layout has unreduced axes, INVALID_CUT_POINTS if
//   part_starts has more lists than the value has dimensions, and errors of Tiling::Create and
//   MovePlan.
// - For a collective: see ExchangeAxes, CheckCollective and SplitPoints (collective_check.h).
absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_STEP_PLAN_H_
