// WeightCache: packed weights by array and layout, reserved from the worker's budget.
#include "worker/weight_cache.h"

#include <limits>
#include <utility>

namespace shardmesh::worker {

std::shared_ptr<const PackedWeights> WeightCache::Find(const std::string& array_id,
                                                       const MatmulSpec& spec,
                                                       absl::Span<const char> rhs) {
  if (budget_ == nullptr || rhs.empty()) return nullptr;
  const Key key(array_id, spec.n, spec.k, spec.lhs_dtype, spec.rhs_dtype, spec.out_dtype,
                spec.transpose_lhs, spec.transpose_rhs);
  {
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end()) return found->second.weights;
  }
  // The packed form is about as large as the plain one: ask before any memory is taken.
  Entry entry;
  const auto size_bytes = static_cast<int64_t>(rhs.size());
  if (auto plain = budget_->Reserve(size_bytes, "packed weights"); plain.ok()) {
    auto packed = kernel_->Pack(spec, rhs);
    if (packed.ok() && (*packed)->size_bytes() <= size_bytes) {
      entry.weights = *std::move(packed);
      entry.reservation = *std::move(plain);
    } else if (packed.ok()) {
      *plain = MemoryBudget::Reservation();
      if (auto exact = budget_->Reserve((*packed)->size_bytes(), "packed weights"); exact.ok()) {
        entry.weights = *std::move(packed);
        entry.reservation = *std::move(exact);
      }
    }
  }
  absl::MutexLock lock(&mutex_);
  return entries_.try_emplace(key, std::move(entry)).first->second.weights;
}

void WeightCache::Forget(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    auto it = entries_.lower_bound(Key(array_id, std::numeric_limits<int64_t>::min(), 0, Dtype(0),
                                       Dtype(0), Dtype(0), false, false));
    while (it != entries_.end() && std::get<0>(it->first) == array_id) it = entries_.erase(it);
  }
}

}  // namespace shardmesh::worker
