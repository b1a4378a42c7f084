// Regions of tiles that are compared with files: each changed byte is found, and none of other
// tiles.
#include "worker/save/region_comparer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

class RegionComparerTest : public testing::Test {
 protected:
  RegionComparerTest()
      : path_(StrCat(testing::TempDir(), "/region_comparer_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~RegionComparerTest() override { std::filesystem::remove(path_); }

  void Write(std::string_view bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string Random(int64_t size) {
    std::string bytes(static_cast<size_t>(size), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  static std::string TileOf(const std::string& tensor, const Shape& shape, const Tile& tile) {
    const auto view = TensorView::Create(Dtype::kU8, shape, tensor);
    std::string bytes(static_cast<size_t>(tile.element_count()), '\0');
    EXPECT_THAT(CopyTileBytes(*view, tile, 0, absl::MakeSpan(bytes)), IsOk());
    return bytes;
  }
  absl::StatusOr<std::optional<uint32_t>> Compare(
      const std::string& tile_bytes, const RegionPlace& place,
      const std::function<absl::Status()>& keep_going = nullptr) {
    pieces_.clear();
    SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path_));
    return CompareRegion(file, path_, tile_bytes, place, keep_going, &pieces_);
  }

  const std::string path_;
  std::mt19937 random_{12};
  std::vector<uint32_t> pieces_;
};

TEST_F(RegionComparerTest, FindsEachChangedByteOfTheRegionAndNoneBesideIt) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  };
  for (int round = 0; round < 300; ++round) {
    const Shape shape = {pick(1, 9), pick(1, 40), pick(1, 70)};
    const std::string tensor = Random(shape[0] * shape[1] * shape[2]);
    const int64_t offset = pick(0, 100);
    const std::string file = Random(offset) + tensor + Random(10);
    Tile tile;
    for (const int64_t extent : shape) {
      const int64_t start = pick(0, extent - 1);
      tile.ranges.push_back({start, pick(start + 1, extent)});
    }
    const std::string bytes = TileOf(tensor, shape, tile);
    const auto size = static_cast<int64_t>(bytes.size());
    const int64_t begin = pick(0, size);
    const RegionPlace place{.dtype = Dtype::kU8,
                            .tensor_shape = shape,
                            .tile = tile,
                            .begin_bytes = begin,
                            .end_bytes = pick(begin, size),
                            .offset_bytes = offset};
    const uint32_t crc32c = Crc32c(std::string_view(bytes).substr(
        static_cast<size_t>(begin), static_cast<size_t>(place.end_bytes - begin)));
    Write(file);
    EXPECT_THAT(Compare(bytes, place), IsOkAndHolds(std::optional<uint32_t>(crc32c))) << round;
    // The places of the region's bytes in the file.
    std::vector<bool> is_region(file.size());
    const TileRegion region = *RegionOf(place, size);
    region.ForEachRun(begin, place.end_bytes, [&](int64_t at, int64_t count) {
      for (int64_t i = 0; i < count; ++i) is_region[static_cast<size_t>(offset + at + i)] = true;
    });
    for (int change = 0; change < 10; ++change) {
      const auto at = static_cast<size_t>(pick(0, static_cast<int64_t>(file.size()) - 1));
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << pick(0, 7)));
      Write(changed);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<uint32_t> compared, Compare(bytes, place));
      EXPECT_EQ(compared.has_value(), !is_region[at]) << round << " " << at;
    }
  }
}

TEST_F(RegionComparerTest, ReturnsTheChecksumsOfThePiecesOfTilesOfAllRunLengths) {
  // Runs of some bytes, of more than a gap, and one run of several MiB.
  for (const int64_t columns : {int64_t{6}, int64_t{20'000}, int64_t{1}}) {
    const Shape shape = columns == 1 ? Shape{5 << 20} : Shape{(6 << 20) / columns, columns};
    const std::string tensor = Random(columns == 1 ? shape[0] : shape[0] * shape[1]);
    Tile tile = Tile::Whole(shape);
    if (columns > 1) tile.ranges[1] = {columns / 3, columns};
    const std::string bytes = TileOf(tensor, shape, tile);
    Write(tensor);
    const RegionPlace place{.dtype = Dtype::kU8,
                            .tensor_shape = shape,
                            .tile = tile,
                            .begin_bytes = 0,
                            .end_bytes = static_cast<int64_t>(bytes.size()),
                            .offset_bytes = 0};
    EXPECT_THAT(Compare(bytes, place), IsOkAndHolds(std::optional<uint32_t>(Crc32c(bytes))));
    std::vector<uint32_t> expected;
    for (size_t at = 0; at < bytes.size(); at += kSavedPieceBytes) {
      expected.push_back(Crc32c(std::string_view(bytes).substr(at, kSavedPieceBytes)));
    }
    EXPECT_EQ(pieces_, expected) << columns;
    std::string changed = tensor;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    Write(changed);
    EXPECT_THAT(Compare(bytes, place), IsOkAndHolds(std::optional<uint32_t>())) << columns;
  }
}

TEST_F(RegionComparerTest, AShortFileAWrongRangeAndACancellationAreErrors) {
  const std::string bytes = Random(3 << 20);
  RegionPlace place{.dtype = Dtype::kU8,
                    .tensor_shape = {3 << 20},
                    .tile = Tile::Whole({3 << 20}),
                    .begin_bytes = 0,
                    .end_bytes = 3 << 20,
                    .offset_bytes = 0};
  Write(bytes);
  EXPECT_THAT(Compare(bytes, place, [] { return absl::CancelledError("enough"); }),
              StatusIs(absl::StatusCode::kCancelled));
  Write(std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_THAT(Compare(bytes, place), StatusIs(absl::StatusCode::kInvalidArgument));
  place.end_bytes += 1;
  EXPECT_THAT(Compare(bytes, place), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace shardmesh::worker
