// Queries the liveness and readiness of a cluster's process through gRPC's standard health service.
#ifndef SHARDMESH_CLIENT_REMOTE_HEALTH_H_
#define SHARDMESH_CLIENT_REMOTE_HEALTH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

// Asks a coordinator or worker whether it serves `service`: `live`, `ready`, or a service's full
// name. Returns false if the process answers NOT_SERVING. NOT_FOUND for an unknown service; the
// message has the names of the known services. UNAVAILABLE, with the address, if no connection
// succeeds before `deadline`. DEADLINE_EXCEEDED if the process does not answer before `deadline`.
// `address` may be the HealthAddress of the process.
absl::StatusOr<bool> IsServing(const std::string& address, const std::string& service,
                               const rpc::Credentials& credentials, absl::Time deadline);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_HEALTH_H_
