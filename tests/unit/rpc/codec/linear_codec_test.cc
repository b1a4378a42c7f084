// Encodes and decodes the settings of linear layers.
#include "rpc/codec/linear_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LinearCodecTest, ASettingArrivesAsItWasSent) {
  LayerCall call;
  call.out_features = {4096, 1024, 1024};
  call.shards = 4;
  call.param_dtype = Dtype::kBF16;
  call.options.dtype = Dtype::kF16;
  call.options.weight_layout = WeightLayout::kInOut;
  call.options.activation = Activation::kSilu;
  call.options.layer.scale = std::string("fan_out");
  call.options.layer.use_bias = true;
  call.options.has_scales = true;
  call.options.layer.direction = ParallelDirection::kRow;
  call.options.parallel = TensorParallelConfig{.mesh = std::nullopt,
                                               .axis_name = "model",
                                               .matmul_method = "reduce_scatter",
                                               .reduce_output = true,
                                               .reduce_scatter_output = false};
  v1::LinearLayer message;
  ASSERT_THAT(Encode(call, &message), IsOk());
  const auto decoded = Decode(message);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_THAT(decoded->out_features, ElementsAre(4096, 1024, 1024));
  EXPECT_EQ(decoded->shards, 4);
  EXPECT_EQ(decoded->param_dtype, Dtype::kBF16);
  EXPECT_EQ(decoded->options.dtype, Dtype::kF16);
  EXPECT_EQ(decoded->options.weight_layout, WeightLayout::kInOut);
  EXPECT_EQ(decoded->options.activation, Activation::kSilu);
  EXPECT_EQ(decoded->options.layer.scale, call.options.layer.scale);
  EXPECT_TRUE(decoded->options.layer.use_bias);
  EXPECT_TRUE(decoded->options.has_scales);
  EXPECT_EQ(decoded->options.layer.direction, ParallelDirection::kRow);
  call.options.parallel->matmul_method = "REDUCE_SCATTER";
  EXPECT_EQ(decoded->options.parallel, call.options.parallel);
}

TEST(LinearCodecTest, AnUnsetLayerHasTheDefaultsOfTheContract) {
  const auto decoded = Decode(v1::LinearLayer());
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->shards, 1);
  EXPECT_EQ(std::get<double>(decoded->options.layer.scale), 1.0);
  EXPECT_EQ(decoded->options.weight_layout, WeightLayout::kOutIn);
  EXPECT_FALSE(decoded->options.layer.use_bias);
  EXPECT_FALSE(decoded->options.has_scales);
  EXPECT_FALSE(decoded->options.parallel.has_value());
  v1::LinearLayer parallel;
  parallel.mutable_parallel();
  EXPECT_EQ(Decode(parallel)->options.parallel->axis_name, "tp");
}

TEST(LinearCodecTest, RefusesMalformedSettings) {
  const auto refusal = [](auto change) {
    v1::LinearLayer layer;
    change(layer);
    return Decode(layer).status();
  };
  EXPECT_THAT(refusal([](auto& layer) { layer.add_out_features(0); }),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("each must be at least 1")));
  EXPECT_THAT(refusal([](auto& layer) {
                for (int i = 0; i < 512; ++i) layer.add_out_features(1);
              }),
              StatusIs(kInvalid, Reason::kLimitExceeded, HasSubstr("512")));
  EXPECT_THAT(refusal([](auto& layer) { layer.set_shards(-1); }),
              StatusIs(kInvalid, Reason::kBadField));
  // A weight of shape [2^40, 0] has no bytes, and its columns would exhaust memory.
  EXPECT_THAT(refusal([](auto& layer) { layer.set_shards(65536); }), IsOk());
  EXPECT_THAT(refusal([](auto& layer) { layer.set_shards(int64_t{1} << 40); }),
              StatusIs(kInvalid, Reason::kLimitExceeded, HasSubstr("at most 65536")));
  EXPECT_THAT(
      refusal([](auto& layer) { layer.set_factor(std::numeric_limits<double>::infinity()); }),
      StatusIs(kInvalid, Reason::kBadField, HasSubstr("finite")));
  EXPECT_THAT(refusal([](auto& layer) { layer.set_rule(v1::LINEAR_SCALE_UNSPECIFIED); }),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(refusal([](auto& layer) {
                layer.mutable_parallel()->set_method(static_cast<v1::TensorParallelMethod>(9));
              }),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(refusal([](auto& layer) { layer.set_dtype(static_cast<v1::Dtype>(1000)); }),
              StatusIs(kInvalid, Reason::kUnknownDtype));
  LayerCall call;
  call.options.layer.scale = std::string("fan_inn");
  v1::LinearLayer message;
  EXPECT_THAT(Encode(call, &message),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("did you mean \"fan_in\"?")));
  call.options.layer.scale = 1.0;
  call.options.parallel = TensorParallelConfig();
  call.options.parallel->matmul_method = "RING";
  EXPECT_THAT(Encode(call, &message),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("neither ALL_GATHER")));
}

}  // namespace
}  // namespace shardmesh::rpc
