// Selects arrays, and reports the missing tiles of degraded arrays.
#include "server/state/array_selection.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The retry delay of errors about an array in repair is the time that the repair takes, within
// these limits.
constexpr absl::Duration kRepairRetryDelay = absl::Seconds(1);
constexpr absl::Duration kMaxRepairRetryDelay = absl::Seconds(30);

// Returns whether the worker of the rank is expected back with its tile. A worker that keeps its
// tiles in memory is expected back only after a start of the coordinator. In that case the worker
// did not stop, and still has its tiles. The array's durability does not matter here: it says how
// durable the array's least durable tile is. `mesh` may be null.
bool ComesBack(const MeshRanks* mesh, const Recovery& recovery, int64_t rank) {
  return mesh != nullptr && !mesh->identities.empty() &&
         recovery.ComesBack(mesh->identities[static_cast<size_t>(rank)]);
}

// Whether the array has a companion with the tiles of all these ranks.
bool HasSecondReplica(const SelectedArray& selected, const std::vector<int64_t>& ranks) {
  if (selected.companion == nullptr) return false;
  const std::vector<int64_t>& lacking = selected.companion->missing_ranks;
  return std::none_of(ranks.begin(), ranks.end(), [&lacking](int64_t rank) {
    return std::binary_search(lacking.begin(), lacking.end(), rank);
  });
}

// Returns whether a rank is among both; both rise.
bool ShareRank(const std::vector<int64_t>& some, const std::vector<int64_t>& others) {
  return std::any_of(some.begin(), some.end(), [&others](int64_t rank) {
    return std::binary_search(others.begin(), others.end(), rank);
  });
}

// Says in a few words when missing tiles are back, or what brings them back. `has_copy`: the
// array's companion has them. `is_attached`: a worker of their ranks is attached and lacks its
// tile.
std::string AdviceOnMissing(const Array& array, const std::optional<ArrayRepair>& repair,
                            bool has_copy, bool is_attached, absl::Time now) {
  if (repair.has_value() && repair->tiles > 0) {
    ArrayRepair running = *repair;
    running.failure.clear();
    return StrCat(running.ToString(now), ": try again when it has ended");
  }
  if (has_copy) {
    return StrCat(
        "the second replica has these tiles: gets, saves, and reshards onto a mesh whose "
        "workers are all there read them; ",
        is_attached ? "`shardmesh ops ls --kind repair` shows whether they are copied back"
                    : "for steps, start their workers, give the ranks to others with `shardmesh "
                      "admin worker replace`, or resize the mesh to fewer workers");
  }
  if (is_attached) {
    return "load or compute the array again, or restore the tiles if `shardmesh admin quarantine "
           "list` shows them";
  }
  return array.durability == Durability::kDisk
             ? "start their workers again: the tiles are on their disks"
             : "load or compute the array again: the tiles were in memory, and are back only if "
               "their workers still run and attach again";
}

}  // namespace

absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry,
                                     const ArrayReference& reference) {
  SelectedArray selected;
  std::string array_id = reference.array_id;
  for (int attempt = 1;; ++attempt) {
    if (!reference.name.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(selected.name,
                                 registry.FindName(reference.name, reference.version));
      array_id = selected.name.array_id;
    }
    absl::StatusOr<ArrayPtr> array = registry.FindArray(array_id);
    if (array.ok()) {
      selected.array = *std::move(array);
      break;
    }
    // The name may have moved to another array since it was found.
    if (reference.name.empty() || attempt == kMaxSelections) return array.status();
  }
  if (selected.array->state == ArrayState::kStaging) {
    return WithReason(absl::NotFoundError(StrCat("array ", array_id, " is not committed yet")),
                      Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
  }
  selected.companion = CompanionOf(registry, *selected.array);
  if (reference.name.empty() && selected.array->state == ArrayState::kDegraded) {
    selected.label = registry.LabelOf(array_id);
  }
  return selected;
}

absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry, const ArrayReference& reference,
                                     const Recovery& recovery) {
  if (reference.name.empty()) {
    // Asked first: the array may be found meanwhile.
    const absl::Status awaited = CheckNotAwaited(registry, reference.array_id, recovery);
    absl::StatusOr<SelectedArray> selected = Select(registry, reference);
    if (!selected.ok() && !awaited.ok()) return awaited;
    return selected;
  }
  return Select(registry, reference);
}

absl::Status CheckNotAwaited(const ArrayRegistry& registry, const std::string& array_id,
                             const Recovery& recovery) {
  if (!recovery.AwaitsAny() || !registry.IsAwaited(array_id)) return absl::OkStatus();
  return Recovering(StrCat("array ", array_id,
                           " has no name, and not all workers have reported their tiles since the "
                           "coordinator's start; they are expected ",
                           recovery.WaitAdvice()));
}

ArrayPtr CompanionOf(const ArrayRegistry& registry, const Array& array) {
  return array.state == ArrayState::kDegraded
             ? registry.FindTwin(array.definition.descriptor.array_id)
             : nullptr;
}

absl::Status Degraded(const SelectedArray& selected, const std::vector<int64_t>& missing,
                      const MembershipView& membership, const Recovery& recovery,
                      bool awaits_repair) {
  const Array& array = *selected.array;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const MeshRanks* const mesh = membership.FindMesh(descriptor.mesh_id);
  const bool has_ranks = mesh != nullptr && !mesh->identities.empty();
  constexpr size_t kMostNamed = 3;  // the facts have all of them
  const std::string ranks =
      StrJoinFirst(kMostNamed, missing, ", ", [&](std::string* out, int64_t rank) {
        StrAppend(out, has_ranks ? membership.DescribeRank(*mesh, rank) : StrCat("rank ", rank));
      });
  std::vector<std::string> identities;
  bool is_attached = false;  // a live worker lacks the tile of its rank
  for (const int64_t rank : missing) {
    if (!has_ranks) break;
    identities.push_back(mesh->identities[static_cast<size_t>(rank)]);
    is_attached = is_attached || membership.IsAlive(identities.back());
  }
  const std::string name = selected.name.version != 0
                               ? StrCat("tensor \"", selected.name.name, "\"")
                           : !selected.label.empty() ? selected.label
                                                     : StrCat("array ", descriptor.array_id);
  const bool comes_back = std::all_of(missing.begin(), missing.end(), [&](int64_t rank) {
    return ComesBack(mesh, recovery, rank);
  });
  if (comes_back) {
    return Recovering(
        StrCat(name, " waits for the tiles of ", ranks, ", expected back ", recovery.WaitAdvice()),
        {{fact::kIdentity, StrJoin(identities, ",")}});
  }
  std::optional<ArrayRepair> repair = recovery.RepairOf(descriptor.array_id);
  if (repair.has_value() && repair->is_due && !ShareRank(repair->ranks, missing)) repair.reset();
  const std::string lacks =
      StrCat(name, " lacks ", missing.size(), " of its ", descriptor.mesh.size(),
             descriptor.mesh.size() == 1 ? " tile; " : " tiles; ");
  if (repair.has_value() && repair->tiles > 0 && (repair->is_due || awaits_repair) &&
      std::includes(repair->ranks.begin(), repair->ranks.end(), missing.begin(), missing.end()) &&
      std::all_of(identities.begin(), identities.end(),
                  [&](const auto& identity) { return membership.IsAlive(identity); })) {
    repair->failure.clear();  // of other tiles
    return Recovering(
        StrCat(lacks, repair->ToString(recovery.now()), ": try again; missing: ", ranks),
        {{fact::kRank, StrJoin(missing, ",")}, {fact::kIdentity, StrJoin(identities, ",")}});
  }
  // The message begins with what is missing and with the advice: a terminal shows little more.
  std::string message = StrCat(lacks,
                               AdviceOnMissing(array, repair, HasSecondReplica(selected, missing),
                                               is_attached, recovery.now()),
                               "; missing: ", ranks);
  if (repair.has_value() && !repair->failure.empty()) {
    ArrayRepair failed = *repair;
    failed.tiles = 0;
    StrAppend(&message, "; ", failed.ToString(recovery.now()));
  }
  absl::Status degraded =
      WithReason(absl::FailedPreconditionError(message), Reason::kArrayDegraded,
                 {{fact::kArray, descriptor.array_id},
                  {fact::kName, selected.name.version != 0 ? selected.name.name : std::string()},
                  {fact::kRank, StrJoin(missing, ",")},
                  {fact::kIdentity, StrJoin(identities, ",")}});
  if (!repair.has_value() || repair->tiles == 0) return degraded;
  return WithRetryDelay(std::move(degraded),
                        std::clamp(repair->time_left.value_or(kRepairRetryDelay), kRepairRetryDelay,
                                   kMaxRepairRetryDelay));
}

absl::Status CheckNotState(const Array& array) {
  if (!array.definition.is_state) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "array ", array.definition.descriptor.array_id,
          " is state that steps update; copy it to another array with a program, and use that")),
      Reason::kNotAvailable, {{fact::kField, "array"}});
}

absl::Status CheckSlice(const Tile& slice, const ArrayDescriptor& array) {
  const Tile whole = Tile::Whole(array.shape);
  bool fits = slice.ranges.size() == whole.ranges.size();
  for (size_t dim = 0; fits && dim < whole.ranges.size(); ++dim) {
    const IndexRange& range = slice.ranges[dim];
    const int64_t end = whole.ranges[dim].stop;
    // A dimension without indexes has only the empty range.
    fits = range.start >= 0 && range.stop <= end &&
           (range.start < range.stop || (range.start == range.stop && end == 0));
  }
  if (fits) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kBadTile,
      StrCat("the slice ", slice.ToString(), " is empty or not within ", whole.ToString(),
             ", the indexes of the array; give a range of at least one index for each dimension"),
      {{fact::kArray, array.array_id},
       {fact::kHave, slice.ToString()},
       {fact::kNeed, whole.ToString()}});
}

absl::StatusOr<std::vector<OwnedTile>> FindHolders(const SelectedArray& selected, const Tile& part,
                                                   const MembershipView& membership,
                                                   const Recovery& recovery, bool awaits_repair) {
  const Array& array = *selected.array;
  const std::vector<int64_t>& missing = array.missing_ranks;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.definition.descriptor.Tiling());
  std::vector<OwnedTile> tiles = tiling.OwnersOf(part);
  const MeshRanks* const mesh = membership.FindMesh(array.definition.descriptor.mesh_id);
  std::vector<int64_t> needed;  // ranks of the tiles without a holder
  for (OwnedTile& tile : tiles) {
    std::vector<DeviceId> owners = tile.devices;
    std::erase_if(tile.devices, [&](DeviceId device) {
      return std::binary_search(missing.begin(), missing.end(), device);
    });
    if (!tile.devices.empty()) continue;
    // If the workers of some replicas of the tile come back, wait only for these workers: the call
    // needs only one replica of the tile.
    const auto away = std::stable_partition(owners.begin(), owners.end(), [&](DeviceId rank) {
      return ComesBack(mesh, recovery, rank);
    });
    if (away != owners.begin()) owners.erase(away, owners.end());
    needed.insert(needed.end(), owners.begin(), owners.end());
  }
  if (!needed.empty()) {
    std::sort(needed.begin(), needed.end());
    return Degraded(selected, needed, membership, recovery, awaits_repair);
  }
  return tiles;
}

absl::StatusOr<std::vector<HeldTile>> FindHoldersInBoth(const SelectedArray& selected,
                                                        const Tile& part,
                                                        const MembershipView& membership,
                                                        const Recovery& recovery) {
  const std::vector<int64_t>& missing = selected.array->missing_ranks;
  SelectedArray both = selected;
  if (selected.companion != nullptr) {
    // Rank by rank, both arrays have the same tiles.
    const std::vector<int64_t>& lacking = selected.companion->missing_ranks;
    Array merged = *selected.array;
    std::erase_if(merged.missing_ranks, [&lacking](int64_t rank) {
      return !std::binary_search(lacking.begin(), lacking.end(), rank);
    });
    both.array = std::make_shared<const Array>(std::move(merged));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<OwnedTile> tiles,
                             FindHolders(both, part, membership, recovery));
  std::vector<HeldTile> held;
  held.reserve(tiles.size());
  for (OwnedTile& tile : tiles) {
    const auto first_missing =
        std::stable_partition(tile.devices.begin(), tile.devices.end(), [&missing](DeviceId rank) {
          return !std::binary_search(missing.begin(), missing.end(), rank);
        });
    const bool is_here = first_missing != tile.devices.begin();
    if (is_here) tile.devices.erase(first_missing, tile.devices.end());
    held.push_back(
        {.tile = std::move(tile), .array = is_here ? selected.array : selected.companion});
  }
  return held;
}

}  // namespace shardmesh::server
