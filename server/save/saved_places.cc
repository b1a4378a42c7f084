// Encodes places as records of the store, and counts for how many arrays each record is the newest.
#include "server/save/saved_places.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "shardmesh/store/v1/store.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/source_file.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kSavedPrefix = "saved/";
// Every transaction requires that this record is unchanged; see ArrayRegistry.
constexpr std::string_view kClusterRecord = "cluster";
// The largest number of deletes in one transaction, within the store's limit.
constexpr size_t kMaxDeletes = 100;
constexpr size_t kDigestBytes = 32;

absl::Status DamagedPlaces(std::string_view key, std::string_view what) {
  return WithReason(absl::DataLossError(StrCat("the record \"", key, "\" of the store ", what)),
                    Reason::kStoreFailed);
}

// Collects places until a record is full.
class RecordMaker {
 public:
  explicit RecordMaker(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Adds the place. Returns false, and adds nothing, if the record has places and no room.
  bool Add(const SavedPlace& place) {
    const SourceFile& file = *place.source.file;
    const bool is_new = file_of_.find(&file) == file_of_.end();
    // Tags, lengths and numbers take less than this.
    constexpr size_t kOtherBytes = 64;
    const size_t size = place.array_id.size() + kOtherBytes +
                        (is_new ? file.path.size() + file.head_sha256.size() + kOtherBytes : 0);
    if (record_.places_size() > 0 && bytes_ + size > max_bytes_) return false;
    bytes_ += size;
    if (is_new) {
      file_of_.emplace(&file, static_cast<uint32_t>(record_.files_size()));
      store::v1::SavedFileRecord& added = *record_.add_files();
      added.set_path(file.path);
      added.set_size_bytes(file.size_bytes);
      added.set_head_sha256(file.head_sha256);
      added.set_head_bytes(file.head_bytes);
    }
    store::v1::SavedPlaceRecord& added = *record_.add_places();
    added.set_array_id(place.array_id);
    added.set_file(file_of_.at(&file));
    added.set_offset_bytes(place.source.offset_bytes);
    return true;
  }
  std::string Bytes() const { return record_.SerializeAsString(); }

 private:
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::map<const SourceFile*, uint32_t> file_of_;
  store::v1::SavedPlacesRecord record_;
};

// Returns the places of a record; DATA_LOSS (STORE_FAILED) if it is damaged.
absl::StatusOr<std::vector<SavedPlace>> DecodePlaces(std::string_view key,
                                                     const std::string& bytes) {
  store::v1::SavedPlacesRecord record;
  if (!record.ParseFromString(bytes)) return DamagedPlaces(key, "cannot be read");
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (const store::v1::SavedFileRecord& file : record.files()) {
    if (file.path().empty() || file.size_bytes() < 0 || file.head_bytes() < 0 ||
        file.head_sha256().size() != kDigestBytes) {
      return DamagedPlaces(key, "describes an impossible file");
    }
    files.push_back(
        std::make_shared<const SourceFile>(SourceFile{.path = file.path(),
                                                      .size_bytes = file.size_bytes(),
                                                      .modify_time = absl::InfinitePast(),
                                                      .head_sha256 = file.head_sha256(),
                                                      .head_bytes = file.head_bytes()}));
  }
  std::vector<SavedPlace> places;
  for (const store::v1::SavedPlaceRecord& place : record.places()) {
    if (place.file() >= files.size() || place.offset_bytes() < 0) {
      return DamagedPlaces(key, "has an array in no file");
    }
    places.push_back(
        {.array_id = place.array_id(),
         .source = {.file = files[place.file()], .offset_bytes = place.offset_bytes()}});
  }
  return places;
}

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
      const absl::StatusOr<std::vector<SavedPlace>> places = DecodePlaces(item.key, item.value);
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
  std::vector<Transaction> transactions;
  {
    absl::MutexLock state_lock(&state_->mutex);
    ForgetReleased();
    for (auto place = places.begin(); place != places.end();) {
      RecordMaker maker(max_record_bytes_);
      const Records::iterator record =
          state_->records.emplace(StrCat(kSavedPrefix, RandomId()), 0).first;
      for (; place != places.end() && maker.Add(*place); ++place) Move(place->array_id, record);
      transactions.push_back({.puts = {{record->first, maker.Bytes()}}});
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

void SavedPlaces::ForgetReleased() {
  for (auto newest = newest_.begin(); newest != newest_.end();) {
    if (!absl::IsNotFound(registry_->FindArray(newest->first).status())) {
      ++newest;
      continue;
    }
    --newest->second->second;
    newest = newest_.erase(newest);
  }
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
