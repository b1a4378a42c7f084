// Counts for how many arrays each record of the store is the newest.
#include "server/save/saved_places.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kSavedPrefix = "saved/";
// Every transaction requires that this record is unchanged; see ArrayRegistry.
constexpr std::string_view kClusterRecord = "cluster";
// The largest number of deletes in one transaction, within the store's limit.
constexpr size_t kMaxDeletes = 100;

}  // namespace

SavedPlaces::SavedPlaces(ArrayRegistry* registry, Store* store, size_t max_record_bytes)
    : registry_(registry), store_(store), max_record_bytes_(max_record_bytes) {
  if (store_ == nullptr) return;
  const absl::StatusOr<KeyValue> cluster = store_->Get(kClusterRecord);
  if (cluster.ok()) cluster_revision_ = cluster->mod_revision;
}

void SavedPlaces::Load() {
  if (store_ == nullptr) return;
  absl::StatusOr<KeyValues> stored = store_->List(kSavedPrefix);
  if (!stored.ok()) {
    LogError("the places of saved checkpoints cannot be read", {{"error", stored.status()}});
    return;
  }
  std::sort(stored->items.begin(), stored->items.end(),
            [](const KeyValue& a, const KeyValue& b) { return a.mod_revision < b.mod_revision; });
  absl::MutexLock lock(&mutex_);
  Transaction transaction;
  {
    absl::MutexLock state_lock(&state_->mutex);
    for (const KeyValue& item : stored->items) {
      const Records::iterator record = state_->records.emplace(item.key, 0).first;
      const absl::StatusOr<std::vector<SavedPlace>> places =
          DecodeSavedPlaces(item.key, item.value);
      if (!places.ok()) {
        LogError("a record of a saved checkpoint is deleted: repairs do not read this checkpoint",
                 {{"key", item.key}, {"error", places.status()}});
        continue;
      }
      for (const SavedPlace& place : *places) {
        if (!registry_->FindArray(place.array_id).ok()) continue;
        registry_->SetCheckpoint(place.array_id, place.source);
        Move(place.array_id, record);
      }
    }
    AddDeletes(&transaction);
  }
  if (!transaction.deletes.empty()) Commit(std::move(transaction));
}

void SavedPlaces::Remember(const std::vector<SavedPlace>& places) {
  absl::MutexLock lock(&mutex_);
  for (const SavedPlace& place : places) {
    registry_->SetCheckpoint(place.array_id, place.source);
  }
  if (store_ == nullptr || places.empty()) return;
  const std::vector<Newest::iterator> released = FindReleased();
  std::vector<Transaction> transactions;
  {
    absl::MutexLock state_lock(&state_->mutex);
    for (const Newest::iterator newest : released) {
      --newest->second->second;
      newest_.erase(newest);
    }
    auto place = places.begin();
    for (SavedPlacesRecord& each : EncodeSavedPlaces(places, max_record_bytes_)) {
      const Records::iterator record =
          state_->records.emplace(StrCat(kSavedPrefix, RandomId()), 0).first;
      for (size_t i = 0; i < each.places; ++i, ++place) Move(place->array_id, record);
      transactions.push_back({.puts = {{record->first, std::move(each.bytes)}}});
    }
    // With the last record, so that an earlier end leaves the old places.
    AddDeletes(&transactions.back());
  }
  for (Transaction& transaction : transactions) Commit(std::move(transaction));
}

void SavedPlaces::Move(const std::string& array_id, Records::iterator to) {
  const auto [newest, is_new] = newest_.emplace(array_id, to);
  if (!is_new) --newest->second->second;
  newest->second = to;
  ++to->second;
}

std::vector<SavedPlaces::Newest::iterator> SavedPlaces::FindReleased() {
  std::vector<Newest::iterator> released;
  for (auto newest = newest_.begin(); newest != newest_.end(); ++newest) {
    if (absl::IsNotFound(registry_->FindArray(newest->first).status())) released.push_back(newest);
  }
  return released;
}

void SavedPlaces::AddDeletes(Transaction* transaction) {
  for (const auto& [key, arrays] : state_->records) {
    if (arrays > 0) continue;
    if (transaction->deletes.size() == kMaxDeletes) return;  // the next save deletes the others
    transaction->deletes.push_back(key);
  }
}

void SavedPlaces::Commit(Transaction transaction) const {
  transaction.compares.push_back({std::string(kClusterRecord), cluster_revision_});
  std::vector<std::string> deletes = transaction.deletes;
  store_->Commit(std::move(transaction), [state = state_, deletes = std::move(deletes)](
                                             const absl::StatusOr<Revision>& committed) {
    if (!committed.ok()) {
      LogWarning(
          "the place of a saved checkpoint is not in the store: after a restart, repairs do "
          "not read this checkpoint",
          {{"error", committed.status()}});
      return;
    }
    absl::MutexLock lock(&state->mutex);
    for (const std::string& key : deletes) state->records.erase(key);
  });
}

}  // namespace shardmesh::server
