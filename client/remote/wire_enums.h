// Converts enums of the wire protocol to the client's own enums, and back.
#ifndef SHARDMESH_CLIENT_REMOTE_WIRE_ENUMS_H_
#define SHARDMESH_CLIENT_REMOTE_WIRE_ENUMS_H_

#include <cstdint>
#include <variant>

#include "client/types/array.h"
#include "client/types/cluster_status.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/precondition.pb.h"

namespace shardmesh::client {

// All conversions from the wire return kUnknown for a value that this build does not know, because
// a newer server may have new values.

inline Durability DurabilityOf(v1::Durability from) {
  switch (from) {
    case v1::DURABILITY_MEMORY:
      return Durability::kMemory;
    case v1::DURABILITY_DISK:
      return Durability::kDisk;
    default:
      return Durability::kUnknown;
  }
}

inline ArrayState StateOf(v1::ArrayState from) {
  switch (from) {
    case v1::ARRAY_STATE_AVAILABLE:
      return ArrayState::kAvailable;
    case v1::ARRAY_STATE_DEGRADED:
      return ArrayState::kDegraded;
    default:
      return ArrayState::kUnknown;
  }
}

inline WorkerState StateOf(v1::WorkerState from) {
  switch (from) {
    case v1::WORKER_STATE_JOINING:
      return WorkerState::kJoining;
    case v1::WORKER_STATE_READY:
      return WorkerState::kReady;
    case v1::WORKER_STATE_DRAINING:
      return WorkerState::kDraining;
    case v1::WORKER_STATE_LOST:
      return WorkerState::kLost;
    default:
      return WorkerState::kUnknown;
  }
}

inline ClusterFinding::Kind KindOf(v1::FindingKind from) {
  switch (from) {
    case v1::FINDING_KIND_STUCK:
      return ClusterFinding::Kind::kStuck;
    case v1::FINDING_KIND_DEADLOCK:
      return ClusterFinding::Kind::kDeadlock;
    case v1::FINDING_KIND_CUT_OFF:
      return ClusterFinding::Kind::kCutOff;
    case v1::FINDING_KIND_FAILED:
      return ClusterFinding::Kind::kFailed;
    case v1::FINDING_KIND_WORKER:
      return ClusterFinding::Kind::kWorker;
    case v1::FINDING_KIND_DEGRADED:
      return ClusterFinding::Kind::kDegraded;
    case v1::FINDING_KIND_QUARANTINED:
      return ClusterFinding::Kind::kQuarantined;
    case v1::FINDING_KIND_UNREADABLE:
      return ClusterFinding::Kind::kUnreadable;
    default:
      return ClusterFinding::Kind::kUnknown;
  }
}

inline CoordinatorState StateOf(v1::CoordinatorState from) {
  switch (from) {
    case v1::COORDINATOR_STATE_RECOVERING:
      return CoordinatorState::kRecovering;
    case v1::COORDINATOR_STATE_SERVING:
      return CoordinatorState::kServing;
    case v1::COORDINATOR_STATE_DRAINING:
      return CoordinatorState::kDraining;
    default:
      return CoordinatorState::kUnknown;
  }
}

inline OperationState StateOf(v1::OperationState from) {
  switch (from) {
    case v1::OPERATION_STATE_RUNNING:
      return OperationState::kRunning;
    case v1::OPERATION_STATE_DONE:
      return OperationState::kDone;
    case v1::OPERATION_STATE_FAILED:
      return OperationState::kFailed;
    case v1::OPERATION_STATE_CANCELLED:
      return OperationState::kCancelled;
    default:
      return OperationState::kUnknown;
  }
}

inline OperationKind KindOf(v1::OperationKind from) {
  switch (from) {
    case v1::OPERATION_KIND_PUT:
      return OperationKind::kPut;
    case v1::OPERATION_KIND_LOAD:
      return OperationKind::kLoad;
    case v1::OPERATION_KIND_SAVE:
      return OperationKind::kSave;
    case v1::OPERATION_KIND_RESHARD:
      return OperationKind::kReshard;
    case v1::OPERATION_KIND_REPAIR:
      return OperationKind::kRepair;
    case v1::OPERATION_KIND_RESIZE:
      return OperationKind::kResize;
    case v1::OPERATION_KIND_REPLICATE:
      return OperationKind::kReplicate;
    case v1::OPERATION_KIND_GET:
      return OperationKind::kGet;
    default:
      return OperationKind::kUnknown;
  }
}

// Encodes a state. kUnknown becomes OPERATION_STATE_UNSPECIFIED, which servers refuse.
inline v1::OperationState Encode(OperationState from) {
  switch (from) {
    case OperationState::kRunning:
      return v1::OPERATION_STATE_RUNNING;
    case OperationState::kDone:
      return v1::OPERATION_STATE_DONE;
    case OperationState::kFailed:
      return v1::OPERATION_STATE_FAILED;
    case OperationState::kCancelled:
      return v1::OPERATION_STATE_CANCELLED;
    case OperationState::kUnknown:
      break;
  }
  return v1::OPERATION_STATE_UNSPECIFIED;
}

// Encodes the precondition into `to`. For nullopt, which means no precondition, does not change
// `to`.
inline void SetPrecondition(const Precondition& from, v1::Precondition* to) {
  if (!from.has_value()) return;
  if (const int64_t* const version = std::get_if<int64_t>(&*from); version != nullptr) {
    to->set_version(*version);
  } else {
    to->set_must_not_exist(true);
  }
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_WIRE_ENUMS_H_
