// Compares origins and layouts, and encodes the orders to copy.
#include "server/steps/put_reuse.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "rpc/codec/array_codec.h"
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
// The bytes of an order to copy a tile beside the descriptors: the fields of the token, its
// signature, and the tags and lengths of all fields.
constexpr int64_t kOrderOverheadBytes = 512;

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

// Returns the bytes that the workers of all ranks receive, but for `sent_ranks`, which rise.
absl::StatusOr<int64_t> PlannedBytes(const MembershipView& view, const ArrayDescriptor& from,
                                     const ArrayDescriptor& to,
                                     const std::vector<int64_t>& sent_ranks = {}) {
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
  int64_t received = totals.need;
  for (const int64_t rank : sent_ranks) received -= plan.DeviceOf(rank).need;
  return PackedSizeBytes(to.dtype, received);
}

bool HasUnclaimedTiles(const std::vector<std::string>& tile_sha256) {
  return std::any_of(tile_sha256.begin(), tile_sha256.end(),
                     [](const std::string& digest) { return digest.empty(); });
}

// A tensor that only some ranks copy, with the encoded fields of their orders.
struct PartlyCopied {
  const PutItem* item = nullptr;
  std::string array;
  std::string source;
  std::string token;
};

std::vector<std::string> IdentitiesOf(absl::Span<const RankEndpoint> workers) {
  std::vector<std::string> identities;
  identities.reserve(workers.size());
  for (const RankEndpoint& worker : workers) identities.push_back(worker.identity);
  return identities;
}

}  // namespace

std::optional<std::vector<int64_t>> RanksToSend(const ArrayDescriptor& from,
                                                const ArrayDescriptor& to,
                                                const std::vector<std::string>& tile_sha256) {
  const absl::StatusOr<Tiling> source = from.Tiling();
  const absl::StatusOr<Tiling> destination = to.Tiling();
  if (!source.ok() || !destination.ok()) return std::nullopt;
  const int64_t ranks = destination->mesh().size();
  if (source->mesh().size() > kMaxPartlyCopiedRanks || ranks > kMaxPartlyCopiedRanks) {
    return std::nullopt;
  }
  std::set<int64_t> sent;
  for (size_t tile = 0; tile < tile_sha256.size(); ++tile) {
    if (!tile_sha256[tile].empty()) continue;
    // An empty tile has no owners, and is nowhere different.
    for (const OwnedTile& part :
         destination->OwnersOf(source->ReplicaGroup(static_cast<int64_t>(tile)).tile)) {
      sent.insert(part.devices.begin(), part.devices.end());
    }
    if (std::ssize(sent) == ranks) return std::nullopt;
  }
  return std::vector<int64_t>(sent.begin(), sent.end());
}

int64_t CopyOrderBytes(const ArrayDescriptor& from, const ArrayDescriptor& to) {
  return kOrderOverheadBytes + std::ssize(rpc::ArrayDescriptorBytes(to)) +
         2 * std::ssize(rpc::ArrayDescriptorBytes(from));
}

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
  if (Take(std::move(best), is_best_same, item)) item.moved_bytes = best_bytes;
}

std::optional<ClaimedArray> PutReuse::PinClaimed(ContentClaim claim, size_t number,
                                                 const PutItem& item) {
  const ArrayDescriptor& made = item.definition.descriptor;
  ArrayPtr array = parts_.registry->FindCommitted(claim.array_id);
  if (array == nullptr || array->state != ArrayState::kAvailable) return std::nullopt;
  const ArrayDescriptor& there = array->definition.descriptor;
  if (there.dtype != made.dtype || there.shape != made.shape || !there.spec.unreduced().empty()) {
    return std::nullopt;
  }
  const absl::StatusOr<Tiling> tiling = there.Tiling();
  if (!tiling.ok()) return std::nullopt;
  ClaimedArray claimed{.item = number, .array = nullptr, .tile_sha256 = {}};
  if (claim.equal_tiles.empty()) {
    if (tiling->DistinctTileCount() != std::ssize(claim.tile_sha256)) return std::nullopt;
    claimed.tile_sha256 = std::move(claim.tile_sha256);
  } else {
    // The client sends no tile of a tensor that the workers read.
    if (item.definition.source.file != nullptr ||
        claim.equal_tiles.back() >= tiling->DistinctTileCount()) {
      return std::nullopt;
    }
    claimed.tile_sha256.resize(static_cast<size_t>(tiling->DistinctTileCount()));
    for (size_t i = 0; i < claim.equal_tiles.size(); ++i) {
      claimed.tile_sha256[static_cast<size_t>(claim.equal_tiles[i])] =
          std::move(claim.tile_sha256[i]);
    }
    if (!RanksToSend(there, made, claimed.tile_sha256).has_value()) return std::nullopt;
  }
  // It is used only if the claim turns out to be true.
  claimed.array = PinnedArray::Pin(parts_.registry, std::move(array), /*is_use=*/false);
  if (claimed.array == nullptr) return std::nullopt;
  return claimed;
}

void PutReuse::Use(const ClaimedArray& claimed, PutItem& item) {
  // It may have lost tiles since it was pinned.
  ArrayPtr array =
      parts_.registry->FindCommitted(claimed.array->array().definition.descriptor.array_id);
  if (array == nullptr || array->state != ArrayState::kAvailable) return;
  const ArrayDescriptor& there = array->definition.descriptor;
  const ArrayDescriptor& made = item.definition.descriptor;
  const bool has_all = !HasUnclaimedTiles(claimed.tile_sha256);
  const bool is_same = has_all && !item.name.empty() && IsWhatThePutMakes(*array, item);
  int64_t moved_bytes = 0;
  int64_t order_bytes = 0;
  std::vector<int64_t> sent_ranks;
  if (!is_same) {
    if (!CanFill(made.mesh_id) || !CanFill(there.mesh_id)) return;
    if (!has_all) {
      std::optional<std::vector<int64_t>> ranks = RanksToSend(there, made, claimed.tile_sha256);
      if (!ranks.has_value()) return;
      sent_ranks = *std::move(ranks);
    }
    if (sent_ranks.empty()) {
      const std::optional<int64_t> bytes = MovedBytes(there, made);
      if (!bytes.has_value()) return;
      moved_bytes = *bytes;
    } else {
      const int64_t copied_tiles = made.mesh.size() - std::ssize(sent_ranks);
      order_bytes = copied_tiles * CopyOrderBytes(there, made);
      if (partly_copied_meshes_.count(there.mesh_id) == 0) {
        order_bytes += made.mesh.size() * there.mesh.size() * kDeviceBytes;
      }
      if (order_bytes > parts_.max_partly_copied_bytes - partly_copied_bytes_) return;
      const absl::StatusOr<int64_t> bytes = PlannedBytes(*view_, there, made, sent_ranks);
      if (!bytes.ok()) return;
      moved_bytes = *bytes;
    }
  }
  const std::string source_mesh = there.mesh_id;
  if (!Take(std::move(array), is_same, item)) return;
  item.moved_bytes = moved_bytes;
  item.sent_ranks = std::move(sent_ranks);
  if (!item.sent_ranks.empty()) {
    partly_copied_bytes_ += order_bytes;
    partly_copied_meshes_.insert(source_mesh);
  }
}

bool PutReuse::Take(ArrayPtr array, bool is_same, PutItem& item) {
  const std::string id = array->definition.descriptor.array_id;
  const int64_t wanted = item.definition.replicas;
  const bool is_from_cache = is_same && parts_.registry->IsCached(id);
  std::shared_ptr<const PinnedArray> pinned =
      PinnedArray::Pin(parts_.registry, std::move(array), parts_.is_use,
                       is_from_cache ? std::optional(wanted) : std::nullopt);
  if (pinned == nullptr) return false;
  if (is_same) {
    const ArrayPtr taken = parts_.registry->FindCommitted(id);
    if (taken == nullptr) return false;
    ArrayDefinition definition = taken->definition;
    // A validation changes nothing in the registry.
    if (is_from_cache && !parts_.is_use) definition.replicas = wanted;
    // Another put may have taken the array from the cache just before, and wants other replicas.
    if (!HasReplicas(definition.replicas, item)) return false;
    // In a validation the array stays cached, also for a second name of it.
    item.lacks_second_copy = is_from_cache && definition.replicas > 1 &&
                             parts_.registry->FindTwin(id) == nullptr && lacking_.insert(id).second;
    item.definition = std::move(definition);
  }
  item.reused = std::move(pinned);
  return true;
}

bool PutReuse::HasReplicas(int64_t replicas, const PutItem& item) {
  return replicas >= item.definition.replicas && !(item.wants_one_replica && replicas > 1);
}

bool PutReuse::IsWhatThePutMakes(const Array& array, const PutItem& item) {
  const ArrayDescriptor& there = array.definition.descriptor;
  return LieAlike(there, item.definition.descriptor) &&
         array.definition.requested_spec == item.definition.requested_spec &&
         (HasReplicas(array.definition.replicas, item) ||
          parts_.registry->IsCached(there.array_id)) &&
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
    std::vector<PartlyCopied> partly;
    for (const PutItem& item : items) {
      if (!item.is_copied()) continue;
      const ArrayDescriptor& from = item.reused->array().definition.descriptor;
      if (from.mesh_id != mesh_id) continue;
      const std::string source = rpc::ArrayDescriptorBytes(from);
      const std::string token = SignFillToken(fill, source);
      std::string array = rpc::ArrayDescriptorBytes(item.definition.descriptor);
      if (item.sent_ranks.empty()) {
        orders.AddFromArray(array, source, token);
      } else {
        partly.push_back(
            {.item = &item, .array = std::move(array), .source = source, .token = token});
      }
    }
    for (const RankEndpoint& worker : workers) {
      SHARDMESH_RETURN_IF_ERROR(orders.SendTo(worker.identity, worker.rank, transport));
      SharedFill own(fill.transfer_id, fill.term, &devices);
      for (const PartlyCopied& each : partly) {
        if (each.item->is_sent_to(worker.rank)) continue;
        own.AddFromArray(each.array, each.source, each.token);
      }
      SHARDMESH_RETURN_IF_ERROR(own.SendTo(worker.identity, worker.rank, transport));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
