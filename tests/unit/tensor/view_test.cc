// Tiles cut out of tensors and put into them, against element-by-element copies.
#include "tensor/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <thread>
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

// Elements of a tensor in bits, one character 0 or 1 for each bit.
std::string BitsOf(const std::string& bytes, int64_t bits) {
  std::string text;
  for (int64_t i = 0; i < bits; ++i) {
    text.push_back((bytes[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0 ? '1' : '0');
  }
  return text;
}

std::string PackBits(const std::string& text) {
  std::string bytes((text.size() + 7) / 8, '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '1') bytes[i / 8] = static_cast<char>(bytes[i / 8] | 1 << (i % 8));
  }
  return bytes;
}

// The bits of a tile of a tensor of `element_bits`, one element after the other.
std::string TileText(const std::string& tensor, const Shape& shape, const Tile& tile,
                     int64_t element_bits) {
  return tile.element_count() == 0
             ? ""
             : Reference(tensor, shape, tile, static_cast<size_t>(element_bits));
}

// Writes the bits of a tile into those of a tensor, one element after the other.
void PasteText(const std::string& text, const Shape& shape, const Tile& tile, int64_t element_bits,
               std::string* tensor) {
  const Shape tile_shape = tile.shape();
  for (int64_t number = 0; number < tile.element_count(); ++number) {
    int64_t rest = number;
    int64_t index = 0;
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      index += (tile.ranges[i].start + rest % tile_shape[i]) * stride;
      rest /= tile_shape[i];
      stride *= shape[i];
    }
    tensor->replace(static_cast<size_t>(index * element_bits), static_cast<size_t>(element_bits),
                    text, static_cast<size_t>(number * element_bits),
                    static_cast<size_t>(element_bits));
  }
}

Tile RelativeTo(const Tile& tile, Tile region) {
  for (size_t i = 0; i < region.ranges.size(); ++i) {
    region.ranges[i].start -= tile.ranges[i].start;
    region.ranges[i].stop -= tile.ranges[i].start;
  }
  return region;
}

// Random tensors of types whose elements share bytes. Two tiles contain a region.
struct BitCase {
  Dtype dtype = Dtype::kF4;
  int64_t bits = 4;
  Shape shape;
  Tile from_tile;
  Tile to_tile;
  Tile region;
};

BitCase NextBitCase(std::mt19937& random) {
  const auto draw = [&random](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  constexpr Dtype kDtypes[] = {Dtype::kF4, Dtype::kF6E2M3, Dtype::kF6E3M2};
  BitCase c;
  c.dtype = kDtypes[draw(0, 2)];
  c.bits = BitsPerElement(c.dtype);
  const int64_t rank = draw(0, 4);
  for (int64_t dim = 0; dim < rank; ++dim) {
    const int64_t extent = draw(1, rank <= 2 ? 40 : 7);
    c.shape.push_back(extent);
    const int64_t start = draw(0, extent - 1);
    const int64_t stop = draw(draw(0, 20) == 0 ? start : start + 1, extent);
    c.region.ranges.push_back({start, stop});
    c.from_tile.ranges.push_back({draw(0, start), draw(stop, extent)});
    c.to_tile.ranges.push_back({draw(0, start), draw(stop, extent)});
  }
  return c;
}

std::string RandomTensorBytes(std::mt19937& random, int64_t bits) {
  std::string bytes(static_cast<size_t>((bits + 7) / 8), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(SubByteTest, RandomTilesHaveTheirElementsInPiecesOfAnySize) {
  std::mt19937 random(5);
  for (int round = 0; round < 10'000; ++round) {
    const BitCase c = NextBitCase(random);
    SCOPED_TRACE(testing::Message() << DtypeName(c.dtype) << " " << ShapeToString(c.shape) << " "
                                    << c.region.ToString());
    const int64_t tensor_bits = *ElementCount(c.shape) * c.bits;
    const std::string from = RandomTensorBytes(random, tensor_bits);
    std::string to = RandomTensorBytes(random, tensor_bits);
    const TensorView view = *TensorView::Create(c.dtype, c.shape, from);
    const MutableTensorView pasted =
        *MutableTensorView::Create(c.dtype, c.shape, absl::MakeSpan(to));
    const std::string text = TileText(BitsOf(from, tensor_bits), c.shape, c.region, c.bits);
    const std::string packed = PackBits(text);
    std::string expected = BitsOf(to, tensor_bits);
    PasteText(text, c.shape, c.region, c.bits, &expected);
    const bool has_last_element = [&] {
      for (size_t i = 0; i < c.shape.size(); ++i) {
        if (c.region.empty() || c.region.ranges[i].stop != c.shape[i]) return false;
      }
      return true;
    }();
    std::string copied(packed.size(), '\x5a');
    for (size_t at = 0; at < packed.size();) {
      const size_t piece = std::min<size_t>(packed.size() - at, 1 + random() % 9);
      const auto out = absl::MakeSpan(copied).subspan(at, piece);
      ASSERT_THAT(CopyTileBytes(view, c.region, static_cast<int64_t>(at), out), IsOk());
      ASSERT_THAT(PasteTileBytes(out, c.region, static_cast<int64_t>(at), pasted), IsOk());
      at += piece;
    }
    ASSERT_EQ(copied, packed);
    ASSERT_EQ(BitsOf(to, tensor_bits), expected);
    if (has_last_element) {
      ASSERT_EQ(to, PackBits(expected)) << "the last byte has padding that is not zero";
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto direct, ContiguousTileBytes(view, c.region));
    if (direct.has_value()) {
      ASSERT_EQ(std::string(direct->begin(), direct->end()), packed);
    }
  }
}

TEST(SubByteTest, RandomRegionsMoveBetweenTiles) {
  std::mt19937 random(6);
  for (int round = 0; round < 10'000; ++round) {
    const BitCase c = NextBitCase(random);
    SCOPED_TRACE(testing::Message() << DtypeName(c.dtype) << " " << c.from_tile.ToString() << " "
                                    << c.to_tile.ToString() << " " << c.region.ToString());
    const int64_t from_bits = c.from_tile.element_count() * c.bits;
    const int64_t to_bits = c.to_tile.element_count() * c.bits;
    const std::string from = RandomTensorBytes(random, from_bits);
    std::string to = RandomTensorBytes(random, to_bits);
    const std::string text = TileText(BitsOf(from, from_bits), c.from_tile.shape(),
                                      RelativeTo(c.from_tile, c.region), c.bits);
    std::string expected = BitsOf(to, to_bits);
    PasteText(text, c.to_tile.shape(), RelativeTo(c.to_tile, c.region), c.bits, &expected);
    ASSERT_THAT(CopyTile(*TensorView::Create(c.dtype, c.from_tile.shape(), from), c.from_tile,
                         *MutableTensorView::Create(c.dtype, c.to_tile.shape(), absl::MakeSpan(to)),
                         c.to_tile, c.region),
                IsOk());
    ASSERT_EQ(BitsOf(to, to_bits), expected);
  }
}

TEST(SubByteTest, ThreadsWriteTilesThatShareBytes) {
  // Columns of three elements each, of rows that end within a byte.
  constexpr int64_t kThreads = 4;
  const Shape shape = {501, 3 * kThreads + 1};
  const int64_t tensor_bits = *ElementCount(shape) * 4;
  std::mt19937 random(7);
  const std::string from = RandomTensorBytes(random, tensor_bits);
  std::string to(from.size(), '\x5a');
  const TensorView view = *TensorView::Create(Dtype::kF4, shape, from);
  const MutableTensorView pasted =
      *MutableTensorView::Create(Dtype::kF4, shape, absl::MakeSpan(to));
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread <= kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const Tile tile{{{0, shape[0]}, {3 * thread, std::min(3 * thread + 3, shape[1])}}};
      std::string bytes(static_cast<size_t>((tile.element_count() * 4 + 7) / 8), '\0');
      EXPECT_THAT(CopyTileBytes(view, tile, 0, absl::MakeSpan(bytes)), IsOk());
      EXPECT_THAT(PasteTileBytes(bytes, tile, 0, pasted), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(to, PackBits(BitsOf(from, tensor_bits)));
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
