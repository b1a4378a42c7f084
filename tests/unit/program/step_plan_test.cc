// Programs that are malformed, and results that are made in the memory of donated operands.
#include "program/step_plan.h"

#include <optional>

#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

TEST(PlanTest, ADonatedOperandIsOverwrittenWhereNobodyNeedsItAnyMore) {
  using Algorithm = CollectiveAlgorithm;
  const auto over = [](const Program& program, const PartitionSpec& spec) {
    return ResultOverOperand(*PlanProgram(program, {Value({8, 4}, spec)}, Target("tp=2")), 0);
  };
  const CollectiveOp sum = {.kind = CollectiveKind::kAllReduce, .axes = {"tp"}};
  CollectiveOp by_halves = sum;
  by_halves.algorithm = Algorithm::kHalving;
  CollectiveOp direct = sum;
  direct.algorithm = Algorithm::kDirect;
  CollectiveOp gather = {.kind = CollectiveKind::kAllGather, .axes = {"tp"}};
  CollectiveOp again = by_halves;
  again.input = 1;
  const PartitionSpec partial = Spec({{}, {}}, {"tp"});
  const PartitionSpec rows = Spec({{"tp"}, {}});
  EXPECT_EQ(over({.operand_count = 1, .ops = {by_halves}, .outputs = {1}}, partial), 1U);
  EXPECT_EQ(over({.operand_count = 1, .ops = {by_halves}, .outputs = {1}}, rows), 1U);
  EXPECT_EQ(over({.operand_count = 1, .ops = {direct}, .outputs = {1}}, partial), std::nullopt);
  EXPECT_EQ(over({.operand_count = 1, .ops = {gather}, .outputs = {1}}, rows), std::nullopt);
  EXPECT_EQ(over({.operand_count = 1, .ops = {by_halves, gather}, .outputs = {1, 2}}, rows),
            std::nullopt)
      << "read twice";
  EXPECT_EQ(over({.operand_count = 1, .ops = {by_halves, again}, .outputs = {2}}, rows),
            std::nullopt)
      << "not a result of the program";
}

TEST(PlanTest, RefusesMalformedPrograms) {
  const auto plan_of = [](Program program, ValueDescriptor operand) {
    return ReasonOf(PlanProgram(program, {operand}, Target("tp=2")).status());
  };
  const ValueDescriptor matrix = Value({4, 4}, PartitionSpec());
  EXPECT_EQ(plan_of({.operand_count = 2, .ops = {}, .outputs = {}}, matrix), Reason::kBadField);
  EXPECT_EQ(plan_of({.operand_count = 1, .ops = {}, .outputs = {0}}, matrix), Reason::kBadField);
  EXPECT_EQ(plan_of({.operand_count = 1, .ops = {ReshardOp{.input = 1, .spec = {}}}, .outputs = {}},
                    matrix),
            Reason::kBadField);
  EXPECT_EQ(
      plan_of(
          {.operand_count = 1, .ops = {CollectiveOp{.input = 0, .axes = {"nope"}}}, .outputs = {1}},
          matrix),
      Reason::kAxisNotInMesh);
  EXPECT_EQ(
      plan_of(
          {.operand_count = 1, .ops = {CollectiveOp{.input = 0, .axes = {"tp"}}}, .outputs = {1}},
          Value({4}, PartitionSpec(), Dtype::kBool)),
      Reason::kUnsupportedDtype);
  EXPECT_EQ(plan_of({.operand_count = 1, .ops = {MatmulOp{.lhs = 0, .rhs = 0}}, .outputs = {1}},
                    Value({4, 4}, PartitionSpec(), Dtype::kF64)),
            Reason::kUnsupportedDtype);
}

TEST(PlanTest, ResultsOverOperandsAreThoseOfEachOperand) {
  const CollectiveOp sum{.input = 0,
                         .kind = CollectiveKind::kAllReduce,
                         .axes = {"tp"},
                         .algorithm = CollectiveAlgorithm::kPairwise};
  CollectiveOp sum_of_second = sum;
  sum_of_second.input = 1;
  CollectiveOp direct = sum;
  direct.input = 2;
  direct.algorithm = CollectiveAlgorithm::kDirect;
  const ValueDescriptor whole = Value({8, 4}, PartitionSpec());
  const Plan plan = *PlanProgram(
      {.operand_count = 4, .ops = {sum_of_second, sum, direct, sum}, .outputs = {4, 5, 6, 7}},
      {whole, whole, whole, whole}, Target("tp=2"));
  const std::vector<std::optional<ValueIndex>> results = ResultsOverOperands(plan);
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[0], std::nullopt) << "two instructions read it";
  EXPECT_EQ(results[1], 4U);
  EXPECT_EQ(results[3], std::nullopt) << "none reads it";
  for (ValueIndex operand = 0; operand < results.size(); ++operand) {
    EXPECT_EQ(results[operand], ResultOverOperand(plan, operand)) << operand;
  }
}

}  // namespace
}  // namespace shardmesh
