// One side (source or destination) of a reshard: the parts of each dimension, numbered by digits of
// a device's position. Internal to ReshardPlan.
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

// Returns RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) with the message `what`.
absl::Status OverLimit(std::string_view what, Facts facts = {});

// One digit of a device's position: position / stride % size, such as the coordinate along one
// axis. `weight` is its place value in the number of a part.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;
  int64_t weight = 1;

  int64_t CoordinateOf(int64_t position) const { return position / stride % size; }
};

// Sets the weights of a mixed-radix number whose last digit has weight 1. Returns how many values
// the number can have.
int64_t SetWeights(std::vector<Digit>& digits);

// Returns the number (sum of digit * weight) that the digits of a position form.
int64_t ValueOf(const std::vector<Digit>& digits, int64_t position);

// Inverse of ValueOf: returns the position whose digits form `value` and whose other digits are 0.
int64_t PositionAt(const std::vector<Digit>& digits, int64_t value);

// The cut of a dimension into parts.
struct Cut {
  int64_t extent = 1;
  int64_t parts = 1;
  CutPoints points;  // empty: equal parts, none of which is empty
  // If some parts are empty: the number of nonempty parts before each part, and, as the last
  // element, the number of all nonempty parts.
  std::vector<int64_t> filled = {};

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
  // Returns the first and the last part that overlap a range; parts between them may be empty.
  // Requires a nonempty range within the dimension.
  std::pair<int64_t, int64_t> Meeting(const IndexRange& range) const {
    return {Holding(range.start), Holding(range.stop - 1)};
  }
  // Returns the number of nonempty parts p with first <= p < end.
  int64_t FilledParts(int64_t first, int64_t end) const {
    return filled.empty() ? end - first : filled[Index(end)] - filled[Index(first)];
  }
  int64_t FilledParts() const { return FilledParts(0, parts); }
  // Returns the first nonempty part after `part`. Requires that there is one.
  int64_t FilledPartAfter(int64_t part) const {
    do {
      ++part;
    } while (!filled.empty() && FilledParts(part, part + 1) == 0);
    return part;
  }

  bool uneven() const { return !points.empty(); }
  bool has_empty_parts() const { return !filled.empty(); }

  friend bool operator==(const Cut&, const Cut&) = default;
};

// Returns the number of indices that both ranges have.
int64_t Overlap(const IndexRange& a, const IndexRange& b);

struct Dimension {
  std::vector<Digit> digits;  // major to minor, none of size 1
  Cut cut;
};

// One layout: the source or the destination. Its dimensions are those of the tensor, then one for
// every unreduced axis of the source. The indices of these further dimensions number partial sums.
struct Side {
  Mesh mesh;
  std::vector<Dimension> dimensions;
  std::vector<Digit> replicas;  // one for each axis that cuts no dimension; none of size 1
  int64_t replica_count = 1;

  int64_t PartOf(size_t dim, DeviceId device) const {
    return ValueOf(dimensions[dim].digits, device);
  }
};

// Returns the coordinate along an axis of the mesh, as a digit.
Digit DigitOf(const Mesh& mesh, std::string_view axis);

// Returns a side with the tensor's own dimensions. Call FindReplicas once all dimensions are added.
Side SideOf(const Tiling& tiling);

// Returns a dimension of `count` partial sums, one per device along `axis`. Without an axis, every
// device holds all of them.
Dimension PartialSums(const Mesh& mesh, std::optional<std::string_view> axis, int64_t count);

// Returns whether the axis of that stride cuts a dimension. The stride identifies an axis: no two
// axes of more than one device have the same stride.
bool UsesStride(const Side& side, int64_t stride);

// Sets `replicas` and `replica_count`. Requires that all dimensions are set.
void FindReplicas(Side& side);

// Returns whether each position that both meshes have names the same device in both meshes.
bool PositionsMatch(const Mesh& a, const Mesh& b);

// Returns boundaries that split the positions below `limit` into digits, such that every axis of
// either mesh is a run of digits. Digit k is
// position / boundaries[k] % (boundaries[k + 1] / boundaries[k]). Returns an empty vector if no
// such digits exist.
std::vector<int64_t> CommonBoundaries(const Mesh& a, const Mesh& b, int64_t limit);

// A digit of CommonBoundaries, with its index `id` and its weight in the number of a part.
struct SharedDigit {
  size_t id = 0;
  int64_t weight = 1;
};

// The digits of one dimension on one side, expressed in digits that both meshes share.
struct SharedDigits {
  std::vector<SharedDigit> digits;  // major to minor
  bool complete = true;             // false if devices beyond the shared positions hold some parts
};

// Expresses a dimension's digits in shared digits. Requires nonempty boundaries of
// CommonBoundaries.
SharedDigits ShareDigits(const Dimension& dimension, const std::vector<int64_t>& boundaries);

}  // namespace shardmesh::reshard_internal

#endif  // SHARDMESH_SHARDING_RESHARD_LAYOUT_H_
