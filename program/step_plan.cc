// Properties of a plan's values, and the function that compiles programs to plans.
#include "program/step_plan.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "program/collective_choice.h"
#include "program/plan_builder.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Passes each op of a program to the plan builder. Replaces the value indices of the program by
// those of the plan.
class ProgramPlanner {
 public:
  ProgramPlanner(const Program& program, absl::Span<const ValueDescriptor> operands,
                 const PlanTarget& target)
      : program_(program), builder_(target, operands) {
    for (ValueIndex i = 0; i < operands.size(); ++i) {
      values_.push_back(i);
    }
  }

  absl::StatusOr<Plan> Run() && {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      static constexpr std::string_view kNames[] = {"linear", "matmul", "collective", "reshard"};
      builder_.Name(StrCat("op ", i, " (", kNames[op.index()], ")"));
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result,
                                 std::visit([&](const auto& each) { return Add(each); }, op));
      values_.push_back(result);
    }
    std::vector<ValueIndex> outputs;
    builder_.Name("outputs");
    for (const ValueIndex output : program_.outputs) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, ValueOf(output));
      if (output < program_.operand_count) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is an operand"),
                              {{fact::kField, "outputs"}, {fact::kValue, output}});
      }
      if (std::find(outputs.begin(), outputs.end(), planned) != outputs.end()) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is given twice"),
                              {{fact::kField, "outputs"}, {fact::kValue, output}});
      }
      outputs.push_back(planned);
    }
    return std::move(builder_).Finish(std::move(outputs));
  }

 private:
  absl::StatusOr<ValueIndex> ValueOf(ValueIndex index) const {
    if (index >= values_.size()) {
      return builder_.Error(
          Reason::kBadField,
          StrCat("value ", index, " is not there yet; ", values_.size(), " values precede"),
          {{fact::kValue, index}});
    }
    return values_[index];
  }

  absl::StatusOr<ValueIndex> Add(const LinearOp& op) {
    Product product{.transpose_rhs = op.weight_layout == WeightLayout::kOutIn,
                    .rhs_is_weight = true,
                    .scale = op.scale,
                    .activation = op.activation};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.input));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.weight));
    if (op.bias.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(product.bias, ValueOf(*op.bias));
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const MatmulOp& op) {
    Product product{.transpose_lhs = op.transpose_lhs, .transpose_rhs = op.transpose_rhs};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.lhs));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.rhs));
    if (const Shape& lhs = builder_.value(product.lhs).shape; lhs.size() != 2) {
      return builder_.Error(
          Reason::kShapeMismatch,
          StrCat("the left operand has shape ", ShapeToString(lhs), "; it must be a matrix"),
          {{fact::kHave, ShapeToString(lhs)}});
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const CollectiveOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddCollective(op, input);
  }
  absl::StatusOr<ValueIndex> Add(const ReshardOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddReshard(op, input);
  }

  const Program& program_;
  PlanBuilder builder_;
  std::vector<ValueIndex> values_;  // the plan's number of each program value
};

}  // namespace

absl::StatusOr<Tiling> TilingOf(const Plan& plan, const ValueDescriptor& value) {
  return Tiling::Create(plan.mesh, value.spec, value.shape, value.cut_points);
}

std::vector<ValueIndex> InputsOf(const Instruction& instruction) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LocalMatmul& matmul) const {
      std::vector<ValueIndex> inputs = {matmul.lhs, matmul.rhs};
      if (matmul.bias.has_value()) {
        inputs.push_back(*matmul.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalEpilogue& epilogue) const {
      std::vector<ValueIndex> inputs = {epilogue.input};
      if (epilogue.bias.has_value()) {
        inputs.push_back(*epilogue.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalSlice& slice) const { return {slice.input}; }
    std::vector<ValueIndex> operator()(const GroupCollective& collective) const {
      return {collective.input};
    }
    std::vector<ValueIndex> operator()(const MoveRegions& move) const { return {move.input}; }
  };
  return std::visit(Visitor{}, instruction.kind);
}

std::optional<ValueIndex> ResultOverOperand(const Plan& plan, ValueIndex operand) {
  const Instruction* reader = nullptr;
  for (const Instruction& instruction : plan.instructions) {
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input == operand && reader != nullptr) {
        return std::nullopt;
      }
      if (input == operand) {
        reader = &instruction;
      }
    }
  }
  const auto* collective =
      reader == nullptr ? nullptr : std::get_if<GroupCollective>(&reader->kind);
  if (collective == nullptr || !MayOverwriteOperand(collective->kind, collective->algorithm) ||
      std::count(plan.outputs.begin(), plan.outputs.end(), reader->output) != 1) {
    return std::nullopt;
  }
  const ValueDescriptor& before = plan.values[operand];
  const ValueDescriptor& after = plan.values[reader->output];
  const bool same_size =
      before.dtype == after.dtype && before.cut_points == after.cut_points &&
      TilingOf(plan, before)->ShardShape() == TilingOf(plan, after)->ShardShape();
  return same_size ? std::optional(reader->output) : std::nullopt;
}

absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target) {
  if (program.operand_count != operands.size()) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("the program takes ", program.operand_count, " operands; ",
                                  operands.size(), " are given"),
                           {{fact::kField, "operands"}, {fact::kValue, operands.size()}});
  }
  if (operands.size() > kMaxProgramSize || program.ops.size() > kMaxProgramSize ||
      program.outputs.size() > kMaxProgramSize) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a program has at most ", kMaxProgramSize, " operands, ops and outputs each"),
        {{fact::kLimit, kMaxProgramSize}});
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const auto tiling = Tiling::Create(target.mesh, operands[i].spec, operands[i].shape,
                                           operands[i].cut_points);
        !tiling.ok()) {
      return WithContext(tiling.status(), StrCat("operand ", i));
    }
  }
  return ProgramPlanner(program, operands, target).Run();
}

}  // namespace shardmesh
