// Bands of tiles: their order, their sizes, and that they cover the tile.
#include "client/remote/row_bands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tensor/view.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Texts(Dtype dtype, const Tile& tile, int64_t max_bytes) {
  std::vector<std::string> texts;
  RowBands bands(dtype, tile, max_bytes);
  while (const std::optional<Tile> band = bands.Next()) texts.push_back(band->ToString());
  return texts;
}

TEST(RowBandsTest, CutsRowsAndIfOneIsTooLargeWithinIt) {
  const Tile tile = Tile::Whole(std::vector<int64_t>{3, 8});
  EXPECT_THAT(Texts(Dtype::kF32, tile, 1000), ElementsAre("[0,3)x[0,8)"));
  EXPECT_THAT(Texts(Dtype::kF32, tile, 64), ElementsAre("[0,2)x[0,8)", "[2,3)x[0,8)"));
  EXPECT_THAT(Texts(Dtype::kF32, tile, 31),
              ElementsAre("[0,1)x[0,7)", "[0,1)x[7,8)", "[1,2)x[0,7)", "[1,2)x[7,8)", "[2,3)x[0,7)",
                          "[2,3)x[7,8)"));
}

TEST(RowBandsTest, AScalarIsOneBandAndNothingIsNone) {
  EXPECT_THAT(Texts(Dtype::kF32, Tile{}, 1), ElementsAre("()"));
  EXPECT_THAT(Texts(Dtype::kF32, Tile::Whole(std::vector<int64_t>{0, 4}), 1), ElementsAre());
  EXPECT_THAT(Texts(Dtype::kF32, Tile::Whole(std::vector<int64_t>{4, 0}), 1), ElementsAre());
}

TEST(RowBandsTest, ABandHasAtLeastOneElementHoweverSmallTheLimit) {
  EXPECT_THAT(Texts(Dtype::kF64, Tile::Whole(std::vector<int64_t>{2}), 1),
              ElementsAre("[0,1)", "[1,2)"));
}

TEST(RowBandsTest, BandsOfSmallTypesEndAtWholeBytes) {
  EXPECT_THAT(Texts(Dtype::kF4, Tile::Whole(std::vector<int64_t>{20}), 1),
              ElementsAre("[0,8)", "[8,16)", "[16,20)"));
  EXPECT_THAT(Texts(Dtype::kF4, Tile::Whole(std::vector<int64_t>{4, 6}), 3),
              ElementsAre("[0,1)x[0,6)", "[1,2)x[0,6)", "[2,3)x[0,6)", "[3,4)x[0,6)"));
}

TEST(RowBandsTest, BandsOfRowsThatEndWithinAByteAreWholeRows) {
  EXPECT_THAT(Texts(Dtype::kF4, Tile::Whole(std::vector<int64_t>{18, 5}), 1),
              ElementsAre("[0,8)x[0,5)", "[8,16)x[0,5)", "[16,18)x[0,5)"));
  // A row of 4 elements has whole bytes.
  EXPECT_THAT(Texts(Dtype::kF4, Tile::Whole(std::vector<int64_t>{1, 2, 4}), 1),
              ElementsAre("[0,1)x[0,1)x[0,4)", "[0,1)x[1,2)x[0,4)"));
  for (const Dtype dtype : {Dtype::kF4, Dtype::kF6E2M3}) {
    const int64_t bits = BitsPerElement(dtype);
    for (int64_t columns = 1; columns < 20; ++columns) {
      for (int64_t max_bytes = 1; max_bytes < 20; ++max_bytes) {
        const Tile tile{{{1, 4}, {2, 13}, {3, 3 + columns}}};
        RowBands bands(dtype, tile, max_bytes);
        int64_t elements = 0;
        while (const std::optional<Tile> band = bands.Next()) {
          ASSERT_EQ(elements * bits % 8, 0) << band->ToString() << " begins within a byte";
          elements += band->element_count();
        }
        ASSERT_EQ(elements, tile.element_count());
      }
    }
  }
}

TEST(RowBandsTest, TheBandsOfAnyTileAreItsBytesInOrder) {
  std::mt19937 random(7);
  const auto draw = [&random](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    Tile tile;
    for (int64_t dims = draw(0, 4); dims > 0; --dims) {
      const int64_t size = draw(1, 7);
      const int64_t start = draw(0, size - 1);
      shape.push_back(size);
      tile.ranges.push_back({start, draw(start + 1, size)});
    }
    const int64_t max_bytes = draw(1, 200);
    const int64_t tile_bytes = 2 * tile.element_count();
    RowBands bands(Dtype::kBF16, tile, max_bytes);
    int64_t next = 0;  // byte of the tile
    while (const std::optional<Tile> band = bands.Next()) {
      // In coordinates of the tile, a band is one run, and begins where the last one ended.
      Tile place = *band;
      for (size_t dim = 0; dim < place.ranges.size(); ++dim) {
        place.ranges[dim].start -= tile.ranges[dim].start;
        place.ranges[dim].stop -= tile.ranges[dim].start;
      }
      const auto region = TileRegion::Create(Dtype::kBF16, tile.shape(), place);
      ASSERT_TRUE(region.ok()) << region.status();
      ASSERT_TRUE(region->contiguous()) << band->ToString() << " of " << tile.ToString();
      ASSERT_EQ(region->offset_bytes(), next) << band->ToString() << " of " << tile.ToString();
      ASSERT_LE(region->size_bytes(), std::max<int64_t>(max_bytes, 2));
      next += region->size_bytes();
    }
    ASSERT_EQ(next, tile_bytes) << tile.ToString() << " in bands of " << max_bytes;
  }
}

}  // namespace
}  // namespace shardmesh::client
