// Linear layers and their operands between wire and algebra. See spec_codec.h for what holds of all
// codecs.
#ifndef SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
#define SHARDMESH_RPC_CODEC_LAYER_CODEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "sharding/layout/parallel_linear.h"
#include "shardmesh/v1/resolve_service.pb.h"

namespace shardmesh::rpc {

// Most layers that are merged into one.
inline constexpr int64_t kMaxMergedLayers = 10'000;

void Encode(const ArrayLayout& from, v1::OperandLayout* to);
// A spec goes with KIND_NAMED alone. The rank is the algebra's to judge.
absl::StatusOr<ArrayLayout> Decode(const v1::OperandLayout& from);

// What a layer is made of; element type and compatibility are not in it.
void Encode(const ParallelLinearOptions& from, v1::DescribeLinearLayerRequest* to);
// Shapes and scale are the algebra's to judge.
absl::StatusOr<ParallelLinearOptions> Decode(const v1::DescribeLinearLayerRequest& from);

// All but the element type.
void Encode(const ParallelLinear& from, v1::DescribeLinearLayerResponse* to);
absl::StatusOr<ParallelLinear> Decode(const v1::DescribeLinearLayerResponse& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
