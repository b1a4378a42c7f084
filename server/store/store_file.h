// The coordinator's data folder and its database: locking, schema versions, and reading of records.
#ifndef SHARDMESH_SERVER_STORE_STORE_FILE_H_
#define SHARDMESH_SERVER_STORE_STORE_FILE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "server/store/revision_index.h"
#include "server/store/sqlite_database.h"

namespace shardmesh::server {

// Tables, by schema version:
//
// clang-format off
//   1  event(position, key, value), bounds(compacted, newest)
//   2  a CRC-32C with each record and with the bounds; set_aside for records that were unreadable
//   3  a CRC-32C of each record's key only, so that a damaged key is not taken for another one
// clang-format on
inline constexpr int64_t kSchemaVersion = 3;
// The first version with checksums.
inline constexpr int64_t kFirstChecked = 2;

std::string DatabasePath(std::string_view folder);

// Creates the folder if it is missing, and makes its entry in the parent durable.
absl::Status MakeDataFolder(const std::string& folder);
// Makes the entries of a folder durable.
absl::Status SyncFolder(const std::string& folder);

// Makes `prepared`, a complete and synced database in the folder, the folder's database. Moves
// the previous database with its log to NAME-N, and returns its new path; empty: there was
// none.
//
// One rename begins the replacement. If the process ends after that, FinishReplacement completes
// it, so no start finds a folder without its state. Requires the folder's lock, with neither
// database open.
absl::StatusOr<std::string> ReplaceDatabase(const std::string& folder, const std::string& prepared,
                                            std::string_view name);
// Returns the database of an interrupted replacement, which FinishReplacement has to finish. Empty
// if there is none, or no folder.
absl::StatusOr<std::string> NextDatabase(const std::string& folder);
// Completes an interrupted replacement; no effect if there is none. A process that has locked a
// folder calls it before it opens the database.
absl::Status FinishReplacement(const std::string& folder);

// DATA_LOSS: the folder has lost its database, which is missing or empty, though something in the
// folder shows that a coordinator kept its state there. OK for a folder that is new, and for one
// whose first start was interrupted. Under the folder's lock, after FinishReplacement.
absl::Status CheckHasState(const std::string& folder);
// Like CheckHasState, for a database that could be opened and has no tables (version 0).
absl::Status CheckIsNew(const std::string& folder);

// Sets whether the database needs its log, as part of a transaction.
//
// The mark is in the database's header. It is set from the first commit of each process, once that
// is on the disk, until a clean shutdown has copied the log into the database. A database without
// the mark is complete without its log; one with the mark shows that a missing log was lost.
absl::Status SetNeedsLog(Database& database, bool needs_log);
absl::StatusOr<bool> NeedsLog(Database& database);
// Clears the mark in the file of a copy that has all commits, and syncs the file. Requires that no
// process has the copy open.
absl::Status ForgetLog(const std::string& copy);
// DATA_LOSS: the database needs its log, and the log is missing or has no frame: acknowledged
// commits are lost. Reads the files without SQLite, and changes nothing. OK for a database that is
// missing or unreadable: other checks report that.
absl::Status CheckHasLog(const std::string& database);

// The lock on a data folder, for one process at a time. The kernel releases it when the process
// ends for any reason.
class FolderLock {
 public:
  // Locks the folder. If another process holds the lock, waits up to `timeout` for it, because
  // it may be stopping, and logs its name. Then FAILED_PRECONDITION, with that process and its
  // host.
  static absl::StatusOr<FolderLock> Take(const std::string& folder,
                                         absl::Duration timeout = absl::ZeroDuration());
  // Locks a folder for reading, shared with other readers. The folder may belong to another user
  // and be read-only. Takes no lock if the folder was never opened. FAILED_PRECONDITION: a process
  // has it.
  static absl::StatusOr<FolderLock> TakeToRead(const std::string& folder);

 private:
  explicit FolderLock(FileDescriptor held) : held_(std::move(held)) {}
  FileDescriptor held_;  // not valid for a reader of a folder without a lock
};

// Returns an event's row id: its revision, then its place in the commit. The table is therefore in
// the order of the history, and needs no index.
int64_t RowId(EventPosition position);
EventPosition PositionOf(int64_t row_id);

// Returns the checksum stored with a record, and with the bounds.
uint32_t RecordChecksum(int64_t row_id, std::string_view key, const std::string* value);
uint32_t KeyChecksum(std::string_view key);
uint32_t BoundsChecksum(Revision compacted, Revision newest);

// Writes a record with its checksums by a statement of kInsertRecord; a null value for a deletion.
inline constexpr char kInsertRecord[] = "INSERT INTO event VALUES (?1, ?2, ?3, ?4, ?5)";
absl::Status InsertRecord(Database& database, const Database::Statement& insert, int64_t row_id,
                          std::string_view key, const std::string* value);

// Returns the version of a coordinator's database. FAILED_PRECONDITION: it belongs to another
// program; or (SCHEMA_MISMATCH) this build cannot read the version: names both. An empty database
// has version 0.
absl::StatusOr<int64_t> SchemaVersionOf(Database& database);
// Creates the tables in an empty database. Upgrades an older version to the current one, completely
// or not at all.
absl::Status PrepareSchema(Database& database);

// A record that cannot be read.
struct UnreadableRecord {
  int64_t row_id = 0;
  std::string key;
  std::string why;
  // Set if the key is damaged: `key` is then the stored bytes, and no record's key. The checksum is
  // that of the original key; older records with this checksum have the same key.
  std::optional<uint32_t> lost_key_crc = {};
};

// Finds the original keys of unreadable records with damaged keys, from their checksums and the
// existing keys.
class KeyFinder {
 public:
  // `records` must not move during the object's lifetime.
  explicit KeyFinder(std::vector<UnreadableRecord>* records);
  bool is_done() const { return lost_.empty(); }
  // Names the records that had this key. Returns the newest one's row id: nothing before it is the
  // key's current value. Returns the least number if there is none.
  int64_t Find(std::string_view key);

 private:
  std::multimap<uint32_t, UnreadableRecord*> lost_;  // by the checksum of the key
};

struct StoredState {
  RevisionIndex index;
  std::vector<UnreadableRecord> unreadable;
};

// The newest revision, given an unreadable row: its row id is used, so its commit counts as past. A
// row id far beyond all others is part of the damage.
Revision NewestWith(Revision newest, int64_t unreadable_row);

// Reads all records, also those of an older schema. If a key has an unreadable record, leaves
// out its older records: they would look current. DATA_LOSS: the bounds or the pages cannot be
// read.
absl::StatusOr<StoredState> ReadState(Database& database);

// A row as stored in the database, also in one of an older schema. Rows of version 1 have no
// checksums and count as correct.
struct StoredRow {
  int64_t row_id = 0;
  std::string key;
  std::shared_ptr<const std::string> value;   // null: a deletion
  std::string why;                            // the error; empty: the row is intact
  std::optional<uint32_t> lost_key_crc = {};  // as in UnreadableRecord
};

inline constexpr int64_t kFirstRow = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kLastRow = std::numeric_limits<int64_t>::max();

// Reads the rows of a database, in order, even with damaged pages. Errors are the database's:
// DATA_LOSS from a page that cannot be read. The database outlives the reader.
class RowReader {
 public:
  static absl::StatusOr<RowReader> Create(Database& database);

  // Calls back for each row from `from` to `to`, both included, until an error ends it.
  absl::Status Read(int64_t from, int64_t to, absl::FunctionRef<void(StoredRow)> callback) const;
  // The first row from `from` to `to`, even if it is unreadable itself; nullopt: there is none.
  absl::StatusOr<std::optional<int64_t>> FindNext(int64_t from, int64_t to) const;
  // The stored key of a row that cannot be read completely.
  absl::StatusOr<std::string> KeyOf(int64_t row_id) const;

 private:
  explicit RowReader(Database* database) : database_(database) {}

  Database* database_;
  bool has_checksums_ = false;
  Database::Statement rows_;
  Database::Statement next_;
  Database::Statement key_;
};

// Calls back for each row, in order. Returns the error that ended the loop, or OK.
absl::Status ForEachRow(Database& database, absl::FunctionRef<void(StoredRow)> callback);

// The bounds: nothing before `compacted` can be read, `newest` is the last commit. DATA_LOSS if
// their checksum does not fit.
struct StoredBounds {
  Revision compacted = 0;
  Revision newest = 0;
};
absl::StatusOr<StoredBounds> ReadBounds(Database& database);
// Replaces the bounds, if any; part of a transaction.
absl::Status WriteBounds(Database& database, StoredBounds bounds);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_STORE_FILE_H_
