// WeightCache: packed weights by array and layout, in memory reserved from the worker's budget.
#include "worker/step/weight_cache.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "process/failpoint.h"
#include "process/log.h"
#include "status/status_macros.h"

namespace shardmesh::worker {

absl::StatusOr<PackedTilePtr> WeightCache::Find(const Weight& weight, const MatmulSpec& spec,
                                                const MatmulKernel::AbortCheck& abort_check) {
  const OwnedBytes& plain = weight.bytes;
  if (budget_ == nullptr || plain.bytes.empty()) return nullptr;
  const Key key(weight.array_id, PackingOf(spec));
  // Reserve memory before packing. The packed form is about as large as the plain weights.
  Entry entry{.size_bytes = std::max(static_cast<int64_t>(plain.bytes.size()),
                                     kernel_->LikelyPackedBytes(spec)),
              .tile = weight.tile,
              .plain = plain.owner};
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      if (!weight.is_only_packed) found->second.place = Place::kBeside;
      if (found->second.packed != nullptr) return found->second.packed;
      entry.size_bytes = found->second.size_bytes;
    }
  }
  // Another step may have packed it since this one fetched the plain bytes.
  if (PackedTilePtr held = Held(weight.array_id, weight.tile);
      held != nullptr && held->weights().packing() == key.second) {
    return held;
  }
  auto room = budget_->TryReserve(entry.size_bytes, "packed weights");
  if (!room.ok()) return nullptr;
  absl::Status aborted;
  auto packed = kernel_->Pack(spec, plain.bytes, [&] {
    if (abort_check) aborted = abort_check();
    return aborted;
  });
  SHARDMESH_RETURN_IF_ERROR(aborted);
  if (!packed.ok()) return nullptr;
  if ((*packed)->size_bytes() != entry.size_bytes) {
    entry.size_bytes = (*packed)->size_bytes();
    *room = MemoryBudget::Reservation();
    room = budget_->TryReserve(entry.size_bytes, "packed weights");
  }
  if (room.ok()) {
    if (weight.is_only_packed && (*packed)->can_unpack()) entry.place = Place::kCandidate;
    entry.packed = std::make_shared<const PackedTile>(*std::move(packed), *std::move(room));
  }
  absl::MutexLock lock(&mutex_);
  Entry& kept = entries_[key];
  if (kept.packed == nullptr) kept = std::move(entry);
  const auto first = FirstOf(weight.array_id);
  if (first->first != key ||
      (std::next(first) != entries_.end() && std::next(first)->first.first == weight.array_id)) {
    KeepBeside(weight.array_id);  // it has several packed forms
  }
  return kept.packed;
}

PackedTilePtr WeightCache::Held(const std::string& array_id, const Tile& tile) const {
  const absl::StatusOr<StoredTilePtr> held = store_->FindHeld(array_id, tile);
  if (!held.ok()) return nullptr;
  return std::dynamic_pointer_cast<const PackedTile>((*held)->form());
}

absl::StatusOr<StoredTilePtr> WeightCache::TakePlain(const std::string& array_id, const Tile& tile,
                                                     PackedTilePtr packed) {
  SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr plain, store_->HoldPlain(array_id, tile));
  const Key key(array_id, packed->weights().packing());
  const int64_t size_bytes = packed->memory_bytes();
  absl::MutexLock lock(&mutex_);
  entries_[key] = {.packed = std::move(packed),
                   .size_bytes = size_bytes,
                   .tile = tile,
                   .plain = plain,
                   .place = Place::kBeside};
  KeepBeside(array_id);
  return plain;
}

std::map<WeightCache::Key, WeightCache::Entry>::iterator WeightCache::FirstOf(
    const std::string& array_id) {
  return entries_.lower_bound(Key(array_id, {.n = std::numeric_limits<int64_t>::min()}));
}

void WeightCache::KeepBeside(const std::string& array_id) {
  for (auto it = FirstOf(array_id); it != entries_.end() && it->first.first == array_id; ++it) {
    it->second.place = Place::kBeside;
  }
}

bool WeightCache::PutInStore() {
  std::vector<std::pair<Key, Entry>> moving;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, entry] : entries_) {
      if (entry.place != Place::kCandidate) continue;
      entry.place = Place::kMoving;
      moving.emplace_back(key, entry);
    }
  }
  bool was_any_put = false;
  for (const auto& [key, entry] : moving) {
    const absl::Status put = store_->HoldAs(key.first, entry.tile, entry.packed);
    SHARDMESH_PASSES("weights.put");
    was_any_put |= put.ok();
    if (absl::IsDataLoss(put)) {
      LogWarning("packed weights stay beside the plain ones",
                 {{"array", key.first}, {"error", put}});
    }
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.packed != entry.packed) continue;
    // A step on another thread may have taken the plain bytes meanwhile: both forms stay then.
    if (found->second.place != Place::kMoving) continue;
    if (put.ok()) {
      entries_.erase(found);
    } else {
      // A tile that is not committed yet is put after a later step.
      found->second.place = absl::IsNotFound(put) ? Place::kCandidate : Place::kBeside;
    }
  }
  return was_any_put;
}

void WeightCache::Forget(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    auto it = FirstOf(array_id);
    while (it != entries_.end() && it->first.first == array_id) it = entries_.erase(it);
  }
}

void WeightCache::ForgetGone() {
  absl::MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = it->second.plain.expired() ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace shardmesh::worker
