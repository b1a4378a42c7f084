// Tests of sharding/uneven.h: the formulas of torch.chunk and of largest remainders, and which
// dimensions a rule cuts.
#include "sharding/uneven.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ::shardmesh::test::kInvalid;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Part p of torch.chunk, as DTensor pads it to all ranks: [min(p*c, n), min((p+1)*c, n)) with
// c = ceil(n / parts).
TEST(UnevenTest, ChunksAsTorchDoes) {
  for (int64_t extent = 0; extent <= 40; ++extent) {
    for (int64_t parts = 1; parts <= 12; ++parts) {
      const CutPoints points = CeilChunks(extent, parts);
      ASSERT_EQ(points.size(), static_cast<size_t>(parts) + 1);
      const int64_t chunk = (extent + parts - 1) / parts;
      for (int64_t part = 0; part <= parts; ++part) {
        ASSERT_EQ(points[static_cast<size_t>(part)], std::min(part * chunk, extent))
            << extent << " in " << parts;
      }
    }
  }
  EXPECT_THAT(CeilChunks(10, 4), ElementsAre(0, 3, 6, 9, 10));
  EXPECT_THAT(CeilChunks(5, 4), ElementsAre(0, 2, 4, 5, 5));
  EXPECT_THAT(CeilChunks(2, 4), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(CeilChunks(kMax, 2), ElementsAre(0, kMax / 2 + 1, kMax));
}

// np.array_split gives the first extent % parts parts one index more; equal weights do so too.
TEST(UnevenTest, SplitsByEqualWeightsAsNumpyDoes) {
  for (int64_t extent = 0; extent <= 40; ++extent) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      const std::vector<int64_t> weights(static_cast<size_t>(parts), 7);
      CutPoints expected = {0};
      for (int64_t part = 0; part < parts; ++part) {
        expected.push_back(expected.back() + extent / parts + (part < extent % parts ? 1 : 0));
      }
      ASSERT_EQ(WeightedCuts(extent, weights), expected) << extent << " in " << parts;
    }
  }
}

TEST(UnevenTest, GivesTheLargestRemaindersTheIndicesThatAreLeft) {
  EXPECT_THAT(WeightedCuts(10, {1, 2, 1}), ElementsAre(0, 3, 8, 10));
  EXPECT_THAT(WeightedCuts(10, {0, 2, 0, 3}), ElementsAre(0, 0, 4, 4, 10));
  EXPECT_THAT(WeightedCuts(1, {1, 3, 1}), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(WeightedCuts(7, {5}), ElementsAre(0, 7));
  EXPECT_THAT(WeightedCuts(kMax, {kMax - 1, 1}), ElementsAre(0, kMax - 1, kMax));
}

TEST(UnevenPropertyTest, KeepsEachPartWithinOneOfItsShare) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const int64_t extent = random() % 1000;
    std::vector<int64_t> weights(1 + random() % 8);
    for (int64_t& weight : weights) weight = random() % (random() % 2 == 0 ? 4 : 100000);
    const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
    if (sum == 0) continue;
    const CutPoints points = WeightedCuts(extent, weights);
    ASSERT_EQ(points.size(), weights.size() + 1);
    ASSERT_EQ(points.back(), extent);
    // Only ratios count.
    std::vector<int64_t> tripled = weights;
    for (int64_t& weight : tripled) weight *= 3;
    ASSERT_EQ(WeightedCuts(extent, tripled), points);
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t size = points[i + 1] - points[i];
      ASSERT_GE(size, extent * weights[i] / sum);
      ASSERT_LE(size, (extent * weights[i] + sum - 1) / sum);
      for (size_t j = 0; j < weights.size(); ++j) {
        const int64_t above = size - extent * weights[i] / sum;
        const int64_t other = points[j + 1] - points[j] - extent * weights[j] / sum;
        const int64_t remainder = extent * weights[i] % sum;
        const int64_t other_remainder = extent * weights[j] % sum;
        // No part rounds up while one with a larger remainder, or an earlier one with the same,
        // rounds down.
        ASSERT_FALSE(above == 1 && other == 0 &&
                     (other_remainder > remainder || (other_remainder == remainder && j < i)));
      }
    }
  }
}

PartitionSpec SpecFrom(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }

TEST(UnevenTest, CutsOnlyDimensionsThatAreNotDivided) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=3");
  const PartitionSpec spec = SpecFrom({SpecEntry::Axis("dp"), SpecEntry::Axis("tp"), {}});
  EXPECT_THAT(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, spec, Shape{7, 9, 5}),
              IsOkAndHolds(ElementsAre(ElementsAre(0, 4, 7), IsEmpty(), IsEmpty())));
  EXPECT_THAT(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, spec, Shape{8, 9, 5}),
              IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, spec, Shape{0, 9, 5}),
              IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(CutByRule(UnevenCuts::kEqualOnly, {}, mesh, spec, Shape{7, 9, 5}),
              IsOkAndHolds(IsEmpty()));
}

TEST(UnevenTest, GivesAPartTheLeastWeightOfItsDevices) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  // Devices (dp, tp): (0,0)=4, (0,1)=8, (1,0)=2, (1,1)=4.
  const std::vector<int64_t> weights = {4, 8, 2, 4};
  const PartitionSpec rows = SpecFrom({SpecEntry::Axis("dp"), {}});
  EXPECT_THAT(CutByRule(UnevenCuts::kByWeights, weights, mesh, rows, Shape{12, 4}),
              IsOkAndHolds(ElementsAre(ElementsAre(0, 8, 12), IsEmpty())));
  const PartitionSpec both = SpecFrom({SpecEntry::Axis("dp"), SpecEntry::Axis("tp")});
  EXPECT_THAT(CutByRule(UnevenCuts::kByWeights, weights, mesh, both, Shape{12, 6}),
              IsOkAndHolds(ElementsAre(ElementsAre(0, 8, 12), ElementsAre(0, 2, 6))));
  const PartitionSpec minor = SpecFrom({SpecEntry::Axes({"tp", "dp"})});
  EXPECT_THAT(CutByRule(UnevenCuts::kByWeights, weights, mesh, minor, Shape{18}),
              IsOkAndHolds(ElementsAre(ElementsAre(0, 4, 6, 14, 18))));
  // The weights of all devices are the same: equal parts.
  EXPECT_THAT(CutByRule(UnevenCuts::kByWeights, {5, 5, 5, 5}, mesh, both, Shape{12, 6}),
              IsOkAndHolds(IsEmpty()));
}

TEST(UnevenTest, MakesNoMorePartsThanItsLimit) {
  const Mesh mesh = *Mesh::Parse("a=65536,b=4");
  const PartitionSpec one = SpecFrom({SpecEntry::Axis("a")});
  const PartitionSpec both = SpecFrom({SpecEntry::Axes({"a", "b"})});
  EXPECT_EQ(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, one, Shape{65537})->at(0).size(), 65537u);
  EXPECT_THAT(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, both, Shape{65537}).status(),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(CutByRule(UnevenCuts::kCeilChunks, {}, mesh, both, Shape{int64_t{1} << 20}),
              IsOkAndHolds(IsEmpty()));
}

TEST(UnevenTest, RefusesWeightsThatSayNothing) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const PartitionSpec rows = SpecFrom({SpecEntry::Axis("dp")});
  const auto cut = [&](std::vector<int64_t> weights) {
    return CutByRule(UnevenCuts::kByWeights, weights, mesh, rows, Shape{12}).status();
  };
  struct Row {
    std::vector<int64_t> weights;
    std::string_view message;
  };
  for (const Row& row : std::vector<Row>{{{}, "there are 0 weights, and the mesh has 4 devices"},
                                         {{1, 2, 3}, "there are 3 weights"},
                                         {{1, 2, -3, 4}, "the weight of device 2 is -3"},
                                         {{0, 0, 0, 0}, "give at least one a weight above 0"},
                                         {{kMax, 1, 1, 1}, "more than 63 bits"},
                                         {{1, 0, 0, 1}, "each part of dimension 0 over 'dp'"},
                                         {{1, 0, 1, 0}, "such as devices 0, 1, or cut the dim"},
                                         {{0, 0, 0, 1}, "such as devices 2, 3, or cut the dim"}}) {
    EXPECT_THAT(cut(row.weights), StatusIs(kInvalid, Reason::kInvalidCutPoints));
    EXPECT_THAT(std::string(cut(row.weights).message()), HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace shardmesh
