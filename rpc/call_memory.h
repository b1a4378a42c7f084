// Calls that the peer's gRPC ends because its memory for calls (--rpc-memory) is exhausted.
#ifndef SHARDMESH_RPC_CALL_MEMORY_H_
#define SHARDMESH_RPC_CALL_MEMORY_H_

#include "absl/status/status.h"

namespace shardmesh::rpc {

// Translates the `outcome` of a call. If the call ended because the peer's memory for calls was
// exhausted, returns RESOURCE_EXHAUSTED (OVERLOADED) with the flag's name and a retry delay;
// else returns `outcome`. gRPC ends any of the running calls, and reports only the number of an
// HTTP/2 error.
absl::Status ExplainCallMemory(absl::Status outcome);
// Returns whether ExplainCallMemory made the status. The service did not refuse the call; the
// caller may retry it.
bool IsShortOfCallMemory(const absl::Status& status);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALL_MEMORY_H_
