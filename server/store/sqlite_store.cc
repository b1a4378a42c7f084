// The journal in an SQLite database, and the disk space reserved for urgent transactions.
#include "server/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "server/store/sqlite_database.h"
#include "server/store/store_file.h"
#include "server/store/wal_file.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Pages that one step of a backup copies. A step takes about a millisecond, and commits wait for
// it.
constexpr int kCopiedPages = 256;

// Bytes of the first piece that the reserve releases for a commit. Each further piece is twice as
// large.
constexpr int64_t kPieceBytes = int64_t{64} << 10;

// Opening a store returns free pages of its database to the disk if there are at least this many
// free pages. They must also be at least half of all pages.
constexpr int64_t kVacuumPages = 16'384;

// A page limit that no database reaches.
constexpr int64_t kUnlimitedPages = std::numeric_limits<int32_t>::max() - 1;

// The maximum number of unreadable records that are logged one by one.
constexpr size_t kLoggedRecords = 20;

// The unit of `st_blocks`.
constexpr int64_t kStatBlockBytes = 512;

// Returns the number of bytes on the disk that are free for this user. Returns nullopt if the file
// system does not report it. In that case, no write is refused in advance for lack of space.
std::optional<int64_t> AvailableBytes(const std::string& folder) {
  struct statvfs disk;
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
}

// A file that reserves disk blocks, which the database may use when the disk is full. The reserve
// releases its blocks piece by piece, because other programs may take released blocks, too.
class Reserve {
 public:
  Reserve(const std::string& folder, absl::Duration fill_every)
      : folder_(folder), path_(folder + "/reserve"), fill_every_(fill_every) {}
  // When the database is closed, its log frees blocks. The destructor reserves these blocks, so
  // that the next process has a full reserve.
  ~Reserve() {
    if (is_open_) TakeBack();
  }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;

  // Keeps the blocks that an earlier process reserved, and reserves missing blocks.
  void Open() {
    is_open_ = true;
    struct stat file;
    if (stat(path_.c_str(), &file) == 0 && S_ISREG(file.st_mode)) {
      Cut(std::min({file.st_size, file.st_blocks * kStatBlockBytes, kReservedBytes}) / kPieceBytes *
          kPieceBytes);
      was_used_ = file.st_size < kReservedBytes;
    }
    Fill();
    if (!is_whole()) {
      was_used_ = true;
      LogWarning(
          "the disk has too little room for the reserve that deletions and the next start may "
          "need; make room",
          {{"folder", folder_}, {"reserved_bytes", bytes_}, {"wanted_bytes", kReservedBytes}});
    }
  }

  // Reserves the missing blocks, but at most half of the free space.
  void Fill() {
    next_ = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(fill_every_);
    const std::optional<int64_t> available = AvailableBytes(folder_);
    Grow(available.has_value() ? *available / 2 : kReservedBytes);
  }
  // Reserves the missing blocks, as far as there is space.
  void TakeBack() { Grow(AvailableBytes(folder_).value_or(kReservedBytes)); }

  bool is_whole() const { return bytes_ == kReservedBytes; }
  // The time of the next attempt to fill the reserve.
  std::chrono::steady_clock::time_point next() const { return next_; }

  // Frees `piece` bytes, so that the caller can use their blocks. Returns false if the reserve is
  // empty.
  bool Release(int64_t piece) {
    if (bytes_ == 0) return false;
    if (!is_use_told_) {
      LogWarning("the disk is full: the reserve for deletions and starts is being used; make room",
                 {{"folder", folder_}, {"reserved_bytes", bytes_}});
      is_use_told_ = true;
    }
    was_used_ = true;
    Cut(bytes_ - piece);
    return true;
  }

 private:
  void Grow(int64_t most) {
    // If the request fails, halve it. A disk may provide less than it reports as free, because of
    // limits of this user or because the file system needs metadata.
    for (int64_t bytes = std::min(kReservedBytes - bytes_, most);
         bytes >= kPieceBytes && !Extend(bytes / kPieceBytes * kPieceBytes);) {
      bytes /= 2;
    }
    if (is_whole() && was_used_) {
      LogInfo("the reserve for deletions and starts is whole again",
              {{"folder", folder_}, {"reserved_bytes", bytes_}});
      was_used_ = false;
      is_use_told_ = false;
    }
  }

  void Cut(int64_t bytes) {
    if (bytes > 0 && truncate(path_.c_str(), bytes) == 0) {
      bytes_ = bytes;
      return;
    }
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    bytes_ = 0;
  }

  // Adds blocks after the existing blocks. If that fails, the existing blocks stay. Requests only
  // new blocks: XFS requires free space for the whole request, even if the file already has some of
  // the requested blocks.
  bool Extend(int64_t more) {
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    const bool is_done =
        !SHARDMESH_FAILS("store.fill_reserve") && posix_fallocate(fd, bytes_, more) == 0;
    if (is_done) bytes_ += more;
    const bool has_size = is_done || ftruncate(fd, bytes_) == 0;
    close(fd);
    if (!has_size || bytes_ == 0) Cut(0);
    return is_done;
  }

  const std::string folder_;
  const std::string path_;
  const absl::Duration fill_every_;
  bool is_open_ = false;
  int64_t bytes_ = 0;
  // These flags concern the time since the reserve was last full. was_used_: blocks were released,
  // or the reserve was not full at Open. is_use_told_: this process has logged that blocks are
  // released.
  bool was_used_ = false;
  bool is_use_told_ = false;
  std::chrono::steady_clock::time_point next_;
};

// Allocates disk blocks for the database's file. Before a commit, the file gets the blocks of all
// its pages. The log can therefore always be copied into the file. After the copy, SQLite writes
// the log from its beginning, on blocks that the log has already. Without these blocks, the log
// would grow with each deletion on a full disk.
//
// Blocks beyond the end of the file do not change its size. Thread-compatible.
class FileBlocks {
 public:
  FileBlocks() = default;
  ~FileBlocks() {
    // Close this descriptor after SQLite's: closing any descriptor of a file drops SQLite's locks
    // on it.
    if (fd_ >= 0) close(fd_);
  }
  FileBlocks(const FileBlocks&) = delete;
  FileBlocks& operator=(const FileBlocks&) = delete;

  // If the file cannot be opened, Take allocates no blocks.
  void Open(const std::string& path, const std::string& folder) {
    folder_ = folder;
    fd_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  }

  // Allocates blocks for a file of this size. RESOURCE_EXHAUSTED (STORE_FULL): the disk has too few
  // free blocks.
  absl::Status Take(int64_t bytes) {
    if (fd_ < 0 || bytes <= bytes_) return absl::OkStatus();
    struct stat file;
    if (fstat(fd_, &file) != 0) return absl::OkStatus();  // the write will report the error
    // Count the whole file as allocated. The file rarely has a hole, which is a page that SQLite
    // never wrote. Copying the log fills the hole.
    bytes_ = std::max<int64_t>(bytes_, file.st_size);
    if (bytes <= bytes_) return absl::OkStatus();
    const std::optional<int64_t> available = AvailableBytes(folder_);
    const int64_t blocks = file.st_blocks * kStatBlockBytes;
    // Check the free space before the request: a failing request may use up all free blocks before
    // it fails.
    if (available.has_value() && bytes - std::max(bytes_, blocks) > *available) {
      return NoRoom(bytes, available);
    }
    int64_t wanted = bytes;
    if (!available.has_value() || *available > 2 * kReservedBytes) wanted += kSpareBytes;
    int error = Allocate(wanted);
    if (IsNoRoom(error) && wanted > bytes) error = Allocate(wanted = bytes);
    // Ignore the error if the file has enough blocks, which an earlier process allocated. XFS
    // requires free space for the whole request even in that case.
    if (IsNoRoom(error) && blocks < bytes) return NoRoom(bytes, available);
    // Ignore other errors: some file systems cannot allocate blocks in advance, and the write will
    // report errors of the disk.
    bytes_ = error == 0 ? wanted : bytes;
    return absl::OkStatus();
  }
  // Forgets how many bytes have blocks. Copying the log truncates the file to the database's size,
  // which may free the blocks beyond that size.
  void Forget() { bytes_ = 0; }

 private:
  static constexpr int64_t kSpareBytes = int64_t{256} << 10;

  static bool IsNoRoom(int error) { return error == ENOSPC || error == EDQUOT; }

  // Allocates blocks for the bytes from `bytes_` up to `to`. Requests only new blocks: XFS requires
  // free space for the whole request. Returns 0 or an errno.
  int Allocate(int64_t to) const {
    int result = 0;
    do {
      result = SHARDMESH_FAILS("store.allocate")
                   ? -1
                   : fallocate(fd_, FALLOC_FL_KEEP_SIZE, bytes_, to - bytes_);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
  }

  absl::Status NoRoom(int64_t bytes, std::optional<int64_t> available) const {
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("no room for the state on disk: the database in ", folder_, " would have ",
                   bytes, " bytes, and ", available.has_value() ? StrCat(*available) : "too few",
                   " bytes are free; make room, or delete what is not needed")),
        Reason::kStoreFull,
        {{fact::kHave, available.has_value() ? StrCat(*available) : ""},
         {fact::kNeed, bytes},
         {fact::kFile, folder_}});
  }

  std::string folder_;
  int fd_ = -1;
  int64_t bytes_ = 0;  // bytes of the file that have blocks
};

class SqliteBackup final : public JournalBackup {
 public:
  SqliteBackup(std::unique_ptr<Database::Copy> copy, std::string path)
      : copy_(std::move(copy)), path_(std::move(path)) {}
  ~SqliteBackup() override {
    if (is_whole_) return;
    copy_.reset();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  absl::StatusOr<bool> Step() override {
    SHARDMESH_FAILPOINT("store.backup_step");
    SHARDMESH_ASSIGN_OR_RETURN(const bool is_copied, copy_->Step(kCopiedPages));
    if (!is_copied) return false;
    copy_.reset();
    // Clear the mark that the copy needs a log: the copy includes the log's content.
    SHARDMESH_RETURN_IF_ERROR(ForgetLog(path_));
    is_whole_ = true;
    return true;
  }

 private:
  std::unique_ptr<Database::Copy> copy_;
  const std::string path_;
  bool is_whole_ = false;
};

// The device and inode of a state's files at opening. If a file is removed or renamed while the
// process runs, the open file still accepts writes, but the next start does not find it. SQLite's
// own check (HAS_MOVED) covers only the database, not its log.
class OpenFiles {
 public:
  void Remember(const std::string& database) {
    for (const char* suffix : {"", "-wal"}) {
      struct stat facts = {};
      const std::string path = database + suffix;
      if (stat(path.c_str(), &facts) == 0) files_.push_back({path, facts.st_dev, facts.st_ino});
    }
  }
  absl::Status Check() {
    for (const File& file : files_) {
      struct stat facts = {};
      if (stat(file.path.c_str(), &facts) == 0 && facts.st_dev == file.device &&
          facts.st_ino == file.inode) {
        continue;
      }
      const absl::Status gone = WithReason(
          absl::FailedPreconditionError(StrCat(
              file.path,
              " was moved, removed or replaced while this coordinator has it open: nothing is "
              "written any more. Put it back; or, before the coordinator ends, save the state "
              "with `shardmesh admin snapshot`, and start with --restore of it")),
          Reason::kStoreFailed, {{fact::kFile, file.path}});
      if (!std::exchange(is_told_, true)) {
        LogError("the database of the state was moved, removed or replaced", {{"error", gone}});
      }
      return gone;
    }
    is_told_ = false;
    return absl::OkStatus();
  }

 private:
  struct File {
    std::string path;
    dev_t device;
    ino_t inode;
  };

  std::vector<File> files_;
  bool is_told_ = false;
};

class SqliteJournal final : public Journal {
 public:
  SqliteJournal(FolderLock lock, std::unique_ptr<Database> database,
                const SqliteStoreOptions& options)
      : lock_(std::move(lock)),
        reserve_(options.folder, options.fill_reserve_every),
        database_(std::move(database)),
        folder_(options.folder),
        quota_bytes_(options.quota_bytes),
        log_pages_(options.log_pages) {}
  // Closes the database. If the log cannot be copied completely, the log stays for the next start.
  ~SqliteJournal() override { Close().IgnoreError(); }
  SqliteJournal(const SqliteJournal&) = delete;
  SqliteJournal& operator=(const SqliteJournal&) = delete;

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
    // Even if the database is already over its quota, urgent transactions may add the reserved
    // pages.
    urgent_pages_ =
        std::max(quota_bytes_ / page_bytes_, *pages + std::max<int64_t>(ReservedPages(), 1));
    // After a large transaction, SQLite shrinks the log's file to this size.
    SHARDMESH_RETURN_IF_ERROR(database_->Execute(StrCat(
        "PRAGMA journal_size_limit = ", std::max(kReservedBytes, 2 * log_pages_ * page_bytes_))));
    blocks_.Open(database_->path(), folder_);
    absl::Status copied = CopyLog();
    reserve_.Open();
    // If the disk had no room, copy the log again with blocks of the reserve. Other programs, or an
    // older build, may have used the space that the copy needs.
    copied = ReleaseUntilDone([this] { return CopyLog(); }, std::move(copied));
    if (!copied.ok() && !absl::IsResourceExhausted(copied)) return copied;
    SHARDMESH_ASSIGN_OR_RETURN(const bool needs_log, NeedsLog(*database_));
    needs_log_ = needs_log && is_copied_;
    is_usable_ = true;
    files_.Remember(database_->path());
    return database_->LimitPages(OrdinaryPages());
  }

  absl::Status Check() override { return files_.Check(); }

  absl::Status Append(const JournalWrite& write) override {
    return Transact(write.urgent ? KeptBack::kAll : KeptBack::kNothing, [&]() -> absl::Status {
      for (const Event& event : write.events) {
        SHARDMESH_RETURN_IF_ERROR(
            InsertRecord(*database_, insert_, RowId(event.position), event.key, event.value.get()));
      }
      SHARDMESH_FAILPOINT("store.append");
      SHARDMESH_RETURN_IF_ERROR(Erase(write.dropped));
      // If the last event has the newest revision and is not dropped, its row records that
      // revision. In all other cases, write the revision to the bounds.
      const bool tells =
          !write.events.empty() && write.events.back().position.revision == write.newest &&
          std::find(write.dropped.begin(), write.dropped.end(), write.events.back().position) ==
              write.dropped.end();
      return tells ? absl::OkStatus() : Update(compacted_, write.newest);
    });
  }

  absl::Status Drop(absl::Span<const EventPosition> superseded, Revision compacted,
                    Revision newest) override {
    const absl::Status dropped = Transact(KeptBack::kOfQuota, [&]() -> absl::Status {
      SHARDMESH_FAILPOINT("store.drop");
      SHARDMESH_RETURN_IF_ERROR(Erase(superseded));
      return Update(compacted, newest);
    });
    if (dropped.ok()) compacted_ = compacted;
    return dropped;
  }

  absl::Status Maintain() override {
    if (MaintainIn() <= absl::ZeroDuration()) reserve_.Fill();
    if (database_->log_pages() < checkpoint_at_) return absl::OkStatus();
    return CopyLog();
  }

  absl::Duration MaintainIn() const override {
    if (reserve_.is_whole()) return absl::InfiniteDuration();
    return absl::FromChrono(reserve_.next() - std::chrono::steady_clock::now());
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

  std::vector<std::string> UnreadableKeys() const override { return named_keys_; }

  // Notes which records are unreadable. Call it before other threads use the object. `index` must
  // hold the readable records.
  void SetUnreadable(const std::vector<UnreadableRecord>& records, const RevisionIndex& index) {
    unreadable_ = static_cast<int64_t>(records.size());
    std::set<std::string> keys;
    for (const UnreadableRecord& record : records) {
      keys.insert(record.key);
      const Revision revision = PositionOf(record.row_id).revision;
      if (record.lost_key_crc.has_value()) {
        Revision& newest = lost_keys_[*record.lost_key_crc];
        newest = std::max(newest, revision);
      } else if (index.PositionsOf(record.key).empty()) {  // else a newer record is readable
        Revision& newest = unreadable_keys_[record.key];
        newest = std::max(newest, revision);
      }
    }
    for (const std::string& key : keys) {
      if (named_keys_.size() == Store::kNamedUnreadable) break;
      named_keys_.push_back(key);
    }
  }

 private:
  int64_t ReservedPages() const {
    return std::min(kReservedBytes, quota_bytes_ / kReservedShare) / page_bytes_;
  }
  int64_t OrdinaryPages() const { return quota_bytes_ / page_bytes_ - ReservedPages(); }

  // The reserves that a transaction may use: none, that of the quota, or those of quota and disk.
  enum class KeptBack { kNothing, kOfQuota, kAll };

  // Runs a transaction. The first transaction of a process also marks the database as needing its
  // log, and is copied into the database's file at once. Later transactions may be in the log only.
  // If the log is lost, the mark in the database's file shows the loss.
  template <typename Writes>
  absl::Status Transact(KeptBack kept_back, Writes writes) {
    absl::Status status = TryTransaction(kept_back, [&]() -> absl::Status {
      SHARDMESH_RETURN_IF_ERROR(writes());
      return needs_log_ ? absl::OkStatus() : SetNeedsLog(*database_, true);
    });
    if (status.ok() && !needs_log_) {
      status = CopyLog();
      needs_log_ = status.ok();
      // If there is no room for the copy, report success: the transaction is committed, and the
      // next transaction copies the log.
      if (absl::IsResourceExhausted(status)) status = absl::OkStatus();
    }
    if (!status.ok() && !absl::IsResourceExhausted(status)) is_usable_ = false;
    return status;
  }

  // Copies all commits into the database, which then does not need the log. After an error the log
  // stays.
  absl::Status Close() {
    if (!is_usable_) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const bool needs_log, NeedsLog(*database_));
    if (needs_log) {
      // Copy the log before the mark is cleared. A checkpoint copies the page with the mark first,
      // and all other pages must be in the database's file by then.
      SHARDMESH_RETURN_IF_ERROR(CopyLog());
      SHARDMESH_RETURN_IF_ERROR(
          TryTransaction(KeptBack::kAll, [this] { return SetNeedsLog(*database_, false); }));
    }
    SHARDMESH_RETURN_IF_ERROR(CopyLog());
    return database_->KeepLog(false);
  }

  template <typename Writes>
  absl::Status TryTransaction(KeptBack kept_back, Writes writes) {
    const auto attempt = [&] {
      return database_->InTransaction([&]() -> absl::Status {
        SHARDMESH_RETURN_IF_ERROR(writes());
        return TakeBlocks();
      });
    };
    absl::Status status = attempt();
    if (absl::IsResourceExhausted(status) && (database_->log_pages() > 0 || !is_copied_)) {
      // Copying the log lets SQLite write the transaction to the log's beginning, where the log has
      // blocks.
      const absl::Status copied = CopyLog();
      if (copied.ok()) {
        status = attempt();
      } else if (!absl::IsResourceExhausted(copied)) {
        return copied;
      }
    }
    if (!absl::IsResourceExhausted(status) || kept_back == KeptBack::kNothing) return status;
    // Lift SQLite's page limit and check the quota here. With the limit, it would be unknown
    // whether the limit or the disk refused a page.
    SHARDMESH_RETURN_IF_ERROR(database_->LimitPages(kUnlimitedPages));
    const auto urgent_attempt = [&] {
      return database_->InTransaction([&]() -> absl::Status {
        SHARDMESH_RETURN_IF_ERROR(writes());
        SHARDMESH_RETURN_IF_ERROR(CheckQuota());
        return TakeBlocks();
      });
    };
    is_over_quota_ = false;
    status = urgent_attempt();
    if (kept_back == KeptBack::kAll) status = ReleaseUntilDone(urgent_attempt, std::move(status));
    if (status.ok() || absl::IsResourceExhausted(status)) {
      SHARDMESH_RETURN_IF_ERROR(database_->LimitPages(OrdinaryPages()));
    }
    return status;
  }

  // Repeats `attempt`, each time after the reserve has released another piece, until there is room
  // or the reserve is empty. Stops releasing once the quota is used up. If there is still no room,
  // takes the released blocks back.
  template <typename Attempt>
  absl::Status ReleaseUntilDone(Attempt attempt, absl::Status status) {
    for (int64_t piece = kPieceBytes;
         absl::IsResourceExhausted(status) && !is_over_quota_ && reserve_.Release(piece);
         piece *= 2) {
      status = attempt();
    }
    if (absl::IsResourceExhausted(status)) reserve_.TakeBack();
    return status;
  }

  // Returns the number of pages of the database after the current transaction. Call it within a
  // transaction.
  absl::StatusOr<int64_t> Pages() {
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database_->Step(pages_));
    const int64_t pages = row ? pages_.Number(0) : 0;
    pages_.Reset();
    return pages;
  }

  // Checks the current transaction against the whole quota. Call it within a transaction.
  absl::Status CheckQuota() {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t pages, Pages());
    is_over_quota_ = pages > urgent_pages_;
    if (!is_over_quota_) return absl::OkStatus();
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("the quota of the state is used up: the database in ", folder_, " would have ",
                   pages * page_bytes_, " bytes of ", urgent_pages_ * page_bytes_,
                   "; delete what is not needed, or give the store more with --store-quota")),
        Reason::kStoreFull,
        {{fact::kHave, urgent_pages_ * page_bytes_},
         {fact::kNeed, pages * page_bytes_},
         {fact::kFile, folder_}});
  }

  // Allocates the blocks of all pages of the database. Call it within a transaction.
  absl::Status TakeBlocks() {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t pages, Pages());
    return blocks_.Take(pages * page_bytes_);
  }

  // Copies the log into the database. The next transaction then starts at the log's beginning.
  absl::Status CopyLog() {
    SHARDMESH_PASSES("store.checkpoint");
    absl::Status copied = TakeBlocks();
    if (copied.ok()) copied = database_->Checkpoint();
    is_copied_ = copied.ok();
    if (!copied.ok() && !absl::IsResourceExhausted(copied)) is_usable_ = false;
    if (is_copied_) blocks_.Forget();
    // If the disk is full, the pages stay in the log, where they are just as safe. Copy the log
    // again once it has log_pages_ further pages: there may be room at that time.
    checkpoint_at_ = is_copied_ ? log_pages_ : database_->log_pages() + log_pages_;
    return copied;
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

  // Declared in this order for destruction: statements before their connection, the connection
  // before its files, the lock last.
  const FolderLock lock_;
  Reserve reserve_;
  FileBlocks blocks_;
  const std::unique_ptr<Database> database_;
  Database::Statement insert_;
  Database::Statement erase_;
  Database::Statement update_;
  Database::Statement pages_;
  Database::Statement free_pages_;
  const std::string folder_;
  const int64_t quota_bytes_;
  const int64_t log_pages_;
  int64_t page_bytes_ = 4096;
  int64_t urgent_pages_ = 0;
  bool is_over_quota_ = false;  // the last attempt exceeded the quota
  Revision compacted_ = 0;
  int64_t checkpoint_at_ = log_pages_;
  bool is_copied_ = false;  // whether the last CopyLog succeeded
  // True if the database's file has the mark that the database needs its log.
  bool needs_log_ = false;
  // True once the journal is prepared. False again after any error except lack of space.
  bool is_usable_ = false;
  OpenFiles files_;
  int64_t unreadable_ = 0;
  std::vector<std::string> named_keys_;
  // The newest unreadable revision of each key. `unreadable_keys_` is by key. `lost_keys_` is for
  // damaged keys, by the checksum of the original key. Constant once other threads use the object.
  absl::flat_hash_map<std::string, Revision> unreadable_keys_;
  absl::flat_hash_map<uint32_t, Revision> lost_keys_;
};

// Removes copies that an earlier process made and nobody fetched.
void RemoveSnapshots(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.compare(0, kSnapshotPrefix.size(), kSnapshotPrefix) == 0) {
      std::filesystem::remove(entry.path(), error);
    }
  }
}

// Returns free pages of the database to the disk, if they are many (kVacuumPages).
absl::Status GiveBackFreePages(Database& database, const std::string& folder) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto pages, database.Number("PRAGMA page_count"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto free, database.Number("PRAGMA freelist_count"));
  if (*free < kVacuumPages || *free < *pages / 2) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const auto page_bytes, database.Number("PRAGMA page_size"));
  // VACUUM writes the database twice: to a temporary file and to the log. If there may be no space
  // for this, keep the free pages for later records.
  if (AvailableBytes(folder).value_or(0) <
      2 * (*pages - *free) * *page_bytes + 2 * kReservedBytes) {
    return absl::OkStatus();
  }
  const absl::Status vacuumed = database.Execute("VACUUM");
  return absl::IsResourceExhausted(vacuumed) ? absl::OkStatus() : vacuumed;
}

void LogUnreadable(const std::string& path, const std::vector<UnreadableRecord>& records) {
  if (records.empty()) return;
  for (size_t i = 0; i < std::min(records.size(), kLoggedRecords); ++i) {
    LogError("a record of the store cannot be read and is left out",
             {{"key", records[i].key},
              {"revision", PositionOf(records[i].row_id).revision},
              {"why", records[i].why}});
  }
  LogError(
      "the store has unreadable records; `shardmesh admin check FOLDER` shows them, "
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
  SHARDMESH_RETURN_IF_ERROR(CheckHasState(options.folder));
  SHARDMESH_RETURN_IF_ERROR(CheckHasLog(DatabasePath(options.folder)));

  auto database = std::make_unique<Database>(DatabasePath(options.folder));
  // Check the log before SQLite opens it: SQLite would drop the log's content after a damaged
  // frame.
  SHARDMESH_ASSIGN_OR_RETURN(const WalFile log, WalFile::Read(database->path() + "-wal"));
  SHARDMESH_RETURN_IF_ERROR(log.damage());
  SHARDMESH_RETURN_IF_ERROR(database->Open(options.vfs));
  // Keep the log on close: a state that is refused, or whose coordinator fails, must stay
  // unchanged.
  SHARDMESH_RETURN_IF_ERROR(database->KeepLog(true));
  // Only this connection uses the database, so SQLite needs no shared memory file for the log's
  // index.
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(*database));
  if (version == 0) SHARDMESH_RETURN_IF_ERROR(CheckIsNew(options.folder));
  SHARDMESH_RETURN_IF_ERROR(database->CheckPages());
  SHARDMESH_RETURN_IF_ERROR(database->UseLog());
  // An earlier process may have failed to sync the log's content. Copy and sync the content, so
  // that it is durable before it is served.
  if (const absl::Status copied = database->Checkpoint();
      !copied.ok() && !absl::IsResourceExhausted(copied)) {
    return copied;
  }
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(*database));
  SHARDMESH_RETURN_IF_ERROR(GiveBackFreePages(*database, options.folder));
  SHARDMESH_ASSIGN_OR_RETURN(StoredState state, ReadState(*database));
  LogUnreadable(database->path(), state.unreadable);

  auto journal = std::make_unique<SqliteJournal>(std::move(lock), std::move(database), options);
  journal->SetUnreadable(state.unreadable, state.index);
  SHARDMESH_RETURN_IF_ERROR(journal->Prepare());
  return std::make_unique<LocalStore>(std::move(state.index), std::move(journal),
                                      std::move(options.local));
}

}  // namespace shardmesh::server
