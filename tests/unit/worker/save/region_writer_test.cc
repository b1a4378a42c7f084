// Regions of tiles in files: every layout gives the bytes of the whole tensor.
#include "worker/save/region_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class RegionWriterTest : public testing::Test {
 protected:
  RegionWriterTest()
      : path_(StrCat(testing::TempDir(), "/region_writer_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove(path_);
  }
  ~RegionWriterTest() override { std::filesystem::remove(path_); }

  FileDescriptor Open() const {
    return FileDescriptor(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  }
  std::string Read(int64_t size) const {
    std::string bytes(static_cast<size_t>(size), '\0');
    const FileDescriptor file = Open();
    EXPECT_EQ(pread(file.get(), bytes.data(), bytes.size(), 0), size);
    return bytes;
  }
  static std::string TileOf(const std::string& tensor, const Shape& shape, const Tile& tile) {
    const auto view = TensorView::Create(Dtype::kU8, shape, tensor);
    std::string bytes(static_cast<size_t>(tile.element_count()), '\0');
    EXPECT_THAT(CopyTileBytes(*view, tile, 0, absl::MakeSpan(bytes)), IsOk());
    return bytes;
  }
  static std::string RandomTensor(int64_t size, std::mt19937& random) {
    std::string bytes(static_cast<size_t>(size), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  }

  const std::string path_;
};

TEST_F(RegionWriterTest, ReturnsTheChecksumsOfThePiecesOfARegion) {
  std::mt19937 random(8);
  const int64_t row = 3000;
  const int64_t rows = 2000;
  const std::string tensor = RandomTensor(rows * row, random);
  const Tile tile{{{0, rows}, {1000, row}}};
  const std::string bytes = TileOf(tensor, {rows, row}, tile);
  const FileDescriptor file = Open();
  ASSERT_EQ(ftruncate(file.get(), rows * row), 0);
  std::vector<uint32_t> pieces;
  uint32_t whole = 0;
  // The regions of two workers, as the plan of a save cuts a tile.
  const int64_t cut = 3 * kSavedPieceBytes;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, cut), {cut, rows * 2000}}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint32_t region,
                                   WriteRegion(file, path_, bytes,
                                               {.dtype = Dtype::kU8,
                                                .tensor_shape = {rows, row},
                                                .tile = tile,
                                                .begin_bytes = begin,
                                                .end_bytes = end,
                                                .offset_bytes = 0},
                                               {.locks_work = true, .progress = nullptr}, &pieces));
    whole = ConcatCrc32c(whole, region, end - begin);
  }
  EXPECT_EQ(whole, Crc32c(bytes));
  std::vector<uint32_t> expected;
  for (size_t at = 0; at < bytes.size(); at += kSavedPieceBytes) {
    expected.push_back(Crc32c(std::string_view(bytes).substr(at, kSavedPieceBytes)));
  }
  EXPECT_EQ(pieces, expected);
}

// Long runs, in memory and at offsets that direct writes can take, and at others.
TEST_F(RegionWriterTest, LongRunsFillTheirPlacesAtAnyAlignment) {
  constexpr int64_t kPage = 4096;
  std::mt19937 random(9);
  const std::string random_bytes = RandomTensor(10 << 20, random);
  for (const int64_t memory_offset : {int64_t{0}, int64_t{64}, int64_t{512}, kPage - 1}) {
    for (const int64_t offset : {int64_t{0}, kPage, int64_t{64}, int64_t{512}, kPage - 1}) {
      for (const int64_t size : {(1 << 20), (9 << 20) + 300, (256 << 10) + 1, (256 << 10) - 1}) {
        const auto memory = std::unique_ptr<char, decltype(&std::free)>(
            static_cast<char*>(std::aligned_alloc(kPage, size_t{12} << 20)), &std::free);
        ASSERT_NE(memory, nullptr);
        const std::string tensor = random_bytes.substr(0, static_cast<size_t>(size));
        std::memcpy(memory.get() + memory_offset, tensor.data(), tensor.size());
        std::filesystem::remove(path_);
        const FileDescriptor file = Open();
        // Bytes around the tensor, which must stay.
        const std::string around(static_cast<size_t>(offset + size + 100), '.');
        ASSERT_EQ(pwrite(file.get(), around.data(), around.size(), 0),
                  static_cast<int64_t>(around.size()));
        SHARDMESH_ASSERT_OK_AND_ASSIGN(
            const uint32_t crc32c,
            WriteRegion(file, path_, {memory.get() + memory_offset, static_cast<size_t>(size)},
                        {.dtype = Dtype::kU8,
                         .tensor_shape = {size},
                         .tile = Tile{{{0, size}}},
                         .begin_bytes = 0,
                         .end_bytes = size,
                         .offset_bytes = offset},
                        {.locks_work = true, .progress = nullptr}));
        EXPECT_EQ(crc32c, Crc32c(tensor));
        std::string expected = around;
        expected.replace(static_cast<size_t>(offset), tensor.size(), tensor);
        ASSERT_TRUE(Read(static_cast<int64_t>(expected.size())) == expected)
            << "memory at " << memory_offset << ", file at " << offset << ", " << size << " bytes";
        // The descriptor serves the page cache again.
        EXPECT_EQ(fcntl(file.get(), F_GETFL) & O_DIRECT, 0);
      }
    }
  }
}

TEST_F(RegionWriterTest, TilesOfAnyCutAndSplitFillTheFile) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const Shape shape = {pick(1, 9), pick(1, 40), pick(1, 70)};
    const int64_t size = shape[0] * shape[1] * shape[2];
    const std::string tensor = RandomTensor(size, random);
    std::filesystem::remove(path_);
    const FileDescriptor file = Open();
    const int64_t offset = pick(0, 100);
    ASSERT_EQ(ftruncate(file.get(), offset + size), 0);
    const bool locks_work = pick(0, 1) == 1;
    // Two parts in each dimension, and two pieces of each tile.
    Shape cut;
    for (const int64_t extent : shape) cut.push_back(pick(0, extent));
    for (int part = 0; part < 8; ++part) {
      Tile tile;
      for (size_t dim = 0; dim < 3; ++dim) {
        const bool upper = (part >> dim & 1) != 0;
        tile.ranges.push_back(upper ? IndexRange{cut[dim], shape[dim]} : IndexRange{0, cut[dim]});
      }
      const std::string bytes = TileOf(tensor, shape, tile);
      const auto total = static_cast<int64_t>(bytes.size());
      const int64_t middle = pick(0, total);
      uint32_t crc = 0;
      for (const auto& [begin, end] : {std::pair(int64_t{0}, middle), std::pair(middle, total)}) {
        SHARDMESH_ASSERT_OK_AND_ASSIGN(
            const uint32_t piece, WriteRegion(file, path_, bytes,
                                              {.dtype = Dtype::kU8,
                                               .tensor_shape = shape,
                                               .tile = tile,
                                               .begin_bytes = begin,
                                               .end_bytes = end,
                                               .offset_bytes = offset},
                                              {.locks_work = locks_work, .progress = nullptr}));
        crc = ConcatCrc32c(crc, piece, end - begin);
      }
      EXPECT_EQ(crc, Crc32c(bytes));
    }
    ASSERT_EQ(Read(offset + size).substr(static_cast<size_t>(offset)), tensor) << round;
  }
}

TEST_F(RegionWriterTest, WritersOfInterleavedColumnsDoNotLoseEachOthersBytes) {
  std::mt19937 random(3);
  const Shape shape = {20'000, 64};
  const std::string tensor = RandomTensor(shape[0] * shape[1], random);
  {
    const FileDescriptor file = Open();
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(tensor.size())), 0);
  }
  std::vector<std::thread> writers;
  for (int64_t column = 0; column < 8; ++column) {
    writers.emplace_back([&, column] {
      const Tile tile{{{0, shape[0]}, {column * 8, column * 8 + 8}}};
      const FileDescriptor file = Open();  // locks belong to the open file
      EXPECT_THAT(WriteRegion(file, path_, TileOf(tensor, shape, tile),
                              {.dtype = Dtype::kU8,
                               .tensor_shape = shape,
                               .tile = tile,
                               .begin_bytes = 0,
                               .end_bytes = tile.element_count(),
                               .offset_bytes = 0},
                              {.locks_work = true, .progress = nullptr}),
                  IsOk());
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(Read(static_cast<int64_t>(tensor.size())), tensor);
}

TEST_F(RegionWriterTest, StopsWhenItsCallerNoLongerWantsIt) {
  const std::string bytes(16 << 20, 'x');
  const FileDescriptor file = Open();
  int calls = 0;
  EXPECT_THAT(
      WriteRegion(file, path_, bytes,
                  {.dtype = Dtype::kU8,
                   .tensor_shape = {16 << 20},
                   .tile = Tile::Whole({16 << 20}),
                   .begin_bytes = 0,
                   .end_bytes = 16 << 20,
                   .offset_bytes = 0},
                  {.locks_work = false, .progress = [&calls](int64_t) { return ++calls < 2; }}),
      StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_EQ(calls, 2);
}

// A worker that holds a range may be frozen, and would never unlock it.
TEST_F(RegionWriterTest, AWriterThatWaitsForALockStopsWhenItsCallerNoLongerWantsIt) {
  const FileDescriptor file = Open();
  ASSERT_EQ(ftruncate(file.get(), 8), 0);
  FileDescriptor holder = Open();  // locks belong to the open file
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = 0;
  range.l_len = 8;
  ASSERT_EQ(fcntl(holder.get(), F_OFD_SETLK, &range), 0);
  int64_t calls = 0;
  int64_t written_bytes = 0;
  const auto write = [&](int64_t last_call) {
    calls = written_bytes = 0;
    return WriteRegion(file, path_, std::string_view("abcdefgh"),
                       {.dtype = Dtype::kU8,
                        .tensor_shape = {8},
                        .tile = Tile::Whole({8}),
                        .begin_bytes = 0,
                        .end_bytes = 8,
                        .offset_bytes = 0},
                       {.locks_work = true, .progress = [&, last_call](int64_t bytes) {
                          written_bytes += bytes;
                          // The holder unlocks the range at the third call.
                          if (++calls == 3) holder = FileDescriptor();
                          return calls < last_call;
                        }});
  };
  EXPECT_THAT(write(2), StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(written_bytes, 0);
  EXPECT_THAT(write(100), IsOk());
  EXPECT_GE(calls, 4);
  EXPECT_EQ(written_bytes, 8);
  EXPECT_EQ(Read(8), "abcdefgh");
}

TEST_F(RegionWriterTest, RefusesARangeOutsideTheTile) {
  const FileDescriptor file = Open();
  for (const auto& [begin, end] :
       {std::pair(-1, 4), std::pair(3, 2), std::pair(0, 5), std::pair(5, 6)}) {
    EXPECT_THAT(WriteRegion(file, path_, "abcd",
                            {.dtype = Dtype::kU8,
                             .tensor_shape = {4},
                             .tile = Tile::Whole({4}),
                             .begin_bytes = begin,
                             .end_bytes = end,
                             .offset_bytes = 0},
                            {}),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  }
}

}  // namespace
}  // namespace shardmesh::worker
