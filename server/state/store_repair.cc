// Restores snapshots, and checks and salvages states.
#include "server/state/store_repair.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "server/state/array_record.h"
#include "server/store/sqlite_store.h"
#include "server/store/wal_file.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kClusterKey = "cluster";
constexpr std::string_view kRequestPrefix = "request/";
constexpr std::string_view kNamePrefix = "name/";
constexpr std::string_view kManifestPrefix = "manifest/";
constexpr std::string_view kArrayPrefix = "array/";
constexpr std::string_view kMeshPrefix = "mesh/";
constexpr std::string_view kRanksPrefix = "ranks/";

// The maximum number of records that are written for given ranks. One commit has room for these
// records and for the other records that it writes.
constexpr size_t kMostGivenRanks = 100;
constexpr std::string_view kReplacedPrefix = "replaced.db-";

// `path`: the file or folder that the error is about; empty if there is none.
absl::Status StoreError(absl::StatusCode code, std::string_view message,
                        std::string_view path = {}) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed,
                    {{fact::kFile, path}});
}

absl::Status FileError(std::string_view doing, const std::string& path, std::error_code error) {
  const bool is_full = error == std::errc::no_space_on_device;
  return WithReason(
      absl::Status(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   StrCat("cannot ", doing, " ", path, ": ", error.message())),
      is_full ? Reason::kStoreFull : Reason::kStoreFailed, {{fact::kFile, path}});
}

// Returns the folder of the coordinator if `folder` is the data folder of `shardmesh up`, which
// makes a subfolder for each process. Empty if the subfolder of the coordinator has no database.
std::string CoordinatorFolderIn(const std::string& folder) {
  const std::string below = (fs::path(folder) / "coordinator").string();
  std::error_code error;
  return fs::exists(DatabasePath(below), error) ? below : std::string();
}

// Returns the message for a folder without a database.
std::string NoDatabase(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return StrCat("there is no folder ", folder);
  if (!fs::is_directory(folder, error)) {
    return StrCat(folder, " is no folder; give the --data-dir of a coordinator");
  }
  const std::string below = CoordinatorFolderIn(folder);
  return !below.empty() ? StrCat("there is no database ", DatabasePath(folder),
                                 "; the coordinator of this cluster keeps its state in ", below)
                        : StrCat("there is no database ", DatabasePath(folder),
                                 "; give the --data-dir of a coordinator");
}

// Returns the current values of a state's keys, except `cluster`, `restored` and stored answers.
std::map<std::string, std::string> CurrentOf(const RevisionIndex& index) {
  std::map<std::string, std::string> current;
  const absl::StatusOr<KeyValues> all = index.List("", {});
  if (!all.ok()) return current;
  for (const KeyValue& item : all->items) {
    if (item.key != kClusterKey && item.key != kRestoredKey &&
        item.key.compare(0, kRequestPrefix.size(), kRequestPrefix) != 0) {
      current[item.key] = item.value;
    }
  }
  return current;
}

void Note(const std::string& key, std::vector<std::string>* keys, int64_t* count) {
  ++*count;
  if (keys->size() < kListedKeys) keys->push_back(key);
}

void CompareStates(const RevisionIndex& before, const RevisionIndex& after, Restored* restored) {
  const auto old_keys = CurrentOf(before);
  const auto new_keys = CurrentOf(after);
  for (const auto& [key, value] : old_keys) {
    const auto found = new_keys.find(key);
    if (found == new_keys.end()) {
      Note(key, &restored->lost, &restored->lost_count);
    } else if (found->second != value) {
      Note(key, &restored->changed, &restored->changed_count);
    }
  }
  for (const auto& [key, value] : new_keys) {
    if (old_keys.count(key) == 0) Note(key, &restored->back, &restored->back_count);
  }
}

std::string LogOf(const std::string& database) { return database + "-wal"; }

bool HasContent(const std::string& file) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(file, error);
  return !error && bytes > 0;
}

// Opens a database without changing the database or its log. DATA_LOSS: the log is damaged.
absl::Status OpenToRead(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const WalFile log, WalFile::Read(LogOf(database.path())));
  SHARDMESH_RETURN_IF_ERROR(log.damage());
  const bool has_log = fs::exists(LogOf(database.path()));
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  // If there was no log, SQLite makes a log for reading: let SQLite remove that log on close.
  SHARDMESH_RETURN_IF_ERROR(database.KeepLog(has_log));
  return database.Execute("PRAGMA locking_mode = EXCLUSIVE");
}

// Reads a whole database without changing it. The database may have an older schema, and the build
// that wrote the database may need it again.
absl::StatusOr<StoredState> ReadDatabase(const std::string& path,
                                         std::string_view if_damaged = Database::kStateIsDamaged) {
  Database database(path, if_damaged);
  SHARDMESH_RETURN_IF_ERROR(OpenToRead(database));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  if (version == 0) {
    return StoreError(absl::StatusCode::kFailedPrecondition,
                      StrCat(path, " holds no state: it is empty, or its end is missing"), path);
  }
  SHARDMESH_RETURN_IF_ERROR(database.CheckPages());
  return ReadState(database);
}

// Like ReadDatabase, for the copy of a snapshot. Errors name the source file.
absl::StatusOr<StoredState> ReadSnapshot(const std::string& copy, const std::string& file) {
  absl::StatusOr<StoredState> state =
      ReadDatabase(copy, "it is damaged, or no snapshot; nothing was changed: ");
  if (!state.ok()) {
    return WithContext(state.status(), StrCat("the snapshot ", file));
  }
  return state;
}

absl::StatusOr<ClusterRecord> ClusterOf(const RevisionIndex& index) {
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValue stored, index.Get(kClusterKey, 0));
  return DecodeCluster(stored.key, stored.value);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  // Skip an empty file: `content << in.rdbuf()` would set the error state of `content`.
  if (in && in.peek() != std::ifstream::traits_type::eof()) content << in.rdbuf();
  if (!in.is_open() || in.bad() || content.fail()) {
    return StoreError(absl::StatusCode::kInternal, StrCat("cannot read ", path), path);
  }
  return std::move(content).str();
}

absl::StatusOr<std::string> DigestOfFile(const std::string& file) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string content, ReadFile(file));
  return absl::BytesToHexString(ToAbsl(Sha256(content)));
}

// Logs that contain a part of a database: commits that are not in the database's file yet, or the
// original pages of an interrupted transaction.
constexpr const char* kLogSuffixes[] = {"-wal", "-journal"};

bool HasLog(const std::string& file) {
  return std::any_of(std::begin(kLogSuffixes), std::end(kLogSuffixes),
                     [&](const char* suffix) { return HasContent(file + suffix); });
}

// Checks whether `file` can be a snapshot at all. Call it before anything is copied or changed.
absl::Status CheckMayBeSnapshot(const std::string& file) {
  constexpr std::string_view kMagic("SQLite format 3", 16);  // including the NUL
  const auto refused = [&file](std::string_view why) {
    return StoreError(absl::StatusCode::kFailedPrecondition,
                      StrCat(file, " is no snapshot: ", why, "; nothing was changed; give a file ",
                             "that `shardmesh admin snapshot` wrote"),
                      file);
  };
  std::error_code error;
  const fs::file_status found = fs::status(file, error);
  if (found.type() == fs::file_type::not_found) {
    return StoreError(absl::StatusCode::kNotFound,
                      StrCat("there is no file ", file, " to restore; nothing was changed"), file);
  }
  if (error) return FileError("look at", file, error);
  if (fs::is_directory(found)) return refused("it is a folder");
  if (!fs::is_regular_file(found)) return refused("it is no regular file");
  // If there is a log, the database file may be empty: all data may be in the log.
  if (HasLog(file)) return absl::OkStatus();
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return StoreError(absl::StatusCode::kPermissionDenied, StrCat("cannot open ", file), file);
  }
  std::string head(kMagic.size(), '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (in.bad()) return StoreError(absl::StatusCode::kInternal, StrCat("cannot read ", file), file);
  if (in.gcount() == 0) return refused("it is empty");
  return head == kMagic ? absl::OkStatus() : refused("it does not begin as an SQLite database");
}

// Returns the digest of the snapshot that the state of a folder was made from. Returns nullopt if
// the state was made from no snapshot, or if there is no state.
absl::StatusOr<std::optional<std::string>> RestoredFrom(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(DatabasePath(folder), error)) {
    if (error) return FileError("look at", DatabasePath(folder), error);
    return std::nullopt;
  }
  if (fs::is_regular_file(DatabasePath(folder), error) && !HasContent(DatabasePath(folder))) {
    return std::nullopt;  // the database was lost, or never written
  }
  Database database(DatabasePath(folder));
  SHARDMESH_RETURN_IF_ERROR(OpenToRead(database));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t version, SchemaVersionOf(database));
  if (version == 0) return std::nullopt;
  std::optional<std::string> value;
  std::string unreadable;
  SHARDMESH_RETURN_IF_ERROR(ForEachRow(database, [&](StoredRow row) {
    if (!row.why.empty()) {
      unreadable = StrCat("the record \"", row.key, "\" cannot be read: ", row.why);
      if (row.key == kRestoredKey) value.reset();
    } else if (row.key == kRestoredKey) {
      value = row.value == nullptr ? std::nullopt : std::optional(*row.value);
    }
  }));
  // If no readable record is found, an unreadable record with a damaged key may be the wanted
  // record.
  if (!value.has_value() && !unreadable.empty()) {
    return StoreError(absl::StatusCode::kDataLoss, unreadable, folder);
  }
  if (value.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(RestoredRecord restored, DecodeRestored(kRestoredKey, *value));
    if (restored.digest == kUnknownSnapshot) {
      return StoreError(absl::StatusCode::kDataLoss,
                        "it has lost records, perhaps also the record of its snapshot", folder);
    }
    return std::move(restored.digest);
  }
  // Older builds recorded the digest in this file.
  const std::string mark = folder + "/restored";
  if (!fs::exists(mark, error)) {
    if (error) return FileError("look at", mark, error);
    return std::nullopt;
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::string digest, ReadFile(mark));
  digest.erase(digest.find_last_not_of(" \n") + 1);
  if (digest.empty()) {
    return StoreError(absl::StatusCode::kDataLoss, StrCat(mark, " is empty"), mark);
  }
  return digest;
}

// Returns how often snapshots replaced the folder's state: the number of replaced states in the
// folder.
absl::StatusOr<int64_t> CountReplaced(const std::string& folder) {
  std::error_code error;
  int64_t count = 0;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.compare(0, kReplacedPrefix.size(), kReplacedPrefix) == 0 &&
        name.find_first_not_of("0123456789", kReplacedPrefix.size()) == std::string::npos) {
      ++count;
    }
  }
  if (error) return FileError("list", folder, error);
  return count;
}

// Removes a database and SQLite's files beside it. A new database with this name must not use the
// old log.
absl::Status RemoveDatabase(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    std::error_code error;
    fs::remove(path + suffix, error);
    if (error) return FileError("remove", path + suffix, error);
  }
  return absl::OkStatus();
}

// Copies a database, with the content of its log, to the file `copy` in the folder. Only this
// process's user can access the copy, whatever the mode of the source.
absl::Status CopyDatabase(const std::string& folder, const std::string& file,
                          const std::string& copy) {
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(copy));
  // Lock the source: a process that has the source open may write to it. `folder` is already locked
  // by this process.
  std::optional<FolderLock> lock;
  const fs::path source = fs::absolute(file);
  std::error_code error;
  if (source == DatabasePath(source.parent_path().string()) &&
      !fs::equivalent(source.parent_path(), folder, error)) {
    SHARDMESH_ASSIGN_OR_RETURN(FolderLock taken, FolderLock::TakeToRead(source.parent_path()));
    lock.emplace(std::move(taken));
  }
  const auto copy_file = [&](const char* suffix) -> absl::Status {
    fs::copy_file(file + suffix, copy + suffix, error);
    if (!error) {
      fs::permissions(copy + suffix, fs::perms::owner_read | fs::perms::owner_write, error);
    }
    return error ? FileError("copy the snapshot to", copy + suffix, error) : absl::OkStatus();
  };
  SHARDMESH_RETURN_IF_ERROR(copy_file(""));
  bool has_log = false;
  for (const char* suffix : kLogSuffixes) {
    if (!HasContent(file + suffix)) continue;
    SHARDMESH_RETURN_IF_ERROR(copy_file(suffix));
    has_log = true;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const WalFile log, WalFile::Read(LogOf(copy)));
  if (!log.damage().ok()) {
    return StoreError(absl::StatusCode::kDataLoss,
                      StrCat("the snapshot ", file, " is damaged: ", log.damage().message()), file);
  }
  if (!has_log) return absl::OkStatus();
  {
    Database database(copy);
    SHARDMESH_RETURN_IF_ERROR(database.Open());
    SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA locking_mode = EXCLUSIVE"));
    // This first read makes SQLite roll back an interrupted transaction.
    SHARDMESH_RETURN_IF_ERROR(SchemaVersionOf(database).status());
    SHARDMESH_RETURN_IF_ERROR(database.Checkpoint());
  }
  for (const char* suffix : kLogSuffixes) {
    fs::remove(copy + suffix, error);
    if (error) return FileError("remove", copy + suffix, error);
  }
  return absl::OkStatus();
}

// Gives the database the term of `cluster` and a revision that is kSkippedRevisions above `newest`.
// Records the snapshot's digest `digest`. Upgrades an older schema to the current one. The result
// is one synced file.
absl::Status Skip(const std::string& path, const ClusterRecord& cluster, Revision newest,
                  const std::string& digest) {
  Database database(path);
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_RETURN_IF_ERROR(database.Execute("PRAGMA synchronous = FULL"));
  {
    // Copy the snapshot's log into its file here, because closing the database would copy the log
    // without reporting errors.
    SHARDMESH_ASSIGN_OR_RETURN(const auto mode, database.Prepare("PRAGMA journal_mode = DELETE"));
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(mode));
    if (!row || mode.Bytes(0) != "delete") {
      return StoreError(absl::StatusCode::kInternal,
                        StrCat("cannot write the log of ", path, " into it"), path);
    }
  }
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(database));
  SHARDMESH_RETURN_IF_ERROR(SetNeedsLog(database, false));
  newest += kSkippedRevisions;
  const std::pair<std::string_view, std::string> records[] = {
      {kClusterKey, EncodeCluster(cluster)},
      {kRestoredKey, EncodeRestored({.digest = digest, .may_lack_names = true})}};
  SHARDMESH_ASSIGN_OR_RETURN(const auto erase,
                             database.Prepare("DELETE FROM event WHERE key = ?1"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto insert, database.Prepare(kInsertRecord));
  return database.InTransaction([&]() -> absl::Status {
    for (int32_t place = 0; const auto& [key, record] : records) {
      const int64_t row_id = RowId({.revision = newest, .place = place++});
      erase.BindText(1, key);
      SHARDMESH_RETURN_IF_ERROR(database.Run(erase));
      SHARDMESH_RETURN_IF_ERROR(InsertRecord(database, insert, row_id, key, &record));
    }
    // Watchers from earlier revisions must list again, because the changes after the snapshot are
    // missing.
    return WriteBounds(database, {.compacted = newest, .newest = newest});
  });
}

// The content of a database that may have damaged pages: the rows that can be read, and what cannot
// be read.
struct Salvaged {
  std::vector<StoredRow> rows;
  std::vector<UnreadableRecord> unreadable;
  std::vector<LostRows> lost;  // by rising row id
};

// Records that the rows from row id `from` to `to`, both included, cannot be read.
void Lose(int64_t from, int64_t to, const absl::Status& why, Salvaged* salvaged) {
  if (!salvaged->lost.empty() && salvaged->lost.back().last + 1 == from) {
    salvaged->lost.back().last = to;
  } else {
    salvaged->lost.push_back({.first = from, .last = to, .why = std::string(why.message())});
  }
}

// Adds the rows from row id `from` to `to`, which are all on one page. After DATA_LOSS, records
// which rows are unreadable. Returns only read errors of the disk, which do not show whether rows
// are damaged.
absl::Status SalvagePage(const RowReader& reader, int64_t from, int64_t to, Salvaged* salvaged) {
  while (true) {
    bool is_to_end = false;
    const absl::Status read = reader.Read(from, to, [&](StoredRow row) {
      is_to_end = row.row_id >= to;
      from = is_to_end ? to : std::max(from, row.row_id + 1);
      if (row.why.empty()) {
        salvaged->rows.push_back(std::move(row));
      } else {
        salvaged->unreadable.push_back(
            {row.row_id, std::move(row.key), std::move(row.why), row.lost_key_crc});
      }
    });
    // If `to` was read, the error is about the next page.
    if (read.ok() || is_to_end) return absl::OkStatus();
    if (!absl::IsDataLoss(read)) return read;
    const absl::StatusOr<std::optional<int64_t>> next = reader.FindNext(from, to);
    if (!next.ok()) {
      if (!absl::IsDataLoss(next.status())) return next.status();
      Lose(from, to, read, salvaged);
      return absl::OkStatus();
    }
    if (!next->has_value()) return absl::OkStatus();
    // The page itself is sound. The next row has a large value, part of which is on another,
    // damaged page.
    const int64_t row_id = **next;
    const absl::StatusOr<std::string> key = reader.KeyOf(row_id);
    if (!key.ok() && !absl::IsDataLoss(key.status())) return key.status();
    if (key.ok() && !key->empty()) {
      salvaged->unreadable.push_back({row_id, *key, std::string(read.message())});
    } else {
      Lose(row_id, row_id, read, salvaged);
    }
    if (row_id >= to) return absl::OkStatus();
    from = row_id + 1;
  }
}

// Reads all rows that can be read. Errors are read errors of the disk, which do not show whether
// rows are damaged.
absl::StatusOr<Salvaged> Salvage(Database& database) {
  Salvaged salvaged;
  SHARDMESH_ASSIGN_OR_RETURN(const RowReader reader, RowReader::Create(database));
  const absl::Status read = reader.Read(kFirstRow, kLastRow, [&](StoredRow row) {
    if (row.why.empty()) {
      salvaged.rows.push_back(std::move(row));
    } else {
      salvaged.unreadable.push_back(
          {row.row_id, std::move(row.key), std::move(row.why), row.lost_key_crc});
    }
  });
  if (read.ok()) return salvaged;
  if (!absl::IsDataLoss(read)) return read;
  // Read page by page: the rows after an unreadable page begin on the next page.
  salvaged = {};
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<int64_t> ends, database.PageEnds("event"));
  if (ends.empty() || ends.back() != kLastRow) ends.push_back(kLastRow);
  int64_t from = kFirstRow;
  for (const int64_t end : ends) {
    SHARDMESH_RETURN_IF_ERROR(SalvagePage(reader, from, end, &salvaged));
    from = end == kLastRow ? end : end + 1;
  }
  return salvaged;
}

// A database that is being checked.
struct Opened {
  std::unique_ptr<Database> database;
  bool is_image = false;  // `database` is a copy in one file: see WriteImage
  int64_t schema_version = 0;
  absl::Status log;              // DATA_LOSS, as in StoreCheck
  bool is_log_whole = true;      // as in WalFile
  absl::Status pages;            // DATA_LOSS, as in StoreCheck
  bool are_pages_whole = false;  // the first page was replaced; all others are undamaged
};

absl::Status ResizeFile(const std::string& path, uintmax_t bytes) {
  std::error_code error;
  fs::resize_file(path, bytes, error);
  return error ? FileError("resize", path, error) : absl::OkStatus();
}

// Fields of a database's first page, https://sqlite.org/fileformat2.html#the_database_header.
constexpr size_t kPageSizeOffset = 16;  // two bytes
constexpr size_t kVersionsOffset = 18;  // write and read version: 2 with a log, 1 without
constexpr size_t kPagesOffset = 28;
constexpr size_t kFreePagesOffset = 32;  // first free page, then the number of free pages
constexpr size_t kDatabaseHeaderBytes = 100;

// A truncated file has fewer pages than the page count in its first page says. The count itself is
// taken as damaged if that many pages would take more than kMostLostShare times the file's size
// plus kMostLostBytes.
constexpr uintmax_t kMostLostShare = 64;
constexpr uintmax_t kMostLostBytes = uintmax_t{64} << 20;

absl::Status TooDamaged(const std::string& path) {
  return StoreError(absl::StatusCode::kDataLoss,
                    StrCat("the state in ", path,
                           " is too damaged to be salvaged: no record of it can be read; restore a "
                           "snapshot with --restore"),
                    path);
}

uint32_t NumberAt(std::string_view page, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(page[at + i]);
  return value;
}

absl::Status SyncFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && fsync(fd) == 0;
  const std::error_code error(errno, std::generic_category());
  if (fd >= 0) close(fd);
  return is_synced ? absl::OkStatus() : FileError("sync", path, error);
}

absl::Status WriteStart(const std::string& path, std::string_view bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file << bytes;
  file.close();
  return file ? absl::OkStatus()
              : StoreError(absl::StatusCode::kInternal, StrCat("cannot write ", path), path);
}

// Writes a database with its log to `image`, as one file. The image gets as many pages as its first
// page says, unless that number is damaged. Pages that a truncated file lacks are filled with
// zeros.
absl::Status WriteImage(const std::string& path, const WalFile& log, const std::string& image) {
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(image));
  std::error_code error;
  fs::copy_file(path, image, error);
  if (error) return FileError("copy the state to", image, error);
  // Copy the original pages of an interrupted transaction too. A database with a log has no such
  // pages.
  if (HasContent(path + "-journal")) {
    fs::copy_file(path + "-journal", image + "-journal", error);
    if (error) return FileError("copy the state to", image, error);
  }
  SHARDMESH_RETURN_IF_ERROR(log.ApplyTo(image));
  std::ifstream in(image, std::ios::binary);
  std::string header(kDatabaseHeaderBytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header.size()));
  if (!in) return absl::OkStatus();
  // Mark the image as a database without a log, because the log is merged.
  header[kVersionsOffset] = header[kVersionsOffset + 1] = 1;
  SHARDMESH_RETURN_IF_ERROR(WriteStart(image, header));
  const uintmax_t bytes = fs::file_size(image, error);
  if (error) return FileError("look at", image, error);
  const uintmax_t page_bytes = NumberAt(header, kPageSizeOffset) >> 16;
  const uintmax_t wanted = page_bytes * NumberAt(header, kPagesOffset);
  const bool is_cut_off = wanted > bytes && wanted <= bytes * kMostLostShare + kMostLostBytes;
  return is_cut_off ? ResizeFile(image, wanted) : absl::OkStatus();
}

// Overwrites the first page with the first page of a new database of the newest schema. The new
// first page fits the other pages unless an older build made the database: the tables of that build
// may be on other pages.
absl::Status MendFirstPage(const std::string& image) {
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(image + "-first"));
  const absl::Cleanup remove = [&] { RemoveDatabase(image + "-first").IgnoreError(); };
  std::string page;
  {
    Database database(image + "-first");
    SHARDMESH_RETURN_IF_ERROR(database.Open());
    SHARDMESH_RETURN_IF_ERROR(PrepareSchema(database));
    SHARDMESH_ASSIGN_OR_RETURN(page, database.FirstPage());
  }
  std::error_code error;
  const uintmax_t bytes = fs::file_size(image, error);
  if (error) return FileError("look at", image, error);
  const uintmax_t pages = (bytes + page.size() - 1) / page.size();
  SHARDMESH_RETURN_IF_ERROR(ResizeFile(image, pages * page.size()));
  for (size_t i = 0; i < 4; ++i) {
    page[kPagesOffset + i] = static_cast<char>(pages >> (24 - 8 * i) & 0xff);
  }
  std::fill_n(page.begin() + kFreePagesOffset, 8, '\0');
  return WriteStart(image, page);
}

// Opens a database so that as much as possible can be read. If the log or the first page is
// unreadable for SQLite, opens an image of the database, in one file. Without `writes`, changes
// nothing in the database. Without `writes`, therefore also opens an image if a transaction was
// interrupted, or if there are damaged pages and a log.
absl::StatusOr<Opened> OpenToCheck(const std::string& path, const std::string& image, bool writes) {
  Opened opened;
  SHARDMESH_ASSIGN_OR_RETURN(const WalFile log, WalFile::Read(LogOf(path)));
  opened.log = log.damage();
  opened.is_log_whole = log.is_whole();
  if (opened.log.ok()) {
    opened.log = CheckHasLog(path);
    if (!opened.log.ok() && !absl::IsDataLoss(opened.log)) return opened.log;
    opened.is_log_whole = opened.log.ok();
  }
  const auto open = [&](const std::string& file) -> absl::Status {
    opened.database = std::make_unique<Database>(file);
    SHARDMESH_RETURN_IF_ERROR(opened.database->Open());
    SHARDMESH_RETURN_IF_ERROR(opened.database->KeepLog(fs::exists(LogOf(file))));
    SHARDMESH_RETURN_IF_ERROR(opened.database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
    SHARDMESH_ASSIGN_OR_RETURN(opened.schema_version, SchemaVersionOf(*opened.database));
    opened.pages = opened.database->CheckPages();
    return opened.pages;
  };
  // Opening a database with a journal rolls back its interrupted transaction. Without `writes`,
  // open an image instead.
  const bool has_journal = !writes && HasContent(path + "-journal");
  absl::Status status = opened.log;
  if (status.ok() && !has_journal) {
    status = open(path);
    // Searching for damaged pages needs the database in one file, with its log merged.
    if (status.ok() || (absl::IsDataLoss(opened.pages) && (writes || !HasContent(LogOf(path))))) {
      return opened;
    }
    // An error of the disk does not show whether the content is damaged.
    if (!absl::IsDataLoss(status)) return status;
  }
  opened.database.reset();
  opened.pages = absl::OkStatus();
  opened.is_image = true;
  SHARDMESH_RETURN_IF_ERROR(WriteImage(path, log, image));
  status = open(image);
  if (absl::IsDataLoss(status) && opened.pages.ok()) {
    opened.database.reset();
    SHARDMESH_RETURN_IF_ERROR(MendFirstPage(image));
    const absl::Status mended = open(image);
    opened.are_pages_whole = mended.ok();
    if (mended.ok()) opened.pages = status;  // report the damage: the database will be rewritten
    status = mended;
  }
  if (!status.ok() && !absl::IsDataLoss(status)) return status;
  if (!status.ok() && opened.pages.ok()) return TooDamaged(path);
  return opened;
}

// Returns the newest cluster record among the rows; nullopt if there is none.
std::optional<ClusterRecord> ClusterOf(const std::vector<StoredRow>& rows) {
  std::optional<ClusterRecord> cluster;
  for (const StoredRow& row : rows) {
    if (row.key != kClusterKey || row.value == nullptr) continue;
    if (const auto decoded = DecodeCluster(row.key, *row.value); decoded.ok()) cluster = *decoded;
  }
  return cluster;
}

// The newest cluster record and the newest revision that can be read from a damaged database.
struct Extent {
  std::optional<ClusterRecord> cluster;
  Revision newest = 0;
};

Extent ExtentOf(const std::string& path) {
  Extent extent;
  Database database(path);
  // Ignore the state of the log, and read as much as SQLite can.
  if (!database.Open().ok() || !database.KeepLog(true).ok() ||
      !database.Execute("PRAGMA locking_mode = EXCLUSIVE").ok()) {
    return extent;
  }
  const absl::StatusOr<int64_t> version = SchemaVersionOf(database);
  if (!version.ok() || *version < kFirstChecked) return extent;
  if (const auto bounds = ReadBounds(database); bounds.ok()) extent.newest = bounds->newest;
  const absl::StatusOr<Salvaged> salvaged = Salvage(database);
  if (!salvaged.ok()) return extent;
  extent.cluster = ClusterOf(salvaged->rows);
  for (const StoredRow& row : salvaged->rows) {
    extent.newest = std::max(extent.newest, PositionOf(row.row_id).revision);
  }
  return extent;
}

// Returns rows that replace unreadable records, derived from the readable records. Skips unreadable
// records whose revision is beyond `newest`.
std::vector<StoredRow> ReplacementsOf(const Salvaged& salvaged, Revision newest) {
  std::map<std::string_view, int64_t> last;  // newest row id of each readable key
  std::map<std::string, int64_t> chunks;     // number of chunks of each manifest, by its key
  bool has_manifests = false;
  for (const StoredRow& row : salvaged.rows) {
    last[row.key] = row.row_id;
    if (row.key.compare(0, kManifestPrefix.size(), kManifestPrefix) != 0) continue;
    has_manifests = true;
    const size_t slash = row.key.rfind('/');
    if (row.value != nullptr && slash >= kManifestPrefix.size()) ++chunks[row.key.substr(0, slash)];
  }
  std::set<std::string> incomplete;  // manifests with an unreadable chunk
  for (const UnreadableRecord& record : salvaged.unreadable) {
    incomplete.insert(record.key.substr(0, record.key.rfind('/')));
  }
  std::vector<StoredRow> replacements;
  const auto replace = [&](const UnreadableRecord& record, std::string value) {
    replacements.push_back({.row_id = record.row_id,
                            .key = record.key,
                            .value = std::make_shared<const std::string>(std::move(value)),
                            .why = {}});
  };
  for (const UnreadableRecord& record : salvaged.unreadable) {
    const Revision revision = PositionOf(record.row_id).revision;
    if (revision < 1 || revision > newest || record.lost_key_crc.has_value()) continue;
    if (const auto readable = last.find(record.key);
        readable != last.end() && readable->second > record.row_id) {
      continue;
    }
    if (has_manifests && record.key.compare(0, kNamePrefix.size(), kNamePrefix) == 0) {
      // A manifest may have an older entry of the name. Record a deletion, so that this entry does
      // not look current.
      replace(record, EncodeName(""));
    } else if (const auto found = chunks.find(record.key);
               found != chunks.end() && incomplete.count(record.key) == 0 &&
               last.count(StrCat(record.key, "/", absl::Dec(found->second - 1, absl::kZeroPad6))) >
                   0) {
      // All chunks exist, so the commit reached the point where the manifest's record is written.
      replace(record, EncodeManifest(found->second));
    }
  }
  return replacements;
}

// Values that the operator gives for lost parts of a state.
struct Given {
  std::optional<ClusterRecord> cluster;
  std::vector<Put> meshes;
};

// Returns the rows to add to a state that has lost records, at the state's newest revision. One row
// is the mark that arrays without a name may have a name in a lost record. The other rows hold the
// given values.
std::vector<StoredRow> RowsOfLoss(const Salvaged& salvaged, Revision newest, const Given& given) {
  RestoredRecord restored{.digest = std::string(kUnknownSnapshot), .may_lack_names = true};
  EventPosition next{.revision = newest};  // will follow the last event at that revision
  const auto go_behind = [&](int64_t row_id) {
    const EventPosition position = PositionOf(row_id);
    if (position.revision == newest) next.place = std::max(next.place, position.place + 1);
  };
  for (const StoredRow& row : salvaged.rows) {
    if (row.key != kRestoredKey) {
      go_behind(row.row_id);
      continue;
    }
    if (row.value == nullptr) continue;
    if (const auto before = DecodeRestored(row.key, *row.value); before.ok()) {
      restored.digest = before->digest;
    }
  }
  for (const UnreadableRecord& record : salvaged.unreadable) go_behind(record.row_id);
  std::vector<StoredRow> rows;
  const auto add = [&](std::string_view key, std::string value) {
    rows.push_back({.row_id = RowId(next),
                    .key = std::string(key),
                    .value = std::make_shared<const std::string>(std::move(value)),
                    .why = {}});
    ++next.place;
  };
  add(kRestoredKey, EncodeRestored(restored));
  if (given.cluster.has_value()) add(kClusterKey, EncodeCluster(*given.cluster));
  for (const Put& mesh : given.meshes) add(mesh.key, mesh.value);
  return rows;
}

// Returns the newest unreadable record of each known key. Callers ignore older records of such a
// key, because these would look current.
std::map<std::string_view, const UnreadableRecord*> NewestUnreadable(const Salvaged& salvaged) {
  std::map<std::string_view, const UnreadableRecord*> newest;
  for (const UnreadableRecord& record : salvaged.unreadable) {
    if (record.lost_key_crc.has_value()) continue;
    const UnreadableRecord*& of_key = newest[record.key];
    if (of_key == nullptr || of_key->row_id < record.row_id) of_key = &record;
  }
  return newest;
}

// Returns the current row of each key, except keys whose newest record is unreadable.
std::map<std::string_view, const StoredRow*> CurrentRows(const Salvaged& salvaged) {
  const auto unreadable = NewestUnreadable(salvaged);
  std::map<std::string_view, const StoredRow*> current;
  for (const StoredRow& row : salvaged.rows) {
    const auto found = unreadable.find(row.key);
    const bool is_lost = found != unreadable.end() && found->second->row_id > row.row_id;
    if (is_lost || row.value == nullptr) {
      current.erase(row.key);
    } else {
      current[row.key] = &row;
    }
  }
  return current;
}

bool IsDefinition(std::string_view key) {
  return std::any_of(
      std::begin(kDefinitionPrefixes), std::end(kDefinitionPrefixes),
      [&](std::string_view prefix) { return absl::StartsWith(ToAbsl(key), ToAbsl(prefix)); });
}

// Returns whether this is the key of a manifest's record, not of a chunk.
bool IsManifest(std::string_view key) {
  return absl::StartsWith(ToAbsl(key), ToAbsl(kManifestPrefix)) &&
         key.find('/', kManifestPrefix.size()) == std::string_view::npos;
}

// Returns the definitions and manifests for which a damaged page may have held a newer record. A
// row newer than all lost rows is certainly current.
std::vector<FormerRecord> FindFormer(const Salvaged& salvaged) {
  const int64_t lost_to = salvaged.lost.empty() ? kLastRow : salvaged.lost.back().last;
  std::vector<FormerRecord> former;
  for (const auto& [key, row] : CurrentRows(salvaged)) {
    if (row->row_id > lost_to || !(IsDefinition(key) || IsManifest(key))) continue;
    FormerRecord record{.key = std::string(key), .revision = PositionOf(row->row_id).revision};
    if (IsDefinition(key)) {
      const auto outline = DecodeDefinitionOutline(key, *row->value);
      if (!outline.ok()) continue;  // no coordinator would serve the definition
      record.version = outline->version;
    }
    former.push_back(std::move(record));
  }
  return former;
}

std::vector<LostRanks> FindLostRanks(const Salvaged& salvaged) {
  const auto current = CurrentRows(salvaged);
  struct Arrays {
    Mesh mesh;
    std::set<std::string> ids;
  };
  std::map<std::string, Arrays> arrays;  // by mesh
  const auto add = [&](const Array& array) {
    const ArrayDescriptor& descriptor = array.definition.descriptor;
    Arrays& on_mesh = arrays[descriptor.mesh_id];
    on_mesh.mesh = descriptor.mesh;
    on_mesh.ids.insert(descriptor.array_id);
  };
  for (const auto& [key, row] : current) {
    if (absl::StartsWith(ToAbsl(key), ToAbsl(kArrayPrefix))) {
      if (const auto array = DecodeArray(key, *row->value); array.ok()) add(*array);
    } else if (absl::StartsWith(ToAbsl(key), ToAbsl(kManifestPrefix)) && !IsManifest(key)) {
      const auto entries = DecodeManifestChunk(key, *row->value);
      if (!entries.ok()) continue;
      for (const ManifestEntry& entry : *entries) add(*entry.array);
    }
  }
  std::vector<LostRanks> lost;
  for (const auto& [mesh_id, on_mesh] : arrays) {
    const auto mesh = current.find(StrCat(kMeshPrefix, mesh_id));
    if (mesh != current.end()) {
      const auto outline = DecodeDefinitionOutline(mesh->first, *mesh->second->value);
      const bool is_assigned = current.find(StrCat(kRanksPrefix, mesh_id)) != current.end();
      if (outline.ok() && (outline->has_ranks || is_assigned)) continue;
    }
    lost.push_back({.mesh_id = mesh_id, .mesh = on_mesh.mesh, .arrays = std::ssize(on_mesh.ids)});
  }
  return lost;
}

// Returns the records for the given ranks, and new definitions for those of the meshes whose
// definition is lost too. These definitions name no workers, so a user may later replace the
// workers of such ranks as usual.
absl::StatusOr<std::vector<Put>> WithGivenRanks(const Salvaged& salvaged, const GivenRanks& ranks,
                                                std::vector<LostRanks>* lost) {
  for (const auto& [mesh_id, workers] : ranks) {
    if (std::none_of(lost->begin(), lost->end(),
                     [&](const LostRanks& each) { return each.mesh_id == mesh_id; })) {
      return StoreError(absl::StatusCode::kInvalidArgument,
                        StrCat("the ranks of mesh \"", mesh_id,
                               "\" are not lost, or no array lies on it; leave it out"));
    }
  }
  const auto current = CurrentRows(salvaged);
  std::vector<Put> records;
  std::vector<LostRanks> left;
  for (LostRanks& each : *lost) {
    const auto given = ranks.find(each.mesh_id);
    if (given == ranks.end()) {
      return WithReason(absl::FailedPreconditionError(
                            StrCat("the record of the workers that serve the ", each.mesh.size(),
                                   " ranks of mesh \"", each.mesh_id, "\" is lost, and ",
                                   each.arrays, " arrays lie on it; name the workers in the ",
                                   "order of their ranks, --ranks=", each.mesh_id,
                                   "=WORKER,WORKER..., or name none, --ranks=", each.mesh_id,
                                   "=, to give the ranks to the first workers that attach")),
                        Reason::kMissingArgument, {{fact::kField, "--ranks"}});
    }
    if (given->second.empty()) {
      left.push_back(std::move(each));
      continue;
    }
    const std::string key = StrCat(kMeshPrefix, each.mesh_id);
    const auto found = current.find(key);
    const std::string* before = found == current.end() ? nullptr : found->second->value.get();
    int64_t version = kSkippedVersions;
    if (before != nullptr) {
      if (const auto outline = DecodeDefinitionOutline(key, *before); outline.ok()) {
        version += outline->version;
      } else {
        before = nullptr;
      }
    }
    SHARDMESH_ASSIGN_OR_RETURN(
        RanksRecords with_ranks,
        WithRanks(key, before, each.mesh, given->second, version, absl::Now()));
    records.push_back({StrCat(kRanksPrefix, each.mesh_id), std::move(with_ranks.ranks)});
    if (with_ranks.definition.has_value()) {
      records.push_back({key, *std::move(with_ranks.definition)});
    }
  }
  if (records.size() > kMostGivenRanks) {
    return StoreError(absl::StatusCode::kInvalidArgument,
                      StrCat("the given ranks, and the meshes that are lost, are ", records.size(),
                             " records; at most ", kMostGivenRanks,
                             " can be written, give no ranks to the others"));
  }
  *lost = std::move(left);
  return records;
}

// Returns the row ids of former values of definitions that are older than a gap. A gap is a missing
// version between the value and a newer value. DefinitionStore takes the version of an unreadable
// former value to be one less than the next newer version.
std::set<int64_t> FindBrokenHistory(const Salvaged& salvaged) {
  constexpr int64_t kAny = 0;
  constexpr int64_t kNone = -1;
  std::map<std::string_view, int64_t> expected;  // the version that the next older row must have
  std::set<int64_t> broken;
  for (auto row = salvaged.rows.rbegin(); row != salvaged.rows.rend(); ++row) {
    if (!IsDefinition(row->key)) continue;
    int64_t& version = expected.emplace(row->key, kAny).first->second;
    if (row->value == nullptr) {
      version = kAny;
      continue;
    }
    const auto outline = DecodeDefinitionOutline(row->key, *row->value);
    if (!outline.ok()) continue;
    if (version == kAny || version == outline->version) {
      version = outline->version > 1 ? outline->version - 1 : kNone;
    } else {
      broken.insert(row->row_id);
      version = kNone;
    }
  }
  return broken;
}

// Returns the cluster of a snapshot, with a term above all terms that can have existed since the
// snapshot.
absl::StatusOr<ClusterRecord> ClusterOfSnapshot(const std::string& folder,
                                                const std::string& file) {
  SHARDMESH_RETURN_IF_ERROR(CheckMayBeSnapshot(file));
  const std::string copy = folder + "/restoring";
  const absl::Cleanup remove = [&copy] { RemoveDatabase(copy).IgnoreError(); };
  SHARDMESH_RETURN_IF_ERROR(CopyDatabase(folder, file, copy));
  SHARDMESH_ASSIGN_OR_RETURN(const StoredState snapshot, ReadSnapshot(copy, file));
  SHARDMESH_ASSIGN_OR_RETURN(ClusterRecord cluster, ClusterOf(snapshot.index));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t restores, CountReplaced(folder));
  // The state whose cluster record is lost, and each state that was replaced before, may come from
  // this snapshot. Each of them has skipped kSkippedTerms, and this state skips as many once more.
  cluster.term += (2 + restores) * kSkippedTerms;
  SHARDMESH_RETURN_IF_ERROR(CheckTerm(cluster.term));
  return cluster;
}

absl::Status Insert(Database& database, const Database::Statement& insert, const StoredRow& row) {
  return InsertRecord(database, insert, row.row_id, row.key, row.value.get());
}

// Moves unreadable records, and older records of the same keys, to the table `set_aside`.
absl::Status MoveAside(Database& database, const Salvaged& salvaged) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto move,
      database.Prepare("INSERT INTO set_aside SELECT position, CAST(key AS BLOB), value, crc, ?2 "
                       "FROM event WHERE position = ?1"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto erase,
                             database.Prepare("DELETE FROM event WHERE position = ?1"));
  const auto move_row = [&](int64_t row_id, std::string_view why) -> absl::Status {
    move.BindNumber(1, row_id);
    move.BindText(2, why);
    SHARDMESH_RETURN_IF_ERROR(database.Run(move));
    erase.BindNumber(1, row_id);
    return database.Run(erase);
  };
  for (const UnreadableRecord& record : salvaged.unreadable) {
    SHARDMESH_RETURN_IF_ERROR(move_row(record.row_id, record.why));
  }
  const auto lost = NewestUnreadable(salvaged);
  for (const StoredRow& row : salvaged.rows) {
    const auto found = lost.find(row.key);
    if (found == lost.end() || row.row_id > found->second->row_id) continue;
    SHARDMESH_RETURN_IF_ERROR(move_row(row.row_id, found->second->why));
  }
  return absl::OkStatus();
}

// Writes a new database of the salvaged rows. `bounds.newest` includes the skipped revisions;
// rewritten definitions get the first of the skipped revisions.
absl::Status WriteSalvaged(const std::string& path, const Salvaged& salvaged,
                           const std::vector<FormerRecord>& former, const StoredBounds& bounds,
                           const Given& given) {
  Database database(path);
  SHARDMESH_RETURN_IF_ERROR(database.Open());
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(database));
  SHARDMESH_ASSIGN_OR_RETURN(const auto insert, database.Prepare(kInsertRecord));
  return database.InTransaction([&]() -> absl::Status {
    const auto lost = NewestUnreadable(salvaged);
    const auto current = CurrentRows(salvaged);
    const std::set<int64_t> broken = FindBrokenHistory(salvaged);
    std::set<std::string_view> rewritten = {kRestoredKey};
    if (given.cluster.has_value()) rewritten.insert(kClusterKey);
    for (const Put& mesh : given.meshes) rewritten.insert(mesh.key);
    Revision revision = bounds.newest - kSkippedRevisions;
    for (const FormerRecord& record : former) {
      if (!IsDefinition(record.key) || !rewritten.insert(record.key).second) continue;
      SHARDMESH_ASSIGN_OR_RETURN(const std::string value,
                                 WithDefinitionVersion(record.key, *current.at(record.key)->value,
                                                       record.version + kSkippedVersions));
      SHARDMESH_RETURN_IF_ERROR(
          InsertRecord(database, insert, RowId({.revision = ++revision}), record.key, &value));
    }
    for (const StoredRow& row : salvaged.rows) {
      if (const auto found = lost.find(row.key);
          (found != lost.end() && row.row_id < found->second->row_id) ||
          broken.count(row.row_id) > 0 || rewritten.count(row.key) > 0) {
        continue;
      }
      SHARDMESH_RETURN_IF_ERROR(Insert(database, insert, row));
    }
    for (const StoredRow& row : ReplacementsOf(salvaged, bounds.newest)) {
      SHARDMESH_RETURN_IF_ERROR(Insert(database, insert, row));
    }
    for (const StoredRow& row : RowsOfLoss(salvaged, bounds.newest, given)) {
      SHARDMESH_RETURN_IF_ERROR(Insert(database, insert, row));
    }
    return WriteBounds(database, bounds);
  });
}

}  // namespace

absl::StatusOr<Restored> RestoreSnapshot(const std::string& folder, const std::string& file) {
  SHARDMESH_RETURN_IF_ERROR(CheckMayBeSnapshot(file));
  // Compute the digest of the file with its log merged. Another process that opens and closes the
  // file also merges the log, and must not change the digest.
  const bool has_log = HasLog(file);
  std::string digest;
  if (!has_log) {
    SHARDMESH_ASSIGN_OR_RETURN(digest, DigestOfFile(file));
  }
  // The next `up` would start with the state in the subfolder, which was not restored.
  const std::string below = CoordinatorFolderIn(folder);
  if (std::error_code error; !below.empty() && !fs::exists(DatabasePath(folder), error)) {
    return StoreError(absl::StatusCode::kFailedPrecondition,
                      StrCat("there is no database ", DatabasePath(folder),
                             "; the coordinator of this cluster keeps its state in ", below,
                             "; restore with --data-dir ", below),
                      folder);
  }
  SHARDMESH_RETURN_IF_ERROR(MakeDataFolder(folder));
  SHARDMESH_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(folder));
  SHARDMESH_RETURN_IF_ERROR(FinishReplacement(folder));
  const std::string copy = folder + "/restoring";
  const absl::Cleanup remove = [&copy] { RemoveDatabase(copy).IgnoreError(); };
  if (has_log) {
    SHARDMESH_RETURN_IF_ERROR(CopyDatabase(folder, file, copy));
    SHARDMESH_ASSIGN_OR_RETURN(digest, DigestOfFile(copy));
  }
  Restored restored;
  const std::string again = StrCat(folder, "/", kRestoreAgain);
  const bool is_asked_again = fs::exists(again);
  if (!is_asked_again) {
    const absl::StatusOr<std::optional<std::string>> last = RestoredFrom(folder);
    // A newer schema is refused even if the file `restore-again` exists.
    if (ReasonOf(last.status()) == Reason::kSchemaMismatch) return last.status();
    if (!last.ok()) {
      return StoreError(
          absl::StatusCode::kFailedPrecondition,
          StrCat("cannot tell from which snapshot the state in ", folder,
                 " was made: ", last.status().message(), "; to go on with that state, start ",
                 "without --restore; to put the snapshot in its place, put an empty file `",
                 kRestoreAgain, "` into the folder"),
          folder);
    }
    if (*last == digest) {
      restored.was_done_before = true;
      return restored;
    }
  }

  if (!has_log) {
    SHARDMESH_RETURN_IF_ERROR(CopyDatabase(folder, file, copy));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StoredState snapshot, ReadSnapshot(copy, file));
  if (!snapshot.unreadable.empty()) {
    return StoreError(
        absl::StatusCode::kDataLoss,
        StrCat("the snapshot ", file, " is damaged: ", snapshot.unreadable.size(),
               " records cannot be read, the first is \"", snapshot.unreadable.front().key, "\""),
        file);
  }
  SHARDMESH_ASSIGN_OR_RETURN(ClusterRecord cluster, ClusterOf(snapshot.index));
  restored.term = cluster.term;
  restored.revision = snapshot.index.newest();
  Revision newest = snapshot.index.newest();
  bool is_known = false;  // terms and revisions of the previous state are known
  if (fs::exists(DatabasePath(folder))) {
    std::optional<ClusterRecord> replaced;
    const absl::StatusOr<StoredState> before = ReadDatabase(DatabasePath(folder));
    // A state of a newer schema is not damaged. Replacing it would lose its data.
    if (ReasonOf(before.status()) == Reason::kSchemaMismatch) return before.status();
    // The disk failed to read the state, which may be undamaged: replace it only if the file
    // `restore-again` exists.
    if (absl::IsInternal(before.status()) && !is_asked_again) {
      return StoreError(absl::StatusCode::kInternal,
                        StrCat("cannot read the state in ", folder,
                               ", which the snapshot would replace: ", before.status().message(),
                               "; try again, or put an empty file `", kRestoreAgain,
                               "` into the folder to replace it unread"),
                        folder);
    }
    if (before.ok()) {
      if (auto found = ClusterOf(before->index); found.ok()) replaced = *std::move(found);
      newest = std::max(newest, before->index.newest());
      // If the log of the state is lost, the state may have had more commits than can be read.
      is_known = replaced.has_value() && CheckHasLog(DatabasePath(folder)).ok();
      CompareStates(before->index, snapshot.index, &restored);
    } else {
      restored.unread = before.status();
      Extent extent = ExtentOf(DatabasePath(folder));
      replaced = std::move(extent.cluster);
      newest = std::max(newest, extent.newest);
    }
    if (replaced.has_value() && replaced->cluster_id != cluster.cluster_id) {
      return StoreError(
          absl::StatusCode::kFailedPrecondition,
          StrCat("the snapshot ", file, " is of cluster ", cluster.cluster_id, ", the data folder ",
                 folder, " of cluster ", replaced->cluster_id, "; use another data folder"),
          file);
    }
    if (replaced.has_value()) cluster.term = std::max(cluster.term, replaced->term);
  }
  if (!is_known) {
    // The previous state, and each state that was replaced before, may come from this snapshot.
    // Each of them has skipped the same numbers of terms and revisions.
    SHARDMESH_ASSIGN_OR_RETURN(int64_t restores, CountReplaced(folder));
    if (fs::exists(DatabasePath(folder))) ++restores;
    cluster.term += restores * kSkippedTerms;
    newest += restores * kSkippedRevisions;
  }
  cluster.term += kSkippedTerms;
  SHARDMESH_RETURN_IF_ERROR(CheckTerm(cluster.term));
  SHARDMESH_RETURN_IF_ERROR(Skip(copy, cluster, newest, digest));
  SHARDMESH_ASSIGN_OR_RETURN(restored.replaced, ReplaceDatabase(folder, copy, "replaced.db"));
  std::error_code error;
  fs::remove(again, error);
  if (error) return FileError("remove", again, error);
  SHARDMESH_RETURN_IF_ERROR(SyncFolder(folder));
  return restored;
}

absl::StatusOr<StoreCheck> CheckDataFolder(const std::string& folder, bool set_aside,
                                           const std::string& cluster_of, const GivenRanks& ranks) {
  std::error_code error;
  // If the folder is not a coordinator's, do not even create a lock file in it.
  SHARDMESH_ASSIGN_OR_RETURN(std::string next, NextDatabase(folder));
  if (next.empty() && !fs::exists(DatabasePath(folder), error)) {
    if (error) return FileError("look for", DatabasePath(folder), error);
    if (fs::is_directory(folder, error)) SHARDMESH_RETURN_IF_ERROR(CheckHasState(folder));
    return StoreError(absl::StatusCode::kNotFound, NoDatabase(folder), folder);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const FolderLock lock,
                             set_aside ? FolderLock::Take(folder) : FolderLock::TakeToRead(folder));
  if (set_aside) {
    SHARDMESH_RETURN_IF_ERROR(FinishReplacement(folder));
    next.clear();
  }
  if (next.empty()) SHARDMESH_RETURN_IF_ERROR(CheckHasState(folder));
  StoreCheck check;
  // If this process cannot remove the image, the coordinator's next start removes it.
  const std::string image = StrCat(folder, "/", kSnapshotPrefix, "check-", getpid());
  const absl::Cleanup remove_image = [&image] { RemoveDatabase(image).IgnoreError(); };
  SHARDMESH_ASSIGN_OR_RETURN(
      Opened opened, OpenToCheck(next.empty() ? DatabasePath(folder) : next, image, set_aside));
  auto& database = opened.database;
  check.schema_version = opened.schema_version;
  check.log = opened.log;
  check.pages = opened.pages;
  if (check.is_empty()) {  // nothing was ever written to the database
    SHARDMESH_RETURN_IF_ERROR(CheckIsNew(folder));
    if (!check.log.ok()) return TooDamaged(DatabasePath(folder));
    return check;
  }
  const absl::StatusOr<StoredBounds> read = ReadBounds(*database);
  if (!read.ok() && !absl::IsDataLoss(read.status())) return read.status();
  check.bounds = read.status();
  absl::StatusOr<Salvaged> found = Salvage(*database);
  if (absl::IsDataLoss(found.status())) {
    return TooDamaged(DatabasePath(folder));
  }
  SHARDMESH_ASSIGN_OR_RETURN(Salvaged salvaged, std::move(found));
  if (!check.pages.ok() && salvaged.rows.empty()) {
    return TooDamaged(DatabasePath(folder));
  }
  if (!salvaged.lost.empty() && check.pages.ok()) {
    check.pages = StoreError(absl::StatusCode::kDataLoss, salvaged.lost.front().why, folder);
  }
  check.lost = salvaged.lost;
  // Without checksums, a changed record in a damaged page cannot be detected: give up.
  if (check.schema_version < kFirstChecked) SHARDMESH_RETURN_IF_ERROR(check.pages);
  KeyFinder finder(&salvaged.unreadable);
  for (const StoredRow& row : salvaged.rows) finder.Find(row.key);
  check.records = static_cast<int64_t>(salvaged.rows.size());
  check.unreadable = salvaged.unreadable;
  // If no finding explains the damage, rows may be missing without a trace. In that case, any
  // definition may have had a newer record.
  const bool is_explained = opened.is_log_whole && (!salvaged.unreadable.empty() ||
                                                    !check.bounds.ok() || opened.are_pages_whole);
  const bool is_rewritten = !check.pages.ok() || !opened.is_log_whole;
  if (is_rewritten && (!salvaged.lost.empty() || !is_explained)) {
    check.former = FindFormer(salvaged);
  }
  if (!check.is_sound()) check.lost_ranks = FindLostRanks(salvaged);
  StoredBounds bounds = read.value_or(StoredBounds());
  for (const StoredRow& row : salvaged.rows) {
    bounds.newest = std::max(bounds.newest, PositionOf(row.row_id).revision);
  }
  for (const UnreadableRecord& record : salvaged.unreadable) {
    bounds.newest = NewestWith(bounds.newest, record.row_id);
  }
  // If the bounds are unreadable, the compacted revision is unknown: allow no watch from an earlier
  // revision.
  if (!read.ok()) bounds.compacted = bounds.newest;
  check.compacted = bounds.compacted;
  check.newest = bounds.newest;
  check.lacks_cluster = bounds.newest > 0 && !ClusterOf(salvaged.rows).has_value();
  const bool takes_cluster = check.lacks_cluster && !cluster_of.empty();
  if (const auto own = ClusterOf(salvaged.rows);
      set_aside && !cluster_of.empty() && own.has_value()) {
    return absl::InvalidArgumentError(StrCat("the record of the cluster can be read: it is ",
                                             own->cluster_id, ", and nothing is taken from ",
                                             cluster_of, "; leave the snapshot out"));
  }
  if (set_aside && !ranks.empty() && check.is_sound() && !check.lacks_cluster) {
    return absl::InvalidArgumentError(
        StrCat("all of the state is as it was written, so the ranks of mesh \"",
               ranks.begin()->first, "\" are not given anew; leave them out"));
  }
  if (!set_aside || (check.is_sound() && !takes_cluster)) return check;
  Given given;
  SHARDMESH_ASSIGN_OR_RETURN(given.meshes, WithGivenRanks(salvaged, ranks, &check.lost_ranks));
  if (takes_cluster) {
    SHARDMESH_ASSIGN_OR_RETURN(given.cluster, ClusterOfSnapshot(folder, cluster_of));
    check.lacks_cluster = false;
    check.taken_cluster_id = given.cluster->cluster_id;
  }

  if (!opened.is_log_whole && !given.cluster.has_value()) {
    // The newest term's record may be lost with the end of the log, so skip terms.
    given.cluster = ClusterOf(salvaged.rows);
    if (given.cluster.has_value()) {
      given.cluster->term += kSkippedTerms;
      SHARDMESH_RETURN_IF_ERROR(CheckTerm(given.cluster->term));
    }
  }

  if (!is_rewritten) {
    SHARDMESH_RETURN_IF_ERROR(PrepareSchema(*database));
    const absl::Status moved = database->InTransaction([&]() -> absl::Status {
      SHARDMESH_ASSIGN_OR_RETURN(const auto insert, database->Prepare(kInsertRecord));
      SHARDMESH_ASSIGN_OR_RETURN(const auto forget,
                                 database->Prepare("DELETE FROM event WHERE key = ?1"));
      SHARDMESH_RETURN_IF_ERROR(MoveAside(*database, salvaged));
      if (!check.unreadable.empty() || given.cluster.has_value() || !given.meshes.empty()) {
        for (const StoredRow& row : ReplacementsOf(salvaged, bounds.newest)) {
          SHARDMESH_RETURN_IF_ERROR(Insert(*database, insert, row));
        }
        for (const StoredRow& row : RowsOfLoss(salvaged, bounds.newest, given)) {
          forget.BindText(1, row.key);
          SHARDMESH_RETURN_IF_ERROR(database->Run(forget));
          SHARDMESH_RETURN_IF_ERROR(Insert(*database, insert, row));
        }
      }
      return WriteBounds(*database, bounds);
    });
    SHARDMESH_RETURN_IF_ERROR(moved);
    SHARDMESH_RETURN_IF_ERROR(database->Checkpoint());
    // Only now clear the mark that the database needs its log. A checkpoint copies the page with
    // the mark first, and all other pages must be in the file by then.
    SHARDMESH_RETURN_IF_ERROR(
        database->InTransaction([&] { return SetNeedsLog(*database, false); }));
    SHARDMESH_RETURN_IF_ERROR(database->Checkpoint());
    if (opened.is_image) {
      database.reset();
      SHARDMESH_RETURN_IF_ERROR(SyncFile(image));
      SHARDMESH_ASSIGN_OR_RETURN(check.replaced, ReplaceDatabase(folder, image, "damaged.db"));
    }
    return check;
  }
  // The lost pages, or the lost end of the log, may have held newer commits, whose revisions must
  // not be used again.
  bounds.newest += kSkippedRevisions;
  bounds.compacted = check.compacted = check.newest = bounds.newest;
  const std::string salvage = folder + "/salvaged";
  SHARDMESH_RETURN_IF_ERROR(RemoveDatabase(salvage));
  const absl::Cleanup remove = [&salvage] { RemoveDatabase(salvage).IgnoreError(); };
  SHARDMESH_RETURN_IF_ERROR(WriteSalvaged(salvage, salvaged, check.former, bounds, given));
  database.reset();
  SHARDMESH_ASSIGN_OR_RETURN(check.replaced, ReplaceDatabase(folder, salvage, "damaged.db"));
  return check;
}

}  // namespace shardmesh::server
