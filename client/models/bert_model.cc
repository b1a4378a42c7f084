// Builds graphs of BERT-like encoders.
#include "client/models/bert_model.h"

#include <cmath>
#include <string>

#include "client/models/weight_values.h"
#include "program/graph/graph_builder.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Builds one graph.
class BertBuilder {
 public:
  BertBuilder(const BertConfig& config, int64_t sequences, int64_t length, const WeightTypes& types)
      : config_(config), sequences_(sequences), length_(length), weights_(config, types, &graph_) {}

  absl::StatusOr<Graph> Build() {
    const GraphValue ids = graph_.Parameter("ids", Dtype::kI32, {sequences_, length_});
    mask_ = graph_.Parameter("mask", Dtype::kI32, {sequences_, length_});
    GraphValue x = Embeddings(ids);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = StrCat("encoder.layer.", layer, ".");
      graph_.SetScope(StrCat("encoder.layer.", layer));
      x = Norm(graph_.Add(x, Attention(prefix, x)), prefix + "attention.output.LayerNorm");
      x = Norm(graph_.Add(x, FeedForward(prefix, x)), prefix + "output.LayerNorm");
    }
    graph_.SetScope("pooling");
    graph_.Output("embedding", Pool(x));
    return graph_.Build();
  }

 private:
  GraphValue Norm(GraphValue x, const std::string& name) {
    return graph_.LayerNorm(x, {.weight = weights_.Get(name + ".weight"),
                                .bias = weights_.Get(name + ".bias"),
                                .epsilon = static_cast<float>(config_.norm_epsilon)});
  }

  GraphValue Embeddings(GraphValue ids) {
    graph_.SetScope("embeddings");
    const GraphValue words =
        graph_.Embedding(weights_.Get("embeddings.word_embeddings.weight"), ids);
    const GraphValue positions =
        graph_.Slice(weights_.Get("embeddings.position_embeddings.weight"), 0, 0, length_);
    const GraphValue type =
        graph_.Slice(weights_.Get("embeddings.token_type_embeddings.weight"), 0, 0, 1);
    const GraphValue places = graph_.Add(positions, type);
    return Norm(graph_.Add(words, places), "embeddings.LayerNorm");
  }

  // Returns x times the weight, with the features as heads.
  GraphValue Heads(GraphValue x, const std::string& name) {
    return graph_.Reshape(weights_.Linear(x, name), {sequences_, length_, config_.heads,
                                                     config_.hidden_size / config_.heads});
  }

  GraphValue Attention(const std::string& prefix, GraphValue x) {
    const double head_size = static_cast<double>(config_.hidden_size / config_.heads);
    const GraphValue query = Heads(x, prefix + "attention.self.query");
    const GraphValue keys = Heads(x, prefix + "attention.self.key");
    const GraphValue values = Heads(x, prefix + "attention.self.value");
    const GraphValue attended =
        graph_.Attention(query, keys, values,
                         {.mask = mask_, .scale = static_cast<float>(1 / std::sqrt(head_size))});
    return weights_.Linear(graph_.Reshape(attended, {sequences_, length_, config_.hidden_size}),
                           prefix + "attention.output.dense");
  }

  GraphValue FeedForward(const std::string& prefix, GraphValue x) {
    return weights_.Linear(weights_.Linear(x, prefix + "intermediate.dense", config_.activation),
                           prefix + "output.dense");
  }

  // Returns the sum of the rows of all tokens with length 1, which is their mean with length 1.
  GraphValue Pool(GraphValue x) {
    const GraphValue weights =
        graph_.Reshape(graph_.Convert(mask_, Dtype::kF32), {sequences_, length_, 1});
    const GraphValue rows = graph_.Multiply(graph_.Convert(x, Dtype::kF32), weights);
    return graph_.L2Normalize(graph_.Sum(rows, {1}));
  }

  const BertConfig& config_;
  const int64_t sequences_;
  const int64_t length_;
  GraphBuilder graph_;
  const WeightValues weights_;  // after graph_, to which it adds
  GraphValue mask_;
};

}  // namespace

absl::StatusOr<Graph> BertEmbedding(const BertConfig& config, int64_t sequences, int64_t length,
                                    const WeightTypes& types) {
  if (length > config.max_positions) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("a sentence of ", length,
                                  " tokens is longer than max_position_embeddings, which is ",
                                  config.max_positions, "; cut it"),
                           {{fact::kHave, length}, {fact::kLimit, config.max_positions}});
  }
  return BertBuilder(config, sequences, length, types).Build();
}

}  // namespace shardmesh::client
