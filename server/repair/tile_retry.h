// Time limits, pauses and errors of copies of tiles that are tried again until they succeed.
#ifndef SHARDMESH_SERVER_REPAIR_TILE_RETRY_H_
#define SHARDMESH_SERVER_REPAIR_TILE_RETRY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace shardmesh::server {

// Returns the time that the copy of a tile of this size may take: a fixed part, and its bytes at a
// rate below any that is of use.
absl::Duration CopyTimeout(int64_t size_bytes);

// Returns the time from a failure to the next attempt: `first` after the first of `rounds` that
// failed, and twice the time after each further one, up to `last`.
absl::Duration RetryWait(int rounds, absl::Duration first, absl::Duration last);

// Returns the message of an error, with its reason if it has one.
std::string FailureInWords(const absl::Status& status);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_TILE_RETRY_H_
