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
#include "sharding/tile.h"
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
  // The cost so far. Finish sets its memory_bytes.
  PlanCost cost() const { return plan_.cost; }

  // Each of these functions appends the instructions of one op to the plan. It returns the value
  // that holds the op's result, which is never an operand of the plan. Errors are those of
  // PlanProgram. After an error the plan is unchanged.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product);
  absl::StatusOr<ValueIndex> AddCollective(const CollectiveOp& op, ValueIndex input);
  absl::StatusOr<ValueIndex> AddReshard(const ReshardOp& op, ValueIndex input);

  // Returns the plan with these outputs, and with the memory that a run needs in its cost.
  Plan Finish(std::vector<ValueIndex> outputs) &&;

  // Returns INVALID_ARGUMENT (`reason`) with a message that names the current op.
  absl::Status Error(Reason reason, std::string_view message, Facts facts = {}) const;

 private:
  // Returns INVALID_ARGUMENT with the reason, facts and message of `refusal`; the message also
  // names the current op.
  absl::Status Error(const absl::Status& refusal) const;

  ValueLayout LayoutOf(ValueIndex index) const {
    return shardmesh::LayoutOf(plan_.mesh, value(index));
  }
  absl::Status CheckProduct(const Product& product) const;

  template <typename Kind>
  ValueIndex Emit(Kind kind, ValueDescriptor output, std::string_view what);
  // Chooses the algorithm if the op leaves it open, adds the costs to the plan's, and appends the
  // collective.
  ValueIndex EmitCollective(CollectiveOp op, ValueDescriptor output);

  ValueIndex AllReduce(ValueIndex input, const Axes& axes, Reduction reduction);
  // Returns the input with no axis unreduced. Appends an all-reduce if the input has unreduced
  // axes.
  ValueIndex Reduced(ValueIndex input);
  // Returns whether the value has the layout of `wanted`.
  bool LiesAs(ValueIndex input, const ValueDescriptor& wanted) const;
  // Returns the input in the layout of `wanted`, which is the same tensor and has no unreduced
  // axes. Appends the instructions that change the layout. Errors of MovePlan.
  absl::StatusOr<ValueIndex> LaidOut(ValueIndex input, const ValueDescriptor& wanted);
  // Returns the input with no axis unreduced. Cuts off the parts that `wanted` leaves to other
  // devices, and prefers reduce-scatters along the dimensions that `wanted` partitions.
  absl::StatusOr<ValueIndex> SummedFor(ValueIndex input, const ValueDescriptor& wanted);
  // Appends a reduce-scatter of `dim` along `axes` if it is possible, and its result's parts along
  // `dim` are `points`, unless these are empty. Returns nullopt if not.
  std::optional<ValueIndex> ReduceScatter(ValueIndex input, const Axes& axes, size_t dim,
                                          const CutPoints& points);
  // Appends the all-gather of one dimension that makes `wanted` of the input; nullopt if there is
  // none.
  std::optional<ValueIndex> AllGather(ValueIndex input, const ValueDescriptor& wanted);
  ValueIndex Copy(ValueIndex input);

  // Appends the product. One operand keeps its layout: `rhs` if `keep_rhs`, else `lhs`. The layout
  // of the other operand changes to fit it. Requires a product that CheckProduct accepts. Errors of
  // MovePlan.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product, bool keep_rhs);

  Plan plan_;
  LinkCost links_;
  PreferredAlgorithms preferred_;
  std::string op_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_BUILDER_H_
