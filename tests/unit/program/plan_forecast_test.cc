// Bytes, memory and time that a plan is predicted to take.
#include "program/plan_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kTile = 4 * 4 * 4;  // bytes of [4, 4] in F32

CollectiveOp Sum(ValueIndex input, const std::string& axis) {
  return {.input = input,
          .kind = CollectiveKind::kAllReduce,
          .axes = {axis},
          .algorithm = CollectiveAlgorithm::kPairwise};
}

TEST(PlanForecastTest, AddsUpCollectivesByTheirAxes) {
  const Program program = {
      .operand_count = 1, .ops = {Sum(0, "tp"), Sum(1, "dp"), Sum(2, "tp")}, .outputs = {3}};
  const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target("dp=4,tp=2"));
  const LinkCost links = {.latency_seconds = 1e-3, .seconds_per_byte = 1e-6};
  const PlanForecast forecast = ForecastOf(plan, links);
  ASSERT_EQ(forecast.traffic.size(), 2u);
  EXPECT_THAT(forecast.traffic[0].axes, ElementsAre("tp"));
  EXPECT_EQ(forecast.traffic[0].collectives, 2);
  EXPECT_EQ(forecast.traffic[0].sent_bytes, 2 * kTile) << "2 S (P-1)/P of each";
  EXPECT_THAT(forecast.traffic[1].axes, ElementsAre("dp"));
  EXPECT_EQ(forecast.traffic[1].sent_bytes, kTile * 3 / 2);
  EXPECT_EQ(forecast.traffic[0].sent_bytes + forecast.traffic[1].sent_bytes, plan.cost.sent_bytes);
  const CollectiveLoad load = LoadOf(plan.mesh, plan.values[0], {"tp"});
  const double seconds = PredictedSeconds(
      CostOf(CollectiveKind::kAllReduce, CollectiveAlgorithm::kPairwise, load), links);
  EXPECT_DOUBLE_EQ(forecast.traffic[0].seconds, 2 * seconds);
  EXPECT_DOUBLE_EQ(forecast.exchange_seconds,
                   forecast.traffic[0].seconds + forecast.traffic[1].seconds);
  EXPECT_GT(forecast.exchange_seconds, 3e-3) << "a latency for each collective at least";
}

TEST(PlanForecastTest, CountsValuesFromFirstToLastUse) {
  const auto peak_of = [](const Program& program) {
    const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target("dp=2,tp=2"));
    return ForecastOf(plan, {}).peak_bytes;
  };
  EXPECT_EQ(peak_of({.operand_count = 1, .ops = {Sum(0, "tp")}, .outputs = {1}}), kTile);
  const std::vector<ProgramOp> chain = {Sum(0, "tp"), Sum(1, "dp"), Sum(2, "tp"), Sum(3, "dp")};
  EXPECT_EQ(peak_of({.operand_count = 1, .ops = chain, .outputs = {4}}), 2 * kTile)
      << "an operand and a result at a time";
  EXPECT_EQ(peak_of({.operand_count = 1, .ops = chain, .outputs = {1, 2, 3, 4}}), 4 * kTile)
      << "results stay";
  EXPECT_EQ(peak_of({.operand_count = 1, .ops = {Sum(0, "tp"), Sum(0, "dp")}, .outputs = {2}}),
            kTile)
      << "nothing reads the first result";
}

TEST(PlanForecastTest, APlanWithoutCollectivesExchangesNothing) {
  const Program program = {
      .operand_count = 1, .ops = {ReshardOp{.input = 0, .spec = Spec({{"tp"}})}}, .outputs = {1}};
  const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target("tp=2"));
  const PlanForecast forecast = ForecastOf(plan, {});
  EXPECT_TRUE(forecast.traffic.empty());
  EXPECT_EQ(forecast.exchange_seconds, 0);
  EXPECT_EQ(forecast.peak_bytes, kTile / 2);
  EXPECT_EQ(forecast.link_traffic, LinkTrafficSummary());
}

TEST(PlanForecastTest, AStepHasThePartsOfTheForecast) {
  const Program program = {.operand_count = 1, .ops = {Sum(0, "tp"), Sum(1, "dp")}, .outputs = {2}};
  const LinkCost links = {.latency_seconds = 1e-3, .seconds_per_byte = 1e-6};
  const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target("dp=2,tp=2"));
  const PlanForecast whole = ForecastOf(plan, links);
  const StepForecast of_step = StepForecastOf(plan, links, {});
  EXPECT_GT(of_step.exchange_seconds, 0);
  EXPECT_EQ(of_step.exchange_seconds, whole.exchange_seconds);
  EXPECT_EQ(of_step.kernel_seconds, whole.kernel_seconds);
  ASSERT_TRUE(of_step.sent_bytes.has_value());
  EXPECT_GT(*of_step.sent_bytes, 0);
  EXPECT_EQ(*of_step.sent_bytes, whole.link_traffic->sent_bytes);

  // 128 devices have 128 x 127 pairs: too many for a step, and not for a forecast.
  const Plan large = *PlanProgram({.operand_count = 1, .ops = {Sum(0, "tp")}, .outputs = {1}},
                                  {Value({4, 4}, PartitionSpec())}, Target("tp=128"));
  ASSERT_GT(LinkPairsOf(large), kMostStepLinkPairs);
  EXPECT_TRUE(ForecastOf(large, links).link_traffic.has_value());
  EXPECT_FALSE(StepForecastOf(large, links, {}).sent_bytes.has_value());
  EXPECT_EQ(StepForecastOf(large, links, {}).exchange_seconds,
            ForecastOf(large, links).exchange_seconds);
}

TEST(PlanForecastTest, AMoveHasTheTrafficOfItsRegions) {
  // Rows to columns along tp, in both halves of dp.
  const Program program = {.operand_count = 1,
                           .ops = {ReshardOp{.input = 0, .spec = Spec({{}, {"tp"}})}},
                           .outputs = {1}};
  const Plan plan = *PlanProgram(program, {Value({8, 8}, Spec({{"tp"}, {}}))}, Target("dp=2,tp=2"));
  const LinkCost links = {.latency_seconds = 1e-3, .seconds_per_byte = 1e-6};
  const PlanForecast forecast = ForecastOf(plan, links);
  ASSERT_EQ(forecast.traffic.size(), 1U);
  EXPECT_THAT(forecast.traffic[0].axes, ElementsAre("tp"));
  EXPECT_EQ(forecast.traffic[0].collectives, 1);
  EXPECT_EQ(forecast.traffic[0].sent_bytes, kTile);
  EXPECT_EQ(plan.cost.sent_bytes, kTile);
  EXPECT_EQ(plan.cost.memory_bytes, 2 * kTile + kTile) << "the result, and what is copied to send";
  EXPECT_EQ(forecast.peak_bytes, 2 * kTile + kTile);
  EXPECT_DOUBLE_EQ(forecast.exchange_seconds, 1e-3 + kTile * 1e-6);
  const std::vector<LinkTraffic> expected = {
      {0, 1, kTile}, {1, 0, kTile}, {2, 3, kTile}, {3, 2, kTile}};
  EXPECT_EQ(forecast.link_traffic->busiest, expected);
  EXPECT_EQ(LinkPairsOf(plan), 4 * 2) << "of each device and each old tile";
}

TEST(PlanForecastTest, CopiesOfLargeMovesStayWithinTheWindow) {
  const int64_t extent = 1 << 15;
  const Program program = {.operand_count = 1,
                           .ops = {ReshardOp{.input = 0, .spec = Spec({{}, {"tp"}})}},
                           .outputs = {1}};
  const Plan plan =
      *PlanProgram(program, {Value({extent, extent}, Spec({{"tp"}, {}}))}, Target("tp=2"));
  EXPECT_EQ(plan.cost.memory_bytes, extent * extent * 4 / 2 + (int64_t{16} << 20));
}

// A collective on an operand that every device has whole.
CollectiveOp Among(std::vector<std::string> axes, CollectiveKind kind,
                   CollectiveAlgorithm algorithm, ValueIndex input = 0) {
  return {.input = input, .kind = kind, .axes = std::move(axes), .algorithm = algorithm};
}

TEST(PlanForecastTest, AddsUpLinksThatCollectivesOfDifferentAxesShare) {
  const Program program = {
      .operand_count = 1,
      .ops = {Among({"tp"}, CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect, 0),
              Among({"dp", "tp"}, CollectiveKind::kAllReduce, CollectiveAlgorithm::kDirect, 1)},
      .outputs = {2}};
  const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target("dp=2,tp=2"));
  const PlanForecast forecast = ForecastOf(plan, {});
  ASSERT_TRUE(forecast.link_traffic.has_value());
  EXPECT_EQ(forecast.link_traffic->link_count, 12);
  EXPECT_EQ(forecast.link_traffic->sent_bytes, (4 + 12) * kTile);
  const std::vector<LinkTraffic> expected = {
      {0, 1, 2 * kTile}, {1, 0, 2 * kTile}, {2, 3, 2 * kTile}, {3, 2, 2 * kTile},
      {0, 2, kTile},     {0, 3, kTile},     {1, 2, kTile},     {1, 3, kTile},
      {2, 0, kTile},     {2, 1, kTile},     {3, 0, kTile},     {3, 1, kTile}};
  EXPECT_EQ(forecast.link_traffic->busiest, expected);
}

TEST(PlanForecastTest, LinksFollowTheOrderOfTheAxes) {
  const auto links_of = [](std::vector<std::string> axes) {
    const Plan plan =
        *PlanOf(Among(std::move(axes), CollectiveKind::kBroadcast, CollectiveAlgorithm::kChain),
                Value({4, 4}, PartitionSpec()), "dp=2,tp=2");
    return ForecastOf(plan, {}).link_traffic->busiest;
  };
  const std::vector<LinkTraffic> dp_major = {{0, 1, kTile}, {1, 2, kTile}, {2, 3, kTile}};
  EXPECT_EQ(links_of({"dp", "tp"}), dp_major);
  const std::vector<LinkTraffic> tp_major = {{0, 2, kTile}, {1, 3, kTile}, {2, 1, kTile}};
  EXPECT_EQ(links_of({"tp", "dp"}), tp_major);
}

TEST(PlanForecastTest, ListsTheBusiestLinksOnly) {
  CollectiveOp op = Among({"tp"}, CollectiveKind::kAllGather, CollectiveAlgorithm::kPairwise);
  const Plan plan = *PlanOf(std::move(op), Value({8, 4}, Spec({{"tp"}})), "tp=8");
  const PlanForecast forecast = ForecastOf(plan, {});
  ASSERT_TRUE(forecast.link_traffic.has_value());
  constexpr int64_t kRow = 4 * 4;
  EXPECT_EQ(forecast.link_traffic->link_count, 8 * 7);
  EXPECT_EQ(forecast.link_traffic->sent_bytes, 8 * 7 * kRow);
  const std::vector<LinkTraffic>& busiest = forecast.link_traffic->busiest;
  ASSERT_EQ(busiest.size(), kMostBusiestLinks);
  EXPECT_EQ(busiest.front(), (LinkTraffic{0, 1, kRow}));
  EXPECT_EQ(busiest[7], (LinkTraffic{1, 0, kRow}));
  EXPECT_EQ(busiest.back(), (LinkTraffic{4, 3, kRow})) << "7 links of each rank before it";
}

TEST(PlanForecastTest, LinksOfUnequalTilesCarryTheBytesOfTheirOwn) {
  // Rows of 7 elements: 1, 2 and 7 where x is 0, and 5, 1 and 4 where x is 1.
  constexpr int64_t kRow = 7 * 4;
  const Plan plan =
      *PlanOf(Among({"y"}, CollectiveKind::kAllGather, CollectiveAlgorithm::kPairwise),
              CutValue({20, 7}, Spec({{"x", "y"}}), {{0, 1, 3, 10, 15, 16, 20}, {}}), "x=2,y=3");
  const PlanForecast forecast = ForecastOf(plan, {});
  ASSERT_TRUE(forecast.link_traffic.has_value());
  EXPECT_EQ(forecast.link_traffic->link_count, 12);
  EXPECT_EQ(forecast.link_traffic->sent_bytes, 2 * 20 * kRow) << "each row goes to two ranks";
  const std::vector<LinkTraffic> expected = {{2, 0, 7 * kRow}, {2, 1, 7 * kRow}, {3, 4, 5 * kRow},
                                             {3, 5, 5 * kRow}, {5, 3, 4 * kRow}, {5, 4, 4 * kRow},
                                             {1, 0, 2 * kRow}, {1, 2, 2 * kRow}, {0, 1, kRow},
                                             {0, 2, kRow},     {4, 3, kRow},     {4, 5, kRow}};
  EXPECT_EQ(forecast.link_traffic->busiest, expected);
}

TEST(PlanForecastTest, OneRankHasNoLinks) {
  const Plan plan =
      *PlanOf(Among({"tp"}, CollectiveKind::kAllReduce, CollectiveAlgorithm::kPairwise),
              Value({4, 4}, PartitionSpec()), "tp=1");
  EXPECT_EQ(ForecastOf(plan, {}).link_traffic, LinkTrafficSummary());
}

TEST(PlanForecastTest, LooksAtALimitedNumberOfPairs) {
  // Barriers send a byte from each rank to each other.
  const auto links_of = [](ValueIndex barriers, std::string_view mesh) {
    Program program = {.operand_count = 1, .ops = {}, .outputs = {barriers}};
    for (ValueIndex i = 0; i < barriers; ++i) {
      program.ops.push_back(
          Among({"tp"}, CollectiveKind::kBarrier, CollectiveAlgorithm::kPairwise, i));
    }
    const Plan plan = *PlanProgram(program, {Value({4, 4}, PartitionSpec())}, Target(mesh));
    PlanForecast forecast = ForecastOf(plan, {});
    EXPECT_EQ(forecast.traffic.size(), 1u) << "the traffic by axes is told in any case";
    return std::move(forecast.link_traffic);
  };
  // The pairs of the mesh and, for each barrier, those of its group.
  constexpr int64_t kPairs = 256 * 255;
  static_assert(4 * kPairs <= kMostLinkPairs && 5 * kPairs > kMostLinkPairs);
  const std::optional<LinkTrafficSummary> links = links_of(3, "tp=256");
  ASSERT_TRUE(links.has_value());
  EXPECT_EQ(links->link_count, kPairs);
  EXPECT_EQ(links->sent_bytes, 3 * kPairs);
  EXPECT_EQ(links_of(4, "tp=256"), std::nullopt);
  // Of many small groups, and of one that has no room for a matrix of its pairs.
  EXPECT_TRUE(links_of(1, "dp=65536,tp=2").has_value());
  EXPECT_EQ(links_of(1, "dp=262144,tp=2"), std::nullopt);
  EXPECT_EQ(links_of(1, "tp=2147483648"), std::nullopt);
}

TEST(PlanForecastTest, TheBusiestDeviceIsTheOneThatSendsMostOverItsLinks) {
  // Doubling among five ranks: some of them send more than others.
  const Plan plan = *PlanProgram(
      {.operand_count = 1,
       .ops = {Among({"tp"}, CollectiveKind::kAllReduce, CollectiveAlgorithm::kDoubling, 0)},
       .outputs = {1}},
      {Value({7, 5}, PartitionSpec())}, Target("tp=5"));
  const PlanForecast forecast = ForecastOf(plan, {});
  std::map<DeviceId, int64_t> sent;
  for (const LinkTraffic& link : forecast.link_traffic->busiest) {
    sent[link.sender] += link.sent_bytes;
  }
  int64_t most = 0;
  for (const auto& [device, bytes] : sent) most = std::max(most, bytes);
  ASSERT_EQ(forecast.traffic.size(), 1u);
  EXPECT_EQ(forecast.traffic[0].sent_bytes, most);
  EXPECT_EQ(most, 4 * 7 * 5 * 4) << "the even formula says 3 times the tile";
}

TEST(PlanForecastTest, CountsTheDimensionsOfUnequalTiles) {
  // A rank is cheap to look at and its tile is not, if it has many dimensions.
  const auto pairs_of = [](size_t dimensions, bool is_cut) {
    ValueDescriptor operand = Value(Shape(dimensions, 8), PartitionSpec());
    if (is_cut) {
      operand.spec = PartitionSpec({SpecEntry::Axis("dp")});
      operand.cut_points.assign(dimensions, {});
      operand.cut_points[0] = {0, 3, 8};
    }
    return LinkPairsOf(*PlanProgram(
        {.operand_count = 1,
         .ops = {Among({"tp"}, CollectiveKind::kAllReduce, CollectiveAlgorithm::kPairwise, 0)},
         .outputs = {1}},
        {operand}, Target("dp=2,tp=4")));
  };
  EXPECT_EQ(pairs_of(2, false), 8 * 3 + 4 * 3);
  EXPECT_EQ(pairs_of(16, false), 8 * 3 + 4 * 3);
  EXPECT_EQ(pairs_of(2, true), 8 * 3 + 8 * (2 + 2));
  EXPECT_EQ(pairs_of(16, true), 8 * 3 + 8 * (16 + 16));
}

TEST(PlanForecastTest, ForgetsHugeTemporariesAsItCountedThem) {
  // 16 temporaries of 2^62 bytes are freed one after the other: what is left cannot be told from a
  // sum that was cut off.
  constexpr ValueIndex kTemporaries = 16;
  Program program = {.operand_count = 1, .ops = {}, .outputs = {2 * kTemporaries}};
  for (ValueIndex i = 0; i < kTemporaries; ++i) program.ops.push_back(Sum(0, "tp"));
  for (ValueIndex i = 0; i < kTemporaries; ++i) program.ops.push_back(Sum(i + 1, "tp"));
  const Plan plan = *PlanProgram(
      program, {Value({int64_t{1} << 30, int64_t{1} << 30}, PartitionSpec())}, Target("tp=2"));
  EXPECT_EQ(ForecastOf(plan, {}).peak_bytes, std::numeric_limits<int64_t>::max());
}

TEST(PlanForecastTest, CutsHugeNumbersOff) {
  Program program = {.operand_count = 1, .ops = {}, .outputs = {}};
  for (ValueIndex i = 0; i < 16; ++i) {  // each has 2^62 bytes
    program.ops.push_back(Sum(i, "tp"));
    program.outputs.push_back(i + 1);
  }
  const Plan plan = *PlanProgram(
      program, {Value({int64_t{1} << 30, int64_t{1} << 30}, PartitionSpec())}, Target("tp=2"));
  const PlanForecast forecast = ForecastOf(plan, {});
  EXPECT_EQ(forecast.peak_bytes, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(forecast.traffic[0].sent_bytes, std::numeric_limits<int64_t>::max());
  ASSERT_TRUE(forecast.link_traffic.has_value());
  EXPECT_EQ(forecast.link_traffic->busiest[0].sent_bytes, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(forecast.link_traffic->sent_bytes, std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace shardmesh
