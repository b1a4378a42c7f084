// Tile files: what is written comes back, and damage is seen.
#include "worker/store/tile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "process/crc32c.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class TileFileTest : public testing::Test {
 protected:
  TileFileTest() {
    header_.description = {"array-1",          Dtype::kBF16, {4, 8},
                           {{{0, 4}, {4, 8}}}, "\x01\xff",   "transfer with space"};
    header_.cluster_id = "cluster";
    header_.crc32c = Crc32c(bytes_);
  }

  void Spill(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  // One path for each test: ctest runs them side by side.
  const std::string path_ = testing::TempDir() + "/" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".safetensors";
  const std::string bytes_ = "abcdefghijklmnopqrstuvwxyz012345";
  TileFileHeader header_;
  MemoryBudget budget_{1 << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
};

TEST_F(TileFileTest, EverythingComesBack) {
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TileFileContents read, ReadTileFile(path_, *pool_));
  EXPECT_EQ(read.header.description, header_.description);
  EXPECT_EQ(read.header.cluster_id, "cluster");
  EXPECT_EQ(read.header.crc32c, header_.crc32c);
  EXPECT_EQ(read.bytes.bytes(), absl::MakeConstSpan(bytes_));
}

TEST_F(TileFileTest, AScalarComesBack) {
  header_.description.array_shape.clear();
  header_.description.tile.ranges.clear();
  header_.crc32c = Crc32c(std::string_view("ab"));
  ASSERT_THAT(WriteTileFile(path_, header_, std::string_view("ab")), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TileFileContents read, ReadTileFile(path_, *pool_));
  EXPECT_EQ(read.header.description, header_.description);
}

TEST_F(TileFileTest, ATileWhoseLastByteIsNotFullComesBack) {
  for (const Tile& tile : {Tile{{{0, 3}, {2, 5}}}, Tile{{{1, 2}, {0, 1}}}}) {
    header_.description.dtype = Dtype::kF4;
    header_.description.array_shape = {3, 5};
    header_.description.tile = tile;
    const std::string bytes = bytes_.substr(0, tile.element_count() == 9 ? 5 : 1);
    ASSERT_EQ(TileSizeBytes(header_.description), std::ssize(bytes));
    header_.crc32c = Crc32c(bytes);
    ASSERT_THAT(WriteTileFile(path_, header_, bytes), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TileFileContents read, ReadTileFile(path_, *pool_));
    EXPECT_EQ(read.header.description, header_.description);
    EXPECT_EQ(read.bytes.bytes(), absl::MakeConstSpan(bytes));
    EXPECT_THAT(CheckTileFile(path_, header_, 2, [](int64_t) { return absl::OkStatus(); }), IsOk());
  }
}

TEST_F(TileFileTest, KnowsTheSizeOfATileWhoseBitsInt64JustCounts) {
  constexpr int64_t kElements = (int64_t{1} << 61) - 1;
  header_.description.dtype = Dtype::kF4;
  header_.description.array_shape = {kElements};
  header_.description.tile = Tile::Whole({kElements});
  EXPECT_THAT(CheckTileDescription(header_.description), IsOk());
  EXPECT_EQ(TileSizeBytes(header_.description), int64_t{1} << 60);
}

TEST_F(TileFileTest, EveryFlippedByteIsSeenOrHarmless) {
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  const std::string good = test::ReadFile(path_);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= '\x10';
    Spill(bad);
    const auto read = ReadTileFile(path_, *pool_);
    if (i >= good.size() - bytes_.size()) {
      EXPECT_THAT(read, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch)) << i;
    } else if (!read.ok()) {
      EXPECT_THAT(read, StatusIs(absl::StatusCode::kDataLoss)) << i;
    } else {
      // A text of the description changed into another; the elements are whole.
      EXPECT_EQ(read->bytes.bytes(), absl::MakeConstSpan(bytes_)) << i;
    }
  }
}

TEST_F(TileFileTest, EveryCutIsSeen) {
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  const std::string good = test::ReadFile(path_);
  for (size_t size = 0; size < good.size(); ++size) {
    Spill(good.substr(0, size));
    EXPECT_THAT(ReadTileFile(path_, *pool_), StatusIs(absl::StatusCode::kDataLoss)) << size;
  }
}

TEST_F(TileFileTest, MemoryIsAskedForBeforeItIsTaken) {
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  MemoryBudget nothing(0);
  EXPECT_THAT(ReadTileFile(path_, *BufferPool::Create(&nothing, 0)),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
}

TEST_F(TileFileTest, AMappedFileHasTheBytesAlsoAfterItsRemoval) {
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  int64_t read_bytes = 0;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedTileFile mapped,
                                 MapTileFile(path_, /*piece_bytes=*/5, [&](int64_t bytes) {
                                   read_bytes += bytes;
                                   return absl::OkStatus();
                                 }));
  EXPECT_EQ(read_bytes, static_cast<int64_t>(bytes_.size()));
  std::filesystem::remove(path_);
  EXPECT_EQ(mapped.header().description, header_.description);
  EXPECT_EQ(mapped.header().crc32c, header_.crc32c);
  EXPECT_EQ(mapped.bytes(), absl::MakeConstSpan(bytes_));
}

TEST_F(TileFileTest, ADamagedFileIsNotMapped) {
  const auto go_on = [](int64_t) { return absl::OkStatus(); };
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  const std::string good = test::ReadFile(path_);
  std::string bad = good;
  bad.back() ^= '\x10';
  Spill(bad);
  EXPECT_THAT(MapTileFile(path_, 5, go_on),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  Spill(good.substr(0, good.size() - 1));
  EXPECT_THAT(MapTileFile(path_, 5, go_on),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  std::filesystem::remove(path_);
  EXPECT_THAT(MapTileFile(path_, 5, go_on), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(WriteTileFile(path_, header_, bytes_), IsOk());
  EXPECT_THAT(MapTileFile(path_, 5, [](int64_t) { return absl::CancelledError("stop"); }),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST(TileFileNameTest, NamesAreDistinctAndShort) {
  EXPECT_EQ(TileFileName({}), "scalar.safetensors");
  EXPECT_EQ(TileFileName({{{0, 192}, {384, 768}}}), "0-192x384-768.safetensors");
  Tile a;
  for (int i = 0; i < 16; ++i) {
    a.ranges.push_back({0, std::numeric_limits<int64_t>::max()});
  }
  Tile b = a;
  b.ranges.back().stop -= 1;
  EXPECT_LE(TileFileName(a).size(), 200u);
  EXPECT_NE(TileFileName(a), TileFileName(b));
}

TEST(TileDescriptionTest, RefusesIdsThatAreNoFileNames) {
  TileDescription description;
  for (const std::string& id : {std::string(), std::string("."), std::string(".."),
                                std::string("a/b"), std::string("a b"), std::string(65, 'a')}) {
    description.array_id = id;
    EXPECT_THAT(CheckTileDescription(description),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << id;
  }
  description.array_id = "a";
  description.array_shape = {2};
  description.tile.ranges = {{0, 3}};
  EXPECT_THAT(CheckTileDescription(description),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
}

}  // namespace
}  // namespace shardmesh::worker
