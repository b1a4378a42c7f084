// Begins and ends the updates of stored tiles by steps.
#include "worker/store/state_tile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

std::string NameOf(std::string_view array_id, const Tile& tile) {
  return StrCat("tile ", tile.ToString(), " of array ", array_id);
}

absl::Status NoSuchTile(std::string_view array_id, const Tile& tile) {
  return WithReason(absl::NotFoundError(StrCat("this worker holds no ", NameOf(array_id, tile))),
                    Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, array_id}});
}

absl::Status DroppedMeanwhile(std::string_view array_id, const Tile& tile) {
  return absl::AbortedError(
      StrCat(NameOf(array_id, tile), " was dropped or put aside while a step updated it"));
}

}  // namespace

absl::Status BeingUpdated(std::string_view array_id, const Tile& tile) {
  return WithRetryDelay(
      WithReason(absl::UnavailableError(
                     StrCat(NameOf(array_id, tile), " is being updated by a step; try again")),
                 Reason::kOverloaded),
      absl::Milliseconds(50));
}

StateTile::StateTile(ShardStore* store, StoredTilePtr old_tile, std::shared_ptr<Buffer> buffer,
                     bool is_exclusive, int64_t step, int64_t update)
    : store_(store),
      old_description_(old_tile->description()),
      old_(std::move(old_tile)),
      buffer_(std::move(buffer)),
      is_exclusive_(is_exclusive),
      step_(step),
      update_(update) {}

StateTile::~StateTile() { Abort(); }

absl::Span<char> StateTile::mutable_bytes() {
  return buffer_ == nullptr ? absl::Span<char>() : absl::MakeSpan(buffer_->data(), buffer_->size());
}

absl::Status StateTile::Commit(std::shared_ptr<Buffer> memory) {
  SHARDMESH_PASSES("tiles.commit_update");
  if (memory != nullptr) buffer_ = std::move(memory);
  auto updated = std::make_shared<const StoredTile>(old_description_, std::move(buffer_), step_);
  buffer_ = nullptr;
  // Released after the entry has the new tile, so that the new one alone holds the bytes.
  const StoredTilePtr old = std::move(old_);
  old_ = nullptr;
  if (store_->EndUpdate(old_description_, update_, std::move(updated))) return absl::OkStatus();
  return DroppedMeanwhile(old_description_.array_id, old_description_.tile);
}

void StateTile::AwaitCommit() {
  if (old_ != nullptr) store_->AwaitEndOfUpdate(old_description_, update_);
}

void StateTile::Abort() {
  if (old_ == nullptr) return;
  buffer_ = nullptr;
  old_ = nullptr;
  store_->EndUpdate(old_description_, update_, nullptr);
}

int64_t StoredTile::Crc32cOfState() const {
  const int64_t known = state_crc32c_.load(std::memory_order_relaxed);
  if (known >= 0) return known;
  const int64_t computed = Crc32c(bytes());
  state_crc32c_.store(computed, std::memory_order_relaxed);
  return computed;
}

const ShardStore::TileEntry* ShardStore::EntryOf(std::string_view array_id,
                                                 const Tile& tile) const {
  const auto array = arrays_.find(ToAbsl(array_id));
  if (array == arrays_.end()) return nullptr;
  const auto found = array->second.tiles.find(tile);
  return found == array->second.tiles.end() ? nullptr : &found->second;
}

ShardStore::TileEntry* ShardStore::EntryOfUpdate(const TileDescription& description,
                                                 int64_t update) {
  const auto array = arrays_.find(description.array_id);
  if (array == arrays_.end()) return nullptr;
  const auto found = array->second.tiles.find(description.tile);
  if (found == array->second.tiles.end() || found->second.update != update) return nullptr;
  return &found->second;
}

bool ShardStore::AwaitReadable(std::string_view array_id, const Tile* tile) const {
  const auto is_readable = [&] {
    mutex_.AssertHeld();
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array == arrays_.end()) return true;
    return std::none_of(array->second.tiles.begin(), array->second.tiles.end(),
                        [tile](const auto& each) {
                          return (each.second.is_exclusive || each.second.is_ending) &&
                                 (tile == nullptr || each.first == *tile);
                        });
  };
  if (is_readable()) return true;
  const auto count = [&](int64_t change) {
    mutex_.AssertHeld();
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array == arrays_.end()) return;
    array->second.waiting_finds = std::max<int64_t>(0, array->second.waiting_finds + change);
  };
  count(1);
  const bool is_free = mutex_.AwaitWithTimeout(absl::Condition(&is_readable), kFindWait);
  count(-1);
  return is_free;
}

absl::StatusOr<int64_t> ShardStore::ReserveUpdate(std::string_view array_id, const Tile& tile) {
  absl::MutexLock lock(&mutex_);
  // A find that has waited comes first, so that steps back to back do not keep readers away.
  const auto may_begin = [&] {
    mutex_.AssertHeld();
    const auto array = arrays_.find(ToAbsl(array_id));
    if (array == arrays_.end()) return true;
    const auto found = array->second.tiles.find(tile);
    return found == array->second.tiles.end() ||
           (found->second.state == TileState::kCommitted && found->second.update == 0 &&
            array->second.waiting_finds == 0);
  };
  const bool is_free = mutex_.AwaitWithTimeout(absl::Condition(&may_begin), kUpdateWait);
  const auto array = arrays_.find(ToAbsl(array_id));
  if (array == arrays_.end()) return NoSuchTile(array_id, tile);
  const auto found = array->second.tiles.find(tile);
  if (found == array->second.tiles.end()) return NoSuchTile(array_id, tile);
  TileEntry& entry = found->second;
  if (entry.update != 0 || (!is_free && entry.state == TileState::kCommitted)) {
    return BeingUpdated(array_id, tile);
  }
  if (entry.state != TileState::kCommitted) return NoSuchTile(array_id, tile);
  entry.update = next_update_++;
  // Until it is known who holds the tile, nobody else may find it.
  entry.is_exclusive = true;
  return entry.update;
}

bool ShardStore::EndUpdate(const TileDescription& description, int64_t update,
                           StoredTilePtr updated) {
  StoredTilePtr old;  // declared before the lock, so it is destroyed after the unlock
  absl::MutexLock lock(&mutex_);
  TileEntry* const entry = EntryOfUpdate(description, update);
  if (entry == nullptr) return false;
  if (updated != nullptr) old = std::exchange(entry->stored, std::move(updated));
  entry->update = 0;
  entry->is_exclusive = false;
  entry->is_ending = false;
  return true;
}

void ShardStore::AwaitEndOfUpdate(const TileDescription& description, int64_t update) {
  absl::MutexLock lock(&mutex_);
  TileEntry* const entry = EntryOfUpdate(description, update);
  if (entry != nullptr) entry->is_ending = true;
}

absl::Status ShardStore::RemoveTileFile(const TileDescription& description) {
  SHARDMESH_FAILPOINT("tiles.remove_for_update");
  const std::string folder = StrCat(data_dir_, "/arrays/", description.array_id);
  const std::string path = StrCat(folder, "/", TileFileName(description.tile));
  absl::Status removed;
  absl::Notification is_done;
  {
    absl::MutexLock lock(&mutex_);
    PushFiles({.array_ids = {description.array_id},
               .work = [this, folder, path,
                        array_id = description.array_id](FileEffects* effects) -> absl::Status {
                 if (unlink(path.c_str()) != 0 && errno != ENOENT) {
                   return FileError("remove", path, errno);
                 }
                 if (rmdir(folder.c_str()) == 0) {  // succeeds only if the folder is empty
                   effects->gone_ids.push_back(array_id);
                   effects->changed_folders.insert(StrCat(data_dir_, "/arrays"));
                 } else {
                   effects->changed_folders.insert(folder);
                 }
                 return absl::OkStatus();
               },
               .done =
                   [&](const absl::Status& status) {
                     removed = status;
                     is_done.Notify();
                   }});
  }
  is_done.WaitForNotification();
  return removed;
}

absl::Status ShardStore::HoldPlainForUpdate(const TileDescription& description, int64_t update) {
  StoredTilePtr held;
  {
    absl::MutexLock lock(&mutex_);
    const TileEntry* const entry = EntryOfUpdate(description, update);
    if (entry == nullptr) return DroppedMeanwhile(description.array_id, description.tile);
    if (entry->stored->form() == nullptr) return absl::OkStatus();
    held = entry->stored;
  }
  StoredTilePtr plain;
  {
    SHARDMESH_ASSIGN_OR_RETURN(const StoredTilePtr unpacked, Unpacked(held));
    plain = OwnObjectFor(*unpacked);
  }
  absl::MutexLock lock(&mutex_);
  TileEntry* const entry = EntryOfUpdate(description, update);
  if (entry == nullptr) return DroppedMeanwhile(description.array_id, description.tile);
  entry->stored = std::move(plain);
  return absl::OkStatus();
}

absl::Status ShardStore::MakeVolatile(const TileDescription& description, int64_t update) {
  StoredTilePtr old;
  {
    absl::MutexLock lock(&mutex_);
    const TileEntry* const entry = EntryOfUpdate(description, update);
    if (entry == nullptr) return DroppedMeanwhile(description.array_id, description.tile);
    old = entry->stored;
  }
  std::shared_ptr<Buffer> buffer = old->buffer_;
  if (old->is_unloaded()) {
    SHARDMESH_ASSIGN_OR_RETURN(Buffer copy,
                               pool_->Allocate(static_cast<int64_t>(old->bytes().size()),
                                               NameOf(description.array_id, description.tile)));
    std::copy(old->bytes().begin(), old->bytes().end(), copy.data());
    buffer = std::make_shared<Buffer>(std::move(copy));
  }
  // Replaced before the file is removed, so that nobody writes the file again: see RewriteFile.
  {
    auto kept = std::make_shared<const StoredTile>(description, std::move(buffer), old->crc32c(),
                                                   /*durable=*/false);
    absl::MutexLock lock(&mutex_);
    TileEntry* const entry = EntryOfUpdate(description, update);
    if (entry == nullptr) return DroppedMeanwhile(description.array_id, description.tile);
    entry->stored = std::move(kept);
  }
  absl::Status removed = RemoveTileFile(description);
  if (removed.ok()) return removed;
  // The next update tries again.
  absl::MutexLock lock(&mutex_);
  TileEntry* const entry = EntryOfUpdate(description, update);
  if (entry != nullptr) entry->stored = std::move(old);
  return removed;
}

absl::StatusOr<std::unique_ptr<StateTile>> ShardStore::BeginUpdate(std::string_view array_id,
                                                                   const Tile& tile, int64_t step) {
  SHARDMESH_FAILPOINT("tiles.begin_update");
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t update, ReserveUpdate(array_id, tile));
  TileDescription description;
  bool is_durable = false;
  {
    absl::MutexLock lock(&mutex_);
    const TileEntry* const entry = EntryOf(array_id, tile);
    if (entry == nullptr || entry->update != update) return DroppedMeanwhile(array_id, tile);
    description = entry->stored->description();
    is_durable = entry->stored->durable();
  }
  absl::Cleanup give_up = [&] { EndUpdate(description, update, nullptr); };
  SHARDMESH_RETURN_IF_ERROR(HoldPlainForUpdate(description, update));
  if (is_durable) SHARDMESH_RETURN_IF_ERROR(MakeVolatile(description, update));
  StoredTilePtr old;
  {
    absl::MutexLock lock(&mutex_);
    TileEntry* const entry = EntryOfUpdate(description, update);
    if (entry == nullptr) return DroppedMeanwhile(array_id, tile);
    // If both use counts are 1, they stay 1 until the update ends: finds wait, and no other thread
    // copies the two pointers.
    entry->is_exclusive = entry->stored.use_count() == 1 &&
                          entry->stored->buffer_.use_count() == 1 &&
                          !entry->stored->buffer_->is_read_only();
    old = entry->stored;
    if (entry->is_exclusive) {
      std::move(give_up).Cancel();
      std::shared_ptr<Buffer> own = old->buffer_;
      return std::unique_ptr<StateTile>(new StateTile(this, std::move(old), std::move(own),
                                                      /*is_exclusive=*/true, step, update));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(Buffer copy, pool_->Allocate(static_cast<int64_t>(old->bytes().size()),
                                                          NameOf(array_id, tile)));
  std::copy(old->bytes().begin(), old->bytes().end(), copy.data());
  std::move(give_up).Cancel();
  return std::unique_ptr<StateTile>(new StateTile(this, std::move(old),
                                                  std::make_shared<Buffer>(std::move(copy)),
                                                  /*is_exclusive=*/false, step, update));
}

}  // namespace shardmesh::worker
