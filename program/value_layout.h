// The layout of a plan's value on the mesh: its axes per dimension, its tiles and their sizes.
//
// Pure functions; they require specs that Tiling::Create accepts on `mesh`, and axes of `mesh`.
#ifndef SHARDMESH_PROGRAM_VALUE_LAYOUT_H_
#define SHARDMESH_PROGRAM_VALUE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"

namespace shardmesh {

// Names of mesh axes, major to minor.
using Axes = std::vector<std::string>;

bool Contains(const Axes& axes, std::string_view name);

// Returns the number of devices in a group along `axes`.
int64_t AxesSize(const Mesh& mesh, const Axes& axes);

// A layout in a form in which equal layouts compare equal: the axes of each dimension, and the
// unreduced axes. Axes of size 1 are omitted, since they partition nothing.
struct ValueLayout {
  std::vector<Axes> dims;
  Axes unreduced = {};

  friend bool operator==(const ValueLayout&, const ValueLayout&) = default;
};

ValueLayout LayoutOf(const Mesh& mesh, const ValueDescriptor& value);
PartitionSpec ToSpec(const ValueLayout& layout);

// Returns whether the dimension has cut points. If so, its parts are unequal.
bool IsCut(const ValueDescriptor& value, size_t dim);
// Returns the points at which a dimension's parts begin and end, also for equal parts.
CutPoints PointsOf(const Mesh& mesh, const ValueDescriptor& value, size_t dim);
// Sets the cut points of a dimension. Does not store points that give equal parts.
void SetCutPoints(size_t dim, CutPoints points, ValueDescriptor* value);

// Returns the points of the parts that are left if each `parts` neighbouring parts become one.
CutPoints JoinedPoints(const CutPoints& points, int64_t parts);

// Returns the shape of each device's tile. If tiles are unequal, returns the largest extent of any
// tile in each dimension.
Shape TileShape(const Mesh& mesh, const ValueDescriptor& value);
// TileElements and TileBytes return the size of a tile of shape TileShape(). BytesOf returns the
// bytes of `elements` elements, as PackedSizeBytes. Results beyond 64 bits become INT64_MAX.
int64_t TileElements(const Mesh& mesh, const ValueDescriptor& value);
int64_t TileBytes(const Mesh& mesh, const ValueDescriptor& value);
int64_t BytesOf(int64_t elements, Dtype dtype);

// Returns the element type in which workers send partial sums of products: F32 for F16 and BF16,
// `dtype` for all other types.
Dtype PartialSumType(Dtype dtype);

// ProductOf returns a * b; AddTo adds `amount` to `sum`. Requires arguments that are not negative.
// Results beyond 64 bits become INT64_MAX, because plans that came over the wire may have any
// shapes.
int64_t ProductOf(int64_t a, int64_t b);
void AddTo(int64_t& sum, int64_t amount);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_VALUE_LAYOUT_H_
