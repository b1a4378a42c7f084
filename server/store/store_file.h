// The coordinator's data folder and its database: locks, schema versions, and how records are read.
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
//   2  adds a CRC-32C of each record and of the bounds, and set_aside for unreadable records
//   3  adds a CRC-32C of each record's key, so that a damaged key is not taken for another key
// clang-format on
inline constexpr int64_t kSchemaVersion = 3;
// The first schema version with checksums.
inline constexpr int64_t kFirstChecked = 2;

std::string DatabasePath(std::string_view folder);

// Creates the folder if it is missing, and syncs its entry in the parent folder.
absl::Status MakeDataFolder(const std::string& folder);
// Syncs the folder, so that its entries are durable.
absl::Status SyncFolder(const std::string& folder);

// Replaces the folder's database by `prepared`, a complete and synced database in the folder. Moves
// the previous database with its log to the first unused path NAME-N in the folder, where NAME is
// `name`. Returns that path; empty if there was no previous database.
//
// One rename begins the replacement. If the process ends after that rename, FinishReplacement
// completes the replacement, so no start finds a folder without its state. Requires that the caller
// holds the folder's lock and that neither database is open.
absl::StatusOr<std::string> ReplaceDatabase(const std::string& folder, const std::string& prepared,
                                            std::string_view name);
// Returns the path of the new database of an interrupted replacement, which FinishReplacement has
// to complete. Returns "" if no replacement was interrupted, or the folder does not exist.
absl::StatusOr<std::string> NextDatabase(const std::string& folder);
// Completes an interrupted replacement; no effect if there is none. Each process that has locked a
// folder must call it before it opens the database.
absl::Status FinishReplacement(const std::string& folder);

// DATA_LOSS: the database is missing or empty, although something in the folder shows that a
// coordinator kept its state there. OK for a new folder, and for a folder in which the first start
// was interrupted. Requires the folder's lock; call it after FinishReplacement.
absl::Status CheckHasState(const std::string& folder);
// Like CheckHasState, for a database that can be opened but has no tables (version 0).
absl::Status CheckIsNew(const std::string& folder);

// Sets or clears the mark that the database needs its log. Call it within a transaction.
//
// The mark is in the database's header. Each process sets the mark in its first transaction. A
// clean shutdown copies the log into the database and clears the mark. A database without the mark
// is complete without its log. If a database has the mark but no log, the log was lost.
absl::Status SetNeedsLog(Database& database, bool needs_log);
absl::StatusOr<bool> NeedsLog(Database& database);
// Clears the mark in the file of a copy that includes all commits, and syncs the file. Requires
// that no process has the copy open.
absl::Status ForgetLog(const std::string& copy);
// DATA_LOSS: the database needs its log, but the log is missing or has no frame, so acknowledged
// commits are lost. Reads the files without SQLite, and changes nothing. Returns OK for a database
// that is missing or unreadable, because other checks report that.
absl::Status CheckHasLog(const std::string& database);

// The lock on a data folder, which one process at a time can hold. The kernel releases the lock
// when the process ends for any reason.
class FolderLock {
 public:
  // Locks the folder. If another process holds the lock, that process may be stopping: Take names
  // it in the log and waits up to `timeout`. FAILED_PRECONDITION: the other process still holds the
  // lock (the message names the process and its host), or the folder belongs to a worker.
  static absl::StatusOr<FolderLock> Take(const std::string& folder,
                                         absl::Duration timeout = absl::ZeroDuration());
  // Locks a folder for reading, shared with other readers. The folder may belong to another user
  // and be read-only. If the folder was never opened, takes no lock. FAILED_PRECONDITION: a process
  // holds the exclusive lock.
  static absl::StatusOr<FolderLock> TakeToRead(const std::string& folder);

 private:
  explicit FolderLock(FileDescriptor held) : held_(std::move(held)) {}
  FileDescriptor held_;  // not valid if there is no lock file to read-lock
};

// RowId returns an event's row id: the revision in the upper bits, the place in the commit in the
// lowest bits. The rows are therefore in the order of the history, and the table needs no further
// index. PositionOf is the inverse.
int64_t RowId(EventPosition position);
EventPosition PositionOf(int64_t row_id);

// Return the checksums that are stored: of a whole record, of a record's key alone, and of the
// bounds.
uint32_t RecordChecksum(int64_t row_id, std::string_view key, const std::string* value);
uint32_t KeyChecksum(std::string_view key);
uint32_t BoundsChecksum(Revision compacted, Revision newest);

// Writes a record with its checksums. `insert` must be a statement prepared from kInsertRecord. A
// null `value` means a deletion.
inline constexpr char kInsertRecord[] = "INSERT INTO event VALUES (?1, ?2, ?3, ?4, ?5)";
absl::Status InsertRecord(Database& database, const Database::Statement& insert, int64_t row_id,
                          std::string_view key, const std::string* value);

// Returns the schema version of a coordinator's database; 0 if the database is empty.
// FAILED_PRECONDITION: the database belongs to another program. FAILED_PRECONDITION
// (SCHEMA_MISMATCH): this build cannot read the version; the message names both versions.
absl::StatusOr<int64_t> SchemaVersionOf(Database& database);
// Creates the tables in an empty database, or upgrades an older version to the current one. Does
// all of it in one transaction.
absl::Status PrepareSchema(Database& database);

// A record that cannot be read.
struct UnreadableRecord {
  int64_t row_id = 0;
  std::string key;
  std::string why;
  // Set if the key itself is damaged: the checksum of the original key. In that case `key` holds
  // the damaged bytes as stored. If another record has a key with this checksum, that key is the
  // original key.
  std::optional<uint32_t> lost_key_crc = {};
};

// Finds the original keys of unreadable records whose keys are damaged: an existing key with the
// stored checksum is the original key.
class KeyFinder {
 public:
  // `records` must not move while this object lives.
  explicit KeyFinder(std::vector<UnreadableRecord>* records);
  bool is_done() const { return lost_.empty(); }
  // Sets the key of all unreadable records whose original key was `key`. Returns the row id of the
  // newest of these records: older rows do not hold the key's current value. Returns the lowest
  // int64_t if there are no such records.
  int64_t Find(std::string_view key);

 private:
  std::multimap<uint32_t, UnreadableRecord*> lost_;  // by the checksum of the key
};

struct StoredState {
  RevisionIndex index;
  std::vector<UnreadableRecord> unreadable;
};

// Returns the revision of an unreadable row if it is newer than `newest`, else `newest`. The row id
// shows that the revision was used. Ignores a row id far beyond `newest`, because that row id is
// damaged.
Revision NewestWith(Revision newest, int64_t unreadable_row);

// Reads all records, also those of an older schema. If a key has an unreadable record, leaves out
// the key's older records, because they would otherwise look current. DATA_LOSS: the bounds or the
// pages cannot be read.
absl::StatusOr<StoredState> ReadState(Database& database);

// A row as stored in the database, of any schema version. Rows of version 1 have no checksums, and
// count as intact.
struct StoredRow {
  int64_t row_id = 0;
  std::string key;
  std::shared_ptr<const std::string> value;   // null: a deletion
  std::string why;                            // why the row is unreadable; empty: it is intact
  std::optional<uint32_t> lost_key_crc = {};  // as in UnreadableRecord
};

inline constexpr int64_t kFirstRow = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kLastRow = std::numeric_limits<int64_t>::max();

// Reads the rows of a database by rising row id, also if the database has damaged pages. Returns
// the errors of Database: DATA_LOSS for a page that cannot be read. The database must outlive the
// reader.
class RowReader {
 public:
  static absl::StatusOr<RowReader> Create(Database& database);

  // Calls back for each row from `from` to `to`, both included. Stops at the first error.
  absl::Status Read(int64_t from, int64_t to, absl::FunctionRef<void(StoredRow)> callback) const;
  // Returns the id of the first row from `from` to `to`, even if that row is unreadable; nullopt if
  // there is none.
  absl::StatusOr<std::optional<int64_t>> FindNext(int64_t from, int64_t to) const;
  // Returns the stored key of a row whose value cannot be read; "" if the key is no text.
  absl::StatusOr<std::string> KeyOf(int64_t row_id) const;

 private:
  explicit RowReader(Database* database) : database_(database) {}

  Database* database_;
  bool has_checksums_ = false;
  Database::Statement rows_;
  Database::Statement next_;
  Database::Statement key_;
};

// Calls back for each row, by rising row id. Returns the error that ended the loop, or OK.
absl::Status ForEachRow(Database& database, absl::FunctionRef<void(StoredRow)> callback);

// The bounds of the stored history: the oldest readable revision, and the last commit. ReadBounds
// returns DATA_LOSS if their checksum does not match.
struct StoredBounds {
  Revision compacted = 0;
  Revision newest = 0;
};
absl::StatusOr<StoredBounds> ReadBounds(Database& database);
// Replaces the stored bounds. Call it within a transaction.
absl::Status WriteBounds(Database& database, StoredBounds bounds);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_STORE_FILE_H_
