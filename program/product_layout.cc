// Maps the dimensions of operands and result to those of the product, and partitions them.
#include "program/product_layout.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status Mismatch(std::string_view message, const Shape& shape) {
  return InvalidArgument(Reason::kShapeMismatch, message, {{fact::kHave, ShapeToString(shape)}});
}

// Returns the text of both operands' shapes for messages: "(4, 8) and (4, 8) (transposed)".
std::string ShapesText(const Shape& lhs, bool transpose_lhs, const Shape& rhs, bool transpose_rhs) {
  return StrCat(ShapeToString(lhs), transpose_lhs ? " (transposed)" : "", " and ",
                ShapeToString(rhs), transpose_rhs ? " (transposed)" : "");
}

bool IsPrefix(const Axes& prefix, const Axes& axes) {
  return prefix.size() <= axes.size() && std::equal(prefix.begin(), prefix.end(), axes.begin());
}

// Returns the parts that are left of `parts` if only its first axes stay.
DimParts FirstAxesOf(const Mesh& mesh, const DimParts& parts, size_t axes) {
  const auto end = parts.axes.begin() + static_cast<std::ptrdiff_t>(axes);
  DimParts kept = {.axes = Axes(parts.axes.begin(), end)};
  if (!parts.points.empty() && axes > 0) {
    // The joined parts may be equal: layouts of equal parts have no points.
    const std::vector<CutPoints> joined = WithoutEqualParts(
        {JoinedPoints(parts.points, AxesSize(mesh, Axes(end, parts.axes.end())))});
    if (!joined.empty()) kept.points = joined.front();
  }
  return kept;
}

}  // namespace

absl::StatusOr<ProductDims> ProductDimsOf(const Shape& lhs, bool transpose_lhs, const Shape& rhs,
                                          bool transpose_rhs) {
  const size_t lhs_rank = lhs.size();
  const size_t rhs_rank = rhs.size();
  if (lhs_rank == 0) {
    return Mismatch("the left operand is a scalar; it needs a dimension to contract", lhs);
  }
  if (transpose_lhs && lhs_rank < 2) {
    return Mismatch(StrCat("the left operand has shape ", ShapeToString(lhs),
                           "; it needs two dimensions to be transposed"),
                    lhs);
  }
  if (rhs_rank < 2) {
    return Mismatch(StrCat("the right operand has shape ", ShapeToString(rhs),
                           "; it must be a matrix, or a batch of matrices"),
                    rhs);
  }
  if (lhs_rank == 1 && rhs_rank > 2) {
    return Mismatch(StrCat("the left operand has shape ", ShapeToString(lhs),
                           "; with a batch of matrices on the right it needs two dimensions"),
                    lhs);
  }
  const size_t lhs_k = transpose_lhs ? lhs_rank - 2 : lhs_rank - 1;
  const size_t rhs_k = transpose_rhs ? rhs_rank - 1 : rhs_rank - 2;
  const size_t rhs_n = transpose_rhs ? rhs_rank - 2 : rhs_rank - 1;
  if (lhs[lhs_k] != rhs[rhs_k]) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("shapes ", ShapesText(lhs, transpose_lhs, rhs, transpose_rhs),
               " do not multiply: ", lhs[lhs_k], " is contracted with ", rhs[rhs_k]));
  }
  ProductDims dims;
  const size_t lhs_batch = lhs_rank < 2 ? 0 : lhs_rank - 2;
  const size_t rhs_batch = rhs_rank - 2;
  const size_t batch = std::max(lhs_batch, rhs_batch);
  for (size_t i = 0; i < batch; ++i) {
    ProductDim dim = {.extent = 1, .out = i};
    // Batch dimensions are matched from the last one.
    if (i + lhs_batch >= batch) dim.lhs = i + lhs_batch - batch;
    if (i + rhs_batch >= batch) dim.rhs = i + rhs_batch - batch;
    if (dim.lhs.has_value()) dim.extent = lhs[*dim.lhs];
    if (dim.rhs.has_value() && (!dim.lhs.has_value() || dim.extent == 1)) {
      dim.extent = rhs[*dim.rhs];
    }
    if (dim.rhs.has_value() && rhs[*dim.rhs] != dim.extent && rhs[*dim.rhs] != 1) {
      return InvalidArgument(Reason::kShapeMismatch,
                             StrCat("shapes ", ShapesText(lhs, transpose_lhs, rhs, transpose_rhs),
                                    " do not multiply: batch dimension ", i, " of the result has ",
                                    dim.extent, " matrices on the left and ", rhs[*dim.rhs],
                                    " on the right; they must agree, or one must be 1"));
    }
    if (dim.lhs.has_value() && lhs[*dim.lhs] != dim.extent) dim.lhs = std::nullopt;
    if (dim.rhs.has_value() && rhs[*dim.rhs] != dim.extent) dim.rhs = std::nullopt;
    dims.push_back(dim);
  }
  if (lhs_rank >= 2) {
    const size_t lhs_m = transpose_lhs ? lhs_rank - 1 : lhs_rank - 2;
    dims.push_back({.extent = lhs[lhs_m], .lhs = lhs_m, .out = dims.size()});
  }
  dims.push_back({.extent = rhs[rhs_n], .rhs = rhs_n, .out = dims.size()});
  dims.push_back({.extent = lhs[lhs_k], .lhs = lhs_k, .rhs = rhs_k});
  return dims;
}

std::optional<size_t> ProductDimOf(const ProductDims& dims, ProductSide side, size_t dimension) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].On(side) == dimension) return i;
  }
  return std::nullopt;
}

Shape OutputShapeOf(const ProductDims& dims) {
  Shape shape;
  for (const ProductDim& dim : dims) {
    if (dim.out.has_value()) shape.push_back(dim.extent);
  }
  return shape;
}

std::string ProductDimName(const ProductDims& dims, size_t dim) {
  const size_t from_end = dims.size() - 1 - dim;
  return from_end == 0 ? "K" : from_end == 1 ? "N" : from_end == 2 ? "M" : StrCat("batch ", dim);
}

ProductLayout PartsOf(const Mesh& mesh, const ProductDims& dims, const ValueDescriptor& value,
                      ProductSide side) {
  const ValueLayout layout = LayoutOf(mesh, value);
  ProductLayout parts(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const std::optional<size_t> dim = dims[i].On(side);
    if (!dim.has_value()) continue;
    parts[i].axes = layout.dims[*dim];
    if (IsCut(value, *dim)) parts[i].points = value.cut_points[*dim];
  }
  return parts;
}

ProductLayout LayoutThatKeeps(const Mesh& mesh, const ProductDims& dims,
                              const ProductLayout& resting, ProductSide resting_side,
                              const ProductLayout& moving) {
  const auto is_used = [&](const std::string& axis) {
    return std::any_of(resting.begin(), resting.end(),
                       [&](const DimParts& parts) { return Contains(parts.axes, axis); });
  };
  ProductLayout layout(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].On(resting_side).has_value()) {
      layout[i] = resting[i];
      continue;
    }
    const Axes& axes = moving[i].axes;
    const auto used = std::find_if(axes.begin(), axes.end(), is_used);
    layout[i] = FirstAxesOf(mesh, moving[i], static_cast<size_t>(used - axes.begin()));
  }
  return layout;
}

std::vector<AxisRoles> RolesOf(const Mesh& mesh, const ProductDims& dims,
                               absl::Span<const ProductLayout> sources, bool may_have_any) {
  std::vector<AxisRoles> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    AxisRoles roles = {.axis = axis.name, .roles = {std::nullopt}};
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const bool has = std::any_of(
          sources.begin(), sources.end(),
          [&](const ProductLayout& source) { return Contains(source[dim].axes, axis.name); });
      if (has || (may_have_any && dims[dim].extent > 1)) roles.roles.push_back(dim);
    }
    axes.push_back(std::move(roles));
  }
  return axes;
}

std::optional<ProductLayout> LayoutOfRoles(const Mesh& mesh, const ProductDims& dims,
                                           absl::Span<const AxisRoles> axes,
                                           absl::Span<const std::optional<size_t>> roles,
                                           absl::Span<const ProductLayout> sources) {
  ProductLayout layout(dims.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    Axes left;  // axes that have no place in the dimension yet
    for (size_t i = 0; i < axes.size(); ++i) {
      if (roles[i] == dim) left.push_back(axes[i].axis);
    }
    if (left.empty()) continue;
    DimParts& parts = layout[dim];
    for (const ProductLayout& source : sources) {
      for (const std::string& axis : source[dim].axes) {
        if (std::erase(left, axis) > 0) parts.axes.push_back(axis);
      }
    }
    parts.axes.insert(parts.axes.end(), left.begin(), left.end());
    const auto like = std::find_if(
        sources.begin(), sources.end(),
        [&](const ProductLayout& source) { return IsPrefix(parts.axes, source[dim].axes); });
    if (like != sources.end()) {
      parts = FirstAxesOf(mesh, (*like)[dim], parts.axes.size());
    } else if (dims[dim].extent % AxesSize(mesh, parts.axes) != 0) {
      return std::nullopt;
    }
  }
  return layout;
}

ValueDescriptor WithParts(ValueDescriptor value, const ProductDims& dims,
                          const ProductLayout& layout, ProductSide side) {
  ValueLayout parts = {.dims = std::vector<Axes>(value.shape.size())};
  value.cut_points.clear();
  for (size_t i = 0; i < dims.size(); ++i) {
    const std::optional<size_t> dim = dims[i].On(side);
    if (!dim.has_value()) continue;
    parts.dims[*dim] = layout[i].axes;
    SetCutPoints(*dim, layout[i].points, &value);
  }
  value.spec = ToSpec(parts);
  return value;
}

std::string RolesText(const Mesh& mesh, const ProductDims& dims, const ProductLayout& layout) {
  std::vector<std::string> roles;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    std::string role = "every device the same";
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (Contains(layout[dim].axes, axis.name)) role = ProductDimName(dims, dim);
    }
    roles.push_back(StrCat(axis.name, ": ", role));
  }
  return StrJoin(roles, ", ");
}

}  // namespace shardmesh
