// config.json: what is read, what is written, and errors.
#include "client/models/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_replace.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLlama[] = R"({
  "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "hidden_act": "silu",
  "eos_token_id": [128001, 128008], "torch_dtype": "bfloat16", "unknown": {"a": [1]}})";

// Shortened ones of Phi-3-mini-4k, Qwen2.5-7B and Mistral-7B-v0.1.
constexpr char kPhi3[] = R"({
  "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "hidden_act": "silu",
  "max_position_embeddings": 4096, "sliding_window": 2047, "rms_norm_eps": 1e-05,
  "attention_bias": false, "rope_scaling": null})";
constexpr char kQwen2[] = R"({
  "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
  "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
  "max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": 4096,
  "use_sliding_window": false, "rms_norm_eps": 1e-06})";
constexpr char kMistral[] = R"({
  "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
  "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768,
  "sliding_window": null})";

// The one of all-MiniLM-L6-v2.
constexpr char kBert[] = R"({
  "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
  "hidden_size": 384, "initializer_range": 0.02, "intermediate_size": 1536,
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
  "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522})";

// Returns `text` with one piece replaced.
std::string With(const std::string& text, const std::string& from, const std::string& to) {
  EXPECT_THAT(text, HasSubstr(from));
  return absl::StrReplaceAll(text, {{from, to}});
}

TEST(ModelConfigTest, ReadsTheConfigurationOfALlama) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig("config.json", kLlama));
  const auto* const llama = std::get_if<LlamaConfig>(&config);
  ASSERT_NE(llama, nullptr);
  EXPECT_EQ(llama->hidden_size, 2048);
  EXPECT_EQ(llama->layers, 16);
  EXPECT_EQ(llama->heads, 32);
  EXPECT_EQ(llama->key_heads, 8);
  EXPECT_EQ(llama->head_size, 64);
  EXPECT_EQ(llama->intermediate_size, 8192);
  EXPECT_EQ(llama->vocabulary_size, 128256);
  EXPECT_EQ(llama->max_positions, 131072);
  EXPECT_EQ(llama->norm_epsilon, 1e-5);
  EXPECT_EQ(llama->rope_theta, 500000);
  EXPECT_EQ(llama->rope_scaling, (RotaryScaling{.factor = 32, .original_positions = 8192}));
  EXPECT_TRUE(llama->ties_embeddings);
  EXPECT_THAT(llama->stop_tokens, ElementsAre(128001, 128008));
}

TEST(ModelConfigTest, ReadsRotaryParametersAsTransformers5WritesThem) {
  std::string text = With(kLlama, "\"rope_theta\": 500000.0,", "");
  text = With(text, "\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500000.0, ");
  EXPECT_EQ(*ParseModelConfig("config.json", text), *ParseModelConfig("config.json", kLlama));
  text = With(text, "llama3", "default");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig("config.json", text));
  EXPECT_EQ(std::get<LlamaConfig>(config).rope_theta, 500000);
  EXPECT_EQ(std::get<LlamaConfig>(config).rope_scaling, std::nullopt);
}

TEST(ModelConfigTest, TakesTheDefaultsOfTransformers) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const ModelConfig config,
      ParseModelConfig("config.json", R"({"model_type": "llama", "hidden_size": 96,
          "num_hidden_layers": 1, "num_attention_heads": 6, "intermediate_size": 8,
          "vocab_size": 10, "head_dim": null, "rope_scaling": null, "eos_token_id": 2})"));
  const auto& llama = std::get<LlamaConfig>(config);
  EXPECT_EQ(llama.key_heads, 6);
  EXPECT_EQ(llama.head_size, 16);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_FALSE(llama.ties_embeddings);
  EXPECT_THAT(llama.stop_tokens, ElementsAre(2));
}

TEST(ModelConfigTest, ReadsDecodersOfOtherTypesAsLlamas) {
  const auto read = [](const std::string& text) {
    const absl::StatusOr<ModelConfig> config = ParseModelConfig("config.json", text);
    EXPECT_THAT(config, test::IsOk());
    return config.ok() ? std::get<LlamaConfig>(*config) : LlamaConfig();
  };
  const LlamaConfig phi3 = read(kPhi3);
  EXPECT_TRUE(phi3.is_merged);
  EXPECT_FALSE(phi3.has_input_biases);
  EXPECT_EQ(phi3.max_positions, 2047);  // up to there, the window changes nothing
  EXPECT_EQ(read(With(kPhi3, "2047", "null")).max_positions, 4096);
  EXPECT_EQ(read(With(kPhi3, "\"rms_norm_eps\": 1e-05,", "")).norm_epsilon, 1e-5);

  const LlamaConfig qwen2 = read(kQwen2);
  EXPECT_FALSE(qwen2.is_merged);
  EXPECT_TRUE(qwen2.has_input_biases);
  EXPECT_FALSE(qwen2.has_output_bias);
  EXPECT_EQ(qwen2.max_positions, 131072);
  EXPECT_EQ(read(With(kQwen2, "_window\": false", "_window\": true")).max_positions, 4096);

  const LlamaConfig mistral = read(kMistral);
  EXPECT_EQ(mistral.key_heads, 8);
  EXPECT_EQ(read(With(kMistral, "\"sliding_window\"",
                      "\"num_key_value_heads\": null, \"sliding_window\""))
                .key_heads,
            32);
  EXPECT_EQ(mistral.max_positions, 32768);
  EXPECT_FALSE(mistral.has_input_biases);
  EXPECT_EQ(read(With(kMistral, "sliding_window", "other")).max_positions, 4096);

  // A Llama has the biases that its configuration says.
  const LlamaConfig llama = read(With(kLlama, "_bias\": false", "_bias\": true"));
  EXPECT_TRUE(llama.has_input_biases && llama.has_output_bias && llama.has_mlp_biases);
}

TEST(ModelConfigTest, ReadsTheConfigurationOfAnEncoder) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig("config.json", kBert));
  EXPECT_EQ(std::get<BertConfig>(config), (BertConfig{.hidden_size = 384,
                                                      .layers = 6,
                                                      .heads = 12,
                                                      .intermediate_size = 1536,
                                                      .vocabulary_size = 30522,
                                                      .max_positions = 512,
                                                      .token_types = 2}));
}

TEST(ModelConfigTest, ReadsWhatItWrote) {
  const std::string with_biases = With(kLlama, "_bias\": false", "_bias\": true");
  for (const std::string& text :
       std::vector<std::string>{kLlama, with_biases, kBert, kPhi3, kQwen2, kMistral}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig("a", text));
    EXPECT_EQ(*ParseModelConfig("b", FormatModelConfig(config)), config);
  }
}

TEST(ModelConfigTest, NamesTheKeyAndItsValueInErrors) {
  struct Case {
    std::string text;
    std::string error;
  };
  const Case kCases[] = {
      {"", "f is not JSON: "},
      {"[1]", "f is not an object of JSON"},
      {"{}", "f: model_type is missing; supported are \"bert\", \"llama\", \"mistral\""},
      {R"({"model_type": "gpt2"})", "f: model_type is \"gpt2\"; supported are"},
      {R"({"model_type": 3})", "f: model_type is 3; it must be a text"},
      {With(kLlama, "\"hidden_size\": 2048,", ""), "f: hidden_size is missing; it must be a whole"},
      {With(kLlama, "2048", "\"2048\""), "f: hidden_size is \"2048\"; it must be a whole number"},
      {With(kLlama, "\"vocab_size\": 128256", "\"vocab_size\": 0"), "f: vocab_size is 0; it must"},
      {With(kLlama, "\"vocab_size\": 128256", "\"vocab_size\": -1"), "f: vocab_size is -1;"},
      {With(kLlama, "\"vocab_size\": 128256", "\"vocab_size\": 1.5"), "f: vocab_size is 1.5;"},
      {With(kLlama, "\"vocab_size\": 128256", "\"vocab_size\": 99999999999"), "to 1073741824"},
      {With(kLlama, "\"num_hidden_layers\": 16", "\"num_hidden_layers\": 1025"),
       "f: num_hidden_layers is 1025; at most 1024 are supported"},
      {With(kLlama, "1e-05", "0"), "f: rms_norm_eps is 0; it must be a number above 0"},
      {With(kLlama, "\"rope_theta\"", "\"partial_rotary_factor\": 0.75, \"rope_theta\""),
       "f: partial_rotary_factor is 0.75; only 1 is supported"},
      {With(kPhi3, "null}", "{\"type\": \"longrope\"}}"),
       "f: rope_scaling: rope_type is \"longrope\"; only \"default\""},
      {With(kLlama, "\"mlp_bias\": false", "\"mlp_bias\": 1"), "mlp_bias is 1; it must be true or"},
      {With(kLlama, "silu", "relu"), "f: hidden_act is \"relu\"; only \"silu\""},
      {With(kLlama, "\"head_dim\": 64", "\"head_dim\": 63"), "f: head_dim is 63; rotary positions"},
      {With(kLlama, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5"),
       "f: num_key_value_heads is 5; it must divide num_attention_heads, which is 32"},
      {With(kLlama, "llama3", "yarn"), "f: rope_scaling: rope_type is \"yarn\"; only \"default\""},
      {With(kLlama, "\"factor\": 32.0", "\"factor\": 0.5"), "f: rope_scaling: factor is below 1"},
      {With(kLlama, "[128001, 128008]", "[-1]"), "f: eos_token_id has -1; tokens are whole"},
      {With(kBert, "12,", "7,"), "f: hidden_size is 384, not a multiple of num_attention_heads"},
      {With(kBert, "\"gelu\"", "\"tanh\""), "f: hidden_act is \"tanh\"; supported are gelu,"},
      {With(kBert, "absolute", "relative_key"), "position_embedding_type is \"relative_key\""},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(ParseModelConfig("f", c.text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile, HasSubstr(c.error)));
  }
}

// Values are printed by recursion, which a deep list would carry beyond the end of the stack.
TEST(ModelConfigTest, RefusesDeepAndLongValuesInAShortText) {
  const size_t depth = 500'000;
  const std::string deep = StrCat(std::string(depth, '['), std::string(depth, ']'));
  for (const auto& [text, error] : {
           std::pair(StrCat(R"({"model_type": )", deep, "}"), "f: model_type is a list; it must"),
           std::pair(With(kLlama, "128256", deep), "f: vocab_size is a list; it must be a whole"),
           std::pair(With(kLlama, "1e-05", deep), "f: rms_norm_eps is a list; it must be a number"),
           std::pair(With(kLlama, "[128001, 128008]", StrCat("[", deep, "]")),
                     "f: eos_token_id has a list; tokens"),
           std::pair(With(kBert, "384", "{\"a\": 1}"), "f: hidden_size is an object; it must be"),
           std::pair(With(kBert, "384", StrCat("\"", std::string(99, 'x'), "\"")),
                     "f: hidden_size is of 101 bytes; it must be"),
       }) {
    const absl::Status status = ParseModelConfig("f", text).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile, HasSubstr(error)));
    EXPECT_LT(status.message().size(), 200U);
  }
}

TEST(ModelConfigTest, ReadsFiles) {
  const std::string path = ::testing::TempDir() + "config.json";
  std::ofstream(path) << kBert;
  EXPECT_EQ(*ReadModelConfig(path), *ParseModelConfig("f", kBert));
  std::ofstream(path) << std::string((1 << 20) + 1, ' ');
  EXPECT_THAT(ReadModelConfig(path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile,
                       HasSubstr("it is no config.json")));
  EXPECT_THAT(ReadModelConfig(path + ".none").status(), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace shardmesh::client
