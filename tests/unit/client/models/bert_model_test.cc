// Graphs of BERT-like encoders against a plain computation.
#include "client/models/bert_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/models/token_batch.h"
#include "tests/testing/plain_graph.h"
#include "tests/testing/plain_transformer.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/models/random_weights.h"

namespace shardmesh::test {
namespace {

using client::BertConfig;

BertConfig SmallConfig() {
  return {.hidden_size = 24,
          .layers = 3,
          .heads = 4,
          .intermediate_size = 40,
          .vocabulary_size = 50,
          .max_positions = 20,
          .token_types = 2};
}

void ExpectPlainEmbeddings(bool is_quantised) {
  const BertConfig config = SmallConfig();
  const std::vector<std::vector<int32_t>> sentences = {{1, 30, 22, 2}, {1, 2}, {49}};
  const int64_t length = 7;
  PlainTensors weights = RandomWeights(config);
  PlainValues operands;
  client::WeightTypes types;
  if (is_quantised) types = Quantise(config, weights, operands);
  operands.merge(OperandsOf(weights));
  const client::TokenBatch batch = client::PadTokens(sentences, length);
  operands["ids"] = {{3, length}, std::vector<double>(batch.ids.begin(), batch.ids.end())};
  operands["mask"] = {{3, length}, std::vector<double>(batch.mask.begin(), batch.mask.end())};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph graph,
                                 client::BertEmbedding(config, 3, length, types));
  const PlainValue embeddings = RunPlainly(graph, operands).at("embedding");
  ASSERT_THAT(embeddings.shape, ::testing::ElementsAre(3, 24));
  for (size_t i = 0; i < sentences.size(); ++i) {
    const std::vector<double> expected = PlainSentenceEmbedding(
        {.layers = config.layers, .heads = config.heads, .norm_epsilon = config.norm_epsilon},
        weights, {sentences[i].begin(), sentences[i].end()});
    for (size_t feature = 0; feature < expected.size(); ++feature) {
      EXPECT_NEAR(embeddings.at(i * expected.size() + feature), expected[feature], 1e-6)
          << "sentence " << i;
    }
  }
}

TEST(BertModelTest, EmbedsEachSentenceAsAPlainComputationDoes) {
  ExpectPlainEmbeddings(/*is_quantised=*/false);
}

TEST(BertModelTest, MultipliesByWeightsOfI8AndTheirScales) {
  ExpectPlainEmbeddings(/*is_quantised=*/true);
}

TEST(BertModelTest, RefusesASentenceThatIsLongerThanTheModelHasPositions) {
  EXPECT_THAT(client::BertEmbedding(SmallConfig(), 1, 20, {}), IsOk());
  EXPECT_THAT(client::BertEmbedding(SmallConfig(), 1, 21, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh::test
