// Tests of client/cli/inputs/file_kind.h: what the errors of load and put say of other files.
#include "client/cli/inputs/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "client/cli/inputs/checkpoint_source.h"
#include "client/cli/inputs/single_tensor.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FileKindTest : public ::testing::Test {
 protected:
  FileKindTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~FileKindTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  std::string WriteNpyFile(const std::string& name) const {
    constexpr char kBytes[] = {1, 2};
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    EXPECT_THAT(WriteNpy(Path(name), *TensorView::Create(Dtype::kI8, {2}, kBytes)), IsOk());
    return Path(name);
  }
  void WriteCheckpoint(const std::string& name) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    auto writer = SafetensorsWriter::Create(Path(name), {{"w", Dtype::kI8, {2}}}, {});
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT(writer->Append(std::string(2, 'q')), IsOk());
    ASSERT_THAT(writer->Finish(), IsOk());
  }
  void WriteStep(const std::string& folder, int64_t step) const {
    const std::string name = StrCat(folder, "/", StepFolderName(step), "/");
    WriteCheckpoint(StrCat(name, "model.safetensors"));
    Write(StrCat(name, kCheckpointManifest), "{}");
    Write(StrCat(name, kCheckpointMarker), CheckpointMarkerText("{}"));
  }
  static std::string LoadError(const std::string& path) {
    return std::string(OpenMapped(path).status().message());
  }
  static std::string PutError(const std::string& text) {
    return std::string(SingleTensor::Open(text).status().message());
  }

  const std::string folder_ = ::testing::TempDir() + "file_kind";
};

TEST_F(FileKindTest, LoadSaysWhatAFileIsAndWhichCommandTakesIt) {
  EXPECT_THAT(LoadError(WriteNpyFile("x.npy")), HasSubstr("x.npy --as NAME --spec SPEC` puts it"));
  EXPECT_THAT(LoadError(Write("rules.yaml", "rules: []\n")), HasSubstr("rules go after --rules"));
  for (const char version : {'\2', '\4', '\5'}) {
    EXPECT_THAT(LoadError(Write("old.pt", StrCat("\x80", std::string(1, version), "}q0123456"))),
                HasSubstr("is a pickle, as torch.save writes it"));
  }
  Write("docs/readme.md", "text");
  EXPECT_THAT(LoadError(Path("docs")), HasSubstr("or a folder of safetensors or .npy files"));
  // The errors of files that are none of these stay.
  EXPECT_THAT(LoadError(Write("short", "abc")), HasSubstr("a safetensors file has at least 8"));
  EXPECT_THAT(LoadError(Write("empty.yml", "")), HasSubstr("is a YAML file"));
  EXPECT_THAT(LoadError(Path("none")), HasSubstr("cannot open"));
}

TEST_F(FileKindTest, LoadFindsAStepWhoseFolderWasNamedWithOtherDigits) {
  WriteStep("ckpt", 100);
  const absl::Status missing = OpenMapped(Path("ckpt/step-100")).status();
  EXPECT_THAT(missing, test::StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(StrCat("did you mean ", Path("ckpt/step-00000100"), "?")));
  for (const char* const name : {"ckpt/step-7", "ckpt/step-", "ckpt/step--1", "ckpt/stop-100"}) {
    EXPECT_THAT(LoadError(Path(name)), Not(HasSubstr("did you mean"))) << name;
  }
}

TEST_F(FileKindTest, AMissingFileIsNamedByOneWithASimilarName) {
  WriteCheckpoint("model.safetensors");
  Write(".modle.safetensors", "hidden");
  WriteNpyFile("weights.npy");
  std::filesystem::create_symlink(Path("nowhere"), Path("link"));
  const std::string model = StrCat("; did you mean ", Path("model.safetensors"));
  EXPECT_THAT(LoadError(Path("modle.safetensors")),
              AllOf(HasSubstr("cannot open"), HasSubstr(StrCat(model, "?"))));
  EXPECT_THAT(LoadError(Path("Model.safetensors")), HasSubstr(StrCat(model, "?")));
  EXPECT_THAT(PutError(StrCat(Path("modle.safetensors"), ":layer/w")),
              HasSubstr(StrCat(model, ":layer/w?")));
  EXPECT_THAT(PutError(Path("wieghts.npy")),
              HasSubstr(StrCat("; did you mean ", Path("weights.npy"), "?")));
  EXPECT_THAT(std::string(SingleTensor::Open(Path("modle.safetensors"), "w").status().message()),
              HasSubstr(StrCat(model, "?")));
  for (const char* const name : {"none", "link", "missing/modle.safetensors"}) {
    const std::string path = Path(name);
    EXPECT_THAT(LoadError(path), Not(HasSubstr("did you mean"))) << name;
    EXPECT_THAT(PutError(path), Not(HasSubstr("did you mean"))) << name;
  }
  EXPECT_THAT(OpenMapped(Path("modle.safetensors")).status(),
              test::StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FileKindTest, PutSaysWhichCommandTakesManyTensors) {
  EXPECT_THAT(PutError(StrCat(Write("my.npz", "PK\3\4 and so on"), ":T")),
              HasSubstr("`shardmesh load "));
  EXPECT_THAT(PutError(StrCat(Write("model.pt", "PK\3\4 and so on"), ":T")),
              HasSubstr("safetensors.torch.save_file"));
  EXPECT_THAT(PutError(StrCat(WriteNpyFile("x.npy"), ":T")), HasSubstr("without :T"));
  WriteNpyFile("npys/T.npy");
  EXPECT_THAT(PutError(StrCat(Path("npys"), ":T")), HasSubstr(StrCat(Path("npys"), "/T.npy")));
}

TEST_F(FileKindTest, ErrorsKeepTheirReasons) {
  for (const std::string& path : {WriteNpyFile("x.npy"), Write("r.yaml", "rules: []\n")}) {
    EXPECT_THAT(OpenMapped(path).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  }
}

TEST_F(FileKindTest, ALoadSaysWhichCheckpointOfAFolderItTook) {
  WriteCheckpoint("plain/model.safetensors");
  const auto choice = [this](const std::string& folder, std::optional<int64_t> step = {}) {
    const absl::StatusOr<MappedCheckpoint> opened = OpenMapped(Path(folder), {}, step);
    EXPECT_THAT(opened, IsOk());
    return opened.ok() ? ChoiceInFolder(*opened) : "";
  };
  EXPECT_THAT(choice("plain"), IsEmpty());
  EXPECT_THAT(choice("plain/model.safetensors"), IsEmpty());
  WriteStep("ckpt", 100);
  WriteStep("ckpt", 300);
  EXPECT_THAT(choice("ckpt"), HasSubstr("step-00000300, the latest complete step"));
  EXPECT_EQ(choice("ckpt", 100), StrCat("Took ", Path("ckpt/step-00000100")));
  // A checkpoint in the folder itself: unfinished, then complete.
  WriteCheckpoint("ckpt/model.safetensors");
  Write(StrCat("ckpt/", kCheckpointManifest), "{}");
  EXPECT_THAT(choice("ckpt"), HasSubstr("step; the checkpoint in " + Path("ckpt") + " itself is"));
  Write(StrCat("ckpt/", kCheckpointMarker), CheckpointMarkerText("{}"));
  EXPECT_THAT(choice("ckpt"), HasSubstr("itself; --step 300 takes the latest"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint step, OpenMapped(Path("ckpt"), {}, 300));
  EXPECT_EQ(StepOf(step), 300);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint plain, OpenMapped(Path("ckpt")));
  EXPECT_EQ(StepOf(plain), std::nullopt);
}

TEST_F(FileKindTest, SaysWhyOnlyTheClientReadsATensor) {
  WriteCheckpoint("model.safetensors");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MappedCheckpoint plain,
                                 OpenMapped(Path("model.safetensors")));
  EXPECT_THAT(WhyClientReads(plain), IsEmpty());
  auto writer =
      SafetensorsWriter::Create(Path("floats.safetensors"), {{"f", Dtype::kF32, {1, 1}}}, {});
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(writer->Append(std::string(4, '\0')), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MappedCheckpoint converted,
      OpenMapped(Path("floats.safetensors"), {.map = "", .dtype = Dtype::kBF16}));
  EXPECT_THAT(WhyClientReads(converted), IsEmpty()) << "workers convert between floats";
  Write("map.yaml", "tensors:\n- {pattern: f, dtype: I8, channel: 1}\n");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MappedCheckpoint scaled,
      OpenMapped(Path("floats.safetensors"), {.map = Path("map.yaml"), .dtype = std::nullopt}));
  EXPECT_EQ(WhyClientReads(scaled),
            "only the client makes I8 with scales (dtype: I8 in a --map), such as \"f\"");
}

}  // namespace
}  // namespace shardmesh::client
