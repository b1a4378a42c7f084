// Tiles out of files: compared with plain indexing, and files that change while they are read.
#include "worker/fill/file_tile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/detail.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/fill/source_files.h"
#include "worker/fill/checked_file.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::GoOn;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::PlainTile;
using ::shardmesh::test::RandomText;
using ::shardmesh::test::SourceFolder;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

const auto kFileChangedNow = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged);

int64_t Draw(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Reads a tile of a tensor of bytes (U8) that begins at `offset_bytes` of the file.
absl::StatusOr<std::string> ReadBytes(const SourceFolder& folder, const SourceFile& source,
                                      const Shape& shape, const Tile& tile,
                                      int64_t offset_bytes = 0, const KeepGoing& going = GoOn) {
  absl::StatusOr<RootedFile> file = OpenChecked(folder.roots(), source, GoOn);
  if (!file.ok()) return file.status();
  const TileRegion region = *TileRegion::Create(Dtype::kU8, shape, tile);
  std::string out(static_cast<size_t>(region.size_bytes()), '?');
  FileTileReader reader;
  const absl::StatusOr<uint32_t> crc =
      reader.Read(*file, source.path, offset_bytes, region, absl::MakeSpan(out), going);
  if (!crc.ok()) return crc.status();
  EXPECT_EQ(*crc, Crc32c(out));
  return out;
}

TEST(FileTileTest, RandomTilesHaveTheBytesOfPlainIndexing) {
  std::mt19937 random(17);
  SourceFolder folder;
  FileTileReader reader;
  int refused = 0;
  for (int round = 0; round < 800; ++round) {
    const Dtype dtype =
        AllDtypes()[static_cast<size_t>(Draw(random, 0, std::ssize(AllDtypes()) - 1))];
    Shape shape;
    Tile tile;
    int64_t elements = 1;
    for (int64_t d = Draw(random, 0, 4); d > 0; --d) {
      const int64_t extent = Draw(random, 1, round % 10 == 0 ? 60 : 9);
      shape.push_back(extent);
      elements *= extent;
      const int64_t start = Draw(random, 0, extent);
      tile.ranges.push_back({start, Draw(random, start, extent)});
    }
    const absl::StatusOr<int64_t> tensor_bytes = WholeSizeBytes(dtype, elements);
    const absl::StatusOr<TileRegion> region = TileRegion::Create(dtype, shape, tile);
    if (!tensor_bytes.ok() || *tensor_bytes > (int64_t{1} << 20) || !region.ok()) {
      ++refused;  // a sub-byte type whose tensor or tile is not of whole bytes
      continue;
    }
    const std::string tensor = RandomText(*tensor_bytes, random);
    const int64_t offset = Draw(random, 0, 40);
    const SourceFile source = folder.Write(
        "tensor", std::string(static_cast<size_t>(offset), 'h') + tensor + "end", offset);
    const absl::StatusOr<RootedFile> file = OpenChecked(folder.roots(), source, GoOn);
    ASSERT_THAT(file, IsOk());
    std::string out(static_cast<size_t>(region->size_bytes()), '?');
    const absl::StatusOr<uint32_t> crc =
        reader.Read(*file, source.path, offset, *region, absl::MakeSpan(out), GoOn);
    ASSERT_THAT(crc, IsOk());
    ASSERT_EQ(out, PlainTile(dtype, shape, tile, tensor))
        << DtypeName(dtype) << " " << ShapeToString(shape) << " " << tile.ToString();
    ASSERT_EQ(*crc, Crc32c(out));
    std::string pieces;
    const absl::StatusOr<uint32_t> same_crc = reader.ReadPieces(
        *file, source.path, offset, *region,
        [&](int64_t begin, absl::Span<const char> bytes) {
          EXPECT_EQ(begin, std::ssize(pieces));
          pieces.append(bytes.data(), bytes.size());
          return absl::OkStatus();
        },
        GoOn);
    ASSERT_EQ(pieces, out);
    ASSERT_EQ(same_crc, crc);
  }
  EXPECT_LT(refused, 400);
}

// Runs and gaps of all sizes around those at which the reader decides.
TEST(FileTileTest, LongAndShortRunsWithLongAndShortGapsAreReadAlike) {
  std::mt19937 random(18);
  SourceFolder folder;
  constexpr int64_t kGap = FileTileReader::kMaxGapBytes;
  for (const int64_t run : {int64_t{1}, int64_t{3}, int64_t{4096}, int64_t{100'000}}) {
    for (const int64_t gap : {int64_t{1}, kGap - 1, kGap, kGap + 1, int64_t{200'000}}) {
      const int64_t row = run + gap;
      const int64_t rows = std::clamp<int64_t>((int64_t{9} << 20) / row, 2, 20'000);
      const std::string tensor = RandomText(rows * row, random);
      const SourceFile source = folder.Write("tensor", tensor);
      for (const int64_t start : {int64_t{0}, gap / 2, gap}) {
        const Tile tile{{{1, rows}, {start, start + run}}};
        const absl::StatusOr<std::string> read = ReadBytes(folder, source, {rows, row}, tile);
        ASSERT_THAT(read, IsOk());
        std::string plain;
        for (int64_t r = 1; r < rows; ++r) {
          plain += tensor.substr(static_cast<size_t>(r * row + start), static_cast<size_t>(run));
        }
        ASSERT_TRUE(*read == plain) << "runs of " << run << " with gaps of " << gap;
      }
    }
  }
}

TEST(FileTileTest, AsksBeforeEachReadWhetherToGoOn) {
  std::mt19937 random(19);
  SourceFolder folder;
  const SourceFile source = folder.Write("tensor", RandomText(int64_t{8} << 20, random));
  int calls = 0;
  const auto third_time = [&calls]() -> absl::Status {
    return ++calls < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  EXPECT_THAT(ReadBytes(folder, source, {8 << 20}, {{{0, 8 << 20}}}, 0, third_time),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(calls, 3);
  // One byte of each 8 KiB: 1,024 runs, in two reads of at most 4 MiB.
  calls = -100;
  EXPECT_THAT(ReadBytes(folder, source, {1024, 8192}, {{{0, 1024}, {5, 6}}}, 0, third_time),
              IsOk());
  EXPECT_EQ(calls, -100 + 2);
}

TEST(FileTileTest, ATensorBeyondTheFileIsRefused) {
  SourceFolder folder;
  const SourceFile source = folder.Write("tensor", "0123456789");
  EXPECT_EQ(ReadBytes(folder, source, {4}, {{{1, 3}}}, 6).value_or(""), "78");
  for (const int64_t offset : {int64_t{7}, int64_t{11}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(
        ReadBytes(folder, source, {4}, {{{0, 1}}}, offset),
        CarriesFacts(Reason::kBadFile, {{fact::kFile, source.path}, {fact::kPosition, offset}}));
  }
}

TEST(FileTileTest, ErrorsOfTheDiskAreReported) {
  SourceFolder folder;
  const SourceFile source = folder.Write("tensor", "0123456789", 4);
  ASSERT_THAT(ArmFailpoints("fill.read=eio"), IsOk());
  EXPECT_THAT(ReadBytes(folder, source, {10}, {{{0, 10}}}), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(ArmFailpoints("fill.head=eio"), IsOk());
  EXPECT_THAT(ReadBytes(folder, source, {10}, {{{0, 10}}}), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(ArmFailpoints(""), IsOk());
}

TEST(FileTileTest, AFileThatIsNotAsTheClientFoundItIsRefused) {
  SourceFolder folder;
  const std::string bytes = "header and elements";
  const SourceFile source = folder.Write("tensor", bytes, 6);
  ASSERT_THAT(ReadBytes(folder, source, {19}, {{{0, 19}}}), IsOk());

  SourceFile longer = source;
  longer.size_bytes = 20;
  EXPECT_THAT(ReadBytes(folder, longer, {19}, {{{0, 19}}}),
              CarriesFacts(Reason::kFileChanged, {{fact::kFile, source.path},
                                                  {fact::kHave, "19 bytes"},
                                                  {fact::kNeed, "20 bytes"}}));
  SourceFile earlier = source;
  earlier.modify_time -= absl::Nanoseconds(1);
  EXPECT_THAT(ReadBytes(folder, earlier, {19}, {{{0, 19}}}), kFileChangedNow);
  SourceFile any_time = source;
  any_time.modify_time = absl::InfinitePast();
  EXPECT_THAT(ReadBytes(folder, any_time, {19}, {{{0, 19}}}), IsOk());
  any_time.head_sha256[0] ^= 1;
  EXPECT_THAT(ReadBytes(folder, any_time, {19}, {{{0, 19}}}), kFileChangedNow);
  SourceFile other = source;
  other.head_sha256[0] ^= 1;
  const absl::Status refused = ReadBytes(folder, other, {19}, {{{0, 19}}}).status();
  EXPECT_THAT(refused, kFileChangedNow);
  EXPECT_THAT(ToStd(refused.message()), HasSubstr("SHA-256 of its first 6 bytes"));

  // Another file of the same size, to which somebody gave the old time.
  const auto time = std::filesystem::last_write_time(source.path);
  folder.Write("other", "HEADER and elements");
  std::filesystem::rename(folder.path() + "/other", source.path);
  std::filesystem::last_write_time(source.path, time);
  EXPECT_THAT(ReadBytes(folder, source, {19}, {{{0, 19}}}), kFileChangedNow);
}

// What happens to the file between its opening and the last read.
TEST(FileTileTest, AFileThatChangesWhileItIsReadGivesNoTile) {
  SourceFolder folder;
  const std::string bytes(3 << 20, 'x');
  const std::string path = folder.path() + "/tensor";
  const auto truncate_file = [&] { ASSERT_EQ(truncate(path.c_str(), 5), 0); };
  const auto grow = [&] { std::ofstream(path, std::ios::app) << "more"; };
  const auto overwrite = [&] { std::ofstream(path, std::ios::in | std::ios::out) << "y"; };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"truncated", truncate_file}, {"growing", grow}, {"overwritten", overwrite}};
  for (const auto& [name, change] : changes) {
    const SourceFile source = folder.Write("tensor", bytes);
    usleep(20'000);  // later than the tick of the file system's clock
    int reads = 0;
    const auto at_second = [&, change = change]() -> absl::Status {
      if (++reads == 2) change();
      return absl::OkStatus();
    };
    const absl::Status refused =
        ReadBytes(folder, source, {3 << 20}, {{{0, 3 << 20}}}, 0, at_second).status();
    EXPECT_THAT(refused, kFileChangedNow) << name << ": " << refused;
    EXPECT_EQ(FactOf(refused, fact::kFile), path) << name;
  }
}

// The bytes of the open file stay as they are. A save that links unchanged files to an earlier
// checkpoint, or removes an old one, does not disturb a load of it.
TEST(FileTileTest, AFileThatIsLinkedRenamedOrRemovedWhileItIsReadGivesItsTile) {
  SourceFolder folder;
  const std::string bytes(3 << 20, 'x');
  const std::string path = folder.path() + "/tensor";
  const std::string link = folder.path() + "/link";
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"linked", [&] { std::filesystem::create_hard_link(path, link); }},
      {"unlinked", [&] { std::filesystem::remove(link); }},
      {"renamed", [&] { std::filesystem::rename(path, link); }},
      {"replaced",
       [&] {
         folder.Write("other", std::string(3 << 20, 'y'));
         std::filesystem::rename(folder.path() + "/other", path);
       }},
      {"with other permissions", [&] { ASSERT_EQ(chmod(path.c_str(), 0600), 0); }},
      {"removed", [&] { std::filesystem::remove(path); }},
  };
  for (const auto& [name, change] : changes) {
    const SourceFile source = folder.Write("tensor", bytes);
    if (name == "unlinked") {
      std::filesystem::remove(link);
      std::filesystem::create_hard_link(path, link);
    }
    usleep(20'000);  // later than the tick of the file system's clock
    int reads = 0;
    const auto at_second = [&, change = change]() -> absl::Status {
      if (++reads == 2) change();
      return absl::OkStatus();
    };
    const auto tile = ReadBytes(folder, source, {3 << 20}, {{{0, 3 << 20}}}, 0, at_second);
    ASSERT_THAT(tile, IsOk()) << name;
    EXPECT_EQ(reads, 3) << name;
    EXPECT_TRUE(*tile == bytes) << name;
  }
}

TEST(CheckedFilesTest, FilesAreCheckedOnceAndFewStayOpen) {
  SourceFolder folder;
  CheckedFiles files(&folder.roots());
  std::vector<SourceFile> sources;
  for (size_t i = 0; i < 3 * CheckedFiles::kMaxOpen; ++i) {
    sources.push_back(folder.Write(StrCat("file", i), StrCat("head", i), 5));
  }
  const auto count_open = [&] {
    int open = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(each.path(), error).string();
      open += target.rfind(folder.path() + "/", 0) == 0 ? 1 : 0;
    }
    return open;
  };
  // Each call of Get asks once before it takes its turn, and once for each head that it reads.
  int asked = 0;
  int calls = 0;
  const auto get = [&](const SourceFile& source) {
    ++calls;
    return files.Get(source, [&asked]() -> absl::Status {
      ++asked;
      return absl::OkStatus();
    });
  };
  for (int round = 0; round < 2; ++round) {
    for (const SourceFile& source : sources) {
      ASSERT_THAT(get(source), IsOk());
      ASSERT_THAT(get(source), IsOk());
    }
    // In the second round every file is opened again, and none has changed.
    EXPECT_EQ(asked - calls, std::ssize(sources));
    EXPECT_LE(count_open(), static_cast<int>(CheckedFiles::kMaxOpen));
  }
  // A file that was replaced while it was closed is checked again.
  const auto time = std::filesystem::last_write_time(sources[0].path);
  folder.Write("new", "HEAD0", 5);
  std::filesystem::rename(folder.path() + "/new", sources[0].path);
  std::filesystem::last_write_time(sources[0].path, time);
  EXPECT_THAT(get(sources[0]), kFileChangedNow);
  EXPECT_EQ(asked - calls, std::ssize(sources) + 1);
}

}  // namespace
}  // namespace shardmesh::worker
