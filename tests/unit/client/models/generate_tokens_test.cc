// Calls that are refused before the cluster is asked.
#include "client/models/generate_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/models/embed_sentences.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

LoadedModel Llama() {
  LoadedModel model;
  model.name = "m";
  model.config = LlamaConfig{.hidden_size = 4,
                             .layers = 1,
                             .heads = 1,
                             .key_heads = 1,
                             .head_size = 4,
                             .intermediate_size = 4,
                             .vocabulary_size = 10,
                             .max_positions = 64};
  return model;
}

TEST(GenerateTokensTest, RefusesTooManyPromptsAndNone) {
  for (const size_t count : {0U, 257U}) {
    const std::vector<std::vector<int32_t>> prompts(count, {1});
    EXPECT_THAT(GenerateTokens(nullptr, Llama(), prompts).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded,
                         HasSubstr("it must have 1 to 256")));
  }
}

TEST(GenerateTokensTest, RefusesWrongArguments) {
  const std::vector<std::vector<int32_t>> prompts = {{1}};
  EXPECT_THAT(GenerateTokens(nullptr, Llama(), prompts, {.max_new_tokens = 0}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(GenerateTokens(nullptr, Llama(), prompts, {.max_new_tokens = 64}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(EmbedSentences(nullptr, Llama(), prompts).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("the model \"m\" is a Llama-shaped decoder")));
  LoadedModel encoder;
  encoder.name = "e";
  encoder.config = BertConfig{};
  EXPECT_THAT(GenerateTokens(nullptr, encoder, prompts).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("the model \"e\" is a BERT-like encoder")));
}

}  // namespace
}  // namespace shardmesh::client
