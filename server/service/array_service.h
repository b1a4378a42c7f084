// Serves shardmesh.v1.ArrayService, which begins and ends puts and gets, and moves arrays
// and names.
#ifndef SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_

#include "server/attach/coordinator_parts.h"
#include "server/service/streaming_service.h"
#include "server/steps/step_runner.h"

namespace shardmesh::server {

// Thread-safe. `steps` are the parts that run reshards.
StreamingService MakeArrayService(const CoordinatorParts& context, const StepRunnerParts& steps);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
