// Converts linear layers and their operands between messages and the types of sharding/.
// spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
#define SHARDMESH_RPC_CODEC_LAYER_CODEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "sharding/layout/parallel_linear.h"
#include "shardmesh/compat/v1/compat_service.pb.h"

namespace shardmesh::rpc {

// Maximum number of layers that can be merged into one layer.
inline constexpr int64_t kMaxMergedLayers = 10'000;

void Encode(const ArrayLayout& from, compat::v1::OperandLayout* to);
// Only a layout of KIND_NAMED has a spec. This function does not check the spec's rank; the users
// of the layout do.
absl::StatusOr<ArrayLayout> Decode(const compat::v1::OperandLayout& from);

// Encodes the options with which a layer is made. The caller sets the element type and the
// compatibility.
void Encode(const ParallelLinearOptions& from, compat::v1::DescribeLinearLayerRequest* to);
// This function does not check shapes and scale; sharding/ does.
absl::StatusOr<ParallelLinearOptions> Decode(const compat::v1::DescribeLinearLayerRequest& from);

// Encodes all facts except the element type.
void Encode(const ParallelLinear& from, compat::v1::DescribeLinearLayerResponse* to);
absl::StatusOr<ParallelLinear> Decode(const compat::v1::DescribeLinearLayerResponse& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
