// The built-in semantic axes: names for the dimensions of a model's tensors, as users write them.
#ifndef SHARDMESH_SHARDING_SEMANTIC_AXIS_H_
#define SHARDMESH_SHARDING_SEMANTIC_AXIS_H_

#include <string_view>

namespace shardmesh::semantic {

// Logical axes of activations and parameters.
inline constexpr std::string_view kBatch = "__BATCH__";
inline constexpr std::string_view kLength = "__LENGTH__";
inline constexpr std::string_view kQueryLength = "__QUERY_LENGTH__";
inline constexpr std::string_view kKvLength = "__KV_LENGTH__";
inline constexpr std::string_view kEmbed = "__EMBED__";
inline constexpr std::string_view kHead = "__HEAD__";
inline constexpr std::string_view kKvHead = "__KV_HEAD__";
inline constexpr std::string_view kMlpIntermediate = "__MLP_INTERMEDIATE__";
inline constexpr std::string_view kVocab = "__VOCAB__";
inline constexpr std::string_view kExpert = "__EXPERT__";
inline constexpr std::string_view kExpertGate = "__EXPERT_GATE__";
inline constexpr std::string_view kHeadDim = "__HEAD_DIM__";
inline constexpr std::string_view kKvHeadDim = "__KV_HEAD_DIM__";
inline constexpr std::string_view kBiasHeadSeq = "__BIAS_HEAD_SEQ__";
inline constexpr std::string_view kBiasKvSeq = "__BIAS_KV_SEQ__";

// A dimension that is not partitioned.
inline constexpr std::string_view kEmpty = "_";

// Semantic axes for the profile's mesh dimensions.
inline constexpr std::string_view kDataParallel = "__DATA_PARALLEL__";
inline constexpr std::string_view kFullyShardedDataParallel = "__FULLY_SHARDED_DATA_PARALLEL__";
inline constexpr std::string_view kTensorParallel = "__TENSOR_PARALLEL__";
inline constexpr std::string_view kSequenceParallel = "__SEQUENCE_PARALLEL__";
inline constexpr std::string_view kExpertParallel = "__EXPERT_PARALLEL__";

}  // namespace shardmesh::semantic

#endif  // SHARDMESH_SHARDING_SEMANTIC_AXIS_H_
