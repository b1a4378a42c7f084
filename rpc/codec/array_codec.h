// Arrays between wire and domain: element types, descriptions, literals. See spec_codec.h for what
// holds of all codecs.
#ifndef SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_
#define SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/dtype.pb.h"
#include "tensor/array_descriptor.h"
#include "tensor/dtype.h"
#include "tensor/literal.h"

namespace shardmesh::rpc {

v1::Dtype Encode(Dtype dtype);
// UNKNOWN_DTYPE for one that is not set or that this build does not know. The field's path is left
// to the caller.
absl::StatusOr<Dtype> Decode(v1::Dtype dtype);

void Encode(const ArrayDescriptor& from, v1::ArrayDescriptor* to);
// Checks that the array lies on its mesh as it says: after this its Tiling() cannot fail.
absl::StatusOr<ArrayDescriptor> Decode(const v1::ArrayDescriptor& from);

void Encode(const Literal& from, v1::Literal* to);
void Encode(Literal&& from, v1::Literal* to);
// At most kMaxLiteralBytes (LIMIT_EXCEEDED), and as many as dtype and shape say. The second one
// takes the bytes out of `from`.
absl::StatusOr<Literal> Decode(const v1::Literal& from);
absl::StatusOr<Literal> Decode(v1::Literal&& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_
