// Bounds the cache of released arrays by the memory of each worker.
#ifndef SHARDMESH_SERVER_STEPS_ARRAY_CACHE_H_
#define SHARDMESH_SERVER_STEPS_ARRAY_CACHE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/state/array_registry.h"
#include "server/state/membership.h"

namespace shardmesh::server {

// Returns the bytes of cached tiles on a worker.
int64_t CachedBytesOn(const MembershipView& view, const ArrayRegistry::BytesByMesh& cached,
                      std::string_view identity);

// Evicts cached arrays (see ArrayRegistry), the one first that was used longest ago. Only the
// coordinator evicts, and never an array that is pinned. An array that a put has found therefore
// stays until the put has ended.
//
// Thread-safe. Takes some microseconds for each cached array if there is something to evict.
class ArrayCache {
 public:
  // Orders the workers of the mesh to drop the arrays.
  using Drop =
      std::function<void(const std::string& mesh_id, const std::vector<std::string>& array_ids)>;

  // The objects outlive the cache. All functions except Trim call `drop` before they return, so
  // that orders which need the memory come after the orders to drop. The registry's listener gives
  // the same orders again. Null: only the listener does.
  ArrayCache(ArrayRegistry* registry, const Membership* membership, Drop drop = nullptr)
      : registry_(registry), membership_(membership), drop_(std::move(drop)) {}

  // The most bytes that cached tiles may take on each worker, by its identity.
  using Limits = std::map<std::string, int64_t, std::less<>>;
  // Evicts until the cached tiles on each of these workers are within their limit. Returns the
  // bytes that this frees on these workers.
  int64_t Limit(const Limits& limits);
  // Evicts until `need_bytes` of cached tiles on the worker are freed, or none is left there. If
  // `on_disk`, evicts only arrays on disk. Returns the freed bytes.
  int64_t Free(std::string_view identity, int64_t need_bytes, bool on_disk = false);
  // Evicts all. Returns the number of the arrays and the bytes of their tiles.
  CacheTotals DropAll();
  // Evicts until all attached workers are within the limits that they attached with. May be called
  // by a listener of the registry.
  void Trim();
  // Turns the cache on if the worker, which has attached, keeps tiles of released arrays.
  void WorkerAttached(const WorkerInfo& worker);

 private:
  // Evicts as Limit does, and returns the evicted ids by mesh. Adds the freed bytes to `freed`.
  using IdsByMesh = std::map<std::string, std::vector<std::string>>;
  IdsByMesh EvictBeyond(const Limits& limits, int64_t* freed);
  // Evicts these arrays, and returns their ids by mesh.
  IdsByMesh Evict(const std::vector<CachedArray>& arrays);
  void DropNow(const IdsByMesh& evicted) const;

  ArrayRegistry* const registry_;
  const Membership* const membership_;
  const Drop drop_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_ARRAY_CACHE_H_
