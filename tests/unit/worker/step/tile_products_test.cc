// Tests of worker/step/tile_products.h.
#include "worker/step/tile_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Matrices = std::array<int64_t, 3>;  // numbers in lhs, rhs and out

std::vector<Matrices> ProductsOfTile(const TileProduct& tiles) {
  std::vector<Matrices> products;
  EXPECT_TRUE(ForEachProduct(LoopsOf(tiles), [&](int64_t lhs, int64_t rhs, int64_t out) {
                products.push_back({lhs, rhs, out});
                return absl::OkStatus();
              }).ok());
  return products;
}

TEST(TileProductsTest, RowsOfABatchAreOneMatrixBesideAMatrix) {
  const TileProduct tiles = {.lhs = {2, 3, 4}, .rhs = {4, 5}, .out = {2, 3, 5}};
  const ProductLoops loops = LoopsOf(tiles);
  EXPECT_EQ(loops.products, 1);
  EXPECT_TRUE(loops.is_one_rhs);
  EXPECT_THAT(loops.batch, IsEmpty());
  EXPECT_EQ(loops.m, 6);
  EXPECT_EQ(loops.n, 5);
  EXPECT_EQ(loops.k, 4);
  EXPECT_THAT(ProductsOfTile(tiles), ElementsAre(Matrices{0, 0, 0}));
}

TEST(TileProductsTest, AVectorIsOneRow) {
  const ProductLoops loops =
      LoopsOf({.lhs = {4}, .rhs = {5, 4}, .out = {5}, .transpose_rhs = true});
  EXPECT_EQ(loops.products, 1);
  EXPECT_TRUE(loops.is_one_rhs);
  EXPECT_THAT(loops.batch, IsEmpty());
  EXPECT_EQ(loops.m, 1);
  EXPECT_EQ(loops.n, 5);
  EXPECT_EQ(loops.k, 4);
}

TEST(TileProductsTest, TransposedMatricesOfABatchAreMultipliedOneByOne) {
  const TileProduct tiles = {
      .lhs = {2, 4, 3}, .rhs = {4, 5}, .out = {2, 3, 5}, .transpose_lhs = true};
  const ProductLoops loops = LoopsOf(tiles);
  EXPECT_EQ(loops.products, 2);
  EXPECT_TRUE(loops.is_one_rhs);
  EXPECT_EQ(loops.m, 3);
  EXPECT_THAT(ProductsOfTile(tiles), ElementsAre(Matrices{0, 0, 0}, Matrices{1, 0, 1}));
}

TEST(TileProductsTest, BatchesAreBroadcastInEitherOperand) {
  const TileProduct tiles = {.lhs = {2, 1, 3, 4}, .rhs = {2, 4, 5}, .out = {2, 2, 3, 5}};
  const ProductLoops loops = LoopsOf(tiles);
  EXPECT_FALSE(loops.is_one_rhs);
  EXPECT_EQ(loops.products, 4);
  EXPECT_THAT(loops.batch, ElementsAre(BatchLoop{.extent = 2, .lhs_stride = 1, .rhs_stride = 0},
                                       BatchLoop{.extent = 2, .lhs_stride = 0, .rhs_stride = 1}));
  EXPECT_THAT(ProductsOfTile(tiles), ElementsAre(Matrices{0, 0, 0}, Matrices{0, 1, 1},
                                                 Matrices{1, 0, 2}, Matrices{1, 1, 3}));
}

TEST(TileProductsTest, AnEmptyBatchHasNoProducts) {
  EXPECT_THAT(ProductsOfTile({.lhs = {0, 3, 4}, .rhs = {0, 4, 5}, .out = {0, 3, 5}}),
              ElementsAre());
}

TEST(TileProductsTest, MatricesWithoutElementsAreNotMultiplied) {
  constexpr int64_t kMany = int64_t{1} << 40;
  EXPECT_EQ(LoopsOf({.lhs = {kMany, 0, 4}, .rhs = {kMany, 4, 5}, .out = {kMany, 0, 5}}).products,
            0);
}

TEST(TileProductsTest, AResultWithoutElementsHasNoProductsThoughItsOtherExtentsAreLarge) {
  constexpr int64_t kMany = int64_t{1} << 40;
  EXPECT_EQ(
      LoopsOf({.lhs = {kMany, kMany, 0, 4}, .rhs = {4, 5}, .out = {kMany, kMany, 0, 5}}).products,
      0);
  EXPECT_EQ(LoopsOf({.lhs = {4}, .rhs = {4, 0}, .out = {0}}).products, 0);
}

TEST(TileProductsTest, MatricesThatContractNothingAreMultipliedBecauseTheirProductHasElements) {
  EXPECT_EQ(LoopsOf({.lhs = {3, 2, 0}, .rhs = {3, 0, 5}, .out = {3, 2, 5}}).products, 3);
}

TEST(TileProductsTest, EndsWithTheFirstError) {
  int runs = 0;
  const absl::Status status =
      ForEachProduct(LoopsOf({.lhs = {3, 1, 1}, .rhs = {3, 1, 1}, .out = {3, 1, 1}}),
                     [&](int64_t, int64_t, int64_t) {
                       return ++runs == 2 ? absl::CancelledError("enough") : absl::OkStatus();
                     });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace shardmesh::worker
