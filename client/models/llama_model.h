// Graphs of Llama-shaped decoders: prefill of prompts, and decoding of one token after the other.
#ifndef SHARDMESH_CLIENT_MODELS_LLAMA_MODEL_H_
#define SHARDMESH_CLIENT_MODELS_LLAMA_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "program/graph/graph.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// The sizes of one batch of sequences. All are at least 1.
struct LlamaBatch {
  int64_t sequences = 1;
  int64_t capacity = 64;      // rows of the caches: the most tokens of a sequence
  WeightTypes types = {};     // of the weights; `dtype` is that of all values of the model
  bool gives_logits = false;  // whether the graphs also have the output "logits"
};

// An array that the graphs of a batch change in place. It begins with zeros.
struct LlamaState {
  std::string name;  // of the operand
  Dtype dtype = Dtype::kF32;
  Shape shape;
  PartitionSpec spec;
};

// Returns the state of a batch:
//   - "tokens" I32 [sequences, 1]: the last token of each sequence;
//   - "positions" I32 [sequences, 1]: its position, counted from 0;
//   - "cache.N.keys" and "cache.N.values" [sequences, capacity, key heads, head size] of each layer
//     N, partitioned by key heads.
// `axis` as for WeightsOf, which must have accepted it.
std::vector<LlamaState> LlamaStateOf(const LlamaConfig& config, const LlamaBatch& batch,
                                     const ModelAxis& axis);

// Both graphs have the weights of WeightsOf, and the scales of those that are I8, as operands,
// under the same names, and the state of LlamaStateOf. Their outputs are "next" I32 [sequences],
// the token with the largest logit of each sequence (of equal ones the lowest), and with
// gives_logits "logits" F32 [sequences, vocabulary]. A step writes the keys and values of its
// tokens into the caches, "next" into "tokens", and the position of "next" into "positions".
//
// The graph of prefill has three further operands, for sequences of different lengths that are
// padded at their ends to `length` tokens:
//   - "ids" I32 [sequences, length]: the tokens; anything where there is none;
//   - "id_positions" I32 [sequences, length]: 0, 1, ..., and -1 where there is no token;
//   - "ends" I32 [sequences, 1]: the position of each sequence's last token.
// The graph of decoding takes its tokens and positions from the state: steps follow each other
// without another operand.
//
// Errors of GraphBuilder::Build: LIMIT_EXCEEDED for a model of more than about 385 layers, or
// 325 with biases and scales.
absl::StatusOr<Graph> LlamaPrefill(const LlamaConfig& config, const LlamaBatch& batch,
                                   int64_t length);
absl::StatusOr<Graph> LlamaDecode(const LlamaConfig& config, const LlamaBatch& batch);

// Returns the frequency of each of the head_size / 2 pairs of features, in radians for each
// position: rope_theta^(-2 i / head_size), scaled if the configuration says so.
std::vector<float> RotaryFrequencies(const LlamaConfig& config);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_LLAMA_MODEL_H_
