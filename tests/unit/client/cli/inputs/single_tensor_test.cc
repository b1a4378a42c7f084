// Tests of client/cli/inputs/single_tensor.h: files, checkpoints and standard input.
#include "client/cli/inputs/single_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tests/testing/replacing_saves.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::ReplaceCheckpoint;
using ::shardmesh::test::ReplacingSaves;
using ::shardmesh::test::SavedFiles;
using ::shardmesh::test::ScopedMaxReplaceTime;
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

// The tensor's file is away for moments, and is then in another file of the folder.
TEST_F(SingleTensorTest, OpensATensorWhileSavesReplaceItsCheckpoint) {
  std::ifstream file(Path("model/model.safetensors"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string folder = Path("saved");
  const auto saved = [&bytes](const std::string& manifest, const std::string& name) {
    return SavedFiles{.manifest = manifest, .files = {{name, bytes}}};
  };
  const auto open = [&](const std::string& text, const SavedFiles& other) {
    ReplaceCheckpoint(folder, "", saved("a", "model.safetensors"));
    ReplacingSaves saves(folder, "", {other, saved("b", "model.safetensors")});
    for (int i = 0; i < 100; ++i) {
      ASSERT_THAT(SingleTensor::Open(text), IsOk()) << text;
      saves.Continue();
    }
  };
  open(folder + ":w", saved("c", "other.safetensors"));
  open(folder + "/model.safetensors:w", saved("c", "model.safetensors"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SingleTensor source, SingleTensor::Open(folder + ":w"));
  EXPECT_FALSE(source.WasReplaced());
  ASSERT_TRUE(source.saved().has_value());
  EXPECT_EQ(source.saved()->size_bytes, 6);
  ReplaceCheckpoint(folder, "", saved("d", "other.safetensors"));
  EXPECT_TRUE(source.WasReplaced());
  EXPECT_FALSE(source.source().has_value()) << "its file is gone";
}

TEST_F(SingleTensorTest, TheCallerEndsTheWaitForASaveThatNeverEnds) {
  const std::string folder = Path("model");
  std::filesystem::create_directories(StrCat(folder, "/", kSaveStaging, "/", kSaveAside));
  std::ofstream(StrCat(folder, "/", kCheckpointManifest)) << "x";
  const ScopedMaxReplaceTime patience(absl::InfiniteDuration());
  const auto keep_going = [] { return absl::CancelledError("the caller has gone"); };
  for (const std::string& text : {folder + ":w", folder + "/missing:w", folder + "/missing.npy"}) {
    EXPECT_THAT(SingleTensor::Open(text, "", nullptr, keep_going),
                StatusIs(absl::StatusCode::kCancelled))
        << text;
  }
  EXPECT_THAT(SingleTensor::Open(folder, "w", nullptr, keep_going),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(SingleTensor::Open(Path("one.safetensors"), "", nullptr, keep_going), IsOk());
}

TEST_F(SingleTensorTest, TensorsOfOneCheckpointShareIt) {
  OpenCheckpoints opened;
  const std::string path = Path("two.safetensors");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SingleTensor first,
                                 SingleTensor::Open(path + ":layer.query", "", &opened));
  ASSERT_EQ(opened.count(path), 1U);
  const std::shared_ptr<const Checkpoint> shared = opened[path];
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SingleTensor second,
                                 SingleTensor::Open(path, "a:b", &opened));
  EXPECT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened[path], shared);
  EXPECT_NE(first.view().bytes().data(), second.view().bytes().data());
  // One that was replaced is opened anew.
  WriteCheckpoint(Path("next.safetensors"), {"layer.query", "a:b"});
  std::filesystem::rename(Path("next.safetensors"), path);
  EXPECT_TRUE(first.WasReplaced());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SingleTensor third,
                                 SingleTensor::Open(path, "a:b", &opened));
  EXPECT_NE(opened[path], shared);
  EXPECT_FALSE(third.WasReplaced());
  EXPECT_TRUE(second.WasReplaced());
}

TEST_F(SingleTensorTest, KnowsThatItsFileWasReplaced) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SingleTensor source, SingleTensor::Open(Path("x.npy")));
  EXPECT_FALSE(source.WasReplaced());
  EXPECT_FALSE(source.saved().has_value());
  ASSERT_THAT(WriteNpy(Path("next.npy"), Tensor()), IsOk());
  std::filesystem::rename(Path("next.npy"), Path("x.npy"));
  EXPECT_TRUE(source.WasReplaced());
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
