// Serves shardmesh.v1.ResolveService from the newest snapshot of the definitions.
#ifndef SHARDMESH_SERVER_SERVICE_RESOLVE_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_RESOLVE_SERVICE_H_

#include <memory>

#include "server/state/arrays.h"
#include "server/state/definitions.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::rpc {
class Metrics;
}  // namespace shardmesh::rpc

namespace shardmesh::server {

class ArrayRegistry;

struct ResolveServiceOptions {
  const DefinitionStore* definition_store = nullptr;
  // The cluster's arrays; null: there are none.
  const ArrayRegistry* registry = nullptr;
  // Corrections by reason are counted there; may be null.
  rpc::Metrics* metrics = nullptr;
};

// Thread-safe. What the options point to outlives the service.
std::unique_ptr<grpc::Service> MakeResolveService(const ResolveServiceOptions& options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_RESOLVE_SERVICE_H_
