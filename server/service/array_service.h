// Serves shardmesh.v1.ArrayService, which begins and ends puts and gets, and moves names.
#ifndef SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_

#include <memory>

#include "server/attach/coordinator_parts.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// Thread-safe.
std::unique_ptr<grpc::Service> MakeArrayService(const CoordinatorParts& context);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ARRAY_SERVICE_H_
