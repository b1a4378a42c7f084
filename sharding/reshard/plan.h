// What must move to turn one layout of a tensor into another.
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

// The collective that a reshard is, as a whole or along some axes.
enum class ReshardPattern {
  kNoop,           // every device has just the tile that it had
  kSlice,          // every device has part of what it had: nothing moves
  kAllGather,      // tiles grow to the union of a group's
  kAllToAll,       // axes move from one dimension to another, and tiles with them
  kPermute,        // tiles keep their cut and change hands
  kBroadcast,      // the same, and each tile gets more holders
  kReduceScatter,  // partial sums are added up, and each device keeps a part
  kAllReduce,      // partial sums are added up, and every device of the group keeps them
  kGeneral,        // none of these
};

// `all-gather`, `reduce-scatter`, ...
std::string_view ReshardPatternName(ReshardPattern pattern);

// What some mesh axes do in a reshard that its pattern describes: `all-to-all along tp, dimension 0
// to 1`.
struct ReshardStep {
  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<std::string> axes;    // of the source mesh, major to minor
  std::optional<int64_t> from_dim;  // the dimension that they partition before
  std::optional<int64_t> to_dim;    // and after
  // How many devices take part together: fewer than the axes have where only a factor of one of
  // them changes its place.
  int64_t group_size = 1;

  friend bool operator==(const ReshardStep&, const ReshardStep&) = default;
};

// One device's part. Sizes are in elements.
struct DeviceReshard {
  std::optional<Tile> src;  // nullopt if the device is not in the source mesh
  Tile dst;
  int64_t kept = 0;          // of what it holds, what it needs
  int64_t need = 0;          // what it must receive
  int64_t region_count = 0;  // how many regions, hence messages, `need` comes in
};

// A piece that a device receives from one other.
struct FetchRegion {
  Tile tile;
  DeviceId source = 0;  // a device of the source mesh
  int64_t elements = 0;

  friend bool operator==(const FetchRegion&, const FetchRegion&) = default;
};

// What one device sends another, which is one region.
struct ReshardLink {
  DeviceId source = 0;       // of the source mesh
  DeviceId destination = 0;  // of the destination mesh
  Tile tile;
  int64_t elements = 0;

  friend bool operator==(const ReshardLink&, const ReshardLink&) = default;
};

// Sums and extremes over all devices. Sizes are in elements.
struct ReshardTotals {
  bool noop = true;       // nothing moves, though tiles may shrink
  int64_t kept = 0;       // over all devices
  int64_t need = 0;       // over all devices
  int64_t max_need = 0;   // of one device
  int64_t receivers = 0;  // devices that need anything
  int64_t links = 0;      // pairs of devices that talk
  int64_t max_link = 0;   // the most that one device sends another
  double mean_sent = 0;   // need / devices of the source mesh
  // The most that one source device sends; nullopt where only walking more than kMaxLinkWalk links
  // would tell.
  std::optional<int64_t> max_sent;
};

// A plan between two layouts of one tensor. The two meshes may differ: a device of one is the
// device of the other that bears the same GlobalIdOf, and a destination may be in no source mesh.
//
// What moves is the lower bound: a destination receives exactly those elements of its new tile that
// its old one does not have, each once. Its new tile is cut along the source's tiles; what is in
// its own it keeps, and every other piece, a region, comes from one device:
//   - where both meshes are the same, from the holder that has the destination's own coordinates
//     along all axes that neither layout partitions, hence a neighbour;
//   - the other holders take turns, in the order of the destinations that want the same piece, so
//     that none of them serves all.
//
// Unreduced axes: along those of both layouts each device keeps to its own partial sums. Along
// those of the source alone ("reduced") every device's partial sum counts as a piece of its own: a
// destination receives all but the one that it has, which is what a reduce-scatter moves; an
// all-reduce can move less by adding up on the way.
//
// Example: mesh tp=4, shape (8, 8), P('tp') to P(None, 'tp'): each device keeps [2,2] of 4 elements
// and needs 12, 4 from each of the others; an all-to-all.
//
// Nothing here is proportional to the number of devices unless said so. Sums over devices use that
// tile sizes are products over dimensions: dimensions that share no axis are summed apart and
// multiplied. A dimension with equal parts on both sides costs nothing where one cut refines the
// other; where its axes occur nowhere else it costs the sum of its parts; only the rest is walked
// coordinate by coordinate. Where the two meshes' positions do not match (numbered by a list of
// their own, or with axis sizes that do not nest) it is walked device by device.
// Immutable, hence safe to share between threads; a copy is cheap.
class ReshardPlan {
 public:
  // Most steps of one walk, be it over coordinates, devices or links.
  static constexpr int64_t kMaxWalk = int64_t{1} << 25;
  // Most links, and devices where positions do not match, that are gone through for a detail.
  static constexpr int64_t kMaxLinkWalk = int64_t{1} << 21;
  // Most regions or links that one call returns by default.
  static constexpr int64_t kDefaultMaxRegions = int64_t{1} << 20;

  // INVALID_ARGUMENT: SHAPE_MISMATCH if the two shapes differ; INVALID_SPEC if the destination has
  // an unreduced axis that the source has not (partial sums cannot be made of sums), or one of
  // another size. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if the partial sums of all elements are more
  // than int64_t can count. O(rank * axes), and a look at up to kMaxLinkWalk devices where parts
  // are uneven or positions do not match.
  static absl::StatusOr<ReshardPlan> Create(const Tiling& from, const Tiling& to);

  const Tiling& from() const;
  const Tiling& to() const;

  // Of the whole: what every device takes part in. kGeneral where steps() has none or several
  // kinds that move something.
  ReshardPattern pattern() const;
  // By dimension; empty for kNoop and wherever the layouts are not related that way.
  absl::Span<const ReshardStep> steps() const;

  // The position in the source mesh of a destination device; nullopt if it is not there. As below,
  // requires a device of the mesh in question.
  std::optional<DeviceId> SourceOf(DeviceId destination) const;

  // O(rank + axes).
  DeviceReshard DeviceOf(DeviceId destination) const;

  // The regions that a device receives, in row-major order. O(rank + axes) each. They cover what
  // DeviceOf says that it needs exactly once, and each lies in its source's tile.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if there are more than `max_regions`.
  absl::StatusOr<std::vector<FetchRegion>> RegionsOf(
      DeviceId destination, int64_t max_regions = kDefaultMaxRegions) const;

  // What a device of the source mesh sends, by rising destination. O(rank + axes) for each
  // destination whose tile meets the source's. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if those are
  // more than kMaxWalk, or the links more than `max_links`.
  absl::StatusOr<std::vector<ReshardLink>> LinksOutOf(DeviceId source,
                                                      int64_t max_links = kDefaultMaxRegions) const;

  // The sums and extremes. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) if a sum exceeds int64 or a walk
  // kMaxWalk; CANCELLED if `is_cancelled`, asked now and then, says so.
  absl::StatusOr<ReshardTotals> Totals(const std::function<bool()>& is_cancelled = nullptr) const;

 private:
  struct State;

  explicit ReshardPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RESHARD_PLAN_H_
