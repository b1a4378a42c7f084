// Asks workers for their identities, over gRPC, at the endpoints that they advertise.
#ifndef SHARDMESH_SERVER_SERVICE_ENDPOINT_PROBE_H_
#define SHARDMESH_SERVER_SERVICE_ENDPOINT_PROBE_H_

#include "rpc/tls/credentials.h"
#include "server/attach/endpoint_check.h"

namespace shardmesh::server {

// Calls TileService.Identify, each time over a new connection.
AskEndpoint ProbeEndpoints(rpc::Credentials credentials);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ENDPOINT_PROBE_H_
