// Adds the tiles of arrays to the workers of their ranks, and takes them away.
#include "server/reshard/worker_loads.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "server/steps/committed_bytes.h"
#include "sharding/tile.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// Calls `visit` with the worker and the bytes of each tile.
template <typename Visit>
absl::Status ForEachTile(const ArrayDescriptor& array, const std::vector<std::string>& workers,
                         const std::vector<int64_t>& missing_ranks, const Visit& visit) {
  if (workers.empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  const auto size = std::min<int64_t>(tiling.mesh().size(), std::ssize(workers));
  for (int64_t rank = 0; rank < size; ++rank) {
    if (std::binary_search(missing_ranks.begin(), missing_ranks.end(), rank)) continue;
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, RankTileBytes(array, tiling, rank));
    visit(workers[static_cast<size_t>(rank)], bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WorkerLoads::Take(const ArrayDescriptor& array,
                               const std::vector<std::string>& workers, int64_t copies_bytes) {
  return ForEachTile(array, workers, {}, [&](const std::string& worker, int64_t bytes) {
    Load& load = loads_[worker];
    load.now = AddCapped(load.now, bytes);
    load.largest = std::max(load.largest, AddCapped(bytes, copies_bytes));
    Copy(copies_bytes, &load);
  });
}

void WorkerLoads::Copy(int64_t copies_bytes, Load* load) const {
  int64_t at_once = AddCapped(load->now, copies_bytes);
  for (const int64_t earlier : load->copies) at_once = AddCapped(at_once, earlier);
  load->peak = std::max(load->peak, at_once);
  if (copies_bytes == 0) return;
  load->copies.insert(
      std::upper_bound(load->copies.begin(), load->copies.end(), copies_bytes, std::greater<>()),
      copies_bytes);
  if (load->copies.size() >= moves_at_once_) load->copies.pop_back();
}

absl::Status WorkerLoads::Drop(const ArrayDescriptor& array,
                               const std::vector<std::string>& workers,
                               const std::vector<int64_t>& missing_ranks) {
  return ForEachTile(
      array, workers, missing_ranks,
      [this](const std::string& worker, int64_t bytes) { loads_[worker].now -= bytes; });
}

bool WorkerLoads::WouldExceed(const WorkerLoads& next,
                              const std::map<std::string, int64_t>& limits) const {
  for (const auto& [worker, load] : next.loads_) {
    const auto limit = limits.find(worker);
    if (limit == limits.end()) continue;
    const auto found = loads_.find(worker);
    const int64_t now = found == loads_.end() ? 0 : found->second.now;
    if (AddCapped(now, load.peak) > limit->second) return true;
  }
  return false;
}

int64_t WorkerLoads::PeakOf(const std::string& worker) const {
  const auto found = loads_.find(worker);
  return found == loads_.end() ? 0 : found->second.peak;
}

int64_t WorkerLoads::LargestOf(const std::string& worker) const {
  const auto found = loads_.find(worker);
  return found == loads_.end() ? 0 : found->second.largest;
}

}  // namespace shardmesh::server
