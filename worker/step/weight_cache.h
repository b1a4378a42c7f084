// Packs weights for the kernel, and puts the packed form into the store in place of the plain one.
#ifndef SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_
#define SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sharding/tile.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/kernel/matmul.h"
#include "worker/store/shard_store.h"
#include "worker/store/tile_form.h"

namespace shardmesh::worker {

// A tile of weights in the layout that the kernel reads fastest.
class PackedTile final : public TileForm {
 public:
  // `memory` is reserved for the weights. Read requires that they can be unpacked.
  PackedTile(std::shared_ptr<const PackedWeights> weights, MemoryBudget::Reservation memory)
      : weights_(std::move(weights)), memory_(std::move(memory)) {}

  const PackedWeights& weights() const { return *weights_; }
  int64_t memory_bytes() const override { return memory_.size_bytes(); }
  void Read(int64_t offset_bytes, absl::Span<char> out) const override {
    weights_->Unpack(offset_bytes, out);
  }

 private:
  const std::shared_ptr<const PackedWeights> weights_;
  const MemoryBudget::Reservation memory_;
};

using PackedTilePtr = std::shared_ptr<const PackedTile>;

// Packs a weight at its first use, if the budget has room for the packed form beside the plain one.
// Evicts nothing to make room.
//
// Where all uses of a weight take one packed form, the store holds this form instead of the plain
// bytes, from the end of the step that packed it (PutInStore). If a later step uses the weight in
// another way, the store holds the plain bytes again (TakePlain), and the packed form is kept
// beside them for good. Otherwise, steps that take turns would pack and unpack it each time. The
// packed forms of a weight that has several, and those that cannot be unpacked, also stay beside
// the plain bytes. The cache keeps such a form as long as something holds the plain tile.
// Thread-safe.
class WeightCache {
 public:
  // Kernel, budget and store outlive the cache. If `budget` is null, the cache packs nothing.
  WeightCache(MatmulKernel* kernel, MemoryBudget* budget, ShardStore* store)
      : kernel_(kernel), budget_(budget), store_(store) {}

  // This worker's tile of an array.
  struct Weight {
    const std::string& array_id;
    const Tile& tile;
    const OwnedBytes& bytes;
    // Whether this step uses the weight only in products with this packing.
    bool is_only_packed = false;
  };
  // Returns the packed form of a weight for products like `spec`. If it returns null, there is no
  // packed form and the caller must use the plain bytes. Packs block by block and calls
  // `abort_check` between blocks. The only error is that of `abort_check`.
  absl::StatusOr<PackedTilePtr> Find(const Weight& weight, const MatmulSpec& spec,
                                     const MatmulKernel::AbortCheck& abort_check = nullptr);

  // Returns the plain bytes of a weight that the store holds packed, and makes the store hold
  // these. `packed` stays beside them. Errors of ShardStore::HoldPlain.
  absl::StatusOr<StoredTilePtr> TakePlain(const std::string& array_id, const Tile& tile,
                                          PackedTilePtr packed);

  // Puts the packed forms into the store that can take the place of plain tiles. Call it after a
  // step. Returns whether it put any. Reads each of them once.
  bool PutInStore();

  // Drops the packed forms of these arrays. Products that run at this time keep the packed forms
  // that they use.
  void Forget(absl::Span<const std::string> array_ids);
  // Drops the packed forms of tiles that nothing holds any more. Such packed forms remain if an
  // array was dropped while a step used it.
  void ForgetGone();

 private:
  using Key = std::pair<std::string, Packing>;  // by array
  enum class Place {
    kBeside,     // stays beside the plain tile
    kCandidate,  // is to take its place
    kMoving,     // PutInStore is at it
  };
  struct Entry {
    PackedTilePtr packed = nullptr;  // null if there was no memory for it
    int64_t size_bytes = 0;          // of the packed form
    Tile tile = {};
    std::weak_ptr<const void> plain = {};
    Place place = Place::kBeside;
  };

  // Returns the packed form that the store holds instead of the plain tile; null if there is none.
  PackedTilePtr Held(const std::string& array_id, const Tile& tile) const;

  // Returns the first entry of the array, or the place where it would be.
  std::map<Key, Entry>::iterator FirstOf(const std::string& array_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets all packed forms of the array stay beside its plain tile.
  void KeepBeside(const std::string& array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MatmulKernel* const kernel_;
  MemoryBudget* const budget_;
  ShardStore* const store_;
  absl::Mutex mutex_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_WEIGHT_CACHE_H_
