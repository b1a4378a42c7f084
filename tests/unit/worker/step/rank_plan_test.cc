// RankPlan: the constants of a plan on one rank. KnownPlan: keeps them for the plan's runs.
#include "worker/step/rank_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/status_matchers.h"
#include "tests/unit/program/plan_examples.h"
#include "worker/step/plan_cache.h"

namespace shardmesh::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

CollectiveOp SumOver(ValueIndex input, std::string axis) {
  return {.input = input,
          .kind = CollectiveKind::kAllReduce,
          .axes = {std::move(axis)},
          .algorithm = CollectiveAlgorithm::kPairwise};
}

// Gathers the rows of a matrix along x, and sums the result along y.
Plan GatherAndSum() {
  return *PlanProgram(
      {.operand_count = 1,
       .ops = {CollectiveOp{.input = 0, .kind = CollectiveKind::kAllGather, .axes = {"x"}},
               SumOver(1, "y")},
       .outputs = {2}},
      {Value({8, 6}, Spec({{"x"}, {}}))}, Target("x=2,y=2"));
}

TEST(RankPlanTest, HasTheTilesOfTheRankAndTheLastUsesOfValues) {
  const Plan plan = GatherAndSum();
  const RankPlan part = *RankPlan::Create(plan, 3);
  EXPECT_EQ(&part.plan(), &plan);
  EXPECT_EQ(part.rank(), 3);
  EXPECT_EQ(part.value(0).tile.ranges[0], (IndexRange{4, 8}));
  EXPECT_EQ(part.value(0).size_bytes, 4 * 6 * 4);
  EXPECT_EQ(part.value(1).shape, Shape({8, 6}));
  EXPECT_EQ(part.value(1).output, std::nullopt);
  EXPECT_EQ(part.value(2).output, 0U);
  EXPECT_THAT(part.instruction(0).ends, ElementsAre(0));
  EXPECT_THAT(part.instruction(1).ends, ElementsAre(1, 2));
}

TEST(RankPlanTest, HasTheGroupTheSignatureAndThePartsOfACollective) {
  const Plan plan = GatherAndSum();
  const RankPlan part = *RankPlan::Create(plan, 3);
  const RankInstruction& gather = part.instruction(0);
  EXPECT_THAT(gather.group->devices(), ElementsAre(1, 3));
  EXPECT_EQ(gather.group->place(), 1);
  EXPECT_THAT(gather.sources, ElementsAre(1));
  EXPECT_THAT(gather.signature, AllOf(StartsWith("all-gather"), HasSubstr("F32[4,6] to F32[8,6]")));
  ASSERT_EQ(gather.receives.size(), 2U);
  EXPECT_EQ(gather.receives[0].tile.ranges[0], (IndexRange{0, 4}));
  EXPECT_EQ(gather.receives[1].tile.ranges[0], (IndexRange{4, 8}));
  EXPECT_THAT(gather.receive_bytes, ElementsAre(96, 96));
  EXPECT_THAT(gather.sends, IsEmpty());
  const RankInstruction& sum = part.instruction(1);
  EXPECT_THAT(sum.group->devices(), ElementsAre(2, 3));
  EXPECT_TRUE(sum.combiner.combine != nullptr);
  EXPECT_EQ(RankPlan::Create(plan, 0)->instruction(0).signature, gather.signature)
      << "of another group, whose tiles have the same shapes";
}

TEST(RankPlanTest, OnlyTheRootOfAScatterHasPartsToSend) {
  const Plan plan = *PlanOf({.kind = CollectiveKind::kScatter, .axes = {"tp"}, .root = 1},
                            Value({6, 4}, PartitionSpec()), "tp=3");
  EXPECT_THAT(RankPlan::Create(plan, 0)->instruction(0).sends, IsEmpty());
  const RankPlan root = *RankPlan::Create(plan, 1);
  ASSERT_EQ(root.instruction(0).sends.size(), 3U);
  EXPECT_EQ(root.instruction(0).sends[2].tile.ranges[0], (IndexRange{4, 6}));
  EXPECT_EQ(root.instruction(0).sends[2].size_bytes, 2 * 4 * 4);
}

TEST(RankPlanTest, HasTheSpecOfAProductOfTiles) {
  const Plan plan = *PlanProgram(
      {.operand_count = 3,
       .ops = {LinearOp{.input = 0, .weight = 1, .bias = 2, .activation = Activation::kRelu}},
       .outputs = {3}},
      {Value({3, 8, 32}, Spec({{}, {"x"}, {}})), Value({64, 32}, Spec({{"y"}, {}})),
       Value({64}, Spec({{"y"}}))},
      Target("x=2,y=2"));
  const RankPlan part = *RankPlan::Create(plan, 0);
  const MatmulSpec expected = {.m = 3 * 4,
                               .n = 32,
                               .k = 32,
                               .transpose_rhs = true,
                               .has_bias = true,
                               .activation = Activation::kRelu};
  EXPECT_EQ(part.instruction(plan.instructions.size() - 1).matmul, expected);
}

TEST(RankPlanTest, HasTheInputsOfATensorOp) {
  const Plan plan = *PlanProgram(
      {.operand_count = 2,
       .ops = {MapOp{MapFunction::kAdd, {0, 1}}, MapOp{MapFunction::kMultiply, {2, 2}},
               AttentionOp{.query = 3, .keys = 3, .values = 3}},
       .outputs = {4}},
      {Value({2, 6, 4, 8}, Spec({{"x"}, {}, {}, {}})), Value({8}, Spec({}))}, Target("x=2"));
  ASSERT_EQ(plan.instructions.size(), 3U);
  const RankPlan part = *RankPlan::Create(plan, 1);
  EXPECT_THAT(part.instruction(0).inputs, ElementsAre(0, 1));
  EXPECT_EQ(part.instruction(0).flops, 6 * 4 * 8);
  EXPECT_THAT(part.instruction(1).inputs, ElementsAre(2, 2));
  EXPECT_THAT(part.instruction(2).inputs, ElementsAre(3, 3, 3));
  EXPECT_GE(part.instruction(2).flops, 4 * 6 * 6 * 4 * 8) << "two products over rows";
  EXPECT_EQ(part.value(2).tile.ranges[0], (IndexRange{1, 2}));
}

// Updates rows of a cache twice, and reads the cache before, between or after as `ops` say.
Plan UpdatesRows(std::vector<ProgramOp> ops, std::vector<ValueIndex> outputs, ValueIndex value) {
  return *PlanProgram(
      {.operand_count = 3,
       .ops = std::move(ops),
       .outputs = std::move(outputs),
       .updates = {{0, value}}},
      {Value({2, 6, 4}, Spec({})), Value({2, 1, 4}, Spec({})), Value({1}, Spec({}), Dtype::kI32)},
      Target("x=2"));
}

TEST(RankPlanTest, UpdatesOfRowsAreMadeInTheMemoryOfState) {
  const UpdateRowsOp first = {.input = 0, .update = 1, .positions = 2};
  const UpdateRowsOp second = {.input = 3, .update = 1, .positions = 2};
  const Plan plan = UpdatesRows({first, second, MapOp{MapFunction::kTanh, {4}}}, {5}, 4);
  ASSERT_EQ(plan.instructions.size(), 3U);
  const RankPlan part = *RankPlan::Create(plan, 0);
  EXPECT_EQ(part.value(0).update, 0U);
  EXPECT_EQ(part.value(1).update, std::nullopt);
  EXPECT_EQ(part.value(3).over_state, 0U);
  EXPECT_FALSE(part.value(3).is_update);
  EXPECT_EQ(part.value(4).over_state, 3U);
  EXPECT_TRUE(part.value(4).is_update);
  EXPECT_EQ(part.value(5).over_state, std::nullopt);
  for (const ValueIndex value : {3U, 4U}) EXPECT_FALSE(part.value(value).place.has_value());
}

TEST(RankPlanTest, AnUpdateHasMemoryOfItsOwnIfTheOldContentIsReadLater) {
  const UpdateRowsOp update = {.input = 0, .update = 1, .positions = 2};
  const Plan plan = UpdatesRows({update, MapOp{MapFunction::kSubtract, {3, 0}},
                                 MapOp{MapFunction::kAbs, {3}}, MapOp{MapFunction::kAdd, {4, 5}}},
                                {6}, 3);
  const RankPlan part = *RankPlan::Create(plan, 0);
  EXPECT_EQ(part.value(3).over_state, std::nullopt);
  EXPECT_TRUE(part.value(3).is_update);
  EXPECT_FALSE(part.value(3).place.has_value());
  EXPECT_EQ(part.value(0).update, 0U);
  // Nothing is made over the new content, though nothing reads it later.
  for (const ValueIndex value : {4U, 5U}) {
    const std::optional<BlockPlace>& place = part.value(value).place;
    EXPECT_TRUE(!place.has_value() || place->over != 3U) << value;
  }
}

TEST(RankPlanTest, HasTheMatricesOfAProductOfBatches) {
  const Plan plan =
      *PlanProgram({.operand_count = 2,
                    .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_rhs = true}},
                    .outputs = {2}},
                   {Value({4, 3, 8, 32}, Spec({{"x"}, {}, {}, {}})), Value({3, 64, 32}, Spec({}))},
                   Target("x=2"));
  ASSERT_EQ(plan.instructions.size(), 1U);
  const RankPlan part = *RankPlan::Create(plan, 1);
  const RankInstruction& product = part.instruction(0);
  const MatmulSpec expected = {.m = 8, .n = 64, .k = 32, .transpose_rhs = true};
  EXPECT_EQ(product.matmul, expected);
  EXPECT_EQ(product.loops.products, 2 * 3);
  EXPECT_FALSE(product.loops.is_one_rhs);
  EXPECT_THAT(product.loops.batch,
              ElementsAre(BatchLoop{.extent = 2, .lhs_stride = 3, .rhs_stride = 0},
                          BatchLoop{.extent = 3, .lhs_stride = 1, .rhs_stride = 1}));
  EXPECT_EQ(product.lhs_matrix_bytes, 8 * 32 * 4);
  EXPECT_EQ(product.rhs_matrix_bytes, 64 * 32 * 4);
  EXPECT_EQ(product.out_matrix_bytes, 8 * 64 * 4);
}

TEST(RankPlanTest, HasTheSourcesOfAMove) {
  const Plan plan = *PlanProgram({.operand_count = 1,
                                  .ops = {ReshardOp{.input = 0, .spec = Spec({{}, {"x"}})}},
                                  .outputs = {1}},
                                 {Value({8, 6}, Spec({{"x"}, {}}))}, Target("x=2"));
  const RankPlan part = *RankPlan::Create(plan, 1);
  const RankInstruction& move = part.instruction(0);
  ASSERT_TRUE(move.move.has_value());
  EXPECT_EQ(move.group->size(), 2);
  EXPECT_THAT(move.sources, ElementsAre(0));
  EXPECT_THAT(move.signature, StartsWith("move of F32[8,6] from "));
}

TEST(RankPlanTest, KnowsTheResultThatADonatedOperandsMemoryCanHold) {
  const auto result_over = [](const Program& program) {
    const Plan plan = *PlanProgram(program, {Value({8, 6}, PartitionSpec())}, Target("x=2"));
    return RankPlan::Create(plan, 0)->value(0).result_over;
  };
  EXPECT_EQ(result_over({.operand_count = 1, .ops = {SumOver(0, "x")}, .outputs = {1}}), 1U);
  EXPECT_EQ(result_over(
                {.operand_count = 1, .ops = {SumOver(0, "x"), SumOver(0, "x")}, .outputs = {1, 2}}),
            std::nullopt)
      << "two instructions read the operand";
}

TEST(RankPlanTest, KnowsTheOperandsThatItsProductsTakePackedAlone) {
  // Returns the packing of operand 1 in a program of these ops.
  const auto packing_of = [](std::vector<ProgramOp> ops, Shape shape = {32, 32}) {
    const auto output = static_cast<ValueIndex>(1 + ops.size());
    const Plan plan =
        *PlanProgram({.operand_count = 2, .ops = std::move(ops), .outputs = {output}},
                     {Value(shape.size() > 2 ? Shape({4, 8, 32}) : Shape({8, 32}), PartitionSpec()),
                      Value(std::move(shape), PartitionSpec())},
                     Target("x=2"));
    const RankPlan part = *RankPlan::Create(plan, 1);
    EXPECT_EQ(part.value(0).packing, std::nullopt) << "the left operand of products";
    EXPECT_EQ(part.value(output).packing, std::nullopt) << "no operand";
    return part.value(1).packing;
  };
  const LinearOp layer{.input = 0, .weight = 1};
  const LinearOp next_layer{.input = 2, .weight = 1, .activation = Activation::kRelu};
  const MatmulOp plain_product{.lhs = 2, .rhs = 1};
  const Packing packing{.n = 32, .k = 32, .transpose_rhs = true};
  EXPECT_EQ(packing_of({layer}), packing);
  EXPECT_EQ(packing_of({layer, next_layer}), packing) << "which both products take";
  EXPECT_EQ(packing_of({layer, plain_product}), std::nullopt) << "in two orientations";
  EXPECT_EQ(packing_of({layer, SumOver(1, "x"), next_layer}), std::nullopt) << "by peers too";
  EXPECT_EQ(packing_of({layer, LinearOp{.input = 1, .weight = 1}}), std::nullopt);
  EXPECT_EQ(packing_of({MatmulOp{.lhs = 0, .rhs = 1}}, {4, 32, 32}), std::nullopt)
      << "each product has a matrix of its own";
}

TEST(RankPlanTest, HasThePlacesOfTemporaries) {
  const Plan plan = GatherAndSum();
  const RankPlan part = *RankPlan::Create(plan, 0);
  EXPECT_EQ(part.memory().block_bytes, 8 * 6 * 4);
  EXPECT_FALSE(part.value(0).place.has_value());
  ASSERT_TRUE(part.value(1).place.has_value());
  EXPECT_EQ(part.value(1).place->offset_bytes, 0);
  EXPECT_FALSE(part.value(2).place.has_value()) << "an output";
}

TEST(KnownPlanTest, KeepsThePartOfARankForAllRuns) {
  const KnownPlan known(GatherAndSum());
  std::vector<std::shared_ptr<const RankPlan>> parts(4);
  std::vector<std::thread> threads;
  threads.reserve(parts.size());
  for (auto& part : parts) threads.emplace_back([&] { part = *known.PartOf(2); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parts[0]->rank(), 2);
  EXPECT_EQ(&parts[0]->plan(), &known.plan());
  for (const auto& part : parts) EXPECT_EQ(part, parts[0]);

  EXPECT_EQ((*known.PartOf(1))->rank(), 1) << "the ranks were assigned anew";
  EXPECT_EQ(parts[0]->rank(), 2) << "a run keeps the part with which it began";
}

}  // namespace
}  // namespace shardmesh::worker
