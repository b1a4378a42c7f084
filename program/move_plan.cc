// Checks and costs of moves, from the totals of reshard plans.
#include "program/move_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh {
namespace {

// Returns whether no part of `to` begins or ends within a part of `from`.
bool CutsNoPart(const Tiling& from, const Tiling& to, int64_t dim) {
  int64_t to_part = 0;
  for (int64_t part = 0; part < from.PartCount(dim); ++part) {
    const IndexRange range = from.PartRange(dim, part);
    if (range.start == range.stop) continue;
    while (to_part < to.PartCount(dim) && to.PartRange(dim, to_part).stop <= range.start) ++to_part;
    if (to_part == to.PartCount(dim) || to.PartRange(dim, to_part).stop < range.stop) return false;
  }
  return true;
}

// Returns whether each region is one run of its sender's tile: it has all of the tile along all
// dimensions after the first along which a tile has several elements.
bool SendsRuns(const ReshardPlan& plan) {
  const Shape largest = plan.from().ShardShape();
  bool is_first = true;
  for (int64_t dim = 0; dim < plan.from().rank(); ++dim) {
    if (largest[static_cast<size_t>(dim)] <= 1) continue;
    if (!std::exchange(is_first, false) && !CutsNoPart(plan.from(), plan.to(), dim)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ReshardPlan> MovePlan(const Mesh& mesh, const ValueDescriptor& from,
                                     const ValueDescriptor& to) {
  Axes before = LayoutOf(mesh, from).unreduced;
  Axes after = LayoutOf(mesh, to).unreduced;
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  if (from.shape != to.shape || from.dtype != to.dtype || before != after) {
    return InvalidArgument(
        Reason::kShapeMismatch, "input and output are not the same tensor",
        {{fact::kHave, ShapeToString(from.shape)}, {fact::kNeed, ShapeToString(to.shape)}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling source,
                             Tiling::Create(mesh, from.spec, from.shape, from.cut_points));
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling target,
                             Tiling::Create(mesh, to.spec, to.shape, to.cut_points));
  auto plan = ReshardPlan::Create(source, target);
  if (!plan.ok()) {
    return WithFactsOf(InvalidArgument(ReasonOf(plan.status()), ToStd(plan.status().message())),
                       plan.status());
  }
  return plan;
}

absl::StatusOr<int64_t> MoveBytes(const ReshardPlan& plan, Dtype dtype,
                                  const ReshardTotals& totals) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t packed_bytes, PackedSizeBytes(dtype, totals.need));
  if (BitsPerElement(dtype) % 8 == 0) return packed_bytes;
  int64_t bytes = 0;
  int64_t examined = 0;
  for (DeviceId device = 0; device < plan.to().mesh().size(); ++device) {
    const auto regions = plan.RegionsOf(device, kMaxSubByteRegions);
    examined += regions.ok() ? 1 + std::ssize(*regions) : 0;
    if (!regions.ok() || examined > kMaxSubByteRegions) return packed_bytes;
    for (const FetchRegion& region : *regions) AddTo(bytes, BytesOf(region.elements, dtype));
  }
  return bytes;
}

bool MovesNothing(const ReshardPlan& plan) {
  return plan.pattern() == ReshardPattern::kNoop || plan.pattern() == ReshardPattern::kSlice;
}

Axes MoveAxes(const ReshardPlan& plan) {
  Axes moved;
  for (const ReshardStep& step : plan.steps()) {
    if (step.pattern == ReshardPattern::kSlice) continue;
    moved.insert(moved.end(), step.axes.begin(), step.axes.end());
  }
  Axes axes;
  for (const MeshAxis& axis : plan.from().mesh().axes()) {
    if (axis.size > 1 && (moved.empty() || Contains(moved, axis.name))) axes.push_back(axis.name);
  }
  return axes;
}

CollectiveCost CostOfMove(const ReshardPlan& plan, Dtype dtype) {
  const absl::StatusOr<ReshardTotals> totals = plan.Totals();
  CollectiveCost cost = {.rounds = 1};
  if (totals.ok()) {
    const int64_t received_bytes = BytesOf(totals->max_need, dtype);
    cost.sent_bytes = BytesOf(totals->max_sent.value_or(totals->max_need), dtype);
    cost.way_bytes = std::max(received_bytes, cost.sent_bytes);
    cost.messages = totals->receivers == 0 ? 0 : 1 + (totals->links - 1) / totals->receivers;
  } else {
    // The sums are beyond 64 bits, or too many to add up: assume that each device receives all of a
    // new tile.
    int64_t elements = 1;
    for (const int64_t extent : plan.to().ShardShape()) elements = ProductOf(elements, extent);
    cost.sent_bytes = BytesOf(elements, dtype);
    cost.way_bytes = cost.sent_bytes;
    cost.messages = plan.from().DistinctTileCount();
  }
  cost.crowd = cost.messages;
  cost.shared_way_bytes = cost.way_bytes;
  return cost;
}

int64_t MovePieceBytes(int64_t devices) {
  constexpr int64_t kMinPieceBytes = int64_t{16} << 10;
  constexpr int64_t kMaxPieceBytes = int64_t{1} << 20;
  // Part of the protocol between workers, which may be of different builds.
  constexpr int64_t kRoundBytes = int64_t{32} << 20;
  return std::clamp(kRoundBytes / devices, kMinPieceBytes, kMaxPieceBytes);
}

int64_t MoveWindowBytes(int64_t devices) {
  constexpr int64_t kWindowBytes = int64_t{16} << 20;
  // The copies of one round must fit, or the ranks could wait for one another.
  return std::max(kWindowBytes, ProductOf(devices, MovePieceBytes(devices)));
}

int64_t MovesAtOnce(int64_t devices, int64_t memory_bytes) {
  return std::max<int64_t>(1, memory_bytes / MoveWindowBytes(devices));
}

int64_t MoveCopiesBytes(const ReshardPlan& plan, Dtype dtype, const ReshardTotals& totals) {
  const bool may_share_bytes = BitsPerElement(dtype) % 8 != 0;
  if (totals.need == 0 || (!may_share_bytes && SendsRuns(plan))) return 0;
  int64_t bytes = BytesOf(totals.max_sent.value_or(totals.need), dtype);
  // The padding of each region.
  if (may_share_bytes) AddTo(bytes, plan.to().mesh().size());
  return std::min(bytes, MoveWindowBytes(plan.from().mesh().size()));
}

}  // namespace shardmesh
