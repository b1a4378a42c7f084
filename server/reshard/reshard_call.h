// The request and the result of a reshard: a move of arrays to another layout.
#ifndef SHARDMESH_SERVER_RESHARD_RESHARD_CALL_H_
#define SHARDMESH_SERVER_RESHARD_RESHARD_CALL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/caller.h"
#include "server/state/array_registry.h"
#include "server/state/array_selection.h"
#include "server/state/definitions.h"
#include "server/steps/put_plan.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mode.h"
#include "sharding/rules/rule_set_definition.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "sharding/uneven.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// A layout that is known to fit its array and mesh.
struct PlacedLayout {
  PartitionSpec spec = {};
  std::optional<PartitionSpec> requested_spec = {};  // nullopt: it is `spec`
  std::vector<CutPoints> cut_points = {};            // empty: equal parts
};

// A request to move arrays.
struct ReshardCall {
  // Identifies the request within its session. A repeated request gets the answer of the first one.
  // Empty: the answer is not remembered.
  std::string request_id = {};
  std::string session_id = {};
  // A digest of the request. It detects a different request that reuses the id.
  std::string fingerprint = {};
  rpc::Caller caller = {};
  absl::Time deadline = absl::InfiniteFuture();

  // The array to move; nullopt: all arrays whose names begin with `prefix`.
  std::optional<ArrayReference> array = {};
  std::string prefix = {};

  // The mesh of the new arrays; empty: each array stays on its mesh.
  std::string mesh_id = {};
  // The new layout. At most one of `spec`, `has_rules`, `axes` and `preset` is set. If none is set,
  // each new array has the spec that was requested for the old array.
  std::optional<PartitionSpec> spec = {};
  bool has_rules = false;
  std::optional<std::vector<AxisValue>> axes = {};
  std::string preset = {};
  // Returns the cut points for an array of this shape; null: `uneven` decides.
  std::function<absl::StatusOr<std::vector<CutPoints>>(const Shape& shape)> cut_points = nullptr;
  // With kEqualOnly, an array keeps its cut points if the call has no layout.
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights: one for each device
  // As PutPlan::RuleSource. Polls `is_cancelled` and ends with CANCELLED once it returns true.
  std::function<absl::StatusOr<std::optional<RuleSetDefinition>>(
      const Definitions& definitions, const std::function<bool()>& is_cancelled)>
      rule_source = nullptr;
  PutPlan::ProfileSource profile_source = nullptr;
  std::optional<Mode> mode = {};
  Compatibility compatibility = Compatibility::kDefault;
  bool strict = false;  // the first correction of a spec is an error

  // The name of the result; empty: the name of the moved array. Only with `array`.
  std::string name = {};
  std::optional<int64_t> expected_version = {};  // expected version of that name; see NameMove
  bool release_source = false;                   // see ReshardRequest.release_source
  bool validate_only = false;                    // only plans and checks

  // These fields are for a resize of a mesh (resize_runner.h).
  // Not empty: the call moves all named arrays of this mesh, if any, at most kMaxReshardedArrays.
  // All names of an array move to its new array.
  std::string from_mesh = {};
  bool only_partial_sums = false;  // only with `from_mesh`: the other arrays stay as they are
  // Returns the layout of each new array; null: the fields above decide.
  std::function<absl::StatusOr<PlacedLayout>(const ArrayDefinition&)> layout_of = nullptr;
  // The operation that the call is a part of; empty: the call is an operation of its own.
  std::string operation_id = {};
};

// An array that moved, or that would move.
struct ReshardedArray {
  std::string name = {};  // empty: the session pins the new array
  int64_t name_version = 0;
  std::string source_array_id = {};
  ArrayDescriptor descriptor = {};  // of the new array; if `is_skipped`, of the old one
  std::vector<Correction> corrections = {};
  int64_t moved_bytes = 0;  // bytes that workers receive from other workers, by the plan
  // The part of `moved_bytes` that adds up partial sums on the old mesh, before the sums move to
  // another one; and the spec of the sums there. 0 and nullopt if nothing is added up first.
  int64_t summed_bytes = 0;
  std::optional<PartitionSpec> sums_spec = {};
  bool is_skipped = false;  // the array already lies as requested
};

// The memory of a worker that gets tiles.
struct ReshardMemoryNeed {
  std::string mesh_id = {};
  int64_t rank = 0;
  std::string identity = {};
  int64_t have_bytes = 0;      // left for tiles
  int64_t capacity_bytes = 0;  // the limit for all tiles of the worker
  // The most bytes needed at one time, beyond those in use before the call.
  int64_t need_bytes = 0;
};

// The figures of a whole call.
struct ReshardOutline {
  std::string operation_id = {};  // empty with `validate_only`
  int64_t array_count = 0;        // including skipped arrays
  int64_t total_bytes = 0;        // of all tiles of the new arrays, replicas included
  std::vector<ReshardMemoryNeed> memory = {};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_RESHARD_CALL_H_
