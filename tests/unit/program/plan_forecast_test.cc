// Bytes, memory and time that a plan is predicted to take.
#include "program/plan_forecast.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

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
}

}  // namespace
}  // namespace shardmesh
