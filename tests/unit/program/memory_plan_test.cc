// LayOutBlock: no overlap, and no more memory than needed. MemoryPlanOf, PeakBytesOf: of plans.
#include "program/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <variant>

#include "program/collective_choice.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

int64_t RoundedUp(int64_t size_bytes) {
  return (size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Checks that all ranges lie in the block, at aligned offsets, and that no two ranges that are in
// use at the same time overlap.
void ExpectSound(const std::vector<LiveRange>& ranges, const BlockLayout& layout) {
  ASSERT_EQ(layout.offsets.size(), ranges.size());
  EXPECT_GE(layout.size_bytes, LeastBlockBytes(ranges));
  EXPECT_EQ(layout.size_bytes % kBlockAlignment, 0);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const int64_t begin = layout.offsets[i];
    const int64_t end = begin + ranges[i].size_bytes;
    EXPECT_GE(begin, 0);
    EXPECT_LE(end, layout.size_bytes);
    EXPECT_EQ(begin % kBlockAlignment, 0);
    for (size_t j = 0; j < i; ++j) {
      const bool are_live_together =
          ranges[j].first <= ranges[i].last && ranges[i].first <= ranges[j].last;
      if (!are_live_together || ranges[i].size_bytes == 0 || ranges[j].size_bytes == 0) continue;
      const int64_t other_begin = layout.offsets[j];
      EXPECT_TRUE(end <= other_begin || other_begin + ranges[j].size_bytes <= begin)
          << "ranges " << i << " and " << j;
    }
  }
}

TEST(MemoryPlanTest, RangesInUseTogetherNeverOverlap) {
  std::mt19937 random(1);
  const auto below = [&random](size_t limit) { return random() % limit; };
  double excess = 0;
  constexpr int kRounds = 2'000;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const size_t instructions = 1 + below(40);
    const int64_t largest = round % 3 == 0 ? 200 : 1 << 20;
    std::vector<LiveRange> ranges(below(60));
    for (LiveRange& range : ranges) {
      range.size_bytes = static_cast<int64_t>(below(static_cast<size_t>(largest)));
      if (below(10) == 0) range.size_bytes = 0;
      range.first = below(instructions);
      range.last = range.first + below(std::min<size_t>(instructions - range.first, 8));
    }
    const BlockLayout layout = LayOutBlock(ranges);
    ExpectSound(ranges, layout);
    if (testing::Test::HasFailure()) return;
    const int64_t least_bytes = LeastBlockBytes(ranges);
    if (least_bytes > 0) {
      excess += static_cast<double>(layout.size_bytes) / static_cast<double>(least_bytes) - 1;
    }
  }
  EXPECT_LT(excess / kRounds, 0.1) << "on average, beyond the lower bound";
}

TEST(MemoryPlanTest, AChainTakesNoMoreThanItsLargestNeighbours) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<LiveRange> ranges(1 + random() % 50);
    int64_t most = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      ranges[i] = {
          .size_bytes = static_cast<int64_t>(random() % 100'000), .first = i, .last = i + 1};
      const int64_t before = i == 0 ? 0 : RoundedUp(ranges[i - 1].size_bytes);
      most = std::max(most, before + RoundedUp(ranges[i].size_bytes));
    }
    const BlockLayout layout = LayOutBlock(ranges);
    ExpectSound(ranges, layout);
    ASSERT_EQ(layout.size_bytes, most) << "round " << round;
  }
}

TEST(MemoryPlanTest, AChainThatPlacedLargestFirstDoesNotFitTakesTheLeast) {
  // Placed by size, the range of 8 fits neither below that of 9 nor beside that of 10.
  const std::vector<LiveRange> ranges = {
      {10 * 64, 0, 1}, {9 * 64, 1, 2}, {8 * 64, 2, 3}, {10 * 64, 3, 4}};
  EXPECT_EQ(LayOutBlock(ranges).size_bytes, 19 * 64);
}

TEST(MemoryPlanTest, TheSameRangesGetTheSameOffsets) {
  std::vector<LiveRange> ranges;
  for (size_t i = 0; i < 30; ++i) {
    ranges.push_back({.size_bytes = 64, .first = i / 3, .last = i / 2 + 1});
  }
  EXPECT_EQ(LayOutBlock(ranges).offsets, LayOutBlock(ranges).offsets);
}

TEST(MemoryPlanTest, NoRangesAndEmptyRangesTakeNoMemory) {
  EXPECT_EQ(LayOutBlock({}).size_bytes, 0);
  EXPECT_EQ(LeastBlockBytes({}), 0);
  const std::vector<LiveRange> empty = {{.size_bytes = 0, .first = 0, .last = 3}};
  EXPECT_EQ(LayOutBlock(empty).size_bytes, 0);
  EXPECT_THAT(LayOutBlock(empty).offsets, ElementsAre(0));
}

TEST(MemoryPlanTest, SizesBeyond64BitsAreCapped) {
  const std::vector<LiveRange> huge(3, {.size_bytes = kMost - 1, .first = 0, .last = 1});
  EXPECT_EQ(LeastBlockBytes(huge), kMost);
  EXPECT_EQ(LayOutBlock(huge).size_bytes, kMost);
}

CollectiveOp Sum(ValueIndex input, CollectiveAlgorithm algorithm) {
  return {
      .input = input, .kind = CollectiveKind::kAllReduce, .axes = {"tp"}, .algorithm = algorithm};
}

constexpr int64_t kMatrixBytes = 16 * 16 * 4;

Plan ChainOf(CollectiveAlgorithm algorithm, std::vector<ValueIndex> outputs) {
  return *PlanProgram(
      {.operand_count = 1,
       .ops = {Sum(0, algorithm), Sum(1, algorithm), Sum(2, algorithm), Sum(3, algorithm)},
       .outputs = std::move(outputs)},
      {Value({16, 16}, PartitionSpec())}, Target("tp=2"));
}

TEST(MemoryPlanTest, OperandsAndOutputsHaveNoPlaceInTheBlock) {
  const Plan plan = ChainOf(CollectiveAlgorithm::kDirect, {4});
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_FALSE(memory.places[0].has_value());
  EXPECT_FALSE(memory.places[4].has_value());
  ASSERT_TRUE(memory.places[1].has_value());
  EXPECT_EQ(memory.block_bytes, 2 * kMatrixBytes) << "an operand and a result at a time";
  EXPECT_NE(memory.places[1]->offset_bytes, memory.places[2]->offset_bytes);
  EXPECT_EQ(memory.places[1]->offset_bytes, memory.places[3]->offset_bytes);
  EXPECT_EQ(memory.first, 0U);
  EXPECT_EQ(memory.last, 3U);
  EXPECT_EQ(PeakBytesOf(plan), 3 * kMatrixBytes);
  EXPECT_EQ(plan.cost.memory_bytes, 3 * kMatrixBytes);
}

TEST(MemoryPlanTest, AResultIsMadeOverAnOperandThatTheOpMayOverwrite) {
  const Plan plan = ChainOf(CollectiveAlgorithm::kPairwise, {4});
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_EQ(memory.places[1]->over, std::nullopt) << "an operand of the plan is never overwritten";
  EXPECT_EQ(memory.places[2]->over, 1U);
  EXPECT_EQ(memory.places[3]->over, 2U);
  EXPECT_EQ(memory.block_bytes, kMatrixBytes);
  EXPECT_EQ(PeakBytesOf(plan), 2 * kMatrixBytes) << "the block and the output";
}

TEST(MemoryPlanTest, NoResultIsMadeOverAnOperandThatIsReadLater) {
  const Plan plan = *PlanProgram(
      {.operand_count = 1,
       .ops = {Sum(0, CollectiveAlgorithm::kPairwise), Sum(1, CollectiveAlgorithm::kPairwise),
               Sum(1, CollectiveAlgorithm::kPairwise), Sum(2, CollectiveAlgorithm::kPairwise),
               Sum(3, CollectiveAlgorithm::kPairwise)},
       .outputs = {4, 5}},
      {Value({16, 16}, PartitionSpec())}, Target("tp=2"));
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_EQ(memory.places[2]->over, std::nullopt) << "the next instruction reads the operand";
  EXPECT_EQ(memory.places[3]->over, 1U);
}

TEST(MemoryPlanTest, AnEpilogueOfOneTypeIsMadeInPlaceAndOneThatRoundsIsNot) {
  const auto over_of_epilogue = [](Dtype dtype) {
    const Plan plan = *PlanProgram(
        {.operand_count = 3,
         .ops = {LinearOp{.input = 0, .weight = 1, .activation = Activation::kRelu},
                 LinearOp{.input = 3, .weight = 2}},
         .outputs = {4}},
        {Value({8, 32}, Spec({{}, {"tp"}}), dtype), Value({32, 32}, Spec({{}, {"tp"}}), dtype),
         Value({32, 32}, PartitionSpec(), dtype)},
        Target("tp=2"));
    const MemoryPlan memory = MemoryPlanOf(plan);
    for (const Instruction& instruction : plan.instructions) {
      if (std::get_if<LocalEpilogue>(&instruction.kind) == nullptr) continue;
      return memory.places[instruction.output]->over.has_value();
    }
    ADD_FAILURE() << "the plan has no epilogue";
    return false;
  };
  EXPECT_TRUE(over_of_epilogue(Dtype::kF32));
  EXPECT_FALSE(over_of_epilogue(Dtype::kBF16)) << "its partial sums are F32";
}

TEST(MemoryPlanTest, PlacesHaveRoomForTheLargestTile) {
  const ValueDescriptor operand = CutValue({10, 16}, Spec({{"tp"}, {}}), {{0, 3, 10}, {}});
  const Plan plan = *PlanProgram(
      {.operand_count = 1,
       .ops = {CollectiveOp{.input = 0, .kind = CollectiveKind::kAllGather, .axes = {"tp"}},
               ReshardOp{.input = 1, .spec = Spec({{"tp"}, {}}), .part_starts = {{3}}},
               CollectiveOp{.input = 2, .kind = CollectiveKind::kAllGather, .axes = {"tp"}}},
       .outputs = {3}},
      {operand}, Target("tp=2"));
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_EQ(memory.block_bytes, 10 * 16 * 4 + 7 * 16 * 4) << "the whole, and the part of 7 rows";
}

// Multiplies batches of matrices twice. Each partial product is summed along tp.
Program TwoProductsOfBatches() {
  return {.operand_count = 3,
          .ops = {MatmulOp{.lhs = 0, .rhs = 1}, MatmulOp{.lhs = 3, .rhs = 2}},
          .outputs = {4}};
}

TEST(MemoryPlanTest, ProductsOfBatchesHaveAPeak) {
  constexpr int64_t kBatchBytes = 3 * 16 * 16 * 4;  // bytes of each tensor
  const ValueDescriptor lhs = Value({3, 16, 16}, Spec({{}, {}, {"tp"}}));
  const ValueDescriptor rhs = Value({3, 16, 16}, Spec({{}, {"tp"}, {}}));
  const ValueDescriptor next = Value({3, 16, 16}, PartitionSpec());
  const Plan plan = *PlanProgram(TwoProductsOfBatches(), {lhs, rhs, next}, Target("tp=2"));
  EXPECT_TRUE(MultipliesBatches(plan));
  ASSERT_EQ(plan.instructions.size(), 3U) << "a product, its sum, and a product";
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_EQ(memory.places[4]->over.has_value(),
            MayOverwriteOperand(CollectiveKind::kAllReduce,
                                std::get<GroupCollective>(plan.instructions[1].kind).algorithm));
  EXPECT_EQ(memory.block_bytes, memory.places[4]->over.has_value() ? kBatchBytes : 2 * kBatchBytes);
  EXPECT_EQ(PeakBytesOf(plan), memory.block_bytes + kBatchBytes) << "the block, and the output";
  EXPECT_EQ(plan.cost.memory_bytes, PeakBytesOf(plan));
}

TEST(MemoryPlanTest, EveryCandidateOfAProductHasThePeakOfItsOwnInstructions) {
  const Program program = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const std::vector<ValueDescriptor> operands = {Value({4, 16, 16}, Spec({{"x"}, {"y"}, {}})),
                                                 Value({4, 16, 16}, Spec({{}, {"x"}, {}}))};
  const auto candidates = *PlanCandidates(program, operands, Target("x=2,y=2"), 100);
  ASSERT_GT(candidates.size(), 2U);
  std::vector<int64_t> peaks;
  for (const PlanCandidate& candidate : candidates) {
    SCOPED_TRACE(candidate.roles);
    EXPECT_EQ(candidate.plan.cost.memory_bytes, PeakBytesOf(candidate.plan));
    // The result of a product has a tile of at least a quarter of the tensor.
    EXPECT_GE(candidate.plan.cost.memory_bytes, 4 * 16 * 16 * 4 / 4);
    peaks.push_back(candidate.plan.cost.memory_bytes);
  }
  EXPECT_NE(*std::min_element(peaks.begin(), peaks.end()),
            *std::max_element(peaks.begin(), peaks.end()));
  EXPECT_EQ(PlanProgram(program, operands, Target("x=2,y=2"))->cost, candidates.front().plan.cost);
}

TEST(MemoryPlanTest, TheBlockIsFreedAfterItsLastUse) {
  // The block has kMatrixBytes in instructions 0 and 1. After that, two outputs are made.
  const Plan plan = *PlanProgram(
      {.operand_count = 1,
       .ops = {Sum(0, CollectiveAlgorithm::kDirect), Sum(1, CollectiveAlgorithm::kDirect),
               Sum(2, CollectiveAlgorithm::kDirect), Sum(2, CollectiveAlgorithm::kDirect)},
       .outputs = {2, 3}},
      {Value({16, 16}, PartitionSpec())}, Target("tp=2"));
  const MemoryPlan memory = MemoryPlanOf(plan);
  EXPECT_EQ(memory.block_bytes, kMatrixBytes);
  EXPECT_EQ(memory.last, 3U) << "value 4, which nothing reads, is made by the last instruction";
  EXPECT_EQ(PeakBytesOf(plan), 3 * kMatrixBytes);
  EXPECT_EQ(PeakBytesOf(ChainOf(CollectiveAlgorithm::kDirect, {2, 3, 4})), 3 * kMatrixBytes);
}

TEST(MemoryPlanTest, WithoutABlockARunNeedsTheValuesInUseOnly) {
  // Two large values, then a small one that two large results are made of.
  const Plan plan =
      *PlanProgram({.operand_count = 3,
                    .ops = {LinearOp{.input = 0, .weight = 0}, LinearOp{.input = 3, .weight = 0},
                            LinearOp{.input = 4, .weight = 1}, LinearOp{.input = 5, .weight = 2},
                            LinearOp{.input = 5, .weight = 2}},
                    .outputs = {6, 7}},
                   {Value({64, 64}, PartitionSpec()), Value({4, 64}, PartitionSpec()),
                    Value({64, 4}, PartitionSpec())},
                   Target("tp=2"));
  constexpr int64_t kLarge = 64 * 64 * 4;
  EXPECT_EQ(PeakBytesOf(plan), 4 * kLarge);
  EXPECT_EQ(LeastBytesOf(plan), 2 * kLarge + 64 * 4 * 4);
  const Plan in_place = ChainOf(CollectiveAlgorithm::kPairwise, {4});
  EXPECT_EQ(LeastBytesOf(in_place), 2 * kMatrixBytes);
}

TEST(MemoryPlanTest, CopiesOfMovesAreNoPartOfTheLeast) {
  const Plan plan =
      *PlanProgram({.operand_count = 1,
                    .ops = {ReshardOp{.input = 0, .spec = Spec({{}, {"tp"}})}},
                    .outputs = {1}},
                   {CutValue({10, 16}, Spec({{"tp"}, {}}), {{0, 3, 10}, {}})}, Target("tp=2"));
  EXPECT_EQ(LeastBytesOf(plan), 10 * 8 * 4);
  EXPECT_GT(PeakBytesOf(plan), LeastBytesOf(plan));
}

}  // namespace
}  // namespace shardmesh
