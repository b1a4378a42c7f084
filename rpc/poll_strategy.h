// How gRPC waits for its connections.
#ifndef SHARDMESH_RPC_POLL_STRATEGY_H_
#define SHARDMESH_RPC_POLL_STRATEGY_H_

namespace shardmesh::rpc {

// Has each completion queue's poller wait for its own connections with poll(2). By default one
// thread of the process waits for all of them, and hands on each event and then its place, which
// wakes two other threads for each message. Costs a few microseconds more for each hundred
// connections. GRPC_POLL_STRATEGY in the environment goes before it. In the main of a program whose
// threads poll completion queues, before it uses gRPC and before any thread starts.
void PollOwnConnections();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_POLL_STRATEGY_H_
