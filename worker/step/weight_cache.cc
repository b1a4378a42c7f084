// WeightCache: packed weights by array and layout, in memory reserved from the worker's budget.
#include "worker/step/weight_cache.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "status/status_macros.h"

namespace shardmesh::worker {

absl::StatusOr<std::shared_ptr<const PackedWeights>> WeightCache::Find(
    const std::string& array_id, const MatmulSpec& spec, const OwnedBytes& rhs,
    const MatmulKernel::AbortCheck& abort_check) {
  if (budget_ == nullptr || rhs.bytes.empty()) return nullptr;
  const Key key(array_id, spec.n, spec.k, spec.lhs_dtype, spec.rhs_dtype, spec.out_dtype,
                spec.transpose_lhs, spec.transpose_rhs);
  // Reserve memory before packing. The packed form is about as large as the plain weights.
  Entry entry{.size_bytes = std::max(static_cast<int64_t>(rhs.bytes.size()),
                                     kernel_->LikelyPackedBytes(spec)),
              .tile = rhs.owner};
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      if (found->second.weights != nullptr) return found->second.weights;
      entry.size_bytes = found->second.size_bytes;
    }
  }
  auto room = budget_->TryReserve(entry.size_bytes, "packed weights");
  if (!room.ok()) return nullptr;
  absl::Status aborted;
  auto packed = kernel_->Pack(spec, rhs.bytes, [&] {
    if (abort_check) aborted = abort_check();
    return aborted;
  });
  SHARDMESH_RETURN_IF_ERROR(aborted);
  if (!packed.ok()) return nullptr;
  if ((*packed)->size_bytes() > entry.size_bytes) {
    entry.size_bytes = (*packed)->size_bytes();
    *room = MemoryBudget::Reservation();
    room = budget_->TryReserve(entry.size_bytes, "packed weights");
  }
  if (room.ok()) {
    entry.weights = *std::move(packed);
    entry.reservation = *std::move(room);
  }
  absl::MutexLock lock(&mutex_);
  Entry& kept = entries_[key];
  if (kept.weights == nullptr) kept = std::move(entry);
  return kept.weights;
}

void WeightCache::Forget(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    auto it = entries_.lower_bound(Key(array_id, std::numeric_limits<int64_t>::min(), 0, Dtype(0),
                                       Dtype(0), Dtype(0), false, false));
    while (it != entries_.end() && std::get<0>(it->first) == array_id) it = entries_.erase(it);
  }
}

void WeightCache::ForgetGone() {
  absl::MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = it->second.tile.expired() ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace shardmesh::worker
