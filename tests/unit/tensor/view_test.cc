// Tiles cut out of tensors and put into them, against element-by-element copies.
#include "tensor/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

std::string Counting(int64_t size) {
  std::string bytes;
  for (int64_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<char>(i * 131 + i / 251));
  }
  return bytes;
}

// The tile's bytes, one element after the other.
std::string Reference(const std::string& tensor, const Shape& shape, const Tile& tile,
                      size_t element_bytes) {
  std::string out;
  const int64_t count = tile.element_count();
  for (int64_t number = 0; number < count; ++number) {
    int64_t rest = number;
    int64_t offset = 0;
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      offset += (tile.ranges[i].start + rest % tile.ranges[i].size()) * stride;
      rest /= tile.ranges[i].size();
      stride *= shape[i];
    }
    out += tensor.substr(static_cast<size_t>(offset) * element_bytes, element_bytes);
  }
  return out;
}

struct TileCase {
  const char* name;
  Shape shape;
  Tile tile;
  int64_t run_bytes;
  bool contiguous;
};

const std::vector<TileCase>& TileCases() {
  static const auto* cases = new std::vector<TileCase>{
      {"Scalar", {}, {}, 4, true},
      {"Whole", {3, 5}, {{{0, 3}, {0, 5}}}, 60, true},
      {"Rows", {8, 16}, {{{2, 4}, {0, 16}}}, 128, true},
      {"Columns", {8, 16}, {{{0, 8}, {4, 8}}}, 16, false},
      {"OneRowsColumns", {8, 16}, {{{3, 4}, {4, 8}}}, 16, true},
      {"Middle", {2, 4, 6}, {{{0, 2}, {1, 3}, {0, 6}}}, 48, false},
      {"InnerColumns", {2, 3, 7}, {{{0, 2}, {0, 3}, {6, 7}}}, 4, false},
      {"ExtentOne", {4, 1, 5}, {{{1, 3}, {0, 1}, {0, 5}}}, 40, true},
      {"Box", {5, 6, 7}, {{{1, 4}, {2, 5}, {3, 6}}}, 12, false},
      {"Empty", {4, 4}, {{{2, 2}, {0, 4}}}, 0, true},
      {"EmptyTensor", {0, 4}, {{{0, 0}, {1, 2}}}, 0, true},
  };
  return *cases;
}

TEST(TileRegionTest, FindsTheLongestRuns) {
  for (const TileCase& c : TileCases()) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TileRegion region,
                                   TileRegion::Create(Dtype::kF32, c.shape, c.tile));
    EXPECT_EQ(region.run_bytes(), c.run_bytes) << c.name;
    EXPECT_EQ(region.contiguous(), c.contiguous) << c.name;
    EXPECT_EQ(region.size_bytes(), c.tile.element_count() * 4) << c.name;
  }
}

TEST(CopyTileBytesTest, PiecesOfAnySizeGiveTheTileAndPasteBack) {
  for (const TileCase& c : TileCases()) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t elements, ElementCount(c.shape));
    const std::string tensor = Counting(elements * 4);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                   TensorView::Create(Dtype::kF32, c.shape, tensor));
    const std::string expected = Reference(tensor, c.shape, c.tile, 4);
    const int64_t size = static_cast<int64_t>(expected.size());
    for (const int64_t piece : {1, 3, 16, 50, 1000}) {
      std::string copied(expected.size(), '\0');
      std::string pasted_bytes = tensor;
      for (int64_t i = 0; i < elements * 4; ++i) {
        pasted_bytes[static_cast<size_t>(i)] ^= '\x5A';
      }
      const std::string untouched = pasted_bytes;
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const MutableTensorView pasted,
          MutableTensorView::Create(Dtype::kF32, c.shape, absl::MakeSpan(pasted_bytes)));
      for (int64_t at = 0; at < size; at += piece) {
        const auto out =
            absl::MakeSpan(copied).subspan(static_cast<size_t>(at), static_cast<size_t>(piece));
        ASSERT_THAT(CopyTileBytes(view, c.tile, at, out), IsOk()) << c.name;
        ASSERT_THAT(PasteTileBytes(out, c.tile, at, pasted), IsOk()) << c.name;
      }
      EXPECT_EQ(copied, expected) << c.name << " in pieces of " << piece;
      EXPECT_EQ(Reference(pasted_bytes, c.shape, c.tile, 4), expected) << c.name;
      int64_t changed = 0;
      for (size_t i = 0; i < pasted_bytes.size(); ++i) {
        changed += pasted_bytes[i] != untouched[i];
      }
      EXPECT_EQ(changed, size) << c.name;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto direct, ContiguousTileBytes(view, c.tile));
    ASSERT_EQ(direct.has_value(), c.contiguous) << c.name;
    if (direct.has_value()) {
      EXPECT_EQ(std::string(direct->begin(), direct->end()), expected) << c.name;
    }
  }
}

TEST(CopyTileTest, MovesARegionBetweenTilesOfOneTensor) {
  const Shape shape = {6, 8, 10};
  const std::string tensor = Counting(480 * 2);
  const std::vector<Tile> tiles = {Tile::Whole(shape),
                                   {{{0, 3}, {0, 8}, {0, 10}}},
                                   {{{0, 6}, {2, 7}, {0, 10}}},
                                   {{{0, 6}, {0, 8}, {3, 9}}},
                                   {{{2, 5}, {1, 6}, {2, 8}}}};
  for (const Tile& from_tile : tiles) {
    for (const Tile& to_tile : tiles) {
      const Tile region = *Intersect(from_tile, to_tile);
      const std::string from_bytes = Reference(tensor, shape, from_tile, 2);
      std::string to_bytes(static_cast<size_t>(to_tile.element_count()) * 2, '\0');
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const TensorView from, TensorView::Create(Dtype::kBF16, from_tile.shape(), from_bytes));
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const MutableTensorView to,
          MutableTensorView::Create(Dtype::kBF16, to_tile.shape(), absl::MakeSpan(to_bytes)));
      ASSERT_THAT(CopyTile(from, from_tile, to, to_tile, region), IsOk());
      Tile local = region;
      for (size_t i = 0; i < local.ranges.size(); ++i) {
        local.ranges[i].start -= to_tile.ranges[i].start;
        local.ranges[i].stop -= to_tile.ranges[i].start;
      }
      EXPECT_EQ(Reference(to_bytes, to_tile.shape(), local, 2), Reference(tensor, shape, region, 2))
          << from_tile.ToString() << " to " << to_tile.ToString();
    }
  }
}

TEST(CopyTileTest, AnEmptyRegionIsWithinEveryTile) {
  const std::string bytes(16, 'a');
  std::string out(16, 'b');
  const Tile from_tile = {{{0, 1}, {0, 4}}};
  const Tile to_tile = {{{4, 5}, {2, 6}}};
  const auto from = TensorView::Create(Dtype::kF32, {1, 4}, bytes);
  const auto to = MutableTensorView::Create(Dtype::kF32, {1, 4}, absl::MakeSpan(out));
  const std::vector<Tile> regions = {
      {{{2, 2}, {0, 4}}}, {{{0, 1}, {4, 4}}}, {{{0, 9}, {7, 7}}}, {{{9, 9}, {9, 9}}}};
  for (const Tile& region : regions) {
    EXPECT_THAT(CopyTile(*from, from_tile, *to, to_tile, region), IsOk()) << region.ToString();
  }
  // An empty part of uneven cuts, and the tile of a device that had nothing.
  const Tile nothing = {{{5, 5}, {0, 4}}};
  const auto no_rows = MutableTensorView::Create(Dtype::kF32, {0, 4}, absl::Span<char>());
  EXPECT_THAT(CopyTile(*from, from_tile, *no_rows, nothing, nothing), IsOk());
  const auto no_source = TensorView::Create(Dtype::kF32, {0, 4}, absl::Span<const char>());
  EXPECT_THAT(CopyTile(*no_source, nothing, *to, to_tile, {{{1, 1}, {0, 4}}}), IsOk());
  const std::vector<Tile> bad = {{{{2, 2}}}, {{{2, 2}, {3, 1}}}, {{{2, 3}, {0, 4}}}};
  for (const Tile& region : bad) {
    EXPECT_THAT(CopyTile(*from, from_tile, *to, to_tile, region),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile))
        << region.ToString();
  }
  EXPECT_EQ(out, std::string(16, 'b'));
}

TEST(CopyTileTest, RefusesWhatDoesNotFit) {
  const std::string bytes(16, 'a');
  std::string out(16, 'b');
  const Tile whole = {{{0, 4}}};
  const auto from = TensorView::Create(Dtype::kF32, {4}, bytes);
  const auto to = MutableTensorView::Create(Dtype::kF32, {4}, absl::MakeSpan(out));
  const auto ints = MutableTensorView::Create(Dtype::kI32, {4}, absl::MakeSpan(out));
  EXPECT_THAT(CopyTile(*from, whole, *ints, whole, whole),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(CopyTile(*from, {{{0, 3}}}, *to, whole, whole),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(CopyTile(*from, whole, *to, {{{4, 8}}}, whole),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_EQ(out, std::string(16, 'b'));
}

TEST(TileRegionTest, RefusesTilesThatAreNotWithinTheTensor) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<Tile> bad = {
      {{{0, 4}}},         {{{0, 5}, {0, 4}}},    {{{-1, 2}, {0, 4}}},
      {{{3, 2}, {0, 4}}}, {{{0, 4}, {0, kMax}}}, {{{kMax, kMax}, {0, 1}}}};
  for (const Tile& tile : bad) {
    EXPECT_THAT(TileRegion::Create(Dtype::kF32, {4, 4}, tile),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  }
}

TEST(TileRegionTest, CutsSubByteElementsAtWholeBytesOnly) {
  EXPECT_THAT(TileRegion::Create(Dtype::kF4, {4, 4}, {{{0, 4}, {2, 4}}}), IsOk());
  EXPECT_THAT(TileRegion::Create(Dtype::kF4, {4, 4}, {{{0, 4}, {1, 3}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(TileRegion::Create(Dtype::kF4, {4, 3}, {{{0, 4}, {0, 2}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(TileRegion::Create(Dtype::kF4, {4, 3}, {{{2, 4}, {0, 3}}}), IsOk());
}

TEST(CopyTileBytesTest, RefusesRangesBeyondTheTile) {
  const std::string bytes(64, 'a');
  const auto view = TensorView::Create(Dtype::kF32, {4, 4}, bytes);
  const Tile tile = {{{0, 4}, {0, 2}}};
  std::string out(8, '\0');
  EXPECT_THAT(CopyTileBytes(*view, tile, 25, absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(CopyTileBytes(*view, tile, -1, absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
}

TEST(TensorViewTest, RefusesBytesOfAnotherSize) {
  EXPECT_THAT(TensorView::Create(Dtype::kF32, {2, 2}, std::string(15, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
}

}  // namespace
}  // namespace shardmesh
