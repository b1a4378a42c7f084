// Converts errors that workers and the coordinator report within their streams.
#ifndef SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_
#define SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_

#include "absl/status/status.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::rpc {

// Encodes code, message, reason and facts (status/detail.h). Leaves out all other payloads. Encodes
// nothing for OK.
void Encode(const absl::Status& from, internal::v1::WorkerError* to);
// A code that is none of absl::StatusCode becomes UNKNOWN. A message without any field set means
// OK.
absl::Status Decode(const internal::v1::WorkerError& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_
