// Plans a put (an upload of arrays): its arrays, their layouts on the mesh, and whether the workers
// have room for their tiles.
#ifndef SHARDMESH_SERVER_STEPS_PUT_PLAN_H_
#define SHARDMESH_SERVER_STEPS_PUT_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
#include "server/steps/array_cache.h"
#include "server/steps/file_check.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/put_memory.h"
#include "server/steps/put_reuse.h"
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
#include "sharding/uneven.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"

namespace shardmesh::server {

// The objects that planning a put uses. All of them outlive the plan.
struct PutPlanParts {
  Clock* clock = nullptr;
  const DefinitionStore* definition_store = nullptr;
  const Membership* membership = nullptr;
  ArrayRegistry* registry = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  const SessionTable* sessions = nullptr;
  Transfers* transfers = nullptr;
  FillTransport* fill = nullptr;  // may be null if no put has sources
  ArrayCache* cache = nullptr;    // may be null if nothing is cached
  int64_t term = 0;               // of the coordinator, for the orders to fill tiles
  std::string token_key = {};     // see rpc/transfer_token.h; for puts that reuse arrays
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
  // Where the header's fields are in the request: a prefix of the fields that errors name.
  std::string path = "header.";
  // The files of the tensors' sources and origins.
  std::vector<std::shared_ptr<const SourceFile>> files = {};
  bool reuse = false;  // arrays that have the elements already are used
  UnevenCuts uneven = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights: one for each device
  std::string checkpoint = {};        // empty: the put is no load
  // The mesh may be the auxiliary mesh of a resize. For the moves of the resize itself, and for
  // arrays that stay on the mesh on which they lie.
  bool may_be_resize_mesh = false;
  // ArrayDefinition::replicas of the arrays. 0: each array gets that of the array that its name
  // points to; 1 for a new name.
  int64_t replicas = 0;
};

// A tensor of a put.
struct PutTensor {
  // Empty: the array gets no name, and the session pins the array.
  std::string name = {};
  std::optional<int64_t> expected_version = {};  // expected version of the name; see NameMove
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  std::vector<CutPoints> cut_points = {};  // if not empty, the header's rule does not apply
  // At most one of `spec`, `axes` and `preset` is set. If none is set, the rules choose the layout.
  std::optional<PartitionSpec> spec = {};
  std::optional<std::vector<AxisValue>> axes = {};  // one logical axis for each dimension
  // Name of a preset, which has logical axes and a mode.
  std::string preset = {};
  // The place in PutHeader::files from which the workers read the tensor. Nullopt: the client sends
  // the tensor.
  std::optional<FileRange> source = {};
  // The place from which the client makes the elements that it sends. Excludes `source`.
  std::optional<FileRange> origin = {};
  std::string conversion = {};  // see ArrayOrigin; only with `origin`
  std::optional<ContentClaim> content = {};
  bool is_zeros = false;  // all elements are zero; excludes `source`, `origin` and `content`
};

// Collects a put as its client describes it. Calls, in this order:
//   TakeHeader, TakeTensor for each tensor, FindReusable if may_reuse(), Begin
// If TakeClaims after FindReusable returns claims, a ContentCheck of them and UseContent follow. If
// the workers read tensors themselves (reads_files()), a FileCheck of Readers goes before Begin.
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
  // is named with a version, or is an auxiliary mesh (see may_be_resize_mesh); or replicas are
  // wanted on a mesh of one worker, or on one with a name that leaves no room for that of its
  // auxiliary mesh. NOT_FOUND: no such mesh. Further errors: those of SessionTable::Check, of
  // MeshEndpoints::CheckReady, of server::ChooseWeights, and of `rule_source` and `profile_source`.
  absl::Status TakeHeader(PutHeader header, const rpc::Caller& caller,
                          const RuleSource& rule_source, const ProfileSource& profile_source);

  bool has_header() const { return resolver_ != nullptr; }
  const PutHeader& header() const { return header_; }

  // Adds a tensor and chooses its layout. INVALID_ARGUMENT: the name occurs twice, or the tensor
  // has neither a layout nor a name for the rules. Further errors: those of FindPreset,
  // ResolveSpec, TreeResolver::Add, Correct, CutByRule and Tiling::Create. With `strict` the first
  // correction is an error. The spec of a tensor with cut points must fit, because it is not
  // corrected. INVALID_ARGUMENT (BAD_FIELD), also: the source names no file of the header or goes
  // beyond the end of its file, or a tensor has both a source and an origin. Errors of ShapeInFile
  // for a conversion that does not fit the tensor.
  // CANCELLED: `is_cancelled`, which may be null and which the search for a rule polls, returned
  // true.
  absl::Status TakeTensor(PutTensor tensor, const std::function<bool()>& is_cancelled = {});
  // Returns whether TakeTensor may be too slow for a gRPC reaction: a rule backtracks. Requires
  // has_header().
  bool SearchesLong() const { return resolver_->SearchesLong(); }

  // Whether arrays that have the elements of tensors already are to be looked for.
  bool may_reuse() const { return header_.reuse && parts_.registry != nullptr; }
  // Finds such arrays, and keeps them alive. Begin copies from them, or gives them their names. An
  // array without a name is not copied if its tiles and the copy do not fit into the memory. Can
  // take long: do not call it on a gRPC thread. `is_cancelled` is polled.
  void FindReusable(const std::function<bool()>& is_cancelled);
  // Returns the claims about content of the tensors for which FindReusable found no array. Can take
  // long. The plan has no claims afterwards.
  std::vector<ClaimedArray> TakeClaims();
  // Uses the arrays of TakeClaims whose claims are true, as FindReusable does. The registry then
  // also finds those that get a name by the origin of the tensor. `is_true`: by claim.
  void UseContent(std::vector<ClaimedArray> claims, const std::vector<bool>& is_true,
                  const std::function<bool()>& is_cancelled);

  // Whether the workers read tensors themselves.
  bool reads_files() const;
  // Returns the files that the workers read, and the workers that will read them, each once.
  // Errors: the first three of Begin.
  absl::StatusOr<FileReaders> Readers() const;

  // Begins the transfer. Can take long, because it may count all arrays: do not call it on a gRPC
  // thread. The plan has no tensors afterwards. With `validate_only` Begin starts no
  // transfer and changes nothing: the result has no transfer id and no expire_time. Also orders the
  // workers to fill the tiles of tensors that have sources, and of those that are copied.
  //   INVALID_ARGUMENT (BAD_FIELD)           there are no tensors.
  //   FAILED_PRECONDITION (MESH_INCOMPLETE), with a retry delay: the mesh changed since TakeHeader.
  //   RESOURCE_EXHAUSTED (MEMORY_LIMIT)      a worker has no room for its tiles; names the rank.
  //   the errors of FillTransport::CheckCanFill, if the workers read or copy tensors
  //   the errors of Transfers::Begin         such as for a name that is taken.
  //   CANCELLED                              `is_cancelled`, which is polled, returned true.
  absl::StatusOr<BegunPutPtr> Begin(const std::function<bool()>& is_cancelled = [] {
    return false;
  });

  // Returns the tensors so far as arrays, each with the corrections of its spec, for other ways to
  // make them than a put. The plan has no tensors afterwards, and can take more of them.
  struct Planned {
    std::vector<PutItem> items;
    std::vector<std::vector<Correction>> corrections;  // by item
  };
  Planned TakePlanned() {
    claims_.clear();
    return {std::exchange(items_, {}), std::exchange(corrections_, {})};
  }

 private:
  PutReuse MakeReuse() const;
  // Gives up copies of arrays without names if their tiles and the copies do not fit into the
  // memory.
  void DropCopiesWithoutRoom(const std::function<bool()>& is_cancelled);
  absl::Status MeshChanged() const;
  // Returns the workers of all ranks. Errors: those of Begin before MEMORY_LIMIT.
  absl::StatusOr<std::vector<RankEndpoint>> WorkersOfMesh() const;
  absl::Status TakeSource(const FileRange& source, ArrayDefinition* definition) const;
  absl::Status TakeOrigin(const PutTensor& tensor, ArrayDefinition* definition) const;
  // Returns the file of a source or an origin. INVALID_ARGUMENT (BAD_FIELD): there is none.
  absl::StatusOr<std::shared_ptr<const SourceFile>> FileOf(const FileRange& range,
                                                           std::string_view field) const;
  absl::Status OrderFill(const BegunPut& put, const ReuseSources& sources) const;
  // Gives the array its spec: from the tensor's own layout, or else from the rules.
  absl::Status Place(PutTensor tensor, const std::function<bool()>& is_cancelled,
                     ArrayDefinition* definition);
  // Returns the uncorrected spec that the tensor's axes or preset resolve to.
  absl::StatusOr<PartitionSpec> Resolve(const PutTensor& tensor, const Shape& shape) const;
  absl::Status PlaceBySpec(PartitionSpec spec, ArrayDefinition* definition);
  absl::Status PlaceByRules(const std::string& name, const std::function<bool()>& is_cancelled,
                            ArrayDefinition* definition);
  // Gives the array cut points by the header's rule.
  absl::Status CutUnevenly(ArrayDescriptor* array) const;
  // Sets `weights_` by the header's rule.
  absl::Status ChooseWeights();
  PartSizes part_sizes() const {
    return header_.uneven == UnevenCuts::kEqualOnly ? PartSizes::kEqual : PartSizes::kAny;
  }
  // Returns the bytes on each rank of the tiles of the arrays for which `is_counted` is true. It is
  // not asked about kept arrays that get no second replica: these are not counted. A sum that
  // overflows is the largest int64.
  absl::StatusOr<std::vector<int64_t>> BytesByRank(
      const std::function<bool(const PutItem&, const Tiling&)>& is_counted) const;
  // Returns the bytes of second replicas that each worker will get.
  absl::StatusOr<std::map<std::string, int64_t, std::less<>>> ReplicaBytes(
      const MembershipView& view, const std::vector<RankEndpoint>& endpoints) const;
  // Refuses a put that does not fit into the workers' memory, before the client sends any bytes.
  // Cached tiles may have to be evicted for it: sets `cache` to the bytes of them that may stay.
  absl::Status CheckMemory(const std::vector<RankEndpoint>& endpoints,
                           const std::function<bool()>& is_cancelled,
                           ArrayCache::Limits* cache) const;

  const PutPlanParts parts_;
  PutHeader header_;
  Revision mesh_revision_ = 0;
  Mesh mesh_;
  PartitionAxis profile_;
  std::vector<int64_t> weights_;            // one for each device, if the put is cut by weights
  std::unique_ptr<TreeResolver> resolver_;  // null: no header has come
  // For tensors with cut points of their own whose spec comes from rules; null: there are none yet.
  std::unique_ptr<TreeResolver> cut_resolver_;
  absl::flat_hash_set<std::string> names_;
  std::vector<PutItem> items_;
  std::vector<std::optional<ContentClaim>> claims_;   // by item; empty: there are none
  std::vector<std::vector<Correction>> corrections_;  // by item
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_PLAN_H_
