// Linear layers and their operands between wire and algebra. spec_codec.h states the rules for all
// codecs.
#ifndef SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
#define SHARDMESH_RPC_CODEC_LAYER_CODEC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "sharding/layout/parallel_linear.h"
#include "shardmesh/compat/v1/compat_service.pb.h"

namespace shardmesh::rpc {

// Upper bound on the layers that are merged into one.
inline constexpr int64_t kMaxMergedLayers = 10'000;

void Encode(const ArrayLayout& from, compat::v1::OperandLayout* to);
// Only KIND_NAMED has a spec. The algebra checks the rank.
absl::StatusOr<ArrayLayout> Decode(const compat::v1::OperandLayout& from);

// Sets the construction of a layer; element type and compatibility are set elsewhere.
void Encode(const ParallelLinearOptions& from, compat::v1::DescribeLinearLayerRequest* to);
// The algebra checks shapes and scale.
absl::StatusOr<ParallelLinearOptions> Decode(const compat::v1::DescribeLinearLayerRequest& from);

// Encodes all facts except the element type.
void Encode(const ParallelLinear& from, compat::v1::DescribeLinearLayerResponse* to);
absl::StatusOr<ParallelLinear> Decode(const compat::v1::DescribeLinearLayerResponse& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LAYER_CODEC_H_
