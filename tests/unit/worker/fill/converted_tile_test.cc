// Tiles that are made from tensors of files, compared with those that a client would send.
#include "worker/fill/converted_tile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "process/crc32c.h"
#include "status/detail.h"
#include "status/reason.h"
#include "tensor/checkpoint/converted_tensor.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/fill/source_files.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::GoOn;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::RandomText;
using ::shardmesh::test::SourceFolder;
using ::shardmesh::test::StatusIs;

int64_t NumberIn(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

absl::StatusOr<std::string> Make(const SourceFolder& folder, const SourceFile& source,
                                 const ConvertedTile& tile, const KeepGoing& going = GoOn) {
  absl::StatusOr<RootedFile> file = OpenChecked(folder.roots(), source, GoOn);
  if (!file.ok()) return file.status();
  std::string out(static_cast<size_t>(*PackedSizeBytes(tile.dtype, tile.tile.element_count())),
                  '?');
  FileTileReader reader;
  int64_t done_bytes = 0;
  const absl::StatusOr<uint32_t> crc =
      ReadConverted(*file, source.path, tile, reader, absl::MakeSpan(out), going,
                    [&](int64_t bytes) { done_bytes += bytes; });
  if (!crc.ok()) return crc.status();
  EXPECT_EQ(*crc, Crc32c(out));
  EXPECT_EQ(done_bytes, std::ssize(out));
  return out;
}

// The bytes that a client sends for the tile.
std::string Sent(const ConvertedTile& tile, std::string_view tensor) {
  const Shape in_file = *ShapeInFile(tile.conversion, tile.dtype, tile.shape);
  const TensorView view = *TensorView::Create(tile.conversion.dtype, in_file,
                                              absl::Span<const char>(tensor.data(), tensor.size()));
  const auto converted = ConvertedTensor::Create(
      view, {.permutation = tile.conversion.permutation, .dtype = tile.dtype});
  EXPECT_THAT(converted, IsOk());
  std::string bytes(static_cast<size_t>(*PackedSizeBytes(tile.dtype, tile.tile.element_count())),
                    '!');
  EXPECT_THAT((*converted)->Fill(tile.tile, 0, absl::MakeSpan(bytes)), IsOk());
  return bytes;
}

std::vector<size_t> RandomPermutation(size_t rank, std::mt19937& random) {
  std::vector<size_t> permutation(rank);
  std::iota(permutation.begin(), permutation.end(), size_t{0});
  std::shuffle(permutation.begin(), permutation.end(), random);
  return permutation;
}

TEST(ConvertedTileTest, RandomTilesHaveTheBytesThatTheClientSends) {
  constexpr Dtype kTypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16,
                              Dtype::kU8,  Dtype::kC64, Dtype::kI64};
  std::mt19937 random(29);
  SourceFolder folder;
  for (int round = 0; round < 600; ++round) {
    ConvertedTile tile;
    tile.conversion.dtype = kTypes[NumberIn(random, 0, std::ssize(kTypes) - 1)];
    tile.dtype = kTypes[NumberIn(random, 0, std::ssize(kTypes) - 1)];
    if (!CanConvert(tile.conversion.dtype, tile.dtype)) tile.dtype = tile.conversion.dtype;
    const auto rank = static_cast<size_t>(NumberIn(random, 0, 4));
    int64_t elements = 1;
    for (size_t dim = 0; dim < rank; ++dim) {
      // Some tensors have tiles of several boxes.
      const int64_t most = round % 20 > 0 ? 9 : rank < 3 ? 1'500 : 30;
      const int64_t extent = NumberIn(random, 1, most);
      tile.shape.push_back(extent);
      elements *= extent;
      const bool is_large = round % 20 == 0;
      const int64_t start = NumberIn(random, 0, is_large ? extent / 8 : extent);
      const int64_t least = is_large ? extent - extent / 8 : start;
      tile.tile.ranges.push_back({start, NumberIn(random, least, extent)});
    }
    if (NumberIn(random, 0, 3) > 0) tile.conversion.permutation = RandomPermutation(rank, random);
    tile.offset_bytes = NumberIn(random, 0, 40);
    const std::string tensor =
        RandomText(*PackedSizeBytes(tile.conversion.dtype, elements), random);
    const SourceFile source = folder.Write(
        "tensor", std::string(static_cast<size_t>(tile.offset_bytes), 'h') + tensor + "end",
        tile.offset_bytes);
    const absl::StatusOr<std::string> made = Make(folder, source, tile);
    ASSERT_THAT(made, IsOk());
    ASSERT_TRUE(*made == Sent(tile, tensor))
        << "round " << round << ": " << DtypeName(tile.conversion.dtype) << " to "
        << DtypeName(tile.dtype) << " " << ShapeToString(tile.shape) << " " << tile.tile.ToString();
  }
}

// Rows in the file that are much longer, and much shorter, than a box has elements.
TEST(ConvertedTileTest, LongAndFlatMatricesAreTransposedInBoxes) {
  std::mt19937 random(30);
  SourceFolder folder;
  for (const Shape& shape :
       {Shape{1'000'003, 3}, Shape{3, 1'000'003}, Shape{70, 20'011}, Shape{5'000, 2, 300}}) {
    ConvertedTile tile{.dtype = Dtype::kBF16, .shape = shape};
    int64_t elements = 1;
    for (const int64_t extent : shape) {
      elements *= extent;
      tile.tile.ranges.push_back({extent > 3 ? 1 : 0, extent});
    }
    tile.conversion = {.dtype = Dtype::kF32, .permutation = std::vector<size_t>(shape.size())};
    std::iota(tile.conversion.permutation.rbegin(), tile.conversion.permutation.rend(), size_t{0});
    const std::string tensor = RandomText(elements * 4, random);
    const SourceFile source = folder.Write("tensor", tensor);
    const absl::StatusOr<std::string> made = Make(folder, source, tile);
    ASSERT_THAT(made, IsOk());
    EXPECT_TRUE(*made == Sent(tile, tensor)) << ShapeToString(shape);
  }
}

TEST(ConvertedTileTest, RefusesWhatIsNotInTheFileOrDoesNotFit) {
  SourceFolder folder;
  const SourceFile source = folder.Write("tensor", std::string(24, 'x'));
  ConvertedTile tile{.dtype = Dtype::kF16,
                     .shape = {3, 2},
                     .tile = {{{0, 3}, {0, 2}}},
                     .conversion = {.dtype = Dtype::kF32, .permutation = {1, 0}}};
  EXPECT_THAT(Make(folder, source, tile), IsOk());
  EXPECT_EQ(SourceOf(tile)->shape, (Shape{2, 3}));
  EXPECT_EQ(SourceOf(tile)->tile, (Tile{{{0, 2}, {0, 3}}}));
  tile.offset_bytes = 1;
  EXPECT_THAT(
      Make(folder, source, tile),
      CarriesFacts(Reason::kBadFile, {{fact::kFile, source.path}, {fact::kPosition, int64_t{1}}}));
  tile.tile.ranges[0] = {1, 1};  // no element
  EXPECT_THAT(
      Make(folder, source, tile),
      CarriesFacts(Reason::kBadFile, {{fact::kFile, source.path}, {fact::kPosition, int64_t{1}}}));
  tile.offset_bytes = 0;
  EXPECT_EQ(Make(folder, source, tile).value_or("none"), "");
  tile.conversion.permutation = {1, 1};
  EXPECT_THAT(Make(folder, source, tile),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  tile.conversion = {.dtype = Dtype::kI32};
  EXPECT_THAT(Make(folder, source, tile),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
}

TEST(ConvertedTileTest, AFileThatChangesMeanwhileGivesNoTile) {
  SourceFolder folder;
  const SourceFile source = folder.Write("tensor", std::string(4 << 20, 'x'));
  const ConvertedTile tile{.dtype = Dtype::kF32,
                           .shape = {1 << 10, 1 << 10},
                           .tile = {{{0, 1 << 10}, {0, 1 << 10}}},
                           .conversion = {.dtype = Dtype::kF32, .permutation = {1, 0}}};
  int calls = 0;
  const auto at_third = [&]() -> absl::Status {
    if (++calls == 3) std::ofstream(source.path, std::ios::app) << "more";
    return absl::OkStatus();
  };
  EXPECT_THAT(Make(folder, source, tile, at_third),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_GE(calls, 4) << "it asks before each of several reads whether to go on";
  const auto ended = []() -> absl::Status { return absl::CancelledError("enough"); };
  EXPECT_THAT(Make(folder, folder.Write("tensor", std::string(4 << 20, 'x')), tile, ended),
              StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace shardmesh::worker
