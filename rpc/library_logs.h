// What gRPC and protobuf would print by themselves.
#ifndef SHARDMESH_RPC_LIBRARY_LOGS_H_
#define SHARDMESH_RPC_LIBRARY_LOGS_H_

namespace shardmesh::rpc {

// From now on their lines are lines of this process's log (process/log.h), at debug: what matters
// of them comes back as a status. For programs; a server that is started does it too. Thread-safe,
// and may be called again.
void TakeLibraryLogs();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIBRARY_LOGS_H_
