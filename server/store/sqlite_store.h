// The store on disk: a LocalStore whose journal is an SQLite database.
#ifndef SHARDMESH_SERVER_STORE_SQLITE_STORE_H_
#define SHARDMESH_SERVER_STORE_SQLITE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/store/local_store.h"
#include "server/store/store.h"

namespace shardmesh::server {

struct SqliteStoreOptions {
  // The data folder; created if missing, but its parent must exist. It holds `state.db` (and
  // SQLite's `state.db-wal`), `LOCK` and `reserve`. On a full disk, only urgent transactions get
  // the space of `reserve`, piece by piece.
  std::string folder;
  // The maximum number of bytes of the database. A commit that would exceed them gets
  // RESOURCE_EXHAUSTED (STORE_FULL). A part of the quota (one part in kReservedShare, at most
  // kReservedBytes) is reserved for urgent transactions.
  int64_t quota_bytes = int64_t{2} << 30;
  // Time to wait if another process has locked the folder, because that process may be stopping.
  absl::Duration lock_timeout = absl::ZeroDuration();
  LocalStoreOptions local = {};
  // Once the write-ahead log has this many pages, it is copied into the database. The number is
  // small enough that the log stays in the file cache, and needs no more blocks than its file
  // already has. It is large enough that a page with many writes is copied only once.
  int64_t log_pages = 1000;
  // Interval between two checks for free disk space if the reserve is not full.
  absl::Duration fill_reserve_every = absl::Seconds(10);
  // Replacement for SQLite's file layer, for tests with injected faults; empty: the system's files.
  std::string vfs = {};
};

// The maximum number of bytes reserved for urgent transactions in the quota, and separately on the
// disk.
inline constexpr int64_t kReservedBytes = int64_t{4} << 20;
inline constexpr int64_t kReservedShare = 8;  // the quota's reserve is at most quota/kReservedShare

// Prefix of the copies that Backup writes into the folder. OpenSqliteStore removes copies that an
// earlier process left.
inline constexpr std::string_view kSnapshotPrefix = "snapshot-";

// Opens the store of a folder, or creates an empty store. Upgrades an older schema. An acknowledged
// commit is synced to disk (write-ahead log, synchronous=FULL) and survives a crash of process and
// machine. The process holds an advisory lock on LOCK while the store lives, so only one process
// has the folder open. Records that cannot be read are logged, counted and left out.
//
// Blocks while it reads the whole state. Errors name the file:
//   FAILED_PRECONDITION  another process holds the folder (its pid is named); the database is of a
//                        newer schema (SCHEMA_MISMATCH), or belongs to another program.
//   PERMISSION_DENIED    folder or file cannot be written.
//   NOT_FOUND            the folder's parent does not exist.
//   DATA_LOSS            the database's pages or its log are damaged, or the database is missing or
//                        empty in a folder that had one; see `shardmesh admin check`. The folder's
//                        files stay as they are.
//   RESOURCE_EXHAUSTED   (STORE_FULL) the disk is full. A new store cannot be created, or an
//                        older schema cannot be upgraded.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(SqliteStoreOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_STORE_H_
