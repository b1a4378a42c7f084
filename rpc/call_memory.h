// Calls that the other side's gRPC ends because its memory for calls (--rpc-memory) is used up.
#ifndef SHARDMESH_RPC_CALL_MEMORY_H_
#define SHARDMESH_RPC_CALL_MEMORY_H_

#include "absl/status/status.h"

namespace shardmesh::rpc {

// `outcome` of a call, as gRPC made it; of one that ended for want of memory for calls,
// RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) that names the flag and has a retry delay. gRPC ends any of
// the calls under way, whatever they ask for, and says nothing but the number of an HTTP/2 error.
absl::Status ExplainCallMemory(absl::Status outcome);
// Whether ExplainCallMemory made it: the call was not refused, and may be made again.
bool IsShortOfCallMemory(const absl::Status& status);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALL_MEMORY_H_
