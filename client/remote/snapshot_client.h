// Copies of a running coordinator's durable state.
#ifndef SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_
#define SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

struct SavedSnapshot {
  int64_t revision = 0;  // of the store
  int64_t size_bytes = 0;
};

// Saves a snapshot of the coordinator at `address`, for `shardmesh-coordinator --restore`, as the
// file `path`, which appears complete or not at all and is for its owner only. A connection of its
// own: the bytes hold up no other call. Blocks.
//
// DATA_LOSS (CHECKSUM_MISMATCH): what came is not what was sent. Else errors of
// AdminService.Snapshot, of connecting (UNAVAILABLE), and of writing the file.
absl::StatusOr<SavedSnapshot> SaveSnapshot(const std::string& address,
                                           const rpc::Credentials& credentials,
                                           const std::string& path, absl::Duration timeout);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_
