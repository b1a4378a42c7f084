// Whether a process of a cluster lives and is ready, by the standard health service.
#ifndef SHARDMESH_CLIENT_REMOTE_HEALTH_H_
#define SHARDMESH_CLIENT_REMOTE_HEALTH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/tls/credentials.h"

namespace shardmesh::client {

// Asks the coordinator or worker at `address`, which may be its HealthAddress, whether `service` is
// served: `live`, `ready`, or a service's full name. False where it says that it is not. NOT_FOUND,
// saying what there is, if it does not know the name; UNAVAILABLE, with the address, if nobody
// answers before `deadline`; DEADLINE_EXCEEDED if someone does, too slowly.
absl::StatusOr<bool> IsServing(const std::string& address, const std::string& service,
                               const rpc::Credentials& credentials, absl::Time deadline);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_HEALTH_H_
