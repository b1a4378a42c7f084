// Adds up the tiles of all committed arrays.
#include "server/steps/committed_bytes.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/steps/array_cache.h"
#include "status/status_macros.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

// Number of arrays between two looks at `is_cancelled`.
constexpr size_t kArraysBetweenLooks = 16;
// A heartbeat tells the state of the worker at most this long before it arrives.
constexpr absl::Duration kHeartbeatTravel = absl::Seconds(1);

absl::Status Cancelled() { return absl::CancelledError("cancelled while it counted the memory"); }

// Calls `take` with each array of `list`, which returns up to `limit` arrays after an id, but for
// arrays that are being put. Looks at `is_cancelled` before each page.
absl::Status ForEachCommitted(
    absl::FunctionRef<std::vector<ArrayPtr>(const std::string& after, int64_t limit)> list,
    absl::FunctionRef<bool()> is_cancelled, absl::FunctionRef<absl::Status(ArrayPtr array)> take) {
  constexpr int64_t kPage = 1'000;
  std::string after;
  for (bool is_last = false; !is_last;) {
    if (is_cancelled()) return Cancelled();
    std::vector<ArrayPtr> page = list(after, kPage);
    is_last = std::ssize(page) < kPage;
    for (ArrayPtr& array : page) {
      after = array->definition.descriptor.array_id;
      if (array->state == ArrayState::kStaging) continue;
      SHARDMESH_RETURN_IF_ERROR(take(std::move(array)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t AddCapped(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

absl::StatusOr<int64_t> RankTileBytes(const ArrayDescriptor& descriptor, const Tiling& tiling,
                                      int64_t rank) {
  if (!tiling.has_equal_tiles()) return descriptor.TileSizeBytes(tiling.TileOf(rank));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tiling.ShardShape()));
  return PackedSizeBytes(descriptor.dtype, elements);
}

bool FitsEasily(const WorkerStatus& worker, int64_t need_bytes) {
  return need_bytes <= (worker.info.capacity_bytes - worker.used_bytes()) / 2;
}

CommittedBytes::CommittedBytes(const MembershipView& view, const ArrayRegistry& registry)
    : view_(view),
      is_releasing_(registry.CountUnconfirmed() > 0),
      cached_(registry.CachedBytes()) {}

absl::Status CommittedBytes::AddAll(const ArrayRegistry& registry,
                                    const std::function<bool()>& is_cancelled) {
  std::vector<ArrayPtr> arrays;
  absl::Time newest = absl::InfinitePast();
  SHARDMESH_RETURN_IF_ERROR(
      ForEachCommitted([&registry](const std::string& after,
                                   int64_t limit) { return registry.ListArrays(after, limit); },
                       is_cancelled,
                       [&](ArrayPtr array) {
                         newest = std::max(newest, array->created);
                         arrays.push_back(std::move(array));
                         return absl::OkStatus();
                       }));
  if (!is_releasing_ && newest < OldestHeartbeat() - kHeartbeatTravel) return absl::OkStatus();
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (i % kArraysBetweenLooks == 0 && is_cancelled()) return Cancelled();
    SHARDMESH_RETURN_IF_ERROR(Add(*arrays[i]));
  }
  return absl::OkStatus();
}

absl::Status CommittedBytes::CountAll(const ArrayRegistry& registry) {
  return ForEachCommitted([&registry](const std::string& after,
                                      int64_t limit) { return registry.ListKept(after, limit); },
                          [] { return false; },
                          [this](const ArrayPtr& array) { return Add(*array); });
}

int64_t CommittedBytes::UsedOn(const std::string& identity, const WorkerStatus& worker) const {
  if (is_releasing_) return Of(identity);
  const int64_t cached = CachedBytesOn(view_, cached_, identity);
  return std::max(worker.used_bytes() - cached, Of(identity));
}

int64_t CommittedBytes::LeftOn(const std::string& identity, const WorkerStatus& worker) const {
  return std::max<int64_t>(0, worker.info.capacity_bytes - UsedOn(identity, worker));
}

// Returns the bytes on the worker, which serves a rank of each of the meshes.
int64_t CommittedBytes::Of(const std::string& identity) const {
  const auto found = by_worker_.find(identity);
  int64_t bytes = found == by_worker_.end() ? 0 : found->second;
  for (const auto& [mesh_id, rank_bytes] : by_mesh_) {
    if (view_.FindMesh(mesh_id)->RankOf(identity).has_value()) {
      bytes = AddCapped(bytes, rank_bytes);
    }
  }
  return bytes;
}

absl::Time CommittedBytes::OldestHeartbeat() const {
  absl::Time oldest = absl::InfiniteFuture();
  for (const auto& [identity, worker] : view_.workers) {
    if (view_.IsAlive(identity)) oldest = std::min(oldest, worker->last_heartbeat());
  }
  return oldest;
}

absl::Status CommittedBytes::Add(const Array& array) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const MeshRanks* const ranks = view_.FindMesh(descriptor.mesh_id);
  if (ranks == nullptr) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  if (tiling.has_equal_tiles() && array.missing_ranks.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, RankTileBytes(descriptor, tiling, 0));
    int64_t& sum = by_mesh_[descriptor.mesh_id];
    sum = AddCapped(sum, bytes);
    return absl::OkStatus();
  }
  const auto size = std::min<int64_t>(tiling.mesh().size(), std::ssize(ranks->identities));
  for (int64_t rank = 0; rank < size; ++rank) {
    if (std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(), rank)) continue;
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, RankTileBytes(descriptor, tiling, rank));
    int64_t& sum = by_worker_[ranks->identities[static_cast<size_t>(rank)]];
    sum = AddCapped(sum, bytes);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
