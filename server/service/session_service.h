// Serves shardmesh.v1.SessionService over the session table.
#ifndef SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_

#include <memory>

#include "server/state/array_registry.h"
#include "server/state/session.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// Thread-safe. `sessions` and `registry`, whose arrays the sessions pin, outlive the service.
std::unique_ptr<grpc::Service> MakeSessionService(SessionTable* sessions, ArrayRegistry* registry);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_
