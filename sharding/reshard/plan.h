// Computes the data that must move to turn one layout of a tensor into another.
#ifndef SHARDMESH_SHARDING_RESHARD_PLAN_H_
#define SHARDMESH_SHARDING_RESHARD_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"

namespace shardmesh {

// The collective that has the same effect as a reshard, as a whole or along some axes.
enum class ReshardPattern {
  kNoop,           // every device keeps exactly its tile
  kSlice,          // every device keeps part of its tile: nothing moves
  kAllGather,      // tiles grow to the union of a group's tiles
  kAllToAll,       // axes move from one dimension to another, and tiles with them
  kPermute,        // the cuts stay the same, and tiles move to other devices
  kBroadcast,      // like kPermute, and each tile gets more holders
  kReduceScatter,  // partial sums are added, and each device keeps a part
  kAllReduce,      // partial sums are added, and every device of the group keeps the sums
  kGeneral,        // none of these
};

// Returns a name such as `all-gather` or `reduce-scatter`.
std::string_view ReshardPatternName(ReshardPattern pattern);

// The work of a reshard along some mesh axes, such as `all-to-all along tp, dimension 0 to 1`.
struct ReshardStep {
  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<std::string> axes;    // axes of the source mesh, major to minor
  std::optional<int64_t> from_dim;  // the dimension that the axes partition before the reshard
  std::optional<int64_t> to_dim;    // the dimension that the axes partition after the reshard
  // Number of devices in each group. This number is less than the product of the axes' sizes if
  // only a factor of an axis moves to another dimension.
  int64_t group_size = 1;

  friend bool operator==(const ReshardStep&, const ReshardStep&) = default;
};

// The elements that one destination device keeps and receives. Sizes are in elements.
struct DeviceReshard {
  std::optional<Tile> src;  // nullopt if the device is not in the source mesh
  Tile dst;
  int64_t kept = 0;          // elements of the new tile that the device already holds
  int64_t need = 0;          // elements of the new tile that the device must receive
  int64_t region_count = 0;  // number of regions (and messages) of `need`
};

// A piece of the tensor that a device receives from one source.
struct FetchRegion {
  Tile tile;
  DeviceId source = 0;  // a device of the source mesh
  int64_t elements = 0;

  friend bool operator==(const FetchRegion&, const FetchRegion&) = default;
};

// A region that one device sends to another device.
struct ReshardLink {
  DeviceId source = 0;       // a device of the source mesh
  DeviceId destination = 0;  // a device of the destination mesh
  Tile tile;
  int64_t elements = 0;

  friend bool operator==(const ReshardLink&, const ReshardLink&) = default;
};

// Sums and extremes over all devices. Sizes are in elements.
struct ReshardTotals {
  bool noop = true;       // no data moves, although tiles may shrink
  int64_t kept = 0;       // sum of DeviceReshard::kept over all devices
  int64_t need = 0;       // sum of DeviceReshard::need over all devices
  int64_t max_need = 0;   // the greatest DeviceReshard::need of one device
  int64_t receivers = 0;  // devices with need > 0
  int64_t links = 0;      // number of pairs of sender and receiver
  int64_t max_link = 0;   // the most elements that one device sends to another device
  double mean_sent = 0;   // need / devices of the source mesh
  // The most elements that one source device sends. Nullopt if the plan would have to visit more
  // than kMaxLinkWalk links to find out.
  std::optional<int64_t> max_sent;
};

// A plan between two layouts of one tensor. The two meshes may differ: devices with the same
// GlobalIdOf are the same device. A destination may be absent from the source mesh.
//
// The plan moves the least possible data: a destination receives exactly the elements of its new
// tile that its old tile lacks, each once. The plan cuts the new tile along the source's tiles. The
// device keeps the piece in its own old tile. It receives every other piece, called a region, from
// one holder of that source tile:
//   - If both meshes are the same: from the holder with the destination's own coordinates along all
//     axes that neither layout partitions. That holder is a neighbour.
//   - If the meshes differ: from the holder whose turn it is. The holders take turns, in the order
//     of the destinations that need the same piece, so that no holder serves all of them.
//
// Along axes that are unreduced in both layouts, each device keeps its own partial sums. The
// reshard reduces the axes that are unreduced only in the source. Each device's partial sum along
// such an axis counts as a separate piece: a destination receives all pieces except its own, as in
// a reduce-scatter. An all-reduce can move less, because it adds partial sums on the way.
//
// Example: mesh tp=4, shape (8, 8), P('tp') to P(None, 'tp') is an all-to-all. Each device keeps a
// tile of shape (2, 2), which has 4 elements. It needs 12 elements, 4 from each other device.
//
// No function takes time proportional to the number of devices, unless its comment says so.
// Totals() uses the fact that tile sizes are products over dimensions: for dimensions that share no
// axis, it computes separate sums and multiplies them. For a dimension with equal parts on both
// sides, Totals() takes:
//   - constant time if one cut refines the other;
//   - time for each part if the dimension's axes occur in no other dimension;
//   - else time for each combination of coordinates along its axes.
// If the positions of the two meshes do not match (explicit device numbers, or axis sizes that do
// not nest), Totals() visits all devices.
// Immutable, and safe to share between threads; a copy is cheap.
class ReshardPlan {
 public:
  // Upper bound on the steps of one walk over coordinates, devices or links.
  static constexpr int64_t kMaxWalk = int64_t{1} << 25;
  // Upper bound on the links that Totals visits for max_sent, and on the devices that Create visits
  // if parts are uneven or positions do not match.
  static constexpr int64_t kMaxLinkWalk = int64_t{1} << 21;
  // Default upper bound on the regions or links that one call returns.
  static constexpr int64_t kDefaultMaxRegions = int64_t{1} << 20;

  // Errors are INVALID_ARGUMENT: SHAPE_MISMATCH if the two shapes differ; INVALID_SPEC if the
  // destination has an unreduced axis that the source lacks (sums cannot become partial sums), or
  // that has another size in the source. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if the partial sums of
  // all elements exceed int64_t.
  // Takes O(rank * axes), and visits up to kMaxLinkWalk devices if parts are uneven or positions do
  // not match.
  static absl::StatusOr<ReshardPlan> Create(const Tiling& from, const Tiling& to);

  const Tiling& from() const;
  const Tiling& to() const;

  // Returns the pattern of the whole reshard, over all devices. Returns kGeneral if steps() has
  // several patterns that move data, or if no pattern describes the reshard.
  ReshardPattern pattern() const;
  // Returns the steps, in the order of the dimensions. Empty for kNoop, and if no steps lead from
  // one layout to the other.
  absl::Span<const ReshardStep> steps() const;

  // Returns the position in the source mesh of a destination device; nullopt if the source mesh
  // lacks the device. Here and below, an argument `destination` must be a device of the destination
  // mesh, and `source` one of the source mesh.
  std::optional<DeviceId> SourceOf(DeviceId destination) const;

  // Returns the elements that a device keeps and receives. Takes O(rank + axes).
  DeviceReshard DeviceOf(DeviceId destination) const;

  // Returns the regions that a device receives, in row-major order. The regions together are the
  // elements that DeviceOf counts as `need`, each once. Each region lies in the tile of its source.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if there are more than `max_regions`.
  // Takes O(rank + axes) for each region.
  absl::StatusOr<std::vector<FetchRegion>> RegionsOf(
      DeviceId destination, int64_t max_regions = kDefaultMaxRegions) const;

  // Returns the links of a device of the source mesh, sorted by rising destination.
  // Takes O(rank + axes) for each destination whose tile overlaps the source's tile.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) for more than kMaxWalk such destinations or more than
  // `max_links` links.
  absl::StatusOr<std::vector<ReshardLink>> LinksOutOf(DeviceId source,
                                                      int64_t max_links = kDefaultMaxRegions) const;

  // Returns the sums and extremes over all devices. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if a sum
  // exceeds int64 or a walk exceeds kMaxWalk. CANCELLED if `is_cancelled`, which is polled during
  // walks, returns true.
  absl::StatusOr<ReshardTotals> Totals(const std::function<bool()>& is_cancelled = nullptr) const;

 private:
  struct State;

  explicit ReshardPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RESHARD_PLAN_H_
