// Folder locks, schema versions, migrations and checksums.
#include "server/store/store_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/lock_file.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The application id "shdm" in the database's header: the database belongs to this program.
constexpr int64_t kApplicationId = 0x7368646d;

// Suffix of a database that is about to replace the folder's database. Without the suffix, its path
// is the path that the replaced database will get.
constexpr std::string_view kNextSuffix = ".next";

// Flag in user_version, beside the schema version: the database needs its log.
constexpr int64_t kNeedsLog = 0x10000;

// Fields of a database's header, https://sqlite.org/fileformat2.html#the_database_header.
constexpr size_t kDatabaseHeaderBytes = 100;
constexpr std::string_view kMagic("SQLite format 3\0", 16);
constexpr size_t kPageSizeOffset = 16;  // two bytes; 1 stands for 65,536
constexpr size_t kUserVersionOffset = 60;
constexpr size_t kApplicationIdOffset = 68;
// Sizes of a log's header and of a frame's header, https://sqlite.org/fileformat2.html#walformat.
constexpr int64_t kLogHeaderBytes = 32 + 24;

constexpr int kPlaceBits = 8;

// A larger gap between the revisions of two successive rows cannot come from a writer.
constexpr Revision kMaxRevisionGap = Revision{1} << 33;
static_assert(kMaxTransactionOperations <= (1 << kPlaceBits));

absl::Status StoreError(absl::StatusCode code, std::string_view message, std::string_view file) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed,
                    {{fact::kFile, file}});
}

// Interval at which the log names the process that holds the lock, while this process waits for the
// lock.
constexpr absl::Duration kLockLogInterval = absl::Seconds(10);

// The path of the lock file. Its text describes the process that holds the lock.
std::string LockPath(const std::string& folder) { return folder + "/LOCK"; }

absl::Status LockError(const absl::Status& status) {
  return ReasonOf(status) == Reason::kUnspecified ? WithReason(status, Reason::kStoreFailed)
                                                  : status;
}

absl::Status InUse(const std::string& folder, const std::string& holder) {
  return StoreError(absl::StatusCode::kFailedPrecondition,
                    StrCat("the data folder ", folder, " is in use by process ", holder,
                           "; stop it, or use another folder"),
                    folder);
}

absl::Status SystemError(std::string_view doing, const std::string& path) {
  const int error = errno;
  return WithReason(absl::Status(absl::ErrnoToStatusCode(error),
                                 StrCat("cannot ", doing, " ", path, ": ", std::strerror(error))),
                    error == ENOSPC || error == EDQUOT ? Reason::kStoreFull : Reason::kStoreFailed,
                    {{fact::kFile, path}});
}

absl::Status FileSystemError(std::string_view doing, const std::string& path,
                             std::error_code error) {
  errno = error.value();
  return SystemError(doing, path);
}

// Returns the path of a file, other than the database, that shows that a coordinator kept its state
// in the folder. A coordinator makes such files only after its first commit was synced. Returns ""
// if there is none.
absl::StatusOr<std::string> TraceOf(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if ((name == "reserve" && entry->is_regular_file(error)) || name == "restored" ||
        absl::StartsWith(name, "replaced.db-") || absl::StartsWith(name, "damaged.db-")) {
      return entry->path().string();
    }
  }
  if (error) return FileSystemError("list", folder, error);
  return "";
}

absl::Status LostState(const std::string& folder, std::string_view what, std::string_view trace) {
  return StoreError(
      absl::StatusCode::kDataLoss,
      StrCat("the state of the cluster in ", folder, " is lost: ", what, ", though ", trace,
             " is there; put back state.db and state.db-wal as they were, or restore a snapshot "
             "with --restore; workers keep their tiles until then; a new cluster needs an empty "
             "folder"),
      folder);
}

uint32_t NumberAt(std::string_view bytes, size_t at, size_t size = 4) {
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Returns the header of a coordinator's database; empty if the file is no such database.
absl::StatusOr<std::string> ReadHeader(int fd, const std::string& path) {
  std::string header(kDatabaseHeaderBytes, '\0');
  const ssize_t count = pread(fd, header.data(), header.size(), 0);
  if (count < 0) return SystemError("read", path);
  const bool is_one = static_cast<size_t>(count) == header.size() &&
                      header.compare(0, kMagic.size(), kMagic) == 0 &&
                      NumberAt(header, kApplicationIdOffset) == kApplicationId;
  return is_one ? header : "";
}

// Returns the bytes of a number, the lowest byte first.
std::string NumberBytes(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

// Upgrades version 1 to version 2.
absl::Status AddChecksums(Database& database) {
  SHARDMESH_RETURN_IF_ERROR(database.Execute(
      "ALTER TABLE event ADD COLUMN crc INTEGER;"
      "ALTER TABLE bounds ADD COLUMN crc INTEGER;"
      "CREATE TABLE set_aside (position INTEGER, key BLOB, value BLOB, crc INTEGER, why TEXT)"));
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto next,
      database.Prepare("SELECT position, key, value FROM event WHERE position > ?1 "
                       "ORDER BY position LIMIT 1"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto set,
                             database.Prepare("UPDATE event SET crc = ?2 WHERE position = ?1"));
  for (int64_t last = std::numeric_limits<int64_t>::min();;) {
    next.BindNumber(1, last);
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(next));
    if (!row) break;
    last = next.Number(0);
    const std::string value(next.Bytes(2));
    set.BindNumber(1, last);
    set.BindNumber(2, RecordChecksum(last, next.Bytes(1), next.IsNull(2) ? nullptr : &value));
    next.Reset();
    SHARDMESH_RETURN_IF_ERROR(database.Run(set));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto compacted, database.Number("SELECT compacted FROM bounds"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto newest, database.Number("SELECT newest FROM bounds"));
  if (!compacted.has_value() || !newest.has_value()) {
    return StoreError(absl::StatusCode::kDataLoss,
                      StrCat("the state database is damaged: ", database.path(),
                             " has lost its bounds; restore a snapshot"),
                      database.path());
  }
  return WriteBounds(database, {.compacted = *compacted, .newest = *newest});
}

// Upgrades version 2 to 3. An unreadable record gets no checksum of its key, because its key may be
// the damaged part.
absl::Status AddKeyChecksums(Database& database) {
  SHARDMESH_RETURN_IF_ERROR(database.Execute("ALTER TABLE event ADD COLUMN key_crc INTEGER"));
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto next,
      database.Prepare("SELECT position, key, value, crc FROM event WHERE position > ?1 "
                       "ORDER BY position LIMIT 1"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto set,
                             database.Prepare("UPDATE event SET key_crc = ?2 WHERE position = ?1"));
  for (int64_t last = std::numeric_limits<int64_t>::min();;) {
    next.BindNumber(1, last);
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(next));
    if (!row) return absl::OkStatus();
    last = next.Number(0);
    const std::string key(next.Bytes(1));
    const std::string value(next.Bytes(2));
    const bool is_sound =
        next.IsNumber(3) &&
        next.Number(3) == RecordChecksum(last, key, next.IsNull(2) ? nullptr : &value);
    next.Reset();
    if (!is_sound) continue;
    set.BindNumber(1, last);
    set.BindNumber(2, KeyChecksum(key));
    SHARDMESH_RETURN_IF_ERROR(database.Run(set));
  }
}

// kMigrations[v - 1] upgrades version v to v + 1.
using Migration = absl::Status (*)(Database& database);
constexpr Migration kMigrations[] = {&AddChecksums, &AddKeyChecksums};
static_assert(std::size(kMigrations) == kSchemaVersion - 1);

}  // namespace

std::string DatabasePath(std::string_view folder) { return StrCat(folder, "/state.db"); }

absl::Status MakeDataFolder(const std::string& folder) {
  if (SHARDMESH_FAILS("store.make_folder") || mkdir(folder.c_str(), 0700) != 0) {
    if (errno == EEXIST) return absl::OkStatus();
    return SystemError("make the data folder", folder);
  }
  const std::string parent = std::filesystem::path(folder).parent_path();
  return SyncFolder(parent.empty() ? "." : parent);
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", folder);
  const bool synced = !SHARDMESH_FAILS("store.sync_folder") && fsync(fd) == 0;
  const absl::Status status = synced ? absl::OkStatus() : SystemError("sync", folder);
  close(fd);
  return status;
}

absl::StatusOr<std::string> ReplaceDatabase(const std::string& folder, const std::string& prepared,
                                            std::string_view name) {
  std::error_code error;
  const bool has_one = std::filesystem::exists(DatabasePath(folder), error);
  if (error) return FileSystemError("look for", DatabasePath(folder), error);
  std::string to;
  for (int i = 1;; ++i) {
    to = StrCat(folder, "/", name, "-", i);
    if (!std::filesystem::exists(to, error)) break;
  }
  if (error) return FileSystemError("look for", to, error);
  const std::string next = StrCat(to, kNextSuffix);
  if (SHARDMESH_FAILS("store.replace") || rename(prepared.c_str(), next.c_str()) != 0) {
    return SystemError("rename", prepared);
  }
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(folder));
  SHARDMESH_RETURN_IF_ERROR(FinishReplacement(folder));
  return has_one ? to : "";
}

absl::StatusOr<std::string> NextDatabase(const std::string& folder) {
  std::error_code error;
  std::string next;
  if (!std::filesystem::is_directory(folder, error)) return next;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path();
    if (absl::EndsWith(path, ToAbsl(kNextSuffix)) && absl::StrContains(path, ".db-")) next = path;
  }
  if (error) return FileSystemError("list", folder, error);
  return next;
}

absl::Status FinishReplacement(const std::string& folder) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string next, NextDatabase(folder));
  if (next.empty()) return absl::OkStatus();
  const std::string database = DatabasePath(folder);
  const std::string to = next.substr(0, next.size() - kNextSuffix.size());
  // Move the log as well: the next database would otherwise use the log of the previous database.
  // If an earlier process was interrupted here, some files are already moved.
  for (const char* suffix : {"", "-wal", "-journal"}) {
    if ((SHARDMESH_FAILS("store.move_aside") ||
         rename((database + suffix).c_str(), (to + suffix).c_str()) != 0) &&
        errno != ENOENT) {
      return SystemError("move", database + suffix);
    }
  }
  unlink((database + "-shm").c_str());  // SQLite's index of the log, useless without the log
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(folder));
  if (SHARDMESH_FAILS("store.replaced") || rename(next.c_str(), database.c_str()) != 0) {
    return SystemError("rename", next);
  }
  return SyncFolder(folder);
}

absl::Status CheckHasState(const std::string& folder) {
  const std::string database = DatabasePath(folder);
  const std::string log = database + "-wal";
  struct stat found;
  const bool is_there = stat(database.c_str(), &found) == 0;
  if (is_there ? found.st_size > 0 : errno != ENOENT) return absl::OkStatus();
  const std::string what = StrCat(database, is_there ? " is empty" : " is missing");
  if (stat(log.c_str(), &found) == 0 && found.st_size > 0) return LostState(folder, what, log);
  SHARDMESH_ASSIGN_OR_RETURN(const std::string trace, TraceOf(folder));
  return trace.empty() ? absl::OkStatus() : LostState(folder, what, trace);
}

absl::Status CheckIsNew(const std::string& folder) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string trace, TraceOf(folder));
  if (trace.empty()) return absl::OkStatus();
  return LostState(
      folder, StrCat(DatabasePath(folder), " has no tables, and its log none of their commits"),
      trace);
}

absl::Status SetNeedsLog(Database& database, bool needs_log) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  return database.Execute(StrCat("PRAGMA user_version = ", version | (needs_log ? kNeedsLog : 0)));
}

absl::StatusOr<bool> NeedsLog(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto version, database.Number("PRAGMA user_version"));
  return (*version & kNeedsLog) != 0;
}

absl::Status ForgetLog(const std::string& copy) {
  const int fd = open(copy.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SystemError("open", copy);
  const absl::Cleanup close_file = [fd] { close(fd); };
  SHARDMESH_ASSIGN_OR_RETURN(const std::string header, ReadHeader(fd, copy));
  if (header.empty()) return absl::OkStatus();
  const uint32_t version = NumberAt(header, kUserVersionOffset) & ~static_cast<uint32_t>(kNeedsLog);
  char bytes[4];
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<char>(version >> (24 - 8 * i) & 0xff);
  }
  if (pwrite(fd, bytes, sizeof(bytes), kUserVersionOffset) != sizeof(bytes) || fsync(fd) != 0) {
    return SystemError("write", copy);
  }
  return absl::OkStatus();
}

absl::Status CheckHasLog(const std::string& database) {
  struct stat found;
  if (stat(database.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return absl::OkStatus();
  const int fd = open(database.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();
  const absl::Cleanup close_file = [fd] { close(fd); };
  SHARDMESH_ASSIGN_OR_RETURN(const std::string header, ReadHeader(fd, database));
  if (header.empty() || (NumberAt(header, kUserVersionOffset) & kNeedsLog) == 0) {
    return absl::OkStatus();
  }
  const uint32_t stored = NumberAt(header, kPageSizeOffset, 2);
  const int64_t page_bytes = stored == 1 ? 65'536 : stored;
  const std::string log = database + "-wal";
  const bool is_there = stat(log.c_str(), &found) == 0;
  if (!is_there && errno != ENOENT) return SystemError("look at", log);
  if (is_there && found.st_size >= kLogHeaderBytes + page_bytes) return absl::OkStatus();
  return StoreError(
      absl::StatusCode::kDataLoss,
      StrCat("the write-ahead log ", log,
             is_there ? StrCat(" has only ", found.st_size, " bytes") : " is missing", ", but ",
             database,
             " needs it: its coordinator did not stop cleanly, and acknowledged commits may be "
             "only in the log; put the log back as it was; without it, restore a snapshot with "
             "--restore (if that flag is set already, put an empty file `restore-again` into the "
             "folder), or go on without those commits: `shardmesh admin check FOLDER --set-aside`"),
      log);
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder, absl::Duration timeout) {
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/arrays", ignored) &&
      !std::filesystem::exists(DatabasePath(folder), ignored)) {
    return StoreError(absl::StatusCode::kFailedPrecondition,
                      StrCat(folder, " is the data folder of a worker, whose tiles are in ", folder,
                             "/arrays; give the coordinator a folder of its own"),
                      folder);
  }
  absl::StatusOr<FileLock> lock = TakeLock(
      LockPath(folder),
      {.timeout = timeout,
       .on_wait =
           [&folder](const std::string& holder, absl::Duration left) {
             LogWarning(
                 "waiting for the data folder, which another process has",
                 {{"folder", folder}, {"process", holder}, {"give_up_in", FormatRounded(left)}});
           },
       .tell_every = kLockLogInterval,
       .mode = 0600});
  if (!lock.ok()) return LockError(lock.status());
  if (!lock->held.valid()) return InUse(folder, lock->holder);
  return FolderLock(std::move(lock->held));
}

absl::StatusOr<FolderLock> FolderLock::TakeToRead(const std::string& folder) {
  absl::StatusOr<FileLock> lock = TakeSharedLock(LockPath(folder));
  if (absl::IsNotFound(lock.status())) return FolderLock(FileDescriptor());
  if (!lock.ok()) return LockError(lock.status());
  if (!lock->held.valid()) return InUse(folder, lock->holder);
  return FolderLock(std::move(lock->held));
}

int64_t RowId(EventPosition position) { return (position.revision << kPlaceBits) | position.place; }

EventPosition PositionOf(int64_t row_id) {
  return {row_id >> kPlaceBits, static_cast<int32_t>(row_id & ((1 << kPlaceBits) - 1))};
}

uint32_t RecordChecksum(int64_t row_id, std::string_view key, const std::string* value) {
  uint32_t crc = Crc32c(StrCat(NumberBytes(static_cast<uint64_t>(row_id)), NumberBytes(key.size()),
                               value == nullptr ? "-" : "+"));
  crc = ExtendCrc32c(crc, absl::MakeConstSpan(key.data(), key.size()));
  return value == nullptr ? crc : ExtendCrc32c(crc, *value);
}

uint32_t KeyChecksum(std::string_view key) { return Crc32c(key); }

absl::Status InsertRecord(Database& database, const Database::Statement& insert, int64_t row_id,
                          std::string_view key, const std::string* value) {
  insert.BindNumber(1, row_id);
  insert.BindText(2, key);
  if (value == nullptr) {
    insert.BindNull(3);
  } else {
    insert.BindBytes(3, *value);
  }
  insert.BindNumber(4, RecordChecksum(row_id, key, value));
  insert.BindNumber(5, KeyChecksum(key));
  return database.Run(insert);
}

uint32_t BoundsChecksum(Revision compacted, Revision newest) {
  return Crc32c(StrCat(NumberBytes(static_cast<uint64_t>(compacted)),
                       NumberBytes(static_cast<uint64_t>(newest))));
}

absl::StatusOr<int64_t> SchemaVersionOf(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto application, database.Number("PRAGMA application_id"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto version, database.Number("PRAGMA user_version"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto tables,
                             database.Number("SELECT COUNT(*) FROM sqlite_schema"));
  if (application == 0 && version == 0 && tables == 0) return 0;
  if (application != kApplicationId) {
    return StoreError(
        absl::StatusCode::kFailedPrecondition,
        StrCat(database.path(), " is a database of another program; use another data folder"),
        database.path());
  }
  const int64_t schema = *version & ~kNeedsLog;
  if (schema < 1 || schema > kSchemaVersion) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            database.path(), " has schema version ", schema, ", this build reads versions 1 to ",
            kSchemaVersion, "; use the build that wrote it or a newer one, or restore a snapshot ",
            "that was made with this version")),
        Reason::kSchemaMismatch,
        {{fact::kHave, schema}, {fact::kNeed, kSchemaVersion}, {fact::kFile, database.path()}});
  }
  return schema;
}

absl::Status PrepareSchema(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(int64_t version, SchemaVersionOf(database));
  if (version == kSchemaVersion) return absl::OkStatus();
  return database.InTransaction([&]() -> absl::Status {
    SHARDMESH_FAILPOINT("store.prepare_schema");
    if (version == 0) {
      SHARDMESH_RETURN_IF_ERROR(database.Execute(
          StrCat("CREATE TABLE event (position INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB);"
                 "CREATE TABLE bounds (compacted INTEGER NOT NULL, newest INTEGER NOT NULL);"
                 "INSERT INTO bounds VALUES (0, 0);"
                 "PRAGMA application_id = ",
                 kApplicationId)));
      version = 1;
    }
    for (; version < kSchemaVersion; ++version) {
      SHARDMESH_RETURN_IF_ERROR(kMigrations[version - 1](database));
    }
    return database.Execute(StrCat("PRAGMA user_version = ", version));
  });
}

absl::StatusOr<StoredBounds> ReadBounds(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  const bool has_checksum = version >= kFirstChecked;
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto bounds, database.Prepare(StrCat("SELECT compacted, newest, ",
                                                 has_checksum ? "crc" : "NULL", " FROM bounds")));
  SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(bounds));
  const StoredBounds read = row ? StoredBounds{bounds.Number(0), bounds.Number(1)} : StoredBounds();
  if (!row || (has_checksum && (!bounds.IsNumber(2) ||
                                bounds.Number(2) != BoundsChecksum(read.compacted, read.newest)))) {
    return StoreError(absl::StatusCode::kDataLoss,
                      StrCat("the state database is damaged: the bounds of ", database.path(),
                             " are not as they were written; `shardmesh admin check FOLDER "
                             "--set-aside` mends them"),
                      database.path());
  }
  return read;
}

absl::Status WriteBounds(Database& database, StoredBounds bounds) {
  SHARDMESH_RETURN_IF_ERROR(database.Execute("DELETE FROM bounds"));
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto insert,
      database.Prepare("INSERT INTO bounds (compacted, newest, crc) VALUES (?1, ?2, ?3)"));
  insert.BindNumber(1, bounds.compacted);
  insert.BindNumber(2, bounds.newest);
  insert.BindNumber(3, BoundsChecksum(bounds.compacted, bounds.newest));
  return database.Run(insert);
}

absl::StatusOr<RowReader> RowReader::Create(Database& database) {
  RowReader reader(&database);
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  reader.has_checksums_ = version >= kFirstChecked;
  SHARDMESH_ASSIGN_OR_RETURN(
      reader.rows_, database.Prepare(StrCat(
                        "SELECT position, key, value, ", reader.has_checksums_ ? "crc" : "NULL",
                        ", ", version < kSchemaVersion ? "NULL" : "key_crc",
                        " FROM event WHERE position BETWEEN ?1 AND ?2 ORDER BY position")));
  SHARDMESH_ASSIGN_OR_RETURN(
      reader.next_, database.Prepare("SELECT position FROM event WHERE position BETWEEN ?1 AND ?2 "
                                     "ORDER BY position LIMIT 1"));
  SHARDMESH_ASSIGN_OR_RETURN(reader.key_,
                             database.Prepare("SELECT key FROM event WHERE position = ?1"));
  return reader;
}

absl::Status RowReader::Read(int64_t from, int64_t to,
                             absl::FunctionRef<void(StoredRow)> callback) const {
  rows_.BindNumber(1, from);
  rows_.BindNumber(2, to);
  while (true) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database_->Step(rows_));
    if (!row) return absl::OkStatus();
    StoredRow found{
        .row_id = rows_.Number(0), .key = std::string(rows_.Bytes(1)), .value = {}, .why = {}};
    if (!rows_.IsNull(2)) found.value = std::make_shared<const std::string>(rows_.Bytes(2));
    const uint32_t computed = RecordChecksum(found.row_id, found.key, found.value.get());
    if (!rows_.IsText(1) || found.key.empty()) {
      found.why = "its key is no text";
    } else if (has_checksums_ && !rows_.IsNumber(3)) {
      found.why = "its checksum is gone";
    } else if (has_checksums_ && rows_.Number(3) != computed) {
      found.why = StrCat("its checksum is ", rows_.Number(3), ", its bytes have ", computed);
    }
    if (!found.why.empty() && rows_.IsNumber(4) && rows_.Number(4) != KeyChecksum(found.key)) {
      found.lost_key_crc = static_cast<uint32_t>(rows_.Number(4));
      found.why += "; its key is not as it was written";
    }
    callback(std::move(found));
  }
}

absl::StatusOr<std::optional<int64_t>> RowReader::FindNext(int64_t from, int64_t to) const {
  next_.BindNumber(1, from);
  next_.BindNumber(2, to);
  SHARDMESH_ASSIGN_OR_RETURN(const bool row, database_->Step(next_));
  if (!row) return std::nullopt;
  const int64_t found = next_.Number(0);
  next_.Reset();
  return found;
}

absl::StatusOr<std::string> RowReader::KeyOf(int64_t row_id) const {
  key_.BindNumber(1, row_id);
  SHARDMESH_ASSIGN_OR_RETURN(const bool row, database_->Step(key_));
  std::string key(row && key_.IsText(0) ? key_.Bytes(0) : "");
  key_.Reset();
  return key;
}

absl::Status ForEachRow(Database& database, absl::FunctionRef<void(StoredRow)> callback) {
  SHARDMESH_ASSIGN_OR_RETURN(const RowReader reader, RowReader::Create(database));
  return reader.Read(kFirstRow, kLastRow, callback);
}

KeyFinder::KeyFinder(std::vector<UnreadableRecord>* records) {
  for (UnreadableRecord& record : *records) {
    if (record.lost_key_crc.has_value()) lost_.emplace(*record.lost_key_crc, &record);
  }
}

int64_t KeyFinder::Find(std::string_view key) {
  int64_t newest = std::numeric_limits<int64_t>::min();
  if (lost_.empty()) return newest;
  const auto [begin, end] = lost_.equal_range(KeyChecksum(key));
  for (auto each = begin; each != end; ++each) {
    UnreadableRecord& record = *each->second;
    record.key = std::string(key);
    record.lost_key_crc.reset();
    newest = std::max(newest, record.row_id);
  }
  return newest;
}

Revision NewestWith(Revision newest, int64_t unreadable_row) {
  const Revision revision = PositionOf(unreadable_row).revision;
  return revision > newest && revision - newest <= kMaxRevisionGap ? revision : newest;
}

absl::StatusOr<StoredState> ReadState(Database& database) {
  SHARDMESH_FAILPOINT("store.read");
  SHARDMESH_ASSIGN_OR_RETURN(const StoredBounds bounds, ReadBounds(database));
  StoredState state{.index = RevisionIndex(bounds.compacted, bounds.newest), .unreadable = {}};
  SHARDMESH_RETURN_IF_ERROR(ForEachRow(database, [&](StoredRow row) {
    if (row.why.empty()) {
      state.index.Add({PositionOf(row.row_id), std::move(row.key), std::move(row.value)});
      return;
    }
    if (!row.lost_key_crc.has_value()) state.index.Forget(state.index.PositionsOf(row.key));
    state.index.RaiseNewest(NewestWith(state.index.newest(), row.row_id));
    state.unreadable.push_back(
        {row.row_id, std::move(row.key), std::move(row.why), row.lost_key_crc});
  }));
  KeyFinder finder(&state.unreadable);
  if (finder.is_done()) return state;
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues all, state.index.List("", {}));
  for (const KeyValue& item : all.items) {
    const int64_t row_id = finder.Find(item.key);
    std::vector<EventPosition> older;
    for (const EventPosition& position : state.index.PositionsOf(item.key)) {
      if (RowId(position) < row_id) older.push_back(position);
    }
    state.index.Forget(older);
  }
  return state;
}

}  // namespace shardmesh::server
