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
  // The data folder, created if missing; its parent must exist. It holds `state.db` (and SQLite's
  // `state.db-wal`), `LOCK`, and `reserve`. On a full disk, the space of `reserve` goes piece by
  // piece to urgent transactions, and only to these.
  std::string folder;
  // How large the database may grow; a commit beyond it is RESOURCE_EXHAUSTED (STORE_FULL). A part
  // of it (kReservedShare, at most kReservedBytes) is kept for urgent transactions.
  int64_t quota_bytes = int64_t{2} << 30;
  // How long to wait for another process that holds the folder and may be about to stop.
  absl::Duration lock_timeout = absl::ZeroDuration();
  LocalStoreOptions local = {};
  // Pages of the write-ahead log that are copied into the database at once. Few enough that the
  // log stays in the cache and on its blocks; enough that a page with many writes is copied
  // once.
  int64_t log_pages = 1000;
  // How often to look for free disk space to refill the reserve.
  absl::Duration fill_reserve_every = absl::Seconds(10);
  // The layer under SQLite, for tests with injected faults; empty: the system's files.
  std::string vfs = {};
};

// Space for urgent transactions only: a part of the quota, and the same amount on the disk.
inline constexpr int64_t kReservedBytes = int64_t{4} << 20;
inline constexpr int64_t kReservedShare = 8;  // at most one part in this many of the quota

// Prefix of the copies that Backup writes into the folder. Opening the folder removes those of an
// earlier process.
inline constexpr std::string_view kSnapshotPrefix = "snapshot-";

// Opens the store of a folder, or creates an empty one; upgrades an older schema. An acknowledged
// commit is synced to disk (write-ahead log, synchronous=FULL) and survives a crash of process and
// machine. One process at a time: it holds an advisory lock on LOCK while the store lives. Records
// that cannot be read are logged, counted and left out.
//
// Blocks, for reading the whole state. Errors name the file:
//   FAILED_PRECONDITION  another process holds the folder (its pid is named); the database is of a
//                        newer schema (SCHEMA_MISMATCH), or is not one of ours.
//   PERMISSION_DENIED    folder or file cannot be written.
//   NOT_FOUND            the folder's parent is not there.
//   DATA_LOSS            the database's pages or its log are damaged, or the database is missing or
//                        empty in a folder that had one; see `shardmesh admin check`. The folder's
//                        files stay as they are.
//   RESOURCE_EXHAUSTED   the disk is full (STORE_FULL), and an empty store or one of an older
//                        schema cannot be written for that.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(SqliteStoreOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_SQLITE_STORE_H_
