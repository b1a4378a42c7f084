// Sets the environment variable that selects gRPC's polling engine.
#include "rpc/poll_strategy.h"

#include <cstdlib>

namespace shardmesh::rpc {

void PollOwnConnections() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

}  // namespace shardmesh::rpc
