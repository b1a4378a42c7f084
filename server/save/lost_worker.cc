// Looks for the tiles of a lost worker in the registry.
#include "server/save/lost_worker.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "server/state/array_selection.h"
#include "sharding/tile.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The maximum number of tensors that the advice names.
constexpr size_t kMostNamedTensors = 3;

bool IsHeldBy(const TensorToSave& tensor, const std::string& identity) {
  return std::any_of(tensor.parts.begin(), tensor.parts.end(), [&identity](const HeldPart& part) {
    return std::find(part.identities.begin(), part.identities.end(), identity) !=
           part.identities.end();
  });
}

// Returns the array without the tiles of the worker's ranks.
ArrayPtr WithoutWorker(const Array& array, const std::string& identity,
                       const MembershipView& membership) {
  auto without = std::make_shared<Array>(array);
  const MeshRanks* const ranks = membership.FindMesh(array.definition.descriptor.mesh_id);
  if (ranks == nullptr) return without;
  std::vector<int64_t>& missing = without->missing_ranks;
  for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
    if (ranks->identities[rank] == identity) missing.push_back(static_cast<int64_t>(rank));
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return without;
}

// Whether other workers have all tiles of the tensor.
bool IsElsewhere(const TensorToSave& tensor, const std::string& identity,
                 const ArrayRegistry& registry, const MembershipView& membership,
                 const Recovery& recovery) {
  const std::string& array_id = tensor.array->definition.descriptor.array_id;
  const absl::StatusOr<ArrayPtr> array = registry.FindArray(array_id);
  const ArrayPtr companion = registry.FindTwin(array_id);
  SelectedArray selected{
      .array = WithoutWorker(array.ok() ? **array : *tensor.array, identity, membership),
      .name = {.name = tensor.name, .array_id = array_id, .version = 1},
      .companion =
          companion == nullptr ? nullptr : WithoutWorker(*companion, identity, membership)};
  return FindHoldersInBoth(selected, Tile::Whole(tensor.array->definition.descriptor.shape),
                           membership, recovery)
      .ok();
}

std::string TilesOf(size_t tensors) {
  return StrCat("the tiles of ", tensors, tensors == 1 ? " tensor" : " tensors");
}

}  // namespace

std::string AdviceOnLostWorker(const SavePlan& plan, std::string_view stripped,
                               const std::string& identity, const ArrayRegistry& registry,
                               const MembershipView& membership, const Recovery& recovery,
                               bool has_repairs) {
  std::vector<std::string> gone;
  std::vector<std::string> unread;  // in files from which nothing reads them
  size_t on_disk = 0;
  size_t in_files = 0;
  for (const TensorToSave& tensor : plan.tensors) {
    if (!IsHeldBy(tensor, identity) ||
        IsElsewhere(tensor, identity, registry, membership, recovery)) {
      continue;
    }
    const std::string& array_id = tensor.array->definition.descriptor.array_id;
    const absl::StatusOr<ArrayPtr> found = registry.FindArray(array_id);
    const Array& array = found.ok() ? **found : *tensor.array;
    const std::string name = StrCat("\"", stripped, tensor.name, "\"");
    if (array.durability == Durability::kDisk || recovery.ComesBack(identity)) {
      ++on_disk;
    } else if (array.definition.source.file != nullptr || array.checkpoint.file != nullptr) {
      in_files += has_repairs ? 1 : 0;
      if (!has_repairs) unread.push_back(name);
    } else {
      gone.push_back(name);
    }
  }
  std::vector<std::string> advice;
  if (!gone.empty()) {
    advice.push_back(
        StrCat("load or compute ", StrJoinFirst(kMostNamedTensors, gone, ", "),
               gone.size() == 1 ? " again, whose tiles were" : " again, of which tiles were",
               " only in its memory"));
  }
  if (!unread.empty()) {
    advice.push_back(StrCat("load ", StrJoinFirst(kMostNamedTensors, unread, ", "),
                            " again from the file or checkpoint: the coordinator runs with "
                            "--no-repair, and reads no lost tiles again"));
  }
  if (in_files > 0) {
    advice.push_back(StrCat("wait until ", TilesOf(in_files),
                            " are read again from a file or a checkpoint, which begins when a "
                            "worker serves its rank (`shardmesh ops ls --kind repair`)"));
  }
  if (on_disk > 0) {
    advice.push_back(StrCat("start it again: ", TilesOf(on_disk), " are on its disk"));
  }
  if (advice.empty()) return "save again: other workers have its tiles";
  return StrCat(StrJoin(advice, "; "), "; then save again");
}

}  // namespace shardmesh::server
