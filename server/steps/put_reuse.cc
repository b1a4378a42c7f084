// Compares origins and layouts, and encodes the orders to copy.
#include "server/steps/put_reuse.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/transfer_token.h"
#include "server/steps/fill_codec.h"
#include "sharding/reshard/plan.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

// Arrays of one origin that are compared. A model is seldom loaded in more layouts at a time.
constexpr int64_t kMaxCandidates = 8;

bool LieAlike(const ArrayDescriptor& a, const ArrayDescriptor& b) {
  return a.mesh_id == b.mesh_id && a.mesh_revision == b.mesh_revision && a.mesh == b.mesh &&
         a.spec == b.spec && a.cut_points == b.cut_points;
}

// Returns the array's tiling on a mesh whose device ids are the numbers of the workers.
absl::StatusOr<Tiling> OnNumbered(const ArrayDescriptor& array, const std::vector<int64_t>& ids) {
  const auto axes = array.mesh.axes();
  SHARDMESH_ASSIGN_OR_RETURN(
      const Mesh mesh,
      Mesh::Create({axes.begin(), axes.end()}, MeshOptions{.device_count = {}, .global_ids = ids}));
  return Tiling::Create(mesh, array.spec, array.shape, array.cut_points);
}

absl::StatusOr<int64_t> PlannedBytes(const MembershipView& view, const ArrayDescriptor& from,
                                     const ArrayDescriptor& to) {
  SHARDMESH_ASSIGN_OR_RETURN(Tiling source, from.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(Tiling destination, to.Tiling());
  if (from.mesh_id != to.mesh_id) {
    const MeshRanks* const sources = view.FindMesh(from.mesh_id);
    const MeshRanks* const destinations = view.FindMesh(to.mesh_id);
    if (sources == nullptr || destinations == nullptr ||
        std::ssize(sources->identities) != source.mesh().size() ||
        std::ssize(destinations->identities) != destination.mesh().size()) {
      return absl::FailedPreconditionError("a mesh has no workers");
    }
    std::map<std::string_view, int64_t> ids;
    const auto number = [&ids](const std::vector<std::string>& workers) {
      std::vector<int64_t> numbers;
      numbers.reserve(workers.size());
      for (const std::string& worker : workers) {
        numbers.push_back(ids.try_emplace(worker, std::ssize(ids)).first->second);
      }
      return numbers;
    };
    SHARDMESH_ASSIGN_OR_RETURN(source, OnNumbered(from, number(sources->identities)));
    SHARDMESH_ASSIGN_OR_RETURN(destination, OnNumbered(to, number(destinations->identities)));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan plan, ReshardPlan::Create(source, destination));
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan.Totals([] { return false; }));
  return PackedSizeBytes(to.dtype, totals.need);
}

std::vector<std::string> IdentitiesOf(absl::Span<const RankEndpoint> workers) {
  std::vector<std::string> identities;
  identities.reserve(workers.size());
  for (const RankEndpoint& worker : workers) identities.push_back(worker.identity);
  return identities;
}

}  // namespace

PutReuse::PutReuse(const PutReuseParts& parts) : parts_(parts), view_(parts.membership->view()) {}

void PutReuse::Find(PutItem& item) {
  const ArrayDescriptor& made = item.definition.descriptor;
  const std::vector<ArrayPtr> candidates =
      parts_.registry->FindByOrigin(item.definition.origin_key(), kMaxCandidates, parts_.is_use);
  if (candidates.empty()) return;
  std::string current;  // the array that the name points to
  if (!item.name.empty()) {
    if (const auto name = parts_.registry->FindName(item.name); name.ok()) {
      current = name->array_id;
    }
  }
  ArrayPtr best;
  bool is_best_same = false;
  int64_t best_bytes = 0;
  for (const ArrayPtr& array : candidates) {
    const ArrayDescriptor& there = array->definition.descriptor;
    if (array->state != ArrayState::kAvailable || !there.spec.unreduced().empty()) continue;
    if (!item.name.empty() && IsWhatThePutMakes(*array, item)) {
      if (is_best_same && there.array_id != current) continue;
      best = array;
      is_best_same = true;
      best_bytes = 0;
      continue;
    }
    if (is_best_same || !CanFill(made.mesh_id) || !CanFill(there.mesh_id)) continue;
    const std::optional<int64_t> bytes = MovedBytes(there, made);
    if (!bytes.has_value() || (best != nullptr && best_bytes <= *bytes)) continue;
    best = array;
    best_bytes = *bytes;
  }
  if (best == nullptr) return;
  std::shared_ptr<const PinnedArray> pinned =
      PinnedArray::Pin(parts_.registry, std::move(best), parts_.is_use);
  if (pinned == nullptr) return;
  if (is_best_same) item.definition = pinned->array().definition;
  item.moved_bytes = best_bytes;
  item.reused = std::move(pinned);
}

std::shared_ptr<const PinnedArray> PutReuse::PinClaimed(const ContentClaim& claim,
                                                        const PutItem& item) {
  const ArrayDescriptor& made = item.definition.descriptor;
  ArrayPtr array = parts_.registry->FindCommitted(claim.array_id);
  if (array == nullptr || array->state != ArrayState::kAvailable) return nullptr;
  const ArrayDescriptor& there = array->definition.descriptor;
  if (there.dtype != made.dtype || there.shape != made.shape || !there.spec.unreduced().empty()) {
    return nullptr;
  }
  const absl::StatusOr<Tiling> tiling = there.Tiling();
  if (!tiling.ok() || tiling->DistinctTileCount() != std::ssize(claim.tile_sha256)) return nullptr;
  // It is used only if the claim turns out to be true.
  return PinnedArray::Pin(parts_.registry, std::move(array), /*is_use=*/false);
}

void PutReuse::Use(const PinnedArray& claimed, PutItem& item) {
  // It may have lost tiles since it was pinned.
  ArrayPtr array = parts_.registry->FindCommitted(claimed.array().definition.descriptor.array_id);
  if (array == nullptr || array->state != ArrayState::kAvailable) return;
  const ArrayDescriptor& there = array->definition.descriptor;
  const ArrayDescriptor& made = item.definition.descriptor;
  const bool is_same = !item.name.empty() && IsWhatThePutMakes(*array, item);
  int64_t moved_bytes = 0;
  if (!is_same) {
    if (!CanFill(made.mesh_id) || !CanFill(there.mesh_id)) return;
    const std::optional<int64_t> bytes = MovedBytes(there, made);
    if (!bytes.has_value()) return;
    moved_bytes = *bytes;
  }
  std::shared_ptr<const PinnedArray> pinned =
      PinnedArray::Pin(parts_.registry, std::move(array), parts_.is_use);
  if (pinned == nullptr) return;
  if (is_same) item.definition = pinned->array().definition;
  item.moved_bytes = moved_bytes;
  item.reused = std::move(pinned);
}

bool PutReuse::IsWhatThePutMakes(const Array& array, const PutItem& item) {
  return LieAlike(array.definition.descriptor, item.definition.descriptor) &&
         array.definition.requested_spec == item.definition.requested_spec &&
         array.definition.replicas >= item.definition.replicas &&
         !(item.wants_one_replica && array.definition.replicas > 1) &&
         (array.durability == Durability::kDisk || !IsDurable(item.definition.descriptor.mesh_id));
}

bool PutReuse::IsDurable(const std::string& mesh_id) {
  const auto [place, is_new] = durable_.try_emplace(mesh_id, false);
  const MeshRanks* const ranks = view_->FindMesh(mesh_id);
  if (is_new && ranks != nullptr) {
    place->second = std::all_of(ranks->identities.begin(), ranks->identities.end(),
                                [this](const std::string& identity) {
                                  const WorkerStatus* const worker = view_->FindWorker(identity);
                                  return worker != nullptr && worker->info.durable;
                                });
  }
  return place->second;
}

bool PutReuse::CanFill(const std::string& mesh_id) {
  const auto [place, is_new] = can_fill_.try_emplace(mesh_id, false);
  const MeshRanks* const ranks = view_->FindMesh(mesh_id);
  if (is_new && ranks != nullptr && parts_.fill != nullptr) {
    place->second = std::all_of(
        ranks->identities.begin(), ranks->identities.end(),
        [this](const std::string& identity) { return parts_.fill->CheckCanFill(identity).ok(); });
  }
  return place->second;
}

std::string PutReuse::LayoutOf(const ArrayDescriptor& array) {
  std::string text = StrCat(DtypeName(array.dtype), " ", ShapeToString(array.shape), " ",
                            array.mesh_id, " ", array.spec.ToString());
  for (const CutPoints& points : array.cut_points) StrAppend(&text, ";", StrJoin(points, ","));
  return text;
}

std::optional<int64_t> PutReuse::MovedBytes(const ArrayDescriptor& from,
                                            const ArrayDescriptor& to) {
  const auto [place, is_new] =
      moved_bytes_.try_emplace(StrCat(LayoutOf(from), "\n", LayoutOf(to)), std::nullopt);
  if (is_new) {
    if (const absl::StatusOr<int64_t> bytes = PlannedBytes(*view_, from, to); bytes.ok()) {
      place->second = *bytes;
    }
  }
  return place->second;
}

absl::StatusOr<ReuseSources> FindReuseSources(absl::Span<const PutItem> items,
                                              const MeshEndpoints& endpoints) {
  ReuseSources sources;
  for (const PutItem& item : items) {
    if (!item.is_copied()) continue;
    const ArrayDescriptor& from = item.reused->array().definition.descriptor;
    if (sources.contains(from.mesh_id)) continue;
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<RankEndpoint> workers,
                               endpoints.Endpoints(from.mesh_id));
    // The orders number the workers by rank, so each rank needs one.
    if (std::ssize(workers) != from.mesh.size()) {
      return WithRetryDelay(
          WithReason(absl::FailedPreconditionError(
                         StrCat("a worker of the mesh \"", from.mesh_id, "\", where array ",
                                from.array_id, " has the elements of \"", item.name,
                                "\" already, was lost meanwhile; put again")),
                     Reason::kMeshIncomplete, {{fact::kMesh, from.mesh_id}}),
          absl::Milliseconds(100));
    }
    sources[from.mesh_id] = std::move(workers);
  }
  return sources;
}

absl::Status SendReuseFill(const ReuseFill& fill, absl::Span<const PutItem> items,
                           absl::Span<const RankEndpoint> workers, const ReuseSources& sources,
                           FillTransport* transport) {
  const std::vector<std::string> destinations = IdentitiesOf(workers);
  for (const auto& [mesh_id, endpoints] : sources) {
    const auto devices = EncodeFillDevices(endpoints, IdentitiesOf(endpoints), destinations);
    SharedFill orders(fill.transfer_id, fill.term, &devices);
    for (const PutItem& item : items) {
      if (!item.is_copied()) continue;
      const ArrayDescriptor& from = item.reused->array().definition.descriptor;
      if (from.mesh_id != mesh_id) continue;
      const std::string source = rpc::ArrayDescriptorBytes(from);
      const std::string token = rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                                                .transfer_id = "",
                                                .session_id = fill.session_id,
                                                .array_descriptor = source,
                                                .term = fill.term,
                                                .expire_time = fill.expire_time},
                                               fill.token_key);
      orders.AddFromArray(rpc::ArrayDescriptorBytes(item.definition.descriptor), source, token);
    }
    for (const RankEndpoint& worker : workers) {
      SHARDMESH_RETURN_IF_ERROR(orders.SendTo(worker.identity, worker.rank, transport));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
