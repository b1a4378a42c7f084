// The journal of a LocalStore as an SQLite database; the one file that knows SQLite.
#include "server/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "server/folder_lock.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "tensor/file.h"

namespace shardmesh::server {
namespace {

// In the database's header: that it is ours ("shdm"), and which tables to expect.
constexpr int64_t kApplicationId = 0x7368646d;
constexpr int64_t kSchemaVersion = 1;

// An event's row id: its revision, then its place in the commit, of which there are at most
// kMaxTransactionOperations. So the table is in the order of the history, and needs no index.
constexpr int kPlaceBits = 8;
static_assert(kMaxTransactionOperations <= (1 << kPlaceBits));

int64_t RowId(EventPosition position) { return (position.revision << kPlaceBits) | position.place; }
EventPosition PositionOf(int64_t row_id) {
  return {row_id >> kPlaceBits, static_cast<int32_t>(row_id & ((1 << kPlaceBits) - 1))};
}

absl::Status StoreError(absl::StatusCode code, std::string_view message) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed);
}

// Makes the folder if it is not there, and its entry in the parent durable.
absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0) {
    if (errno == EEXIST) return absl::OkStatus();
    return StoreError(absl::ErrnoToStatusCode(errno),
                      StrCat("cannot make the data folder ", folder, ": ", std::strerror(errno)));
  }
  const std::string parent = std::filesystem::path(folder).parent_path();
  const FileDescriptor opened(open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY));
  if (opened.get() >= 0) fsync(opened.get());
  return absl::OkStatus();
}

// One connection. Thread-compatible.
class Database {
 public:
  // A prepared statement; between uses it is reset.
  class Statement {
   public:
    Statement() = default;
    ~Statement() { sqlite3_finalize(statement_); }
    Statement(Statement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
    Statement& operator=(Statement&& other) noexcept {
      std::swap(statement_, other.statement_);
      return *this;
    }
    sqlite3_stmt* get() const { return statement_; }

   private:
    friend class Database;
    sqlite3_stmt* statement_ = nullptr;
  };

  explicit Database(std::string path) : path_(std::move(path)) {}
  ~Database() { sqlite3_close(handle_); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  absl::Status Open() {
    const int code = sqlite3_open_v2(
        path_.c_str(), &handle_,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
        nullptr);
    if (code != SQLITE_OK) return Error(code, "open");
    if (sqlite3_db_readonly(handle_, "main") == 1) {
      return StoreError(absl::StatusCode::kPermissionDenied,
                        StrCat("cannot write ", path_, "; the coordinator needs to"));
    }
    return absl::OkStatus();
  }

  absl::Status Execute(const std::string& sql) {
    const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
  }

  absl::StatusOr<Statement> Prepare(const std::string& sql) {
    Statement statement;
    const int code = sqlite3_prepare_v3(handle_, sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                                        &statement.statement_, nullptr);
    if (code != SQLITE_OK) return Error(code, sql);
    return statement;
  }

  // Runs a statement that returns no rows.
  absl::Status Run(const Statement& statement) {
    const int code = sqlite3_step(statement.get());
    sqlite3_reset(statement.get());
    return code == SQLITE_DONE ? absl::OkStatus() : Error(code, sqlite3_sql(statement.get()));
  }

  // True if there is a row.
  absl::StatusOr<bool> Step(const Statement& statement) {
    const int code = sqlite3_step(statement.get());
    if (code == SQLITE_ROW) return true;
    sqlite3_reset(statement.get());
    if (code == SQLITE_DONE) return false;
    return Error(code, sqlite3_sql(statement.get()));
  }

  // The number in the first column of the first row; nullopt without rows.
  absl::StatusOr<std::optional<int64_t>> Number(const std::string& sql) {
    SHARDMESH_ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, Step(statement));
    if (!row) return std::nullopt;
    return sqlite3_column_int64(statement.get(), 0);
  }

  // Runs `writes` as one transaction.
  template <typename Writes>
  absl::Status InTransaction(Writes writes) {
    SHARDMESH_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status status = writes();
    if (status.ok()) status = Execute("COMMIT");
    // After some errors SQLite has rolled back already; then there is nothing left to do.
    if (!status.ok() && sqlite3_get_autocommit(handle_) == 0) {
      sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
    }
    return status;
  }

  const std::string& path() const { return path_; }

 private:
  // What went wrong, as our codes say it.
  absl::Status Error(int code, std::string_view doing) const {
    const std::string what =
        StrCat(path_, ": ", sqlite3_errstr(code), " (", sqlite3_errmsg(handle_), "; SQLite code ",
               code, ", in: ", doing, ")");
    switch (code & 0xff) {
      case SQLITE_FULL:
        return StoreError(absl::StatusCode::kResourceExhausted,
                          StrCat("no room for the state on disk, or its quota is used up: ", what));
      case SQLITE_NOMEM:
        return StoreError(absl::StatusCode::kResourceExhausted, what);
      case SQLITE_CORRUPT:
      case SQLITE_NOTADB:
        return StoreError(absl::StatusCode::kDataLoss,
                          StrCat("the state database is damaged; restore a copy, or move it away "
                                 "to start anew: ",
                                 what));
      case SQLITE_PERM:
      case SQLITE_READONLY:
      case SQLITE_AUTH:
      case SQLITE_CANTOPEN:
        return StoreError(absl::StatusCode::kPermissionDenied,
                          StrCat("the state database cannot be opened for writing: ", what));
      case SQLITE_BUSY:
      case SQLITE_LOCKED:
        return StoreError(absl::StatusCode::kFailedPrecondition,
                          StrCat("another program has the state database open; close it: ", what));
      case SQLITE_IOERR:
        if (sqlite3_system_errno(handle_) == ENOSPC || sqlite3_system_errno(handle_) == EDQUOT) {
          return StoreError(absl::StatusCode::kResourceExhausted,
                            StrCat("no room for the state on disk: ", what));
        }
        return StoreError(absl::StatusCode::kInternal, what);
      default:
        return StoreError(absl::StatusCode::kInternal, what);
    }
  }

  const std::string path_;
  sqlite3* handle_ = nullptr;
};

class SqliteJournal final : public Journal {
 public:
  SqliteJournal(FileDescriptor lock, std::unique_ptr<Database> database, Database::Statement insert,
                Database::Statement erase, Database::Statement update)
      : lock_(std::move(lock)),
        database_(std::move(database)),
        insert_(std::move(insert)),
        erase_(std::move(erase)),
        update_(std::move(update)) {}

  absl::Status Append(absl::Span<const WatchEvent> events) override {
    return database_->InTransaction([&]() -> absl::Status {
      EventPosition position;
      for (const WatchEvent& event : events) {
        position.place = event.revision == position.revision ? position.place + 1 : 0;
        position.revision = event.revision;
        sqlite3_bind_int64(insert_.get(), 1, RowId(position));
        sqlite3_bind_text(insert_.get(), 2, event.key.data(), static_cast<int>(event.key.size()),
                          SQLITE_STATIC);
        if (event.value.has_value()) {
          sqlite3_bind_blob(insert_.get(), 3, event.value->data(),
                            static_cast<int>(event.value->size()), SQLITE_STATIC);
        } else {
          sqlite3_bind_null(insert_.get(), 3);
        }
        SHARDMESH_RETURN_IF_ERROR(database_->Run(insert_));
      }
      return absl::OkStatus();
    });
  }

  absl::Status Drop(absl::Span<const EventPosition> superseded, Revision compacted,
                    Revision newest) override {
    return database_->InTransaction([&]() -> absl::Status {
      for (const EventPosition& position : superseded) {
        sqlite3_bind_int64(erase_.get(), 1, RowId(position));
        SHARDMESH_RETURN_IF_ERROR(database_->Run(erase_));
      }
      sqlite3_bind_int64(update_.get(), 1, compacted);
      sqlite3_bind_int64(update_.get(), 2, newest);
      return database_->Run(update_);
    });
  }

 private:
  // In this order: the statements go before their connection, the lock last.
  const FileDescriptor lock_;
  const std::unique_ptr<Database> database_;
  const Database::Statement insert_;
  const Database::Statement erase_;
  const Database::Statement update_;
};

// Checks that the database is ours and of our version; fills an empty one with our tables.
absl::Status PrepareSchema(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto application, database.Number("PRAGMA application_id"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto version, database.Number("PRAGMA user_version"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto tables,
                             database.Number("SELECT COUNT(*) FROM sqlite_schema"));
  if (application == 0 && version == 0 && tables == 0) {
    return database.InTransaction([&] {
      return database.Execute(
          StrCat("CREATE TABLE event (position INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB);"
                 "CREATE TABLE bounds (compacted INTEGER NOT NULL, newest INTEGER NOT NULL);"
                 "INSERT INTO bounds VALUES (0, 0);"
                 "PRAGMA application_id = ",
                 kApplicationId, "; PRAGMA user_version = ", kSchemaVersion));
    });
  }
  if (application != kApplicationId) {
    return StoreError(
        absl::StatusCode::kFailedPrecondition,
        StrCat(database.path(), " is a database of another program; use another data folder"));
  }
  if (version != kSchemaVersion) {
    return StoreError(
        absl::StatusCode::kFailedPrecondition,
        StrCat(database.path(), " has schema version ", *version, ", this build reads version ",
               kSchemaVersion, "; use the build that wrote it, or a newer one"));
  }
  return absl::OkStatus();
}

absl::Status CheckPages(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto statement, database.Prepare("PRAGMA quick_check(1)"));
  SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(statement));
  const auto* text =
      row ? reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 0)) : nullptr;
  if (text != nullptr && std::strcmp(text, "ok") == 0) return absl::OkStatus();
  return StoreError(absl::StatusCode::kDataLoss,
                    StrCat("the state database is damaged; restore a copy, or move it away to "
                           "start anew: ",
                           database.path(), ": ", text == nullptr ? "no answer" : text));
}

absl::StatusOr<RevisionIndex> ReadHistory(Database& database) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto compacted, database.Number("SELECT compacted FROM bounds"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto newest, database.Number("SELECT newest FROM bounds"));
  if (!compacted.has_value() || !newest.has_value()) {
    return StoreError(absl::StatusCode::kDataLoss,
                      StrCat("the state database is damaged: ", database.path(),
                             " has lost its bounds; restore a copy"));
  }
  RevisionIndex index(*compacted, *newest);
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto rows,
      database.Prepare("SELECT position, key, value FROM event ORDER BY position"));
  const auto bytes = [&rows](int column) {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(rows.get(), column));
    const auto size = static_cast<size_t>(sqlite3_column_bytes(rows.get(), column));
    return data == nullptr ? std::string() : std::string(data, size);
  };
  while (true) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, database.Step(rows));
    if (!row) return index;
    const bool deleted = sqlite3_column_type(rows.get(), 2) == SQLITE_NULL;
    index.Add(PositionOf(sqlite3_column_int64(rows.get(), 0)), bytes(1),
              deleted ? std::nullopt : std::optional(bytes(2)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(SqliteStoreOptions options) {
  SHARDMESH_RETURN_IF_ERROR(MakeFolder(options.folder));
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor lock, LockFolder(options.folder, options.lock_timeout));

  auto database = std::make_unique<Database>(options.folder + "/state.db");
  SHARDMESH_RETURN_IF_ERROR(database->Open());
  // One process, one connection: so the log's index needs no shared memory file.
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA locking_mode = EXCLUSIVE"));
  SHARDMESH_RETURN_IF_ERROR(PrepareSchema(*database));
  SHARDMESH_RETURN_IF_ERROR(CheckPages(*database));
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode = WAL"));
  SHARDMESH_RETURN_IF_ERROR(database->Execute("PRAGMA synchronous = FULL"));
  SHARDMESH_ASSIGN_OR_RETURN(const auto page_size, database->Number("PRAGMA page_size"));
  SHARDMESH_RETURN_IF_ERROR(database->Execute(
      StrCat("PRAGMA max_page_count = ", std::max<int64_t>(1, options.quota_bytes / *page_size))));
  SHARDMESH_ASSIGN_OR_RETURN(RevisionIndex index, ReadHistory(*database));

  SHARDMESH_ASSIGN_OR_RETURN(auto insert,
                             database->Prepare("INSERT INTO event VALUES (?1, ?2, ?3)"));
  SHARDMESH_ASSIGN_OR_RETURN(auto erase,
                             database->Prepare("DELETE FROM event WHERE position = ?1"));
  SHARDMESH_ASSIGN_OR_RETURN(auto update,
                             database->Prepare("UPDATE bounds SET compacted = ?1, newest = ?2"));
  return std::make_unique<LocalStore>(
      std::move(index),
      std::make_unique<SqliteJournal>(std::move(lock), std::move(database), std::move(insert),
                                      std::move(erase), std::move(update)),
      std::move(options.local));
}

}  // namespace shardmesh::server
