// How the libraries below do their work in this process: called by programs, once, before they use
// gRPC and before any thread starts.
#ifndef SHARDMESH_RPC_PROCESS_TUNING_H_
#define SHARDMESH_RPC_PROCESS_TUNING_H_

namespace shardmesh::rpc {

// Has each completion queue's poller wait for its own connections with poll(2). By default one
// thread of the process waits for all of them, and hands on each event and then its place, which
// wakes two other threads for each message. Costs a few microseconds more for each hundred
// connections. GRPC_POLL_STRATEGY in the environment goes before it.
void PollOwnConnections();

// Has Abseil's mutexes not look for cycles in the order in which they are taken: Debian's build
// does, at each lock, also gRPC's. Tests look for them still.
void TrustLockOrder();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_PROCESS_TUNING_H_
