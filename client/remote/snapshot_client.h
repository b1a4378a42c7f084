// Saves copies (snapshots) of a running coordinator's durable state.
#ifndef SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_
#define SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

struct SavedSnapshot {
  int64_t revision = 0;  // revision of the store
  int64_t size_bytes = 0;
};

// Saves a snapshot of the coordinator at `address` as the file `path`, for `shardmesh-coordinator
// --restore`. The file appears complete or not at all, and only the file's owner may open it. The
// function uses its own connection, so that the snapshot's bytes do not delay other calls. Blocks.
//
// DATA_LOSS (CHECKSUM_MISMATCH): the received bytes differ from the sent ones. UNAVAILABLE: no
// connection. Also errors of AdminService.Snapshot, and of writing the file.
absl::StatusOr<SavedSnapshot> SaveSnapshot(const std::string& address,
                                           const rpc::Credentials& credentials,
                                           const std::string& path, absl::Duration timeout);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_SNAPSHOT_CLIENT_H_
