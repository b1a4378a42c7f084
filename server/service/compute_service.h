// Serves shardmesh.v1.ComputeService: plans programs and runs them as steps.
#ifndef SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_

#include "rpc/metrics/metrics.h"
#include "server/attach/coordinator_parts.h"
#include "server/service/streaming_service.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// Thread-safe. All arguments outlive the service; the service counts steps in `metrics`.
StreamingService MakeComputeService(const CoordinatorParts& context, Planner* planner,
                                    Sequencer* sequencer, rpc::Metrics* metrics);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_
