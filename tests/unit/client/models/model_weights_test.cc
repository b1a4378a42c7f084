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
      {prefix + "self_attn.q_proj.weight", {24, 12}, By(0)},
      {prefix + "self_attn.k_proj.weight", {8, 12}, By(0)},
      {prefix + "self_attn.v_proj.weight", {8, 12}, By(0)},
      {prefix + "self_attn.o_proj.weight", {12, 24}, By(1)},
      {prefix + "mlp.gate_proj.weight", {20, 12}, By(0)},
      {prefix + "mlp.up_proj.weight", {20, 12}, By(0)},
      {prefix + "mlp.down_proj.weight", {12, 20}, By(1)},
      {"lm_head.weight", {31, 12}, PartitionSpec()},
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
      {prefix + "attention.self.key.weight", {12, 12}, By(0)},
      {prefix + "attention.self.key.bias", {12}, By(0)},
      {prefix + "attention.output.dense.weight", {12, 12}, By(1)},
      {prefix + "attention.output.dense.bias", {12}, PartitionSpec()},
      {prefix + "intermediate.dense.bias", {20}, By(0)},
      {prefix + "output.dense.weight", {12, 20}, By(1)},
  };
  for (const ModelWeight& expected : kExpected) {
    EXPECT_EQ(Find(weights, expected.name), expected) << expected.name;
  }
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
  EXPECT_THAT(CheckModelWeights("f", weights, Stored(weights)), IsOkAndHolds(Dtype::kBF16));

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
  tensors[5].dtype = Dtype::kI8;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is I8; weights are F32, BF16 or F16")));
  tensors[5].dtype = Dtype::kF32;
  EXPECT_THAT(CheckModelWeights("f", weights, tensors).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype,
                       HasSubstr("is F32, and \"model.embed_tokens.weight\" is BF16")));
}

}  // namespace
}  // namespace shardmesh::client
