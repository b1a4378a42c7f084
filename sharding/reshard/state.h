// The state of a ReshardPlan. Internal to ReshardPlan.
#ifndef SHARDMESH_SHARDING_RESHARD_STATE_H_
#define SHARDMESH_SHARDING_RESHARD_STATE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/reshard/layout.h"
#include "sharding/reshard/plan.h"
#include "sharding/tile.h"

namespace shardmesh {

struct ReshardPlan::State {
  using Digit = reshard_internal::Digit;
  using Side = reshard_internal::Side;

  State(const Tiling& from_tiling, const Tiling& to_tiling) : from(from_tiling), to(to_tiling) {}

  Tiling from;
  Tiling to;
  Side src;
  Side dst;
  bool empty = false;  // the tensor has no elements

  // The positions from 0 to `shared` - 1 are the same devices in both meshes. `boundaries` splits
  // these positions into digits (CommonBoundaries). If `boundaries` is empty, the plan must match
  // devices one by one.
  int64_t shared = 0;
  std::vector<int64_t> boundaries;
  bool same_mesh = false;

  // These members determine which replica of a source tile serves a destination. Along the axes in
  // `own`, the replica has the destination's coordinate. Along the axes in `turns`, the replicas
  // serve the destinations in turn, by the destination's number among all destinations with the
  // same new part. The digits in `places` form that number.
  std::vector<Digit> own;
  std::vector<Digit> turns;
  int64_t turn_count = 1;
  std::vector<Digit> places;
  int64_t place_count = 1;

  ReshardPattern pattern = ReshardPattern::kGeneral;
  std::vector<ReshardStep> steps;

  size_t dims() const { return src.dimensions.size(); }

  std::optional<DeviceId> SourceOf(DeviceId destination) const {
    return src.mesh.DeviceOfGlobalId(dst.mesh.GlobalIdOf(destination));
  }

  // The parts of one destination device, and the values derived from them. Lists have one element
  // per dimension.
  struct View {
    absl::InlinedVector<int64_t, 8> dst_part;
    absl::InlinedVector<int64_t, 8> src_part;  // empty if the source mesh lacks the device
    // The first and the last source part that overlap dst_part. Unspecified if `size` is 0.
    absl::InlinedVector<std::pair<int64_t, int64_t>, 8> cells;
    int64_t size = 1;  // 0 if the device's new tile is empty
    int64_t kept = 0;
    int64_t cell_count = 1;  // number of nonempty source tiles that overlap the new tile
  };
  View ViewOf(DeviceId destination) const;

  // Returns the device that sends destination `destination` its piece of a source tile.
  DeviceId HolderFor(DeviceId destination, absl::Span<const int64_t> dst_part,
                     absl::Span<const int64_t> cell) const;

  // Returns the ranges of the tensor's own dimensions, without the dimensions of partial sums.
  Tile TensorTile(absl::Span<const IndexRange> ranges) const {
    Tile tile;
    for (int64_t dim = 0; dim < from.rank(); ++dim) {
      tile.ranges.push_back(ranges[reshard_internal::Index(dim)]);
    }
    return tile;
  }

  // Calls visit(ranges, elements, source) for each region in row-major order. `ranges` has one
  // range for each dimension of a Side.
  template <typename Visit>
  void VisitRegions(DeviceId destination, const View& view, const Visit& visit) const;

  void ChooseTurns();
  void Classify();
  bool ClassifyByDigits();
  bool HasSameCuts() const;
  // Returns whether no device needs an element that it does not hold. Visits all devices.
  bool NothingMoves() const;
  // Returns the name of the source mesh's axis that has a digit of this stride.
  std::string SourceAxisAt(int64_t stride) const;

  absl::StatusOr<ReshardTotals> TotalsByDigits(const std::function<bool()>& is_cancelled) const;
  absl::StatusOr<ReshardTotals> TotalsByDevice(const std::function<bool()>& is_cancelled) const;
  // Sets mean_sent and, if it is not set yet, max_sent, for which it visits all links.
  absl::Status FinishSent(ReshardTotals& totals, const std::function<bool()>& is_cancelled) const;
};

template <typename Visit>
void ReshardPlan::State::VisitRegions(DeviceId destination, const View& view,
                                      const Visit& visit) const {
  if (view.size == 0) {
    return;
  }
  absl::InlinedVector<int64_t, 8> cell;
  absl::InlinedVector<IndexRange, 8> ranges(dims());
  for (const auto& [first, last] : view.cells) {
    cell.push_back(first);
  }
  // Visit all source tiles that the new tile overlaps, with the last dimension fastest.
  while (true) {
    const bool own_cell =
        view.kept > 0 && std::equal(cell.begin(), cell.end(), view.src_part.begin());
    if (!own_cell) {
      int64_t elements = 1;
      for (size_t dim = 0; dim < dims(); ++dim) {
        const IndexRange wanted = dst.dimensions[dim].cut.Range(view.dst_part[dim]);
        const IndexRange held = src.dimensions[dim].cut.Range(cell[dim]);
        ranges[dim] = {std::max(wanted.start, held.start), std::min(wanted.stop, held.stop)};
        elements *= ranges[dim].size();
      }
      visit(ranges, elements, HolderFor(destination, view.dst_part, cell));
    }
    size_t dim = dims();
    while (dim > 0 && cell[dim - 1] == view.cells[dim - 1].second) {
      --dim;
      cell[dim] = view.cells[dim].first;
    }
    if (dim == 0) {
      return;
    }
    cell[dim - 1] = src.dimensions[dim - 1].cut.FilledPartAfter(cell[dim - 1]);
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RESHARD_STATE_H_
