// The log output of gRPC and protobuf.
#ifndef SHARDMESH_RPC_LIBRARY_LOGS_H_
#define SHARDMESH_RPC_LIBRARY_LOGS_H_

namespace shardmesh::rpc {

// Redirects the log lines of gRPC and protobuf to this process's log (process/log.h), at level
// debug. Relevant errors also reach the callers as a status. The start of a server calls this
// function; a program that starts no server calls it itself. Thread-safe and idempotent.
void TakeLibraryLogs();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LIBRARY_LOGS_H_
