// Calls about the coordinator's long operations that several sub-clients make.
#ifndef SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_
#define SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
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

// A get that its client reports, so that it is an operation.
struct ReportedGet {
  std::string description;  // of the arrays, for people
  int64_t arrays = 0;
  int64_t size_bytes = 0;  // of these arrays
};
struct GetProgress {
  int64_t done = 0;  // arrays
  int64_t done_bytes = 0;
  std::optional<absl::Status> result = std::nullopt;  // once the get has ended
};

// Reports a get in a session. Calls `next` for each message, until it returns the result or the
// coordinator ends the call; `next` waits between two messages, and the call learns of its end
// after that wait. Starts no thread. Returns OK once the coordinator has the result. CANCELLED
// (CANCELLED), with the reason: somebody cancelled the get's operation. CANCELLED without a reason:
// the session has ended, or the limit's cancellation is cancelled. UNIMPLEMENTED: the coordinator
// runs an older build. The get may go on after other errors.
absl::Status ReportGet(const CoordinatorConnection& connection, const std::string& session_id,
                       const ReportedGet& get, const std::function<GetProgress()>& next,
                       const CallLimit& limit);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_OPERATION_CALLS_H_
