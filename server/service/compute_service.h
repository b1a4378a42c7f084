// Serves shardmesh.v1.ComputeService: plans programs and runs them as steps.
#ifndef SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_

#include <memory>

#include "rpc/metrics/metrics.h"
#include "server/attach/coordinator_parts.h"
#include "server/steps/planner.h"
#include "server/steps/sequencer.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// Thread-safe. All arguments outlive the service; the service counts steps in `metrics`.
std::unique_ptr<grpc::Service> MakeComputeService(const CoordinatorParts& context, Planner* planner,
                                                  Sequencer* sequencer, rpc::Metrics* metrics);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_COMPUTE_SERVICE_H_
