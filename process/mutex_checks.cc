// Turns off Abseil's search for lock-order cycles.
#include "process/mutex_checks.h"

#include "absl/synchronization/mutex.h"

namespace shardmesh {

void SkipMutexChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace shardmesh
