// Moves of arrays of the cluster to another layout.
#ifndef SHARDMESH_CLIENT_TYPES_RESHARD_H_
#define SHARDMESH_CLIENT_TYPES_RESHARD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/types/array.h"
#include "client/types/layout_questions.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mode.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::client {

struct ReshardOptions {
  // The name of the mesh of the new arrays; empty: each array stays on its own mesh.
  std::string mesh = {};
  // The new layout: set at most one of these four members. If none is set, each new array has the
  // spec that was requested for the old array. `axes` are logical axes, one per dimension.
  std::optional<PartitionSpec> spec = std::nullopt;
  RuleSetSelector rules = {};
  std::optional<std::vector<AxisValue>> axes = std::nullopt;
  std::string preset = {};
  // As in Tiling::Create; for each array. The last point of a dimension stands for the end of each
  // array's own dimension.
  std::vector<CutPoints> cut_points = {};
  // The rule that cuts the new arrays if there are no `cut_points`, as in PutOptions. With
  // kEqualOnly, an array keeps the cut points that it has if no layout is set.
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights: one for each device of the mesh
  // The profile and the mode with which `axes` and `preset` are resolved; see PutOptions.
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  Compatibility compatibility = Compatibility::kDefault;
  // Whether the call fails if a spec needs a correction. If false, the spec is corrected.
  bool strict = false;
  // The name of the result; empty: the name of the array moves to the new array. If the array was
  // selected by its id, the session then pins the new array. Must be empty for a tree.
  std::string name = {};
  // The state that the name of the result must have. Must be nullopt for a tree.
  Precondition precondition = std::nullopt;
  // Releases each old array as soon as its new array is committed. Pins of other sessions hold it
  // as long as the coordinator runs. If false, the session pins the old arrays until
  // ArrayClient::ReleaseArrays, or until its end.
  bool release_source = false;
  // Plans and checks, but moves nothing.
  bool validate_only = false;
  // The client calls this function after each group of arrays that has moved, with the bytes of the
  // tiles of all new arrays. May be null.
  ProgressCallback progress = nullptr;
  // The client calls this function with the id of the operation before anything moves, and again
  // for each retry. ClusterClient::CancelOperation accepts this id. May be null.
  std::function<void(const std::string& operation_id)> on_begun = nullptr;
};

// An array that moved, or that would move with `validate_only`.
struct ReshardedArray {
  std::string name;          // empty: the session pins the new array
  int64_t name_version = 0;  // 0 with `validate_only`
  std::string source_array_id;
  // The new array; if `is_skipped`, the old one. With `validate_only`, its id does not exist.
  ArrayDescriptor descriptor = {};
  std::vector<Correction> corrections = {};
  int64_t moved_bytes = 0;  // bytes that workers receive from other workers
  // The part of `moved_bytes` that adds up the partial sums of the old array on its own mesh,
  // before the sums move to another mesh; and the spec of the sums there. 0 and nullopt if nothing
  // is added up first.
  int64_t summed_bytes = 0;
  std::optional<PartitionSpec> sums_spec = {};
  bool is_skipped = false;  // the array already lies as requested
};

// The memory of a worker that gets tiles.
struct ReshardMemory {
  std::string mesh_id;
  int32_t rank = 0;
  std::string identity;
  int64_t have_bytes = 0;  // left for tiles
  int64_t need_bytes = 0;  // the most that is needed at one time
};

struct ReshardResult {
  std::string operation_id;            // empty with `validate_only`
  std::vector<ReshardedArray> arrays;  // in the order in which they moved
  std::vector<ReshardMemory> memory;   // by mesh and rank
  int64_t total_bytes = 0;             // of all tiles of the new arrays, including replicas
  int64_t revision = 0;                // of the store after the last move; 0 if nothing moved

  int64_t moved_bytes() const {
    int64_t sum = 0;
    for (const ReshardedArray& array : arrays) sum += array.moved_bytes;
    return sum;
  }
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_RESHARD_H_
