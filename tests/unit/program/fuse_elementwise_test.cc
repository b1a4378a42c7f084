// Plans in which functions of elements are one instruction.
#include "program/fuse/fuse_elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program/kernel_time.h"
#include "program/memory_plan.h"
#include "program/plan_check.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorOp Map(MapFunction function, std::vector<ValueIndex> inputs) {
  return MapOp{.function = function, .inputs = std::move(inputs)};
}
TensorOp Sum(ValueIndex a, ValueIndex b) { return Map(MapFunction::kAdd, {a, b}); }
TensorOp Times(ValueIndex a, ValueIndex b) { return Map(MapFunction::kMultiply, {a, b}); }
TensorOp Minus(ValueIndex input) { return Map(MapFunction::kNegate, {input}); }
TensorOp Converted(ValueIndex input, Dtype dtype) {
  return ConvertOp{.input = input, .dtype = dtype};
}
TensorOp Transposed(ValueIndex input) { return TransposeOp{.input = input, .permutation = {1, 0}}; }

// A program and its operands on the mesh a=2,b=2.
struct ProgramCase {
  std::vector<ValueDescriptor> operands;
  std::vector<ProgramOp> ops;
  std::vector<ValueIndex> outputs;
  std::vector<StateUpdate> updates = {};
};

Plan PlanOfCase(const ProgramCase& each, bool may_fuse_ops) {
  PlanTarget target = Target("a=2,b=2");
  target.kernels.may_fuse_ops = may_fuse_ops;
  const auto plan =
      PlanProgram(Program{.operand_count = static_cast<uint32_t>(each.operands.size()),
                          .ops = each.ops,
                          .outputs = each.outputs,
                          .updates = each.updates},
                  each.operands, target);
  EXPECT_THAT(plan, IsOk());
  return plan.ok() ? *plan : Plan();
}

// Returns the elements of all outputs, and of the values of updates.
std::vector<std::vector<double>> ResultsOf(const Plan& plan) {
  Simulation simulation(plan);
  for (ValueIndex i = 0; i < plan.operand_count; ++i) {
    Dense operand = Numbered(plan.values[i].shape, static_cast<int>(i));
    if (plan.values[i].dtype == Dtype::kI32) {
      for (double& element : operand.elements) element = std::abs(element);  // positions
    }
    simulation.SetOperand(i, operand);
  }
  simulation.Run();
  std::vector<ValueIndex> results = plan.outputs;
  for (const StateUpdate& update : plan.updates) results.push_back(update.value);
  std::vector<std::vector<double>> elements;
  for (const ValueIndex result : results) {
    const std::optional<Dense> whole = simulation.Assembled(result);
    EXPECT_TRUE(whole.has_value());
    if (whole.has_value()) elements.push_back(whole->elements);
  }
  return elements;
}

// Returns the fused plan of a program, after it was compared with the plain one.
Plan FusedPlan(const ProgramCase& each) {
  const Plan plain = PlanOfCase(each, /*may_fuse_ops=*/false);
  EXPECT_FALSE(HasFusedOps(plain));
  Plan fused = PlanOfCase(each, /*may_fuse_ops=*/true);
  EXPECT_THAT(CheckPlan(fused), IsOk());
  EXPECT_EQ(ResultsOf(fused), ResultsOf(plain));
  EXPECT_EQ(fused.cost.flops, plain.cost.flops);
  EXPECT_EQ(fused.cost.sent_bytes, plain.cost.sent_bytes);
  EXPECT_LE(LeastBytesOf(fused), LeastBytesOf(plain) + kMostMoreBytes);
  return fused;
}

const FusedCompute& FusedAt(const Plan& plan, size_t instruction) {
  return std::get<FusedCompute>(plan.instructions[instruction].kind);
}

ValueDescriptor Rows(Dtype dtype = Dtype::kF32) {
  return Value({4, 6}, Spec({{"a"}, {"b"}}), dtype);
}

TEST(FuseElementwiseTest, AChainIsOneInstruction) {
  const Plan plan = FusedPlan({{Rows(), Rows(), Rows()}, {Times(0, 1), Sum(3, 2), Minus(4)}, {5}});
  ASSERT_EQ(plan.instructions.size(), 1U);
  EXPECT_EQ(plan.values.size(), 4U);
  EXPECT_EQ(plan.outputs, std::vector<ValueIndex>{3});
  EXPECT_EQ(plan.instructions[0].label, "op 2 (multiply+add+negate): compute");
  const FusedCompute& fused = FusedAt(plan, 0);
  EXPECT_THAT(fused.inputs, ElementsAre(0, 1, 2));
  ASSERT_EQ(fused.ops.size(), 3U);
  EXPECT_EQ(fused.ops[0], (FusedOp{.op = Times(0, 1), .label = "op 0 (multiply)"}));
  EXPECT_EQ(fused.ops[1], (FusedOp{.op = Sum(3, 2), .label = "op 1 (add)"}));
  EXPECT_EQ(fused.ops[2], (FusedOp{.op = Minus(4), .label = "op 2 (negate)"}));
  EXPECT_EQ(InputsOf(plan.instructions[0]), fused.inputs);
}

TEST(FuseElementwiseTest, ThePlainFormIsThePlanWithoutFusion) {
  const ProgramCase each = {
      {Rows(), Value({6}, Spec({{"b"}}))},
      {Sum(0, 1), Converted(2, Dtype::kBF16), Minus(3), Converted(4, Dtype::kF32), Times(5, 1)},
      {6}};
  const Plan plain = PlanOfCase(each, false);
  const Plan fused = FusedPlan(each);
  ASSERT_EQ(fused.instructions.size(), 1U);
  const auto form = PlainFormOf(fused, FusedAt(fused, 0), 2);
  ASSERT_THAT(form, IsOk());
  EXPECT_EQ(form->values, plain.values) << "with the types of the values between";
  EXPECT_EQ(form->outputs, plain.outputs);
  ASSERT_EQ(form->instructions.size(), plain.instructions.size());
  for (size_t i = 0; i < plain.instructions.size(); ++i) {
    EXPECT_EQ(form->instructions[i].kind, plain.instructions[i].kind);
  }
}

TEST(FuseElementwiseTest, AValueThatOnlyTheGroupReadsIsFusedHoweverOftenItIsRead) {
  const Plan plan = FusedPlan(
      {{Rows(), Rows()}, {Sum(0, 1), Minus(2), Times(2, 0), Times(3, 4), Times(5, 5)}, {6}});
  ASSERT_EQ(plan.instructions.size(), 1U);
  EXPECT_EQ(FusedAt(plan, 0).ops.size(), 5U);
  EXPECT_THAT(FusedAt(plan, 0).inputs, ElementsAre(0, 1));
}

TEST(FuseElementwiseTest, OutputsInTheMiddleAreValuesOfThePlan) {
  const ProgramCase each = {{Rows(), Rows()}, {Sum(0, 1), Minus(2), Minus(3), Sum(4, 2)}, {3, 5}};
  const Plan plan = FusedPlan(each);
  // `add` has a reader beside the group of the first output, which is one op.
  ASSERT_EQ(plan.instructions.size(), 3U);
  EXPECT_THAT(plan.outputs, ElementsAre(3, 4));
  EXPECT_EQ(plan.instructions[2].label, "op 3 (negate+add): compute");
}

TEST(FuseElementwiseTest, AnOpWhoseResultIsBroadcastStaysAlone) {
  const Plan plan =
      FusedPlan({{Rows(), Value({6}, Spec({{"b"}}))}, {Minus(1), Minus(0), Sum(3, 2)}, {4}});
  ASSERT_EQ(plan.instructions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<LocalCompute>(plan.instructions[0].kind));
  EXPECT_THAT(FusedAt(plan, 1).inputs, ElementsAre(0, 2));
}

TEST(FuseElementwiseTest, ScalarsAndConstantsAreInputs) {
  const ConstantOp constant = {{.dtype = Dtype::kF32, .shape = {}, .bytes = std::string(4, '\0')}};
  PlanTarget target = Target("a=2,b=2");
  target.kernels.may_fuse_ops = true;
  const auto plan =
      PlanProgram(Program{.operand_count = 1,
                          .ops = {TensorOp(constant), Times(0, 1), TensorOp(constant), Sum(2, 3)},
                          .outputs = {4}},
                  {Rows()}, target);
  ASSERT_THAT(plan, IsOk());
  ASSERT_EQ(plan->instructions.size(), 3U) << "two constants and one fused instruction";
  EXPECT_EQ(plan->instructions[2].label, "op 3 (multiply+add): compute");
  EXPECT_THAT(CheckPlan(*plan), IsOk());
}

TEST(FuseElementwiseTest, OpsWithAnExchangeBetweenAreNotFused) {
  const Plan plan = FusedPlan(
      {{Rows()},
       {Minus(0),
        CollectiveOp{.input = 1, .kind = CollectiveKind::kAllGather, .axes = {"a"}, .dimension = 0},
        Minus(2)},
       {3}});
  EXPECT_FALSE(HasFusedOps(plan));
}

TEST(FuseElementwiseTest, OtherOpsEndAGroup) {
  const Plan plan = FusedPlan({{Value({6, 6}, PartitionSpec())},
                               {Minus(0), Minus(1), Transposed(2), Minus(3), Sum(4, 3)},
                               {5}});
  ASSERT_EQ(plan.instructions.size(), 3U);
  EXPECT_EQ(plan.instructions[0].label, "op 1 (negate+negate): compute");
  EXPECT_EQ(plan.instructions[2].label, "op 4 (negate+add): compute");
}

TEST(FuseElementwiseTest, LongChainsAreSeveralInstructions) {
  ProgramCase each = {{Rows()}, {}, {40}};
  for (ValueIndex i = 0; i < 40; ++i) each.ops.emplace_back(Minus(i));
  const Plan plan = FusedPlan(each);
  ASSERT_EQ(plan.instructions.size(), 2U);
  EXPECT_EQ(FusedAt(plan, 0).ops.size(), 40 - kMaxFusedOps);
  EXPECT_EQ(FusedAt(plan, 1).ops.size(), kMaxFusedOps);
}

// Operands: 0: a cache, 1: new rows, 2: their positions.
std::vector<ValueDescriptor> CacheOperands() {
  return {Value({4, 12, 8}, Spec({{"a"}, {}, {"b"}})), Value({4, 2, 8}, PartitionSpec()),
          Value({2}, PartitionSpec(), Dtype::kI32)};
}

TEST(FuseElementwiseTest, StateIsReadBeforeItsRowsAreReplaced) {
  const TensorOp rows = UpdateRowsOp{.input = 0, .update = 1, .positions = 2};
  const ProgramCase each = {
      CacheOperands(), {Minus(0), rows, Sum(3, 4)}, {5}, {{.operand = 0, .value = 4}}};
  const Plan plan = FusedPlan(each);
  EXPECT_FALSE(HasFusedOps(plan)) << "the sum reads the new rows, the negation the old ones";
  EXPECT_EQ(StatePlaces(plan), StatePlaces(PlanOfCase(each, false)));
  EXPECT_TRUE(StatePlaces(plan)[plan.updates[0].value].has_value());
}

TEST(FuseElementwiseTest, TheValueOfAnUpdateCanBeTheResultOfAGroup) {
  const Plan plan = FusedPlan(
      {CacheOperands(), {Sum(0, 0), Minus(3), Minus(4)}, {}, {{.operand = 0, .value = 5}}});
  ASSERT_EQ(plan.instructions.size(), 1U);
  EXPECT_EQ(plan.updates[0].value, 3U);
  EXPECT_EQ(FusedAt(plan, 0).ops.size(), 3U);
}

TEST(FuseElementwiseTest, AValueOfAnUpdateInTheMiddleIsKept) {
  const Plan plan = FusedPlan(
      {CacheOperands(), {Sum(0, 0), Minus(3), Minus(4)}, {5}, {{.operand = 0, .value = 4}}});
  ASSERT_EQ(plan.instructions.size(), 2U);
  EXPECT_EQ(plan.instructions[0].label, "op 1 (add+negate): compute");
  EXPECT_EQ(plan.updates[0].value, plan.instructions[0].output);
}

TEST(FuseElementwiseTest, ValuesBetweenTakeNoMemory) {
  const int64_t size = 8 * 8 * 4;
  const ValueDescriptor operand = Value({8, 8}, PartitionSpec());
  const ProgramCase each = {{operand, operand}, {Sum(0, 1), Times(2, 2), Sum(3, 0), Minus(4)}, {5}};
  EXPECT_EQ(PlanOfCase(each, false).cost.memory_bytes, 3 * size);
  const Plan plan = FusedPlan(each);
  EXPECT_EQ(plan.cost.memory_bytes, size) << "only the output";
  EXPECT_EQ(MemoryPlanOf(plan).block_bytes, 0);
}

TEST(FuseElementwiseTest, AGroupIsMadeOverAnInputThatEnds) {
  const ValueDescriptor operand = Value({8, 8}, PartitionSpec());
  const Plan plan =
      FusedPlan({{operand, operand}, {Transposed(0), Minus(2), Sum(3, 1), Transposed(4)}, {5}});
  ASSERT_EQ(plan.instructions.size(), 3U);
  const MemoryPlan memory = MemoryPlanOf(plan);
  ASSERT_TRUE(memory.places[3].has_value());
  EXPECT_EQ(memory.places[3]->over, 2U);
}

TEST(FuseElementwiseTest, InputsAreNotKeptLongForAnOp) {
  // Values of up to kMaxConstantBytes do not count.
  const ValueDescriptor operand = Value({36, 36}, PartitionSpec());
  // Something else runs between the two functions of elements.
  const auto ops = [](const TensorOp& first) {
    return std::vector<ProgramOp>{Transposed(0), Transposed(1), first, Transposed(0), Times(4, 5)};
  };
  const Plan two = FusedPlan({{operand, operand}, ops(Sum(2, 3)), {6}});
  EXPECT_FALSE(HasFusedOps(two)) << "two inputs would stay in place of one result";
  const Plan one = FusedPlan({{operand, operand}, ops(Minus(2)), {3, 6}});
  EXPECT_TRUE(HasFusedOps(one));
}

TEST(FuseElementwiseTest, NothingIsFusedThatNeedsMuchMoreMemory) {
  const auto plan_of = [](int64_t extent) {
    const ValueDescriptor operand = Value({extent, extent}, PartitionSpec());
    return PlanOfCase({{operand, operand},
                       {Transposed(0), Transposed(1), Sum(2, 3), Converted(4, Dtype::kBF16)},
                       {5}},
                      /*may_fuse_ops=*/true);
  };
  // The output cannot be made over the inputs, which are in use until the output is made.
  EXPECT_TRUE(HasFusedOps(plan_of(16)));
  EXPECT_FALSE(HasFusedOps(plan_of(256)));
}

TEST(FuseElementwiseTest, AFusedInstructionReadsAndWritesOnce) {
  const KernelRates rates = {
      .flops_per_second = 1e18, .seconds_per_byte = 1, .seconds_per_product = 0};
  const ProgramCase each = {{Rows(), Value({6}, Spec({{"b"}}))},
                            {Sum(0, 1), Times(2, 0), Converted(3, Dtype::kBF16)},
                            {4}};
  const Plan plan = FusedPlan(each);
  ASSERT_EQ(plan.instructions.size(), 1U);
  // The tiles are [2, 3] and [3].
  EXPECT_DOUBLE_EQ(KernelSeconds(plan, plan.instructions[0], rates), 6 * 4 + 3 * 4 + 6 * 2);
  KernelRates fuses = rates;
  fuses.may_fuse_ops = true;
  EXPECT_FALSE(AreAlike(rates, fuses));
}

TEST(FuseElementwiseTest, ChecksFusedInstructions) {
  const Plan plan = FusedPlan({{Rows(), Rows(), Value({5}, PartitionSpec())},
                               {Times(0, 1), Minus(3), Converted(4, Dtype::kBF16)},
                               {5}});
  ASSERT_TRUE(HasFusedOps(plan));
  struct Case {
    std::string name;
    std::function<void(FusedCompute*)> tamper;
    Reason reason;
  };
  const Case cases[] = {
      {"too few ops", [](auto* fused) { fused->ops.resize(1); }, Reason::kBadField},
      {"too many ops",
       [](auto* fused) { fused->ops.resize(kMaxFusedOps + 1, FusedOp(fused->ops[1])); },
       Reason::kBadField},
      {"another op", [](auto* fused) { fused->ops[1].op = Transposed(2); }, Reason::kBadField},
      {"an input twice",
       [](auto* fused) {
         fused->inputs = {0, 0};
       },
       Reason::kBadField},
      {"a result before it is made", [](auto* fused) { fused->ops[0].op = Times(0, 3); },
       Reason::kBadField},
      {"its own result", [](auto* fused) { fused->ops[1].op = Minus(3); }, Reason::kBadField},
      {"a result that nothing reads", [](auto* fused) { fused->ops[1].op = Minus(0); },
       Reason::kBadField},
      {"an input that nothing reads", [](auto* fused) { fused->ops[0].op = Times(0, 0); },
       Reason::kBadField},
      {"a value that does not exist",
       [](auto* fused) {
         fused->inputs = {0, 9};
       },
       Reason::kBadField},
      {"a shape that does not fit",
       [](auto* fused) {
         fused->inputs = {0, 2};
       },
       Reason::kShapeMismatch},
      {"another type of the result",
       [](auto* fused) { fused->ops[2].op = Converted(3, Dtype::kF16); }, Reason::kShapeMismatch},
      {"a function of two inputs with one",
       [](auto* fused) { fused->ops[1].op = Map(MapFunction::kAdd, {2}); }, Reason::kBadField},
      {"types that differ",
       [](auto* fused) {
         fused->ops[1].op = Converted(2, Dtype::kBF16);
         fused->ops[2].op = Sum(3, 0);
       },
       Reason::kUnsupportedDtype},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Plan wrong = plan;
    each.tamper(&std::get<FusedCompute>(wrong.instructions[0].kind));
    EXPECT_THAT(CheckPlan(wrong), StatusIs(kInvalid, each.reason));
  }
  Plan elsewhere = plan;
  elsewhere.values.back().spec = Spec({{"b"}, {"a"}});
  EXPECT_THAT(CheckPlan(elsewhere), StatusIs(kInvalid, Reason::kShapeMismatch));
}

TEST(FuseElementwiseTest, ErrorsNameTheOp) {
  const Plan plan = FusedPlan({{Rows(), Rows()}, {Times(0, 1), Minus(2), Minus(3)}, {4}});
  FusedCompute fused = FusedAt(plan, 0);
  fused.ops[0].op = Map(MapFunction::kAdd, {0, 1, 1});
  EXPECT_THAT(std::string(PlainFormOf(plan, fused, 2).status().message()),
              HasSubstr("op 0 (multiply): "));
}

// Adds random functions of elements to a case. Values may be read often, or not at all.
void AddRandomOps(std::mt19937& random, ProgramCase* to) {
  std::vector<ValueDescriptor> values = to->operands;
  const auto count = 2 + random() % 14;
  for (size_t i = 0; i < count; ++i) {
    const auto left = static_cast<ValueIndex>(random() % values.size());
    const auto right = static_cast<ValueIndex>(random() % values.size());
    ValueDescriptor made = values[left];
    TensorOp op = Minus(left);
    const size_t kind = random() % 5;
    if (kind == 0) {
      made.dtype = random() % 2 == 0 ? Dtype::kF32 : Dtype::kBF16;
      op = Converted(left, made.dtype);
    } else if (kind < 4 && values[left].dtype == values[right].dtype) {
      // Products of products would soon be infinite.
      op = kind == 3 && right < to->operands.size() ? Times(left, right) : Sum(left, right);
      if (values[right].shape.size() > made.shape.size()) made.shape = values[right].shape;
    }
    to->ops.emplace_back(std::move(op));
    values.push_back(std::move(made));
    if (random() % 6 == 0 || i + 1 == count) {
      to->outputs.push_back(static_cast<ValueIndex>(values.size() - 1));
    }
  }
}

TEST(FuseElementwiseTest, RandomPlansComputeTheSame) {
  std::mt19937 random(18);
  int64_t groups = 0;
  for (int i = 0; i < 80; ++i) {
    SCOPED_TRACE(i);
    ProgramCase each;
    const size_t operands = 1 + random() % 4;
    for (size_t operand = 0; operand < operands; ++operand) {
      const Dtype dtype = random() % 3 == 0 ? Dtype::kBF16 : Dtype::kF32;
      const bool is_row = operand > 0 && random() % 3 == 0;
      const PartitionSpec spec = is_row              ? Spec({{"b"}})
                                 : random() % 4 == 0 ? Spec({{"b"}, {"a"}})
                                                     : Spec({{"a"}, {"b"}});
      each.operands.push_back(Value(is_row ? Shape{6} : Shape{4, 6}, spec, dtype));
    }
    AddRandomOps(random, &each);
    for (const Instruction& instruction : FusedPlan(each).instructions) {
      groups += std::holds_alternative<FusedCompute>(instruction.kind) ? 1 : 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GE(groups, 30);
}

}  // namespace
}  // namespace shardmesh
