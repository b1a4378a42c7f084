// Calls that are refused before the cluster is asked.
#include "client/models/generate_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "client/models/embed_sentences.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
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

// A step takes the prompts, and returns the logits, in literals of at most 1 MiB.
TEST(GenerateTokensTest, RefusesPromptsAndLogitsThatDoNotFitIntoLiterals) {
  LoadedModel model = Llama();
  auto& config = std::get<LlamaConfig>(model.config);
  config.max_positions = 1 << 20;
  config.vocabulary_size = 128256;
  const std::vector<std::vector<int32_t>> full(256, std::vector<int32_t>(1024, 1));
  EXPECT_THAT(CheckPrompts(model, full, {}), IsOk());
  const std::vector<std::vector<int32_t>> above(256, std::vector<int32_t>(1025, 1));
  EXPECT_THAT(GenerateTokens(nullptr, model, above).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded,
                       HasSubstr("256 prompts, padded to 2048 tokens, take 2097152 bytes")));

  const GenerateOptions with_logits = {.max_new_tokens = 1, .gives_logits = true};
  std::vector<std::vector<int32_t>> prompts(2, {1});
  EXPECT_THAT(CheckPrompts(model, prompts, with_logits), IsOk());
  prompts.emplace_back(1, 1);
  EXPECT_THAT(CheckPrompts(model, prompts, {.max_new_tokens = 1}), IsOk());
  EXPECT_THAT(GenerateTokens(nullptr, model, prompts, with_logits).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded,
                       HasSubstr("give at most 2 prompts, or ask for no logits")));
  config.vocabulary_size = 262144;
  EXPECT_THAT(
      CheckPrompts(model, std::vector<std::vector<int32_t>>{{1}}, with_logits),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded, HasSubstr("ask for")));
}

// The command line checks a configuration before it loads the weights.
TEST(GenerateTokensTest, ChecksAModelThatIsNotLoaded) {
  EXPECT_THAT(CheckPrompts(Llama(), std::vector<std::vector<int32_t>>{{10}}, {.max_new_tokens = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField,
                       HasSubstr("has the token 10")));
  EXPECT_THAT(
      CheckSentences(Llama(), std::vector<std::vector<int32_t>>{{1}}),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField, HasSubstr("use `generate`")));
}

}  // namespace
}  // namespace shardmesh::client
