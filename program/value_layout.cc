// Derives layouts from specs, and computes the sizes of tiles.
#include "program/value_layout.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tensor/dtype.h"

namespace shardmesh {
namespace {

// Returns the number of parts into which a dimension is partitioned.
int64_t PartCount(const Mesh& mesh, const ValueDescriptor& value, size_t dim) {
  Axes axes;
  for (const AxisName& axis : value.spec.entry(static_cast<int64_t>(dim)).axes()) {
    axes.push_back(*axis);
  }
  return AxesSize(mesh, axes);
}

}  // namespace

bool Contains(const Axes& axes, std::string_view name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

int64_t AxesSize(const Mesh& mesh, const Axes& axes) {
  int64_t size = 1;
  for (const std::string& axis : axes) {
    size *= mesh.axes()[static_cast<size_t>(*mesh.FindAxis(axis))].size;
  }
  return size;
}

ValueLayout LayoutOf(const Mesh& mesh, const ValueDescriptor& value) {
  ValueLayout layout;
  layout.dims.resize(value.shape.size());
  for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
    for (const AxisName& axis : value.spec.entry(static_cast<int64_t>(dim)).axes()) {
      if (AxesSize(mesh, {*axis}) > 1) {
        layout.dims[dim].push_back(*axis);
      }
    }
  }
  for (const std::string& axis : value.spec.unreduced()) {
    if (AxesSize(mesh, {axis}) > 1) {
      layout.unreduced.push_back(axis);
    }
  }
  return layout;
}

PartitionSpec ToSpec(const ValueLayout& layout) {
  std::vector<SpecEntry> entries;
  entries.reserve(layout.dims.size());
  for (const Axes& axes : layout.dims) {
    entries.push_back(SpecEntry::Axes(std::vector<AxisName>(axes.begin(), axes.end())));
  }
  return PartitionSpec(std::move(entries), {layout.unreduced.begin(), layout.unreduced.end()});
}

bool IsCut(const ValueDescriptor& value, size_t dim) {
  return !value.cut_points.empty() && !value.cut_points[dim].empty();
}

CutPoints PointsOf(const Mesh& mesh, const ValueDescriptor& value, size_t dim) {
  if (IsCut(value, dim)) {
    return value.cut_points[dim];
  }
  const int64_t parts = PartCount(mesh, value, dim);
  CutPoints points;
  for (int64_t part = 0; part <= parts; ++part) {
    points.push_back(value.shape[dim] / parts * part);
  }
  return points;
}

void SetCutPoints(size_t dim, CutPoints points, ValueDescriptor* value) {
  value->cut_points.resize(value->shape.size());
  value->cut_points[dim] = std::move(points);
  value->cut_points = WithoutEqualParts(std::move(value->cut_points));
}

CutPoints JoinedPoints(const CutPoints& points, int64_t parts) {
  CutPoints joined;
  for (size_t i = 0; i < points.size(); i += static_cast<size_t>(parts)) {
    joined.push_back(points[i]);
  }
  return joined;
}

Shape TileShape(const Mesh& mesh, const ValueDescriptor& value) {
  Shape tile = value.shape;
  for (size_t dim = 0; dim < tile.size(); ++dim) {
    tile[dim] /= PartCount(mesh, value, dim);
    if (IsCut(value, dim)) {
      const CutPoints& points = value.cut_points[dim];
      for (size_t i = 1; i < points.size(); ++i) {
        tile[dim] = std::max(tile[dim], points[i] - points[i - 1]);
      }
    }
  }
  return tile;
}

int64_t TileElements(const Mesh& mesh, const ValueDescriptor& value) {
  int64_t elements = 1;
  for (const int64_t extent : TileShape(mesh, value)) {
    elements = ProductOf(elements, extent);
  }
  return elements;
}

int64_t TileBytes(const Mesh& mesh, const ValueDescriptor& value) {
  return BytesOf(TileElements(mesh, value), value.dtype);
}

int64_t BytesOf(int64_t elements, Dtype dtype) {
  // Avoid elements * bits: this product may exceed int64_t although the number of bytes does not.
  const int64_t bits = BitsPerElement(dtype);
  int64_t bytes = ProductOf(elements / 8, bits);
  AddTo(bytes, (elements % 8 * bits + 7) / 8);
  return bytes;
}

Dtype PartialSumType(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 ? Dtype::kF32 : dtype;
}

int64_t ProductOf(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

void AddTo(int64_t& sum, int64_t amount) {
  if (__builtin_add_overflow(sum, amount, &sum)) sum = std::numeric_limits<int64_t>::max();
}

}  // namespace shardmesh
