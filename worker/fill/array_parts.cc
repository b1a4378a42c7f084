// Plans with meshes whose device numbers are those of the workers.
#include "worker/fill/array_parts.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// The mesh with the workers' numbers as the numbers of its devices.
absl::StatusOr<Mesh> Renumber(const Mesh& mesh, const std::vector<int64_t>& ids,
                              std::string_view field) {
  if (static_cast<int64_t>(ids.size()) != mesh.size()) {
    return rpc::BadField(field, StrCat("has ", ids.size(), " numbers; mesh ", mesh.ToString(),
                                       " has ", mesh.size(), " devices"));
  }
  return Mesh::Create({mesh.axes().begin(), mesh.axes().end()},
                      {.device_count = std::nullopt, .global_ids = ids});
}

// The source of each of `count` ranks; null: none.
std::vector<const FillSource*> ByRank(const std::vector<FillSource>& sources, size_t count) {
  std::vector<const FillSource*> by_rank(count, nullptr);
  for (const FillSource& source : sources) {
    if (source.rank >= 0 && source.rank < static_cast<DeviceId>(count)) {
      by_rank[static_cast<size_t>(source.rank)] = &source;
    }
  }
  return by_rank;
}

bool HasLayout(const std::optional<ArrayDescriptor>& known, const ArrayDescriptor& array) {
  return known.has_value() && known->shape == array.shape && known->spec == array.spec &&
         known->cut_points == array.cut_points && known->mesh == array.mesh;
}

}  // namespace

ArrayPartPlanner::ArrayPartPlanner(const FillDevices* devices)
    : devices_(devices),
      live_(ByRank(devices->sources, devices->source_ids.size())),
      second_(ByRank(devices->second_sources, devices->source_ids.size())) {}

absl::Status ArrayPartPlanner::MakePlan(const ArrayDescriptor& from, const ArrayDescriptor& to) {
  if (plan_.has_value() && HasLayout(from_, from) && HasLayout(to_, to)) {
    return absl::OkStatus();
  }
  plan_.reset();
  if (!from.spec.unreduced().empty() || !to.spec.unreduced().empty()) {
    return WithReason(absl::InvalidArgumentError(StrCat(
                          "array ", from.array_id, " holds partial sums (", from.spec.ToString(),
                          "), which no worker can add while it copies; reduce the array first")),
                      Reason::kInvalidSpec, {{fact::kValue, from.spec.ToString()}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh from_mesh,
                             Renumber(from.mesh, devices_->source_ids, "devices.source_ids"));
  SHARDMESH_ASSIGN_OR_RETURN(
      const Mesh to_mesh, Renumber(to.mesh, devices_->destination_ids, "devices.destination_ids"));
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling from_tiling,
                             Tiling::Create(from_mesh, from.spec, from.shape, from.cut_points));
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling to_tiling,
                             Tiling::Create(to_mesh, to.spec, to.shape, to.cut_points));
  SHARDMESH_ASSIGN_OR_RETURN(plan_, ReshardPlan::Create(from_tiling, to_tiling));
  from_ = from;
  to_ = to;
  return absl::OkStatus();
}

absl::StatusOr<ArrayParts> ArrayPartPlanner::Plan(const ArrayDescriptor& from,
                                                  const ArrayDescriptor& to, DeviceId rank) {
  if (from.dtype != to.dtype) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("array ", from.array_id, " has elements of type ", DtypeName(from.dtype), ", array ",
               to.array_id, " of type ", DtypeName(to.dtype)),
        {{fact::kHave, DtypeName(from.dtype)}, {fact::kNeed, DtypeName(to.dtype)}});
  }
  SHARDMESH_RETURN_IF_ERROR(MakePlan(from, to));
  const int64_t own_id = devices_->destination_ids[static_cast<size_t>(rank)];
  ArrayParts parts;
  if (const std::optional<DeviceId> own = plan_->SourceOf(rank); own.has_value()) {
    const Tile own_tile = plan_->from().TileOf(*own);
    std::optional<Tile> kept = Intersect(own_tile, plan_->to().TileOf(rank));
    if (kept.has_value()) {
      parts.own_tile = own_tile;
      parts.kept = std::move(kept);
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<FetchRegion> regions, plan_->RegionsOf(rank));
  parts.read.reserve(regions.size());
  for (const FetchRegion& region : regions) {
    SHARDMESH_ASSIGN_OR_RETURN(ReadPart part, PartOf(from, region.tile, region.source, own_id));
    parts.read.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<ReadPart> ArrayPartPlanner::Elsewhere(const ArrayDescriptor& from,
                                                     const Tile& region, DeviceId rank) const {
  return PartOf(from, region, std::nullopt, devices_->destination_ids[static_cast<size_t>(rank)]);
}

absl::StatusOr<ReadPart> ArrayPartPlanner::PartOf(const ArrayDescriptor& from, const Tile& region,
                                                  std::optional<DeviceId> first,
                                                  int64_t except) const {
  ReadPart part{.region = region, .holders = {}, .second_tile = {}};
  const auto add = [&](DeviceId holder) {
    const auto index = static_cast<size_t>(holder);
    if (live_[index] != nullptr && devices_->source_ids[index] != except &&
        part.holders.size() < kMaxHolders) {
      part.holders.push_back(live_[index]);
    }
  };
  if (first.has_value()) add(*first);
  // The region lies in one tile of the source, so all its holders hold all of it.
  const std::vector<OwnedTile> owners = plan_->from().OwnersOf(region);
  const std::vector<DeviceId> none;
  const std::vector<DeviceId>& holders = owners.empty() ? none : owners[0].devices;
  // Begin after the first holder, so that the readers of one region turn to different holders.
  const auto begin = first.has_value() ? std::upper_bound(holders.begin(), holders.end(), *first)
                                       : holders.begin();
  const auto add_other = [&](DeviceId holder) {
    if (holder != first) add(holder);
  };
  std::for_each(begin, holders.end(), add_other);
  std::for_each(holders.begin(), begin, add_other);
  if (part.holders.empty()) {
    const auto add_second = [&](DeviceId holder) {
      const FillSource* const source = second_[static_cast<size_t>(holder)];
      if (source != nullptr && part.holders.size() < kMaxHolders) part.holders.push_back(source);
    };
    std::for_each(begin, holders.end(), add_second);
    std::for_each(holders.begin(), begin, add_second);
    if (!part.holders.empty()) part.second_tile = plan_->from().TileOf(holders.front());
  }
  if (part.holders.empty()) {
    return WithReason(
        absl::UnavailableError(StrCat("no live worker holds ", region.ToString(), " of array ",
                                      from.array_id, "; bring its workers back")),
        Reason::kWorkerLost, {{fact::kRank, StrJoin(holders, ",")}});
  }
  return part;
}

}  // namespace shardmesh::worker
