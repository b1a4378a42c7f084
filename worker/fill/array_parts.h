// The parts of a tile that this worker keeps or reads when a tile comes from another array.
#ifndef SHARDMESH_WORKER_FILL_ARRAY_PARTS_H_
#define SHARDMESH_WORKER_FILL_ARRAY_PARTS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "worker/service/tile_filler.h"

namespace shardmesh::worker {

// A region of the tile that another worker holds.
struct ReadPart {
  Tile region;
  std::vector<const FillSource*> holders;  // live workers, the plan's own choice first
  // The tile of the companion that has the region, if the holders are workers of the companion's
  // mesh. This worker may be among them.
  std::optional<Tile> second_tile = {};
};

// All parts of one tile. They cover the tile, each element once.
struct ArrayParts {
  // The tile of the source that this worker is to hold, and the region of it that the new tile
  // keeps. Both are set, or none.
  std::optional<Tile> own_tile;
  std::optional<Tile> kept;
  std::vector<ReadPart> read;
};

// Plans tiles by ReshardPlan. Remembers the last plan, because the arrays of a model have few
// layouts. `devices` outlives the planner and its results. Not thread-safe.
class ArrayPartPlanner {
 public:
  // A part lists at most this many holders.
  static constexpr size_t kMaxHolders = 8;

  explicit ArrayPartPlanner(const FillDevices* devices);

  // Returns the parts of the tile of `rank` of the array `to`, from the array `from`.
  // - INVALID_ARGUMENT (SHAPE_MISMATCH): element types or shapes differ. INVALID_SPEC: the source
  //   has partial sums. BAD_FIELD: the devices do not fit the meshes.
  // - UNAVAILABLE (WORKER_LOST): no live worker holds a region, of the array or of its companion.
  // - Errors of ReshardPlan.
  absl::StatusOr<ArrayParts> Plan(const ArrayDescriptor& from, const ArrayDescriptor& to,
                                  DeviceId rank);
  // Returns the live holders of a region of the source of the last Plan, other than the worker of
  // `rank`. For a kept region whose tile this worker does not have. Errors as Plan.
  absl::StatusOr<ReadPart> Elsewhere(const ArrayDescriptor& from, const Tile& region,
                                     DeviceId rank) const;

 private:
  absl::Status MakePlan(const ArrayDescriptor& from, const ArrayDescriptor& to);
  // The live workers that hold the region, except the worker with the number `except`. If there are
  // none, those of the companion.
  absl::StatusOr<ReadPart> PartOf(const ArrayDescriptor& from, const Tile& region,
                                  std::optional<DeviceId> first, int64_t except) const;

  const FillDevices* const devices_;
  // The worker of each rank of the source, and of the companion; null: none.
  std::vector<const FillSource*> live_;
  std::vector<const FillSource*> second_;
  // The arrays of plan_, by their layouts.
  std::optional<ArrayDescriptor> from_;
  std::optional<ArrayDescriptor> to_;
  std::optional<ReshardPlan> plan_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_ARRAY_PARTS_H_
