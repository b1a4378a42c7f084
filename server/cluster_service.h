// Serves shardmesh.v1.ClusterService: what the cluster is and how it is doing.
#ifndef SHARDMESH_SERVER_CLUSTER_SERVICE_H_
#define SHARDMESH_SERVER_CLUSTER_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "server/array_service.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

struct ClusterServiceOptions {
  std::string cluster_id;
  std::string build_version;
  std::function<bool()> is_draining;
};

// Thread-safe. What `context` names outlives the service.
std::unique_ptr<grpc::Service> MakeClusterService(const ArrayContext& context,
                                                  ClusterServiceOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CLUSTER_SERVICE_H_
