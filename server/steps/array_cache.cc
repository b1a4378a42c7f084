// Chooses the arrays to evict.
#include "server/steps/array_cache.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace shardmesh::server {
namespace {

// Returns the size of the worker's tile of a cached array.
int64_t BytesOn(const MembershipView& view, const CachedArray& array, std::string_view identity) {
  const MeshRanks* const ranks = view.FindMesh(array.mesh_id);
  if (ranks == nullptr) return 0;
  const std::optional<int64_t> rank = ranks->RankOf(identity);
  return rank.has_value() && *rank < std::ssize(array.rank_bytes)
             ? array.rank_bytes[static_cast<size_t>(*rank)]
             : 0;
}

}  // namespace

int64_t CachedBytesOn(const MembershipView& view, const ArrayRegistry::BytesByMesh& cached,
                      std::string_view identity) {
  int64_t bytes = 0;
  for (const auto& [mesh_id, rank_bytes] : cached) {
    const MeshRanks* const ranks = view.FindMesh(mesh_id);
    if (ranks == nullptr) continue;
    const std::optional<int64_t> rank = ranks->RankOf(identity);
    if (rank.has_value() && *rank < std::ssize(rank_bytes)) {
      bytes += rank_bytes[static_cast<size_t>(*rank)];
    }
  }
  return bytes;
}

int64_t ArrayCache::Limit(const Limits& limits) {
  int64_t freed = 0;
  DropNow(EvictBeyond(limits, &freed));
  return freed;
}

ArrayCache::IdsByMesh ArrayCache::EvictBeyond(const Limits& limits, int64_t* freed) {
  const ArrayRegistry::BytesByMesh cached = registry_->CachedBytes();
  if (cached.empty()) return {};
  const std::shared_ptr<const MembershipView> view = membership_->view();
  std::map<std::string_view, int64_t> excess;  // bytes to be freed, by worker
  for (const auto& [identity, limit] : limits) {
    const int64_t bytes = CachedBytesOn(*view, cached, identity) - std::max<int64_t>(0, limit);
    if (bytes > 0) excess.emplace(identity, bytes);
  }
  if (excess.empty()) return {};
  std::vector<CachedArray> chosen;
  for (CachedArray& array : registry_->ListCached()) {
    if (excess.empty()) break;
    bool is_chosen = false;
    for (auto worker = excess.begin(); worker != excess.end();) {
      const int64_t bytes = BytesOn(*view, array, worker->first);
      *freed += bytes;
      worker->second -= bytes;
      is_chosen = is_chosen || bytes > 0;
      worker = worker->second > 0 ? std::next(worker) : excess.erase(worker);
    }
    if (is_chosen) chosen.push_back(std::move(array));
  }
  return Evict(chosen);
}

ArrayCache::IdsByMesh ArrayCache::Evict(const std::vector<CachedArray>& arrays) {
  std::vector<std::string> ids;
  std::map<std::string_view, const std::string*> mesh_of;
  for (const CachedArray& array : arrays) {
    ids.push_back(array.array_id);
    mesh_of.emplace(array.array_id, &array.mesh_id);
  }
  IdsByMesh evicted;
  for (std::string& id : registry_->Evict(ids)) {
    std::vector<std::string>& of_mesh = evicted[*mesh_of.find(id)->second];
    of_mesh.push_back(std::move(id));
  }
  return evicted;
}

void ArrayCache::DropNow(const IdsByMesh& evicted) const {
  if (!drop_) return;
  for (const auto& [mesh_id, ids] : evicted) drop_(mesh_id, ids);
}

int64_t ArrayCache::Free(std::string_view identity, int64_t need_bytes, bool on_disk) {
  if (on_disk) {
    const std::shared_ptr<const MembershipView> view = membership_->view();
    int64_t freed = 0;
    std::vector<CachedArray> chosen;
    for (CachedArray& array : registry_->ListCached()) {
      if (freed >= need_bytes) break;
      const int64_t bytes = array.on_disk ? BytesOn(*view, array, identity) : 0;
      if (bytes == 0) continue;
      freed += bytes;
      chosen.push_back(std::move(array));
    }
    DropNow(Evict(chosen));
    return freed;
  }
  const int64_t cached = CachedBytesOn(*membership_->view(), registry_->CachedBytes(), identity);
  return Limit({{std::string(identity), cached - need_bytes}});
}

CacheTotals ArrayCache::DropAll() {
  CacheTotals dropped;
  const std::vector<CachedArray> cached = registry_->ListCached();
  for (const CachedArray& array : cached) {
    for (const int64_t bytes : array.rank_bytes) dropped.bytes += bytes;
  }
  const IdsByMesh evicted = Evict(cached);
  for (const auto& [mesh_id, ids] : evicted) dropped.arrays += std::ssize(ids);
  DropNow(evicted);
  return dropped;
}

void ArrayCache::Trim() {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  Limits limits;
  for (const auto& [identity, worker] : view->workers) {
    if (view->IsAlive(identity)) limits.emplace(identity, worker->info.cache_bytes);
  }
  int64_t freed = 0;
  EvictBeyond(limits, &freed);
}

void ArrayCache::WorkerAttached(const WorkerInfo& worker) {
  if (worker.cache_bytes > 0) registry_->SetCaching(true);
}

}  // namespace shardmesh::server
