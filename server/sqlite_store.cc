// The journal in an SQLite database, and the space that is kept back for making room.
#include "server/sqlite_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "rpc/log.h"
#include "server/sqlite_database.h"
#include "server/store_file.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "tensor/failpoint.h"

namespace shardmesh::server {
namespace {

// Pages that a step of a copy moves: about a millisecond, for which commits wait.
constexpr int kCopiedPages = 256;

// How often space is looked for that can be reserved again.
constexpr std::chrono::seconds kReserveEvery(10);

// Free pages that are given back to the disk when a store is opened, if they are more than half.
constexpr int64_t kVacuumPages = 16'384;

// Unreadable records that are logged one by one.
constexpr size_t kLoggedRecords = 20;

// A file whose blocks are there for the database when the disk has no others.
class Reserve {
 public:
  explicit Reserve(std::string path) : path_(std::move(path)) {}

  // Takes the blocks if the disk has plenty.
  void Fill() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + kReserveEvery;
    std::error_code ignored;
    if (std::filesystem::file_size(path_, ignored) == static_cast<uintmax_t>(kReservedBytes) &&
        !ignored) {
      is_filled_ = true;
      return;
    }
    struct statvfs disk;
    const std::string folder = std::filesystem::path(path_).parent_path();
    if (statvfs(folder.c_str(), &disk) != 0 ||
        static_cast<int64_t>(disk.f_bavail * disk.f_frsize) < 2 * kReservedBytes) {
      return;
    }
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    is_filled_ =
        !SHARDMESH_FAILS("store.fill_reserve") && posix_fallocate(fd, 0, kReservedBytes) == 0;
    close(fd);
    if (!is_filled_) std::filesystem::remove(path_, ignored);
  }
  bool is_filled() const { return is_filled_; }
  // Gives the blocks to whoever takes them; false if there are none.
  bool Release() {
    if (!is_filled_) return false;
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    is_filled_ = false;
    next_ = std::chrono::steady_clock::now() + kReserveEvery;
    return true;
  }

 private:
  const std::string path_;
  bool is_filled_ = false;
  std::chrono::steady_clock::time_point next_;
};

class SqliteBackup final : public JournalBackup {
 public:
  SqliteBackup(std::unique_ptr<Database::Copy> copy, std::string path)
      : copy_(std::move(copy)), path_(std::move(path)) {}
  ~SqliteBackup() override {
    if (is_done_) return;
    copy_.reset();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  absl::StatusOr<bool> Step() override {
    SHARDMESH_FAILPOINT("store.backup_step");
    SHARDMESH_ASSIGN_OR_RETURN(is_done_, copy_->Step(kCopiedPages));
    return is_done_;
  }

 private:
  std::unique_ptr<Database::Copy> copy_;
  const std::string path_;
  bool is_done_ = false;
};

class SqliteJournal final : public Journal {
 public:
  SqliteJournal(FolderLock lock, std::unique_ptr<Database> database,
                const SqliteStoreOptions& options)
      : lock_(std::move(lock)),
        database_(std::move(database)),
        reserve_(options.folder + "/reserve"),
        quota_bytes_(options.quota_bytes),
        log_pages_(options.log_pages) {}

  absl::Status Prepare() {
    SHARDMESH_ASSIGN_OR_RETURN(insert_, database_->Prepare(kInsertRecord));
    SHARDMESH_ASSIGN_OR_RETURN(erase_, database_->Prepare("DELETE FROM event WHERE position = ?1"));
    SHARDMESH_ASSIGN_OR_RETURN(
        update_, database_->Prepare("UPDATE bounds SET compacted = ?1, newest = ?2, crc = ?3"));
    SHARDMESH_ASSIGN_OR_RETURN(pages_, database_->Prepare("PRAGMA page_count"));
    SHARDMESH_ASSIGN_OR_RETURN(free_pages_, database_->Prepare("PRAGMA freelist_count"));
    SHARDMESH_ASSIGN_OR_RETURN(const auto page_size, database_->Number("PRAGMA page_size"));
    SHARDMESH_ASSIGN_OR_RETURN(const StoredBounds bounds, ReadBounds(*database_));
    SHARDMESH_ASSIGN_OR_RETURN(const auto pages, database_->Number("PRAGMA page_count"));
    page_bytes_ = *page_size;
    compacted_ = bounds.compacted;
    // A database that is over its quota already may still write so much more.
    urgent_pages_ =
        std::max(quota_bytes_ / page_bytes_, *pages + std::max<int64_t>(ReservedPages(), 1));
    reserve_.Fill();
    return database_->LimitPages(OrdinaryPages());
  }

  absl::Status Append(const JournalWrite& write) override {
    return WithReserve(write.urgent, [&]() -> absl::Status {
      for (const Event& event : write.events) {
        SHARDMESH_RETURN_IF_ERROR(
            InsertRecord(*database_, insert_, RowId(event.position), event.key, event.value.get()));
      }
      SHARDMESH_FAILPOINT("store.append");
      SHARDMESH_RETURN_IF_ERROR(Erase(write.dropped));
      // The newest event that stays tells the revision, if there is one.
      const bool tells =
          !write.events.empty() && write.events.back().position.revision == write.newest &&
          std::find(write.dropped.begin(), write.dropped.end(), write.events.back().position) ==
              write.dropped.end();
      return tells ? absl::OkStatus() : Update(compacted_, write.newest);
    });
  }

  absl::Status Drop(absl::Span<const EventPosition> superseded, Revision compacted,
                    Revision newest) override {
    const absl::Status dropped = WithReserve(true, [&]() -> absl::Status {
      SHARDMESH_FAILPOINT("store.drop");
      SHARDMESH_RETURN_IF_ERROR(Erase(superseded));
      return Update(compacted, newest);
    });
    if (dropped.ok()) compacted_ = compacted;
    return dropped;
  }

  absl::Status Maintain() override {
    if (!reserve_.is_filled()) reserve_.Fill();
    if (database_->log_pages() < checkpoint_at_) return absl::OkStatus();
    SHARDMESH_PASSES("store.checkpoint");
    const absl::Status copied = database_->Checkpoint();
    // A full disk leaves the pages in the log, where they are as safe; later there may be room.
    checkpoint_at_ = copied.ok() ? log_pages_ : database_->log_pages() + log_pages_;
    return copied;
  }

  absl::StatusOr<std::unique_ptr<JournalBackup>> BeginBackup(const std::string& path) override {
    SHARDMESH_FAILPOINT("store.begin_backup");
    SHARDMESH_ASSIGN_OR_RETURN(auto copy, database_->BeginCopy(path));
    return std::make_unique<SqliteBackup>(std::move(copy), path);
  }

  void AddStats(StoreStats* stats) override {
    const auto number = [this](const Database::Statement& statement) -> int64_t {
      const absl::StatusOr<bool> row = database_->Step(statement);
      const int64_t value = row.ok() && *row ? statement.Number(0) : 0;
      statement.Reset();
      return value;
    };
    const int64_t pages = number(pages_);
    stats->file_bytes = pages * page_bytes_;
    stats->used_bytes = (pages - number(free_pages_)) * page_bytes_;
    stats->quota_bytes = quota_bytes_;
    stats->unreadable_records = unreadable_;
  }

  Revision UnreadableRevision(std::string_view key) const override {
    if (const auto found = unreadable_keys_.find(ToAbsl(key)); found != unreadable_keys_.end()) {
      return found->second;
    }
    if (lost_keys_.empty()) return 0;
    const auto found = lost_keys_.find(KeyChecksum(key));
    return found == lost_keys_.end() ? 0 : found->second;
  }

  // Before anybody else uses it. `index` has what can be read.
  void SetUnreadable(const std::vector<UnreadableRecord>& records, const RevisionIndex& index) {
    unreadable_ = static_cast<int64_t>(records.size());
    for (const UnreadableRecord& record : records) {
      const Revision revision = PositionOf(record.row_id).revision;
      if (record.lost_key_crc.has_value()) {
        Revision& newest = lost_keys_[*record.lost_key_crc];
        newest = std::max(newest, revision);
      } else if (index.PositionsOf(record.key).empty()) {  // else something newer is known
        Revision& newest = unreadable_keys_[record.key];
        newest = std::max(newest, revision);
      }
    }
  }

 private:
  int64_t ReservedPages() const {
    return std::min(kReservedBytes, quota_bytes_ / kReservedShare) / page_bytes_;
  }
  int64_t OrdinaryPages() const { return quota_bytes_ / page_bytes_ - ReservedPages(); }

  // Runs a transaction, which may use the reserve if there is no room otherwise.
  template <typename Writes>
  absl::Status WithReserve(bool may_use, Writes writes) {
    absl::Status status = database_->InTransaction(writes);
    if (!absl::IsResourceExhausted(status) || !may_use) return status;
    SHARDMESH_RETURN_IF_ERROR(database_->LimitPages(urgent_pages_));
    status = database_->InTransaction(writes);
    if (absl::IsResourceExhausted(status) && reserve_.Release()) {
      status = database_->InTransaction(writes);
    }
    if (status.ok() || absl::IsResourceExhausted(status)) {
      SHARDMESH_RETURN_IF_ERROR(database_->LimitPages(OrdinaryPages()));
    }
    return status;
  }

  absl::Status Erase(absl::Span<const EventPosition> positions) {
    for (const EventPosition& position : positions) {
      erase_.BindNumber(1, RowId(position));
      SHARDMESH_RETURN_IF_ERROR(database_->Run(erase_));
    }
    return absl::OkStatus();
  }

  absl::Status Update(Revision compacted, Revision newest) {
    update_.BindNumber(1, compacted);
    update_.BindNumber(2, newest);
    update_.BindNumber(3, BoundsChecksum(compacted, newest));
    return database_->Run(update_);
  }

  // In this order: the statements go before their connection, the lock last.
  const FolderLock lock_;
  const std::unique_ptr<Database> database_;
  Database::Statement insert_;
  Database::Statement erase_;
  Database::Statement update_;
  Database::Statement pages_;
  Database::Statement free_pages_;
  Reserve reserve_;
  const int64_t quota_bytes_;
  const int64_t log_pages_;
  int64_t page_bytes_ = 4096;
  int64_t urgent_pages_ = 0;
  Revision compacted_ = 0;
  int64_t checkpoint_at_ = log_pages_;
  int64_t unreadable_ = 0;
  // What the commit was that wrote what cannot be read: by key, and by the checksum of a key that
  // cannot be read either. Constant once others use it.
  absl::flat_hash_map<std::string, Revision> unreadable_keys_;
  absl::flat_hash_map<uint32_t, Revision> lost_keys_;
};

// Copies of an earlier process that nobody fetched.
void RemoveSnapshots(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.compare(0, kSnapshotPrefix.size(), kSnapshotPrefix) == 0) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

// Gives the disk back what a store had once and has no longer.
absl::Status GiveBackFreePages(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto pages, database.Number("PRAGMA page_count"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto free, database.Number("PRAGMA freelist_count"));
  if (*free < kVacuumPages || *free < *pages / 2) return absl::OkStatus();
  const absl::Status vacuumed = database.Execute("VACUUM");
  return absl::IsResourceExhausted(vacuumed) ? absl::OkStatus() : vacuumed;
}

void LogUnreadable(const std::string& path, const std::vector<UnreadableRecord>& records) {
  if (records.empty()) return;
  for (size_t i = 0; i < std::min(records.size(), kLoggedRecords); ++i) {
    rpc::LogError("a record of the store cannot be read and is left out",
                  {{"key", records[i].key},
                   {"revision", PositionOf(records[i].row_id).revision},
                   {"why", records[i].why}});
  }
  rpc::LogError(
      "the store has unreadable records; `shardmesh-coordinator --check FOLDER` shows them, "
      "with --set-aside it moves them aside",
      {{"file", path}, {"records", records.size()}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(SqliteStoreOptions options) {
  SHARDMESH_RETURN_IF_ERROR(MakeDataFolder(options.folder));
  SHARDMESH_ASSIGN_OR_RETURN(FolderLock lock,
                             FolderLock::Take(options.folder, options.lock_timeout));
  SHARDMESH_RETURN_IF_ERROR(FinishReplacement(options.folder));
  RemoveSnapshots(options.folder);

  auto database = std::make_unique<Database>(DatabasePath(options.folder));
  SHARDMESH_RETURN_IF_ERROR(database->Open(options.vfs));
  // One process, one connection: so the log's index needs no shared memory file.
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_RETURN_IF_ERROR(SchemaVersionOf(*database).status());
  SHARDMESH_RETURN_IF_ERROR(database->CheckPages());
  SHARDMESH_RETURN_IF_ERROR(database->UseLog());
  // What is in the log may be there though its sync failed: it counts once it is copied and synced.
  if (const absl::Status copied = database->Checkpoint();
      !copied.ok() && !absl::IsResourceExhausted(copied)) {
    return copied;
  }
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(*database));
  SHARDMESH_RETURN_IF_ERROR(GiveBackFreePages(*database));
  SHARDMESH_ASSIGN_OR_RETURN(StoredState state, ReadState(*database));
  LogUnreadable(database->path(), state.unreadable);

  auto journal = std::make_unique<SqliteJournal>(std::move(lock), std::move(database), options);
  journal->SetUnreadable(state.unreadable, state.index);
  SHARDMESH_RETURN_IF_ERROR(journal->Prepare());
  return std::make_unique<LocalStore>(std::move(state.index), std::move(journal),
                                      std::move(options.local));
}

}  // namespace shardmesh::server
