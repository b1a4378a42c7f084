// Serves shardmesh.v1.ClusterService: what the cluster is, how it is doing, and what its workers
// did.
#ifndef SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_

#include <memory>

#include "server/calls/cluster_calls.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// Thread-safe. What `context` names outlives the service.
std::unique_ptr<grpc::Service> MakeClusterService(const CoordinatorParts& context,
                                                  ClusterServiceOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
