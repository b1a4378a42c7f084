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

// A spec in a form in which equal layouts compare equal: one list of axes per dimension. Axes of
// size 1 are omitted, since they partition nothing.
struct ValueLayout {
  std::vector<Axes> dims;
  Axes unreduced = {};

  friend bool operator==(const ValueLayout&, const ValueLayout&) = default;
};

ValueLayout LayoutOf(const Mesh& mesh, const ValueDescriptor& value);
PartitionSpec ToSpec(const ValueLayout& layout);

// Whether a dimension has cut points, so that its parts are unequal.
bool IsCut(const ValueDescriptor& value, size_t dim);
// Returns the points at which a dimension's parts begin and end, also for equal parts.
CutPoints PointsOf(const Mesh& mesh, const ValueDescriptor& value, size_t dim);
// Sets the cut points of a dimension. Points that give equal parts are not stored.
void SetCutPoints(size_t dim, CutPoints points, ValueDescriptor* value);

// Returns the shape of a device's tile; for unequal tiles, the largest extent of each dimension.
Shape TileShape(const Mesh& mesh, const ValueDescriptor& value);
// Return the sizes of a tile of shape TileShape(), and of `elements`. Too large values become
// INT64_MAX.
int64_t TileElements(const Mesh& mesh, const ValueDescriptor& value);
int64_t TileBytes(const Mesh& mesh, const ValueDescriptor& value);
int64_t BytesOf(int64_t elements, Dtype dtype);

// The element type in which workers send partial sums of products: F32 for F16 and BF16, else the
// same type.
Dtype PartialSumType(Dtype dtype);

// Return a * b, and add `amount` to `sum`, for counts that are not negative. Results saturate at
// INT64_MAX, because plans that came over the wire may have any shapes.
int64_t ProductOf(int64_t a, int64_t b);
void AddTo(int64_t& sum, int64_t amount);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_VALUE_LAYOUT_H_
