// Wraps the calls of SQLite.
#include "server/store/sqlite_database.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>

#include "server/store/sqlite_failpoints.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The result of `PRAGMA quick_check` if there is no problem.
constexpr std::string_view kSound = "ok";

absl::Status StoreError(absl::StatusCode code, std::string_view message, std::string_view file) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed,
                    {{fact::kFile, file}});
}

}  // namespace

Database::Statement::~Statement() { sqlite3_finalize(statement_); }

void Database::Statement::BindNumber(int parameter, int64_t value) const {
  sqlite3_bind_int64(statement_, parameter, value);
}

void Database::Statement::BindText(int parameter, std::string_view text) const {
  sqlite3_bind_text(statement_, parameter, text.data(), static_cast<int>(text.size()),
                    SQLITE_STATIC);
}

void Database::Statement::BindBytes(int parameter, std::string_view bytes) const {
  // Pass a pointer even for an empty value: SQLite would store a null pointer as NULL.
  sqlite3_bind_blob(statement_, parameter, bytes.empty() ? "" : bytes.data(),
                    static_cast<int>(bytes.size()), SQLITE_STATIC);
}

void Database::Statement::BindNull(int parameter) const {
  sqlite3_bind_null(statement_, parameter);
}

int64_t Database::Statement::Number(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string_view Database::Statement::Bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
  return data == nullptr ? std::string_view() : std::string_view(data, size);
}

bool Database::Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

bool Database::Statement::IsText(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_TEXT;
}

bool Database::Statement::IsNumber(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_INTEGER;
}

void Database::Statement::Reset() const { sqlite3_reset(statement_); }

Database::~Database() { sqlite3_close(handle_); }

absl::Status Database::Open(const std::string& vfs) {
  struct stat found;
  const std::string log = path_ + "-wal";
  if ((stat(path_.c_str(), &found) == 0 ? found.st_size == 0 : errno == ENOENT) &&
      stat(log.c_str(), &found) == 0 && found.st_size > 0) {
    return StoreError(absl::StatusCode::kDataLoss,
                      StrCat("there is a log ", log, " of ", found.st_size,
                             " bytes, but its database is missing or empty; put the database back, "
                             "or restore a snapshot"),
                      log);
  }
  const int code = sqlite3_open_v2(
      path_.c_str(), &handle_,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      vfs.empty() ? FailingVfs() : vfs.c_str());
  if (code != SQLITE_OK) return Error(code, "open");
  if (sqlite3_db_readonly(handle_, "main") == 1) {
    return StoreError(
        absl::StatusCode::kPermissionDenied,
        StrCat("cannot write ", path_, "; give the coordinator's user the right to write it"),
        path_);
  }
  return absl::OkStatus();
}

absl::Status Database::KeepLog(bool keep) {
  const int code = sqlite3_db_config(handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 1 : 0,
                                     static_cast<int*>(nullptr));
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, "keep the log");
}

absl::Status Database::Execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

absl::StatusOr<Database::Statement> Database::Prepare(const std::string& sql) {
  Statement statement;
  const int code = sqlite3_prepare_v3(handle_, sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                                      &statement.statement_, nullptr);
  if (code != SQLITE_OK) return Error(code, sql);
  return statement;
}

absl::Status Database::Run(const Statement& statement) {
  const int code = sqlite3_step(statement.statement_);
  sqlite3_reset(statement.statement_);
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, sqlite3_sql(statement.statement_));
}

absl::StatusOr<bool> Database::Step(const Statement& statement) {
  const int code = sqlite3_step(statement.statement_);
  if (code == SQLITE_ROW) return true;
  sqlite3_reset(statement.statement_);
  if (code == SQLITE_DONE) return false;
  return Error(code, sqlite3_sql(statement.statement_));
}

absl::StatusOr<std::optional<int64_t>> Database::Number(const std::string& sql) {
  SHARDMESH_ASSIGN_OR_RETURN(const Statement statement, Prepare(sql));
  SHARDMESH_ASSIGN_OR_RETURN(const bool row, Step(statement));
  if (!row) return std::nullopt;
  return statement.Number(0);
}

absl::Status Database::RolledBack(absl::Status because) {
  // Some errors make SQLite roll back by itself. In that case, do nothing.
  if (sqlite3_get_autocommit(handle_) == 0) {
    const int code = sqlite3_exec(handle_, "ROLLBACK", nullptr, nullptr, nullptr);
    if (code != SQLITE_OK && sqlite3_get_autocommit(handle_) == 0) {
      return WithContext(Error(code, "ROLLBACK"),
                         StrCat("cannot roll back after ", ToStd(because.message())));
    }
  }
  return because;
}

absl::Status Database::UseLog() {
  SHARDMESH_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  SHARDMESH_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  // Disable SQLite's automatic checkpoints, because they report no errors.
  SHARDMESH_RETURN_IF_ERROR(Execute("PRAGMA wal_autocheckpoint = 0"));
  int stays = 1;
  if (const int code = sqlite3_file_control(handle_, "main", SQLITE_FCNTL_PERSIST_WAL, &stays);
      code != SQLITE_OK) {
    return Error(code, "keep the file of the log");
  }
  sqlite3_wal_hook(
      handle_,
      [](void* database, sqlite3*, const char*, int pages) {
        static_cast<Database*>(database)->log_pages_ = pages;
        return SQLITE_OK;
      },
      this);
  return absl::OkStatus();
}

absl::Status Database::Checkpoint() {
  const int code =
      sqlite3_wal_checkpoint_v2(handle_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  if (code != SQLITE_OK) return Error(code, "checkpoint");
  log_pages_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::string> Database::FirstPage() {
  SHARDMESH_ASSIGN_OR_RETURN(const auto page_bytes, Number("PRAGMA page_size"));
  sqlite3_int64 size = 0;
  unsigned char* const bytes = sqlite3_serialize(handle_, "main", &size, 0);
  if (bytes == nullptr || size < *page_bytes) {
    sqlite3_free(bytes);
    return Error(SQLITE_NOMEM, "serialize");
  }
  std::string page(reinterpret_cast<const char*>(bytes), static_cast<size_t>(*page_bytes));
  sqlite3_free(bytes);
  return page;
}

absl::Status Database::LimitPages(int64_t pages) {
  return Execute(StrCat("PRAGMA max_page_count = ", std::max<int64_t>(1, pages)));
}

absl::Status Database::CheckPages() {
  const auto check = [this]() -> absl::StatusOr<std::string> {
    SHARDMESH_ASSIGN_OR_RETURN(const auto statement, Prepare("PRAGMA quick_check(1)"));
    SHARDMESH_ASSIGN_OR_RETURN(const bool row, Step(statement));
    return std::string(row ? statement.Bytes(0) : "no answer");
  };
  SHARDMESH_ASSIGN_OR_RETURN(const std::string found, check());
  if (found == kSound) return absl::OkStatus();
  // quick_check also complains about pages that the disk failed to read. Such pages are not
  // damaged, so check whether the disk can read the files.
  SHARDMESH_RETURN_IF_ERROR(ReadFiles());
  SHARDMESH_ASSIGN_OR_RETURN(const std::string again, check());
  if (again == kSound) {
    return StoreError(
        absl::StatusCode::kInternal,
        StrCat(
            "the disk could not read all pages of ", path_,
            " at first, and could at the second attempt; check the disk. The first attempt found: ",
            found),
        path_);
  }
  return StoreError(absl::StatusCode::kDataLoss,
                    StrCat("the state database is damaged; see what can be read with `shardmesh "
                           "admin check`, or restore a snapshot: ",
                           path_, ": ", again),
                    path_);
}

absl::Status Database::ReadFiles() {
  std::string buffer(1 << 20, '\0');
  for (const int which : {SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER}) {
    sqlite3_file* file = nullptr;
    sqlite3_file_control(handle_, "main", which, &file);
    if (file == nullptr || file->pMethods == nullptr) continue;
    sqlite3_int64 bytes = 0;
    if (const int code = file->pMethods->xFileSize(file, &bytes); code != SQLITE_OK) {
      return Error(code, "read");
    }
    for (sqlite3_int64 offset = 0; offset < bytes; offset += std::ssize(buffer)) {
      const auto size =
          static_cast<int>(std::min<sqlite3_int64>(std::ssize(buffer), bytes - offset));
      if (const int code = file->pMethods->xRead(file, buffer.data(), size, offset);
          code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ) {
        return Error(code, "read");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Database::PageEnds(const std::string& table) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto root,
      Number(StrCat("SELECT rootpage FROM sqlite_schema WHERE name = '", table, "'")));
  SHARDMESH_ASSIGN_OR_RETURN(const auto page_bytes, Number("PRAGMA page_size"));
  SHARDMESH_RETURN_IF_ERROR(Checkpoint());
  sqlite3_file* file = nullptr;
  sqlite3_file_control(handle_, "main", SQLITE_FCNTL_FILE_POINTER, &file);
  std::vector<int64_t> ends;
  if (!root.has_value() || file == nullptr || file->pMethods == nullptr) return ends;
  // The header of an inner page holds the number of its last child page. Each cell holds the number
  // of another child and the last row id below that child. https://sqlite.org/fileformat2.html
  constexpr size_t kHeaderBytes = 12;
  constexpr size_t kChildBytes = 4;
  constexpr size_t kMostRowIdBytes = 9;
  constexpr char kInnerPage = 5;
  const auto size = static_cast<size_t>(*page_bytes);
  std::string page(size + kMostRowIdBytes, '\0');  // with room for a row id at the page's end
  const auto number = [&page](size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(page[at + i]);
    return value;
  };
  // SQLite's varint: seven bits per byte; the highest bit says that another byte follows. The ninth
  // byte has eight bits.
  const auto row_id = [&page](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) {
      const auto byte = static_cast<uint8_t>(page[at + i]);
      value = value << 7 | (byte & 0x7f);
      if (byte < 0x80) return static_cast<int64_t>(value);
    }
    return static_cast<int64_t>(value << 8 | static_cast<uint8_t>(page[at + 8]));
  };
  std::vector<uint64_t> to_read = {static_cast<uint64_t>(*root)};
  std::set<uint64_t> known(to_read.begin(), to_read.end());
  const auto add = [&](uint64_t child) {
    if (child != 0 && known.insert(child).second) to_read.push_back(child);
  };
  while (!to_read.empty()) {
    const uint64_t next = to_read.back();
    to_read.pop_back();
    const int code = file->pMethods->xRead(file, page.data(), static_cast<int>(size),
                                           static_cast<sqlite3_int64>(next - 1) * *page_bytes);
    if (code == SQLITE_IOERR_SHORT_READ) continue;
    if (code != SQLITE_OK) return Error(code, "read");
    const size_t cells = number(3, 2);
    if (page[0] != kInnerPage || kHeaderBytes + 2 * cells > size) continue;
    add(number(8, kChildBytes));
    for (size_t i = 0; i < cells; ++i) {
      const size_t cell = number(kHeaderBytes + 2 * i, 2);
      if (cell + kChildBytes >= size) continue;
      add(number(cell, kChildBytes));
      ends.push_back(row_id(cell + kChildBytes));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

Database::Copy::~Copy() { sqlite3_backup_finish(backup_); }

absl::StatusOr<bool> Database::Copy::Step(int pages) {
  const int code = sqlite3_backup_step(backup_, pages);
  if (code == SQLITE_OK) return false;
  const int finished = sqlite3_backup_finish(std::exchange(backup_, nullptr));
  if (code == SQLITE_DONE && finished == SQLITE_OK) return true;
  return to_.Error(code == SQLITE_DONE ? finished : code, "copy");
}

absl::StatusOr<std::unique_ptr<Database::Copy>> Database::BeginCopy(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0) {
    return StoreError(absl::StatusCode::kAlreadyExists, StrCat("there is a file ", path), path);
  }
  std::unique_ptr<Copy> copy(new Copy(path));
  SHARDMESH_RETURN_IF_ERROR(copy->to_.Open());
  // The copy needs no rollback: a partial copy is of no use.
  SHARDMESH_RETURN_IF_ERROR(copy->to_.Execute("PRAGMA journal_mode = OFF"));
  SHARDMESH_RETURN_IF_ERROR(copy->to_.Execute("PRAGMA synchronous = FULL"));
  copy->backup_ = sqlite3_backup_init(copy->to_.handle_, "main", handle_, "main");
  if (copy->backup_ == nullptr) {
    return copy->to_.Error(sqlite3_extended_errcode(copy->to_.handle_), "copy");
  }
  return copy;
}

absl::Status Database::Error(int code, std::string_view doing) const {
  const int system = sqlite3_system_errno(handle_);
  const std::string what = StrCat(
      path_, ": ", sqlite3_errstr(code), " (", sqlite3_errmsg(handle_), "; SQLite code ", code,
      system == 0 ? "" : StrCat(", system: ", std::strerror(system)), ", in: ", doing, ")");
  // If the system refuses a write for lack of space, nothing was written. After a failed sync, by
  // contrast, the outcome is unknown.
  const bool is_refused = system == EDQUOT || system == EFBIG;
  if ((code & 0xff) == SQLITE_FULL || (code == SQLITE_IOERR_WRITE && is_refused)) {
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat("no room for the state on disk, or its quota is used up; delete what is not "
                   "needed, or give the store more: ",
                   what)),
        Reason::kStoreFull, {{fact::kFile, path_}});
  }
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return StoreError(absl::StatusCode::kDataLoss, StrCat(if_damaged_, what), path_);
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
      return StoreError(absl::StatusCode::kPermissionDenied,
                        StrCat("the state database cannot be opened for writing: ", what), path_);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return StoreError(absl::StatusCode::kFailedPrecondition,
                        StrCat("another program has the state database open; close it: ", what),
                        path_);
    default:
      return StoreError(absl::StatusCode::kInternal, what, path_);
  }
}

}  // namespace shardmesh::server
