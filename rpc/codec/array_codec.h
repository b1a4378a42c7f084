// Converts arrays between messages and the types of tensor/ and sharding/: element types,
// descriptions, literals. spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_
#define SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/dtype.pb.h"
#include "tensor/array_descriptor.h"
#include "tensor/dtype.h"
#include "tensor/literal.h"

namespace shardmesh::rpc {

v1::Dtype Encode(Dtype dtype);
// Returns UNKNOWN_DTYPE for a type that is unset or unknown to this build. The caller adds the
// field's path.
absl::StatusOr<Dtype> Decode(v1::Dtype dtype);

void Encode(const ArrayDescriptor& from, v1::ArrayDescriptor* to);
// Checks that the array's layout fits its mesh. Tiling() of the decoded array therefore cannot
// fail.
absl::StatusOr<ArrayDescriptor> Decode(const v1::ArrayDescriptor& from);

// Returns the bytes of a v1::ArrayDescriptor, the form in transfer tokens and in messages between
// coordinator and workers.
std::string ArrayDescriptorBytes(const ArrayDescriptor& array);
// Parses the bytes of a v1::ArrayDescriptor. INVALID_ARGUMENT (BAD_FIELD) also for bytes that are
// no such message. The result lacks unknown fields, so a caller that forwards the descriptor must
// forward `bytes`.
absl::StatusOr<ArrayDescriptor> ParseArrayDescriptorBytes(std::string_view bytes);

void Encode(const Literal& from, v1::Literal* to);
void Encode(Literal&& from, v1::Literal* to);
// Requires as many bytes as dtype and shape need, and at most kMaxLiteralBytes (LIMIT_EXCEEDED).
// The second function moves the bytes out of `from`.
absl::StatusOr<Literal> Decode(const v1::Literal& from);
absl::StatusOr<Literal> Decode(v1::Literal&& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_ARRAY_CODEC_H_
