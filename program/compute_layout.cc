// Maps the axes of values to the factors of a sharding rule, and back.
#include "program/compute_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "program/value_layout.h"
#include "sharding/spec.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Calls `visit` with the factors of each dimension of each value of the rule.
template <typename Visit>
void ForEachDim(const ShardingRule& rule, Visit visit) {
  for (const std::vector<DimFactors>& input : rule.inputs) {
    for (const DimFactors& dim : input) visit(dim);
  }
  for (const DimFactors& dim : rule.result) visit(dim);
}

// Returns whether the axis partitions a factor. Looks only at those that may have parts: a
// concatenation has a factor for each of its inputs.
bool IsUsed(const ShardingRule& rule, const ComputeLayout& layout, const std::string& axis) {
  return std::any_of(rule.divisible.begin(), rule.divisible.end(),
                     [&](size_t factor) { return Contains(layout[factor].axes, axis); });
}

// Returns the first axes of a dimension that may partition a factor that is alone in it. The parts
// of these axes are those of the dimension, joined.
DimParts PartsOfWholeDim(const Mesh& mesh, const ShardingRule& rule, const ValueDescriptor& value,
                         size_t dim, const Axes& axes, const ComputeLayout& layout) {
  const auto end = std::find_if(axes.begin(), axes.end(), [&](const std::string& axis) {
    return IsUsed(rule, layout, axis);
  });
  DimParts parts = {.axes = Axes(axes.begin(), end)};
  if (!parts.axes.empty() && IsCut(value, dim)) {
    const std::vector<CutPoints> joined = WithoutEqualParts(
        {JoinedPoints(value.cut_points[dim], AxesSize(mesh, Axes(end, axes.end())))});
    if (!joined.empty()) parts.points = joined.front();
  }
  return parts;
}

}  // namespace

const std::vector<DimFactors>& FactorsOf(const ShardingRule& rule, size_t value) {
  return value < rule.inputs.size() ? rule.inputs[value] : rule.result;
}

void AddPartsOf(const Mesh& mesh, const ShardingRule& rule, const std::vector<DimFactors>& factors,
                const ValueDescriptor& value, bool may_sum, ComputeLayout* layout) {
  layout->resize(rule.sizes.size());
  const ValueLayout lies = LayoutOf(mesh, value);
  for (size_t dim = 0; dim < factors.size(); ++dim) {
    const Axes& axes = lies.dims[dim];
    size_t next = 0;  // axes before this one have a factor
    for (const size_t factor : factors[dim]) {
      const FactorKind kind = rule.kinds[factor];
      if (next == axes.size() || kind == FactorKind::kWhole ||
          (kind == FactorKind::kSummed && !may_sum)) {
        break;
      }
      DimParts& parts = (*layout)[factor];
      if (rule.are_alone[factor]) {
        if (parts.axes.empty()) parts = PartsOfWholeDim(mesh, rule, value, dim, axes, *layout);
        break;
      }
      if (IsCut(value, dim)) break;
      if (parts.axes.empty()) {
        int64_t count = 1;
        for (size_t i = next; i < axes.size() && !IsUsed(rule, *layout, axes[i]); ++i) {
          count *= AxesSize(mesh, {axes[i]});
          if (rule.sizes[factor] % count != 0) break;
          parts.axes.push_back(axes[i]);
        }
      } else if (parts.axes.size() > axes.size() - next ||
                 !std::equal(parts.axes.begin(), parts.axes.end(),
                             axes.begin() + static_cast<std::ptrdiff_t>(next))) {
        break;
      }
      if (AxesSize(mesh, parts.axes) != rule.sizes[factor]) break;
      next += parts.axes.size();
    }
  }
}

void RemoveImpossibleParts(const Mesh& mesh, const ShardingRule& rule, ComputeLayout* layout) {
  layout->resize(rule.sizes.size());
  bool is_done = false;
  while (!is_done) {
    is_done = true;
    ForEachDim(rule, [&](const DimFactors& dim) {
      bool may_have_parts = true;
      for (const size_t factor : dim) {
        DimParts& parts = (*layout)[factor];
        if (!may_have_parts && !parts.axes.empty()) {
          parts = {};
          is_done = false;
        }
        may_have_parts &= AxesSize(mesh, parts.axes) == rule.sizes[factor];
      }
    });
  }
}

ValueDescriptor WithFactorParts(ValueDescriptor value, const std::vector<DimFactors>& factors,
                                const ComputeLayout& layout) {
  ValueLayout lies = {.dims = std::vector<Axes>(factors.size())};
  value.cut_points.clear();
  for (size_t dim = 0; dim < factors.size(); ++dim) {
    for (const size_t factor : factors[dim]) {
      const DimParts& parts = layout[factor];
      lies.dims[dim].insert(lies.dims[dim].end(), parts.axes.begin(), parts.axes.end());
      if (!parts.points.empty()) SetCutPoints(dim, parts.points, &value);
    }
  }
  value.spec = ToSpec(lies);
  return value;
}

Axes SummedAxes(const ShardingRule& rule, const ComputeLayout& layout) {
  Axes axes;
  for (size_t factor = 0; factor < layout.size(); ++factor) {
    if (rule.kinds[factor] != FactorKind::kSummed) continue;
    axes.insert(axes.end(), layout[factor].axes.begin(), layout[factor].axes.end());
  }
  return axes;
}

absl::Status CheckComputeLayout(const Mesh& mesh, const ShardingRule& rule,
                                absl::Span<const ValueDescriptor> inputs,
                                const ValueDescriptor& result) {
  // A layout that keeps all parts of all values is the only one in which they can lie.
  ComputeLayout layout;
  for (size_t i = 0; i < inputs.size(); ++i) {
    AddPartsOf(mesh, rule, rule.inputs[i], inputs[i], /*may_sum=*/true, &layout);
  }
  AddPartsOf(mesh, rule, rule.result, result, /*may_sum=*/true, &layout);
  RemoveImpossibleParts(mesh, rule, &layout);
  const auto lies_as = [&](const ValueDescriptor& value, const std::vector<DimFactors>& factors,
                           const Axes& unreduced) {
    const ValueDescriptor wanted = WithFactorParts(value, factors, layout);
    ValueLayout wanted_layout = LayoutOf(mesh, wanted);
    ValueLayout lies = LayoutOf(mesh, value);
    wanted_layout.unreduced = unreduced;
    std::sort(wanted_layout.unreduced.begin(), wanted_layout.unreduced.end());
    std::sort(lies.unreduced.begin(), lies.unreduced.end());
    return lies == wanted_layout &&
           WithoutEqualParts(value.cut_points) == WithoutEqualParts(wanted.cut_points);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (lies_as(inputs[i], rule.inputs[i], {})) continue;
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("input ", i, " lies as ", inputs[i].spec.ToString(),
                                  ", which the op cannot compute with the other values"));
  }
  if (!lies_as(result, rule.result, SummedAxes(rule, layout))) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("the result lies as ", result.spec.ToString(),
                                  ", which does not follow from the inputs"));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
