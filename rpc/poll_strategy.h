// Selects the polling engine of gRPC.
#ifndef SHARDMESH_RPC_POLL_STRATEGY_H_
#define SHARDMESH_RPC_POLL_STRATEGY_H_

namespace shardmesh::rpc {

// Makes each thread that polls a completion queue wait for the queue's own connections, with
// poll(2). gRPC's default engine has one designated poller in a process. That poller hands over
// each event and then its role, which wakes two other threads for each message.
//
// The change costs a few microseconds more for each hundred connections. GRPC_POLL_STRATEGY in the
// environment takes precedence. Call this in the main of a program whose threads poll completion
// queues, before gRPC is used and before any thread starts.
void PollOwnConnections();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_POLL_STRATEGY_H_
