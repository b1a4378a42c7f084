// How a value of a plan lies on the mesh: its axes per dimension, its tiles and their sizes.
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

// How many devices a group along `axes` has.
int64_t AxesSize(const Mesh& mesh, const Axes& axes);

// A spec in the form for comparing layouts: one list of axes per dimension. Axes of size 1 are
// omitted, since they partition nothing.
struct ValueLayout {
  std::vector<Axes> dims;
  Axes unreduced = {};

  friend bool operator==(const ValueLayout&, const ValueLayout&) = default;
};

ValueLayout LayoutOf(const Mesh& mesh, const ValueDescriptor& value);
PartitionSpec ToSpec(const ValueLayout& layout);

// Whether a dimension has cut points, so that its parts are unequal.
bool IsCut(const ValueDescriptor& value, size_t dim);
// Where each part of a dimension begins and ends, cut or not.
CutPoints PointsOf(const Mesh& mesh, const ValueDescriptor& value, size_t dim);
// Cuts a dimension at `points`. Points of equal parts are dropped.
void SetCutPoints(size_t dim, CutPoints points, ValueDescriptor* value);

// The shape of a device's tile. With unequal tiles: the largest extent of each dimension.
Shape TileShape(const Mesh& mesh, const ValueDescriptor& value);
// Sizes of such a tile, at most INT64_MAX.
int64_t TileElements(const Mesh& mesh, const ValueDescriptor& value);
int64_t TileBytes(const Mesh& mesh, const ValueDescriptor& value);
int64_t BytesOf(int64_t elements, Dtype dtype);

// The type of partial sums of products in messages.
Dtype PartialSumType(Dtype dtype);

// a * b and sum + amount for counts that are not negative, at most INT64_MAX. Plans that came over
// the wire may have any shapes.
int64_t ProductOf(int64_t a, int64_t b);
void AddTo(int64_t& sum, int64_t amount);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_VALUE_LAYOUT_H_
