// Programs of linear layers for arrays that exist.
#include "program/graph/layer_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program/graph/graph.h"
#include "sharding/mesh.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh TwoDevices() { return Mesh::Parse("tp=2").value(); }

ValueDescriptor F32Of(Shape shape, PartitionSpec spec = {}) {
  return {.dtype = Dtype::kF32, .shape = std::move(shape), .spec = std::move(spec)};
}

// A layer with weights as (out, in), and without biases.
LayerCall PlainLayer() {
  LayerCall call;
  call.options.weight_layout = WeightLayout::kOutIn;
  call.options.layer.use_bias = false;
  return call;
}

TensorParallelConfig Config(std::string method) {
  TensorParallelConfig config;
  config.matmul_method = std::move(method);
  return config;
}

// Returns the names of the program's ops, in order.
std::vector<std::string> OpsOf(const Program& program) {
  std::vector<std::string> names;
  for (const ProgramOp& op : program.ops) names.emplace_back(ProgramOpName(op));
  return names;
}

// Returns the types of the program's results.
std::vector<TensorType> ResultsOf(const Program& program,
                                  const std::vector<ValueDescriptor>& operands) {
  Graph graph{.program = program, .operands = {}, .outputs = {}};
  for (const ValueDescriptor& operand : operands) {
    graph.operands.push_back({StrCat(graph.operands.size()), {operand.dtype, operand.shape}});
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    graph.outputs.push_back({.name = StrCat(i), .type = {}});
  }
  const auto checked = CheckGraph(std::move(graph));
  EXPECT_THAT(checked, IsOk());
  std::vector<TensorType> types;
  if (!checked.ok()) return types;
  for (const GraphOutput& output : checked->outputs) types.push_back(output.type.value());
  return types;
}

TEST(LayerProgramTest, APlainLayerIsOneOp) {
  LayerCall call = PlainLayer();
  call.options.layer.scale = std::string("fan_in");
  call.options.layer.use_bias = true;
  call.options.activation = Activation::kRelu;
  const auto program =
      ProgramOfLayer(call, {F32Of({3, 16}), F32Of({4, 16}), F32Of({4})}, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(program->ops, ElementsAre(ProgramOp(LinearOp{.input = 0,
                                                           .weight = 1,
                                                           .bias = 2,
                                                           .weight_layout = WeightLayout::kOutIn,
                                                           .activation = Activation::kRelu,
                                                           .scale = 0.25F})));
  EXPECT_THAT(program->outputs, ElementsAre(3));
}

TEST(LayerProgramTest, EachWeightGivesAResult) {
  const std::vector<ValueDescriptor> operands = {F32Of({2, 5, 8}), F32Of({8, 8}), F32Of({2, 8})};
  LayerCall call = PlainLayer();
  const auto program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ResultsOf(*program, operands),
              ElementsAre(TensorType{Dtype::kF32, {2, 5, 8}}, TensorType{Dtype::kF32, {2, 5, 2}}));
  call.out_features = {8, 2};
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()), IsOk());
  call.out_features = {8, 3};
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch,
                       HasSubstr("out_features are 8,3; the weights have 8,2")));
  call.out_features = {10};
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("has 1 numbers for 2 weights")));
}

TEST(LayerProgramTest, AMergedWeightGivesItsParts) {
  const std::vector<ValueDescriptor> operands = {F32Of({3, 8}), F32Of({8, 8})};
  LayerCall call = PlainLayer();
  call.out_features = {4, 2, 2};
  auto program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("linear", "slice", "slice", "slice"));
  const auto& slice = std::get<SliceOp>(std::get<TensorOp>(program->ops[2]));
  EXPECT_THAT(slice.starts, ElementsAre(0, 4));
  EXPECT_THAT(slice.limits, ElementsAre(3, 6));
  EXPECT_THAT(ResultsOf(*program, operands),
              ElementsAre(TensorType{Dtype::kF32, {3, 4}}, TensorType{Dtype::kF32, {3, 2}},
                          TensorType{Dtype::kF32, {3, 2}}));
  // With two shards, the columns are 0-1 and 4-5, then 2 and 6, then 3 and 7.
  call.shards = 2;
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(std::get<ReshapeOp>(std::get<TensorOp>(program->ops[1])).shape, (Shape{3, 2, 4}));
  EXPECT_THAT(std::get<SliceOp>(std::get<TensorOp>(program->ops[5])).starts, ElementsAre(0, 0, 2));
  EXPECT_THAT(ResultsOf(*program, operands),
              ElementsAre(TensorType{Dtype::kF32, {3, 4}}, TensorType{Dtype::kF32, {3, 2}},
                          TensorType{Dtype::kF32, {3, 2}}));
  call.out_features = {4, 3};
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch,
                       HasSubstr("out_features 4,3 sum to 7; the weight has 8")));
  call.out_features = {5, 3};
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()),
              StatusIs(kInvalid, Reason::kNotDivisible, HasSubstr("2 shards do not divide")));
}

TEST(LayerProgramTest, TheConfigMovesWeightsAndResults) {
  LayerCall call = PlainLayer();
  call.options.parallel = Config("REDUCE_SCATTER");
  const PartitionSpec columns({SpecEntry::None(), SpecEntry::Axis("tp")});
  // The weight lies whole on each device.
  auto program = ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8})}, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("reshard", "linear", "reshard"));
  EXPECT_EQ(std::get<ReshardOp>(program->ops[0]).spec, columns);
  EXPECT_EQ(std::get<ReshardOp>(program->ops[2]).spec, columns);
  // The weight lies as the config has it.
  program = ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8}, columns)}, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("linear", "reshard"));
  call.options.parallel->axis_name = "tpp";
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kAxisNotInMesh));
}

TEST(LayerProgramTest, PartsOfAMergedResultLieAsTheConfigSays) {
  LayerCall call = PlainLayer();
  call.options.parallel = Config("ALL_GATHER");
  call.options.parallel->reduce_scatter_output = true;
  call.out_features = {4, 2};
  call.shards = 2;
  const auto program = ProgramOfLayer(call, {F32Of({3, 8}), F32Of({6, 8})}, TwoDevices());
  ASSERT_THAT(program, IsOk());
  for (const ValueIndex output : program->outputs) {
    const auto* const reshard = std::get_if<ReshardOp>(&program->ops[output - 2]);
    ASSERT_NE(reshard, nullptr);
    EXPECT_EQ(reshard->spec, PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")}));
  }
}

TEST(LayerProgramTest, ConvertsOperandsAndResults) {
  std::vector<ValueDescriptor> operands = {F32Of({3, 8}), F32Of({4, 8})};
  operands[0].dtype = Dtype::kF16;
  operands[1].dtype = Dtype::kF16;
  LayerCall call = PlainLayer();
  // F16 is computed in F32.
  auto program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("convert", "convert", "linear", "convert"));
  EXPECT_THAT(ResultsOf(*program, operands), ElementsAre(TensorType{Dtype::kF16, {3, 4}}));
  // BF16 and F16 promote to F32.
  operands[1].dtype = Dtype::kBF16;
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ResultsOf(*program, operands), ElementsAre(TensorType{Dtype::kF32, {3, 4}}));
  // The weight is rounded to BF16 first.
  operands = {F32Of({3, 8}), F32Of({4, 8})};
  call.param_dtype = Dtype::kBF16;
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("convert", "convert", "linear"));
  call.options.dtype = Dtype::kBF16;
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ResultsOf(*program, operands), ElementsAre(TensorType{Dtype::kBF16, {3, 4}}));
  call.options.dtype = Dtype::kI32;
  EXPECT_THAT(ProgramOfLayer(call, operands, TwoDevices()),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
}

TEST(LayerProgramTest, WeightsOfI8KeepTheirScales) {
  const ValueDescriptor weight = {.dtype = Dtype::kI8, .shape = {6, 8}, .spec = {}};
  LayerCall call = PlainLayer();
  call.options.has_scales = true;
  // Without settings, the layer is one op: neither weight nor scales are converted.
  std::vector<ValueDescriptor> operands = {F32Of({3, 8}), weight, F32Of({6})};
  auto program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(program->ops,
              ElementsAre(ProgramOp(LinearOp{
                  .input = 0, .weight = 1, .weight_layout = WeightLayout::kOutIn, .scales = 2})));
  // Input and bias are converted as ever; scales stay F32.
  call.options.layer.use_bias = true;
  call.options.dtype = Dtype::kBF16;
  call.param_dtype = Dtype::kBF16;
  operands = {F32Of({3, 8}), weight, F32Of({6}), F32Of({6})};
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("convert", "convert", "linear"));
  EXPECT_EQ(std::get<LinearOp>(program->ops[2]).weight, 1U);
  EXPECT_EQ(std::get<LinearOp>(program->ops[2]).scales, 3U);
  EXPECT_THAT(ResultsOf(*program, operands), ElementsAre(TensorType{Dtype::kBF16, {3, 6}}));

  // Two weights, one of them with the out features on an axis: its scales move with it.
  call = PlainLayer();
  call.options.has_scales = true;
  call.options.parallel = Config("ALL_GATHER");
  operands = {F32Of({3, 8}), weight, F32Of({6}), weight, F32Of({6})};
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(OpsOf(*program), ElementsAre("reshard", "reshard", "reshard", "reshard", "linear",
                                           "reshard", "linear", "reshard"));
  const PartitionSpec rows({SpecEntry::Axis("tp")});
  EXPECT_EQ(std::get<ReshardOp>(program->ops[1]).spec, rows);
  // A merged weight has merged scales.
  call.out_features = {4, 2};
  call.shards = 2;
  operands = {F32Of({3, 8}), weight, F32Of({6})};
  program = ProgramOfLayer(call, operands, TwoDevices());
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ResultsOf(*program, operands),
              ElementsAre(TensorType{Dtype::kF32, {3, 4}}, TensorType{Dtype::kF32, {3, 2}}));
}

TEST(LayerProgramTest, RefusesScalesThatDoNotFit) {
  LayerCall call = PlainLayer();
  call.options.has_scales = true;
  const ValueDescriptor weight = {.dtype = Dtype::kI8, .shape = {6, 8}, .spec = {}};
  const auto refusal = [&](std::vector<ValueDescriptor> params) {
    params.insert(params.begin(), F32Of({3, 8}));
    return ProgramOfLayer(call, params, TwoDevices()).status();
  };
  EXPECT_THAT(refusal({weight}),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("one weight with its scales; 2")));
  EXPECT_THAT(refusal({weight, F32Of({8})}),
              StatusIs(kInvalid, Reason::kShapeMismatch,
                       HasSubstr("weight 0: the scales have shape (8,); it must be (6,)")));
  ValueDescriptor integers = F32Of({6});
  integers.dtype = Dtype::kI32;
  EXPECT_THAT(refusal({weight, integers}),
              StatusIs(kInvalid, Reason::kUnsupportedDtype, HasSubstr("the scales are I32")));
  EXPECT_THAT(refusal({weight, F32Of({6}), F32Of({6, 8}), F32Of({6})}),
              StatusIs(kInvalid, Reason::kUnsupportedDtype,
                       HasSubstr("weight 1 is F32; only weights of I8 have scales")));
  call.options.layer.use_bias = true;
  EXPECT_THAT(refusal({weight, F32Of({6})}),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("its bias and its scales")));
}

TEST(LayerProgramTest, RefusesOperandsThatDoNotFit) {
  LayerCall call = PlainLayer();
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("at least one weight")));
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8}), F32Of({8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("weight 0 has shape (8,)")));
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8}), F32Of({4, 6})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("weight 1 of shape (4, 6)")));
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 6}), F32Of({4, 8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("8 features")));
  call.options.layer.use_bias = true;
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8}), F32Of({8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kShapeMismatch, HasSubstr("bias 0 has shape (8,)")));
  EXPECT_THAT(ProgramOfLayer(call, {F32Of({3, 8}), F32Of({4, 8})}, TwoDevices()),
              StatusIs(kInvalid, Reason::kBadField, HasSubstr("with its bias")));
}

}  // namespace
}  // namespace shardmesh
