// Graphs of Llama-shaped decoders against a plain computation.
#include "client/models/llama_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/models/token_batch.h"
#include "tests/testing/plain_graph.h"
#include "tests/testing/plain_transformer.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/models/random_weights.h"

namespace shardmesh::test {
namespace {

using client::LlamaBatch;
using client::LlamaConfig;
using client::LlamaState;
using client::TokenBatch;

LlamaConfig SmallConfig() {
  return {.hidden_size = 24,
          .layers = 2,
          .heads = 4,
          .key_heads = 2,
          .head_size = 8,
          .intermediate_size = 40,
          .vocabulary_size = 50,
          .max_positions = 64,
          .norm_epsilon = 1e-5};
}

PlainLlamaConfig PlainConfigOf(const LlamaConfig& config) {
  PlainLlamaConfig plain{.layers = config.layers,
                         .heads = config.heads,
                         .key_heads = config.key_heads,
                         .head_size = config.head_size,
                         .norm_epsilon = config.norm_epsilon,
                         .rope_theta = config.rope_theta};
  if (config.rope_scaling.has_value()) {
    plain.rope_factor = config.rope_scaling->factor;
    plain.rope_low_factor = config.rope_scaling->low_factor;
    plain.rope_high_factor = config.rope_scaling->high_factor;
    plain.rope_original_positions = static_cast<double>(config.rope_scaling->original_positions);
  }
  return plain;
}

PlainValue MatrixOf(int64_t rows, int64_t columns, const std::vector<int32_t>& elements) {
  return {{rows, columns}, std::vector<double>(elements.begin(), elements.end())};
}

// Adds the tokens of a step to the sequences.
void Append(const PlainValue& next, std::vector<std::vector<int64_t>>& sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].push_back(static_cast<int64_t>(next.at(i)));
  }
}

// Expects that the logits of a step are those of plain computations on all tokens before it.
void ExpectLogits(const PlainValue& logits, const PlainLlama& plain,
                  const std::vector<std::vector<int64_t>>& sequences) {
  const auto columns = static_cast<size_t>(logits.shape.back());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::vector<double> expected = plain.Logits(sequences[i]);
    double error = 0;
    for (size_t column = 0; column < columns; ++column) {
      error = std::max(error, std::abs(logits.at(i * columns + column) - expected[column]));
    }
    // The frequencies and the scale are rounded to F32.
    EXPECT_LT(error, 1e-5) << "sequence " << i << " of " << sequences[i].size() << " tokens";
  }
}

// Runs a prefill and some steps of decoding, and compares all logits.
void ExpectPlainResults(const LlamaConfig& config, bool is_quantised = false) {
  const std::vector<std::vector<int32_t>> prompts = {{1, 5, 49, 3, 17}, {7}, {0, 12, 12}};
  LlamaBatch batch{.sequences = 3, .capacity = 12, .gives_logits = true};
  const int64_t length = 8;
  PlainTensors weights = RandomWeights(config);
  PlainValues operands;
  if (is_quantised) batch.types = Quantise(config, weights, operands);
  const PlainLlama plain(PlainConfigOf(config), weights);
  operands.merge(OperandsOf(weights));
  for (const LlamaState& state : client::LlamaStateOf(config, batch, client::ModelAxis())) {
    size_t size = 1;
    for (const int64_t extent : state.shape) size *= static_cast<size_t>(extent);
    operands[state.name] = {state.shape, std::vector<double>(size)};
  }
  const TokenBatch tokens = client::PadTokens(prompts, length);
  operands["ids"] = MatrixOf(3, length, tokens.ids);
  operands["id_positions"] = MatrixOf(3, length, tokens.positions);
  operands["ends"] = MatrixOf(3, 1, tokens.ends);
  std::vector<std::vector<int64_t>> sequences;
  for (const auto& prompt : prompts) sequences.emplace_back(prompt.begin(), prompt.end());

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph prefill, client::LlamaPrefill(config, batch, length));
  PlainValues outputs = RunPlainly(prefill, operands);
  ExpectLogits(outputs.at("logits"), plain, sequences);
  Append(outputs.at("next"), sequences);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph decode, client::LlamaDecode(config, batch));
  for (int step = 0; step < 6; ++step) {
    outputs = RunPlainly(decode, operands);
    ExpectLogits(outputs.at("logits"), plain, sequences);
    Append(outputs.at("next"), sequences);
  }
  EXPECT_THAT(operands.at("positions").elements, ::testing::ElementsAre(11, 7, 9));
}

TEST(LlamaModelTest, ComputesWhatAPlainComputationOfEachSequenceGives) {
  ExpectPlainResults(SmallConfig());
}

TEST(LlamaModelTest, ComputesModelsWithTiedEmbeddings) {
  LlamaConfig config = SmallConfig();
  config.ties_embeddings = true;
  ExpectPlainResults(config);
}

TEST(LlamaModelTest, ScalesRotaryFrequenciesAsLlama3Does) {
  LlamaConfig config = SmallConfig();
  config.rope_theta = 500;
  // Short waves stay, long ones are stretched, and those between are stretched in part.
  config.rope_scaling = client::RotaryScaling{
      .factor = 8, .low_factor = 1, .high_factor = 4, .original_positions = 64};
  ExpectPlainResults(config);
}

TEST(LlamaModelTest, ComputesModelsWithAsManyKeyHeadsAsHeads) {
  LlamaConfig config = SmallConfig();
  config.key_heads = 4;
  config.layers = 1;
  ExpectPlainResults(config);
}

TEST(LlamaModelTest, AddsTheBiasesThatTheConfigurationHas) {
  LlamaConfig config = SmallConfig();
  config.layers = 1;
  config.has_input_biases = true;  // as a Qwen2
  ExpectPlainResults(config);
  config.has_output_bias = true;
  config.has_mlp_biases = true;
  ExpectPlainResults(config);
}

TEST(LlamaModelTest, MultipliesByWeightsOfI8AndTheirScales) {
  LlamaConfig config = SmallConfig();
  config.has_input_biases = true;
  ExpectPlainResults(config, /*is_quantised=*/true);
  // Embeddings that are also the weight of the logits stay as they are.
  config.ties_embeddings = true;
  config.layers = 1;
  ExpectPlainResults(config, /*is_quantised=*/true);
}

TEST(LlamaModelTest, RefusesAModelOfTooManyLayers) {
  LlamaConfig config = SmallConfig();
  config.layers = 380;
  EXPECT_THAT(client::LlamaDecode(config, {}), IsOk());
  config.layers = 400;
  EXPECT_THAT(client::LlamaDecode(config, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh::test
