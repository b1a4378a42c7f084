// Plans a resize of a mesh: which arrays move, to which layouts, on which workers, and whether the
// workers have room.
#ifndef SHARDMESH_SERVER_RESHARD_RESIZE_PLAN_H_
#define SHARDMESH_SERVER_RESHARD_RESIZE_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/caller.h"
#include "server/reshard/reshard_call.h"
#include "server/reshard/reshard_planning.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "sharding/mesh.h"
#include "sharding/uneven.h"

namespace shardmesh::server {

// A request to give a mesh another shape.
struct ResizeCall {
  std::string request_id = {};
  std::string session_id = {};
  std::string fingerprint = {};  // a digest of the request
  rpc::Caller caller = {};
  std::string mesh_id = {};
  std::vector<MeshAxis> axes = {};  // the new shape
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights
  bool validate_only = false;
};

// How arrays lie on a mesh of another shape.
struct ResizeLayouts {
  Mesh mesh = {};
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // of the mesh's devices, if `uneven` needs them
  bool is_old_shape = false;          // the mesh has the shape that the arrays go back to
};

// Returns the layout of the array on the mesh. The layout keeps all axes that the array's effective
// spec has, except those of partial sums (WithoutSums). INVALID_ARGUMENT: an axis is not in the
// mesh, or does not divide its dimension; or the cut points do not fit.
// On an old shape, only errors of CutByRule are refused: the array may have got axes or cut points
// that fit the new shape alone. The layout is then without them, and the requested spec keeps the
// axes.
absl::StatusOr<PlacedLayout> LayoutOn(const ResizeLayouts& layouts, const ArrayDefinition& resized);
// Returns the layout that the array has, without the axes of partial sums (WithoutSums).
PlacedLayout LayoutOf(const ArrayDefinition& array);

// The part of one worker of the new shape.
struct ResizeRank {
  std::string identity = {};
  int64_t moved_bytes = 0;  // received from other workers
  int64_t have_bytes = 0;   // left for tiles
  int64_t capacity_bytes = 0;
  int64_t need_bytes = 0;  // the most at one time, beyond those in use before
};

// An array that cannot move.
struct ResizeRefusal {
  std::string name = {};  // empty: it has none
  std::string array_id = {};
  absl::Status error = {};
};

// A planned resize. The arrays move from `definition` to the mesh `auxiliary_id`, unless they lie
// there already; the mesh changes, unless it has the shape; and the arrays move back. Partial sums
// are added up on their own mesh before they move (SumsOf).
struct PlannedResize {
  std::shared_ptr<const Definition> definition = {};  // of the mesh, before
  std::string auxiliary_id = {};
  bool has_auxiliary = false;             // the auxiliary mesh exists: a resize stopped midway
  bool has_shape = false;                 // the mesh has the shape already
  ResizeLayouts layouts = {};             // on the new shape
  std::vector<std::string> workers = {};  // of the new shape, by rank
  int64_t array_count = 0;
  int64_t move_count = 0;   // of arrays; most move twice, and partial sums are added up before
  int64_t moved_bytes = 0;  // bytes that workers receive from other workers
  int64_t total_bytes = 0;  // of all tiles that are made, replicas included
  // Arrays on disk that do not fit beside their new ones leave memory first, as in a reshard with
  // release_source (ReshardItem::unloads_source). The needs of the ranks allow for that.
  std::vector<ResizeRank> ranks = {};
  bool fits_on_disk = false;  // only if a rank is short: none would be if all arrays were on disk
  std::vector<ResizeRefusal> refusals = {};  // the first kMaxRefusals
  int64_t refusal_count = 0;

  bool has_nothing_to_do() const { return has_shape && !has_auxiliary; }
};

inline constexpr size_t kMaxRefusals = 1'000;

// Plans the call. Changes nothing, and asks no worker. Takes long with many arrays: call it on a
// thread of the background. Errors: those of ArrayService.ResizeMesh that are not about one array
// or about memory; CANCELLED: `is_cancelled`, which is polled, returned true.
absl::StatusOr<PlannedResize> PlanResize(const ReshardPlanParts& parts, const ResizeCall& call,
                                         const std::function<bool()>& is_cancelled);

// Returns the error of a plan with refused arrays, or with a worker that has too little memory
// (MEMORY_LIMIT).
absl::Status CheckResize(const PlannedResize& plan);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_RESIZE_PLAN_H_
