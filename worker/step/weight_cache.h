// Weights in the layout that the kernel reads fastest, for as long as their arrays live.
#ifndef SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_
#define SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/kernel/matmul.h"

namespace shardmesh::worker {

// Packs a weight when it is first used and the budget has room for the copy, for which nobody gives
// memory up, and keeps that for as long as somebody keeps the tile. Thread-safe.
class WeightCache {
 public:
  // Both outlive the cache. Without a budget nothing is packed.
  WeightCache(MatmulKernel* kernel, MemoryBudget* budget) : kernel_(kernel), budget_(budget) {}

  // The packed form of `rhs`, which is this worker's tile of the array, for products like `spec`;
  // null where there is none, and the plain form is to be used. Packing goes block by block and
  // asks `abort_check` between them; its error is the only one that is returned.
  absl::StatusOr<std::shared_ptr<const PackedWeights>> Find(
      const std::string& array_id, const MatmulSpec& spec, const OwnedBytes& rhs,
      const MatmulKernel::AbortCheck& abort_check = nullptr);

  // The arrays are gone. Products under way keep what they use.
  void Forget(absl::Span<const std::string> array_ids);
  // Lets go of the weights whose tiles nobody keeps any more: of an array that was dropped while a
  // step used it.
  void ForgetGone();

 private:
  // Everything that a packing depends on but the number of rows.
  using Key = std::tuple<std::string, int64_t, int64_t, Dtype, Dtype, Dtype, bool, bool>;
  struct Entry {
    std::shared_ptr<const PackedWeights> weights = nullptr;  // null: there was no room
    MemoryBudget::Reservation reservation = {};              // none where there was no room
    int64_t size_bytes = 0;                                  // that the weights take
    std::weak_ptr<const void> tile = {};
  };

  MatmulKernel* const kernel_;
  MemoryBudget* const budget_;
  absl::Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_
