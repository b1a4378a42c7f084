// The call that moves arrays to another layout.
#ifndef SHARDMESH_CLIENT_REMOTE_RESHARD_CALLS_H_
#define SHARDMESH_CLIENT_REMOTE_RESHARD_CALLS_H_

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "client/remote/coordinator_connection.h"
#include "client/types/array.h"
#include "client/types/reshard.h"

namespace shardmesh::client {

// The array to move, or the prefix of the names of the arrays to move.
using ReshardSource = std::variant<ArraySelector, std::string>;

// Moves arrays in the session. Retried like CoordinatorConnection::Call: a repetition gets the
// outcome of the first request, or goes on where that request stopped.
absl::StatusOr<ReshardResult> Reshard(const CoordinatorConnection& connection,
                                      const std::string& session_id, const ReshardSource& source,
                                      const ReshardOptions& reshard_options,
                                      const CallLimit& limit);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_RESHARD_CALLS_H_
