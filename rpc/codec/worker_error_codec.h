// Errors that workers and coordinator report inside their streams, as an absl::Status.
#ifndef SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_
#define SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_

#include "absl/status/status.h"
#include "shardmesh/v1/attach_service.pb.h"

namespace shardmesh::rpc {

// Code, message and reason; nothing else of the status travels.
void Encode(const absl::Status& from, v1::WorkerError* to);
// Of an unknown code UNKNOWN. OK for the default message.
absl::Status Decode(const v1::WorkerError& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_WORKER_ERROR_CODEC_H_
