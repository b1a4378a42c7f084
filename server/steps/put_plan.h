// Plans a put (an upload of arrays): its arrays, their layouts on the mesh, and whether the workers
// have room for their tiles.
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
#include "sharding/rules/rule_set_definition.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::server {

// The objects that planning a put uses. All of them outlive the plan.
struct PutPlanParts {
  Clock* clock = nullptr;
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
  std::string mesh_id = "default";  // the mesh's current version is used
  bool strict = false;              // the first correction of a spec is an error
  bool hold = false;                // the transfer ends with the call that began it
  bool validate_only = false;       // Begin only checks the put
  std::optional<Mode> mode = {};    // for tensors with logical axes; nullopt: training
  Compatibility compatibility = Compatibility::kDefault;
};

// A tensor of a put.
struct PutTensor {
  // Empty: the array gets no name, and the session pins the array.
  std::string name = {};
  std::optional<int64_t> expected_version = {};  // expected version of the name; see NameMove
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  std::vector<CutPoints> cut_points = {};
  // At most one of `spec`, `axes` and `preset` is set. If none is set, the rules choose the layout.
  std::optional<PartitionSpec> spec = {};
  std::optional<std::vector<AxisValue>> axes = {};  // one logical axis for each dimension
  // Name of a preset, which has logical axes and a mode.
  std::string preset = {};
};

// Collects a put as its client describes it. Calls, in this order:
//   TakeHeader, TakeTensor for each tensor, Begin
// After an error the plan must not be used. For one thread at a time.
class PutPlan {
 public:
  // Returns the rules of these definitions for tensors without a layout; nullopt: there are no
  // rules. Errors name fields of the rule set.
  using RuleSource = std::function<absl::StatusOr<std::optional<RuleSetDefinition>>(
      const Definitions& definitions)>;

  // Returns the profile that resolves logical axes and presets. Errors name fields of the profile.
  using ProfileSource = std::function<absl::StatusOr<PartitionAxis>(const Definitions&)>;

  explicit PutPlan(const PutPlanParts& parts) : parts_(parts) {}

  // Checks the header, and looks up the mesh and the rules. INVALID_ARGUMENT (BAD_FIELD): the mesh
  // is named with a version. NOT_FOUND: no such mesh. Further errors: those of SessionTable::Check,
  // of MeshEndpoints::CheckReady, and of `rule_source` and `profile_source`.
  absl::Status TakeHeader(PutHeader header, const rpc::Caller& caller,
                          const RuleSource& rule_source, const ProfileSource& profile_source);

  bool has_header() const { return resolver_ != nullptr; }
  const PutHeader& header() const { return header_; }

  // Adds a tensor and chooses its layout. INVALID_ARGUMENT: the name occurs twice, or the tensor
  // has neither a layout nor a name for the rules. Further errors: those of FindPreset,
  // ResolveSpec, TreeResolver::Add, Correct and Tiling::Create. With `strict` the first correction
  // is an error. The spec of a tensor with cut points must fit, because it is not corrected.
  absl::Status TakeTensor(PutTensor tensor);

  // Begins the transfer. The plan has no tensors afterwards. With `validate_only` Begin starts no
  // transfer and changes nothing: the result has no transfer id and no expire_time.
  //   INVALID_ARGUMENT (BAD_FIELD)           there are no tensors.
  //   FAILED_PRECONDITION (MESH_INCOMPLETE), with a retry delay: the mesh changed since TakeHeader.
  //   RESOURCE_EXHAUSTED (MEMORY_LIMIT)      a worker has no room for its tiles; names the rank.
  //   the errors of Transfers::Begin         such as for a name that is taken.
  absl::StatusOr<BegunPutPtr> Begin();

 private:
  absl::Status MeshChanged() const;
  // Gives the array its spec: from the tensor's own layout, or else from the rules.
  absl::Status Place(PutTensor tensor, ArrayDefinition* definition);
  // Returns the uncorrected spec that the tensor's axes or preset resolve to.
  absl::StatusOr<PartitionSpec> Resolve(const PutTensor& tensor, const Shape& shape) const;
  absl::Status PlaceBySpec(PartitionSpec spec, ArrayDefinition* definition);
  absl::Status PlaceByRules(const std::string& name, ArrayDefinition* definition);
  // Returns the largest number of bytes that the put's tiles take on any rank. If the sum
  // overflows, returns the largest int64.
  absl::StatusOr<int64_t> BytesPerRank() const;
  // Refuses a put that does not fit into the workers' memory, before the client sends any bytes.
  absl::Status CheckMemory(const std::vector<RankEndpoint>& endpoints) const;

  const PutPlanParts parts_;
  PutHeader header_;
  Revision mesh_revision_ = 0;
  Mesh mesh_;
  PartitionAxis profile_;
  std::unique_ptr<TreeResolver> resolver_;  // null: no header has come
  absl::flat_hash_set<std::string> names_;
  std::vector<PutItem> items_;
  std::vector<std::vector<Correction>> corrections_;  // by item
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_PLAN_H_
