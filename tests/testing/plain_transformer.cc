// Transformers computed plainly.
#include "tests/testing/plain_transformer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

namespace shardmesh::test {
namespace {

using Row = std::vector<double>;

Row RowOf(const PlainTensor& table, int64_t row) {
  const auto size = static_cast<size_t>(table.shape.back());
  const auto begin =
      table.values.begin() + static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(size);
  return Row(begin, begin + static_cast<std::ptrdiff_t>(size));
}

void Add(Row& sum, const Row& other) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
}

// Returns weight x. The weight is [out, in].
Row Product(const PlainTensor& weight, const Row& x) {
  Row result(static_cast<size_t>(weight.shape[0]));
  for (size_t out = 0; out < result.size(); ++out) {
    for (size_t in = 0; in < x.size(); ++in) {
      result[out] += static_cast<double>(weight.values[out * x.size() + in]) * x[in];
    }
  }
  return result;
}

// Returns softmax(scores) times the rows of `values`, of one head.
void AttendTo(const Row& query, const std::vector<Row>& keys, const std::vector<Row>& values,
              size_t query_begin, size_t key_begin, size_t head_size, Row& result) {
  Row scores(keys.size());
  for (size_t row = 0; row < keys.size(); ++row) {
    for (size_t i = 0; i < head_size; ++i) {
      scores[row] += query[query_begin + i] * keys[row][key_begin + i];
    }
    scores[row] /= std::sqrt(static_cast<double>(head_size));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - largest);
    sum += score;
  }
  for (size_t row = 0; row < values.size(); ++row) {
    for (size_t i = 0; i < head_size; ++i) {
      result[query_begin + i] += scores[row] / sum * values[row][key_begin + i];
    }
  }
}

Row RmsNorm(const Row& x, const PlainTensor& weight, double epsilon) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Row result(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    result[i] = x[i] * factor * static_cast<double>(weight.values[i]);
  }
  return result;
}

Row LayerNorm(const Row& x, const PlainTensor& weight, const PlainTensor& bias, double epsilon) {
  const auto size = static_cast<double>(x.size());
  double mean = 0;
  for (const double value : x) mean += value / size;
  double variance = 0;
  for (const double value : x) variance += (value - mean) * (value - mean) / size;
  Row result(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    result[i] =
        (x[i] - mean) / std::sqrt(variance + epsilon) * static_cast<double>(weight.values[i]) +
        static_cast<double>(bias.values[i]);
  }
  return result;
}

Row Biased(const PlainTensors& tensors, const std::string& name, const Row& x) {
  Row result = Product(tensors.at(name + ".weight"), x);
  Add(result, RowOf(tensors.at(name + ".bias"), 0));
  return result;
}

Row Normed(const PlainTensors& tensors, const std::string& name, const Row& x, double epsilon) {
  return LayerNorm(x, tensors.at(name + ".weight"), tensors.at(name + ".bias"), epsilon);
}

void BertLayer(const PlainBertConfig& config, const PlainTensors& tensors, int64_t layer,
               std::vector<Row>& rows) {
  const std::string prefix = "encoder.layer." + std::to_string(layer) + ".";
  std::vector<Row> keys;
  std::vector<Row> values;
  for (const Row& row : rows) {
    keys.push_back(Biased(tensors, prefix + "attention.self.key", row));
    values.push_back(Biased(tensors, prefix + "attention.self.value", row));
  }
  const size_t head_size = rows.front().size() / static_cast<size_t>(config.heads);
  for (Row& row : rows) {
    const Row query = Biased(tensors, prefix + "attention.self.query", row);
    Row attended(row.size());
    for (size_t begin = 0; begin < row.size(); begin += head_size) {
      AttendTo(query, keys, values, begin, begin, head_size, attended);
    }
    Add(row, Biased(tensors, prefix + "attention.output.dense", attended));
    row = Normed(tensors, prefix + "attention.output.LayerNorm", row, config.norm_epsilon);
    Row hidden = Biased(tensors, prefix + "intermediate.dense", row);
    for (double& x : hidden) x = 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    Add(row, Biased(tensors, prefix + "output.dense", hidden));
    row = Normed(tensors, prefix + "output.LayerNorm", row, config.norm_epsilon);
  }
}

// The frequencies of the rotary embedding of each pair of features.
Row Frequencies(const PlainLlamaConfig& config) {
  Row frequencies;
  for (int64_t i = 0; i < config.head_size / 2; ++i) {
    double frequency = std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_size));
    if (config.rope_factor != 0) {
      // Long waves are stretched by the factor, short ones stay, others lie between.
      const double wave = 2 * std::numbers::pi / frequency;
      const double share = (config.rope_original_positions / wave - config.rope_low_factor) /
                           (config.rope_high_factor - config.rope_low_factor);
      const double smooth = std::clamp(share, 0.0, 1.0);
      frequency = (1 - smooth) * frequency / config.rope_factor + smooth * frequency;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace

PlainLlama::PlainLlama(const PlainLlamaConfig& config, PlainTensors tensors)
    : config_(config), tensors_(std::move(tensors)), frequencies_(Frequencies(config)) {}

const PlainTensor& PlainLlama::Get(int64_t layer, const std::string& name) const {
  return tensors_.at("model.layers." + std::to_string(layer) + "." + name + ".weight");
}

Row PlainLlama::Linear(int64_t layer, const std::string& name, const Row& x) const {
  Row result = Product(Get(layer, name), x);
  const auto bias = tensors_.find("model.layers." + std::to_string(layer) + "." + name + ".bias");
  if (bias != tensors_.end()) Add(result, RowOf(bias->second, 0));
  return result;
}

void PlainLlama::Rotate(Row& heads, int64_t position) const {
  const size_t half = frequencies_.size();
  for (size_t begin = 0; begin < heads.size(); begin += 2 * half) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      const double a = heads[begin + i];
      const double b = heads[begin + half + i];
      heads[begin + i] = a * std::cos(angle) - b * std::sin(angle);
      heads[begin + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

Row PlainLlama::Attention(int64_t layer, const Row& x, Cache& cache) const {
  const auto position = static_cast<int64_t>(cache.keys.size());
  Row query = Linear(layer, "self_attn.q_proj", x);
  Row key = Linear(layer, "self_attn.k_proj", x);
  Rotate(query, position);
  Rotate(key, position);
  cache.keys.push_back(std::move(key));
  cache.values.push_back(Linear(layer, "self_attn.v_proj", x));
  Row attended(query.size());
  const auto head_size = static_cast<size_t>(config_.head_size);
  for (int64_t head = 0; head < config_.heads; ++head) {
    const int64_t key_head = head / (config_.heads / config_.key_heads);
    AttendTo(query, cache.keys, cache.values, static_cast<size_t>(head) * head_size,
             static_cast<size_t>(key_head) * head_size, head_size, attended);
  }
  return Linear(layer, "self_attn.o_proj", attended);
}

Row PlainLlama::FeedForward(int64_t layer, const Row& x) const {
  Row hidden = Linear(layer, "mlp.gate_proj", x);
  const Row up = Linear(layer, "mlp.up_proj", x);
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = hidden[i] / (1 + std::exp(-hidden[i])) * up[i];
  }
  return Linear(layer, "mlp.down_proj", hidden);
}

Row PlainLlama::Next(int64_t token, std::vector<Cache>& caches) const {
  const PlainTensor& table = tensors_.at("model.embed_tokens.weight");
  Row x = RowOf(table, token);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const double epsilon = config_.norm_epsilon;
    Add(x, Attention(layer, RmsNorm(x, Get(layer, "input_layernorm"), epsilon),
                     caches[static_cast<size_t>(layer)]));
    Add(x, FeedForward(layer, RmsNorm(x, Get(layer, "post_attention_layernorm"), epsilon)));
  }
  const auto head = tensors_.find("lm_head.weight");
  return Product(head == tensors_.end() ? table : head->second,
                 RmsNorm(x, tensors_.at("model.norm.weight"), config_.norm_epsilon));
}

std::vector<double> PlainLlama::Logits(const std::vector<int64_t>& tokens) const {
  std::vector<Cache> caches(static_cast<size_t>(config_.layers));
  Row logits;
  for (const int64_t token : tokens) logits = Next(token, caches);
  return logits;
}

std::vector<int64_t> PlainLlama::Greedy(std::vector<int64_t> prompt, int64_t count) const {
  std::vector<Cache> caches(static_cast<size_t>(config_.layers));
  Row logits;
  for (const int64_t token : prompt) logits = Next(token, caches);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (i + 1 < count) logits = Next(tokens.back(), caches);
  }
  return tokens;
}

std::vector<double> PlainSentenceEmbedding(const PlainBertConfig& config,
                                           const PlainTensors& tensors,
                                           const std::vector<int64_t>& tokens) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Row row = RowOf(tensors.at("embeddings.word_embeddings.weight"), tokens[i]);
    Add(row, RowOf(tensors.at("embeddings.position_embeddings.weight"), static_cast<int64_t>(i)));
    Add(row, RowOf(tensors.at("embeddings.token_type_embeddings.weight"), 0));
    rows.push_back(Normed(tensors, "embeddings.LayerNorm", row, config.norm_epsilon));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) BertLayer(config, tensors, layer, rows);
  Row mean(rows.front().size());
  for (const Row& row : rows) Add(mean, row);
  double squares = 0;
  for (const double x : mean) squares += x * x;
  for (double& x : mean) x /= std::sqrt(squares);
  return mean;
}

}  // namespace shardmesh::test
