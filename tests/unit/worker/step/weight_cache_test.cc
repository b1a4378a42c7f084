// Packed weights and the budget that they live on.
#include "worker/step/weight_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using test::IsOk;

constexpr int64_t kN = 64;
constexpr int64_t kK = 48;
constexpr int64_t kTileBytes = kN * kK * 4;

class WeightCacheTest : public ::testing::Test {
 protected:
  static MatmulSpec Spec() {
    return {.m = 8,
            .n = kN,
            .k = kK,
            .lhs_dtype = Dtype::kF32,
            .rhs_dtype = Dtype::kF32,
            .out_dtype = Dtype::kF32,
            .transpose_rhs = true};
  }
  static OwnedBytes Tile() {
    auto bytes = std::make_shared<const std::string>(kTileBytes, '\0');
    return {*bytes, bytes};
  }

  MatmulKernel kernel_{{.threads = 1}};
  MemoryBudget budget_{4 * kTileBytes};
  WeightCache cache_{&kernel_, &budget_};
};

TEST_F(WeightCacheTest, PacksOnceUntilTheArrayIsForgotten) {
  const OwnedBytes tile = Tile();
  const auto packed = *cache_.Find("a", Spec(), tile);
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(*cache_.Find("a", Spec(), tile), packed);
  EXPECT_EQ(budget_.used_bytes(), packed->size_bytes());
  cache_.Forget({"a"});
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(WeightCacheTest, AWeightThatFoundNoRoomIsTriedAgain) {
  const OwnedBytes tile = Tile();
  {
    auto others = budget_.Reserve(4 * kTileBytes, "others");
    ASSERT_THAT(others, IsOk());
    EXPECT_EQ(*cache_.Find("a", Spec(), tile), nullptr);
  }
  EXPECT_NE(*cache_.Find("a", Spec(), tile), nullptr);
}

TEST_F(WeightCacheTest, NobodyGivesMemoryUpForAPackedWeight) {
  const OwnedBytes tile = Tile();
  auto others = budget_.Reserve(4 * kTileBytes, "others");
  ASSERT_THAT(others, IsOk());
  int asked = 0;
  budget_.AddReclaim(this, [&](int64_t) {
    ++asked;
    *others = {};
    return true;
  });
  EXPECT_EQ(*cache_.Find("a", Spec(), tile), nullptr);
  EXPECT_EQ(asked, 0);
  EXPECT_THAT(budget_.Reserve(1, "a tile"), IsOk());
  EXPECT_EQ(asked, 1);
  budget_.RemoveReclaim(this);
}

TEST_F(WeightCacheTest, LetsGoOfATileThatNobodyKeeps) {
  OwnedBytes tile = Tile();
  cache_.Forget({"a"});  // the array is dropped while a step still uses it
  ASSERT_NE(*cache_.Find("a", Spec(), tile), nullptr);
  cache_.ForgetGone();
  EXPECT_GT(budget_.used_bytes(), 0);
  tile = {};
  cache_.ForgetGone();
  EXPECT_EQ(budget_.used_bytes(), 0);
}

}  // namespace
}  // namespace shardmesh::worker
