// One connection to an SQLite database. It converts errors to ours; only its source file uses
// SQLite.
#ifndef SHARDMESH_SERVER_STORE_SQLITE_DATABASE_H_
#define SHARDMESH_SERVER_STORE_SQLITE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "status/status_macros.h"

struct sqlite3;
struct sqlite3_backup;
struct sqlite3_stmt;

namespace shardmesh::server {

// Errors name the file, SQLite's message and the statement:
//
// clang-format off
//   RESOURCE_EXHAUSTED  (STORE_FULL) the disk or the page limit is full; nothing was written, for
//                       certain.
//   DATA_LOSS           the database is damaged.
//   PERMISSION_DENIED   the file cannot be written.
//   FAILED_PRECONDITION another program has it open.
//   INTERNAL            all other errors, such as an error of the disk; the outcome of a write is
//                       unknown.
// clang-format on
//
// All except the first carry STORE_FAILED. Thread-compatible.
class Database {
 public:
  // A prepared statement. As in SQLite, parameters count from 1 and columns from 0.
  class Statement {
   public:
    Statement() = default;
    ~Statement();
    Statement(Statement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
    Statement& operator=(Statement&& other) noexcept {
      std::swap(statement_, other.statement_);
      return *this;
    }

    // Bytes are not copied: they live until the statement has run.
    void BindNumber(int parameter, int64_t value) const;
    void BindText(int parameter, std::string_view text) const;
    void BindBytes(int parameter, std::string_view bytes) const;
    void BindNull(int parameter) const;

    int64_t Number(int column) const;
    // The bytes of a text or a blob; valid until the next step.
    std::string_view Bytes(int column) const;
    bool IsNull(int column) const;
    bool IsText(int column) const;
    bool IsNumber(int column) const;

    // Ends a run although rows may remain.
    void Reset() const;

   private:
    friend class Database;
    sqlite3_stmt* statement_ = nullptr;
  };

  // Start of the message of a DATA_LOSS error.
  static constexpr std::string_view kStateIsDamaged =
      "the state database is damaged; see what can be read with `shardmesh admin check FOLDER`, or "
      "restore a snapshot: ";
  // `if_damaged`: the start of the message for a database that is not a coordinator's state.
  explicit Database(std::string path, std::string_view if_damaged = kStateIsDamaged)
      : path_(std::move(path)), if_damaged_(if_damaged) {}
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // `vfs`: the layer under SQLite, for tests with injected faults; empty: the system's files.
  // DATA_LOSS: the file is missing or empty, but its log is not; SQLite would remove the log.
  absl::Status Open(const std::string& vfs = "");
  // Sets whether closing leaves the log unchanged. By default, closing copies the log into the
  // database, as far as SQLite can read it, and removes it. After UseLog, closing empties it.
  absl::Status KeepLog(bool keep);
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(const std::string& sql);
  // Runs a statement that returns no rows.
  absl::Status Run(const Statement& statement);
  // True if there is a row.
  absl::StatusOr<bool> Step(const Statement& statement);
  // The number in the first column of the first row; nullopt without rows.
  absl::StatusOr<std::optional<int64_t>> Number(const std::string& sql);

  // Runs `writes` as one transaction. RESOURCE_EXHAUSTED: it was rolled back.
  template <typename Writes>
  absl::Status InTransaction(Writes writes) {
    SHARDMESH_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status status = writes();
    if (status.ok()) status = Execute("COMMIT");
    return status.ok() ? status : RolledBack(std::move(status));
  }

  // Switches to a write-ahead log that is synced with each commit, and that only Checkpoint copies
  // into the database. Its file stays when the database is closed: a full disk may have no room for
  // a new one, also where it is empty (XFS).
  absl::Status UseLog();
  // Pages in the log that Checkpoint has not copied.
  int64_t log_pages() const { return log_pages_; }
  // Copies the log into the database, and syncs it.
  absl::Status Checkpoint();

  // The first page of the database in the form that its file would have.
  absl::StatusOr<std::string> FirstPage();

  // Sets how many pages the database may grow to, or its current size if that is larger.
  absl::Status LimitPages(int64_t pages);

  // DATA_LOSS: the pages of the database are inconsistent. INTERNAL: the disk failed to read one.
  absl::Status CheckPages();

  // Returns the last row ids of the pages that hold a table's rows, rising, except for the last
  // page. It covers the part of the table whose inner pages can be read. Rows after such an id are
  // on another page. Copies the log into the database first.
  absl::StatusOr<std::vector<int64_t>> PageEnds(const std::string& table);

  // A copy of the database, made a few pages at a time. The database may change in between.
  class Copy;
  // ALREADY_EXISTS if the file exists.
  absl::StatusOr<std::unique_ptr<Copy>> BeginCopy(const std::string& path);

  const std::string& path() const { return path_; }

 private:
  // Reads all of the database's files without SQLite's cache: an error shows that the disk fails.
  absl::Status ReadFiles();
  // Converts an SQLite error code to our status codes.
  absl::Status Error(int code, std::string_view doing) const;
  absl::Status RolledBack(absl::Status because);

  const std::string path_;
  const std::string if_damaged_;
  sqlite3* handle_ = nullptr;
  int64_t log_pages_ = 0;
};

class Database::Copy {
 public:
  ~Copy();
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  // Returns true when everything is copied and synced.
  absl::StatusOr<bool> Step(int pages);

 private:
  friend class Database;
  explicit Copy(std::string path) : to_(std::move(path)) {}

  Database to_;
  sqlite3_backup* backup_ = nullptr;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_DATABASE_H_
