// Converts ops on tensors between messages and the types of program/. Programs and plans have the
// same message. spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_TENSOR_OP_CODEC_H_
#define SHARDMESH_RPC_CODEC_TENSOR_OP_CODEC_H_

#include "absl/status/statusor.h"
#include "program/tensor_op.h"
#include "shardmesh/v1/program.pb.h"

namespace shardmesh::rpc {

v1::MapFunction Encode(MapFunction from);
absl::StatusOr<MapFunction> Decode(v1::MapFunction from);
v1::NormKind Encode(NormKind from);
absl::StatusOr<NormKind> Decode(v1::NormKind from);

void Encode(const SymbolicNumber& from, v1::SymbolicNumber* to);
// Checks nothing: see CheckSymbolicNumbers (program/graph/symbolic_program.h).
SymbolicNumber Decode(const v1::SymbolicNumber& from);

void Encode(const TensorOp& from, v1::TensorOp* to);
// Checks everything that does not depend on the inputs: counts, dimensions, numbers that must be
// finite, and the size of a constant (LIMIT_EXCEEDED). The caller checks the indexes of values. The
// field path of an error begins with the case that is set: "norm.epsilon".
absl::StatusOr<TensorOp> Decode(const v1::TensorOp& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_TENSOR_OP_CODEC_H_
