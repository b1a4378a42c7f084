// Recognises calls that a peer's gRPC ended because the peer's memory for calls (--rpc-memory) was
// used up.
#ifndef SHARDMESH_RPC_CALL_MEMORY_H_
#define SHARDMESH_RPC_CALL_MEMORY_H_

#include "absl/status/status.h"

namespace shardmesh::rpc {

// Explains the `outcome` of a call. If the peer's memory for calls was used up, returns
// RESOURCE_EXHAUSTED (OVERLOADED) with the flag's name and a retry delay. For any other outcome,
// returns `outcome` unchanged. When the memory for calls is used up, gRPC ends an arbitrary running
// call. gRPC reports only the number of an HTTP/2 error.
absl::Status ExplainCallMemory(absl::Status outcome);
// Whether ExplainCallMemory made the status because memory was used up. If so, no service refused
// the call, and the caller may retry it.
bool IsShortOfCallMemory(const absl::Status& status);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALL_MEMORY_H_
