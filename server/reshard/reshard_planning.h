// Plans a reshard: which arrays move, to which layouts, how many bytes, and whether the workers
// have room.
#ifndef SHARDMESH_SERVER_RESHARD_RESHARD_PLANNING_H_
#define SHARDMESH_SERVER_RESHARD_RESHARD_PLANNING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "program/move_plan.h"
#include "server/reshard/reshard_call.h"
#include "server/state/array_registry.h"
#include "server/state/array_selection.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/put_plan.h"
#include "sharding/correction.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// The objects that planning uses. All of them outlive the call.
struct ReshardPlanParts {
  PutPlanParts put = {};
  const ArrayRegistry* registry = nullptr;
  const Recovery* recovery = nullptr;
  // The memory that the arrays of one call may take on a worker while they move, beyond their old
  // and new tiles: see ReshardsAtOnce and FillTiles.move_memory_bytes.
  int64_t move_memory_bytes = kMoveMemoryBytes;
};

// One array of a reshard.
struct ReshardItem {
  SelectedArray source = {};
  std::vector<NameEntry> aliases = {};           // further names that move to the result
  std::string name = {};                         // of the result; empty: none
  std::optional<int64_t> expected_version = {};  // of `name`
  ArrayDefinition target = {};                   // its array id belongs to no array yet
  std::vector<Correction> corrections = {};
  bool is_skipped = false;  // the array already lies as requested
  int64_t moved_bytes = 0;  // bytes that workers receive from other workers
  int64_t total_bytes = 0;  // of all tiles of the new array, replicas included
  // The most bytes of copies that a worker has to send while a step moves the array or makes
  // `sums`; 0 if no step does (MoveCopiesBytes).
  int64_t copies_bytes = 0;
  // Whether, with release_source, nothing holds the old array once this item has moved.
  bool frees_source = false;
  // Whether workers take the old array out of memory before they make the new one, because both do
  // not fit: they serve the old one from its files until it is released, and read it back if the
  // move fails. Only with release_source; see can_unload_source.
  bool unloads_source = false;
  // Whether, with release_source, at most pins hold the old array once this item has moved.
  bool takes_all_names = false;
  // The companion of the old array (ArrayRegistry::FindTwin); null: it has none.
  ArrayPtr source_companion = nullptr;
  // Set if the old array has partial sums and leaves its mesh: a step first makes an array of this
  // description on the old mesh, and the workers fetch the new tiles from it (SumsOf). The array of
  // the sums has no name, and is released when the item ends. Its id here belongs to the old array.
  std::optional<ArrayDescriptor> sums = {};
  int64_t summed_bytes = 0;  // the part of `moved_bytes` that the step receives

  // Whether the new array lies on the mesh of the old one.
  bool stays_on_mesh() const {
    return target.descriptor.mesh_id == source.array->definition.descriptor.mesh_id;
  }
  // Whether the old array may leave memory, as unloads_source says: it is on disk, and no name
  // keeps it for long. Readers may pin it: they read its files.
  bool can_unload_source() const {
    return !is_skipped && takes_all_names && !moves_as_step() && !sums.has_value() &&
           source.array->durability == Durability::kDisk &&
           (source_companion == nullptr || source_companion->durability == Durability::kDisk);
  }
  // Whether a step moves the array. Results of steps are in memory only, so a step does not move an
  // array on disk. A step needs all tiles. Exception: only a step adds up partial sums.
  bool moves_as_step() const {
    const Array& array = *source.array;
    const bool has_partial_sums = !array.definition.descriptor.spec.unreduced().empty();
    return stays_on_mesh() && (has_partial_sums || (array.durability == Durability::kMemory &&
                                                    array.state != ArrayState::kDegraded));
  }
};

// A planned reshard.
struct PlannedReshard {
  std::vector<ReshardItem> items = {};  // by name
  ReshardOutline outline = {};
  int64_t move_memory_bytes = kMoveMemoryBytes;  // as in ReshardPlanParts
};

// The maximum number of arrays of one call.
inline constexpr int64_t kMaxReshardedArrays = 40'000;

// The most arrays of a call that move at the same time.
inline constexpr size_t kReshardsAtOnce = 4;

// Returns how many arrays of a call move at the same time: one if each must leave its memory to the
// next, or if one has partial sums that are added up first. Otherwise as many that the copies that
// a worker makes to send all of them have at most `move_memory_bytes` (MovesAtOnce), at least one
// and at most kReshardsAtOnce.
size_t ReshardsAtOnce(const std::vector<ReshardItem>& items, bool release_source,
                      int64_t move_memory_bytes = kMoveMemoryBytes);

// Plans the call. Changes nothing. May take long: call it on a thread of the background.
// CANCELLED: `is_cancelled`, which is polled, returned true. The other errors are those of
// ArrayService.Reshard that do not come from the move itself, except MEMORY_LIMIT, and name the
// field and the array.
absl::StatusOr<PlannedReshard> PlanReshards(const ReshardPlanParts& parts, const ReshardCall& call,
                                            const std::function<bool()>& is_cancelled);

// RESOURCE_EXHAUSTED (MEMORY_LIMIT): workers have too little memory for the plan. The message names
// their ranks, each with what it has and needs (see TooLittleMemory), and says what would fit.
absl::Status CheckReshardMemory(const PlannedReshard& plan, const ReshardCall& call,
                                const Membership& membership);

// Returns a number for the worker of each rank; equal workers have equal numbers. Ranks of both
// meshes are numbered together: the numbers are the device ids of the meshes for ReshardPlan.
struct WorkerNumbers {
  std::vector<int64_t> sources = {};
  std::vector<int64_t> destinations = {};
};
WorkerNumbers NumberWorkers(const std::vector<std::string>& sources,
                            const std::vector<std::string>& destinations);
// Returns the array's tiling on its mesh, whose device ids are `numbers`.
absl::StatusOr<Tiling> OnWorkers(const ArrayDescriptor& descriptor,
                                 const std::vector<int64_t>& numbers);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_RESHARD_PLANNING_H_
