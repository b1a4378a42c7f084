// One connection to an SQLite database. Converts SQLite's errors to statuses. Only the source file
// of this header uses SQLite.
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

// One connection to an SQLite database. Errors name the file, SQLite's message and the statement:
//
// clang-format off
//   RESOURCE_EXHAUSTED  (STORE_FULL) the disk or the page limit is full. It is certain that
//                       nothing was written.
//   DATA_LOSS           the database is damaged.
//   PERMISSION_DENIED   the file cannot be written.
//   FAILED_PRECONDITION another program has the database open.
//   INTERNAL            all other errors, such as an error of the disk; the outcome of a write is
//                       unknown.
// clang-format on
//
// All errors except RESOURCE_EXHAUSTED carry the reason STORE_FAILED. Thread-compatible.
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

    // Bind a parameter. Texts and bytes are not copied: they must live until the statement has run.
    void BindNumber(int parameter, int64_t value) const;
    void BindText(int parameter, std::string_view text) const;
    void BindBytes(int parameter, std::string_view bytes) const;
    void BindNull(int parameter) const;

    int64_t Number(int column) const;
    // Returns the bytes of a text or a blob, which are valid until the next Step.
    std::string_view Bytes(int column) const;
    bool IsNull(int column) const;
    bool IsText(int column) const;
    bool IsNumber(int column) const;

    // Ends a run of the statement, even if rows remain.
    void Reset() const;

   private:
    friend class Database;
    sqlite3_stmt* statement_ = nullptr;
  };

  // The default beginning of the message of a DATA_LOSS error.
  static constexpr std::string_view kStateIsDamaged =
      "the state database is damaged; see what can be read with `shardmesh admin check FOLDER`, or "
      "restore a snapshot: ";
  // `if_damaged` is the beginning of DATA_LOSS messages. Pass another text if the database is not a
  // coordinator's state.
  explicit Database(std::string path, std::string_view if_damaged = kStateIsDamaged)
      : path_(std::move(path)), if_damaged_(if_damaged) {}
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Opens the database. `vfs` names a replacement for SQLite's file layer, for tests with injected
  // faults; empty means FailingVfs(). DATA_LOSS: the file is missing or empty although its log is
  // not empty. SQLite would remove such a log.
  absl::Status Open(const std::string& vfs = "");
  // Sets whether closing leaves the log unchanged. By default, closing copies the log into the
  // database, as far as SQLite can read the log, and then removes the log. After UseLog, closing
  // empties the log's file instead of removing it.
  absl::Status KeepLog(bool keep);
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<Statement> Prepare(const std::string& sql);
  // Runs a statement that returns no rows.
  absl::Status Run(const Statement& statement);
  // Runs the statement to its next row. Returns whether there is a row.
  absl::StatusOr<bool> Step(const Statement& statement);
  // Returns the number in the first column of the first row; nullopt if there is no row.
  absl::StatusOr<std::optional<int64_t>> Number(const std::string& sql);

  // Runs `writes` as one transaction. RESOURCE_EXHAUSTED: the transaction was rolled back.
  template <typename Writes>
  absl::Status InTransaction(Writes writes) {
    SHARDMESH_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status status = writes();
    if (status.ok()) status = Execute("COMMIT");
    return status.ok() ? status : RolledBack(std::move(status));
  }

  // Switches to a write-ahead log, which each commit syncs and only Checkpoint copies into the
  // database. Closing the database keeps the log's file, because a full disk may have no room for a
  // new one. On XFS even a new empty file may need room.
  absl::Status UseLog();
  // Number of pages in the log that no Checkpoint has copied yet.
  int64_t log_pages() const { return log_pages_; }
  // Copies the log into the database and syncs the database.
  absl::Status Checkpoint();

  // Returns the first page of the database as its file would store it.
  absl::StatusOr<std::string> FirstPage();

  // Limits the database to this many pages, or to its current size if that is larger.
  absl::Status LimitPages(int64_t pages);

  // Checks the pages of the database. DATA_LOSS: the pages are inconsistent. INTERNAL: the disk
  // failed to read a page.
  absl::Status CheckPages();

  // Returns the last row id of each page that holds rows of a table, rising, except for the last
  // page. Rows after such an id are on another page. If an inner page is damaged, its row ids are
  // missing from the result. Copies the log into the database first.
  absl::StatusOr<std::vector<int64_t>> PageEnds(const std::string& table);

  // A copy of the database, made a few pages at a time. The database may change between two steps.
  class Copy;
  // Begins a copy to a new file at `path`. ALREADY_EXISTS: the file exists.
  absl::StatusOr<std::unique_ptr<Copy>> BeginCopy(const std::string& path);

  const std::string& path() const { return path_; }

 private:
  // Reads all files of the database, bypassing SQLite's cache. An error shows that the disk failed.
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
  // Copies up to `pages` more pages. Returns true once everything is copied and synced.
  absl::StatusOr<bool> Step(int pages);

 private:
  friend class Database;
  explicit Copy(std::string path) : to_(std::move(path)) {}

  Database to_;
  sqlite3_backup* backup_ = nullptr;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_DATABASE_H_
