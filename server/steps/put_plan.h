// Plans a put: its arrays, their layouts on the mesh, and whether the workers have room.
#ifndef SHARDMESH_SERVER_STEPS_PUT_PLAN_H_
#define SHARDMESH_SERVER_STEPS_PUT_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/clock.h"
#include "rpc/caller.h"
#include "rpc/codec/definition.h"
#include "server/resolve/tree_resolver.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "server/state/session.h"
#include "server/steps/begun_put.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/transfers.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::server {

// The inputs for planning a put. All of them outlive the plan.
struct PutPlanParts {
  rpc::Clock* clock = nullptr;
  const DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  const SessionTable* sessions = nullptr;
  Transfers* transfers = nullptr;
};

// The fields that apply to all tensors of a put.
struct PutHeader {
  std::string request_id = {};
  std::string session_id = {};
  std::string mesh_id = "default";  // the current version of this mesh
  bool strict = false;              // the first correction is an error
  bool hold = false;                // the put ends with the call that began it
  bool validate_only = false;       // Begin checks, and begins nothing
  std::optional<Mode> mode = {};    // of tensors with axes; nullopt: training
  Compatibility compatibility = Compatibility::kDefault;
};

// A tensor of a put.
struct PutTensor {
  std::string name = {};                         // empty: none; the session then pins the array
  std::optional<int64_t> expected_version = {};  // of the name; see NameMove
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  std::vector<CutPoints> cut_points = {};
  // At most one. If there is none, the rules choose the layout.
  std::optional<PartitionSpec> spec = {};
  std::optional<std::vector<AxisValue>> axes = {};  // logical, one a dimension
  std::string preset = {};                          // its name; it has axes and a mode
};

// A put as its client describes it:
//   TakeHeader, TakeTensor for each tensor, Begin
// After an error the plan is of no use. For one thread at a time.
class PutPlan {
 public:
  // The rules of these definitions for tensors without a spec; nullopt: none. Errors name fields of
  // the rule set.
  using RuleSource = std::function<absl::StatusOr<std::optional<rpc::RuleSetDefinition>>(
      const Definitions& definitions)>;

  // The profile for tensors with axes or a preset. Errors name fields of the profile.
  using ProfileSource = std::function<absl::StatusOr<PartitionAxis>(const Definitions&)>;

  explicit PutPlan(const PutPlanParts& parts) : parts_(parts) {}

  // INVALID_ARGUMENT (BAD_FIELD): the mesh is named at a version. Also the errors of
  // SessionTable::Check, of MeshEndpoints::CheckReady and of the rules; NOT_FOUND: no such mesh.
  absl::Status TakeHeader(PutHeader header, const rpc::Caller& caller,
                          const RuleSource& rule_source, const ProfileSource& profile_source);

  bool has_header() const { return resolver_ != nullptr; }
  const PutHeader& header() const { return header_; }

  // INVALID_ARGUMENT: a name came twice, or there is neither a layout nor a name for the rules;
  // also the errors of FindPreset, ResolveSpec, TreeResolver::Add, Correct and Tiling::Create. With
  // `strict` the first correction is an error. A spec of a tensor with cut points is not corrected:
  // it must fit.
  absl::Status TakeTensor(PutTensor tensor);

  // Begins the transfer. The plan has no tensors afterwards. With `validate_only` it begins none
  // and changes nothing: the result has no transfer id and no time.
  //   INVALID_ARGUMENT (BAD_FIELD)           there are no tensors.
  //   FAILED_PRECONDITION (MESH_INCOMPLETE), with a retry delay: the mesh changed since TakeHeader.
  //   RESOURCE_EXHAUSTED (MEMORY_LIMIT)      a worker has no room for its tiles; names the rank.
  //   as Transfers::Begin                    such as for a name that is taken.
  absl::StatusOr<BegunPutPtr> Begin();

 private:
  absl::Status MeshChanged() const;
  // Gives the array its spec: the tensor's own, or the rules'.
  absl::Status Place(PutTensor tensor, ArrayDefinition* definition);
  // The spec that the tensor's axes or preset resolve to, uncorrected.
  absl::StatusOr<PartitionSpec> Resolve(const PutTensor& tensor, const Shape& shape) const;
  absl::Status PlaceBySpec(PartitionSpec spec, ArrayDefinition* definition);
  absl::Status PlaceByRules(const std::string& name, ArrayDefinition* definition);
  // The most bytes that the put's tiles take on one rank. The largest int64 if the sum
  // overflows.
  absl::StatusOr<int64_t> BytesPerRank() const;
  // A put that cannot fit is refused before any of its bytes are sent.
  absl::Status CheckMemory(const std::vector<RankEndpoint>& endpoints) const;

  const PutPlanParts parts_;
  PutHeader header_;
  Revision mesh_revision_ = 0;
  Mesh mesh_;
  PartitionAxis profile_;
  std::unique_ptr<TreeResolver> resolver_;  // null: no header was received
  absl::flat_hash_set<std::string> names_;
  std::vector<PutItem> items_;
  std::vector<std::vector<Correction>> corrections_;  // by item
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_PLAN_H_
