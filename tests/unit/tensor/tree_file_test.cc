// Trees as JSON: what is read, and what is refused in which words.
#include "tensor/tree_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

PartitionSpec Spec(const std::vector<AxisValue>& entries) {
  return *PartitionSpec::Create(entries);
}

TEST(TreeFileTest, JoinsTheKeysOnTheWayToATensor) {
  const auto tree = ParseTree("t", R"({
    "embed": {"shape": [32000, 512], "dtype": "BF16"},
    "layers": {"0": {"wq": {"shape": [512, 512], "spec": ["fsdp", ["tp", "sp"]]},
                     "norm.scale": {"dtype": null, "shape": []}}},
    "none": {}})");
  ASSERT_THAT(tree, IsOk());
  const std::vector<TreeFileTensor> expected = {
      {.name = "embed", .shape = {32000, 512}, .dtype = Dtype::kBF16},
      {.name = "layers.0.wq",
       .shape = {512, 512},
       .spec = Spec({AxisValue::Name("fsdp"),
                     AxisValue::Tuple({AxisValue::Name("tp"), AxisValue::Name("sp")})})},
      {.name = "layers.0.norm.scale"},
  };
  EXPECT_EQ(*tree, expected);
}

TEST(TreeFileTest, ReadsElementTypesByTheirNumpyNames) {
  const auto tree = ParseTree("t", R"({"a": {"shape": [2], "dtype": "float32"},
                                       "b": {"shape": [2], "dtype": "bfloat16"},
                                       "c": {"shape": [2], "dtype": "int8"}})");
  ASSERT_THAT(tree, IsOk());
  ASSERT_EQ(tree->size(), 3u);
  EXPECT_EQ((*tree)[0].dtype, Dtype::kF32);
  EXPECT_EQ((*tree)[1].dtype, Dtype::kBF16);
  EXPECT_EQ((*tree)[2].dtype, Dtype::kI8);
}

TEST(TreeFileTest, TakesTheKeysOfTensorsAsNamesOfParts) {
  const auto tree =
      ParseTree("t", R"({"shape": {"dtype": {"shape": [4]}, "axes": {"shape": [2]}}})");
  ASSERT_THAT(tree, IsOk());
  ASSERT_EQ(tree->size(), 2u);
  EXPECT_EQ((*tree)[0].name, "shape.dtype");
  EXPECT_EQ((*tree)[1].name, "shape.axes");
}

TEST(TreeFileTest, ReadsATensorALine) {
  const auto tree =
      ParseTreeLines("t",
                     "{\"name\": \"b\", \"shape\": [7], \"axes\": [[\"A\", \"B\"]]}\r\n"
                     "  \n"
                     "{\"shape\": [2, 0], \"dtype\": \"F32\", \"name\": \"a.w\"}");
  ASSERT_THAT(tree, IsOk());
  const std::vector<TreeFileTensor> expected = {
      {.name = "b",
       .shape = {7},
       .axes = {{AxisValue::List({AxisValue::Name("A"), AxisValue::Name("B")})}}},
      {.name = "a.w", .shape = {2, 0}, .dtype = Dtype::kF32},
  };
  EXPECT_EQ(*tree, expected);
  EXPECT_EQ(ParseTreeLines("t", "\n\n")->size(), 0u);
}

TEST(TreeFileTest, RefusesWhatIsNoTreeAndNamesThePlace) {
  struct Case {
    std::string text;
    Reason reason;
    std::string message;
  };
  const Case kCases[] = {
      {"", Reason::kBadFile, "t: it is not JSON in UTF-8, at byte"},
      {"{\"a\": {\"shape\": [1]}", Reason::kBadFile, "not JSON in UTF-8"},
      {"{\"a\": ", Reason::kBadFile, "expected '[', '{', or a literal"},
      {"{\"a\": \"\\x\"}", Reason::kBadFile, R"(last read: '"\x')"},
      {"{\"a\": \"\xff\"}", Reason::kBadFile, R"(last read: '"\xff')"},
      {"[]", Reason::kBadFile,
       "a list stands where the tree's object should; one object a line, such as"},
      {R"({"name": "w", "shape": [1]})", Reason::kBadFile, "goes into a .jsonl file"},
      {"7", Reason::kBadFile, "the number 7 stands where"},
      {"null", Reason::kBadFile, "null stands where"},
      {R"({"shape": [1]})", Reason::kBadFile, "the file is one tensor without a name"},
      {R"({"a": 3})", Reason::kBadFile, "the number 3 stands at the key \"a\""},
      {R"({"a": {"shape": [1], "kind": "x"}})", Reason::kBadFile, "\"a\": the text \"x\" stands"},
      {R"({"a": {"shape": [1], "kind": [1]}})", Reason::kBadFile, "a list stands at the key"},
      {R"({"a": {"shape": "1"}})", Reason::kBadFile, "the text \"1\" stands at the key \"shape\""},
      {R"({"a": {"dtype": "F32"}})", Reason::kBadFile, "\"a\": has no shape"},
      {R"({"a": {"shape": [-1]}})", Reason::kBadFile, "the negative number -1"},
      {R"({"a": {"shape": [1.5]}})", Reason::kBadFile, "1.5 stands"},
      {R"({"a": {"shape": [[1]]}})", Reason::kBadFile, "a list stands"},
      {R"({"a": {"shape": [1, null]}})", Reason::kBadFile, "null stands"},
      {R"({"a": {"shape": [18446744073709551615]}})", Reason::kInvalidShape, "63 bits"},
      {R"({"a": {"shape": [4294967296, 4294967296]}})", Reason::kInvalidShape, "\"a\": "},
      {R"({"a": {"shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}})", Reason::kInvalidShape,
       "more than 16 dimensions"},
      {R"({"a": {"shape": [1], "shape": [1]}})", Reason::kBadFile, "\"shape\" occurs twice"},
      {R"({"a": {"shape": [1]}, "a": {}})", Reason::kBadFile, "\"a\" occurs twice"},
      {R"({"a.b": {"shape": [1]}, "a": {"b": {"shape": [1]}}})", Reason::kBadFile,
       "\"a.b\": the tensor is listed twice"},
      {R"({"a": {"shape": [1], "b": {"shape": [1]}}})", Reason::kBadFile, "an object stands"},
      {R"({"a": {"b": {"shape": [1]}, "shape": [1]}})", Reason::kBadFile, "objects beside them"},
      {R"({"a": {"shape": [1], "dtype": "F33"}})", Reason::kUnknownDtype, "\"a\": dtype"},
      {R"({"a": {"shape": [1], "dtype": "float33"}})", Reason::kUnknownDtype, "F32 (float32), "},
      {R"({"a": {"shape": [1], "spec": [["x", null]]}})", Reason::kBadFile, "null stands"},
      {R"({"a": {"shape": [1], "spec": [[["x"]]]}})", Reason::kBadFile, "a list stands"},
      {R"({"a": {"shape": [1], "spec": [true]}})", Reason::kBadFile, "true stands"},
      {R"({"a": {"shape": [1], "spec": [null], "axes": []}})", Reason::kBadFile, "give one"},
      {R"({"a": {"shape": [1], "axes": [0,1]}})", Reason::kBadFile, "the number 0"},
      {"{\"a\xff\": {\"shape\": [1]}}", Reason::kBadFile, "not JSON in UTF-8"},
      {StrCat(R"({")", std::string(1025, 'n'), R"(": {"shape": [1]}})"), Reason::kLimitExceeded,
       "1024 bytes"},
  };
  for (const Case& c : kCases) {
    EXPECT_THAT(ParseTree("t", c.text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, c.reason))
        << c.text;
    EXPECT_THAT(std::string(ParseTree("t", c.text).status().message()), HasSubstr(c.message))
        << c.text;
  }
}

TEST(TreeFileTest, RefusesLinesThatAreNoTensorAndNamesThem) {
  struct Case {
    std::string text;
    std::string message;
  };
  const Case kCases[] = {
      {"{\"name\": \"a\", \"shape\": [1]}\n{}", "t:2: a tensor has no name"},
      {"\n{\"name\": \"\", \"shape\": [1]}", "t:2: a tensor has no name"},
      {"{\"name\": \"a\", \"shape\": [1]}\n{\"name\": \"a\", \"shape\": [1]}",
       "t:2: \"a\": the tensor is listed twice"},
      {"{\"name\": \"a\", \"part\": {\"shape\": [1]}}", "t:1: \"a\": an object stands"},
      {"{\"name\": \"a\"}", "t:1: \"a\": has no shape"},
      {"{\"name\": \"a\", \"shape\": [1]} {}", "t:1: "},
  };
  for (const Case& c : kCases) {
    EXPECT_THAT(ParseTreeLines("t", c.text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile))
        << c.text;
    EXPECT_THAT(std::string(ParseTreeLines("t", c.text).status().message()), HasSubstr(c.message))
        << c.text;
  }
}

TEST(TreeFileTest, BoundsHowDeepPartsNest) {
  const auto nested = [](size_t depth) {
    std::string text = R"({"shape": [1]})";
    for (size_t i = 0; i < depth; ++i) {
      text = StrCat(R"({"n": )", text, "}");
    }
    return text;
  };
  EXPECT_THAT(ParseTree("t", nested(kMaxTreeDepth - 1)), IsOk());
  EXPECT_THAT(ParseTree("t", nested(kMaxTreeDepth)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

}  // namespace
}  // namespace shardmesh
