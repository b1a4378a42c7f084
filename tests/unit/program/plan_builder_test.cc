// Runs plans on simulated devices (plan_simulation.h), and compares with the whole tensors;
// compares the layouts and costs of collectives with their definitions.
#include "program/plan_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program/collective_choice.h"
#include "program/move_plan.h"
#include "program/plan_check.h"
#include "program/plan_forecast.h"
#include "sharding/device_group.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Every way to lay a matrix over the axes a, b, c of `Target("a=2,b=2,c=1")`.
std::vector<PartitionSpec> MatrixSpecs() {
  return {PartitionSpec(),         Spec({{"a"}, {}}),    Spec({{}, {"a"}}),
          Spec({{"b"}, {"a"}}),    Spec({{"a"}, {"b"}}), Spec({{"a", "b"}, {}}),
          Spec({{}, {"b", "a"}}),  Spec({{"c"}, {"b"}}), Spec({{}, {}}, {"a"}),
          Spec({{"b"}, {}}, {"a"})};
}

TEST(PlanBuilderTest, MultipliesMatricesOfEveryPairOfLayouts) {
  const Dense lhs = Numbered({8, 4}, 1);
  const Dense rhs = Numbered({4, 12}, 2);
  const Dense rhs_transposed = Numbered({12, 4}, 2);
  const Dense lhs_transposed = Numbered({4, 8}, 1);
  for (const PartitionSpec& lhs_spec : MatrixSpecs()) {
    for (const PartitionSpec& rhs_spec : MatrixSpecs()) {
      for (const bool transpose_lhs : {false, true}) {
        for (const bool transpose_rhs : {false, true}) {
          SCOPED_TRACE(lhs_spec.ToString() + " x " + rhs_spec.ToString());
          const Dense& left = transpose_lhs ? lhs_transposed : lhs;
          const Dense& right = transpose_rhs ? rhs_transposed : rhs;
          const Program program{.operand_count = 2,
                                .ops = {MatmulOp{.lhs = 0,
                                                 .rhs = 1,
                                                 .transpose_lhs = transpose_lhs,
                                                 .transpose_rhs = transpose_rhs}},
                                .outputs = {2}};
          const auto plan =
              PlanProgram(program, {Value(left.shape, lhs_spec), Value(right.shape, rhs_spec)},
                          Target("a=2,b=2,c=1"));
          ASSERT_TRUE(plan.ok()) << plan.status();
          ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
          Simulation simulation(*plan);
          simulation.SetOperand(0, left);
          simulation.SetOperand(1, right);
          simulation.Run();
          simulation.ExpectOutput(plan->outputs[0], Multiply(left, right, nullptr, transpose_lhs,
                                                             transpose_rhs, 1, Activation::kNone));
        }
      }
    }
  }
}

TEST(PlanBuilderTest, AppliesBiasAndActivationOnceAndAfterTheReduction) {
  const Dense input = Numbered({2, 3, 4}, 1);
  const Dense weight = Numbered({8, 4}, 2);
  const Dense bias = Numbered({8}, 3);
  for (const PartitionSpec& weight_spec : MatrixSpecs()) {
    for (const PartitionSpec& bias_spec : {PartitionSpec(), Spec({{"b", "a"}})}) {
      SCOPED_TRACE(weight_spec.ToString());
      const Program program{
          .operand_count = 3,
          .ops = {LinearOp{
              .input = 0, .weight = 1, .bias = 2, .activation = Activation::kRelu, .scale = 2}},
          .outputs = {3}};
      const auto plan =
          PlanProgram(program,
                      {Value(input.shape, Spec({{"a"}, {}, {"b"}})),
                       Value(weight.shape, weight_spec), Value(bias.shape, bias_spec)},
                      Target("a=2,b=2,c=1"));
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
      Simulation simulation(*plan);
      simulation.SetOperand(0, input);
      simulation.SetOperand(1, weight);
      simulation.SetOperand(2, bias);
      simulation.Run();
      simulation.ExpectOutput(plan->outputs[0],
                              Multiply(input, weight, &bias, false, true, 2, Activation::kRelu));
    }
  }
}

TEST(PlanBuilderTest, ScalesTheColumnsOfI8WeightsInEveryLayout) {
  const Dense input = Numbered({2, 3, 4}, 1);
  const Dense bias = Numbered({8}, 3);
  const Dense scales = Numbered({8}, 5);
  for (const PartitionSpec& weight_spec : MatrixSpecs()) {
    for (const bool is_out_in : {false, true}) {
      for (const PartitionSpec& scales_spec : {PartitionSpec(), Spec({{"b", "a"}})}) {
        SCOPED_TRACE(weight_spec.ToString());
        const Dense weight = Numbered(is_out_in ? Shape{8, 4} : Shape{4, 8}, 2);
        const Program program{.operand_count = 4,
                              .ops = {LinearOp{.input = 0,
                                               .weight = 1,
                                               .bias = 2,
                                               .weight_layout = is_out_in ? WeightLayout::kOutIn
                                                                          : WeightLayout::kInOut,
                                               .activation = Activation::kRelu,
                                               .scale = 2,
                                               .scales = 3}},
                              .outputs = {4}};
        const auto plan =
            PlanProgram(program,
                        {Value(input.shape, Spec({{"a"}, {}, {"b"}})),
                         Value(weight.shape, weight_spec, Dtype::kI8),
                         Value(bias.shape, PartitionSpec()), Value(scales.shape, scales_spec)},
                        Target("a=2,b=2,c=1"));
        ASSERT_TRUE(plan.ok()) << plan.status();
        ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
        EXPECT_TRUE(MultipliesShortTypes(*plan));
        Simulation simulation(*plan);
        simulation.SetOperand(0, input);
        simulation.SetOperand(1, weight);
        simulation.SetOperand(2, bias);
        simulation.SetOperand(3, scales);
        simulation.Run();
        simulation.ExpectOutput(plan->outputs[0],
                                Multiply(input, ScaledColumns(weight, scales, is_out_in), &bias,
                                         false, is_out_in, 2, Activation::kRelu));
      }
    }
  }
}

TEST(PlanBuilderTest, RefusesScalesThatDoNotFit) {
  const auto refusal = [](Dtype input, Dtype weight, const ValueDescriptor& scales) {
    const Program program{.operand_count = 3,
                          .ops = {LinearOp{.input = 0, .weight = 1, .scales = 2}},
                          .outputs = {3}};
    const auto plan = PlanProgram(
        program,
        {Value({2, 4}, PartitionSpec(), input), Value({8, 4}, PartitionSpec(), weight), scales},
        Target("tp=2"));
    return std::string(plan.status().message());
  };
  const ValueDescriptor scales = Value({8}, PartitionSpec());
  EXPECT_EQ(refusal(Dtype::kBF16, Dtype::kI8, scales), "");
  EXPECT_EQ(refusal(Dtype::kF16, Dtype::kI8, scales), "");
  EXPECT_THAT(refusal(Dtype::kF32, Dtype::kF32, scales), HasSubstr("only weights of I8 have"));
  EXPECT_THAT(refusal(Dtype::kI8, Dtype::kI8, scales),
              HasSubstr("cannot multiply I8 by I8 with scales; a weight of I8 needs an input of"));
  EXPECT_THAT(refusal(Dtype::kF32, Dtype::kI8, Value({4}, PartitionSpec())),
              HasSubstr("the scales have shape (4,); it must be (8,)"));
  EXPECT_THAT(refusal(Dtype::kF32, Dtype::kI8, Value({8}, PartitionSpec(), Dtype::kBF16)),
              HasSubstr("the scales are BF16; they must be F32"));
  const Program without{
      .operand_count = 2, .ops = {LinearOp{.input = 0, .weight = 1}}, .outputs = {2}};
  const Program product{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const std::vector<ValueDescriptor> operands = {Value({4, 4}, PartitionSpec()),
                                                 Value({4, 4}, PartitionSpec(), Dtype::kI8)};
  EXPECT_THAT(std::string(PlanProgram(without, operands, Target("tp=2")).status().message()),
              HasSubstr("weights of I8 need their scales"));
  EXPECT_THAT(std::string(PlanProgram(product, operands, Target("tp=2")).status().message()),
              HasSubstr("only linear layers have weights of I8"));
}

TEST(PlanBuilderTest, FeedsColumnParallelIntoRowParallelWithoutMovingWeights) {
  const Program program{
      .operand_count = 5,
      .ops = {LinearOp{.input = 0, .weight = 1, .bias = 2, .activation = Activation::kGelu},
              LinearOp{.input = 5, .weight = 3, .bias = 4}},
      .outputs = {6}};
  const auto plan =
      PlanProgram(program,
                  {Value({128, 384}, PartitionSpec()), Value({1536, 384}, Spec({{"tp"}, {"fsdp"}})),
                   Value({1536}, Spec({{"tp"}})), Value({384, 1536}, Spec({{"fsdp"}, {"tp"}})),
                   Value({384}, PartitionSpec())},
                  Target("fsdp=2,tp=2"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> exchanges;
  for (const Instruction& instruction : plan->instructions) {
    if (std::holds_alternative<GroupCollective>(instruction.kind)) {
      exchanges.push_back(instruction.label);
    }
  }
  EXPECT_THAT(exchanges, testing::ElementsAre("op 0 (linear): all-reduce over fsdp",
                                              "op 1 (linear): all-reduce over tp"));
}

TEST(PlanBuilderTest, MovesTheOperandThatSendsLess) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4096, 64}, Spec({{"tp"}, {}})), Value({64, 8}, Spec({{}, {"tp"}}))}, Target("tp=4"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->values[plan->outputs[0]].spec, Spec({{"tp"}, {}}));
}

TEST(PlanBuilderTest, SumsSixteenBitProductsInF32) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4, 8}, Spec({{}, {"tp"}}), Dtype::kBF16),
       Value({8, 4}, Spec({{"tp"}, {}}), Dtype::kBF16)},
      Target("tp=4"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->values[2].dtype, Dtype::kF32);
  EXPECT_EQ(plan->values[plan->outputs[0]].dtype, Dtype::kBF16);
  EXPECT_FALSE(MultipliesShortTypes(*plan));

  const auto halves = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4, 8}, Spec({{}, {"tp"}}), Dtype::kF16),
       Value({8, 4}, Spec({{"tp"}, {}}), Dtype::kF16)},
      Target("tp=4"));
  ASSERT_TRUE(halves.ok()) << halves.status();
  EXPECT_EQ(halves->values[2].dtype, Dtype::kF32);
  EXPECT_EQ(halves->values[halves->outputs[0]].dtype, Dtype::kF16);
  EXPECT_TRUE(MultipliesShortTypes(*halves));
}

TEST(PlanBuilderTest, LaysOutAnyMatrixAsAnyOther) {
  const Dense tensor = Numbered({8, 4}, 1);
  for (const PartitionSpec& from : MatrixSpecs()) {
    for (const PartitionSpec& to : MatrixSpecs()) {
      SCOPED_TRACE(from.ToString() + " -> " + to.ToString());
      const auto plan = PlanProgram(
          Program{.operand_count = 1, .ops = {ReshardOp{.input = 0, .spec = to}}, .outputs = {1}},
          {Value(tensor.shape, from)}, Target("a=2,b=2,c=1"));
      if (!to.unreduced().empty()) {
        EXPECT_EQ(ReasonOf(plan.status()), Reason::kInvalidSpec);
        continue;
      }
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
      Simulation simulation(*plan);
      simulation.SetOperand(0, tensor);
      simulation.Run();
      simulation.ExpectOutput(plan->outputs[0], tensor);
    }
  }
}

// Reshards a value, and checks the elements and the costs. Returns the plan.
Plan LaidOut(const std::string& mesh, const ValueDescriptor& from, const ReshardOp& op) {
  SCOPED_TRACE(StrCat(mesh, ", ", from.spec.ToString(), " -> ", op.spec.ToString()));
  const Dense tensor = Numbered(from.shape, 1);
  const auto plan =
      PlanProgram(Program{.operand_count = 1, .ops = {op}, .outputs = {1}}, {from}, Target(mesh));
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  EXPECT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
  Simulation simulation(*plan);
  simulation.SetOperand(0, tensor);
  simulation.Run();
  simulation.ExpectOutput(plan->outputs[0], tensor);
  return *plan;
}

int64_t BytesSent(const Plan& plan) { return ForecastOf(plan, {}).link_traffic->sent_bytes; }

TEST(PlanBuilderTest, AReshardMovesDataInTheCheapestWay) {
  using ::testing::ElementsAre;
  struct Case {
    ValueDescriptor from;
    ReshardOp to;
    std::vector<std::string> labels;
    int64_t sent_elements;  // of all devices
  };
  const Shape shape = {8, 8};
  const Case cases[] = {
      {Value(shape, Spec({{"a"}, {}})), {.spec = Spec({{"a"}, {}})}, {"copy"}, 0},
      {Value(shape, Spec({{"a"}, {}})),
       {.spec = Spec({{"a"}, {"b"}})},
       {"slice to P('a', 'b')"},
       0},
      {Value(shape, Spec({{"a", "b"}, {}})),
       {.spec = Spec({{"a"}, {}})},
       {"all-gather of dimension 0 over b"},
       64},
      {Value(shape, Spec({{"a"}, {}})),
       {.spec = Spec({{}, {"a"}})},
       {"move regions (all-to-all) to P(None, 'a')"},
       64},
      // Two dimensions at once need no value between them.
      {Value(shape, Spec({{"a"}, {"b"}})),
       {.spec = PartitionSpec()},
       {"move regions (all-gather) to P(None, None)"},
       192},
      // Each device gets only what its slice lacks.
      {Value(shape, Spec({{"a"}, {}})),
       {.spec = Spec({{}, {"b"}})},
       {"move regions (all-gather) to P(None, 'b')"},
       64},
      {Value(shape, Spec({{"a"}, {}})),
       {.spec = Spec({{"a"}, {}}), .part_starts = {{3}}},
       {"move regions (general) to P('a', None)"},
       16},
      {CutValue(shape, Spec({{"a"}, {}}), {{0, 3, 8}, {}}),
       {.spec = PartitionSpec()},
       {"all-gather of dimension 0 over a"},
       128},
      {CutValue(shape, Spec({{"a"}, {}}), {{0, 3, 8}, {}}),
       {.spec = Spec({{"a", "b"}, {}}), .part_starts = {{1, 3, 7}}},
       {"slice to P(('a', 'b'), None)"},
       0},
      {Value(shape, Spec({{}, {}}, {"a"})),
       {.spec = Spec({{"a"}, {}})},
       {"reduce-scatter of dimension 0 over a"},
       128},
      {Value(shape, Spec({{}, {}}, {"a"})),
       {.spec = Spec({{"a"}, {}}), .part_starts = {{3}}},
       {"reduce-scatter of dimension 0 in parts of 3,5 over a"},
       128},
      // What the other devices along b sum up is cut off first.
      {Value(shape, Spec({{}, {}}, {"a"})),
       {.spec = Spec({{"a"}, {"b"}})},
       {"slice to P(None, 'b', unreduced={'a'})", "reduce-scatter of dimension 0 over a"},
       64},
      {Value(shape, Spec({{}, {}}, {"a"})),
       {.spec = Spec({{"b"}, {}})},
       {"slice to P('b', None, unreduced={'a'})", "all-reduce over a"},
       128},
      {Value(shape, Spec({{"b"}, {}}, {"a"})),
       {.spec = Spec({{"a", "b"}, {}})},
       {"reduce-scatter of dimension 0 over a", "move regions (permute) to P(('a', 'b'), None)"},
       64 + 32},
  };
  for (const Case& c : cases) {
    const Plan plan = LaidOut("a=2,b=2", c.from, c.to);
    EXPECT_EQ(LabelsOf(plan), c.labels);
    EXPECT_EQ(BytesSent(plan), c.sent_elements * 4) << c.labels.back();
  }
}

TEST(PlanBuilderTest, AReshardGathersMuchDataWithoutMemoryForAllOfIt) {
  const auto algorithm_of = [](int64_t rows) {
    const auto plan = PlanProgram(Program{.operand_count = 1,
                                          .ops = {ReshardOp{.input = 0, .spec = PartitionSpec()}},
                                          .outputs = {1}},
                                  {Value({rows, 1024}, Spec({{"tp"}, {}}))}, Target("tp=32"));
    return std::get<GroupCollective>(plan->instructions[0].kind).algorithm;
  };
  EXPECT_EQ(algorithm_of(1 << 10), CollectiveAlgorithm::kDoubling);
  EXPECT_EQ(algorithm_of(1 << 15), CollectiveAlgorithm::kRing);
}

TEST(PlanBuilderTest, ReshardsBetweenUnevenLayoutsSendTheBytesOfTheirPlans) {
  std::mt19937 random(3);
  for (const std::string mesh : {"a=2,b=2", "a=3,b=2", "a=2,b=2,c=2", "a=5"}) {
    for (int i = 0; i < 150; ++i) {
      const Shape shape = {1 + static_cast<int64_t>(random() % 9),
                           1 + static_cast<int64_t>(random() % 9)};
      const ValueDescriptor from = RandomValue(*Mesh::Parse(mesh), shape, random);
      const ValueDescriptor to = RandomValue(*Mesh::Parse(mesh), shape, random);
      const Plan plan = LaidOut(mesh, from, {.spec = to.spec, .part_starts = StartsOf(to)});
      ASSERT_FALSE(plan.outputs.empty());
      EXPECT_EQ(plan.values[plan.outputs[0]].cut_points, to.cut_points);
      EXPECT_EQ(BytesSent(plan), MovePlan(plan.mesh, from, to)->Totals()->need * 4);
      EXPECT_EQ(plan.instructions.size(), 1U);
    }
  }
}

TEST(PlanBuilderTest, ReshardsWithEmptyPartsGiveEachDeviceItsTile) {
  std::mt19937 random(11);
  int empty_slices = 0;
  for (const std::string mesh : {"a=2", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2", "a=5"}) {
    for (int i = 0; i < 300; ++i) {
      const Shape shape = {1 + static_cast<int64_t>(random() % 4),
                           1 + static_cast<int64_t>(random() % 4)};
      const ValueDescriptor from = RandomValueWithEmptyParts(*Mesh::Parse(mesh), shape, random);
      const ValueDescriptor to = RandomValueWithEmptyParts(*Mesh::Parse(mesh), shape, random);
      SCOPED_TRACE(StrCat(mesh, ", case ", i, ": ", ShapeToString(shape), " ", from.spec.ToString(),
                          " -> ", to.spec.ToString()));
      const Plan plan = LaidOut(mesh, from, {.spec = to.spec, .part_starts = StartsOf(to)});
      ASSERT_FALSE(plan.outputs.empty());
      ASSERT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
      EXPECT_EQ(plan.values[plan.outputs[0]].cut_points, to.cut_points);
      EXPECT_EQ(BytesSent(plan), MovePlan(plan.mesh, from, to)->Totals()->need * 4);
      Simulation simulation(plan);
      const Dense tensor = Numbered(shape, i);
      simulation.SetOperand(0, tensor);
      simulation.Run();
      simulation.ExpectOutput(plan.outputs[0], tensor);
      empty_slices += EmptySlicesOutside(plan);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(empty_slices, 30);
}

TEST(PlanBuilderTest, OperandsWithEmptyPartsMultiplyAsTheirTensorsDo) {
  std::mt19937 random(13);
  int empty_slices = 0;
  for (const std::string mesh : {"a=2", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2"}) {
    for (int i = 0; i < 300; ++i) {
      const auto extent = [&random] { return 1 + static_cast<int64_t>(random() % 4); };
      const int64_t m = extent();
      const int64_t k = extent();
      const int64_t n = extent();
      const MatmulOp op = {.lhs = 0,
                           .rhs = 1,
                           .transpose_lhs = random() % 2 == 0,
                           .transpose_rhs = random() % 2 == 0};
      const Mesh the_mesh = *Mesh::Parse(mesh);
      const std::vector<ValueDescriptor> operands = {
          RandomValueWithEmptyParts(the_mesh, op.transpose_lhs ? Shape{k, m} : Shape{m, k}, random),
          RandomValueWithEmptyParts(the_mesh, op.transpose_rhs ? Shape{n, k} : Shape{k, n},
                                    random)};
      SCOPED_TRACE(StrCat(mesh, ", case ", i, ": ", operands[0].spec.ToString(), " x ",
                          operands[1].spec.ToString()));
      const auto plan = PlanProgram(Program{.operand_count = 2, .ops = {op}, .outputs = {2}},
                                    operands, Target(mesh));
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
      Simulation simulation(*plan);
      const std::vector<Dense> tensors = {Numbered(operands[0].shape, 1),
                                          Numbered(operands[1].shape, 2)};
      simulation.SetOperand(0, tensors[0]);
      simulation.SetOperand(1, tensors[1]);
      simulation.Run();
      simulation.ExpectOutput(plan->outputs[0],
                              Multiply(tensors[0], tensors[1], nullptr, op.transpose_lhs,
                                       op.transpose_rhs, 1, Activation::kNone));
      empty_slices += EmptySlicesOutside(*plan);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(empty_slices, 30);
}

TEST(PlanBuilderTest, UnevenOperandsMultiplyAsTheirTensorsDo) {
  std::mt19937 random(5);
  int moved = 0;
  for (const std::string mesh : {"a=2,b=2", "a=3,b=2", "a=2,b=2,c=2"}) {
    for (int i = 0; i < 100; ++i) {
      const int64_t m = 1 + static_cast<int64_t>(random() % 8);
      const int64_t k = 1 + static_cast<int64_t>(random() % 8);
      const int64_t n = 1 + static_cast<int64_t>(random() % 8);
      const bool out_in = random() % 2 == 0;
      const bool has_bias = random() % 2 == 0;
      const Mesh the_mesh = *Mesh::Parse(mesh);
      const std::vector<ValueDescriptor> operands = {
          RandomValue(the_mesh, {m, 2, k}, random),
          RandomValue(the_mesh, out_in ? Shape{n, k} : Shape{k, n}, random),
          RandomValue(the_mesh, {n}, random)};
      LinearOp op = {.input = 0,
                     .weight = 1,
                     .weight_layout = out_in ? WeightLayout::kOutIn : WeightLayout::kInOut,
                     .activation = Activation::kRelu,
                     .scale = 2};
      if (has_bias) op.bias = 2;
      SCOPED_TRACE(StrCat(mesh, ", case ", i, ": ", operands[0].spec.ToString(), " x ",
                          operands[1].spec.ToString()));
      const auto plan = PlanProgram(Program{.operand_count = 3, .ops = {op}, .outputs = {3}},
                                    operands, Target(mesh));
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
      Simulation simulation(*plan);
      std::vector<Dense> tensors;
      for (ValueIndex value = 0; value < 3; ++value) {
        tensors.push_back(Numbered(operands[value].shape, static_cast<int>(value)));
        simulation.SetOperand(value, tensors.back());
      }
      simulation.Run();
      simulation.ExpectOutput(plan->outputs[0],
                              Multiply(tensors[0], tensors[1], has_bias ? &tensors[2] : nullptr,
                                       false, out_in, 2, Activation::kRelu));
      moved += BytesSent(*plan) > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 100);
}

TEST(PlanBuilderTest, OperandsWhoseCutsAgreeMultiplyWhereTheyLie) {
  // Along the contracted dimension: partial sums, and nothing else to send.
  const auto inner = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {CutValue({4, 8}, Spec({{}, {"a"}}), {{}, {0, 3, 8}}),
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 3, 8}, {}})},
      Target("a=2"));
  ASSERT_TRUE(inner.ok()) << inner.status();
  EXPECT_THAT(LabelsOf(*inner), testing::ElementsAre("multiply", "all-reduce over a"));
  // Along a free dimension: the result keeps the cut points.
  const auto outer = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 3, 8}, {}}), Value({4, 6}, PartitionSpec())},
      Target("a=2"));
  ASSERT_TRUE(outer.ok()) << outer.status();
  EXPECT_THAT(LabelsOf(*outer), testing::ElementsAre("multiply"));
  EXPECT_EQ(outer->values[2], CutValue({8, 6}, Spec({{"a"}, {}}), {{0, 3, 8}, {}}));
}

TEST(PlanBuilderTest, RefusesCutPointsThatTheTensorDoesNotAllow) {
  const auto plan_of = [](const ReshardOp& op, Dtype dtype) {
    return PlanProgram(Program{.operand_count = 1, .ops = {op}, .outputs = {1}},
                       {Value({8, 4}, Spec({{"tp"}, {}}), dtype)}, Target("tp=2"));
  };
  const auto refusal = [&](const ReshardOp& op) {
    const auto plan = plan_of(op, Dtype::kF32);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr("op 0 (reshard)"));
    return ReasonOf(plan.status());
  };
  EXPECT_EQ(refusal({.spec = Spec({{"tp"}}), .part_starts = {{}, {}, {2}}}),
            Reason::kInvalidCutPoints);
  EXPECT_EQ(refusal({.spec = Spec({{"tp"}}), .part_starts = {{2, 4}}}), Reason::kInvalidCutPoints);
  EXPECT_EQ(refusal({.spec = Spec({{"tp"}}), .part_starts = {{9}}}), Reason::kInvalidCutPoints);
  EXPECT_EQ(refusal({.spec = Spec({{"tp"}}), .part_starts = {{}, {2}}}), Reason::kInvalidCutPoints);
  // Parts of 4-bit elements may begin and end within a byte.
  EXPECT_TRUE(plan_of({.spec = Spec({{}, {"tp"}}), .part_starts = {{}, {1}}}, Dtype::kF4).ok());
}

TEST(PlanBuilderTest, CollectivesChangeShapeAndLayoutAsDocumented) {
  using Kind = CollectiveKind;
  struct Case {
    CollectiveOp op;
    PartitionSpec from;
    Shape shape;
    PartitionSpec to;
  };
  const Case cases[] = {
      {{.kind = Kind::kAllReduce, .axes = {"a"}}, Spec({{}, {}}, {"a"}), {8, 4}, Spec({{}, {}})},
      {{.kind = Kind::kAllReduce, .axes = {"a"}}, Spec({{"a"}, {}}), {4, 4}, Spec({{}, {}})},
      {{.kind = Kind::kAllReduce, .axes = {"a"}},
       Spec({{}, {}}, {"a", "b"}),
       {8, 4},
       Spec({{}, {}}, {"b"})},
      {{.kind = Kind::kAllGather, .axes = {"b"}, .dimension = 0},
       Spec({{"a", "b"}, {}}),
       {8, 4},
       Spec({{"a"}, {}})},
      {{.kind = Kind::kAllGather, .axes = {"b"}, .dimension = 1},
       Spec({{}, {"b"}}, {"a"}),
       {8, 4},
       Spec({{}, {}}, {"a"})},
      {{.kind = Kind::kReduceScatter, .axes = {"a"}, .dimension = 1},
       Spec({{"b"}, {}}, {"a"}),
       {8, 4},
       Spec({{"b"}, {"a"}})},
      {{.kind = Kind::kAllToAll, .axes = {"b"}, .dimension = 0, .split_dimension = 1},
       Spec({{"a", "b"}, {}}),
       {8, 4},
       Spec({{"a"}, {"b"}})},
      {{.kind = Kind::kAllToAll, .axes = {"a"}, .dimension = 1, .split_dimension = 0},
       Spec({{"b"}, {"a"}}),
       {8, 4},
       Spec({{"b", "a"}, {}})},
      {{.kind = Kind::kAllToAll, .axes = {"b", "a"}, .dimension = 1, .split_dimension = 0},
       Spec({{}, {"b", "a"}}),
       {8, 4},
       Spec({{"b", "a"}, {}})},
      {{.kind = Kind::kBroadcast, .axes = {"a"}, .root = 1},
       Spec({{"a"}, {"b"}}),
       {4, 4},
       Spec({{}, {"b"}})},
      {{.kind = Kind::kBroadcast, .axes = {"a", "b"}, .root = 3},
       Spec({{}, {}}, {"a"}),
       {8, 4},
       Spec({{}, {}})},
      {{.kind = Kind::kReduce, .axes = {"a"}, .root = 1},
       Spec({{"a"}, {"b"}}),
       {4, 4},
       Spec({{}, {"b"}}, {"a"})},
      {{.kind = Kind::kReduce, .axes = {"a"}, .root = 1},
       Spec({{}, {}}, {"a", "b"}),
       {8, 4},
       Spec({{}, {}}, {"a", "b"})},
      {{.kind = Kind::kGather, .axes = {"b"}, .dimension = 0, .root = 1},
       Spec({{"a", "b"}, {}}),
       {8, 4},
       Spec({{"a"}, {}}, {"b"})},
      {{.kind = Kind::kScatter, .axes = {"b"}, .dimension = 1, .root = 1},
       Spec({{"a"}, {}}, {"b"}),
       {8, 4},
       Spec({{"a"}, {"b"}})},
      {{.kind = Kind::kScatter, .axes = {"a"}, .dimension = 0, .root = 1},
       Spec({{"a"}, {}}),
       {4, 4},
       Spec({{"a"}, {}})},
      {{.kind = Kind::kPermute, .axes = {"a"}, .permutation = {{0, 1}}},
       Spec({{"a"}, {}}, {"b"}),
       {8, 4},
       Spec({{"a"}, {}}, {"b"})},
      {{.kind = Kind::kBarrier, .axes = {"a", "b"}},
       Spec({{"b"}, {}}, {"a"}),
       {8, 4},
       Spec({{"b"}, {}}, {"a"})},
  };
  for (const Case& c : cases) {
    const auto plan = PlanProgram(Program{.operand_count = 1, .ops = {c.op}, .outputs = {1}},
                                  {Value({8, 4}, c.from)}, Target("a=2,b=2"));
    ASSERT_TRUE(plan.ok()) << plan.status();
    SCOPED_TRACE(plan->instructions[0].label);
    EXPECT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
    EXPECT_EQ(plan->values[1].shape, c.shape);
    EXPECT_EQ(plan->values[1].spec, c.to) << plan->values[1].spec.ToString();
    const auto& collective = std::get<GroupCollective>(plan->instructions[0].kind);
    EXPECT_NE(collective.algorithm, CollectiveAlgorithm::kAuto);
    EXPECT_TRUE(CheckAlgorithm(c.op.kind, collective.algorithm, c.op.order).ok());
  }
}

TEST(PlanBuilderTest, EveryKindAndAlgorithmIsPlannedForEveryTypeThatItCanDo) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      for (const Dtype dtype : AllDtypes()) {
        CollectiveOp op = PossibleOp(kind);
        op.algorithm = algorithm;
        op.order = CollectiveOrder::kFastest;
        for (const Shape& shape : {Shape{16, 16}, Shape{0, 16}}) {
          const auto plan = PlanOf(op, Value(shape, Spec({{"tp"}, {}}), dtype));
          const bool has_arithmetic = dtype == Dtype::kF16 || dtype == Dtype::kBF16 ||
                                      dtype == Dtype::kF32 || dtype == Dtype::kF64 ||
                                      dtype == Dtype::kI8 || dtype == Dtype::kU8 ||
                                      dtype == Dtype::kI32 || dtype == Dtype::kI64;
          SCOPED_TRACE(StrCat(CollectiveKindName(kind), " of ", DtypeName(dtype)));
          if (IsReduction(kind) && !has_arithmetic) {
            EXPECT_EQ(ReasonOf(plan.status()), Reason::kUnsupportedDtype);
            continue;
          }
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
          EXPECT_EQ(std::get<GroupCollective>(plan->instructions[0].kind).algorithm, algorithm);
        }
      }
    }
  }
}

TEST(PlanBuilderTest, GroupsOfOneDeviceExchangeNothing) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    CollectiveOp op = PossibleOp(kind);
    op.axes = {"one"};
    const ValueDescriptor operand = Value({4, 4}, Spec({{"tp", "one"}, {"dp"}}));
    const auto plan = PlanOf(op, {.shape = {4, 6}, .spec = operand.spec});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(std::holds_alternative<LocalSlice>(plan->instructions[0].kind));
    EXPECT_EQ(plan->cost.sent_bytes, 0);
    EXPECT_EQ(plan->values[1].shape, (Shape{4, 6}));
  }
}

TEST(PlanBuilderTest, UnequalTilesComeOfCountsAndGoWithTheirJoining) {
  using Kind = CollectiveKind;
  struct Case {
    CollectiveOp op;
    ValueDescriptor from;
    ValueDescriptor to;
  };
  const Case cases[] = {
      {{.kind = Kind::kScatter, .axes = {"a"}, .dimension = 0, .counts = {3, 5}},
       Value({8, 4}, Spec({{}, {}})),
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 3, 8}, {}})},
      {{.kind = Kind::kScatter, .axes = {"a"}, .dimension = 0, .counts = {4, 4}},
       Value({8, 4}, Spec({{}, {}})),
       Value({8, 4}, Spec({{"a"}, {}}))},
      // Each of the two parts along b is split.
      {{.kind = Kind::kReduceScatter, .axes = {"a"}, .dimension = 0, .counts = {1, 3}},
       Value({8, 4}, Spec({{"b"}, {}}, {"a"})),
       CutValue({8, 4}, Spec({{"b", "a"}, {}}), {{0, 1, 4, 5, 8}, {}})},
      // Tiles along a are taken as they are: one of four rows, split into 1 and 3.
      {{.kind = Kind::kReduceScatter, .axes = {"a"}, .dimension = 0, .counts = {1, 3}},
       Value({8, 4}, Spec({{"a"}, {}})),
       CutValue({4, 4}, Spec({{"a"}, {}}), {{0, 1, 4}, {}})},
      {{.kind = Kind::kAllGather, .axes = {"a"}, .dimension = 0},
       CutValue({8, 4}, Spec({{"b", "a"}, {}}), {{0, 1, 4, 5, 8}, {}}),
       Value({8, 4}, Spec({{"b"}, {}}))},
      {{.kind = Kind::kAllGather, .axes = {"a"}, .dimension = 0},
       CutValue({8, 4}, Spec({{"b", "a"}, {}}), {{0, 1, 3, 5, 8}, {}}),
       CutValue({8, 4}, Spec({{"b"}, {}}), {{0, 3, 8}, {}})},
      {{.kind = Kind::kGather, .axes = {"a"}, .dimension = 0, .root = 1},
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 7, 8}, {}}),
       Value({8, 4}, Spec({{}, {}}, {"a"}))},
      {{.kind = Kind::kAllToAll,
        .axes = {"a"},
        .dimension = 0,
        .split_dimension = 1,
        .counts = {1, 3}},
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 7, 8}, {}}),
       CutValue({8, 4}, Spec({{}, {"a"}}), {{}, {0, 1, 4}})},
      {{.kind = Kind::kAllReduce, .axes = {"a"}},
       CutValue({8, 4}, Spec({{"b"}, {}}, {"a"}), {{0, 7, 8}, {}}),
       CutValue({8, 4}, Spec({{"b"}, {}}), {{0, 7, 8}, {}})},
      {{.kind = Kind::kPermute, .axes = {"a"}, .permutation = {{0, 1}}},
       CutValue({8, 4}, Spec({{"b"}, {"a"}}), {{0, 7, 8}, {}}),
       CutValue({8, 4}, Spec({{"b"}, {"a"}}), {{0, 7, 8}, {}})},
      {{.kind = Kind::kBarrier, .axes = {"a"}},
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 7, 8}, {}}),
       CutValue({8, 4}, Spec({{"a"}, {}}), {{0, 7, 8}, {}})},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(CollectiveKindName(c.op.kind), " of ", c.from.spec.ToString()));
    auto plan = PlanOf(c.op, c.from, "a=2,b=2");
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->values.back(), c.to) << plan->values.back().spec.ToString();
    EXPECT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
    // Another cut is another tile on some device.
    ValueDescriptor& result = plan->values.back();
    result.cut_points.assign(2, {});
    result.cut_points[1] =
        result.spec.entry(1).axes().empty() ? CutPoints{0, 4} : CutPoints{0, 2, 4};
    EXPECT_EQ(CheckPlan(*plan).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PlanBuilderTest, MeansOfPartialSumsAreThoseOfTheDevices) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    const auto plan = PlanOf({.axes = {"tp"}, .reduction = reduction},
                             Value({4, 4}, Spec({{}, {}}, {"tp", "dp"})));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->values[1].spec, Spec({{}, {}}, {"dp"}));
  }
}

TEST(PlanBuilderTest, PartsWithoutArithmeticAreNotLaidOutAnew) {
  const Program program = {
      .operand_count = 1,
      .ops = {CollectiveOp{.kind = CollectiveKind::kGather, .axes = {"tp"}, .root = 1},
              ReshardOp{.input = 1, .spec = PartitionSpec()}},
      .outputs = {2}};
  const auto plan_of = [&](Dtype dtype) {
    return PlanProgram(program, {Value({4, 4}, Spec({{"tp"}, {}}), dtype)}, Target("tp=2"));
  };
  EXPECT_TRUE(plan_of(Dtype::kU8).ok());
  EXPECT_EQ(ReasonOf(plan_of(Dtype::kBool).status()), Reason::kUnsupportedDtype);
  EXPECT_THAT(std::string(plan_of(Dtype::kBool).status().message()),
              HasSubstr("broadcast them from their root"));
}

TEST(PlanBuilderTest, CostsAreThoseOfTheAlgorithm) {
  struct Case {
    CollectiveOp op;
    int64_t sent_bytes;  // for tiles of 120 x 6 elements of 4 bytes, of 3 ranks
  };
  using Kind = CollectiveKind;
  using Algorithm = CollectiveAlgorithm;
  constexpr int64_t kTile = 120 * 6 * 4;
  const Case cases[] = {
      {{.kind = Kind::kAllReduce, .algorithm = Algorithm::kPairwise}, 2 * kTile * 2 / 3},
      {{.kind = Kind::kAllReduce, .algorithm = Algorithm::kDirect}, kTile * 2},
      {{.kind = Kind::kReduceScatter, .algorithm = Algorithm::kPairwise}, kTile * 2 / 3},
      {{.kind = Kind::kAllGather, .algorithm = Algorithm::kRing}, kTile * 2},
      {{.kind = Kind::kAllToAll, .dimension = 0, .split_dimension = 1}, kTile * 2 / 3},
      {{.kind = Kind::kBroadcast, .algorithm = Algorithm::kChain}, kTile},
      {{.kind = Kind::kPermute, .permutation = {{0, 2}}}, kTile},
      {{.kind = Kind::kBarrier, .algorithm = Algorithm::kPairwise}, 2},
  };
  for (const Case& c : cases) {
    CollectiveOp op = c.op;
    op.axes = {"x"};
    const auto plan = PlanOf(op, Value({360, 12}, Spec({{"x"}, {"y"}})), "x=3,y=2");
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->cost.sent_bytes, c.sent_bytes) << plan->instructions[0].label;
  }
}

TEST(PlanBuilderTest, NamesTheOpAndTheShapesThatDoNotMultiply) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4, 8}, PartitionSpec()), Value({4, 8}, PartitionSpec())}, Target("tp=2"));
  EXPECT_EQ(ReasonOf(plan.status()), Reason::kShapeMismatch);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("op 0 (matmul)"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("(4, 8) and (4, 8) do not multiply"));
}

TEST(PlanBuilderTest, SaysWhichOperandToTransposeSoThatShapesMultiply) {
  const auto refusal = [](const Shape& lhs, bool transpose_lhs, const Shape& rhs,
                          bool transpose_rhs) {
    const auto plan =
        PlanProgram(Program{.operand_count = 2,
                            .ops = {MatmulOp{.lhs = 0,
                                             .rhs = 1,
                                             .transpose_lhs = transpose_lhs,
                                             .transpose_rhs = transpose_rhs}},
                            .outputs = {2}},
                    {Value(lhs, PartitionSpec()), Value(rhs, PartitionSpec())}, Target("tp=2"));
    EXPECT_EQ(ReasonOf(plan.status()), Reason::kShapeMismatch);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(refusal({4, 8}, false, {6, 8}, false),
              HasSubstr("8 is contracted with 6; they do with the right operand transposed "
                        "(`--transpose-b`)"));
  EXPECT_THAT(refusal({4, 8}, false, {8, 6}, true),
              HasSubstr("8 is contracted with 6; they do without `--transpose-b`"));
  EXPECT_THAT(refusal({8, 4}, false, {8, 6}, false),
              HasSubstr("4 is contracted with 8; they do with the left operand transposed "
                        "(`--transpose-a`)"));
  EXPECT_THAT(refusal({4, 8}, true, {8, 6}, false),
              HasSubstr("4 is contracted with 8; they do without `--transpose-a`"));
  EXPECT_THAT(refusal({4, 8}, false, {5, 6}, false), Not(HasSubstr("they do")));
}

TEST(PlanBuilderTest, NamesTheLayoutInWhichAWeightFits) {
  const auto refusal = [](WeightLayout layout, const Shape& weight) {
    const auto plan = PlanProgram(
        Program{.operand_count = 2,
                .ops = {LinearOp{.input = 0, .weight = 1, .weight_layout = layout}},
                .outputs = {2}},
        {Value({2, 4}, PartitionSpec()), Value(weight, PartitionSpec())}, Target("tp=2"));
    EXPECT_EQ(ReasonOf(plan.status()), Reason::kShapeMismatch);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(refusal(WeightLayout::kOutIn, {4, 8}), HasSubstr("(`--layout in-out`) reads it"));
  EXPECT_THAT(refusal(WeightLayout::kInOut, {8, 4}), HasSubstr("(`--layout out-in`) reads it"));
  EXPECT_THAT(refusal(WeightLayout::kOutIn, {6, 8}), Not(HasSubstr("--layout")));
}

}  // namespace
}  // namespace shardmesh
