// Plans tensor ops: chooses the layout of the op's factors, brings its inputs together, and sums
// partial sums.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "program/compute_layout.h"
#include "program/plan_builder.h"
#include "program/sharding_rule.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/tile.h"
#include "status/status_macros.h"

namespace shardmesh {
namespace {

TensorOp WithoutInputs(TensorOp op) {
  ReplaceInputs(op, [](ValueIndex /*value*/) { return ValueIndex{0}; });
  return op;
}

// Returns the numbers of the values, those of most bytes first.
std::vector<size_t> LargestFirst(absl::Span<const ValueDescriptor> values) {
  const auto bytes = [&](size_t i) {
    int64_t elements = 1;
    for (const int64_t extent : values[i].shape) elements = ProductOf(elements, extent);
    return BytesOf(elements, values[i].dtype);
  };
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
  return order;
}

}  // namespace

std::vector<ComputeLayout> PlanBuilder::ComputeLayoutsOf(const ShardingRule& rule,
                                                         absl::Span<const ValueIndex> inputs,
                                                         const ValueDescriptor& result,
                                                         bool has_wish) const {
  std::vector<ValueDescriptor> values;
  for (const ValueIndex input : inputs) values.push_back(value(input));
  const std::vector<size_t> order = LargestFirst(values);
  std::vector<ComputeLayout> layouts;
  const auto add = [&](bool wish_first, bool wish_last, bool may_sum) {
    ComputeLayout layout(rule.sizes.size());
    if (wish_first) AddPartsOf(plan_.mesh, rule, rule.result, result, may_sum, &layout);
    for (const size_t i : order) {
      AddPartsOf(plan_.mesh, rule, rule.inputs[i], values[i], may_sum, &layout);
    }
    if (wish_last) AddPartsOf(plan_.mesh, rule, rule.result, result, may_sum, &layout);
    RemoveImpossibleParts(plan_.mesh, rule, &layout);
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
      layouts.push_back(std::move(layout));
    }
  };
  const bool has_sums =
      std::find(rule.kinds.begin(), rule.kinds.end(), FactorKind::kSummed) != rule.kinds.end();
  for (const bool may_sum : {true, false}) {
    if (!may_sum && !has_sums) continue;
    if (has_wish) {
      add(false, true, may_sum);
      add(true, false, may_sum);
    }
    add(false, false, may_sum);
  }
  return layouts;
}

absl::StatusOr<ValueIndex> PlanBuilder::Compute(TensorOp op, const ShardingRule& rule,
                                                const ComputeLayout& layout,
                                                const ValueDescriptor& result, bool has_wish,
                                                const ComputeReaders& readers) {
  // An input that the op has twice with the same factors is laid out once.
  struct LaidOutInput {
    ValueDescriptor wanted;
    ValueIndex value = 0;
  };
  absl::flat_hash_map<ValueIndex, std::vector<LaidOutInput>> known;  // by input
  std::vector<ValueIndex> inputs;
  for (const ValueIndex input : InputsOf(op)) {
    ValueDescriptor wanted = WithFactorParts(value(input), rule.inputs[inputs.size()], layout);
    std::vector<LaidOutInput>& of_input = known[input];
    auto same = std::find_if(of_input.begin(), of_input.end(),
                             [&](const LaidOutInput& each) { return each.wanted == wanted; });
    if (same == of_input.end()) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex laid_out, LaidOut(input, wanted));
      of_input.push_back({.wanted = std::move(wanted), .value = laid_out});
      same = of_input.end() - 1;
    }
    inputs.push_back(same->value);
  }
  size_t next = 0;
  ReplaceInputs(op, [&](ValueIndex /*value*/) { return inputs[next++]; });
  ValueDescriptor output = WithFactorParts(result, rule.result, layout);
  const Axes summed = SummedAxes(rule, layout);
  if (!summed.empty()) {
    ValueLayout partial = shardmesh::LayoutOf(plan_.mesh, output);
    partial.unreduced = summed;
    output.spec = ToSpec(partial);
  }
  const ValueIndex computed = EmitCompute(std::move(op), std::move(output));
  if (summed.empty() || readers.take_partial_sums) return computed;
  return has_wish ? SummedFor(computed, result) : Reduced(computed);
}

absl::StatusOr<ComputeLayout> PlanBuilder::BestComputeLayout(const TensorOp& op,
                                                             const ShardingRule& rule,
                                                             const ValueDescriptor& result,
                                                             bool has_wish,
                                                             const ComputeReaders& readers) {
  std::vector<ComputeLayout> layouts = ComputeLayoutsOf(rule, InputsOf(op), result, has_wish);
  const size_t left = kMostComputeLayouts - compute_layouts_considered_;
  if (layouts.size() == 1 || layouts.size() > left) return std::move(layouts.front());
  compute_layouts_considered_ += layouts.size();
  // The layouts of results must not change with measured rates.
  const LinkCost links = std::exchange(links_, LinkCost());
  const KernelRates kernels = std::exchange(kernels_, KernelRates());
  std::optional<size_t> best;
  std::pair<double, int64_t> best_price;
  absl::Status failure;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Mark before = Here();
    absl::StatusOr<ValueIndex> made = Compute(op, rule, layouts[i], result, has_wish, readers);
    if (made.ok() && has_wish && !readers.take_partial_sums) made = LaidOut(*made, result);
    const ProductPlan priced = CutOff(before);
    failure.Update(made.status());
    // Differences below a nanosecond come from the order of additions.
    const std::pair<double, int64_t> price = {std::round(priced.seconds * 1e9),
                                              priced.cost.sent_bytes};
    if (made.ok() && (!best.has_value() || price < best_price)) {
      best = i;
      best_price = price;
    }
  }
  links_ = links;
  kernels_ = kernels;
  if (!best.has_value()) return failure;
  return std::move(layouts[*best]);
}

absl::StatusOr<ValueIndex> PlanBuilder::AddCompute(const TensorOp& op,
                                                   const ComputeReaders& readers) {
  std::vector<TensorType> types;
  std::vector<ValueDescriptor> inputs;
  size_t hash = op.index();
  for (const ValueIndex input : InputsOf(op)) {
    SHARDMESH_RETURN_IF_ERROR(CheckSums(input));
    types.push_back({.dtype = value(input).dtype, .shape = value(input).shape});
    inputs.push_back(value(input));
    hash = absl::HashOf(hash, value(input).dtype, value(input).shape);
  }
  const absl::StatusOr<TensorType> type = ResultTypeOf(op, types);
  if (!type.ok()) return Error(type.status());
  ValueDescriptor result = {.dtype = type->dtype, .shape = type->shape, .spec = PartitionSpec()};
  bool has_wish = false;
  if (readers.wish.has_value()) {
    const ValueDescriptor& wish = *readers.wish;
    has_wish = wish.shape == result.shape && wish.spec.unreduced().empty() &&
               Tiling::Create(plan_.mesh, wish.spec, wish.shape, wish.cut_points).ok();
    if (has_wish) {
      result.spec = wish.spec;
      result.cut_points = WithoutEqualParts(wish.cut_points);
    }
  }
  hash = absl::HashOf(hash, type->dtype, type->shape);
  if (const auto* const slice = std::get_if<SliceOp>(&op); slice != nullptr) {
    hash = absl::HashOf(hash, slice->starts);  // each layer may have its part of one array
  }
  const ShardingRule rule = ShardingRuleOf(op, types, *type);
  const TensorOp kind = WithoutInputs(op);
  std::vector<ComputeChoice>& choices = compute_choices_[hash];
  auto choice = std::find_if(choices.begin(), choices.end(), [&](const ComputeChoice& each) {
    return each.op == kind && each.inputs == inputs && each.readers == readers;
  });
  if (choice == choices.end()) {
    absl::StatusOr<ComputeLayout> layout = BestComputeLayout(op, rule, result, has_wish, readers);
    if (!layout.ok()) return Error(layout.status());
    choices.push_back(
        {.op = kind, .inputs = inputs, .readers = readers, .layout = *std::move(layout)});
    choice = choices.end() - 1;
  }
  const ComputeLayout layout = choice->layout;
  const Mark before = Here();
  const absl::StatusOr<ValueIndex> made = Compute(op, rule, layout, result, has_wish, readers);
  if (made.ok()) return *made;
  CutOff(before);
  return Error(made.status());
}

}  // namespace shardmesh
