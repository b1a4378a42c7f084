// Caches weights in the layout that the kernel reads fastest, for the lifetime of their arrays.
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

// Packs a weight at its first use, if the budget has room for the packed copy. Evicts nothing to
// make room. Keeps the packed copy as long as something holds the array's tile. Thread-safe.
class WeightCache {
 public:
  // Kernel and budget outlive the cache. If `budget` is null, the cache packs nothing.
  WeightCache(MatmulKernel* kernel, MemoryBudget* budget) : kernel_(kernel), budget_(budget) {}

  // Returns the packed form of `rhs`, which is this worker's tile of the array, for products like
  // `spec`. If it returns null, there is no packed form and the caller must use `rhs` itself. Packs
  // block by block and calls `abort_check` between blocks. The only error is that of `abort_check`.
  absl::StatusOr<std::shared_ptr<const PackedWeights>> Find(
      const std::string& array_id, const MatmulSpec& spec, const OwnedBytes& rhs,
      const MatmulKernel::AbortCheck& abort_check = nullptr);

  // Drops the packed forms of these arrays. Products that run at this time keep the packed forms
  // that they use.
  void Forget(absl::Span<const std::string> array_ids);
  // Drops the packed forms of tiles that nothing holds any more. Such packed forms remain if an
  // array was dropped while a step used it.
  void ForgetGone();

 private:
  // Everything on which a packing depends, except the number of rows.
  using Key = std::tuple<std::string, int64_t, int64_t, Dtype, Dtype, Dtype, bool, bool>;
  struct Entry {
    std::shared_ptr<const PackedWeights> weights = nullptr;  // null if there was no memory for them
    MemoryBudget::Reservation reservation = {};  // empty if there was no memory for the weights
    int64_t size_bytes = 0;                      // of the weights
    std::weak_ptr<const void> tile = {};
  };

  MatmulKernel* const kernel_;
  MemoryBudget* const budget_;
  absl::Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_
