// Tiles of saved checkpoints, compared with the checksums of tiles that lie otherwise.
#include "worker/fill/saved_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "process/crc32c.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/fill/source_files.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::GoOn;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::RandomText;
using ::shardmesh::test::SourceFolder;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const auto kDamaged = StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch);
const std::string kHeader = "head";

int64_t Pick(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// A file with one tensor, as a save wrote it in the tiles `saved`.
struct SavedTensor {
  Dtype dtype = Dtype::kU8;
  Shape shape;
  std::vector<Tile> saved;
  std::string bytes;
  bool has_pieces = true;

  std::string BytesOf(const Tile& tile) const {
    const TensorView view = *TensorView::Create(dtype, shape, bytes);
    const int64_t size_bytes = TileRegion::Create(dtype, shape, tile)->size_bytes();
    std::string out(static_cast<size_t>(size_bytes), '\0');
    EXPECT_THAT(CopyTileBytes(view, tile, 0, absl::MakeSpan(out)), IsOk());
    return out;
  }
  std::string Manifest() const {
    std::string tiles;
    for (const Tile& tile : saved) {
      const std::string of_tile = BytesOf(tile);
      std::string ranges;
      for (const IndexRange& range : tile.ranges) {
        StrAppend(&ranges, ranges.empty() ? "" : ",", "[", range.start, ",", range.stop, "]");
      }
      std::vector<uint32_t> pieces;
      for (size_t at = 0; at < of_tile.size(); at += kSavedPieceBytes) {
        pieces.push_back(Crc32c(std::string_view(of_tile).substr(at, kSavedPieceBytes)));
      }
      StrAppend(&tiles, tiles.empty() ? "" : ",", R"({"ranges":[)", ranges, R"(],"crc32c":)",
                Crc32c(of_tile),
                has_pieces ? StrCat(R"(,"piece_crc32c":")", PieceText(pieces), R"(")") : "", "}");
    }
    std::string extents;
    for (const int64_t extent : shape) StrAppend(&extents, extents.empty() ? "" : ",", extent);
    return StrCat(R"({"format":1,"piece_bytes":1048576,"files":[{"name":"m","size_bytes":)",
                  kHeader.size() + bytes.size(), R"(,"header_bytes":)", kHeader.size(),
                  R"(,"header_crc32c":)", Crc32c(kHeader),
                  R"(}],"tensors":[{"name":"w","file":"m","dtype":")",
                  std::string(DtypeName(dtype)), R"(","shape":[)", extents, R"(],"offset_bytes":)",
                  kHeader.size(), R"(,"size_bytes":)", bytes.size(), R"(,"tiles":[)", tiles,
                  "]}]}");
  }
};

// Returns how many bytes this process has read from files so far.
int64_t BytesRead() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  while (counters >> name >> bytes && name != "rchar:") {
  }
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

class SavedSumsTest : public testing::Test {
 protected:
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string Path(std::string_view name) const { return StrCat(folder_.path(), "/", name); }
  void WriteManifest(const std::string& manifest) const {
    Write(std::string(kCheckpointManifest), manifest);
    Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  }
  void Save(const SavedTensor& tensor) const {
    Write("m", kHeader + tensor.bytes);
    WriteManifest(tensor.Manifest());
  }
  // Changes a bit of a byte of the file.
  void Flip(size_t at) const {
    std::fstream file(Path("m"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
  }
  // Reads a tile of a tensor of this type and shape, and compares it. `between` is called after the
  // tile was read, `prepare` before.
  absl::Status CheckTile(Dtype dtype, const Shape& shape, const Tile& tile,
                         const std::function<void()>& between = nullptr,
                         const std::function<void(SavedSums&)>& prepare = nullptr) const {
    const std::string path = Path("m");
    SavedSums sums(&folder_.roots());
    if (prepare) prepare(sums);
    const KeepGoing go_on = [] { return absl::OkStatus(); };
    const absl::StatusOr<RootedFile> file = folder_.roots().OpenFile(path);
    if (!file.ok()) return file.status();
    const TileRegion region = *TileRegion::Create(dtype, shape, tile);
    std::string bytes(static_cast<size_t>(region.size_bytes()), '?');
    const auto offset = static_cast<int64_t>(kHeader.size());
    FileTileReader reader;
    const absl::StatusOr<uint32_t> crc32c =
        reader.Read(*file, path, offset, region, absl::MakeSpan(bytes), go_on);
    if (!crc32c.ok()) return crc32c.status();
    if (between) between();
    const TileDescription description{.array_id = "a",
                                      .dtype = dtype,
                                      .array_shape = shape,
                                      .tile = tile,
                                      .array_descriptor = "",
                                      .transfer_id = "t"};
    return sums.Check(
        *file, path,
        {.description = description, .offset_bytes = offset, .bytes = bytes, .crc32c = *crc32c},
        reader, go_on);
  }

  // Compares a tile that was made from these elements, and counts the bytes that it reads.
  absl::Status CheckMadeFrom(const SourceRegion& source, int64_t* read_bytes) const {
    const std::string path = Path("m");
    SavedSums sums(&folder_.roots());
    const absl::StatusOr<RootedFile> file = folder_.roots().OpenFile(path);
    if (!file.ok()) return file.status();
    EXPECT_THAT(sums.Prepare(path, GoOn), IsOk());
    FileTileReader reader;
    const int64_t before = BytesRead();
    absl::Status status = sums.CheckSource(*file, path, source, reader, GoOn);
    *read_bytes = BytesRead() - before;
    return status;
  }

  SourceFolder folder_;
};

// Cuts each dimension at random places.
std::vector<Tile> RandomTiles(const Shape& shape, std::mt19937& random) {
  std::vector<Tile> tiles = {Tile{}};
  for (const int64_t extent : shape) {
    std::vector<int64_t> cuts = {0, extent};
    for (int64_t n = Pick(random, 0, 2); n > 0; --n) cuts.push_back(Pick(random, 0, extent));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Tile> next;
    for (const Tile& tile : tiles) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        next.push_back(tile);
        next.back().ranges.push_back({cuts[i], cuts[i + 1]});
      }
    }
    tiles = std::move(next);
  }
  return tiles;
}

TEST_F(SavedSumsTest, FindsAnyChangedByteOfATileThatIsNoTileOfTheSave) {
  std::mt19937 random(41);
  int compared = 0;
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    SavedTensor tensor;
    tensor.dtype = AllDtypes()[static_cast<size_t>(Pick(random, 0, std::ssize(AllDtypes()) - 1))];
    tensor.has_pieces = round % 2 == 0;
    Tile read;
    int64_t elements = 1;
    for (int64_t dim = Pick(random, 0, 3); dim > 0; --dim) {
      const int64_t extent = Pick(random, 1, 12);
      tensor.shape.push_back(extent);
      elements *= extent;
      const int64_t start = Pick(random, 0, extent - 1);
      read.ranges.push_back({start, Pick(random, start + 1, extent)});
    }
    tensor.saved = RandomTiles(tensor.shape, random);
    const auto is_whole = [&](const Tile& tile) {
      return TileRegion::Create(tensor.dtype, tensor.shape, tile).ok();
    };
    // Some tensors and tiles of elements of less than a byte do not begin and end with bytes.
    const absl::StatusOr<int64_t> size_bytes = WholeSizeBytes(tensor.dtype, elements);
    if (!size_bytes.ok() || !is_whole(read) ||
        !std::all_of(tensor.saved.begin(), tensor.saved.end(), is_whole)) {
      continue;
    }
    tensor.bytes = RandomText(*size_bytes, random);
    Save(tensor);
    const std::string what = StrCat(std::string(DtypeName(tensor.dtype)), " ",
                                    ShapeToString(tensor.shape), " ", read.ToString());
    ASSERT_THAT(CheckTile(tensor.dtype, tensor.shape, read), IsOk()) << what;
    ++compared;
    const auto place = static_cast<size_t>(Pick(random, 0, std::ssize(tensor.bytes) - 1));
    SavedTensor changed = tensor;
    changed.bytes[place] = static_cast<char>(changed.bytes[place] ^ 4);
    Flip(kHeader.size() + place);
    const absl::Status status = CheckTile(tensor.dtype, tensor.shape, read);
    // A tile of the save that has elements in common with the one that was read.
    const bool is_covered =
        std::any_of(tensor.saved.begin(), tensor.saved.end(), [&](const Tile& tile) {
          return Intersect(tile, read).has_value() && tensor.BytesOf(tile) != changed.BytesOf(tile);
        });
    ASSERT_TRUE(is_covered || tensor.BytesOf(read) == changed.BytesOf(read)) << what;
    if (is_covered) {
      ++refused;
      ASSERT_THAT(status, kDamaged) << what;
      ASSERT_THAT(status.message(), AllOf(HasSubstr(Path("m")), HasSubstr("tensor \"w\"")));
    } else {
      ASSERT_THAT(status, IsOk()) << what;
    }
  }
  EXPECT_GT(compared, 200);
  EXPECT_GT(refused, 100);
}

TEST_F(SavedSumsTest, ComparesOnlyThePiecesOfWhichTheTileHasBytes) {
  std::mt19937 random(42);
  // Two tiles of columns. A piece has 2,048 rows of one of them.
  const Shape shape = {5000, 1024};
  SavedTensor tensor{.dtype = Dtype::kU8,
                     .shape = shape,
                     .saved = {{{{0, 5000}, {0, 512}}}, {{{0, 5000}, {512, 1024}}}},
                     .bytes = RandomText(5000 * 1024, random)};
  const auto place_of = [&](int64_t row, int64_t column) {
    return kHeader.size() + static_cast<size_t>(row * shape[1] + column);
  };
  const std::vector<Tile> reads = {
      {{{2100, 2200}, {0, 1024}}},   // some rows, of both tiles
      {{{2048, 4096}, {500, 600}}},  // the rows of a piece, and some columns of both tiles
      {{{2000, 2100}, {256, 257}}},  // one column, over the edge of a piece
      {{{0, 5000}, {0, 1024}}},      // all
  };
  for (const bool has_pieces : {true, false}) {
    tensor.has_pieces = has_pieces;
    Save(tensor);
    for (const Tile& read : reads) {
      EXPECT_THAT(CheckTile(Dtype::kU8, shape, read), IsOk()) << read.ToString();
    }
    Flip(place_of(2150, 256));
    for (const Tile& read : reads) {
      EXPECT_THAT(CheckTile(Dtype::kU8, shape, read), kDamaged) << read.ToString();
    }
    Flip(place_of(2150, 256));
    Flip(place_of(4999, 3));  // in the last piece of the first tile, which is a short one
    const absl::Status elsewhere = CheckTile(Dtype::kU8, shape, reads[0]);
    EXPECT_THAT(elsewhere, has_pieces ? testing::Matcher<const absl::Status&>(IsOk())
                                      : testing::Matcher<const absl::Status&>(kDamaged));
    EXPECT_THAT(CheckTile(Dtype::kU8, shape, reads[3]), kDamaged);
  }
  tensor.has_pieces = true;
  Save(tensor);
  Flip(place_of(2047, 1023));
  EXPECT_THAT(CheckTile(Dtype::kU8, shape, {{{2047, 2048}, {600, 601}}}).message(),
              HasSubstr("bytes [0, 1048576) of the tile [0,5000)x[512,1024) of tensor \"w\""));
}

// A tile that was transposed or converted: the bytes of the file are read once more.
TEST_F(SavedSumsTest, ReadsOnlyTheSavedTilesOfWhichAConvertedTileHasElements) {
  std::mt19937 random(50);
  // Four tiles of 1,500 rows each, of one and a half pieces.
  constexpr int64_t kTileBytes = 1500 * 1024;
  const Shape shape = {6000, 1024};
  SavedTensor tensor{.dtype = Dtype::kU8,
                     .shape = shape,
                     .saved = {},
                     .bytes = RandomText(4 * kTileBytes, random)};
  for (int64_t row = 0; row < 6000; row += 1500) {
    tensor.saved.push_back({{{row, row + 1500}, {0, 1024}}});
  }
  const auto check = [&](const Tile& tile, int64_t* read_bytes) {
    return CheckMadeFrom({.dtype = Dtype::kU8,
                          .shape = shape,
                          .tile = tile,
                          .offset_bytes = static_cast<int64_t>(kHeader.size())},
                         read_bytes);
  };
  const auto place_of = [&](int64_t row) {
    return kHeader.size() + static_cast<size_t>(row * shape[1]);
  };
  // The header, and the counters themselves.
  constexpr int64_t kOtherBytes = 4096;
  for (const bool has_pieces : {true, false}) {
    tensor.has_pieces = has_pieces;
    Save(tensor);
    int64_t read_bytes = 0;
    const Tile own = tensor.saved[1];
    EXPECT_THAT(check(own, &read_bytes), IsOk());
    EXPECT_GE(read_bytes, kTileBytes);
    EXPECT_LE(read_bytes, kTileBytes + kOtherBytes);
    // The last piece of a tile, and the first of the next one.
    const Tile column = {{{1400, 1600}, {7, 8}}};
    const int64_t needed_bytes = has_pieces ? kTileBytes : 2 * kTileBytes;
    EXPECT_THAT(check(column, &read_bytes), IsOk());
    EXPECT_GE(read_bytes, needed_bytes);
    EXPECT_LE(read_bytes, needed_bytes + kOtherBytes);
    EXPECT_THAT(check({{{3, 3}, {0, 1024}}}, &read_bytes), IsOk()) << "no element";
    EXPECT_LE(read_bytes, kOtherBytes);
    Flip(place_of(4000));
    EXPECT_THAT(check(own, &read_bytes), IsOk());
    EXPECT_THAT(check(column, &read_bytes), IsOk());
    EXPECT_THAT(check({{{4000, 4001}, {0, 1}}}, &read_bytes), kDamaged);
    Flip(place_of(1500) + 7);
    EXPECT_THAT(check(own, &read_bytes), kDamaged);
    EXPECT_THAT(check(column, &read_bytes), kDamaged);
  }
}

TEST_F(SavedSumsTest, ComparesTensorsWholeThatAnArrayViewsOtherwise) {
  std::mt19937 random(43);
  const SavedTensor tensor{.dtype = Dtype::kU8,
                           .shape = {6, 8},
                           .saved = {{{{0, 3}, {0, 8}}}, {{{3, 6}, {0, 8}}}},
                           .bytes = RandomText(48, random)};
  Save(tensor);
  EXPECT_THAT(CheckTile(Dtype::kF32, {12}, {{{0, 3}}}), IsOk());
  EXPECT_THAT(CheckTile(Dtype::kU8, {5}, {{{1, 2}}}), IsOk());
  Flip(kHeader.size() + 47);
  EXPECT_THAT(CheckTile(Dtype::kF32, {12}, {{{0, 3}}}), kDamaged);
  EXPECT_THAT(CheckTile(Dtype::kU8, {5}, {{{1, 2}}}), kDamaged);
}

TEST_F(SavedSumsTest, ComparesTheHeaderAndTheSizeOfTheFile) {
  std::mt19937 random(44);
  const SavedTensor tensor{
      .dtype = Dtype::kU8, .shape = {4}, .saved = {{{{0, 4}}}}, .bytes = RandomText(4, random)};
  Save(tensor);
  Flip(1);
  const absl::Status damaged = CheckTile(Dtype::kU8, {4}, {{{0, 2}}});
  EXPECT_THAT(damaged, kDamaged);
  EXPECT_THAT(damaged.message(), HasSubstr("the header"));
  Write("m", kHeader + tensor.bytes + "x");
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), kDamaged);
}

TEST_F(SavedSumsTest, ComparesNothingWhereNoSaveWroteChecksums) {
  std::mt19937 random(45);
  Write("m", kHeader + RandomText(4, random));
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), IsOk()) << "no manifest";
  WriteManifest(R"({"files":[{"name":"other","size_bytes":3}]})");
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), IsOk()) << "a file beside a checkpoint";
  WriteManifest(R"({"files":[{"name":"m","size_bytes":8}]})");
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), IsOk()) << "a manifest of an old build";
}

TEST_F(SavedSumsTest, TrustsNoFileBesideADamagedManifest) {
  std::mt19937 random(46);
  const SavedTensor tensor{
      .dtype = Dtype::kU8, .shape = {4}, .saved = {{{{0, 4}}}}, .bytes = RandomText(4, random)};
  const auto bad_file = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile);
  for (const std::string_view name : {kCheckpointManifest, kCheckpointMarker}) {
    for (const std::string_view text : {"", "{}"}) {
      Save(tensor);
      Write(std::string(name), text);
      EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), bad_file) << name << " " << text;
      SavedSums sums(&folder_.roots());
      EXPECT_THAT(sums.Prepare(Path("m"), [] { return absl::OkStatus(); }), bad_file);
    }
  }
  Save(tensor);
  std::filesystem::remove(Path(kCheckpointManifest));
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), bad_file);
  // As in the middle of a save that replaces the checkpoint.
  Save(tensor);
  std::filesystem::remove(Path(kCheckpointMarker));
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), IsOk());
  Flip(kHeader.size() + 3);
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), kDamaged);
}

// A save without a step that replaces the checkpoint while a worker reads it.
TEST_F(SavedSumsTest, TakesNoTileOfAnOldFileForOneOfTheCheckpointThatReplacesIt) {
  std::mt19937 random(47);
  SavedTensor tensor{
      .dtype = Dtype::kU8, .shape = {4}, .saved = {{{{0, 4}}}}, .bytes = RandomText(4, random)};
  Save(tensor);
  tensor.bytes[3] = static_cast<char>(tensor.bytes[3] ^ 1);
  const absl::Status mixed = CheckTile(Dtype::kU8, {4}, {{{0, 2}}}, [&] {
    Write("new", kHeader + tensor.bytes);
    std::filesystem::rename(Path("new"), Path("m"));
    WriteManifest(tensor.Manifest());
  });
  EXPECT_THAT(mixed, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}), IsOk());
}

// A save has set the old checkpoint aside when the worker begins, and has linked the file again
// when the worker has read it.
TEST_F(SavedSumsTest, ComparesWithAManifestThatComesAfterTheFileWasOpened) {
  std::mt19937 random(49);
  const SavedTensor tensor{
      .dtype = Dtype::kU8, .shape = {4}, .saved = {{{{0, 4}}}}, .bytes = RandomText(4, random)};
  Write("m", kHeader + tensor.bytes);
  Flip(kHeader.size());
  const auto save = [&](SavedSums& sums) {
    EXPECT_THAT(sums.Prepare(Path("m"), [] { return absl::OkStatus(); }), IsOk());
    WriteManifest(tensor.Manifest());
  };
  EXPECT_THAT(CheckTile(Dtype::kU8, {4}, {{{0, 2}}}, nullptr, save), kDamaged);
}

// A save that replaces the checkpoint takes its manifest away while the worker reads.
TEST_F(SavedSumsTest, KeepsTheChecksumsThatWereThereBeforeTheFileWasRead) {
  std::mt19937 random(48);
  const SavedTensor tensor{
      .dtype = Dtype::kU8, .shape = {4}, .saved = {{{{0, 4}}}}, .bytes = RandomText(4, random)};
  Save(tensor);
  Flip(kHeader.size());
  SavedSums sums(&folder_.roots());
  const KeepGoing go_on = [] { return absl::OkStatus(); };
  EXPECT_THAT(sums.Prepare(Path("m"), go_on), IsOk());
  std::filesystem::remove(Path(kCheckpointMarker));
  std::filesystem::remove(Path(kCheckpointManifest));
  const absl::StatusOr<RootedFile> file = folder_.roots().OpenFile(Path("m"));
  ASSERT_THAT(file, IsOk());
  const TileRegion region = *TileRegion::Create(Dtype::kU8, {4}, {{{0, 1}}});
  const TileDescription description{.array_id = "a",
                                    .dtype = Dtype::kU8,
                                    .array_shape = {4},
                                    .tile = {{{0, 1}}},
                                    .array_descriptor = "",
                                    .transfer_id = "t"};
  std::string bytes(1, '\0');
  FileTileReader reader;
  const absl::StatusOr<uint32_t> crc32c =
      reader.Read(*file, Path("m"), 4, region, absl::MakeSpan(bytes), go_on);
  ASSERT_THAT(crc32c, IsOk());
  EXPECT_THAT(
      sums.Check(*file, Path("m"),
                 {.description = description, .offset_bytes = 4, .bytes = bytes, .crc32c = *crc32c},
                 reader, go_on),
      kDamaged);
}

}  // namespace
}  // namespace shardmesh::worker
