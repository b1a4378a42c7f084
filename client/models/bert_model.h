// The graph of a BERT-like encoder of sentences, such as all-MiniLM-L6-v2.
#ifndef SHARDMESH_CLIENT_MODELS_BERT_MODEL_H_
#define SHARDMESH_CLIENT_MODELS_BERT_MODEL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "program/graph/graph.h"

namespace shardmesh::client {

// Returns the graph that embeds `sequences` sentences of at most `length` tokens each, both at
// least 1. Its operands are the weights of WeightsOf and the scales of those that are I8, under the
// same names, and
//   - "ids" I32 [sequences, length]: the tokens; any token where there is none;
//   - "mask" I32 [sequences, length]: 1, and 0 where there is no token.
// Its output is "embedding" F32 [sequences, hidden]: the mean of the last layer's rows of all
// tokens, divided by its length. All tokens have the type 0. Source:
// https://arxiv.org/abs/1908.10084, section 3.
//
// Errors of GraphBuilder::Build; INVALID_ARGUMENT (LIMIT_EXCEEDED) if `length` is above
// max_positions.
absl::StatusOr<Graph> BertEmbedding(const BertConfig& config, int64_t sequences, int64_t length,
                                    const WeightTypes& types);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_BERT_MODEL_H_
