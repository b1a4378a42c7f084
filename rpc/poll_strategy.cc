// The setting of gRPC's environment that says how it polls.
#include "rpc/poll_strategy.h"

#include <cstdlib>

namespace shardmesh::rpc {

void PollOwnConnections() { setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0); }

}  // namespace shardmesh::rpc
