// Checks a plan's indices, then each instruction against the tiles that it reads and makes.
#include "program/plan_check.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/move_plan.h"
#include "program/plan_builder.h"
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
    return std::visit([&](const auto& kind) { return CheckKind(kind, instruction.output); },
                      instruction.kind);
  }

 private:
  size_t RankOf(ValueIndex index) const { return plan_.values[index].shape.size(); }
  Shape TileShape(ValueIndex index) const { return tilings_[index].ShardShape(); }
  Dtype DtypeOf(ValueIndex index) const { return plan_.values[index].dtype; }

  absl::Status CheckKind(const LocalMatmul& matmul, ValueIndex output) const {
    const size_t lhs_rank = RankOf(matmul.lhs);
    if (lhs_rank == 0 || RankOf(matmul.rhs) != 2 || (matmul.transpose_lhs && lhs_rank != 2)) {
      return Misfit("operands are not matrices");
    }
    const size_t lhs_k = matmul.transpose_lhs ? 0 : lhs_rank - 1;
    const size_t rhs_k = matmul.transpose_rhs ? 1 : 0;
    bool fits = RankOf(output) == lhs_rank && HaveSameParts(matmul.lhs, lhs_k, matmul.rhs, rhs_k) &&
                HaveSameParts(matmul.rhs, 1 - rhs_k, output, lhs_rank - 1);
    for (size_t dim = 0, out_dim = 0; fits && dim < lhs_rank; ++dim) {
      if (dim != lhs_k) fits = HaveSameParts(matmul.lhs, dim, output, out_dim++);
    }
    if (!fits) {
      return Misfit("tiles do not multiply");
    }
    if (DtypeOf(matmul.lhs) != DtypeOf(matmul.rhs)) {
      return Misfit("element types differ");
    }
    return CheckBias(matmul.bias, output);
  }
  absl::Status CheckKind(const LocalEpilogue& epilogue, ValueIndex output) const {
    bool fits = RankOf(epilogue.input) == RankOf(output);
    for (size_t dim = 0; fits && dim < RankOf(output); ++dim) {
      fits = HaveSameParts(epilogue.input, dim, output, dim);
    }
    if (!fits) {
      return Misfit("tiles of input and output differ");
    }
    return CheckBias(epilogue.bias, output);
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
  absl::Status CheckBias(std::optional<ValueIndex> bias, ValueIndex output) const {
    if (bias.has_value() && (RankOf(*bias) != 1 || RankOf(output) == 0 ||
                             !HaveSameParts(*bias, 0, output, RankOf(output) - 1))) {
      return Misfit("the bias does not fit the last dimension");
    }
    return absl::OkStatus();
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
