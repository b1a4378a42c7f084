// Checkpoints of each form: which tensors they have, and what is refused in which words.
#include "tensor/checkpoint/tensor_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/saved_checksums.h"
#include "tests/testing/replacing_saves.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/zip_text.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::NpyText;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::ZipText;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string TextOf(const TensorView& view) {
  return std::string(view.bytes().data(), view.bytes().size());
}

class TensorSourceTest : public testing::Test {
 protected:
  TensorSourceTest() { std::filesystem::create_directories(folder_); }
  ~TensorSourceTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
    return folder_ + "/" + name;
  }
  std::string WriteSafetensors(const std::string& name, const std::string& tensor,
                               const std::string& data) {
    const std::string path = folder_ + "/" + name;
    absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(
        path, {{tensor, Dtype::kU8, {static_cast<int64_t>(data.size())}}}, {});
    EXPECT_THAT(writer, IsOk());
    EXPECT_THAT(writer->Append(data), IsOk());
    EXPECT_THAT(writer->Finish(), IsOk());
    return path;
  }
  static std::vector<std::string> Names(const TensorSource& source) {
    std::vector<std::string> names;
    for (const SourceTensor& tensor : source.tensors()) names.push_back(tensor.name);
    return names;
  }
  static std::string BytesInFile(const SourceTensor& tensor) {
    std::ifstream file(tensor.file->path, std::ios::binary);
    file.seekg(tensor.offset_bytes);
    std::string bytes(tensor.view.bytes().size(), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }

  static std::vector<SavedPart> PartsOf(const TensorSource& source) {
    std::vector<SavedPart> parts;
    for (const SourceTensor& tensor : source.tensors()) {
      const std::optional<SavedPart> part = source.SavedPartOf(tensor);
      if (part.has_value()) parts.push_back(*part);
    }
    return parts;
  }

  const std::string folder_ = testing::TempDir() + "/TensorSourceTest." +
                              testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TensorSourceTest, ListsTheMembersOfNpz) {
  const std::string path = Write(
      "m.npz", ZipText({{.name = "layer.0.w.npy", .data = NpyText("<f4", "(1, 2)", "12345678")},
                        {.name = "turned.npy", .data = NpyText("|u1", "(2, 3)", "adbecf", true)},
                        {.name = "a/b.npy", .data = NpyText("<i8", "()", "87654321")}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(path));
  EXPECT_THAT(Names(source), ElementsAre("layer.0.w", "turned", "a/b"));
  EXPECT_EQ(source.size_bytes(), 8 + 6 + 8);
  EXPECT_THAT(source.CheckIntegrity(), IsOk());
  const SourceTensor& first = source.tensors()[0];
  EXPECT_EQ(first.dtype, Dtype::kF32);
  EXPECT_EQ(first.shape, (Shape{1, 2}));
  EXPECT_FALSE(first.is_reversed);
  const SourceTensor& turned = source.tensors()[1];
  EXPECT_EQ(turned.shape, (Shape{2, 3}));
  EXPECT_TRUE(turned.is_reversed);
  EXPECT_EQ(turned.view.shape(), (Shape{3, 2}));
  for (const SourceTensor& tensor : source.tensors()) {
    EXPECT_EQ(BytesInFile(tensor), TextOf(tensor.view));
  }
}

TEST_F(TensorSourceTest, FindsNpzByItsContentWhateverItsName) {
  const std::string path =
      Write("model.bin", ZipText({{.name = "w.npy", .data = NpyText("|u1", "(1,)", "x")}}));
  EXPECT_THAT(Names(*TensorSource::Open(path)), ElementsAre("w"));
  EXPECT_THAT(Names(*TensorSource::Open(Write("empty.npz", ZipText({})))), IsEmpty());
}

TEST_F(TensorSourceTest, RefusesMembersThatCannotBeLoaded) {
  const std::string good = NpyText("|u1", "(1,)", "x");
  const struct {
    std::string file;
    const char* message;
  } cases[] = {
      {ZipText({{.name = "w.npy", .data = good, .method = 8}}), "numpy.savez_compressed"},
      {ZipText({{.name = "archive/data.pkl", .data = "x"}}), "torch.save"},
      {ZipText({{.name = "w.txt", .data = "x"}}), "member \"w.txt\" is no .npy file"},
      {ZipText({{.name = "w.npy", .data = good + "y"}}), "member \"w.npy\": U8 of shape (1,)"},
      {ZipText({{.name = "w.npy", .data = "x"}}), "this is not a .npy file"},
      {ZipText({{.name = "w.npy", .data = NpyText("|O", "(1,)", "x")}}), "NumPy type '|O'"},
      {ZipText({{.name = "w.npy", .data = good}}).substr(0, 60), "the file is cut off"},
  };
  for (const auto& c : cases) {
    const std::string path = Write("m.npz", c.file);
    const absl::Status status = TensorSource::Open(path).status();
    EXPECT_EQ(status.code(), kInvalid) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), HasSubstr(path));
  }
}

TEST_F(TensorSourceTest, FindsDataThatDifferFromTheirChecksum) {
  const std::string path =
      Write("m.npz", ZipText({{.name = "w.npy", .data = NpyText("|u1", "(1,)", "x")},
                              {.name = "v.npy", .data = NpyText("|u1", "(1,)", "x"), .crc32 = 5}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(path));
  const absl::Status status = source.CheckIntegrity();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(status.message(), HasSubstr("m.npz: the data of member \"v.npy\""));
}

// The manifest of a file model.safetensors with these bytes, whose tensor "w" has the last five of
// them, in these tiles.
std::string ManifestOfFive(const std::string& text, const std::string& tiles) {
  const size_t header = text.size() - 5;
  return StrCat(R"({"files":[{"name":"model.safetensors","size_bytes":)", text.size(),
                R"(,"content_key":"k","header_bytes":)", header, R"(,"header_crc32c":)",
                Crc32c(text.substr(0, header)),
                R"(}],"tensors":[{"name":"w","file":"model.safetensors","offset_bytes":)", header,
                R"(,"size_bytes":5,"dtype":"U8","shape":[5],"tiles":[)", tiles, "]}]}");
}

TEST_F(TensorSourceTest, ComparesSavedFilesWithTheChecksumsOfTheirManifest) {
  WriteSafetensors("model.safetensors", "w", "bytes");
  const std::string path = folder_ + "/model.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t header = text.size() - 5;
  const std::string manifest = ManifestOfFive(
      text, StrCat(R"({"ranges":[[0,2]],"crc32c":)", Crc32c(text.substr(header, 2)),
                   R"(},{"ranges":[[2,5]],"crc32c":)", Crc32c(text.substr(header + 2)), "}"));
  const auto check = [](const std::string& opened) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const TensorSource source, TensorSource::Open(opened));
    return CheckSavedChecksums(PartsOf(source), nullptr);
  };
  Write("model.safetensors", text.substr(0, text.size() - 1) + "x");
  EXPECT_THAT(check(folder_), IsOk()) << "no save wrote it";
  Write(std::string(kCheckpointManifest), manifest);
  EXPECT_THAT(check(path), IsOk()) << "the save did not end";
  Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  for (const std::string& opened : {folder_, path}) {
    const absl::Status damaged = check(opened);
    EXPECT_THAT(damaged, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
    EXPECT_THAT(std::string(damaged.message()),
                AllOf(HasSubstr(path), HasSubstr("\"w\""), HasSubstr("[2,5)"),
                      HasSubstr(StrCat(Crc32c(text.substr(header + 2)))),
                      HasSubstr(StrCat(Crc32c(std::string("tex"))))));
  }
  Write("model.safetensors", text);
  EXPECT_THAT(check(folder_), IsOk());
  // A file that takes the place of the opened one is not compared in its stead.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  Write("next", text);
  std::filesystem::rename(folder_ + "/next", path);
  EXPECT_THAT(CheckSavedChecksums(PartsOf(source), nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  // A file that the manifest does not list has no checksums.
  WriteSafetensors("other.safetensors", "v", "others");
  EXPECT_THAT(check(folder_ + "/other.safetensors"), IsOk());
}

TEST_F(TensorSourceTest, ComparesOnlyTheWantedPartsOfASavedFile) {
  const std::string path = folder_ + "/model.safetensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(
          path, {{"v", Dtype::kU8, {3}}, {"w", Dtype::kU8, {5}}, {"x", Dtype::kU8, {2}}}, {}));
  ASSERT_THAT(writer.Append(std::string_view("abcdefghij")), IsOk());
  ASSERT_THAT(writer.Finish(), IsOk());
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t header = text.size() - 10;
  const auto tensor = [header](const char* name, size_t at, const std::string& bytes) {
    return StrCat(R"({"name":")", name, R"(","file":"model.safetensors","offset_bytes":)",
                  header + at, R"(,"size_bytes":)", bytes.size(), R"(,"dtype":"U8","shape":[)",
                  bytes.size(), R"(],"tiles":[{"ranges":[[0,)", bytes.size(), R"(]],"crc32c":)",
                  Crc32c(bytes), "}]}");
  };
  const std::string manifest =
      StrCat(R"({"files":[{"name":"model.safetensors","size_bytes":)", text.size(),
             R"(,"content_key":"k","header_bytes":)", header, R"(,"header_crc32c":)",
             Crc32c(text.substr(0, header)), R"(}],"tensors":[)", tensor("v", 0, "abc"), ",",
             tensor("w", 3, "other"), ",", tensor("x", 8, "ij"), "]}");
  Write(std::string(kCheckpointManifest), manifest);
  Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  const std::vector<SavedPart> parts = PartsOf(source);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(CheckSavedChecksums({}, nullptr), IsOk());
  EXPECT_THAT(CheckSavedChecksums({parts[0], parts[2]}, nullptr), IsOk());
  const absl::Status damaged = CheckSavedChecksums({parts[2], parts[1]}, nullptr);
  EXPECT_THAT(damaged, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("\"w\""));
  // A part of a tensor is compared with the whole tensor.
  SavedPart part = parts[1];
  part.offset_bytes += 4;
  part.size_bytes = 1;
  EXPECT_THAT(CheckSavedChecksums({part}, nullptr), StatusIs(absl::StatusCode::kDataLoss));
  part.offset_bytes += 1;
  EXPECT_THAT(CheckSavedChecksums({part}, nullptr), IsOk()) << "it is of \"x\"";
  // The caller ends the work.
  EXPECT_THAT(CheckSavedChecksums(parts, [] { return absl::CancelledError("enough"); }),
              StatusIs(absl::StatusCode::kCancelled));
}

// A save takes the marker of the folder away and writes a new one, again and again.
TEST_F(TensorSourceTest, ComparesSavedFilesWhileTheirCheckpointIsReplaced) {
  WriteSafetensors("model.safetensors", "w", "bytes");
  const std::string path = folder_ + "/model.safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string manifest = ManifestOfFive(
      text, StrCat(R"({"ranges":[[0,5]],"crc32c":)", Crc32c(std::string("other")), "}"));
  Write(std::string(kCheckpointManifest), manifest);
  const std::string marker = Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  const std::vector<SavedPart> parts = PartsOf(source);
  const std::string aside = StrCat(folder_, "/", kSaveStaging, "/", kSaveAside);
  std::filesystem::create_directories(aside);
  std::atomic<bool> is_over = false;
  std::thread saves([&] {
    while (!is_over) {
      std::filesystem::rename(marker, aside + "/marker");
      std::filesystem::rename(Write("next", CheckpointMarkerText(manifest)), marker);
      absl::SleepFor(absl::Milliseconds(2));
    }
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_THAT(CheckSavedChecksums(parts, nullptr),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  }
  is_over = true;
  saves.join();
}

class TensorSourceSavesTest : public TensorSourceTest {
 protected:
  // Returns a checkpoint whose files have one tensor each, of five equal bytes. `tensors`: the
  // names of the tensors by file.
  test::SavedFiles Saved(const std::map<std::string, std::string>& tensors, char byte,
                         bool has_index = false) {
    test::SavedFiles saved;
    std::vector<std::string> files;
    std::vector<std::string> entries;
    std::vector<std::string> weights;
    for (const auto& [name, tensor] : tensors) {
      std::ifstream file(WriteSafetensors("made", tensor, std::string(5, byte)), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const size_t header = text.size() - 5;
      files.push_back(StrCat(R"({"name":")", name, R"(","size_bytes":)", text.size(),
                             R"(,"content_key":"k","header_bytes":)", header,
                             R"(,"header_crc32c":)", Crc32c(text.substr(0, header)), "}"));
      entries.push_back(
          StrCat(R"({"name":")", tensor, R"(","file":")", name, R"(","offset_bytes":)", header,
                 R"(,"size_bytes":5,"dtype":"U8","shape":[5],"tiles":[{"ranges":[[0,5]],"crc32c":)",
                 Crc32c(text.substr(header)), "}]}"));
      weights.push_back(StrCat("\"", tensor, "\":\"", name, "\""));
      saved.files[name] = text;
    }
    std::filesystem::remove(folder_ + "/made");
    saved.manifest = StrCat(R"({"files":[)", StrJoin(files, ","), R"(],"tensors":[)",
                            StrJoin(entries, ","), "]}");
    if (has_index) {
      saved.files[std::string(kCheckpointIndex)] =
          StrCat(R"({"weight_map":{)", StrJoin(weights, ","), "}}");
    }
    return saved;
  }
  // Two files with an index, and one file with another tensor.
  test::SavedFiles Sharded(char byte) {
    return Saved(
        {{"model-00001-of-00002.safetensors", "u"}, {"model-00002-of-00002.safetensors", "v"}},
        byte, /*has_index=*/true);
  }
  test::SavedFiles Single(char byte) { return Saved({{"model.safetensors", "w"}}, byte); }
  // Returns the names of the tensors, and the byte that all of them have, or `mixed`.
  static std::string Summary(const TensorSource& source) {
    std::string bytes;
    for (const SourceTensor& tensor : source.tensors()) bytes += TextOf(tensor.view);
    const bool is_mixed = bytes.find_first_not_of(bytes.front()) != std::string::npos;
    return StrCat(StrJoin(Names(source), ","), " ",
                  is_mixed ? "mixed" : std::string(1, bytes.front()));
  }
};

TEST_F(TensorSourceSavesTest, OpensOneCheckpointWhileSavesWithOtherFilesReplaceIt) {
  ReplaceCheckpoint(folder_, "", Sharded('a'));
  test::ReplacingSaves saves(folder_, "", {Single('b'), Sharded('c'), Sharded('d'), Sharded('a')});
  for (int i = 0; i < 200; ++i) {
    const absl::StatusOr<TensorSource> source = TensorSource::Open(folder_);
    ASSERT_THAT(source, IsOk());
    EXPECT_THAT(Summary(*source), AnyOf("u,v a", "w b", "u,v c", "u,v d"));
    // The bytes are compared, or the checkpoint is known to be another one.
    const absl::Status compared = CheckSavedChecksums(PartsOf(*source), nullptr);
    if (!compared.ok()) {
      EXPECT_THAT(compared, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
      EXPECT_TRUE(source->WasReplaced());
    }
    saves.Continue();
  }
}

TEST_F(TensorSourceSavesTest, OpensAFileAndAnIndexThatSavesReplace) {
  const std::string index = StrCat(folder_, "/", kCheckpointIndex);
  const std::string file = folder_ + "/model-00001-of-00002.safetensors";
  ReplaceCheckpoint(folder_, "", Sharded('a'));
  test::ReplacingSaves saves(folder_, "", {Sharded('b'), Sharded('a')});
  for (int i = 0; i < 200; ++i) {
    const absl::StatusOr<TensorSource> whole = TensorSource::Open(index);
    ASSERT_THAT(whole, IsOk());
    EXPECT_THAT(Summary(*whole), AnyOf("u,v a", "u,v b"));
    saves.Continue();
    const absl::StatusOr<TensorSource> part = TensorSource::Open(file);
    ASSERT_THAT(part, IsOk());
    EXPECT_THAT(Summary(*part), AnyOf("u a", "u b"));
    saves.Continue();
  }
}

TEST_F(TensorSourceSavesTest, KnowsThatItsCheckpointWasReplaced) {
  ReplaceCheckpoint(folder_, "", Sharded('a'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource first, TensorSource::Open(folder_));
  EXPECT_FALSE(first.WasReplaced());
  // All files stay: a save links files of equal bytes.
  const std::string marker = StrCat(folder_, "/", kCheckpointMarker);
  std::filesystem::copy_file(marker, folder_ + "/next");
  std::filesystem::rename(folder_ + "/next", marker);
  EXPECT_TRUE(first.WasReplaced());
  EXPECT_THAT(CheckSavedChecksums(PartsOf(first), nullptr), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource second, TensorSource::Open(folder_));
  EXPECT_FALSE(second.WasReplaced());
  // A file of a checkpoint that no save wrote.
  std::filesystem::remove(marker);
  std::filesystem::remove(StrCat(folder_, "/", kCheckpointManifest));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource plain, TensorSource::Open(folder_));
  EXPECT_FALSE(plain.WasReplaced());
  std::filesystem::remove(plain.tensors().front().file->path);
  EXPECT_TRUE(plain.WasReplaced());
  // Members of a .npz file.
  const std::string member = NpyText("|u1", "(1,)", "x");
  const std::string path = Write("m.npz", ZipText({{.name = "w.npy", .data = member}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource zip, TensorSource::Open(path));
  EXPECT_FALSE(zip.WasReplaced());
  std::filesystem::rename(Write("next", ZipText({{.name = "w.npy", .data = member}})), path);
  EXPECT_TRUE(zip.WasReplaced());
}

TEST_F(TensorSourceSavesTest, ComparesNoFilesThatTheirCheckpointNoLongerHas) {
  ReplaceCheckpoint(folder_, "", Sharded('a'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  ReplaceCheckpoint(folder_, "", Single('b'));
  EXPECT_THAT(CheckSavedChecksums(PartsOf(source), nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource single, TensorSource::Open(folder_));
  EXPECT_THAT(CheckSavedChecksums(PartsOf(single), nullptr), IsOk());
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_THAT(CheckSavedChecksums(PartsOf(single), nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
}

TEST_F(TensorSourceSavesTest, SaysThatAFileIsReplacedIfTheSaveDiedMidway) {
  ReplaceCheckpoint(folder_, "", Single('a'));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  const std::string file = folder_ + "/model.safetensors";
  const std::string staging = StrCat(folder_, "/", kSaveStaging);
  const std::string aside = StrCat(staging, "/", kSaveAside);
  const test::ScopedMaxReplaceTime shortly(absl::Milliseconds(20));
  std::filesystem::create_directories(aside);
  std::filesystem::rename(StrCat(folder_, "/", kCheckpointMarker), aside + "/marker");
  EXPECT_THAT(CheckSavedChecksums(PartsOf(source), nullptr), IsOk()) << "the file is in place";
  std::filesystem::rename(file, aside + "/file");
  const absl::Status gone = CheckSavedChecksums(PartsOf(source), nullptr);
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(gone.message(), HasSubstr("gone"));
  WriteSafetensors("model.safetensors", "w", "other");
  const absl::Status other = CheckSavedChecksums(PartsOf(source), nullptr);
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(other.message(), Not(HasSubstr("gone")));
  // Files that no save wrote may be replaced.
  std::filesystem::remove_all(staging);
  std::filesystem::remove(StrCat(folder_, "/", kCheckpointManifest));
  EXPECT_THAT(CheckSavedChecksums(PartsOf(source), nullptr), IsOk());
}

TEST_F(TensorSourceTest, ListsTheNpyFilesOfAFolder) {
  Write("b.npy", NpyText("|u1", "(2,)", "bb"));
  Write("a.c.npy", NpyText("|u1", "(1,)", "a"));
  Write("notes.txt", "not a tensor");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  EXPECT_THAT(Names(source), ElementsAre("a.c", "b"));
  EXPECT_EQ(BytesInFile(source.tensors()[1]), "bb");
  EXPECT_THAT(source.CheckIntegrity(), IsOk());
  WriteSafetensors("c.safetensors", "c", "c");
  EXPECT_THAT(TensorSource::Open(folder_).status().message(),
              HasSubstr("has both a.c.npy and c.safetensors"));
}

TEST_F(TensorSourceTest, AStrayFileDoesNotHideTheCheckpointsOfSteps) {
  for (const int64_t step : {3, 7}) {
    const std::string name = StepFolderName(step);
    std::filesystem::create_directories(folder_ + "/" + name);
    WriteSafetensors(name + "/model.safetensors", "w", "w");
    Write(name + "/" + std::string(kCheckpointManifest), "{}");
    Write(name + "/" + std::string(kCheckpointMarker), CheckpointMarkerText("{}"));
  }
  EXPECT_THAT(TensorSource::Open(folder_), IsOk());
  Write("stray.npy", NpyText("|u1", "(1,)", "s"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_, 3));
  EXPECT_THAT(Names(source), ElementsAre("w"));
  EXPECT_THAT(TensorSource::Open(folder_, 4),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  const absl::Status mixed = TensorSource::Open(folder_).status();
  EXPECT_THAT(mixed, StatusIs(kInvalid, Reason::kBadFile));
  EXPECT_THAT(mixed.message(), HasSubstr("has both stray.npy and the checkpoint step-00000007"));
}

TEST_F(TensorSourceTest, NoFileHasSteps) {
  for (const std::string& path :
       {Write("m.npz", ZipText({{.name = "w.npy", .data = NpyText("|u1", "(1,)", "w")}})),
        Write("w.npy", NpyText("|u1", "(1,)", "w")), WriteSafetensors("w.safetensors", "w", "w")}) {
    const absl::Status status = TensorSource::Open(path, 7).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadFile)) << path;
    EXPECT_THAT(status.message(), HasSubstr("step 7 was asked of a file")) << path;
  }
}

TEST_F(TensorSourceTest, AnErrorWhileAFolderIsListedIsNotItsEnd) {
  Write("a.npy", NpyText("|u1", "(1,)", "a"));
  Write("b.npy", NpyText("|u1", "(1,)", "b"));
  for (const int hit : {1, 2, 4, 6, 12}) {
    ASSERT_THAT(ArmFailpoints(StrCat("folder.read=eio:", hit)), IsOk());
    EXPECT_THAT(TensorSource::Open(folder_), StatusIs(absl::StatusCode::kDataLoss)) << hit;
  }
  EXPECT_THAT(TensorSource::Open(folder_), IsOk());
}

TEST_F(TensorSourceTest, JoinsTheSafetensorsOfAFolderWithoutAnIndex) {
  WriteSafetensors("x-00002-of-00002.safetensors", "b", "22");
  WriteSafetensors("x-00001-of-00002.safetensors", "c", "1");
  const std::string extra = WriteSafetensors("extra.safetensors", "a", "333");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorSource source, TensorSource::Open(folder_));
  EXPECT_THAT(Names(source), ElementsAre("a", "c", "b"));
  EXPECT_EQ(source.tensors()[0].file->path, extra);
  for (const SourceTensor& tensor : source.tensors()) {
    EXPECT_EQ(BytesInFile(tensor), TextOf(tensor.view));
  }
}

TEST_F(TensorSourceTest, RefusesANameInTwoFilesOfAFolder) {
  WriteSafetensors("1.safetensors", "w", "1");
  WriteSafetensors("2.safetensors", "w", "2");
  const absl::Status status = TensorSource::Open(folder_).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadFile));
  EXPECT_THAT(status.message(), HasSubstr("2.safetensors: tensor \"w\" is in "));
  EXPECT_THAT(status.message(), HasSubstr("/1.safetensors too"));
}

TEST_F(TensorSourceTest, RefusesAFolderThatLacksFilesOfItsModel) {
  WriteSafetensors("m-00001-of-00003.safetensors", "a", "1");
  WriteSafetensors("m-00003-of-00003.safetensors", "b", "2");
  WriteSafetensors("of-2-of.safetensors", "c", "3");
  EXPECT_THAT(TensorSource::Open(folder_).status().message(),
              HasSubstr("the folder has 2 of the 3 files of m"));
  EXPECT_THAT(TensorSource::Open(folder_ + "/nothing"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TensorSourceTest, SaysWhatAFolderWithoutTensorsLacks) {
  Write("config.json", "{}");
  const absl::Status status = TensorSource::Open(folder_).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(status.message(), HasSubstr("no model.safetensors.index.json"));
}

TEST_F(TensorSourceTest, SplitsATensorByRows) {
  const std::string path = folder_ + "/rows.safetensors";
  absl::StatusOr<SafetensorsWriter> writer =
      SafetensorsWriter::Create(path, {{"whole", Dtype::kU16, {5, 2}}, {"z", Dtype::kU8, {1}}}, {});
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(writer->Append(std::string("00112233445566778899-")), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(TensorSource source, TensorSource::Open(path));
  const int64_t size_bytes = source.size_bytes();
  const auto split = [&](const std::string& name, const std::vector<RowPart>& parts) {
    return source.SplitRows(name, parts);
  };
  ASSERT_THAT(split("whole", {{"q", 3}, {"none", 0}, {"k", 2}}), IsOk());
  ASSERT_THAT(Names(source), ElementsAre("q", "none", "k", "z"));
  EXPECT_EQ(source.size_bytes(), size_bytes);
  const SourceTensor& q = source.tensors()[0];
  const SourceTensor& k = source.tensors()[2];
  EXPECT_EQ(q.shape, (Shape{3, 2}));
  EXPECT_EQ(TextOf(q.view), "001122334455");
  EXPECT_EQ(k.view.shape(), (Shape{2, 2}));
  EXPECT_EQ(TextOf(k.view), "66778899");
  EXPECT_EQ(BytesInFile(k), "66778899");

  EXPECT_THAT(split("whole", {{"q", 5}}), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(split("q", {{"b", 1}, {"c", 1}}),
              StatusIs(kInvalid, Reason::kShapeMismatch,
                       HasSubstr("has the shape (3, 2), and its parts have 2 rows")));
  EXPECT_THAT(split("q", {{"b", 2}, {"k", 1}}),
              StatusIs(kInvalid, Reason::kBadFile,
                       HasSubstr("has the rows of \"k\", which is there as well")));
}

}  // namespace
}  // namespace shardmesh
