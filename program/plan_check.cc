// Checks a plan's indices, then each instruction against the tiles that it reads and makes.
#include "program/plan_check.h"

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/plan_builder.h"
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
    return std::visit([&](const auto& kind) { return CheckKind(kind, instruction.output); },
                      instruction.kind);
  }

 private:
  Shape TileShape(ValueIndex index) const { return tilings_[index].ShardShape(); }
  Dtype DtypeOf(ValueIndex index) const { return plan_.values[index].dtype; }

  absl::Status CheckKind(const LocalMatmul& matmul, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({matmul.lhs, matmul.rhs, output}));
    const Shape lhs = TileShape(matmul.lhs);
    const Shape rhs = TileShape(matmul.rhs);
    const Shape out = TileShape(output);
    if (lhs.empty() || rhs.size() != 2 || (matmul.transpose_lhs && lhs.size() != 2)) {
      return Misfit("operands are not matrices");
    }
    Shape expected(lhs.begin(), lhs.end() - 1);
    if (matmul.transpose_lhs) {
      expected = {lhs[1]};
    }
    expected.push_back(rhs[matmul.transpose_rhs ? 0 : 1]);
    const int64_t lhs_k = matmul.transpose_lhs ? lhs[0] : lhs.back();
    if (lhs_k != rhs[matmul.transpose_rhs ? 1 : 0] || out != expected) {
      return Misfit("tiles do not multiply");
    }
    if (DtypeOf(matmul.lhs) != DtypeOf(matmul.rhs)) {
      return Misfit("element types differ");
    }
    return CheckBias(matmul.bias, out);
  }
  absl::Status CheckKind(const LocalEpilogue& epilogue, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({epilogue.input, output}));
    const Shape out = TileShape(output);
    if (TileShape(epilogue.input) != out) {
      return Misfit("tiles of input and output differ");
    }
    return CheckBias(epilogue.bias, out);
  }
  absl::Status CheckKind(const LocalSlice& slice, ValueIndex output) const {
    if (plan_.values[slice.input].shape != plan_.values[output].shape ||
        DtypeOf(slice.input) != DtypeOf(output) ||
        (plan_.values[slice.input].cut_points != plan_.values[output].cut_points)) {
      return Misfit("input and output are not the same tensor");
    }
    return absl::OkStatus();
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
  absl::Status CheckBias(std::optional<ValueIndex> bias, const Shape& out) const {
    if (!bias.has_value()) {
      return absl::OkStatus();
    }
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({*bias}));
    if (out.empty() || TileShape(*bias) != Shape{out.back()}) {
      return Misfit("the bias does not fit the last dimension");
    }
    return absl::OkStatus();
  }
  absl::Status CheckEqualTiles(std::initializer_list<ValueIndex> values) const {
    for (const ValueIndex index : values) {
      if (!tilings_[index].has_equal_tiles()) {
        return Misfit("tiles are unequal, which only collectives take");
      }
    }
    return absl::OkStatus();
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
  return absl::OkStatus();
}

}  // namespace shardmesh
