// Checks a plan's indices, then each instruction against the tiles that it reads and makes.
#include "program/plan_check.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/compute_layout.h"
#include "program/fuse/fuse_elementwise.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/move_plan.h"
#include "program/plan_builder.h"
#include "program/product_layout.h"
#include "program/sharding_rule.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Checks one instruction against the shapes of the tiles that it reads and makes. Requires that the
// caller has checked the indices of its inputs.
class InstructionChecker {
 public:
  InstructionChecker(const Plan& plan, absl::Span<const Tiling> tilings)
      : plan_(plan), tilings_(tilings) {}

  absl::Status Check(const Instruction& instruction) const {
    if (const auto pair = PlainFormOf(plan_, instruction); pair.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckInputs(instruction));
      SHARDMESH_RETURN_IF_ERROR(CheckPlan(*pair));
      return CheckFusible(*pair);
    }
    return std::visit([&](const auto& kind) { return CheckKind(kind, instruction.output); },
                      instruction.kind);
  }

 private:
  size_t RankOf(ValueIndex index) const { return plan_.values[index].shape.size(); }
  Shape TileShape(ValueIndex index) const { return tilings_[index].ShardShape(); }
  Dtype DtypeOf(ValueIndex index) const { return plan_.values[index].dtype; }

  absl::Status CheckKind(const LocalMatmul& matmul, ValueIndex output) const {
    const ValueDescriptor& lhs = plan_.values[matmul.lhs];
    const ValueDescriptor& rhs = plan_.values[matmul.rhs];
    SHARDMESH_ASSIGN_OR_RETURN(
        const ProductDims dims,
        ProductDimsOf(lhs.shape, matmul.transpose_lhs, rhs.shape, matmul.transpose_rhs));
    bool fits = OutputShapeOf(dims) == plan_.values[output].shape &&
                IsWholeWhereBroadcast(lhs, dims, ProductSide::kLhs) &&
                IsWholeWhereBroadcast(rhs, dims, ProductSide::kRhs);
    for (const ProductDim& dim : dims) {
      if (!fits) break;
      if (dim.lhs.has_value() && dim.rhs.has_value()) {
        fits = HaveSameParts(matmul.lhs, *dim.lhs, matmul.rhs, *dim.rhs);
      }
      if (fits && dim.out.has_value() && dim.lhs.has_value()) {
        fits = HaveSameParts(matmul.lhs, *dim.lhs, output, *dim.out);
      }
      if (fits && dim.out.has_value() && dim.rhs.has_value()) {
        fits = HaveSameParts(matmul.rhs, *dim.rhs, output, *dim.out);
      }
    }
    if (!fits) {
      return Misfit("tiles do not multiply");
    }
    SHARDMESH_RETURN_IF_ERROR(CheckProductTypes(DtypeOf(matmul.lhs), DtypeOf(matmul.rhs),
                                                matmul.scales.has_value(),
                                                /*rhs_is_weight=*/true));
    if (matmul.scales.has_value()) {
      if (RankOf(matmul.rhs) != 2 || DtypeOf(*matmul.scales) != Dtype::kF32) {
        return Misfit("scales are no F32, or the right operand is no matrix");
      }
      SHARDMESH_RETURN_IF_ERROR(CheckColumns(matmul.scales, output, "the scales do"));
    }
    return CheckColumns(matmul.bias, output, "the bias does");
  }
  absl::Status CheckKind(const LocalEpilogue& epilogue, ValueIndex output) const {
    bool fits = RankOf(epilogue.input) == RankOf(output);
    for (size_t dim = 0; fits && dim < RankOf(output); ++dim) {
      fits = HaveSameParts(epilogue.input, dim, output, dim);
    }
    if (!fits) {
      return Misfit("tiles of input and output differ");
    }
    return CheckColumns(epilogue.bias, output, "the bias does");
  }
  absl::Status CheckKind(const LocalSlice& slice, ValueIndex output) const {
    if (plan_.values[slice.input] == plan_.values[output]) return absl::OkStatus();  // a copy
    SHARDMESH_ASSIGN_OR_RETURN(
        const ReshardPlan move,
        MovePlan(plan_.mesh, plan_.values[slice.input], plan_.values[output]));
    return MovesNothing(move) ? absl::OkStatus()
                              : Misfit("a device lacks a part of its slice of the input");
  }
  absl::Status CheckKind(const MoveRegions& move, ValueIndex output) const {
    return MovePlan(plan_.mesh, plan_.values[move.input], plan_.values[output]).status();
  }
  absl::Status CheckKind(const LocalCompute& compute, ValueIndex output) const {
    std::vector<ValueDescriptor> inputs;
    std::vector<TensorType> types;
    for (const ValueIndex input : InputsOf(compute.op)) {
      inputs.push_back(plan_.values[input]);
      types.push_back({.dtype = DtypeOf(input), .shape = plan_.values[input].shape});
    }
    SHARDMESH_ASSIGN_OR_RETURN(const TensorType result, ResultTypeOf(compute.op, types));
    const ValueDescriptor& value = plan_.values[output];
    if (result.dtype != value.dtype || result.shape != value.shape) {
      return Misfit(StrCat(TensorOpName(compute.op), " makes ", DtypeName(result.dtype), " of ",
                           ShapeToString(result.shape), "; the value is ", DtypeName(value.dtype),
                           " of ", ShapeToString(value.shape)));
    }
    return CheckComputeLayout(plan_.mesh, ShardingRuleOf(compute.op, types, result), inputs, value);
  }
  absl::Status CheckKind(const FusedCompute& fused, ValueIndex output) const {
    SHARDMESH_ASSIGN_OR_RETURN(const Plan plain, PlainFormOf(plan_, fused, output));
    return CheckPlan(plain);
  }
  // Check checks these in their plain form.
  absl::Status CheckKind(const GatherMatmul& /*fused*/, ValueIndex /*output*/) const {
    return absl::OkStatus();
  }
  absl::Status CheckKind(const MatmulScatter& /*fused*/, ValueIndex /*output*/) const {
    return absl::OkStatus();
  }
  // Returns whether the exchange of a fused instruction names the same input as the product.
  static absl::Status CheckInputs(const Instruction& instruction) {
    const auto* const gather = std::get_if<GatherMatmul>(&instruction.kind);
    const auto* const scatter = std::get_if<MatmulScatter>(&instruction.kind);
    const bool fits =
        (gather == nullptr ||
         gather->gather.input == (gather->gathers_rhs ? gather->matmul.rhs : gather->matmul.lhs)) &&
        (scatter == nullptr || scatter->scatter.input == scatter->matmul.lhs);
    return fits ? absl::OkStatus() : Misfit("exchange and product name different inputs");
  }
  absl::Status CheckKind(const GroupCollective& collective, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(
        CheckAlgorithm(collective.kind, collective.algorithm, collective.order));
    // Tiles of different places may differ in shape, and the tiles of every place must fit the
    // collective. Plan the collective again, and accept only the output that the planner derives.
    PlanBuilder builder({.mesh_id = plan_.mesh_id, .mesh = plan_.mesh},
                        {plan_.values[collective.input]});
    builder.Name(CollectiveKindName(collective.kind));
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, builder.AddCollective(collective, 0));
    return builder.value(planned) == plan_.values[output]
               ? absl::OkStatus()
               : Misfit("tiles of input and output do not fit the exchange");
  }
  // Checks a vector along the last dimension of the output. `subject` begins the error.
  absl::Status CheckColumns(std::optional<ValueIndex> vector, ValueIndex output,
                            std::string_view subject) const {
    if (vector.has_value() && (RankOf(*vector) != 1 || RankOf(output) == 0 ||
                               !HaveSameParts(*vector, 0, output, RankOf(output) - 1))) {
      return Misfit(StrCat(subject, " not fit the last dimension"));
    }
    return absl::OkStatus();
  }
  // Returns whether each device has all of an operand along those dimensions along which the
  // operand is broadcast.
  bool IsWholeWhereBroadcast(const ValueDescriptor& operand, const ProductDims& dims,
                             ProductSide side) const {
    const ValueLayout layout = LayoutOf(plan_.mesh, operand);
    for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
      const bool is_broadcast = std::none_of(
          dims.begin(), dims.end(), [&](const ProductDim& each) { return each.On(side) == dim; });
      if (is_broadcast && !layout.dims[dim].empty()) return false;
    }
    return true;
  }
  // Returns whether the tiles of each device have the same extent in the two dimensions.
  bool HaveSameParts(ValueIndex a, size_t a_dim, ValueIndex b, size_t b_dim) const {
    const ValueDescriptor& first = plan_.values[a];
    const ValueDescriptor& second = plan_.values[b];
    if (!IsCut(first, a_dim) && !IsCut(second, b_dim)) {
      return TileShape(a)[a_dim] == TileShape(b)[b_dim];
    }
    return LayoutOf(plan_.mesh, first).dims[a_dim] == LayoutOf(plan_.mesh, second).dims[b_dim] &&
           PointsOf(plan_.mesh, first, a_dim) == PointsOf(plan_.mesh, second, b_dim);
  }
  static absl::Status Misfit(std::string_view what) {
    return InvalidArgument(Reason::kShapeMismatch, what);
  }

  const Plan& plan_;
  absl::Span<const Tiling> tilings_;
};

// Returns one tiling for each value of the plan. Errors of Tiling::Create.
absl::StatusOr<std::vector<Tiling>> TilingsOf(const Plan& plan) {
  std::vector<Tiling> tilings;
  tilings.reserve(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    auto tiling = TilingOf(plan, plan.values[i]);
    if (!tiling.ok()) {
      return WithContext(tiling.status(), StrCat("value ", i));
    }
    tilings.push_back(*std::move(tiling));
  }
  return tilings;
}

// Requires that the caller has checked the instructions and the outputs.
absl::Status CheckUpdates(const Plan& plan) {
  std::vector<bool> is_updated(plan.operand_count, false);
  std::vector<bool> is_used(plan.values.size(), false);
  for (const ValueIndex output : plan.outputs) is_used[output] = true;
  for (const StateUpdate& update : plan.updates) {
    const auto refuse = [&](Reason reason, std::string_view what) {
      return InvalidArgument(reason, StrCat("the update of operand ", update.operand, " by value ",
                                            update.value, ": ", what));
    };
    if (update.operand >= plan.operand_count || is_updated[update.operand]) {
      return refuse(Reason::kBadField, "there is no such operand, or it has two updates");
    }
    if (update.value < plan.operand_count || update.value >= plan.values.size() ||
        is_used[update.value]) {
      return refuse(Reason::kBadField,
                    "the value is not the result of an instruction, or is an output or in another "
                    "update");
    }
    const ValueDescriptor& operand = plan.values[update.operand];
    const ValueDescriptor& value = plan.values[update.value];
    if (operand.dtype != value.dtype || operand.shape != value.shape ||
        LayoutOf(plan.mesh, operand) != LayoutOf(plan.mesh, value) ||
        WithoutEqualParts(operand.cut_points) != WithoutEqualParts(value.cut_points)) {
      return refuse(Reason::kShapeMismatch, "type, shape or layout differ");
    }
    is_updated[update.operand] = true;
    is_used[update.value] = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const Plan& plan) {
  if (plan.values.size() != plan.operand_count + plan.instructions.size()) {
    return InvalidArgument(Reason::kBadField, "a plan has one value per operand and instruction",
                           {{fact::kField, "values"}, {fact::kValue, plan.values.size()}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Tiling> tilings, TilingsOf(plan));
  const InstructionChecker checker(plan, tilings);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const std::string where = StrCat("instruction ", i);
    if (instruction.output != plan.operand_count + i) {
      return InvalidArgument(Reason::kBadField, StrCat(where, " makes value ", instruction.output),
                             {{fact::kField, "instructions"}, {fact::kValue, instruction.output}});
    }
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input >= instruction.output) {
        return InvalidArgument(Reason::kBadField,
                               StrCat(where, " reads value ", input, " before it is made"),
                               {{fact::kField, "instructions"}, {fact::kValue, input}});
      }
    }
    if (const absl::Status status = checker.Check(instruction); !status.ok()) {
      return WithContext(status, where);
    }
  }
  for (const ValueIndex output : plan.outputs) {
    if (output < plan.operand_count || output >= plan.values.size()) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("output ", output, " is not the result of an instruction"),
                             {{fact::kField, "outputs"}, {fact::kValue, output}});
    }
  }
  return CheckUpdates(plan);
}

}  // namespace shardmesh
