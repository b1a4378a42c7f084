// Extends a plan op by op: chooses layouts, and emits the instructions of each device.
#ifndef SHARDMESH_PROGRAM_PLAN_BUILDER_H_
#define SHARDMESH_PROGRAM_PLAN_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/collective_choice.h"
#include "program/compute_layout.h"
#include "program/product_layout.h"
#include "program/program.h"
#include "program/sharding_rule.h"
#include "program/step_plan.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/reshard/plan.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/reason.h"

namespace shardmesh {

// The arguments of PlanBuilder::AddProduct, which computes
// activation(scale * (lhs * rhs) * scales + bias).
// The dimensions of lhs and rhs are those of MatmulOp, or of LinearOp if rhs_is_weight.
struct Product {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  std::optional<ValueIndex> scales = std::nullopt;  // as in LinearOp
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  bool rhs_is_weight = false;  // the product is a LinearOp; transpose_rhs is its WeightLayout
  float scale = 1;
  Activation activation = Activation::kNone;
  // The reshard that follows the product, if nothing else uses the product's result. The product's
  // result then is the reshard's. `reshard_name` is the name of the reshard, as for Name.
  std::optional<ReshardOp> reshard = std::nullopt;
  std::string reshard_name = {};
};

// The readers of a tensor op's result, as far as the op's layout depends on them.
struct ComputeReaders {
  // The layout that a reader wants; nullopt if none is known. Its type and shape do not count, and
  // a layout that the result cannot have is ignored.
  std::optional<ValueDescriptor> wish = std::nullopt;
  // Whether a collective reads the result: partial sums then stay as they are. Otherwise they are
  // summed at once.
  bool take_partial_sums = false;

  friend bool operator==(const ComputeReaders&, const ComputeReaders&) = default;
};

// The most layouts that the planner prices for one product, besides those in which one of the
// product's tensors keeps its layout; and the most that it prices for all products of a program.
// Beyond the latter, it prices only the two in which an operand keeps its layout. Pricing takes
// some tens of microseconds on small meshes. On meshes of more than 64 devices, both numbers are
// lower, in proportion.
inline constexpr size_t kMostProductLayouts = 256;
inline constexpr size_t kMostLayouts = 2048;
// The most layouts that the planner prices for all tensor ops of a program that differ. Beyond it,
// the inputs of a tensor op keep their layouts as far as they can.
inline constexpr size_t kMostComputeLayouts = 4096;

// The instructions of one product in one layout: a piece that belongs behind the plan's other
// instructions. Its values have the numbers after those of the plan.
struct ProductPlan {
  std::string roles;  // RolesText of the layout
  ProductLayout layout;
  std::vector<ValueDescriptor> values = {};
  std::vector<Instruction> instructions = {};
  // The cost of the whole plan with these instructions, since costs are capped. Finish sets its
  // memory_bytes.
  PlanCost cost = {};
  double seconds = 0;  // the predicted time of these instructions
  ValueIndex result = 0;
};

// One plan under construction. Requires operands that Tiling::Create accepts on the target's mesh.
// Copyable. Not thread-safe.
class PlanBuilder {
 public:
  PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands);

  // Sets the name of the current op. From now on, error messages and labels contain this name.
  void Name(std::string_view op) { op_ = op; }

  const ValueDescriptor& value(ValueIndex index) const { return plan_.values[index]; }

  // Each of these functions appends the instructions of one op to the plan. It returns the value
  // that holds the op's result, which is never an operand of the plan. Errors are those of
  // PlanProgram. After an error the plan is unchanged.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product);
  absl::StatusOr<ValueIndex> AddCollective(const CollectiveOp& op, ValueIndex input);
  // AddReshard: if `may_return_input`, the result is the input if that lies as wanted already.
  absl::StatusOr<ValueIndex> AddReshard(const ReshardOp& op, ValueIndex input,
                                        bool may_return_input = false);
  // The inputs of `op` are values of the plan.
  absl::StatusOr<ValueIndex> AddCompute(const TensorOp& op, const ComputeReaders& readers);

  // Returns the value in the layout of the operand, which has the value's type and shape; appends
  // the instructions that this takes. Errors are those of PlanProgram.
  absl::StatusOr<ValueIndex> LaidOutAsOperand(ValueIndex value, ValueIndex operand);

  // Returns the plans of one product in different layouts, the fastest first, at most `most`.
  // AddProduct appends the first. Does not change the plan. Errors are those of AddProduct.
  absl::StatusOr<std::vector<ProductPlan>> ProductPlansOf(const Product& product, size_t most);
  // Appends a plan of ProductPlansOf. Nothing was appended since that call.
  ValueIndex Append(ProductPlan product);

  // Returns the plan with these outputs and updates, and with the memory that a run needs in its
  // cost. If the target's workers run fused instructions, makes these first (FuseExchanges).
  Plan Finish(std::vector<ValueIndex> outputs, std::vector<StateUpdate> updates = {}) &&;

  // Returns INVALID_ARGUMENT (`reason`) with a message that names the current op.
  absl::Status Error(Reason reason, std::string_view message, Facts facts = {}) const;

 private:
  // The length of the plan, and its costs, at one time.
  struct Mark {
    size_t values = 0;
    size_t instructions = 0;
    PlanCost cost = {};
    double seconds = 0;
  };
  class LayoutSearch;
  // A product that was planned, and the layout that was chosen for it.
  struct Choice {
    Product product;
    std::vector<ValueDescriptor> operands;
    std::optional<ValueDescriptor> wanted;
    ProductLayout layout;
    ValueDescriptor result;
  };
  // The product's result as its plans lay it out.
  struct ProductResult {
    ValueDescriptor value;
    bool is_requested = false;  // by the product's reshard
  };

  // A tensor op that was planned, and the layout that was chosen for it.
  struct ComputeChoice {
    TensorOp op;  // all its inputs are value 0
    std::vector<ValueDescriptor> inputs;
    ComputeReaders readers;
    ComputeLayout layout;
  };

  // A move that was priced.
  struct KnownMove {
    ValueDescriptor from;
    ValueDescriptor to;
    CollectiveCost cost;
  };

  // Returns INVALID_ARGUMENT with the reason, facts and message of `refusal`; the message also
  // names the current op.
  absl::Status Error(const absl::Status& refusal) const;

  ValueLayout LayoutOf(ValueIndex index) const {
    return shardmesh::LayoutOf(plan_.mesh, value(index));
  }
  // Returns the product's dimensions. Errors are those of AddProduct.
  absl::StatusOr<ProductDims> CheckProduct(const Product& product) const;
  // Returns `tensor` in the layout of the op. Errors are those of PlanProgram.
  absl::StatusOr<ValueDescriptor> Resharded(const ReshardOp& op, ValueDescriptor tensor) const;

  Mark Here() const;
  // Removes the instructions since `mark`, and returns them.
  ProductPlan CutOff(const Mark& mark);

  // `exchange_seconds`: the time of the data exchange, if the instruction exchanges data.
  template <typename Kind>
  ValueIndex Emit(Kind kind, ValueDescriptor output, std::string_view what,
                  double exchange_seconds = 0);
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
  // Returns the cost of the move from a value to `to`. On meshes of thousands of devices it takes
  // milliseconds to compute, so the plan builder remembers it.
  CollectiveCost MoveCost(const ReshardPlan& move, ValueIndex from, const ValueDescriptor& to);
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

  // Appends the product in a layout of its dimensions. The result gets the layout of `wanted`, if
  // given. Requires a product that CheckProduct accepts. Errors of MovePlan.
  absl::StatusOr<ValueIndex> Multiply(const Product& product, const ProductDims& dims,
                                      const ProductLayout& layout,
                                      const std::optional<ValueDescriptor>& wanted);
  // Returns a vector, the product's bias or scales, in the layout that `result`, the product's
  // result, has in its last dimension; nullopt if there is no vector. Errors of MovePlan.
  absl::StatusOr<std::optional<ValueIndex>> ByColumns(std::optional<ValueIndex> vector,
                                                      const ValueDescriptor& result);
  // Returns the product's result as the product's reshard lays it out; nullopt without a reshard.
  absl::StatusOr<std::optional<ValueDescriptor>> WantedOf(const Product& product,
                                                          const ProductDims& dims);
  // Returns `wanted` if given. Otherwise one of the operands keeps its layout: the right one,
  // unless less data is sent if the left one does. Ignores measured rates, so that the layouts of
  // results do not change with them. Errors of MovePlan.
  absl::StatusOr<ProductResult> ResultFor(const Product& product, const ProductDims& dims,
                                          const std::optional<ValueDescriptor>& wanted);
  // Returns the plans of a product in those layouts that the planner considers, the best first, at
  // most `most`. Requires a product that CheckProduct accepts.
  absl::StatusOr<std::vector<ProductPlan>> Search(const Product& product, const ProductDims& dims,
                                                  const ProductResult& result, size_t most);
  // Returns the choices with the hash of this product. Layers of a model are equal products.
  std::vector<Choice>& ChoicesLike(const Product& product,
                                   const std::optional<ValueDescriptor>& wanted);
  // Returns the choice for an equal product, or null.
  const Choice* FindChoice(const Product& product, const std::optional<ValueDescriptor>& wanted);
  std::vector<ValueDescriptor> OperandsOf(const Product& product) const;

  // Returns OK unless the value has partial sums whose element type cannot be summed.
  absl::Status CheckSums(ValueIndex input) const;
  // Returns the layouts in which the planner prices a tensor op, each once. `result` has the type
  // of the op's result, and the layout of the readers' wish if `has_wish`.
  std::vector<ComputeLayout> ComputeLayoutsOf(const ShardingRule& rule,
                                              absl::Span<const ValueIndex> inputs,
                                              const ValueDescriptor& result, bool has_wish) const;
  // Returns the layout of ComputeLayoutsOf with the least predicted time. Ignores measured rates,
  // as ResultFor does. Errors of MovePlan, if all layouts fail.
  absl::StatusOr<ComputeLayout> BestComputeLayout(const TensorOp& op, const ShardingRule& rule,
                                                  const ValueDescriptor& result, bool has_wish,
                                                  const ComputeReaders& readers);
  // Appends the op in a layout. Errors of MovePlan.
  absl::StatusOr<ValueIndex> Compute(TensorOp op, const ShardingRule& rule,
                                     const ComputeLayout& layout, const ValueDescriptor& result,
                                     bool has_wish, const ComputeReaders& readers);
  ValueIndex EmitCompute(TensorOp op, ValueDescriptor output);

  Plan plan_;
  LinkCost links_;
  KernelRates kernels_;
  PreferredAlgorithms preferred_;
  std::string op_;
  double seconds_ = 0;                                        // of the plan's instructions
  absl::flat_hash_map<size_t, std::vector<Choice>> choices_;  // by a hash of the product
  // By a hash of the op's inputs.
  absl::flat_hash_map<size_t, std::vector<ComputeChoice>> compute_choices_;
  // By a hash of both values. Layouts of a product, and layers of a model, move the same values.
  absl::flat_hash_map<size_t, std::vector<KnownMove>> moves_;
  size_t layouts_considered_ = 0;          // of all products
  size_t compute_layouts_considered_ = 0;  // of all tensor ops
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PLAN_BUILDER_H_
