// Names, shapes and layouts of weights, and checks of checkpoints.
#include "client/models/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

LlamaConfig Llama() {
  return {.hidden_size = 12,
          .layers = 2,
          .heads = 6,
          .key_heads = 2,
          .head_size = 4,
          .intermediate_size = 20,
          .vocabulary_size = 31,
          .max_positions = 64};
}

BertConfig Bert() {
  return {.hidden_size = 12,
          .layers = 1,
          .heads = 6,
          .intermediate_size = 20,
          .vocabulary_size = 32,
          .max_positions = 64,
          .token_types = 2};
}

ModelWeight Find(const std::vector<ModelWeight>& weights, const std::string& name) {
  for (const ModelWeight& weight : weights) {
    if (weight.name == name) return weight;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

PartitionSpec By(size_t dimension) {
  std::vector<SpecEntry> entries(dimension);
  entries.push_back(SpecEntry::Axis("tp"));
  return PartitionSpec(entries);
}

std::vector<StoredTensor> Stored(const std::vector<ModelWeight>& weights) {
  std::vector<StoredTensor> tensors;
  for (const ModelWeight& weight : weights) {
    tensors.push_back({weight.name, Dtype::kBF16, weight.shape});
  }
  return tensors;
}

TEST(ModelWeightsTest, PutsWholeHeadsOfALlamaOntoEachDevice) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(Llama(), {.name = "tp", .size = 2}));
  EXPECT_EQ(weights.size(), 2 * 9 + 3);
  const std::string prefix = "model.layers.1.";
  const ModelWeight kExpected[] = {
      {"model.embed_tokens.weight", {31, 12}, PartitionSpec()},  // 2 does not divide 31
      {prefix + "input_layernorm.weight", {12}, PartitionSpec()},
      {prefix + "self_attn.q_proj.weight", {24, 12}, By(0), true},
      {prefix + "self_attn.k_proj.weight", {8, 12}, By(0), true},
      {prefix + "self_attn.v_proj.weight", {8, 12}, By(0), true},
      {prefix + "self_attn.o_proj.weight", {12, 24}, By(1), true},
      {prefix + "mlp.gate_proj.weight", {20, 12}, By(0), true},
      {prefix + "mlp.up_proj.weight", {20, 12}, By(0), true},
      {prefix + "mlp.down_proj.weight", {12, 20}, By(1), true},
      {"lm_head.weight", {31, 12}, PartitionSpec(), true},
  };
  for (const ModelWeight& expected : kExpected) {
    EXPECT_EQ(Find(weights, expected.name), expected) << expected.name;
  }
}

TEST(ModelWeightsTest, PutsWholeHeadsOfAnEncoderOntoEachDevice) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(Bert(), {.name = "tp", .size = 2}));
  const std::string prefix = "encoder.layer.0.";
  const ModelWeight kExpected[] = {
      {"embeddings.word_embeddings.weight", {32, 12}, By(0)},
      {"embeddings.position_embeddings.weight", {64, 12}, PartitionSpec()},
      {prefix + "attention.self.key.weight", {12, 12}, By(0), true},
      {prefix + "attention.self.key.bias", {12}, By(0)},
      {prefix + "attention.output.dense.weight", {12, 12}, By(1), true},
      {prefix + "attention.output.dense.bias", {12}, PartitionSpec()},
      {prefix + "intermediate.dense.bias", {20}, By(0)},
      {prefix + "output.dense.weight", {12, 20}, By(1), true},
  };
  for (const ModelWeight& expected : kExpected) {
    EXPECT_EQ(Find(weights, expected.name), expected) << expected.name;
  }
}

TEST(ModelWeightsTest, PartitionsTheBiasesOfALlamaAsTheirFeatures) {
  LlamaConfig config = Llama();
  config.has_input_biases = config.has_output_bias = config.has_mlp_biases = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(config, {.name = "tp", .size = 2}));
  EXPECT_EQ(weights.size(), 2 * 16 + 3);
  const std::string prefix = "model.layers.1.";
  const ModelWeight kExpected[] = {
      {prefix + "self_attn.q_proj.bias", {24}, By(0)},
      {prefix + "self_attn.k_proj.bias", {8}, By(0)},
      {prefix + "self_attn.v_proj.bias", {8}, By(0)},
      {prefix + "self_attn.o_proj.bias", {12}, PartitionSpec()},
      {prefix + "mlp.gate_proj.bias", {20}, By(0)},
      {prefix + "mlp.up_proj.bias", {20}, By(0)},
      {prefix + "mlp.down_proj.bias", {12}, PartitionSpec()},
  };
  for (const ModelWeight& expected : kExpected) {
    EXPECT_EQ(Find(weights, expected.name), expected) << expected.name;
  }
}

TEST(ModelWeightsTest, ScalesLieAsTheRowsOfTheirWeights) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto weights, WeightsOf(Llama(), {.name = "tp", .size = 2}));
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  const std::string o = "model.layers.0.self_attn.o_proj.weight";
  AddScales({Dtype::kF32, {q, o}}, weights);
  EXPECT_EQ(weights.size(), 2 * 9 + 3 + 2);
  EXPECT_EQ(Find(weights, q + ".scale"), (ModelWeight{q + ".scale", {24}, By(0)}));
  EXPECT_EQ(Find(weights, o + ".scale").shape, (Shape{12}));
  EXPECT_EQ(Find(weights, o + ".scale").spec.entry(0), SpecEntry::None());
}

TEST(ModelWeightsTest, KnowsTheRowsOfMergedWeights) {
  LlamaConfig config = Llama();
  EXPECT_THAT(MergedWeightsOf(config), ::testing::IsEmpty());
  EXPECT_THAT(MergedWeightsOf(Bert()), ::testing::IsEmpty());
  config.is_merged = true;
  const std::vector<MergedWeight> merged = MergedWeightsOf(config);
  ASSERT_EQ(merged.size(), 4U);
  EXPECT_EQ(merged[2].whole.name, "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(merged[2].whole.shape, (Shape{40, 12}));
  const std::string prefix = "model.layers.1.self_attn.";
  EXPECT_THAT(merged[2].parts, ::testing::ElementsAre(RowPart{prefix + "q_proj.weight", 24},
                                                      RowPart{prefix + "k_proj.weight", 8},
                                                      RowPart{prefix + "v_proj.weight", 8}));
  EXPECT_EQ(merged[3].whole.shape, (Shape{40, 12}));
  EXPECT_EQ(merged[3].parts[1], (RowPart{"model.layers.1.mlp.up_proj.weight", 20}));
}

TEST(ModelWeightsTest, ReplicatesAllOnAMeshWithoutTheAxis) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({{"dp", 3}}));
  const ModelAxis axis = ModelAxis::Of(mesh, "tp");
  EXPECT_EQ(axis.size, 1);
  EXPECT_EQ(ModelAxis::Of(mesh, "dp").size, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(Llama(), axis));
  for (const ModelWeight& weight : weights) EXPECT_EQ(weight.spec, PartitionSpec());
}

TEST(ModelWeightsTest, NeedsNoLogitsWeightIfEmbeddingsAreTied) {
  LlamaConfig config = Llama();
  config.ties_embeddings = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(config, ModelAxis()));
  EXPECT_EQ(weights.size(), 2 * 9 + 2);
}

TEST(ModelWeightsTest, RefusesAnAxisThatDoesNotDivideTheHeads) {
  EXPECT_THAT(WeightsOf(Llama(), {.name = "tp", .size = 3}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible,
                       HasSubstr("num_key_value_heads is 2, not divisible by the 3 devices of the "
                                 "mesh axis tp; use a mesh on which this axis has 1 or 2")));
  EXPECT_THAT(WeightsOf(Bert(), {.name = "tp", .size = 4}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible,
                       HasSubstr("num_attention_heads is 6")));
  EXPECT_THAT(WeightsOf(Bert(), {.name = "tp", .size = 3}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible,
                       HasSubstr("intermediate_size is 20")));
}

TEST(ModelWeightsTest, NamesTheTensorThatDoesNotMatchTheConfiguration) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(Llama(), ModelAxis()));
  EXPECT_THAT(CheckModelWeights("f", weights, Stored(weights)),
              IsOkAndHolds(WeightTypes{Dtype::kBF16, {}}));

  std::vector<StoredTensor> tensors = Stored(weights);
  tensors.push_back({"rotary.inv_freq", Dtype::kF64, {2}});  // not needed
  EXPECT_THAT(CheckModelWeights("f", weights, tensors), IsOk());

  tensors[3].shape = {12, 8};
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       HasSubstr("f: the tensor \"model.layers.0.self_attn.k_proj.weight\" has the "
                                 "shape (12, 8), and config.json requires (8, 12)")));

  tensors = Stored(weights);
  tensors[2].name = "model.layers.0.self_attn.q_proj.weights";
  EXPECT_THAT(
      CheckModelWeights("f", weights, tensors).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile,
               HasSubstr("f lacks the tensor \"model.layers.0.self_attn.q_proj.weight\", (24, 12), "
                         "which config.json requires; it has "
                         "\"model.layers.0.self_attn.q_proj.weights\"")));

  tensors = Stored(weights);
  tensors[1].dtype = Dtype::kI8;  // of a norm
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is I8; weights are F32, BF16 or F16")));
  tensors = Stored(weights);
  tensors[5].dtype = Dtype::kF64;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is F64; this weight must be F32, BF16, F16 or I8")));
  tensors[5].dtype = Dtype::kF32;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is F32, and \"model.embed_tokens.weight\" is BF16")));
}

TEST(ModelWeightsTest, AWeightOfI8NeedsItsScales) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto weights, WeightsOf(Llama(), ModelAxis()));
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  std::vector<StoredTensor> tensors = Stored(weights);
  ASSERT_EQ(tensors[5].name, name);
  tensors[5].dtype = Dtype::kI8;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile,
                       HasSubstr("f: the tensor \"" + name +
                                 "\" is I8, and its scales, the tensor "
                                 "\"" +
                                 name + ".scale\", F32 (12,), are missing")));
  tensors.push_back({name + ".scale", Dtype::kF32, {24}});
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       HasSubstr(".scale\" has the shape (24,), and config.json requires (12,)")));
  tensors.back() = {name + ".scale", Dtype::kBF16, {12}};
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is BF16; scales must be F32")));
  tensors.back().dtype = Dtype::kF32;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors),
              IsOkAndHolds(WeightTypes{Dtype::kBF16, {name}}));
}

}  // namespace
}  // namespace shardmesh::client
