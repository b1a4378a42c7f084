// Settings of gRPC and Abseil that hold for a whole process.
#include "rpc/process_tuning.h"

#include <cstdlib>

#include "absl/synchronization/mutex.h"

namespace shardmesh::rpc {

void PollOwnConnections() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

void TrustLockOrder() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace shardmesh::rpc
