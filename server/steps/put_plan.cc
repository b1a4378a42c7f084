// Resolves, corrects and counts the tensors of a put, and begins its transfer.
#include "server/steps/put_plan.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "server/resolve/cut_weights.h"
#include "server/resolve/resolve_answers.h"
#include "server/steps/auxiliary_mesh.h"
#include "server/steps/committed_bytes.h"
#include "server/steps/fill_codec.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/presets.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh::server {
namespace {

// Returns the workers from which tiles are copied, each once; null if there are none.
IdentitiesPtr WorkersAmong(const ReuseSources& sources) {
  std::set<std::string> identities;
  for (const auto& [mesh_id, workers] : sources) {
    for (const RankEndpoint& worker : workers) identities.insert(worker.identity);
  }
  if (identities.empty()) return nullptr;
  return std::make_shared<const std::vector<std::string>>(identities.begin(), identities.end());
}

// Returns the size of the bytes from which workers make the array. Errors of ShapeInFile.
absl::StatusOr<int64_t> BytesInFile(const SourceConversion& conversion,
                                    const ArrayDescriptor& array) {
  SHARDMESH_ASSIGN_OR_RETURN(const Shape shape, ShapeInFile(conversion, array.dtype, array.shape));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  return WholeSizeBytes(conversion.dtype, elements);
}

// Checks that workers can read the tiles from a file: tiles of elements of less than a byte must
// begin and end at whole bytes of the tensor. FAILED_PRECONDITION (NOT_AVAILABLE) for a tile that
// does not; the client can send it.
absl::Status CheckTilesInFile(const ArrayDescriptor& array) {
  if (BitsPerElement(array.dtype) % 8 == 0) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  for (int64_t i = 0; i < tiling.DistinctTileCount(); ++i) {
    const Tile tile = tiling.ReplicaGroup(i).tile;
    if (TileRegion::Create(array.dtype, array.shape, tile).ok()) continue;
    return WithReason(absl::FailedPreconditionError(
                          StrCat("workers cannot read tile ", tile.ToString(), " of ",
                                 DtypeName(array.dtype), " ", ShapeToString(array.shape),
                                 " from a file, because it begins or ends within a byte; "
                                 "let the client read the file (--source client)")),
                      Reason::kNotAvailable, {{fact::kField, "source"}});
  }
  return absl::OkStatus();
}

bool IsConverted(const PutItem& item) {
  return item.is_read() && item.definition.source.conversion.has_value();
}

}  // namespace

absl::Status PutPlan::TakeHeader(PutHeader header, const rpc::Caller& caller,
                                 const RuleSource& rule_source,
                                 const ProfileSource& profile_source) {
  SHARDMESH_RETURN_IF_ERROR(parts_.sessions->Check(header.session_id, caller));
  const std::string& mesh_id = header.mesh_id;
  if (NamesVersion(mesh_id)) {
    return rpc::BadField(StrCat(header.path, "mesh"),
                         StrCat(PythonRepr(mesh_id),
                                " names a version; arrays lie on a mesh as it is "
                                "now, write ",
                                mesh_id.substr(0, mesh_id.find('@'))));
  }
  const std::shared_ptr<const Definitions> state = parts_.definition_store->shared_state();
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition, state->Find(DefinitionKind::kMesh, mesh_id));
  mesh_ = std::get<MeshDefinition>(definition->value).mesh;
  mesh_revision_ = definition->revision;
  if (const std::string_view owner = ReplicatedMeshOf(mesh_id); !owner.empty()) {
    return rpc::BadField(StrCat(header.path, "mesh"),
                         StrCat(PythonRepr(mesh_id),
                                " is the auxiliary mesh for second replicas of "
                                "arrays on \"",
                                owner, "\"; name that mesh"));
  }
  if (const std::string_view owner = ResizedMeshOf(mesh_id);
      !owner.empty() && !header.may_be_resize_mesh) {
    return rpc::BadField(StrCat(header.path, "mesh"),
                         StrCat(PythonRepr(mesh_id), " is the auxiliary mesh of a resize of \"",
                                owner, "\", and is deleted at its end; name that mesh"));
  }
  if (header.replicas > 1 && mesh_.size() < 2) {
    return rpc::BadField(
        StrCat(header.path, "replicas"),
        StrCat(
            "is ", header.replicas, ", and the mesh ", PythonRepr(mesh_id),
            " has one worker; a mesh of two workers or more keeps them: name one, or resize this "
            "one (`shardmesh mesh resize`), or put with 1"));
  }
  if (header.replicas > 1 && ReplicaMeshName(*definition).size() > kMaxMeshName) {
    return rpc::BadField(
        StrCat(header.path, "replicas"),
        StrCat("is ", header.replicas, ", and the mesh has a name of ", mesh_id.size(),
               " bytes; replicas need a mesh whose name has at "
               "most ",
               kMaxMeshName - (ReplicaMeshName(*definition).size() - mesh_id.size())));
  }
  SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(mesh_id));
  header_ = std::move(header);
  SHARDMESH_RETURN_IF_ERROR(ChooseWeights());

  TreeQuestion question;
  question.mesh = mesh_;
  question.strict = header_.strict;
  question.compatibility = header_.compatibility;
  question.uneven = header_.uneven;
  question.weights = weights_;
  auto rules = rule_source(*state);
  if (!rules.ok()) {
    return rpc::WithField(rules.status(), StrCat(header_.path, "rule_set"));
  }
  question.rules = *std::move(rules);
  auto profile = profile_source(*state);
  if (!profile.ok()) {
    return rpc::WithField(profile.status(), StrCat(header_.path, "profile"));
  }
  profile_ = *std::move(profile);
  SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
  return absl::OkStatus();
}

absl::Status PutPlan::ChooseWeights() {
  CutQuestion question{.rule = header_.uneven,
                       .weights = header_.weights,
                       .mesh = &mesh_,
                       .mesh_id = header_.mesh_id,
                       .path = header_.path};
  if (WeighsWorkers(question.rule)) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> endpoints,
                               parts_.endpoints->Endpoints(header_.mesh_id));
    // Only live workers have endpoints.
    if (static_cast<int64_t>(endpoints.size()) != mesh_.size()) return MeshChanged();
    for (const RankEndpoint& endpoint : endpoints) question.workers.push_back(endpoint.identity);
  }
  SHARDMESH_ASSIGN_OR_RETURN(weights_, server::ChooseWeights(question, *parts_.membership->view()));
  return absl::OkStatus();
}

absl::Status PutPlan::TakeTensor(PutTensor tensor, const std::function<bool()>& is_cancelled) {
  if (!tensor.name.empty() && !names_.insert(tensor.name).second) {
    return rpc::BadField("name", "is listed twice");
  }
  if (tensor.name.empty() && header_.replicas > 1) {
    return rpc::BadField("name",
                         StrCat("is empty, and ", header_.path, "replicas is ", header_.replicas,
                                "; only arrays with names are kept more than once"));
  }
  PutItem item;
  item.name = tensor.name;
  item.expected_version = tensor.expected_version;
  item.definition.replicas = header_.replicas;
  item.wants_one_replica = header_.replicas == 1;
  if (header_.replicas == 0) {
    const bool has_name = !tensor.name.empty() && parts_.registry != nullptr;
    item.definition.replicas = has_name ? parts_.registry->ReplicasOf(tensor.name) : 1;
  }
  ArrayDescriptor& array = item.definition.descriptor;
  array.array_id = RandomId();
  array.dtype = tensor.dtype;
  array.shape = std::move(tensor.shape);
  array.mesh_id = header_.mesh_id;
  array.mesh_revision = mesh_revision_;
  array.mesh = mesh_;
  array.cut_points = std::move(tensor.cut_points);
  SHARDMESH_RETURN_IF_ERROR(array.SizeBytes().status());
  if (tensor.source.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(TakeSource(*tensor.source, &item.definition));
  }
  if (tensor.origin.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(TakeOrigin(tensor, &item.definition));
  }
  item.is_zeros = tensor.is_zeros;
  std::optional<ContentClaim> claim = std::exchange(tensor.content, std::nullopt);
  SHARDMESH_RETURN_IF_ERROR(Place(std::move(tensor), is_cancelled, &item.definition));
  if (const auto axes = array.spec.unreduced(); !axes.empty()) {
    return rpc::BadField(
        "spec",
        StrCat("leaves ", StrJoin(axes, ", "),
               " unreduced, which makes each tile a partial sum; the tensor of a put is the "
               "value itself, and its sum over devices would be another one: put without "
               "unreduced axes, as steps make partial sums"));
  }
  if (item.is_read()) SHARDMESH_RETURN_IF_ERROR(CheckTilesInFile(array));
  items_.push_back(std::move(item));
  if (claim.has_value() && header_.reuse) {
    claims_.resize(items_.size());
    claims_.back() = std::move(claim);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SourceFile>> PutPlan::FileOf(const FileRange& range,
                                                                  std::string_view field) const {
  const auto files = static_cast<int64_t>(header_.files.size());
  if (range.file < files) return header_.files[static_cast<size_t>(range.file)];
  return rpc::BadField(StrCat(field, ".file"),
                       StrCat("is ", range.file, ", and header.files has ", files,
                              files == 1 ? " file" : " files", ", counted from 0"));
}

absl::Status PutPlan::TakeOrigin(const PutTensor& tensor, ArrayDefinition* definition) const {
  if (tensor.source.has_value()) {
    return rpc::BadField("origin",
                         "is set together with a source, which says where the workers read "
                         "the tensor; leave it out");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const SourceFile> file,
                             FileOf(*tensor.origin, "origin"));
  if (tensor.origin->offset_bytes > file->size_bytes) {
    return rpc::BadField("origin.offset_bytes", StrCat("is ", tensor.origin->offset_bytes,
                                                       "; the file ends at ", file->size_bytes));
  }
  definition->sent_from = {
      .file = file, .offset_bytes = tensor.origin->offset_bytes, .conversion = tensor.conversion};
  return absl::OkStatus();
}

absl::Status PutPlan::TakeSource(const FileRange& source, ArrayDefinition* definition) const {
  const std::string_view field =
      source.conversion.has_value() ? "converted_source.range" : "source";
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const SourceFile> file, FileOf(source, field));
  const ArrayDescriptor& array = definition->descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(int64_t need_bytes, array.SizeBytes());
  if (source.conversion.has_value()) {
    const absl::StatusOr<int64_t> in_file = BytesInFile(*source.conversion, array);
    if (!in_file.ok()) return rpc::WithField(in_file.status(), "converted_source.conversion");
    need_bytes = *in_file;
  }
  // No sum, which could overflow.
  if (source.offset_bytes > file->size_bytes ||
      need_bytes > file->size_bytes - source.offset_bytes) {
    return rpc::BadField(StrCat(field, ".offset_bytes"),
                         StrCat("is ", source.offset_bytes, ", and the tensor has ", need_bytes,
                                " bytes; the file ends at ", file->size_bytes));
  }
  definition->source = {.file = file, .offset_bytes = source.offset_bytes};
  if (source.conversion.has_value() && !IsIdentity(*source.conversion, array.dtype)) {
    definition->source.conversion = source.conversion;
  }
  return absl::OkStatus();
}

absl::Status PutPlan::Place(PutTensor tensor, const std::function<bool()>& is_cancelled,
                            ArrayDefinition* definition) {
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
  return PlaceByRules(tensor.name, is_cancelled, definition);
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
  SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                             Correct(spec, array->shape, mesh_, part_sizes()));
  if (header_.strict && !corrected.corrections.empty()) {
    return RefuseCorrections(spec, array->shape, mesh_, corrected);
  }
  if (!corrected.corrections.empty()) {
    definition->requested_spec = std::move(spec);
  }
  array->spec = std::move(corrected.effective);
  corrections_.push_back(std::move(corrected.corrections));
  return CutUnevenly(array);
}

absl::Status PutPlan::CutUnevenly(ArrayDescriptor* array) const {
  if (!array->cut_points.empty()) {
    return array->Tiling().status();
  }
  SHARDMESH_ASSIGN_OR_RETURN(array->cut_points,
                             CutByRule(header_.uneven, weights_, mesh_, array->spec, array->shape));
  return absl::OkStatus();
}

absl::Status PutPlan::PlaceByRules(const std::string& name,
                                   const std::function<bool()>& is_cancelled,
                                   ArrayDefinition* definition) {
  ArrayDescriptor* const array = &definition->descriptor;
  const TreeTensor named{.name = name, .shape = array->shape, .dtype = array->dtype};
  TreeResolver* resolver = resolver_.get();
  if (!array->cut_points.empty()) {
    // The tensor's own cut points take the place of the rule for uneven cuts.
    if (cut_resolver_ == nullptr) {
      TreeQuestion question = resolver_->question();
      question.uneven = UnevenCuts::kCeilChunks;
      SHARDMESH_ASSIGN_OR_RETURN(cut_resolver_, TreeResolver::Create(std::move(question)));
    }
    resolver = cut_resolver_.get();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreePlacement> placements,
                             resolver->Add({named}, is_cancelled));
  const TreeSpec& spec = resolver->specs()[placements.front().spec_index];
  if (!spec.corrections.empty()) {
    definition->requested_spec = spec.requested;
  }
  array->spec = spec.effective;
  corrections_.push_back(spec.corrections);
  return CutUnevenly(array);
}

absl::StatusOr<BegunPutPtr> PutPlan::Begin(const std::function<bool()>& is_cancelled) {
  if (items_.empty()) {
    return rpc::BadField("tensors", "is empty; a put needs at least one tensor");
  }
  const std::string& mesh_id = header_.mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<RankEndpoint> endpoints, WorkersOfMesh());
  SHARDMESH_ASSIGN_OR_RETURN(const auto mesh, parts_.definition_store->shared_state()->Find(
                                                  DefinitionKind::kMesh, mesh_id));
  if (mesh->revision != mesh_revision_) {
    return MeshChanged();
  }
  ArrayCache::Limits cache;
  SHARDMESH_RETURN_IF_ERROR(CheckMemory(endpoints, is_cancelled, &cache));
  SHARDMESH_ASSIGN_OR_RETURN(const ReuseSources sources,
                             FindReuseSources(items_, *parts_.endpoints));
  // A worker that attached again a moment ago gets no orders yet, and the put would wait for its
  // tiles until the deadline.
  const bool is_filled = std::any_of(items_.begin(), items_.end(), [](const PutItem& item) {
    return item.is_copied() || item.is_filled();
  });
  const bool is_converted = std::any_of(items_.begin(), items_.end(), IsConverted);
  for (size_t i = 0; is_filled && i < endpoints.size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(is_converted ? parts_.fill->CheckCanConvert(endpoints[i].identity)
                                           : parts_.fill->CheckCanFill(endpoints[i].identity));
  }
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
  if (parts_.cache != nullptr) parts_.cache->Limit(cache);
  // The pointer to the items keeps all of `put` alive as long as the transfer, because a repeated
  // request needs `put`.
  SHARDMESH_ASSIGN_OR_RETURN(
      put->transfer_id,
      parts_.transfers->Begin(header_.session_id, mesh_id, identities,
                              std::shared_ptr<const std::vector<PutItem>>(put, &put->items),
                              /*operation_id=*/"", WorkersAmong(sources)));
  parts_.transfers->SetCheckpoint(put->transfer_id, header_.checkpoint);
  put->expire_time = parts_.clock->Now() + Transfers::kTimeout;
  if (absl::Status ordered = OrderFill(*put, sources); !ordered.ok()) {
    parts_.transfers->Abort(put->transfer_id, ordered).IgnoreError();
    return ordered;
  }
  return put;
}

void PutPlan::FindReusable(const std::function<bool()>& is_cancelled) {
  PutReuse reuse = MakeReuse();
  for (PutItem& item : items_) reuse.Find(item);
  DropCopiesWithoutRoom(is_cancelled);
}

std::vector<ClaimedArray> PutPlan::TakeClaims() {
  std::vector<ClaimedArray> taken;
  PutReuse reuse = MakeReuse();
  for (size_t i = 0; i < claims_.size(); ++i) {
    if (!claims_[i].has_value() || items_[i].reused != nullptr) continue;
    std::optional<ClaimedArray> claimed = reuse.PinClaimed(*std::move(claims_[i]), i, items_[i]);
    if (claimed.has_value()) taken.push_back(*std::move(claimed));
  }
  claims_.clear();
  return taken;
}

void PutPlan::UseContent(std::vector<ClaimedArray> claims, const std::vector<bool>& is_true,
                         const std::function<bool()>& is_cancelled) {
  PutReuse reuse = MakeReuse();
  for (size_t i = 0; i < claims.size(); ++i) {
    if (!is_true[i]) continue;
    PutItem& item = items_[claims[i].item];
    const std::string key = item.definition.origin_key();
    reuse.Use(claims[i], item);
    // A copy has the origin of this put.
    if (item.is_kept() && !header_.validate_only) {
      parts_.registry->AddOrigin(item.definition.descriptor.array_id, key);
    }
  }
  claims.clear();  // a pin would take memory that may be free
  DropCopiesWithoutRoom(is_cancelled);
}

PutReuse PutPlan::MakeReuse() const {
  return PutReuse({.registry = parts_.registry,
                   .membership = parts_.membership,
                   .endpoints = parts_.endpoints,
                   .fill = parts_.fill,
                   .is_use = !header_.validate_only});
}

void PutPlan::DropCopiesWithoutRoom(const std::function<bool()>& is_cancelled) {
  // While an array is copied, a cached one cannot be evicted.
  const absl::StatusOr<std::vector<RankEndpoint>> endpoints = WorkersOfMesh();
  ArrayCache::Limits cache;
  if (!endpoints.ok() || CheckMemory(*endpoints, is_cancelled, &cache).ok()) return;
  for (PutItem& item : items_) {
    if (!item.is_copied() ||
        parts_.registry->HasName(item.reused->array().definition.descriptor.array_id)) {
      continue;
    }
    item.reused = nullptr;
    item.moved_bytes = 0;
    item.sent_ranks.clear();
  }
}

bool PutPlan::reads_files() const {
  return std::any_of(items_.begin(), items_.end(),
                     [](const PutItem& item) { return item.is_read(); });
}

absl::StatusOr<std::vector<RankEndpoint>> PutPlan::WorkersOfMesh() const {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<RankEndpoint> endpoints,
                             parts_.endpoints->Endpoints(header_.mesh_id));
  if (static_cast<int64_t>(endpoints.size()) != mesh_.size()) {
    SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(header_.mesh_id));
    return MeshChanged();
  }
  return endpoints;
}

absl::StatusOr<FileReaders> PutPlan::Readers() const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RankEndpoint> endpoints, WorkersOfMesh());
  FileReaders readers;
  absl::flat_hash_set<std::string_view> seen;
  for (const RankEndpoint& endpoint : endpoints) {
    if (seen.insert(endpoint.identity).second) readers.identities.push_back(endpoint.identity);
  }
  absl::flat_hash_set<const SourceFile*> known;
  for (const PutItem& item : items_) {
    if (!item.is_read()) continue;
    readers.convert = readers.convert || IsConverted(item);
    const std::shared_ptr<const SourceFile>& file = item.definition.source.file;
    if (known.insert(file.get()).second) readers.files.push_back(*file);
  }
  return readers;
}

absl::Status PutPlan::OrderFill(const BegunPut& put, const ReuseSources& sources) const {
  if (!sources.empty()) {
    SHARDMESH_RETURN_IF_ERROR(SendReuseFill({.transfer_id = put.transfer_id,
                                             .session_id = put.session_id,
                                             .term = parts_.term,
                                             .token_key = parts_.token_key,
                                             .expire_time = put.expire_time},
                                            put.items, put.devices, sources, parts_.fill));
  }
  if (std::none_of(put.items.begin(), put.items.end(),
                   [](const PutItem& item) { return item.is_filled(); })) {
    return absl::OkStatus();
  }
  SharedFill orders(put.transfer_id, parts_.term, /*devices=*/nullptr);
  for (const PutItem& item : put.items) {
    if (!item.is_filled()) continue;
    if (item.is_zeros) {
      orders.AddZeros(rpc::ArrayDescriptorBytes(item.definition.descriptor));
      continue;
    }
    const ArraySource& source = item.definition.source;
    orders.AddFromFile(rpc::ArrayDescriptorBytes(item.definition.descriptor), source.file.get(),
                       source.offset_bytes, source.conversion);
  }
  for (const RankEndpoint& device : put.devices) {
    SHARDMESH_RETURN_IF_ERROR(orders.SendTo(device.identity, device.rank, parts_.fill));
  }
  return absl::OkStatus();
}

absl::Status PutPlan::MeshChanged() const {
  return WithRetryDelay(
      WithReason(absl::FailedPreconditionError(
                     StrCat("the mesh \"", header_.mesh_id, "\" changed meanwhile; put again")),
                 Reason::kMeshIncomplete, {{fact::kMesh, header_.mesh_id}}),
      absl::Milliseconds(100));
}

absl::StatusOr<std::map<std::string, int64_t, std::less<>>> PutPlan::ReplicaBytes(
    const MembershipView& view, const std::vector<RankEndpoint>& endpoints) const {
  std::map<std::string, int64_t, std::less<>> by_worker;
  const bool is_wanted = std::any_of(items_.begin(), items_.end(),
                                     [](const PutItem& item) { return item.will_be_replicated(); });
  if (!is_wanted || endpoints.size() < 2) return by_worker;
  std::vector<std::string> identities;
  for (const RankEndpoint& endpoint : endpoints) identities.push_back(endpoint.identity);
  const std::vector<std::string> hosts = HostsOf(view, identities);
  std::vector<std::string> workers = ReplicaWorkers(identities, hosts);
  const std::shared_ptr<const Definitions> state = parts_.definition_store->shared_state();
  if (const auto mesh = state->Find(DefinitionKind::kMesh, header_.mesh_id); mesh.ok()) {
    const auto there = state->Find(DefinitionKind::kMesh, ReplicaMeshName(**mesh));
    if (there.ok() && AreDisplaced(identities, WorkersOf(**there))) workers = WorkersOf(**there);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const std::vector<int64_t> bytes, BytesByRank([&](const PutItem& item, const Tiling& tiling) {
        return item.will_be_replicated() && !IsReplicatedBySpec(tiling, hosts);
      }));
  for (size_t rank = 0; rank < workers.size(); ++rank) by_worker[workers[rank]] = bytes[rank];
  return by_worker;
}

absl::StatusOr<std::vector<int64_t>> PutPlan::BytesByRank(
    const std::function<bool(const PutItem&, const Tiling&)>& is_counted) const {
  const auto add = [](int64_t bytes, int64_t* sum) {
    if (__builtin_add_overflow(*sum, bytes, sum)) {
      *sum = std::numeric_limits<int64_t>::max();
    }
  };
  int64_t everywhere = 0;  // bytes of the arrays whose tiles all have one size
  std::vector<int64_t> by_rank(static_cast<size_t>(mesh_.size()), 0);
  for (const PutItem& item : items_) {
    if (item.is_kept() && !item.will_be_replicated()) continue;
    const ArrayDescriptor& descriptor = item.definition.descriptor;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
    if (!is_counted(item, tiling)) continue;
    if (tiling.has_equal_tiles()) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, descriptor.TileSizeBytes(tiling.TileOf(0)));
      add(bytes, &everywhere);
      continue;
    }
    for (DeviceId rank = 0; rank < mesh_.size(); ++rank) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes,
                                 descriptor.TileSizeBytes(tiling.TileOf(rank)));
      add(bytes, &by_rank[static_cast<size_t>(rank)]);
    }
  }
  for (int64_t& sum : by_rank) {
    add(everywhere, &sum);
  }
  return by_rank;
}

absl::Status PutPlan::CheckMemory(const std::vector<RankEndpoint>& endpoints,
                                  const std::function<bool()>& is_cancelled,
                                  ArrayCache::Limits* cache) const {
  SHARDMESH_ASSIGN_OR_RETURN(
      std::vector<int64_t> need_by_rank,
      BytesByRank([](const PutItem& item, const Tiling&) { return !item.is_kept(); }));
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  SHARDMESH_ASSIGN_OR_RETURN(const auto replica_bytes, ReplicaBytes(*view, endpoints));
  const auto of_replicas = [&](const RankEndpoint& endpoint) {
    const auto found = replica_bytes.find(endpoint.identity);
    return found == replica_bytes.end() ? 0 : found->second;
  };
  for (const RankEndpoint& endpoint : endpoints) {
    int64_t& need = need_by_rank[static_cast<size_t>(endpoint.rank)];
    need = AddCapped(need, of_replicas(endpoint));
  }
  const auto is_small = [&](const RankEndpoint& endpoint) {
    return FitsEasily(*view->FindWorker(endpoint.identity),
                      need_by_rank[static_cast<size_t>(endpoint.rank)]);
  };
  CommittedBytes committed(*view, *parts_.registry);
  if (!std::all_of(endpoints.begin(), endpoints.end(), is_small)) {
    SHARDMESH_RETURN_IF_ERROR(committed.AddAll(*parts_.registry, is_cancelled));
  }
  const Transfers::Live live = parts_.transfers->LivePuts();
  for (const RankEndpoint& endpoint : endpoints) {
    const WorkerStatus* worker = view->FindWorker(endpoint.identity);
    const int64_t need_bytes = need_by_rank[static_cast<size_t>(endpoint.rank)];
    const int64_t have_bytes = committed.LeftOn(endpoint.identity, *worker);
    const int64_t left_bytes = have_bytes - need_bytes;
    if (left_bytes >= 0) {
      // Bytes that other puts are still sending are not in use yet.
      const int64_t free_bytes = left_bytes - live.bytes_per_rank;
      int64_t& limit = cache->try_emplace(endpoint.identity, free_bytes).first->second;
      limit = std::min(limit, free_bytes);
      continue;
    }
    const std::string others =
        live.puts == 0 ? std::string("release arrays,")
                       : StrCat("wait for ", live.puts, live.puts == 1 ? " put" : " puts",
                                " under way, which stage about ", FormatBytes(live.bytes_per_rank),
                                " on each rank, release arrays,");
    const auto [have, need] = FormatBytesApart(have_bytes, need_bytes);
    return WithReason(
        absl::ResourceExhaustedError(StrCat(
            "rank ", endpoint.rank, " (worker \"", endpoint.identity, "\") has ", have, " of ",
            FormatBytes(worker->info.capacity_bytes), " left, and the put needs ", need, " there",
            of_replicas(endpoint) > 0
                ? StrCat(", ", FormatBytes(of_replicas(endpoint)), " of it for second replicas")
                : std::string(),
            "; ", others, " or start workers with more --memory")),
        Reason::kMemoryLimit,
        {{fact::kHave, have_bytes},
         {fact::kNeed, need_bytes},
         {fact::kRank, endpoint.rank},
         {fact::kIdentity, endpoint.identity}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
