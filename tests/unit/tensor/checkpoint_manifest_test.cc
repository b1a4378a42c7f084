// Manifests of checkpoints, and files that are compared with their checksums.
#include "tensor/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ManifestTest : public testing::Test {
 protected:
  ManifestTest()
      : path_(StrCat(testing::TempDir(), "/manifest_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~ManifestTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  absl::Status Check(const ManifestFile& listed) const {
    SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path_));
    return CheckChecksums(file, path_, listed, nullptr);
  }

  const std::string path_;
};

std::string RandomText(size_t size, std::mt19937* random) {
  std::string text(size, '\0');
  std::generate(text.begin(), text.end(), [random] { return static_cast<char>((*random)()); });
  return text;
}

// Cuts each dimension of the shape into `parts` ranges.
std::vector<Tile> Tiles(const Shape& shape, const std::vector<int64_t>& parts) {
  std::vector<Tile> tiles = {Tile{}};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<Tile> next;
    for (const Tile& tile : tiles) {
      for (int64_t i = 0; i < parts[dim]; ++i) {
        next.push_back(tile);
        next.back().ranges.push_back(
            {shape[dim] * i / parts[dim], shape[dim] * (i + 1) / parts[dim]});
      }
    }
    tiles = std::move(next);
  }
  return tiles;
}

ManifestTensor ListTensor(const std::string& bytes, Dtype dtype, const Shape& shape,
                          const std::vector<int64_t>& parts, int64_t offset_bytes) {
  ManifestTensor tensor{.dtype = dtype,
                        .shape = shape,
                        .offset_bytes = offset_bytes,
                        .size_bytes = static_cast<int64_t>(bytes.size()),
                        .tiles = {}};
  for (const Tile& tile : Tiles(shape, parts)) {
    const TileRegion region = *TileRegion::Create(dtype, shape, tile);
    std::string of_tile(static_cast<size_t>(region.size_bytes()), '\0');
    EXPECT_THAT(
        CopyTileBytes(*TensorView::Create(dtype, shape, bytes), tile, 0, absl::MakeSpan(of_tile)),
        IsOk());
    tensor.tiles.push_back({.tile = tile, .crc32c = Crc32c(of_tile)});
  }
  return tensor;
}

// Returns a file with a tensor that is cut as `parts` says.
ManifestFile ListFile(const std::string& bytes, const Shape& shape,
                      const std::vector<int64_t>& parts) {
  ManifestFile file{.name = "f",
                    .size_bytes = 8 + static_cast<int64_t>(bytes.size()),
                    .header_bytes = 8,
                    .header_crc32c = Crc32c(std::string_view("a header")),
                    .tensors = {}};
  file.tensors.push_back(ListTensor(bytes, Dtype::kU8, shape, parts, 8));
  return file;
}

TEST(ManifestChecksumsTest, AreComparedInEqualLayoutsAndBetweenCutsByRows) {
  std::mt19937 random(4);
  const Shape shape = {12, 10};
  const std::string bytes = RandomText(120, &random);
  std::string other = bytes;
  other[77] = static_cast<char>(other[77] ^ 1);
  for (const std::vector<int64_t>& a :
       {std::vector<int64_t>{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}}) {
    for (const std::vector<int64_t>& b : {std::vector<int64_t>{1, 1}, {4, 1}, {1, 2}, {2, 2}}) {
      const bool is_known = a == b || (a[1] == 1 && b[1] == 1);
      EXPECT_EQ(HaveEqualChecksums(ListFile(bytes, shape, a), ListFile(bytes, shape, b)), is_known);
      EXPECT_FALSE(HaveEqualChecksums(ListFile(bytes, shape, a), ListFile(other, shape, b)));
    }
  }
  // A tensor without elements has no tiles.
  EXPECT_TRUE(HaveEqualChecksums(ListFile("", {0, 3}, {0, 1}), ListFile("", {0, 3}, {0, 1})));
}

TEST(TensorDigestsTest, AreEqualWhereChecksumsAreWhereverTheTensorIs) {
  std::mt19937 random(6);
  const Shape shape = {12, 10};
  const std::string bytes = RandomText(120, &random);
  std::string other = bytes;
  other[77] = static_cast<char>(other[77] ^ 1);
  const auto content = [&](const std::string& text, const std::vector<int64_t>& parts) {
    return DigestsOf(ListTensor(text, Dtype::kU8, shape, parts, 8)).content;
  };
  for (const std::vector<int64_t>& a : {std::vector<int64_t>{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    for (const std::vector<int64_t>& b : {std::vector<int64_t>{1, 1}, {4, 1}, {1, 2}, {2, 2}}) {
      EXPECT_EQ(content(bytes, a) == content(bytes, b), a == b || (a[1] == 1 && b[1] == 1));
      EXPECT_NE(content(bytes, a), content(other, b));
    }
  }
  ManifestTensor tensor = ListTensor(bytes, Dtype::kU8, shape, {2, 1}, 8);
  tensor.name = "w";
  tensor.array_id = "a";
  const TensorDigests digests = DigestsOf(tensor);
  EXPECT_NE(digests.array, digests.content);
  tensor.offset_bytes = 500;
  EXPECT_EQ(DigestsOf(tensor), digests);
  tensor.tiles.front().crc32c += 1;
  EXPECT_EQ(DigestsOf(tensor).array, digests.array);
  EXPECT_NE(DigestsOf(tensor).content, digests.content);
  const std::vector<void (*)(ManifestTensor*)> changes = {
      [](ManifestTensor* of) { of->name = "v"; },
      [](ManifestTensor* of) { of->dtype = Dtype::kI8; },
      [](ManifestTensor* of) {
        of->shape = {10, 12};
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    ManifestTensor changed = tensor;
    changes[i](&changed);
    EXPECT_NE(DigestsOf(changed).array, DigestsOf(tensor).array) << i;
    EXPECT_NE(DigestsOf(changed).content, DigestsOf(tensor).content) << i;
  }
}

TEST(ManifestChecksumsTest, AreNotEqualIfAnythingElseDiffers) {
  std::mt19937 random(5);
  const ManifestFile file = ListFile(RandomText(120, &random), {12, 10}, {2, 1});
  ASSERT_TRUE(HaveEqualChecksums(file, file));
  const std::vector<void (*)(ManifestFile*)> changes = {
      [](ManifestFile* of) { of->has_checksums = false; },
      [](ManifestFile* of) { of->size_bytes += 1; },
      [](ManifestFile* of) { of->header_bytes += 1; },
      [](ManifestFile* of) { of->header_crc32c += 1; },
      [](ManifestFile* of) { of->tensors.clear(); },
      [](ManifestFile* of) { of->tensors[0].name = "other"; },
      [](ManifestFile* of) { of->tensors[0].dtype = Dtype::kI8; },
      [](ManifestFile* of) {
        of->tensors[0].shape = {10, 12};
      },
      [](ManifestFile* of) { of->tensors[0].offset_bytes += 1; },
      [](ManifestFile* of) { of->tensors[0].size_bytes += 1; },
      [](ManifestFile* of) { of->tensors[0].tiles.pop_back(); },
      [](ManifestFile* of) { of->tensors[0].tiles[0].tile.ranges[0].stop = 99; },
      [](ManifestFile* of) { of->tensors[0].tiles[1].crc32c += 1; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    ManifestFile changed = file;
    changes[i](&changed);
    EXPECT_FALSE(HaveEqualChecksums(file, changed)) << i;
    EXPECT_FALSE(HaveEqualChecksums(changed, file)) << i;
  }
}

TEST_F(ManifestTest, FindsAnyChangedByteOfTilesOfAnyLayout) {
  std::mt19937 random(20);
  struct Case {
    Shape shape;
    std::vector<int64_t> parts;
  };
  // The last tensors are larger than a piece of the file, so that tiles go on in the next one.
  const std::vector<Case> cases = {{{}, {}},
                                   {{7}, {3}},
                                   {{3, 0, 4}, {1, 1, 2}},
                                   {{6, 5}, {2, 1}},
                                   {{6, 5}, {1, 5}},
                                   {{4, 6, 5}, {2, 3, 2}},
                                   {{700, 1009}, {3, 4}},
                                   {{2, 900'001}, {1, 3}},
                                   {{1'200'001, 2}, {5, 1}}};
  const std::string header = RandomText(100, &random);
  ManifestFile listed{.name = "f",
                      .size_bytes = 0,
                      .header_bytes = 100,
                      .header_crc32c = Crc32c(header),
                      .tensors = {}};
  std::string bytes = header;
  for (const Case& each : cases) {
    const std::string tensor =
        RandomText(static_cast<size_t>(*ElementCount(each.shape)) * 4, &random);
    listed.tensors.push_back(ListTensor(tensor, Dtype::kF32, each.shape, each.parts,
                                        static_cast<int64_t>(bytes.size())));
    bytes += tensor;
  }
  listed.size_bytes = static_cast<int64_t>(bytes.size());
  Write(bytes);
  EXPECT_THAT(Check(listed), IsOk());
  std::vector<size_t> places = {0, 99, bytes.size() - 1};
  for (const ManifestTensor& tensor : listed.tensors) {
    if (tensor.size_bytes == 0) continue;
    places.push_back(static_cast<size_t>(tensor.offset_bytes));
    places.push_back(static_cast<size_t>(tensor.offset_bytes) +
                     random() % static_cast<size_t>(tensor.size_bytes));
  }
  for (const size_t place : places) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    Write(changed);
    EXPECT_THAT(Check(listed), StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch))
        << place;
  }
  Write(bytes + "x");
  EXPECT_THAT(Check(listed), StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

TEST_F(ManifestTest, TrustsNoFileOfWhichSomeBytesHaveNoChecksum) {
  std::mt19937 random(21);
  const std::string tensor = RandomText(24, &random);
  Write("head" + tensor);
  const ManifestFile whole{.name = "f",
                           .size_bytes = 28,
                           .header_bytes = 4,
                           .header_crc32c = Crc32c(std::string("head")),
                           .tensors = {ListTensor(tensor, Dtype::kU8, {4, 6}, {2, 1}, 4)}};
  EXPECT_THAT(Check(whole), IsOk());
  const auto lost = StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch);
  ManifestFile listed = whole;
  listed.tensors[0].tiles.pop_back();
  EXPECT_THAT(Check(listed), lost) << "a tile is missing";
  listed = whole;
  listed.tensors.clear();
  EXPECT_THAT(Check(listed), lost) << "the tensor is missing";
  listed = whole;
  listed.tensors[0].offset_bytes = 5;
  EXPECT_THAT(Check(listed), lost) << "a gap";
  listed = whole;
  listed.tensors[0].tiles.push_back(listed.tensors[0].tiles[0]);
  EXPECT_THAT(Check(listed), lost) << "a tile twice";
  listed = whole;
  listed.header_bytes = int64_t{1} << 40;
  EXPECT_THAT(Check(listed), lost) << "a header beyond the end";
  listed = whole;
  listed.tensors[0].tiles[0].tile.ranges[0].stop = 1'000;
  EXPECT_FALSE(Check(listed).ok()) << "a tile beyond the tensor";
}

TEST_F(ManifestTest, ListsFilesWithoutChecksumsIfTheseAreMissingOrMalformed) {
  const auto parse = [](const std::string& file, const std::string& tensor) {
    return ParseManifest("m", StrCat(R"({"files":[{"name":"f","size_bytes":5)", file,
                                     R"(}],"tensors":[{"file":"f")", tensor, "}]}"));
  };
  const std::string header = R"(,"header_bytes":1,"header_crc32c":7)";
  const std::string tensor =
      R"(,"dtype":"U8","shape":[4],"offset_bytes":1,"size_bytes":4,"tiles":[)";
  const std::string tile = R"({"ranges":[[0,4]],"crc32c":4294967295})";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto files, parse(header, tensor + tile + "]"));
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_TRUE(files[0].has_checksums);
  EXPECT_EQ(files[0].tensors.at(0).tiles.at(0).crc32c, 0xFFFFFFFF);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", tensor + tile + "]"},  // as builds before wrote it
      {R"(,"header_bytes":-1,"header_crc32c":7)", tensor + tile + "]"},
      {header, ""},
      {header, tensor + R"({"ranges":[[0]],"crc32c":1}])"},
      {header, tensor + R"({"ranges":[[0,4]],"crc32c":4294967296}])"},
      {header, tensor + R"({"ranges":[[0,4]]}])"},
      {header, tensor + "7]"}};
  for (const auto& [of_file, of_tensor] : bad) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto unchecked, parse(of_file, of_tensor));
    ASSERT_THAT(unchecked, SizeIs(1)) << of_file << of_tensor;
    EXPECT_EQ(unchecked[0].name, "f");
    EXPECT_EQ(unchecked[0].size_bytes, 5);
    EXPECT_FALSE(unchecked[0].has_checksums) << of_file << of_tensor;
    Write("12345");
    EXPECT_THAT(Check(unchecked[0]),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  }
  for (const char* const text :
       {"", "{", "[]", "{}", R"({"files":{}})", R"({"files":[7]})", R"({"files":[{}]})",
        R"({"files":[{"name":"f"}]})", R"({"files":[{"name":"f","size_bytes":-1}]})",
        R"({"files":[{"name":"","size_bytes":1}]})",
        R"({"files":[{"name":"../f","size_bytes":1}]})",
        R"({"files":[{"name":".f","size_bytes":1}]})"}) {
    EXPECT_THAT(ParseManifest("m", text),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile))
        << text;
  }
}

TEST_F(ManifestTest, ListsTheChecksumsOfPiecesIfTheyAreOfThePieceSizeOfThisBuild) {
  const auto parse = [](const std::string& piece_bytes, const std::string& pieces) {
    const auto files = ParseManifest(
        "m", StrCat("{", piece_bytes, R"("files":[{"name":"f","size_bytes":5,"header_bytes":1,)",
                    R"("header_crc32c":7}],"tensors":[{"file":"f","dtype":"U8","shape":[4],)",
                    R"("offset_bytes":1,"size_bytes":4,"tiles":[{"ranges":[[0,4]],"crc32c":5,)",
                    R"("piece_crc32c":)", pieces, "}]}]}"));
    EXPECT_THAT(files, IsOk());
    EXPECT_TRUE(files->at(0).has_checksums);
    return files->at(0).tensors.at(0).tiles.at(0).piece_crc32c;
  };
  const std::vector<uint32_t> pieces = {0, 0x00C0FFEE, 0xFFFFFFFF};
  EXPECT_EQ(PieceText(pieces), "0000000000c0ffeeffffffff");
  const std::string text = StrCat("\"", PieceText(pieces), "\"");
  const std::string piece_bytes = StrCat(R"("piece_bytes":)", kSavedPieceBytes, ",");
  EXPECT_EQ(parse(piece_bytes, text), pieces);
  EXPECT_THAT(parse("", text), SizeIs(0));
  EXPECT_THAT(parse(R"("piece_bytes":4096,)", text), SizeIs(0));
  for (const char* const malformed : {"7", "[]", R"("")", R"("0000000")", R"("0000000g")",
                                      R"("0000000000c0ffe")", R"("-0000001")"}) {
    EXPECT_THAT(parse(piece_bytes, malformed), SizeIs(0)) << malformed;
  }
}

TEST_F(ManifestTest, ReturnsTheChecksumsOfThePiecesThatItRead) {
  std::mt19937 random(22);
  const Shape shape = {3000, 1000};
  const std::string first = RandomText(3'000'000, &random);
  const std::string second = RandomText(5, &random);
  const ManifestFile listed{.name = "f",
                            .size_bytes = 3'000'009,
                            .header_bytes = 4,
                            .header_crc32c = Crc32c(std::string("head")),
                            .tensors = {ListTensor(first, Dtype::kU8, shape, {1, 2}, 4),
                                        ListTensor(second, Dtype::kU8, {5}, {1}, 3'000'004)}};
  Write("head" + first + second);
  std::vector<uint32_t> expected;
  const TensorView view = *TensorView::Create(Dtype::kU8, shape, first);
  for (const Tile& tile : Tiles(shape, {1, 2})) {
    std::string of_tile(1'500'000, '\0');
    EXPECT_THAT(CopyTileBytes(view, tile, 0, absl::MakeSpan(of_tile)), IsOk());
    expected.push_back(Crc32c(of_tile.substr(0, kSavedPieceBytes)));
    expected.push_back(Crc32c(of_tile.substr(kSavedPieceBytes)));
  }
  expected.push_back(Crc32c(second));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const InputFile file, OpenInputFile(path_));
  std::vector<uint32_t> pieces;
  EXPECT_THAT(CheckChecksums(file, path_, listed, nullptr, nullptr, &pieces), IsOk());
  EXPECT_EQ(pieces, expected);
  pieces.clear();
  EXPECT_THAT(FindIntactTiles(file, path_, listed, nullptr, &pieces),
              IsOkAndHolds(ElementsAre(true, true, true)));
  EXPECT_EQ(pieces, expected);
}

TEST_F(ManifestTest, ListsTheContentKeysOfFiles) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto files,
      ParseManifest("m", R"({"files":[{"name":"b","size_bytes":1,"content_key":"k"},)"
                         R"({"name":"a","size_bytes":2,"content_key":7}]})"));
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_EQ(files[0].name, "a");
  EXPECT_EQ(files[0].content_key, "");
  EXPECT_EQ(files[1].content_key, "k");
}

TEST_F(ManifestTest, FindsTheTilesThatAreIntact) {
  std::mt19937 random(3);
  const std::string first = RandomText(48, &random);
  const std::string second = RandomText(24, &random);
  const ManifestFile listed{.name = "f",
                            .size_bytes = 76,
                            .header_bytes = 4,
                            .header_crc32c = Crc32c(std::string("head")),
                            .tensors = {ListTensor(first, Dtype::kU8, {6, 8}, {1, 2}, 4),
                                        ListTensor(second, Dtype::kU8, {4, 6}, {2, 1}, 52)}};
  const auto find = [&](const std::string& bytes) -> absl::StatusOr<std::vector<bool>> {
    Write(bytes);
    SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path_));
    return FindIntactTiles(file, path_, listed, nullptr);
  };
  const std::string whole = "head" + first + second;
  EXPECT_THAT(find(whole), IsOkAndHolds(ElementsAre(true, true, true, true)));
  // The header may not be written yet. Byte 11 is in the second tile of columns.
  std::string damaged = whole;
  damaged[0] ^= 1;
  damaged[11] ^= 1;
  damaged[75] ^= 1;
  EXPECT_THAT(find(damaged), IsOkAndHolds(ElementsAre(true, false, true, false)));
  EXPECT_THAT(find(std::string(76, '\0')), IsOkAndHolds(ElementsAre(false, false, false, false)));
  EXPECT_THAT(find(whole.substr(1)),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const InputFile file, OpenInputFile(path_));
  ManifestFile uncovered = listed;
  uncovered.size_bytes = file.size_bytes;
  EXPECT_THAT(FindIntactTiles(file, path_, uncovered, nullptr),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  Write(whole);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const InputFile again, OpenInputFile(path_));
  EXPECT_THAT(FindIntactTiles(again, path_, listed, [] { return absl::CancelledError("enough"); }),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ManifestTest, ADamagedTileIsNamedWithItsTensorAndBothChecksums) {
  Write("headABCD");
  ManifestFile listed{.name = "f",
                      .size_bytes = 8,
                      .header_bytes = 4,
                      .header_crc32c = Crc32c(std::string("head")),
                      .tensors = {ListTensor("ABCE", Dtype::kU8, {4}, {1}, 4)}};
  listed.tensors[0].name = "wq";
  const absl::Status damaged = Check(listed);
  EXPECT_THAT(damaged, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(
      std::string(damaged.message()),
      AllOf(HasSubstr(path_), HasSubstr("\"wq\""), HasSubstr(StrCat(Crc32c(std::string("ABCD")))),
            HasSubstr(StrCat(Crc32c(std::string("ABCE"))))));
}

}  // namespace
}  // namespace shardmesh
