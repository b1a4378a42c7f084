// SkipMutexChecks.
#include "process/mutex_checks.h"

#include "absl/synchronization/mutex.h"

namespace shardmesh::rpc {

void SkipMutexChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace shardmesh::rpc
