// Walks the ops forwards for the types of values, then backwards for the wishes.
#include "program/layout_wishes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "program/compute_layout.h"
#include "program/product_layout.h"
#include "program/sharding_rule.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/tile.h"

namespace shardmesh {
namespace {

class WishFinder {
 public:
  WishFinder(const Program& program, absl::Span<const ValueDescriptor> operands, const Mesh& mesh)
      : program_(program), operands_(operands), mesh_(mesh), size_(operands.size()) {
    size_ += program.ops.size();
  }

  std::vector<std::optional<ValueDescriptor>> Run() && {
    FindTypes();
    CountReaders();
    wishes_.resize(size_);
    for (const StateUpdate& update : program_.updates) {
      if (update.operand >= operands_.size() || update.value >= size_) continue;
      if (update.value < operands_.size() || !HasType(update.value)) continue;
      const ValueDescriptor& operand = operands_[update.operand];
      if (types_[update.value]->shape == operand.shape) wishes_[update.value] = operand;
    }
    for (size_t i = program_.ops.size(); i-- > 0;) {
      const size_t result = operands_.size() + i;
      std::visit([&](const auto& op) { Wish(op, result); }, program_.ops[i]);
    }
    return std::move(wishes_);
  }

 private:
  bool HasType(size_t value) const { return value < types_.size() && types_[value].has_value(); }

  void FindTypes() {
    for (const ValueDescriptor& operand : operands_) {
      types_.push_back(TensorType{.dtype = operand.dtype, .shape = operand.shape});
    }
    // HasType is false for values that are not there yet.
    for (const ProgramOp& op : program_.ops) {
      types_.push_back(std::visit([&](const auto& each) { return TypeOf(each); }, op));
    }
  }
  std::optional<ProductDims> DimsOf(size_t lhs, bool transpose_lhs, size_t rhs,
                                    bool transpose_rhs) const {
    if (!HasType(lhs) || !HasType(rhs)) return std::nullopt;
    absl::StatusOr<ProductDims> dims =
        ProductDimsOf(types_[lhs]->shape, transpose_lhs, types_[rhs]->shape, transpose_rhs);
    if (!dims.ok()) return std::nullopt;
    return *std::move(dims);
  }
  std::optional<ProductDims> DimsOf(const LinearOp& op) const {
    return DimsOf(op.input, false, op.weight, op.weight_layout == WeightLayout::kOutIn);
  }
  std::optional<ProductDims> DimsOf(const MatmulOp& op) const {
    return DimsOf(op.lhs, op.transpose_lhs, op.rhs, op.transpose_rhs);
  }
  template <typename ProductOp>
  std::optional<TensorType> TypeOf(const ProductOp& op) const {
    const std::optional<ProductDims> dims = DimsOf(op);
    if (!dims.has_value()) return std::nullopt;
    return TensorType{.dtype = types_[InputsOfOp(op).front()]->dtype,
                      .shape = OutputShapeOf(*dims)};
  }
  // The shape of a collective's result depends on layouts.
  std::optional<TensorType> TypeOf(const CollectiveOp& /*op*/) const { return std::nullopt; }
  std::optional<TensorType> TypeOf(const ReshardOp& op) const {
    return HasType(op.input) ? types_[op.input] : std::nullopt;
  }
  std::optional<std::vector<TensorType>> InputTypesOf(const TensorOp& op) const {
    std::vector<TensorType> inputs;
    for (const ValueIndex input : InputsOf(op)) {
      if (!HasType(input)) return std::nullopt;
      inputs.push_back(*types_[input]);
    }
    return inputs;
  }
  std::optional<TensorType> TypeOf(const TensorOp& op) const {
    const std::optional<std::vector<TensorType>> inputs = InputTypesOf(op);
    if (!inputs.has_value()) return std::nullopt;
    absl::StatusOr<TensorType> type = ResultTypeOf(op, *inputs);
    if (!type.ok()) return std::nullopt;
    return *std::move(type);
  }

  void CountReaders() {
    readers_.resize(size_);
    for (const ProgramOp& op : program_.ops) {
      for (const ValueIndex input : InputsOfOp(op)) {
        if (input < size_) ++readers_[input];
      }
    }
    for (const ValueIndex output : program_.outputs) {
      if (output < size_) ++readers_[output];
    }
  }

  // Returns the layout that the value has or is wished to have; null if neither is known.
  const ValueDescriptor* Known(size_t value) const {
    if (value < operands_.size()) return &operands_[value];
    return wishes_[value].has_value() ? &*wishes_[value] : nullptr;
  }

  bool MayWish(size_t value) const {
    return value >= operands_.size() && readers_[value] == 1 && !wishes_[value].has_value();
  }
  ValueDescriptor Unlaid(size_t value) const {
    return {.dtype = types_[value]->dtype, .shape = types_[value]->shape, .spec = PartitionSpec()};
  }
  void Set(size_t value, ValueDescriptor wish) {
    const ValueLayout layout = LayoutOf(mesh_, wish);
    const bool is_partitioned = std::any_of(layout.dims.begin(), layout.dims.end(),
                                            [](const Axes& axes) { return !axes.empty(); });
    if (is_partitioned) wishes_[value] = std::move(wish);
  }

  template <typename ProductOp>
  void Wish(const ProductOp& op, size_t result) {
    const std::optional<ProductDims> dims = DimsOf(op);
    if (!dims.has_value()) return;
    const std::vector<ValueIndex> inputs = InputsOfOp(op);
    ProductLayout out(dims->size());
    if (const ValueDescriptor* const wish = Known(result); wish != nullptr) {
      out = PartsOf(mesh_, *dims, *wish, ProductSide::kOut);
    }
    WishSide(*dims, inputs[0], ProductSide::kLhs, inputs[1], ProductSide::kRhs, out);
    WishSide(*dims, inputs[1], ProductSide::kRhs, inputs[0], ProductSide::kLhs, out);
  }
  // Wishes for one side of a product, which meets the other side and the result.
  void WishSide(const ProductDims& dims, size_t value, ProductSide side, size_t other,
                ProductSide other_side, const ProductLayout& out) {
    if (!MayWish(value)) return;
    const ValueDescriptor* const known = Known(other);
    const ProductLayout layout =
        known == nullptr ? out
                         : LayoutThatKeeps(mesh_, dims, PartsOf(mesh_, dims, *known, other_side),
                                           other_side, out);
    Set(value, WithParts(Unlaid(value), dims, layout, side));
  }

  void Wish(const CollectiveOp& /*op*/, size_t /*result*/) {}

  void Wish(const ReshardOp& op, size_t /*result*/) {
    if (!HasType(op.input) || !MayWish(op.input) || !op.spec.unreduced().empty()) return;
    ValueDescriptor wish = Unlaid(op.input);
    if (op.part_starts.size() > wish.shape.size()) return;
    wish.spec = op.spec;
    for (size_t dim = 0; dim < op.part_starts.size(); ++dim) {
      if (op.part_starts[dim].empty()) continue;
      CutPoints points = {0};
      points.insert(points.end(), op.part_starts[dim].begin(), op.part_starts[dim].end());
      points.push_back(wish.shape[dim]);
      SetCutPoints(dim, std::move(points), &wish);
    }
    if (Tiling::Create(mesh_, wish.spec, wish.shape, wish.cut_points).ok()) {
      Set(op.input, std::move(wish));
    }
  }

  void Wish(const TensorOp& op, size_t result) {
    const std::optional<std::vector<TensorType>> types = InputTypesOf(op);
    if (!types.has_value() || !HasType(result)) return;
    const std::vector<ValueIndex> inputs = InputsOf(op);
    if (std::none_of(inputs.begin(), inputs.end(), [&](size_t each) { return MayWish(each); })) {
      return;
    }
    const ShardingRule rule = ShardingRuleOf(op, *types, *types_[result]);
    ComputeLayout layout(rule.sizes.size());
    if (const ValueDescriptor* const wish = Known(result); wish != nullptr) {
      AddPartsOf(mesh_, rule, rule.result, *wish, /*may_sum=*/true, &layout);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (const ValueDescriptor* const known = Known(inputs[i]); known != nullptr) {
        AddPartsOf(mesh_, rule, rule.inputs[i], *known, /*may_sum=*/true, &layout);
      }
    }
    RemoveImpossibleParts(mesh_, rule, &layout);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (MayWish(inputs[i])) {
        Set(inputs[i], WithFactorParts(Unlaid(inputs[i]), rule.inputs[i], layout));
      }
    }
  }

  const Program& program_;
  const absl::Span<const ValueDescriptor> operands_;
  const Mesh& mesh_;
  size_t size_;  // number of values
  std::vector<std::optional<TensorType>> types_;
  std::vector<size_t> readers_;  // by value; outputs count as one
  std::vector<std::optional<ValueDescriptor>> wishes_;
};

}  // namespace

std::vector<std::optional<ValueDescriptor>> LayoutWishesOf(
    const Program& program, absl::Span<const ValueDescriptor> operands, const Mesh& mesh) {
  return WishFinder(program, operands, mesh).Run();
}

}  // namespace shardmesh
