// The store on disk: a LocalStore whose journal is an SQLite database.
#ifndef SHARDMESH_SERVER_SQLITE_STORE_H_
#define SHARDMESH_SERVER_SQLITE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/local_store.h"
#include "server/store.h"

namespace shardmesh::server {

struct SqliteStoreOptions {
  // Holds `state.db` (beside it SQLite's `state.db-wal`) and `LOCK`. Made if it is not there; its
  // parent is not.
  std::string folder;
  // How large the database may grow; a commit beyond it is RESOURCE_EXHAUSTED.
  int64_t quota_bytes = int64_t{8} << 30;
  // How long to wait for another process that holds the folder, which may be about to stop.
  absl::Duration lock_timeout = absl::ZeroDuration();
  LocalStoreOptions local = {};
};

// Opens the store of a folder, or makes an empty one. An acknowledged commit is synced to disk
// (write-ahead log, synchronous=FULL) and survives the death of process and machine. One process
// at a time: an advisory lock on LOCK is held as long as the store lives.
//
// Blocks, for reading the whole state. Errors name the file:
//   FAILED_PRECONDITION  another process holds the folder (its pid is named); the database was
//                        written by a newer version, or is not one of ours.
//   PERMISSION_DENIED    folder or file cannot be written.
//   NOT_FOUND            the folder's parent is not there.
//   DATA_LOSS            the database is damaged; restore a copy, or move it away to start anew.
//   RESOURCE_EXHAUSTED   the disk is full.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(SqliteStoreOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SQLITE_STORE_H_
