// Encodes long operations for OperationService.
#ifndef SHARDMESH_SERVER_CODEC_OPERATION_CODEC_H_
#define SHARDMESH_SERVER_CODEC_OPERATION_CODEC_H_

#include "server/state/operation_table.h"
#include "shardmesh/v1/operation_service.pb.h"

namespace shardmesh::server {

v1::OperationState EncodeState(const OperationProgress& progress);
void Encode(const OperationProgress& from, v1::Operation* to);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_OPERATION_CODEC_H_
