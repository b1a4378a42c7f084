// The index range of a tensor that each device holds.
#ifndef SHARDMESH_SHARDING_TILE_H_
#define SHARDMESH_SHARDING_TILE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// Indices of one dimension, half-open: start <= i < stop.
struct IndexRange {
  int64_t start = 0;
  int64_t stop = 0;

  int64_t size() const { return stop - start; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// A box of indices: one range per dimension. A scalar's tile has no ranges and one element.
struct Tile {
  absl::InlinedVector<IndexRange, 6> ranges;

  // Returns the tile of a whole tensor.
  static Tile Whole(absl::Span<const int64_t> shape);

  Shape shape() const;
  int64_t element_count() const;
  bool empty() const { return element_count() == 0; }
  // Returns a text such as `[4,8)x[4,8)`; `()` for the tile of a scalar.
  std::string ToString() const;

  friend bool operator==(const Tile&, const Tile&) = default;
};

// Returns the indices that both tiles have; nullopt if there are none. Requires equal ranks.
std::optional<Tile> Intersect(const Tile& a, const Tile& b);

// The cut positions of one dimension: n parts have n + 1 points, from 0 to the extent. Points never
// fall. Two equal points in a row enclose an empty part.
using CutPoints = std::vector<int64_t>;

// Returns `cut_points` in the simplest form: an empty list for a dimension of equal parts, and no
// lists at all if every dimension has equal parts.
std::vector<CutPoints> WithoutEqualParts(std::vector<CutPoints> cut_points);

// A piece of a tensor and every device that holds it.
struct OwnedTile {
  Tile tile;
  std::vector<DeviceId> devices;  // sorted by rising replica id
};

// The layout of an array of one shape on a mesh: the tile of each device.
//
// Invariants (checked by Create in this order; INVALID_ARGUMENT names the first that is violated):
//   - no axis occurs twice in the spec (DUPLICATE_AXIS; Python: DuplicateSpecError);
//   - every axis of the spec is an axis of the mesh (AXIS_NOT_IN_MESH);
//   - the spec has at most one entry per dimension of `shape` (RANK_MISMATCH);
//   - the product of a dimension's axes divides its extent, unless the dimension has cut points
//     (NOT_DIVISIBLE, lowest dimension first). Any product divides an extent of 0.
// An unconstrained dimension is not partitioned. Along unreduced axes, devices hold the same index
// range, and each has a partial sum. Here such devices count as holders and replicas of one tile;
// spec().unreduced() shows that their values differ.
//
// Example: mesh dp=2,tp=4, spec P('dp', 'tp'), shape (8, 16): device 5 holds [4,8)x[4,8). A
// dimension over (a, b) is split with a major and b minor.
// Immutable, and safe to share between threads. A query for one device takes O(rank + axes).
class Tiling {
 public:
  // `cut_points` is empty for equal parts in all dimensions. If not empty, it has one list per
  // dimension; an empty list gives equal parts. Any other list has as many parts as the product of
  // its dimension's axes, starts at 0, never falls and ends at the extent; if not,
  // INVALID_CUT_POINTS. FAILED_PRECONDITION (NO_MESH) on an empty mesh; errors of CheckShape.
  static absl::StatusOr<Tiling> Create(const Mesh& mesh, const PartitionSpec& spec, Shape shape,
                                       std::vector<CutPoints> cut_points = {});

  const Mesh& mesh() const { return mesh_; }
  const PartitionSpec& spec() const { return spec_; }
  const Shape& shape() const { return shape_; }
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }

  // Returns the range that a device holds. TileOf and ReplicaIdOf require 0 <= device <
  // mesh().size().
  Tile TileOf(DeviceId device) const;
  // Returns the number of this device among the holders of its tile, in position order. 0 marks the
  // canonical holder: the tiles of all devices with replica id 0 cover the tensor exactly once.
  int64_t ReplicaIdOf(DeviceId device) const;
  // Returns the number of devices that hold each tile.
  int64_t replica_count() const { return replica_count_; }
  // Returns the number of different tiles.
  int64_t DistinctTileCount() const { return mesh_.size() / replica_count_; }
  // Returns the tile with the number `tile`, and all devices that hold it. Tiles are numbered in
  // row-major order of their dimensions. Takes O(rank + replicas). Requires
  // 0 <= tile < DistinctTileCount().
  OwnedTile ReplicaGroup(int64_t tile) const;
  // Returns the number of the tile that a device holds, as ReplicaGroup numbers tiles.
  int64_t TileNumberOf(DeviceId device) const;
  // Returns whether the spec has no axis of more than one device, regardless of the extents.
  bool FullyReplicated() const { return fully_replicated_; }

  // Return the number of parts of dimension `dim`, with the empty ones, and the range of one part.
  // Require 0 <= dim < rank().
  int64_t PartCount(int64_t dim) const;
  IndexRange PartRange(int64_t dim, int64_t part) const;
  // Whether every tile has the shape ShardShape().
  bool has_equal_tiles() const { return equal_tiles_; }
  // Returns, per dimension, the largest extent of any tile. A buffer of this shape fits any
  // device's tile.
  Shape ShardShape() const;

  // Returns the cut points of dimension `dim`; empty if its parts are equal. Requires
  // 0 <= dim < rank().
  const CutPoints& cut_points(int64_t dim) const;

  // Cuts `range` of the tensor along the tiles. Returns the pieces in row-major order, each with
  // all its holders. Empty tiles give no pieces. Takes O(pieces * replicas + empty parts). Requires
  // a range within the tensor; an empty range gives no pieces.
  std::vector<OwnedTile> OwnersOf(const Tile& range) const;

 private:
  // A device's coordinate along one axis, device / stride % size, as a digit of the number of a
  // part. `weight` is the digit's place value.
  struct Digit {
    int64_t stride;
    int64_t size;
    int64_t weight;
  };
  struct Dimension {
    absl::InlinedVector<Digit, 2> digits;  // major to minor
    int64_t part_count = 1;
    CutPoints cut_points;  // empty: equal parts
  };

  Tiling(const Mesh& mesh, const PartitionSpec& spec, Shape shape);

  int64_t PartOf(DeviceId device, int64_t dim) const;
  // Returns the part that contains index `index` of dimension `dim`; it is not empty.
  int64_t PartHolding(int64_t dim, int64_t index) const;
  // Returns all holders of a tile. `base` is the holder with coordinate 0 along every axis that
  // cuts no dimension.
  std::vector<DeviceId> Holders(DeviceId base) const;

  Mesh mesh_;
  PartitionSpec spec_;
  Shape shape_;
  std::vector<Dimension> dimensions_;
  std::vector<Digit> replica_digits_;  // the axes that cut no dimension, in mesh order
  int64_t replica_count_ = 1;
  bool fully_replicated_ = true;
  bool equal_tiles_ = true;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_TILE_H_
