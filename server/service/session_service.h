// Serves shardmesh.v1.SessionService over the session table.
#ifndef SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_

#include <memory>

#include "server/state/session.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

// Thread-safe. `sessions` outlives the service.
std::unique_ptr<grpc::Service> MakeSessionService(SessionTable* sessions);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_SESSION_SERVICE_H_
