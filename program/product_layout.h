// The dimensions of a product of two tensors, and the layouts in which devices can compute it.
//
// A product has batch dimensions, the rows M of the left operand, the columns N of the right
// operand, and the dimension K that it contracts. In a layout of the product, each mesh axis
// partitions at most one of these dimensions. The layout of both operands and of the result follows
// from it: an axis that partitions K makes partial sums.
//
// Pure functions. They require values that Tiling::Create accepts on `mesh`.
#ifndef SHARDMESH_PROGRAM_PRODUCT_LAYOUT_H_
#define SHARDMESH_PROGRAM_PRODUCT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/tile.h"

namespace shardmesh {

// The tensors of a product.
enum class ProductSide { kLhs, kRhs, kOut };

// A dimension of a product, with its number in each tensor. nullopt: the tensor lacks the
// dimension, or the tensor has the extent 1 there and is broadcast.
struct ProductDim {
  int64_t extent = 0;
  std::optional<size_t> lhs = std::nullopt;
  std::optional<size_t> rhs = std::nullopt;
  std::optional<size_t> out = std::nullopt;

  std::optional<size_t> On(ProductSide side) const {
    return side == ProductSide::kLhs ? lhs : side == ProductSide::kRhs ? rhs : out;
  }
};

// The dimensions of the result in their order, then the contracted dimension.
using ProductDims = std::vector<ProductDim>;

// Returns the dimensions of lhs * rhs, where the last two dimensions of an operand are transposed
// first if requested. Batch dimensions are broadcast as numpy's matmul broadcasts them. A left
// operand of one dimension has no rows: its product is [N].
//
// INVALID_ARGUMENT (SHAPE_MISMATCH): an operand has too few dimensions, the operands are contracted
// over different extents, or batch dimensions differ and neither is 1.
absl::StatusOr<ProductDims> ProductDimsOf(const Shape& lhs, bool transpose_lhs, const Shape& rhs,
                                          bool transpose_rhs);

Shape OutputShapeOf(const ProductDims& dims);

// Returns the name of a dimension: "M", "N", "K" or, for example, "batch 0".
std::string ProductDimName(const ProductDims& dims, size_t dim);

// Returns the number of the product's dimension that is dimension `dimension` of a tensor; nullopt
// if the tensor lacks the dimension, or is broadcast along it.
std::optional<size_t> ProductDimOf(const ProductDims& dims, ProductSide side, size_t dimension);

// The parts of one dimension of a product.
struct DimParts {
  Axes axes = {};         // major to minor
  CutPoints points = {};  // empty: equal parts

  friend bool operator==(const DimParts&, const DimParts&) = default;
};

// The parts of each dimension of a product, in the order of ProductDims. Each axis occurs at most
// once.
using ProductLayout = std::vector<DimParts>;

// Returns the parts that `value`, a tensor of the product, has. The dimensions that the tensor
// lacks have no parts.
ProductLayout PartsOf(const Mesh& mesh, const ProductDims& dims, const ValueDescriptor& value,
                      ProductSide side);

// Returns the layout in which the tensor `resting` has its own parts. A dimension that this tensor
// lacks gets the parts of `moving`, without the first axis that `resting` uses and those after it.
ProductLayout LayoutThatKeeps(const Mesh& mesh, const ProductDims& dims,
                              const ProductLayout& resting, ProductSide resting_side,
                              const ProductLayout& moving);

// The dimensions that a mesh axis may partition in a product; nullopt: none, so devices along the
// axis compute the same.
struct AxisRoles {
  std::string axis;
  std::vector<std::optional<size_t>> roles;
};

// Returns the roles of each mesh axis of more than one device: those that the axis has in one of
// `sources`, and none. If `may_have_any`, an axis may also partition any other dimension of more
// than one element.
std::vector<AxisRoles> RolesOf(const Mesh& mesh, const ProductDims& dims,
                               absl::Span<const ProductLayout> sources, bool may_have_any);

// Returns the layout in which each axis of `axes` has its role of `roles`. A dimension gets its
// axes in the order of the first source that has them, and the cut points of the first source that
// has these parts or finer ones. Returns nullopt if no source has such parts, and equal parts are
// impossible.
std::optional<ProductLayout> LayoutOfRoles(const Mesh& mesh, const ProductDims& dims,
                                           absl::Span<const AxisRoles> axes,
                                           absl::Span<const std::optional<size_t>> roles,
                                           absl::Span<const ProductLayout> sources);

// Returns `value`, a tensor of the product, with the parts of `layout`. The result has no unreduced
// axes.
ValueDescriptor WithParts(ValueDescriptor value, const ProductDims& dims,
                          const ProductLayout& layout, ProductSide side);

// Returns the roles of the axes for people, in the order of the mesh: "dp: M, tp: K".
std::string RolesText(const Mesh& mesh, const ProductDims& dims, const ProductLayout& layout);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PRODUCT_LAYOUT_H_
