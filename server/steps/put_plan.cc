// Resolves, corrects and counts the tensors of a put, and begins its transfer.
#include "server/steps/put_plan.h"

#include <limits>
#include <utility>
#include <variant>

#include "process/random_bytes.h"
#include "rpc/codec/status.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/presets.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {

absl::Status PutPlan::TakeHeader(PutHeader header, const rpc::Caller& caller,
                                 const RuleSource& rule_source,
                                 const ProfileSource& profile_source) {
  SHARDMESH_RETURN_IF_ERROR(parts_.sessions->Check(header.session_id, caller));
  const std::string& mesh_id = header.mesh_id;
  if (NamesVersion(mesh_id)) {
    return rpc::BadField("header.mesh", StrCat(PythonRepr(mesh_id),
                                               " names a version; arrays lie on a mesh as it is "
                                               "now, write ",
                                               mesh_id.substr(0, mesh_id.find('@'))));
  }
  const std::shared_ptr<const Definitions> state = parts_.definition_store->shared_state();
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition, state->Find(DefinitionKind::kMesh, mesh_id));
  mesh_ = std::get<MeshDefinition>(definition->value).mesh;
  mesh_revision_ = definition->revision;
  SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(mesh_id));

  TreeQuestion question;
  question.mesh = mesh_;
  question.strict = header.strict;
  question.compatibility = header.compatibility;
  auto rules = rule_source(*state);
  if (!rules.ok()) {
    return rpc::WithField(rules.status(), "header.rule_set");
  }
  question.rules = *std::move(rules);
  auto profile = profile_source(*state);
  if (!profile.ok()) {
    return rpc::WithField(profile.status(), "header.profile");
  }
  profile_ = *std::move(profile);
  SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
  header_ = std::move(header);
  return absl::OkStatus();
}

absl::Status PutPlan::TakeTensor(PutTensor tensor) {
  if (!tensor.name.empty() && !names_.insert(tensor.name).second) {
    return rpc::BadField("name", "is listed twice");
  }
  PutItem item;
  item.name = tensor.name;
  item.expected_version = tensor.expected_version;
  ArrayDescriptor& array = item.definition.descriptor;
  array.array_id = RandomId();
  array.dtype = tensor.dtype;
  array.shape = std::move(tensor.shape);
  array.mesh_id = header_.mesh_id;
  array.mesh_revision = mesh_revision_;
  array.mesh = mesh_;
  array.cut_points = std::move(tensor.cut_points);
  SHARDMESH_RETURN_IF_ERROR(array.SizeBytes().status());
  SHARDMESH_RETURN_IF_ERROR(Place(std::move(tensor), &item.definition));
  items_.push_back(std::move(item));
  return absl::OkStatus();
}

absl::Status PutPlan::Place(PutTensor tensor, ArrayDefinition* definition) {
  if (tensor.spec.has_value()) {
    return PlaceBySpec(*std::move(tensor.spec), definition);
  }
  if (tensor.axes.has_value() || !tensor.preset.empty()) {
    absl::StatusOr<PartitionSpec> spec = Resolve(tensor, definition->descriptor.shape);
    if (!spec.ok()) {
      return rpc::WithField(spec.status(), tensor.axes.has_value() ? "axes" : "preset");
    }
    return PlaceBySpec(*std::move(spec), definition);
  }
  if (tensor.name.empty()) {
    return rpc::BadField("spec", "is not set, and a tensor without a name matches no rule");
  }
  return PlaceByRules(tensor.name, definition);
}

absl::StatusOr<PartitionSpec> PutPlan::Resolve(const PutTensor& tensor, const Shape& shape) const {
  LogicalQuestion question;
  question.shape = absl::MakeConstSpan(shape);
  question.compatibility = header_.compatibility;
  if (tensor.axes.has_value()) {
    question.axes = absl::MakeConstSpan(*tensor.axes);
    question.mode = header_.mode.value_or(RuntimeMode::kTrain);
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(const Preset* const preset, FindPreset(tensor.preset));
    question.dynamic_axes = &preset->dynamic_axes;
  }
  return ResolveSpec(profile_, question);
}

absl::Status PutPlan::PlaceBySpec(PartitionSpec spec, ArrayDefinition* definition) {
  ArrayDescriptor* const array = &definition->descriptor;
  if (!array->cut_points.empty()) {
    // The spec must fit as it is: correction supports only equal parts, and this array has cut
    // points.
    array->spec = std::move(spec);
    corrections_.emplace_back();
    return array->Tiling().status();
  }
  SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected, Correct(spec, array->shape, mesh_));
  if (header_.strict && !corrected.corrections.empty()) {
    return FirstCorrection(spec, array->shape, mesh_, corrected);
  }
  if (!corrected.corrections.empty()) {
    definition->requested_spec = std::move(spec);
  }
  array->spec = std::move(corrected.effective);
  corrections_.push_back(std::move(corrected.corrections));
  return absl::OkStatus();
}

absl::Status PutPlan::PlaceByRules(const std::string& name, ArrayDefinition* definition) {
  ArrayDescriptor* const array = &definition->descriptor;
  const TreeTensor named{.name = name, .shape = array->shape, .dtype = array->dtype};
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreePlacement> placements, resolver_->Add({named}));
  const TreeSpec& spec = resolver_->specs()[placements.front().spec_index];
  if (!spec.corrections.empty()) {
    definition->requested_spec = spec.requested;
  }
  array->spec = spec.effective;
  corrections_.push_back(spec.corrections);
  return absl::OkStatus();
}

absl::StatusOr<BegunPutPtr> PutPlan::Begin() {
  if (items_.empty()) {
    return rpc::BadField("tensors", "is empty; a put needs at least one tensor");
  }
  const std::string& mesh_id = header_.mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<RankEndpoint> endpoints,
                             parts_.endpoints->Endpoints(mesh_id));
  if (static_cast<int64_t>(endpoints.size()) != mesh_.size()) {
    SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(mesh_id));
    return MeshChanged();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto mesh, parts_.definition_store->shared_state()->Find(
                                                  DefinitionKind::kMesh, mesh_id));
  if (mesh->revision != mesh_revision_) {
    return MeshChanged();
  }
  SHARDMESH_RETURN_IF_ERROR(CheckMemory(endpoints));
  std::vector<std::string> identities;
  for (const RankEndpoint& endpoint : endpoints) {
    identities.push_back(endpoint.identity);
  }
  auto put = std::make_shared<BegunPut>();
  put->session_id = header_.session_id;
  put->devices = std::move(endpoints);
  put->items = std::move(items_);
  put->corrections = std::move(corrections_);
  if (header_.validate_only) {
    SHARDMESH_RETURN_IF_ERROR(parts_.transfers->Check(header_.session_id, put->items));
    return put;
  }
  // The pointer to the items keeps all of `put` alive as long as the transfer, because a repeated
  // request needs `put`.
  SHARDMESH_ASSIGN_OR_RETURN(
      put->transfer_id,
      parts_.transfers->Begin(header_.session_id, mesh_id, identities,
                              std::shared_ptr<const std::vector<PutItem>>(put, &put->items)));
  put->expire_time = parts_.clock->Now() + Transfers::kTimeout;
  return put;
}

absl::Status PutPlan::MeshChanged() const {
  return WithRetryDelay(
      WithReason(absl::FailedPreconditionError(
                     StrCat("the mesh \"", header_.mesh_id, "\" changed meanwhile; put again")),
                 Reason::kMeshIncomplete, {{fact::kMesh, header_.mesh_id}}),
      absl::Milliseconds(100));
}

absl::StatusOr<int64_t> PutPlan::BytesPerRank() const {
  int64_t sum_bytes = 0;
  for (const PutItem& item : items_) {
    const ArrayDescriptor& descriptor = item.definition.descriptor;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tiling.ShardShape()));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(descriptor.dtype, elements));
    if (__builtin_add_overflow(sum_bytes, bytes, &sum_bytes)) {
      sum_bytes = std::numeric_limits<int64_t>::max();
    }
  }
  return sum_bytes;
}

absl::Status PutPlan::CheckMemory(const std::vector<RankEndpoint>& endpoints) const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t need_bytes, BytesPerRank());
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  for (const RankEndpoint& endpoint : endpoints) {
    const WorkerStatus* worker = view->FindWorker(endpoint.identity);
    const int64_t have_bytes = worker->info.capacity_bytes - worker->used_bytes();
    if (need_bytes <= have_bytes) {
      continue;
    }
    const Transfers::Live live = parts_.transfers->LivePuts();
    const std::string others =
        live.puts == 0 ? std::string("release arrays,")
                       : StrCat("wait for ", live.puts, live.puts == 1 ? " put" : " puts",
                                " under way, which stage about ", live.bytes_per_rank,
                                " bytes on each rank, release arrays,");
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("rank ", endpoint.rank, " (worker \"", endpoint.identity, "\") has ", have_bytes,
                   " of ", worker->info.capacity_bytes, " bytes left, and the put needs ",
                   need_bytes, " there; ", others, " or start workers with more --memory")),
        Reason::kMemoryLimit,
        {{fact::kHave, have_bytes},
         {fact::kNeed, need_bytes},
         {fact::kRank, endpoint.rank},
         {fact::kIdentity, endpoint.identity}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
