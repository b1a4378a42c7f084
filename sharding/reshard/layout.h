// The layout of a reshard: parts per dimension, numbered by digits of a device's position. Internal
// to ReshardPlan.
#ifndef SHARDMESH_SHARDING_RESHARD_LAYOUT_H_
#define SHARDMESH_SHARDING_RESHARD_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"

namespace shardmesh::reshard_internal {

constexpr size_t Index(int64_t i) { return static_cast<size_t>(i); }

// Returns RESOURCE_EXHAUSTED (LIMIT_EXCEEDED).
absl::Status OverLimit(std::string_view what, Facts facts = {});

// One digit of a device's position: position / stride % size. It has the value `weight`.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;
  int64_t weight = 1;

  int64_t CoordinateOf(int64_t position) const { return position / stride % size; }
};

// Sets weights such that the last digit has weight 1. Returns the number of values.
int64_t SetWeights(std::vector<Digit>& digits);

// Returns the value of the digits of a position.
int64_t ValueOf(const std::vector<Digit>& digits, int64_t position);

// Returns the part of a position that these digits form for `value`.
int64_t PositionAt(const std::vector<Digit>& digits, int64_t value);

// A dimension that is cut into nonempty parts.
struct Cut {
  int64_t extent = 1;
  int64_t parts = 1;
  CutPoints points;  // empty: equal parts

  IndexRange Range(int64_t part) const {
    if (!points.empty()) {
      return {points[Index(part)], points[Index(part) + 1]};
    }
    const int64_t size = extent / parts;
    return {part * size, (part + 1) * size};
  }
  int64_t Holding(int64_t index) const {
    if (!points.empty()) {
      return std::upper_bound(points.begin(), points.end(), index) - points.begin() - 1;
    }
    return index / (extent / parts);
  }
  // Returns the first and the last part that overlap a range. Requires a nonempty range within the
  // dimension.
  std::pair<int64_t, int64_t> Meeting(const IndexRange& range) const {
    return {Holding(range.start), Holding(range.stop - 1)};
  }

  bool uneven() const { return !points.empty(); }

  friend bool operator==(const Cut&, const Cut&) = default;
};

// Returns the number of indices in both.
int64_t Overlap(const IndexRange& a, const IndexRange& b);

struct Dimension {
  std::vector<Digit> digits;  // major to minor, none of size 1
  Cut cut;
};

// One layout. Its dimensions are those of the tensor, then one for every unreduced axis of the
// source. The indices of such a dimension number the partial sums.
struct Side {
  Mesh mesh;
  std::vector<Dimension> dimensions;
  std::vector<Digit> replicas;  // the axes that cut no dimension, none of size 1
  int64_t replica_count = 1;

  int64_t PartOf(size_t dim, DeviceId device) const {
    return ValueOf(dimensions[dim].digits, device);
  }
};

// Returns the coordinate along an axis of the mesh, as a digit.
Digit DigitOf(const Mesh& mesh, std::string_view axis);

// Returns a side with the tensor's own dimensions; the replicas are still missing.
Side SideOf(const Tiling& tiling);

// Returns a dimension of `count` partial sums, one per device along `axis`. Without an axis, every
// device holds all of them.
Dimension PartialSums(const Mesh& mesh, std::optional<std::string_view> axis, int64_t count);

// Returns whether the axis of that stride cuts a dimension. Among axes of more than one device, the
// stride identifies the axis.
bool UsesStride(const Side& side, int64_t stride);

// Sets the replicas, after all dimensions are set.
void FindReplicas(Side& side);

// Returns whether equal positions are the same device, for all positions that both meshes have.
bool PositionsMatch(const Mesh& a, const Mesh& b);

// Returns the positions below `limit` as digits so fine that every axis of both meshes is a run of
// digits. Digit k is position / boundaries[k] % (boundaries[k + 1] / boundaries[k]). Returns an
// empty vector if no such digits exist.
std::vector<int64_t> CommonBoundaries(const Mesh& a, const Mesh& b, int64_t limit);

// A digit that both meshes share, and its weight in the number of a part.
struct SharedDigit {
  size_t id = 0;
  int64_t weight = 1;
};

// The digits of one dimension on one side, expressed in shared digits.
struct SharedDigits {
  std::vector<SharedDigit> digits;  // major to minor
  bool complete = true;  // false if some parts belong to positions beyond the shared ones
};

// Requires nonempty `boundaries`; see CommonBoundaries.
SharedDigits ShareDigits(const Dimension& dimension, const std::vector<int64_t>& boundaries);

}  // namespace shardmesh::reshard_internal

#endif  // SHARDMESH_SHARDING_RESHARD_LAYOUT_H_
