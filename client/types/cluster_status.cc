// The names of states in user-visible texts, and the search for a link.
#include "client/types/cluster_status.h"

namespace shardmesh::client {

std::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kJoining:
      return "joining";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kLost:
      return "lost";
    case WorkerState::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view CoordinatorStateName(CoordinatorState state) {
  switch (state) {
    case CoordinatorState::kRecovering:
      return "recovering";
    case CoordinatorState::kServing:
      return "serving";
    case CoordinatorState::kDraining:
      return "draining";
    case CoordinatorState::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view OperationStateName(OperationState state) {
  switch (state) {
    case OperationState::kRunning:
      return "running";
    case OperationState::kDone:
      return "done";
    case OperationState::kFailed:
      return "failed";
    case OperationState::kCancelled:
      return "cancelled";
    case OperationState::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view OperationKindName(OperationKind kind) {
  switch (kind) {
    case OperationKind::kPut:
      return "put";
    case OperationKind::kLoad:
      return "load";
    case OperationKind::kSave:
      return "save";
    case OperationKind::kReshard:
      return "reshard";
    case OperationKind::kRepair:
      return "repair";
    case OperationKind::kResize:
      return "resize";
    case OperationKind::kReplicate:
      return "replicate";
    case OperationKind::kGet:
      return "get";
    case OperationKind::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view WorkerChangeName(WorkerChange::Kind kind) {
  switch (kind) {
    case WorkerChange::Kind::kAttached:
      return "attached";
    case WorkerChange::Kind::kLost:
      return "lost";
    case WorkerChange::Kind::kDraining:
      return "draining";
    case WorkerChange::Kind::kResumed:
      return "resumed";
    case WorkerChange::Kind::kForgotten:
      return "forgotten";
    case WorkerChange::Kind::kUnknown:
      break;
  }
  return "changed";
}

std::string_view ClusterFindingName(ClusterFinding::Kind kind) {
  switch (kind) {
    case ClusterFinding::Kind::kStuck:
      return "stuck";
    case ClusterFinding::Kind::kDeadlock:
      return "deadlock";
    case ClusterFinding::Kind::kCutOff:
      return "cut-off";
    case ClusterFinding::Kind::kFailed:
      return "failed";
    case ClusterFinding::Kind::kWorker:
      return "worker";
    case ClusterFinding::Kind::kDegraded:
      return "degraded";
    case ClusterFinding::Kind::kQuarantined:
      return "quarantined";
    case ClusterFinding::Kind::kUnreadable:
      return "unreadable";
    case ClusterFinding::Kind::kUnknown:
      break;
  }
  return "unknown";
}

const MeasuredLink* ClusterLinks::Find(std::string_view one, std::string_view other) const {
  for (const Link& link : links) {
    if ((link.identity == one && link.measured.peer == other) ||
        (link.identity == other && link.measured.peer == one)) {
      return &link.measured;
    }
  }
  return nullptr;
}

}  // namespace shardmesh::client
