// Builds graphs of Llama-shaped decoders.
#include "client/models/llama_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "client/models/weight_values.h"
#include "program/graph/graph_builder.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

std::string CacheName(int64_t layer, std::string_view kind) {
  return StrCat("cache.", layer, ".", kind);
}

// Builds one graph.
class LlamaBuilder {
 public:
  LlamaBuilder(const LlamaConfig& config, const LlamaBatch& batch)
      : config_(config), batch_(batch), weights_(config, batch.types, &graph_) {}

  absl::StatusOr<Graph> Prefill(int64_t length) {
    DeclareOperands();
    const GraphValue ids = graph_.Parameter("ids", Dtype::kI32, {batch_.sequences, length});
    const GraphValue positions =
        graph_.Parameter("id_positions", Dtype::kI32, {batch_.sequences, length});
    const GraphValue ends = graph_.Parameter("ends", Dtype::kI32, {batch_.sequences, 1});
    const GraphValue x = Layers(ids, positions);
    graph_.SetScope("last tokens");
    // Row s * length + ends[s] of the tokens of all sequences is the last one of sequence s.
    std::vector<int32_t> first_rows;
    for (int64_t sequence = 0; sequence < batch_.sequences; ++sequence) {
      first_rows.push_back(static_cast<int32_t>(sequence * length));
    }
    const GraphValue rows =
        graph_.Add(graph_.Reshape(ends, {batch_.sequences}), graph_.Vector(first_rows));
    const GraphValue last =
        graph_.Embedding(graph_.Reshape(x, {batch_.sequences * length, config_.hidden_size}), rows);
    return Finish(last, ends);
  }

  absl::StatusOr<Graph> Decode() {
    DeclareOperands();
    const GraphValue x = Layers(tokens_, positions_);
    return Finish(graph_.Reshape(x, {batch_.sequences, config_.hidden_size}), positions_);
  }

 private:
  void DeclareOperands() {
    for (const LlamaState& state : LlamaStateOf(config_, batch_, ModelAxis())) {
      state_[state.name] = graph_.State(state.name, state.dtype, state.shape);
    }
    tokens_ = state_["tokens"];
    positions_ = state_["positions"];
    frequencies_ = graph_.Vector(RotaryFrequencies(config_));
  }

  static std::string NameIn(int64_t layer, std::string_view name) {
    return StrCat("model.layers.", layer, ".", name);
  }

  GraphValue Norm(GraphValue x, std::string_view name) {
    return graph_.RmsNorm(x, {.weight = weights_.Get(StrCat(name, ".weight")),
                              .epsilon = static_cast<float>(config_.norm_epsilon)});
  }

  // Returns the result of a linear layer, with the features as `heads` heads.
  GraphValue Heads(GraphValue x, std::string_view name, int64_t heads) {
    return graph_.Reshape(weights_.Linear(x, name),
                          {batch_.sequences, -1, heads, config_.head_size});
  }

  // Adds rows to a cache, and returns the cache with them.
  GraphValue Cached(int64_t layer, std::string_view kind, GraphValue rows, GraphValue positions) {
    const GraphValue cache = state_[CacheName(layer, kind)];
    const GraphValue updated = graph_.UpdateRows(cache, rows, positions);
    graph_.Update(cache, updated);
    return updated;
  }

  GraphValue Attention(int64_t layer, GraphValue x, GraphValue positions) {
    GraphValue query = Heads(x, NameIn(layer, "self_attn.q_proj"), config_.heads);
    GraphValue key = Heads(x, NameIn(layer, "self_attn.k_proj"), config_.key_heads);
    const GraphValue value = Heads(x, NameIn(layer, "self_attn.v_proj"), config_.key_heads);
    query = graph_.Rotary(query, positions, frequencies_);
    key = graph_.Rotary(key, positions, frequencies_);
    const GraphValue keys = Cached(layer, "keys", key, positions);
    const GraphValue values = Cached(layer, "values", value, positions);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_size)));
    const GraphValue attended =
        graph_.Attention(query, keys, values, {.positions = positions, .scale = scale});
    const GraphValue joined =
        graph_.Reshape(attended, {batch_.sequences, -1, config_.heads * config_.head_size});
    return weights_.Linear(joined, NameIn(layer, "self_attn.o_proj"));
  }

  GraphValue FeedForward(int64_t layer, GraphValue x) {
    const GraphValue gate = weights_.Linear(x, NameIn(layer, "mlp.gate_proj"), Activation::kSilu);
    const GraphValue up = weights_.Linear(x, NameIn(layer, "mlp.up_proj"));
    return weights_.Linear(graph_.Multiply(gate, up), NameIn(layer, "mlp.down_proj"));
  }

  // Returns the values after the last layer, [sequences, length, hidden].
  GraphValue Layers(GraphValue ids, GraphValue positions) {
    graph_.SetScope("embeddings");
    GraphValue x = graph_.Embedding(weights_.Get("model.embed_tokens.weight"), ids);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      graph_.SetScope(StrCat("layers.", layer));
      const GraphValue before = Norm(x, NameIn(layer, "input_layernorm"));
      x = graph_.Add(x, Attention(layer, before, positions));
      const GraphValue after = Norm(x, NameIn(layer, "post_attention_layernorm"));
      x = graph_.Add(x, FeedForward(layer, after));
    }
    return x;
  }

  // Adds what follows the layers. `last` is the row of each sequence's last token, and `ends` the
  // position of this token.
  absl::StatusOr<Graph> Finish(GraphValue last, GraphValue ends) {
    graph_.SetScope("logits");
    const GraphValue logits = weights_.Linear(
        Norm(last, "model.norm"), config_.ties_embeddings ? "model.embed_tokens" : "lm_head");
    const GraphValue next = graph_.Argmax(logits);
    graph_.SetScope("state");
    graph_.Update(tokens_, graph_.Reshape(next, {batch_.sequences, 1}));
    graph_.Update(positions_, graph_.Add(ends, 1.0));
    graph_.Output("next", next);
    if (batch_.gives_logits) graph_.Output("logits", graph_.Convert(logits, Dtype::kF32));
    return graph_.Build();
  }

  const LlamaConfig& config_;
  const LlamaBatch& batch_;
  GraphBuilder graph_;
  const WeightValues weights_;  // after graph_, to which it adds
  std::map<std::string, GraphValue, std::less<>> state_;
  GraphValue tokens_;
  GraphValue positions_;
  GraphValue frequencies_;
};

}  // namespace

std::vector<LlamaState> LlamaStateOf(const LlamaConfig& config, const LlamaBatch& batch,
                                     const ModelAxis& axis) {
  std::vector<LlamaState> state;
  for (const char* name : {"tokens", "positions"}) {
    state.push_back({name, Dtype::kI32, {batch.sequences, 1}, PartitionSpec()});
  }
  PartitionSpec spec;
  if (axis.size > 1) {
    spec = PartitionSpec({SpecEntry::None(), SpecEntry::None(), SpecEntry::Axis(axis.name)});
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const char* kind : {"keys", "values"}) {
      state.push_back({CacheName(layer, kind),
                       batch.types.dtype,
                       {batch.sequences, batch.capacity, config.key_heads, config.head_size},
                       spec});
    }
  }
  return state;
}

absl::StatusOr<Graph> LlamaPrefill(const LlamaConfig& config, const LlamaBatch& batch,
                                   int64_t length) {
  return LlamaBuilder(config, batch).Prefill(length);
}

absl::StatusOr<Graph> LlamaDecode(const LlamaConfig& config, const LlamaBatch& batch) {
  return LlamaBuilder(config, batch).Decode();
}

std::vector<float> RotaryFrequencies(const LlamaConfig& config) {
  std::vector<float> frequencies;
  for (int64_t pair = 0; pair < config.head_size / 2; ++pair) {
    double frequency = std::pow(config.rope_theta, -2.0 * static_cast<double>(pair) /
                                                       static_cast<double>(config.head_size));
    if (config.rope_scaling.has_value()) {
      const RotaryScaling& scaling = *config.rope_scaling;
      const double waves =
          static_cast<double>(scaling.original_positions) * frequency / (2 * std::numbers::pi);
      const double kept = std::clamp(
          (waves - scaling.low_factor) / (scaling.high_factor - scaling.low_factor), 0.0, 1.0);
      frequency *= kept + (1 - kept) / scaling.factor;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace shardmesh::client
