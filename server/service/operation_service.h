// Serves shardmesh.v1.OperationService: puts, and the other operations of the coordinator.
#ifndef SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_

#include "server/attach/coordinator_parts.h"
#include "server/diagnosis/step_watch.h"
#include "server/service/streaming_service.h"

namespace shardmesh::server {

// Thread-safe. `watch` and all parts outlive the service; end the streams of the service before the
// parts' clock is destroyed.
StreamingService MakeOperationService(const CoordinatorParts& parts, const StepWatch* watch);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_OPERATION_SERVICE_H_
