// Calls about the coordinator's long operations that several sub-clients make.
#ifndef SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_
#define SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/remote/coordinator_connection.h"
#include "client/types/cluster_status.h"
#include "shardmesh/v1/operation_service.pb.h"

namespace shardmesh::client {

absl::StatusOr<Operation> DecodeOperation(const v1::Operation& from);

// Calls `on_progress` with each report of the operation's progress, until the operation has ended
// or `on_progress` returns false. Returns the last reported state. CANCELLED (CANCELLED) if the
// limit's cancellation is cancelled.
absl::StatusOr<Operation> WatchOperation(const CoordinatorConnection& connection,
                                         const std::string& operation_id,
                                         const std::function<bool(const Operation&)>& on_progress,
                                         const CallLimit& limit);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_
