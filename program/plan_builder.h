// Extends a plan op by op: chooses layouts, and emits the instructions of each device.
#ifndef SHARDMESH_PROGRAM_PLAN_BUILDER_H_
#define SHARDMESH_PROGRAM_PLAN_BUILDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/reason.h"

namespace shardmesh {

// The arguments of PlanBuilder::AddProduct, which computes activation(scale * lhs * rhs + bias).
struct Product {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  bool rhs_is_weight = false;  // the product is a LinearOp; transpose_rhs is its WeightLayout
  float scale = 1;
  Activation activation = Activation::kNone;
};

// One plan under construction. Copyable, so that the builder can plan alternatives and compare
// their costs. Requires operands that Tiling::Create accepts on the target's mesh. Not thread-safe.
class PlanBuilder {
 public:
  PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands);

  // Sets the name of the current op. From now on, error messages and labels contain this name.
  void Name(std::string_view op) { op_ = op; }

  const ValueDescriptor& value(ValueIndex index) const { return plan_.values[index]; }
  PlanCost cost() const { return plan_.cost; }

  // Each of these functions appends the instructions of one op to the plan. It returns the value
  // that holds the op's result, which is never an operand of the plan. Errors are those of
  // PlanProgram. After an error the plan is unchanged.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product);
  absl::StatusOr<ValueIndex> AddCollective(const CollectiveOp& op, ValueIndex input);
  absl::StatusOr<ValueIndex> AddReshard(const PartitionSpec& spec, ValueIndex input);

  Plan Finish(std::vector<ValueIndex> outputs) && {
    plan_.outputs = std::move(outputs);
    return std::move(plan_);
  }

  // Returns INVALID_ARGUMENT (`reason`) with a message that names the current op.
  absl::Status Error(Reason reason, std::string_view message, Facts facts = {}) const;

 private:
  // Returns INVALID_ARGUMENT with the reason, facts and message of `refusal`; the message also
  // names the current op.
  absl::Status Error(const absl::Status& refusal) const;

  ValueLayout LayoutOf(ValueIndex index) const {
    return shardmesh::LayoutOf(plan_.mesh, value(index));
  }
  absl::Status CheckEqualTiles(ValueIndex input) const;
  absl::Status CheckProduct(const Product& product) const;

  template <typename Kind>
  ValueIndex Emit(Kind kind, ValueDescriptor output, std::string_view what);
  // Chooses the algorithm if the op leaves it open, adds the costs to the plan's, and appends the
  // collective.
  ValueIndex EmitCollective(CollectiveOp op, ValueDescriptor output);

  ValueIndex AllReduce(ValueIndex input, const Axes& axes, Reduction reduction);
  ValueIndex AllGather(ValueIndex input, const Axes& axes, int64_t dimension);
  // Returns the input with no axis unreduced. Appends an all-reduce if the input has unreduced
  // axes.
  ValueIndex Reduced(ValueIndex input);
  // Returns the input in the layout `target`, which must have no unreduced axes. Appends the
  // instructions that change the layout.
  ValueIndex LaidOut(ValueIndex input, const ValueLayout& target);
  ValueIndex Copy(ValueIndex input);

  // Appends the product. One operand keeps its layout: `rhs` if `keep_rhs`, else `lhs`. The layout
  // of the other operand changes to fit it. Requires a product that CheckProduct accepts.
  ValueIndex AddProduct(const Product& product, bool keep_rhs);

  Plan plan_;
  LinkCost links_;
  PreferredAlgorithms preferred_;
  std::string op_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_BUILDER_H_
