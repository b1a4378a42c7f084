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

// --- Parts of places

TEST(SplitProductTest, RowsBesideAMatrixAreRowsOfAllDimensionsBehind) {
  const SplitProduct split = SplitOf({.lhs = {2, 5, 3, 4}, .rhs = {4, 6}, .out = {2, 5, 3, 6}},
                                     ProductSide::kLhs, 1, {2, 0, 3});
  EXPECT_EQ(split.kind, SplitKind::kRows);
  EXPECT_EQ(split.m, 15);
  EXPECT_THAT(split.extents, ElementsAre(6, 0, 9));
  EXPECT_EQ(RangeOf(split, 2).first_row, 6);
  EXPECT_EQ(RangeOf(split, 2).rows, 9);
  EXPECT_EQ(RangeOf(split, 2).columns, 6);
  EXPECT_THAT(MatricesOf(split, 2), ElementsAre(MatrixProduct{0, 0, 0}, MatrixProduct{1, 0, 1}));
  EXPECT_THAT(MatricesOf(split, 1), IsEmpty());
  EXPECT_EQ(PartMatrices(split, 2), 2);
}

TEST(SplitProductTest, ColumnsBesideAMatrixAreThoseOfAllRows) {
  for (const bool transpose_rhs : {false, true}) {
    const SplitProduct split = SplitOf({.lhs = {2, 3, 4},
                                        .rhs = transpose_rhs ? Shape{6, 4} : Shape{4, 6},
                                        .out = {2, 3, 6},
                                        .transpose_rhs = transpose_rhs},
                                       ProductSide::kRhs, transpose_rhs ? 0 : 1, {1, 5});
    EXPECT_EQ(split.kind, SplitKind::kColumns);
    EXPECT_EQ(split.m, 6);
    EXPECT_EQ(split.n, 6);
    EXPECT_EQ(split.k, 4);
    EXPECT_EQ(RangeOf(split, 1).first_column, 1);
    EXPECT_EQ(RangeOf(split, 1).columns, 5);
    EXPECT_THAT(MatricesOf(split, 1), ElementsAre(MatrixProduct{0, 0, 0}));
  }
}

TEST(SplitProductTest, AVectorHasOneRowAndColumns) {
  const SplitProduct split =
      SplitOf({.lhs = {4}, .rhs = {4, 6}, .out = {6}}, ProductSide::kRhs, 1, {6, 0});
  EXPECT_EQ(split.kind, SplitKind::kColumns);
  EXPECT_EQ(split.m, 1);
  EXPECT_THAT(MatricesOf(split, 0), ElementsAre(MatrixProduct{0, 0, 0}));
}

TEST(SplitProductTest, ABatchOfPlacesCountsTheExchangedTensorInItsPart) {
  const TileProduct tiles = {.lhs = {2, 3, 1, 4}, .rhs = {3, 4, 5}, .out = {2, 3, 1, 5}};
  const SplitProduct of_rhs = SplitOf(tiles, ProductSide::kRhs, 0, {1, 2});
  EXPECT_EQ(of_rhs.kind, SplitKind::kBatch);
  // Each right matrix of the place's part belongs to two left ones.
  EXPECT_THAT(MatricesOf(of_rhs, 1), ElementsAre(MatrixProduct{1, 0, 1}, MatrixProduct{2, 1, 2},
                                                 MatrixProduct{4, 0, 4}, MatrixProduct{5, 1, 5}));
  EXPECT_EQ(PartMatrices(of_rhs, 1), 2);
  const SplitProduct of_lhs = SplitOf(tiles, ProductSide::kLhs, 1, {1, 2});
  EXPECT_THAT(MatricesOf(of_lhs, 1), ElementsAre(MatrixProduct{0, 1, 1}, MatrixProduct{1, 2, 2},
                                                 MatrixProduct{2, 1, 4}, MatrixProduct{3, 2, 5}));
  EXPECT_EQ(PartMatrices(of_lhs, 1), 4);
  const SplitProduct of_out = SplitOf(tiles, ProductSide::kOut, 1, {1, 2});
  EXPECT_THAT(MatricesOf(of_out, 1), ElementsAre(MatrixProduct{1, 1, 0}, MatrixProduct{2, 2, 1},
                                                 MatrixProduct{4, 1, 2}, MatrixProduct{5, 2, 3}));
}

TEST(SplitProductTest, RowsOfTransposedBatchesStayApart) {
  const SplitProduct split =
      SplitOf({.lhs = {2, 4, 3}, .rhs = {4, 5}, .out = {2, 3, 5}, .transpose_lhs = true},
              ProductSide::kLhs, 2, {1, 2});
  EXPECT_EQ(split.kind, SplitKind::kRows);
  EXPECT_EQ(split.m, 3);
  EXPECT_EQ(RangeOf(split, 1).first_row, 1);
  EXPECT_THAT(MatricesOf(split, 1), ElementsAre(MatrixProduct{0, 0, 0}, MatrixProduct{1, 0, 1}));
}

TEST(SplitProductTest, AResultWithoutElementsHasNoMatricesThoughItsOtherExtentsAreLarge) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const SplitProduct split = SplitOf(
      {.lhs = {kMany, kMany, 4, 0}, .rhs = {kMany, kMany, 0, 0}, .out = {kMany, kMany, 4, 0}},
      ProductSide::kLhs, 2, {2, 2});
  EXPECT_THAT(MatricesOf(split, 0), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::worker
