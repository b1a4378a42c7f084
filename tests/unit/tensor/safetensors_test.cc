// Safetensors files: what is read, what is refused and in which words, and writing.
#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An empty folder of the running test's own.
std::string TestFolder() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       (std::string(test->test_suite_name()) + "." + test->name());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder.string();
}

std::string WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string LengthBytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i)));
  }
  return bytes;
}

std::string FileBytes(std::string_view json, std::string_view data) {
  return LengthBytes(json.size()) + std::string(json) + std::string(data);
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirData) {
  const std::string path = WriteFile(
      TestFolder() + "/a.safetensors",
      FileBytes(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"k":"v"},)"
                R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                R"("empty":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]},)"
                R"("scalar":{"dtype":"BOOL","shape":[],"data_offsets":[11,12]}}   )",
                "abcdefghijkl"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<std::string> names;
  for (const SafetensorsTensor& tensor : file.header().tensors()) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("a", "empty", "b", "scalar"));
  EXPECT_EQ(file.header().metadata().at("k"), "v");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView b, file.View("b"));
  EXPECT_EQ(std::string(b.bytes().begin(), b.bytes().end()), "ijk");
  EXPECT_THAT(b.shape(), ElementsAre(3));
  EXPECT_EQ(b.dtype(), Dtype::kU8);
  EXPECT_THAT(file.View("c"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

struct MalformedHeader {
  const char* name;
  const char* json;
  const char* message;  // a part of it
};

// Each header stands before eight bytes of data.
const MalformedHeader kMalformedHeaders[] = {
    {"Empty", "", "does not begin with '{'"},
    {"SpaceFirst", " {}", "does not begin with '{'"},
    {"CutOff", R"({"a":)", "not JSON in UTF-8"},
    {"TrailingText", R"({} x)", "not JSON in UTF-8"},
    {"NotUtf8", "{\"a\xff\":{}}", "not JSON in UTF-8"},
    {"LoneSurrogate", R"({"\ud800":{}})", "not JSON in UTF-8"},
    {"TensorIsNumber", R"({"a":3})", "\"a\" is not an object but 3"},
    {"MetadataIsNumber", R"({"__metadata__":{"k":1}})", "\"k\" is not a text but 1"},
    {"MetadataIsNested", R"({"__metadata__":{"k":{}}})", "not a text but an object"},
    {"RepeatedMetadata", R"({"__metadata__":{},"__metadata__":{}})", "occurs twice"},
    {"RepeatedMetadataKey", R"({"__metadata__":{"k":"a","k":"b"}})", "\"k\" occurs twice"},
    {"RepeatedName",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
     "the name \"a\" occurs twice"},
    {"RepeatedKey", R"({"a":{"dtype":"U8","dtype":"I8"}})", "the key dtype occurs twice"},
    {"UnknownKey", R"({"a":{"stride":[1]}})", "unknown key \"stride\""},
    {"NoDtype", R"({"a":{"shape":[8],"data_offsets":[0,8]}})", "\"a\" has no dtype"},
    {"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "\"a\" has no shape"},
    {"NoOffsets", R"({"a":{"dtype":"U8","shape":[8]}})", "\"a\" has no data_offsets"},
    {"DtypeIsNumber", R"({"a":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})",
     "dtype cannot have 8"},
    {"NegativeExtent", R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})",
     "shape cannot have the negative number -8"},
    {"FractionalExtent", R"({"a":{"dtype":"U8","shape":[8.5],"data_offsets":[0,8]}})",
     "shape cannot have 8.5"},
    {"HugeExtent", R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}})",
     "18446744073709551615, which is more than 63 bits hold"},
    {"OverflowingShape",
     R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
     "tensor \"a\""},
    {"OverflowingSize",
     R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,8]}})", "tensor \"a\""},
    {"TooManyDimensions",
     R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})",
     "more than 16 dimensions"},
    {"NestedShape", R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "a list"},
    {"OneOffset", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8]}})", "1 numbers"},
    {"ThreeOffsets", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", "more than two"},
    {"OutOfBounds", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})",
     "[0, 9] are not a range within the 8 bytes"},
    {"Reversed", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "[8, 0] are not"},
    {"WrongSize", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
     "span 8 bytes, but F32 of shape (3,) takes 12"},
    {"PartialByte", R"({"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}})",
     "do not fill whole bytes"},
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor \"b\" overlaps tensor \"a\""},
    {"Gap",
     R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "bytes 3 to 4 of the data belong to no tensor"},
    {"Uncovered", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})",
     "the last 1 bytes of the file belong to no tensor"},
};

TEST(SafetensorsTest, RefusesMalformedHeadersNamingWhatIsWrong) {
  const std::string folder = TestFolder();
  for (const MalformedHeader& c : kMalformedHeaders) {
    const std::string path = WriteFile(folder + "/" + c.name, FileBytes(c.json, "12345678"));
    const auto header = ReadSafetensorsHeader(path);
    EXPECT_THAT(header, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile)) << c.name;
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(c.message)) << c.name;
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(path)) << c.name;
  }
}

TEST(SafetensorsTest, RefusesAnUnknownDtypeByItsName) {
  const auto header = SafetensorsHeader::Parse(
      "f", R"({"w":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}})", 16);
  EXPECT_THAT(header, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownDtype));
  EXPECT_THAT(std::string(header.status().message()), HasSubstr("tensor \"w\": dtype \"F128\""));
}

TEST(SafetensorsTest, RefusesFilesThatAreCutOffOrClaimTooMuch) {
  const std::string folder = TestFolder();
  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } cases[] = {
      {"Empty", "", "has 0 bytes"},
      {"CutInLength", "1234567", "has 7 bytes"},
      {"CutInHeader", LengthBytes(100) + "{\"a\"", "claims 100 bytes, but only 4 follow"},
      {"OverTheLimit", LengthBytes(100'000'001) + "{}",
       "claims 100000001 bytes; the format allows"},
      {"MaxLength", LengthBytes(~uint64_t{0}) + "{}", "claims 18446744073709551615 bytes"},
      {"CutInData",
       FileBytes(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "1234567"),
       "the 7 bytes of data that the file has"},
  };
  for (const auto& c : cases) {
    const auto file = SafetensorsFile::Open(WriteFile(folder + "/" + c.name, c.bytes));
    EXPECT_THAT(file, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile)) << c.name;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.message)) << c.name;
  }
  EXPECT_THAT(SafetensorsFile::Open(folder + "/missing"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SafetensorsFile::Open(folder),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST(SafetensorsTest, ANameWithControlCharactersIsEscapedInMessages) {
  const auto header = SafetensorsHeader::Parse("f", R"({"a\n\u0000":{"dtype":"U8"}})", 0);
  EXPECT_THAT(std::string(header.status().message()),
              HasSubstr(R"(tensor "a\n\x00" has no shape)"));
}

TEST(SafetensorsWriterTest, WhatIsWrittenIsReadBack) {
  const std::string path = TestFolder() + "/out.safetensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(path, {{"z", Dtype::kI16, {2, 2}}, {"ü", Dtype::kU8, {}}},
                                {{"by", "a test"}}));
  ASSERT_THAT(writer.Append(std::string("abcdefg")), IsOk());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(writer.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(writer.Append(std::string("xyz")), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(writer.Append(std::string("hi")), IsOk());
  ASSERT_THAT(writer.Finish(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  EXPECT_EQ(file.header().data_offset_bytes() % 64, 0);
  EXPECT_EQ(file.header().metadata().at("by"), "a test");
  EXPECT_EQ(file.View("z")->bytes(), absl::MakeConstSpan("abcdefgh", 8));
  EXPECT_EQ(file.View("ü")->bytes(), absl::MakeConstSpan("i", 1));
}

TEST(SafetensorsWriterTest, LeavesNothingWhenItIsNotFinished) {
  const std::string folder = TestFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(folder + "/a", {{"a", Dtype::kU8, {2}}}, {}));
    ASSERT_THAT(writer.Append(std::string("a")), IsOk());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(SafetensorsWriterTest, RefusesNamesThatCannotBeWritten) {
  const std::string path = TestFolder() + "/a";
  const std::vector<SafetensorsWriter::Tensor> cases[] = {
      {{"a", Dtype::kU8, {}}, {"a", Dtype::kU8, {}}},
      {{"__metadata__", Dtype::kU8, {}}},
      {{"\xff", Dtype::kU8, {}}},
      {{"a", Dtype::kU8, {-1}}},
  };
  for (const auto& tensors : cases) {
    EXPECT_THAT(SafetensorsWriter::Create(path, tensors, {}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = TestFolder();
    WriteFile(folder_ + "/1.safetensors",
              FileBytes(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "xa"));
    WriteFile(folder_ + "/2.safetensors",
              FileBytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "b"));
  }

  absl::StatusOr<Checkpoint> OpenIndex(std::string_view json) {
    return Checkpoint::Open(WriteFile(folder_ + "/model.safetensors.index.json", json));
  }

  std::string folder_;
};

TEST_F(CheckpointTest, JoinsTheFilesOfAnIndex) {
  ASSERT_THAT(OpenIndex(R"({"metadata":{},"weight_map":{"b":"2.safetensors","a":"1.safetensors",)"
                        R"("x":"1.safetensors"}})"),
              IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  std::string names;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    names += entry.tensor->name;
    EXPECT_EQ(checkpoint.View(entry).bytes()[0], entry.tensor->name[0]);
  }
  EXPECT_EQ(names, "xab");
  EXPECT_EQ(checkpoint.size_bytes(), 3);
  EXPECT_NE(checkpoint.Find("b"), nullptr);
  EXPECT_EQ(checkpoint.Find("c"), nullptr);
}

TEST_F(CheckpointTest, OpensASingleFile) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                                 Checkpoint::Open(folder_ + "/1.safetensors"));
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
}

TEST_F(CheckpointTest, RefusesABadIndex) {
  const struct {
    const char* json;
    const char* message;
  } cases[] = {
      {"[]", "not a JSON object"},
      {"{\"a\xff\":1}", "not a JSON object in UTF-8"},
      {"{}", "no object \"weight_map\""},
      {R"({"weight_map":{"a":1}})", "not a text"},
      {R"({"weight_map":{"a":"../1.safetensors"}})", "not the name of a file beside the index"},
      {R"({"weight_map":{"b":"1.safetensors"}})",
       "tensor \"b\" is in 1.safetensors, but it is not"},
  };
  for (const auto& c : cases) {
    const auto checkpoint = OpenIndex(c.json);
    EXPECT_THAT(checkpoint, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(c.message));
  }
  EXPECT_THAT(OpenIndex(R"({"weight_map":{"b":"3.safetensors"}})"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(CheckpointOpenTest, SaysWhatAFolderLacks) {
  EXPECT_THAT(Checkpoint::Open(TestFolder()), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace shardmesh
