// Converts linear layers and their operands between messages and the types of sharding/.
// spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
#define SHARDMESH_RPC_CODEC_LAYER_CODEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "sharding/layout/parallel_linear.h"
#include "shardmesh/compat/v1/compat_service.pb.h"

namespace shardmesh::rpc {

// Most layers that can be merged into one layer.
inline constexpr int64_t kMaxMergedLayers = 10'000;

void Encode(const ArrayLayout& from, compat::v1::OperandLayout* to);
// Only KIND_NAMED has a spec. The rank is not checked here, but where the layout is used.
absl::StatusOr<ArrayLayout> Decode(const compat::v1::OperandLayout& from);

// Encodes the construction of a layer. The caller sets the element type and the compatibility.
void Encode(const ParallelLinearOptions& from, compat::v1::DescribeLinearLayerRequest* to);
// Shapes and scale are not checked here, but by sharding/.
absl::StatusOr<ParallelLinearOptions> Decode(const compat::v1::DescribeLinearLayerRequest& from);

// Encodes all facts except the element type.
void Encode(const ParallelLinear& from, compat::v1::DescribeLinearLayerResponse* to);
absl::StatusOr<ParallelLinear> Decode(const compat::v1::DescribeLinearLayerResponse& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
