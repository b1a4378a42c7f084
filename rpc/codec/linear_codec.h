// Converts the settings of linear layers that workers compute. spec_codec.h states the rules for
// all codecs.
#ifndef SHARDMESH_RPC_CODEC_LINEAR_CODEC_H_
#define SHARDMESH_RPC_CODEC_LINEAR_CODEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "program/graph/layer_program.h"
#include "shardmesh/v1/compute_service.pb.h"

namespace shardmesh::rpc {

// Leaves out the mesh of the config: the coordinator uses that of the operands. INVALID_ARGUMENT
// (BAD_FIELD): the wire has no such scale or method; the message gives the nearest one.
absl::Status Encode(const LayerCall& from, v1::LinearLayer* to);
// Checks numbers and enums. ProgramOfLayer checks whether the layer fits its operands.
absl::StatusOr<LayerCall> Decode(const v1::LinearLayer& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LINEAR_CODEC_H_
