// The log output of gRPC and protobuf.
#ifndef SHARDMESH_RPC_LIBRARY_LOGS_H_
#define SHARDMESH_RPC_LIBRARY_LOGS_H_

namespace shardmesh::rpc {

// Redirects their lines to this process's log (process/log.h), at level debug. Relevant errors also
// arrive as a status. For programs; starting a server does it too. Thread-safe and idempotent.
void TakeLibraryLogs();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIBRARY_LOGS_H_
