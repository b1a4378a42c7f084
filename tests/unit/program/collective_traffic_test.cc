// Bytes between the places of one group. tests/unit/worker/collective/counted_traffic_test.cc
// compares them with what the algorithms send.
#include "program/collective_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "program/collective_check.h"
#include "program/collective_choice.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// The tiles of a group whose places have equally many elements, in equal parts.
GroupTiles TilesAlike(int64_t places, int64_t elements, Dtype dtype = Dtype::kF32) {
  const auto count = static_cast<size_t>(places);
  return {.operand_dtype = dtype,
          .result_dtype = dtype,
          .elements = std::vector<int64_t>(count, elements),
          .split_extents = std::vector<int64_t>(count, 1)};
}

PlaceTraffic TrafficOf(const CollectiveOp& op, const GroupTiles& tiles) {
  PlaceTraffic traffic(static_cast<int64_t>(tiles.elements.size()));
  AddCollectiveTraffic(op, tiles, &traffic);
  return traffic;
}

TEST(CollectiveTrafficTest, TheBusiestPlaceSendsAsTheTableOfCostsSays) {
  constexpr int64_t kPlaces = 8;
  constexpr int64_t kElements = 8 * 40;
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      CollectiveOp op = {.kind = kind, .root = HasRoot(kind) ? 3 : 0, .algorithm = algorithm};
      if (kind == CollectiveKind::kPermute) op.permutation = {{0, 1}, {1, 5}};
      const PlaceTraffic traffic = TrafficOf(op, TilesAlike(kPlaces, kElements));
      int64_t most = 0;
      for (int64_t sender = 0; sender < kPlaces; ++sender) {
        EXPECT_EQ(traffic.BytesBetween(sender, sender), 0);
        int64_t sent_bytes = 0;
        for (int64_t receiver = 0; receiver < kPlaces; ++receiver) {
          sent_bytes += traffic.BytesBetween(sender, receiver);
        }
        most = std::max(most, sent_bytes);
      }
      const CollectiveLoad load = {
          .ranks = kPlaces, .bytes = kElements * 4, .partial_bytes = kElements * 4};
      EXPECT_EQ(most, CostOf(kind, algorithm, load).sent_bytes)
          << CollectiveKindName(kind) << " by " << CollectiveAlgorithmName(algorithm);
    }
  }
}

TEST(CollectiveTrafficTest, PartialResultsOfSixteenBitsAreTwiceAsWide) {
  const CollectiveOp op = {.kind = CollectiveKind::kAllReduce,
                           .algorithm = CollectiveAlgorithm::kDoubling};
  const PlaceTraffic traffic = TrafficOf(op, TilesAlike(4, 10, Dtype::kBF16));
  EXPECT_EQ(traffic.BytesBetween(0, 1), 20) << "the operand";
  EXPECT_EQ(traffic.BytesBetween(0, 2), 40) << "the sum of two, in F32";
  EXPECT_EQ(traffic.BytesBetween(0, 3), 0);
}

TEST(CollectiveTrafficTest, PartsHaveTheSizesThatTheOpGivesThem) {
  GroupTiles tiles = TilesAlike(3, 14);  // two rows of 7
  tiles.split_extents = {4, 1, 2};
  const PlaceTraffic traffic = TrafficOf(
      {.kind = CollectiveKind::kReduceScatter, .algorithm = CollectiveAlgorithm::kPairwise}, tiles);
  EXPECT_EQ(traffic.BytesBetween(1, 0), 2 * 4 * 4);
  EXPECT_EQ(traffic.BytesBetween(0, 1), 2 * 1 * 4);
  EXPECT_EQ(traffic.BytesBetween(0, 2), 2 * 2 * 4);
}

TEST(CollectiveTrafficTest, CollectivesAddUp) {
  PlaceTraffic traffic(3);
  CollectiveOp op = {.kind = CollectiveKind::kBroadcast, .algorithm = CollectiveAlgorithm::kChain};
  AddCollectiveTraffic(op, TilesAlike(3, 2), &traffic);
  op.root = 1;
  AddCollectiveTraffic(op, TilesAlike(3, 5), &traffic);
  EXPECT_EQ(traffic.BytesBetween(0, 1), 2 * 4);
  EXPECT_EQ(traffic.BytesBetween(1, 2), (2 + 5) * 4);
  EXPECT_EQ(traffic.BytesBetween(2, 0), 5 * 4);
  EXPECT_EQ(traffic.BytesBetween(0, 2), 0);
}

TEST(CollectiveTrafficTest, OnePlaceSendsNothing) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      CollectiveOp op = {.kind = kind, .algorithm = algorithm};
      if (kind == CollectiveKind::kPermute) op.permutation = {{0, 0}};
      EXPECT_EQ(TrafficOf(op, TilesAlike(1, 9)).BytesBetween(0, 0), 0);
    }
  }
}

TEST(CollectiveTrafficTest, NumbersBeyond64BitsAreCapped) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      SCOPED_TRACE(StrCat(CollectiveKindName(kind), " by ", CollectiveAlgorithmName(algorithm)));
      CollectiveOp op = {.kind = kind, .algorithm = algorithm};
      if (kind == CollectiveKind::kPermute) op.permutation = {{0, 1}};
      PlaceTraffic traffic(2);
      for (int i = 0; i < 3; ++i) AddCollectiveTraffic(op, TilesAlike(2, kMost), &traffic);
      const bool is_barrier = kind == CollectiveKind::kBarrier;
      const int64_t most = std::max(traffic.BytesBetween(0, 1), traffic.BytesBetween(1, 0));
      EXPECT_EQ(most, is_barrier ? 3 : kMost);
    }
  }
}

}  // namespace
}  // namespace shardmesh
