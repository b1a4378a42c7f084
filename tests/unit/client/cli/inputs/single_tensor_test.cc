// Tests of client/cli/inputs/single_tensor.h: files, checkpoints and standard input.
#include "client/cli/inputs/single_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBytes[] = {1, 2, 3, 4, 5, 6};

class SingleTensorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ + "/model");
    ASSERT_THAT(WriteNpy(Path("x.npy"), Tensor()), IsOk());
    WriteCheckpoint(Path("one.safetensors"), {"only"});
    WriteCheckpoint(Path("two.safetensors"), {"layer.query", "a:b"});
    WriteCheckpoint(Path("model/model.safetensors"), {"w"});
  }
  ~SingleTensorTest() override { std::filesystem::remove_all(folder_); }

  static TensorView Tensor() { return *TensorView::Create(Dtype::kI8, {2, 3}, kBytes); }
  static void WriteCheckpoint(const std::string& path, const std::vector<std::string>& names) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, Dtype::kI8, {2, 3}});
    auto writer = SafetensorsWriter::Create(path, tensors, {});
    ASSERT_THAT(writer, IsOk());
    for (size_t i = 0; i < names.size(); ++i) ASSERT_THAT(writer->Append(kBytes), IsOk());
    ASSERT_THAT(writer->Finish(), IsOk());
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ = ::testing::TempDir() + "single_tensor";
};

TEST_F(SingleTensorTest, OpensFilesAndTensorsOfCheckpoints) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Path("x.npy"), ""},
      {Path("one.safetensors"), ""},
      {Path("one.safetensors:only"), ""},
      {Path("two.safetensors:layer.query"), ""},
      {Path("two.safetensors:a:b"), ""},
      {Path("two.safetensors"), "a:b"},
      {Path("model:w"), ""},
      {Path("model"), "w"}};
  for (const auto& [text, tensor] : cases) {
    absl::StatusOr<SingleTensor> source = SingleTensor::Open(text, tensor);
    ASSERT_THAT(source, IsOk()) << text;
    const SingleTensor moved = *std::move(source);
    EXPECT_THAT(moved.view().shape(), ElementsAre(2, 3)) << text;
    EXPECT_THAT(moved.view().bytes(), ElementsAre(1, 2, 3, 4, 5, 6)) << text;
  }
}

TEST_F(SingleTensorTest, NamesTheTensorThatIsNotThere) {
  const auto missing = SingleTensor::Open(Path("two.safetensors:layer.quary"));
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("has no tensor \"layer.quary\"; did you mean \"layer.query\"?"));
  const auto several = SingleTensor::Open(Path("two.safetensors"));
  EXPECT_THAT(several, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  EXPECT_THAT(std::string(several.status().message()), HasSubstr("has 2 tensors; name one"));
  EXPECT_THAT(SingleTensor::Open(Path("none.npy")), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SingleTensor::Open(Path("none.safetensors:w")),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SingleTensorTest, ReadsStandardInput) {
  std::ostringstream npy;
  ASSERT_THAT(WriteNpy(npy, Tensor()), IsOk());
  const auto read = [](const std::string& text) {
    std::istringstream input(text);
    std::streambuf* const before = std::cin.rdbuf(input.rdbuf());
    absl::StatusOr<SingleTensor> source = SingleTensor::Open("-");
    std::cin.rdbuf(before);
    std::cin.clear();
    return source;
  };
  const absl::StatusOr<SingleTensor> source = read(npy.str());
  ASSERT_THAT(source, IsOk());
  EXPECT_THAT(source->view().bytes(), ElementsAre(1, 2, 3, 4, 5, 6));
  for (const std::string& text : {std::string(), npy.str().substr(0, npy.str().size() - 1)}) {
    const absl::Status refused = read(text).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("standard input"));
  }
}

}  // namespace
}  // namespace shardmesh::client
