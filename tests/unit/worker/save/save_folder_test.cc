// The folder of a save: locks, staging, publishing, keeping steps, and what a dead save leaves.
#include "worker/save/save_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "process/crc32c.h"
#include "process/failpoint.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kProbe[] = "probe of a test";

class SaveFolderTest : public testing::Test {
 protected:
  SaveFolderTest()
      : root_(StrCat(testing::TempDir(), "/save_folder_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())),
        folder_(root_ + "/run") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    roots_ = *WriteRoots::Create({root_});
  }
  ~SaveFolderTest() override { std::filesystem::remove_all(root_); }

  absl::StatusOr<std::unique_ptr<SaveFolder>> Lead(std::optional<int64_t> step = {},
                                                   bool overwrite = false) {
    return SaveFolder::Lead(roots_, {.folder = folder_, .step = step}, overwrite, kProbe,
                            &took_over_);
  }
  // The names of all files and folders below the folder.
  std::set<std::string> Entries() const {
    std::set<std::string> entries;
    if (!std::filesystem::exists(folder_)) return entries;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      entries.insert(std::filesystem::relative(entry.path(), folder_).string());
    }
    return entries;
  }
  // The manifest of a checkpoint whose file has a header of one byte and a tensor of the others.
  static std::string Manifest(const std::string& file, const std::string& text,
                              const std::string& key) {
    const size_t size = text.size();
    return StrCat(R"({"format":1,"files":[{"name":")", file, R"(","size_bytes":)", size,
                  R"(,"content_key":")", key, R"(","header_bytes":1,"header_crc32c":)",
                  Crc32c(text.substr(0, 1)), R"(}],"tensors":[{"file":")", file,
                  R"(","offset_bytes":1,"size_bytes":)", size - 1, R"(,"dtype":"U8","shape":[)",
                  size - 1, R"(],"tiles":[{"ranges":[[0,)", size - 1, R"(]],"crc32c":)",
                  Crc32c(text.substr(1)), "}]}]}");
  }
  // Saves a checkpoint of one file.
  absl::StatusOr<std::vector<int64_t>> Save(std::optional<int64_t> step, const std::string& text,
                                            const std::string& key = "key", int keep = 0,
                                            bool overwrite = false) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<SaveFolder> save, Lead(step, overwrite));
    const std::string name(kSingleCheckpointFile);
    const auto size = static_cast<int64_t>(text.size());
    SHARDMESH_ASSIGN_OR_RETURN(linked_, save->MakeFiles({{{name, size, key}}}));
    if (linked_.empty()) SHARDMESH_RETURN_IF_ERROR(save->WriteText(name, 0, text));
    const std::string manifest(kCheckpointManifest);
    const std::string listed = Manifest(name, text, key);
    SHARDMESH_RETURN_IF_ERROR(save->WriteText(manifest, 0, listed));
    return save->Publish({{manifest, name}}, CheckpointMarkerText(listed), keep, &kept_);
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static ino_t InodeOf(const std::string& path) {
    struct stat about = {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return about.st_ino;
  }

  const std::string root_;
  const std::string folder_;
  WriteRoots roots_;
  bool took_over_ = false;
  std::vector<uint32_t> linked_;
  std::vector<int64_t> kept_;
};

TEST_F(SaveFolderTest, PublishesFilesWithAManifestAndAMarker) {
  EXPECT_THAT(Save({}, "tensors"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Entries(),
              ElementsAre(std::string(kSingleCheckpointFile), std::string(kCheckpointMarker),
                          std::string(kCheckpointManifest)));
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "tensors");
  EXPECT_EQ(Read(StrCat(folder_, "/", kCheckpointMarker)),
            CheckpointMarkerText(Read(StrCat(folder_, "/", kCheckpointManifest))));
}

TEST_F(SaveFolderTest, LeavesNothingWhenItIsAbandoned) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(7));
    EXPECT_THAT(save->MakeFiles({{{"model.safetensors", 4096, "key"}}}), IsOk());
    EXPECT_FALSE(Entries().empty());
  }
  EXPECT_FALSE(std::filesystem::exists(folder_));
  // A folder that was there before stays, with what others put there.
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/config.json") << "{}";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Lead());
  save.reset();
  EXPECT_THAT(Entries(), ElementsAre("config.json"));
}

TEST_F(SaveFolderTest, RefusesASecondSaveAndNamesTheProcessOfTheFirst) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto first, Lead(1));
  const absl::Status second = Lead(2).status();
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(second.message(), AllOf(HasSubstr("another save"), HasSubstr(StrCat(getpid()))));
  first.reset();
  EXPECT_THAT(Lead(2), IsOk());
}

TEST_F(SaveFolderTest, TakesOverWhatADeadSaveLeft) {
  const pid_t child = fork();
  if (child == 0) {
    auto save = Lead();
    if (save.ok()) save->get()->WriteText("model.safetensors", 0, "half").IgnoreError();
    _exit(save.ok() ? 0 : 1);  // as if killed: no destructor runs
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(Entries().contains(".shardmesh-save/model.safetensors"));
  EXPECT_THAT(Save({}, "whole"), IsOk());
  EXPECT_TRUE(took_over_);
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "whole");
  EXPECT_EQ(Entries().size(), 3);
}

TEST_F(SaveFolderTest, JoinsOnlyAFolderWithTheProbe) {
  const SaveTarget target{.folder = folder_};
  EXPECT_THAT(SaveFolder::Join(roots_, target, kProbe), StatusIs(absl::StatusCode::kNotFound));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead());
  EXPECT_THAT(SaveFolder::Join(roots_, target, kProbe), IsOk());
  EXPECT_THAT(SaveFolder::Join(roots_, target, "another probe"),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(SaveFolder::Join(WriteRoots(), target, kProbe),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(SaveFolderTest, ReplacesACheckpointOnlyIfAsked) {
  EXPECT_THAT(Save({}, "first", "key 1"), IsOk());
  EXPECT_THAT(Save({}, "second", "key 2"),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "first");
  EXPECT_THAT(Save({}, "second", "key 2", 0, /*overwrite=*/true), IsOk());
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "second");
}

TEST_F(SaveFolderTest, NeverReplacesACheckpointThatNoSaveWrote) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/model.safetensors") << "foreign";
  EXPECT_THAT(Save({}, "mine", "key", 0, /*overwrite=*/true),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "foreign");
  EXPECT_THAT(Save(5, "a step beside it"), IsOk());
}

TEST_F(SaveFolderTest, NeverReplacesAFileThatNoSaveWrote) {
  std::filesystem::create_directories(folder_ + "/step-00000001");
  std::ofstream(folder_ + "/step-00000001/model.safetensors.part") << "others";
  EXPECT_THAT(Save(1, "mine"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead());
  EXPECT_THAT(save->WriteText("shard.safetensors", 0, "mine"), IsOk());
  std::ofstream(folder_ + "/shard.safetensors") << "foreign";
  EXPECT_THAT(save->Publish({{"shard.safetensors"}}, "marker", 0),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_EQ(Read(folder_ + "/shard.safetensors"), "foreign");
}

TEST_F(SaveFolderTest, RefusesAForeignFileBeforeTheOldCheckpointLeavesItsPlace) {
  EXPECT_THAT(Save({}, "old", "key 1"), IsOk());
  const std::set<std::string> before = Entries();
  for (const std::string name : {"model-00001-of-00002.safetensors", "extra.safetensors"}) {
    std::ofstream(folder_ + "/" + name) << "foreign";
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Lead({}, /*overwrite=*/true));
    // Before anything is written.
    EXPECT_THAT(save->MakeFiles({{{name, 4, "key 2"}}}),
                StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
    EXPECT_THAT(save->WriteText(name, 0, "mine"), IsOk());
    const absl::Status refused = save->Publish({{name}}, "marker", 0).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
    EXPECT_THAT(refused.message(), HasSubstr(name));
    save.reset();
    EXPECT_EQ(Read(folder_ + "/" + name), "foreign");
    std::filesystem::remove(folder_ + "/" + name);
    EXPECT_EQ(Entries(), before);
    EXPECT_THAT(FindCheckpointFolder(folder_), IsOk());
  }
}

TEST_F(SaveFolderTest, AnErrorWhileACheckpointIsReplacedLeavesTheOldOne) {
  for (const std::optional<int64_t> step : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    EXPECT_THAT(Save(step, "old", "key 1"), IsOk());
    const std::string file =
        StrCat(folder_, step.has_value() ? "/step-00000007" : "", "/model.safetensors");
    const std::set<std::string> before = Entries();
    std::vector<std::string> failpoints = {"save.marker=eio"};
    // As on a file system that cannot exchange folders.
    const std::string without_exchange = step.has_value() ? ",save.exchange=eio" : "";
    for (int hit = 1; hit <= 3; ++hit) {
      failpoints.push_back(StrCat("save.aside=enospc:", hit));
      failpoints.push_back(StrCat("save.move=eio:", hit));
    }
    for (int hit = 4; hit <= 12; ++hit) failpoints.push_back(StrCat("save.sync=eio:", hit));
    for (const std::string& failpoint : failpoints) {
      ASSERT_THAT(ArmFailpoints(failpoint + without_exchange), IsOk());
      EXPECT_FALSE(Save(step, "new", "key 2", 0, /*overwrite=*/true).ok()) << failpoint;
      EXPECT_EQ(Entries(), before) << failpoint;
      EXPECT_EQ(Read(file), "old") << failpoint;
      EXPECT_THAT(FindCheckpointFolder(folder_, step), IsOk()) << failpoint;
    }
    EXPECT_THAT(Save(step, "new", "key 2", 0, /*overwrite=*/true), IsOk());
    EXPECT_EQ(Entries(), before);
    EXPECT_EQ(Read(file), "new");
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(SaveFolderTest, RefusesManifestsThatItCannotRead) {
  const std::string manifest = StrCat(folder_, "/", kCheckpointManifest);
  for (const char* const text :
       {"", "{", "[]", R"({"files":{}})", R"({"files":[{}]})", R"({"files":[7]})",
        R"({"files":[{"name":"../x","size_bytes":1,"content_key":"k"}]})"}) {
    EXPECT_THAT(Save({}, "old"), IsOk());
    std::ofstream(manifest) << text;
    const absl::Status refused = Save({}, "new", "key 2", 0, /*overwrite=*/true).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile)) << text;
    EXPECT_THAT(refused.message(), HasSubstr(manifest)) << text;
    EXPECT_EQ(Read(folder_ + "/model.safetensors"), "old") << text;
    std::filesystem::remove_all(folder_);
  }
}

// What opening a pipe would do: wait for its other end.
TEST_F(SaveFolderTest, DoesNotWaitForPipes) {
  std::filesystem::create_directories(folder_ + "/step-00000003");
  const auto make_pipe = [](const std::string& path) {
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0) << path;
  };
  make_pipe(StrCat(folder_, "/step-00000003/", kCheckpointManifest));
  EXPECT_THAT(Save(3, "mine"), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead());
  make_pipe(StrCat(folder_, "/", kSaveStaging, "/", SaveFolder::kProbe));
  EXPECT_THAT(SaveFolder::Join(roots_, {.folder = folder_}, kProbe),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  make_pipe(StrCat(folder_, "/", kSaveStaging, "/model.safetensors"));
  EXPECT_THAT(save->WriteText("model.safetensors", 0, "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST_F(SaveFolderTest, ReportsOnlyStepsAsRemovedThatAreNoLongerComplete) {
  for (int64_t step = 1; step <= 3; ++step) EXPECT_THAT(Save(step, StrCat(step)), IsOk());
  // Step 1 cannot be removed: its marker cannot be unlinked. Step 2 can.
  const std::string marker = StrCat(folder_, "/step-00000001/", kCheckpointMarker);
  std::filesystem::remove(marker);
  std::filesystem::create_directories(marker + "/something");
  EXPECT_THAT(Save(4, "4", "key", /*keep=*/2), IsOkAndHolds(ElementsAre(2)));
  EXPECT_EQ(Read(folder_ + "/step-00000001/model.safetensors"), "1");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-00000002"));
  // Of step 3 only the marker goes: it is not complete, and is reported.
  ASSERT_THAT(ArmFailpoints("save.unlink=eio:5"), IsOk());
  std::filesystem::remove_all(marker);
  std::filesystem::remove_all(folder_ + "/step-00000001");
  EXPECT_THAT(Save(5, "5", "key", /*keep=*/2), IsOkAndHolds(ElementsAre(3)));
  EXPECT_FALSE(FindCheckpointFolder(folder_, 3).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/step-00000003/model.safetensors"));
  EXPECT_THAT(Save(3, "again"), IsOk());
  EXPECT_EQ(Read(folder_ + "/step-00000003/model.safetensors"), "again");
}

TEST_F(SaveFolderTest, AnErrorWhileStepsAreListedIsNotTheEndOfTheList) {
  for (int64_t step = 1; step <= 2; ++step) EXPECT_THAT(Save(step, StrCat(step)), IsOk());
  for (int hit = 1; hit <= 6; ++hit) {
    ASSERT_THAT(ArmFailpoints(StrCat("folder.read=eio:", hit)), IsOk());
    EXPECT_THAT(Save(3, "3"), StatusIs(absl::StatusCode::kDataLoss)) << hit;
  }
  EXPECT_THAT(Save(3, "3", "key", /*keep=*/1), IsOkAndHolds(ElementsAre(1, 2)));
}

TEST_F(SaveFolderTest, RemovesAllFoldersThatAnAbandonedSaveCreated) {
  bool took_over = false;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, SaveFolder::Lead(roots_, {.folder = folder_ + "//a/b/"},
                                                             false, kProbe, &took_over));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/a/b"));
  save.reset();
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(SaveFolderTest, LinksFilesThatHaveNotChanged) {
  EXPECT_THAT(Save(1, "same", "key"), IsOk());
  EXPECT_THAT(Save(2, "same", "key"), IsOk());
  EXPECT_THAT(linked_, ElementsAre(0));
  EXPECT_EQ(InodeOf(folder_ + "/step-00000001/model.safetensors"),
            InodeOf(folder_ + "/step-00000002/model.safetensors"));
  EXPECT_THAT(Save(3, "other", "other key"), IsOk());
  EXPECT_THAT(linked_, IsEmpty());
  // A file that was cut since is not linked.
  std::filesystem::resize_file(folder_ + "/step-00000003/model.safetensors", 2);
  EXPECT_THAT(Save(4, "other", "other key"), IsOk());
  EXPECT_THAT(linked_, IsEmpty());
  EXPECT_EQ(Read(folder_ + "/step-00000004/model.safetensors"), "other");
}

TEST_F(SaveFolderTest, ListsTheFilesOfTheCheckpointThatMayBeLinked) {
  const auto earlier = [&](std::optional<int64_t> step) {
    const auto files = SaveFolder::EarlierFiles(roots_, {.folder = folder_, .step = step});
    EXPECT_THAT(files, IsOk());
    return files.value_or(std::vector<ManifestFile>());
  };
  EXPECT_THAT(earlier(1), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_THAT(Save(1, "first", "key 1"), IsOk());
  EXPECT_THAT(Save(2, "second", "key 2"), IsOk());
  const std::set<std::string> entries = Entries();
  EXPECT_THAT(earlier(std::nullopt), IsEmpty()) << "the folder itself has no checkpoint";
  const std::vector<ManifestFile> files = earlier(3);
  ASSERT_EQ(files.size(), 1);
  EXPECT_EQ(files.front().content_key, "key 2");
  EXPECT_EQ(files.front().tensors.size(), 1);
  EXPECT_EQ(Entries(), entries);
  std::ofstream(folder_ + "/step-00000002/" + std::string(kCheckpointManifest)) << "{}";
  EXPECT_THAT(earlier(3), IsEmpty()) << "it is damaged";
  EXPECT_THAT(SaveFolder::EarlierFiles(roots_, {.folder = "/elsewhere"}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SaveFolderTest, NeverLinksAFileWhoseBytesWereChanged) {
  const std::string name(kSingleCheckpointFile);
  const std::string text(1 << 20, 't');
  int64_t step = 1;
  EXPECT_THAT(Save(step, text), IsOk());
  // In the header, at the beginning, within, and at the end of the tensor.
  for (const size_t place : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 1}) {
    const std::string path = StrCat(folder_, "/", StepFolderName(step), "/", name);
    struct stat before = {};
    ASSERT_EQ(stat(path.c_str(), &before), 0);
    std::fstream(path, std::ios::in | std::ios::out).seekp(static_cast<std::streamoff>(place))
        << "x";
    // The modify time does not show the change.
    const timespec times[] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    EXPECT_THAT(Save(++step, text), IsOk());
    EXPECT_THAT(linked_, IsEmpty()) << place;
    EXPECT_EQ(Read(StrCat(folder_, "/", StepFolderName(step), "/", name)), text) << place;
  }
  EXPECT_THAT(Save(++step, text), IsOk());
  EXPECT_THAT(linked_, ElementsAre(0));
}

TEST_F(SaveFolderTest, LinksNothingToACheckpointWhoseManifestOrMarkerIsDamaged) {
  EXPECT_THAT(Save(1, "same"), IsOk());
  std::ofstream(StrCat(folder_, "/", StepFolderName(1), "/", kCheckpointMarker)) << "";
  EXPECT_THAT(Save(2, "same"), IsOk());
  EXPECT_THAT(linked_, IsEmpty());
  std::ofstream(StrCat(folder_, "/", StepFolderName(2), "/", kCheckpointManifest), std::ios::app)
      << " ";
  EXPECT_THAT(Save(3, "same"), IsOk());
  EXPECT_THAT(linked_, IsEmpty());
  EXPECT_THAT(Save(4, "same"), IsOk());
  EXPECT_THAT(linked_, ElementsAre(0));
}

TEST_F(SaveFolderTest, LinksFilesOfOtherKeysByTheirChecksumsAndReplacesThem) {
  const std::string name(kSingleCheckpointFile);
  const std::string text = "header and tensor";
  const auto size = static_cast<int64_t>(text.size());
  EXPECT_THAT(Save(1, text, "key"), IsOk());
  const auto make = [&](SaveFolder* save, const std::string& saved, const std::string& header) {
    std::vector<uint32_t> alike;
    EXPECT_THAT(save->WriteText(std::string(kCheckpointManifest), 0, Manifest(name, saved, "new")),
                IsOk());
    EXPECT_THAT(save->MakeFiles({{{name, size, "new", header}}}, {}, nullptr, nullptr, &alike),
                IsOkAndHolds(IsEmpty()));
    return alike;
  };
  const std::string header_sha256 = Sha256(text.substr(0, 1));
  const std::string old = folder_ + "/step-00000001/model.safetensors";
  const std::string staged = StrCat(folder_, "/", kSaveStaging, "/", name);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(2));
    EXPECT_THAT(make(save.get(), text, header_sha256), ElementsAre(0));
    EXPECT_EQ(InodeOf(staged), InodeOf(old));
    EXPECT_THAT(save->OpenLink(name), IsOk());
    // Nobody writes into the link.
    EXPECT_THAT(save->Open(name), StatusIs(absl::StatusCode::kAlreadyExists));
    EXPECT_THAT(save->ReplaceLinks({{{name, size, "new", header_sha256}}}), IsOk());
    EXPECT_NE(InodeOf(staged), InodeOf(old));
    EXPECT_EQ(std::filesystem::file_size(staged), text.size());
    EXPECT_THAT(save->WriteText(name, 0, "other header, too"), IsOk());
    EXPECT_THAT(save->ReplaceLinks({{{"../x", size, "new", ""}}}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(Read(old), text);
  // A tensor with another checksum, a header with another digest, and a build that names none.
  std::string other = text;
  other.back() = 'x';
  for (const auto& [saved, header] : std::vector<std::pair<std::string, std::string>>{
           {other, header_sha256}, {text, Sha256("h!")}, {text, ""}}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(2));
    EXPECT_THAT(make(save.get(), saved, header), IsEmpty());
    EXPECT_NE(InodeOf(staged), InodeOf(old));
  }
  // A file that was cut since.
  std::filesystem::resize_file(old, 2);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(2));
  EXPECT_THAT(make(save.get(), text, header_sha256), IsEmpty());
}

// A folder on NFS may show a link to another host after ReplaceLinks.
TEST_F(SaveFolderTest, WritesIntoNoFileThatItHasComparedAsALink) {
  const std::string name(kSingleCheckpointFile);
  EXPECT_THAT(Save(1, "same"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(2));
  EXPECT_THAT(save->MakeFiles({{{name, 4, "key"}}}), IsOkAndHolds(ElementsAre(0)));
  EXPECT_THAT(save->OpenLink(name), IsOk());
  std::filesystem::remove(folder_ + "/step-00000001/model.safetensors");  // no second name
  EXPECT_THAT(save->Open(name),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
}

TEST_F(SaveFolderTest, StopsReadingAFileWhenTheSaveIsCancelled) {
  EXPECT_THAT(Save(1, "same"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead(2));
  EXPECT_THAT(save->MakeFiles({{{std::string(kSingleCheckpointFile), 4, "key"}}},
                              [] { return absl::CancelledError("enough"); }),
              StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(SaveFolderTest, KeepsTheNewestStepsAndWhatIsNotItsOwn) {
  for (int64_t step = 1; step <= 3; ++step) EXPECT_THAT(Save(step, StrCat(step)), IsOk());
  std::filesystem::create_directories(folder_ + "/step-00000000");  // nobody's
  std::ofstream(folder_ + "/step-00000001/notes.txt") << "mine";
  EXPECT_THAT(Save(9, "9"), IsOk());
  EXPECT_THAT(kept_, ElementsAre(1, 2, 3, 9));
  EXPECT_THAT(Save(4, "4", "key", /*keep=*/2), IsOkAndHolds(ElementsAre(1, 2)));
  EXPECT_THAT(kept_, ElementsAre(3, 4, 9)) << "step 9 is higher: not counted, not removed";
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/step-00000000"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/step-00000001/notes.txt"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-00000001/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-00000002"));
  for (const char* const kept : {"3", "4", "9"}) {
    EXPECT_THAT(FindCheckpointFolder(folder_, std::stoi(kept)), IsOk()) << kept;
  }
}

TEST_F(SaveFolderTest, ListsABoundedNumberOfKeptSteps) {
  const auto most = static_cast<int64_t>(SaveFolder::kMostKeptSteps);
  EXPECT_THAT(Save(most + 1, "last but one"), IsOk());
  EXPECT_THAT(kept_, ElementsAre(most + 1));
  for (int64_t step = 1; step <= most; ++step) {
    const std::string path = StrCat(folder_, "/", StepFolderName(step));
    std::filesystem::create_directories(path);
    for (const std::string_view name : {kCheckpointMarker, kCheckpointManifest}) {
      std::ofstream(StrCat(path, "/", name)) << "{}";
    }
  }
  EXPECT_THAT(Save(most + 2, "last"), IsOk());
  ASSERT_EQ(kept_.size(), SaveFolder::kMostKeptSteps);
  EXPECT_EQ(kept_.front(), 3);
  EXPECT_EQ(kept_.back(), most + 2);
}

// Runs a save in a process that ends at the failpoint, as if killed.
void SaveAndDie(const std::string& failpoint, const std::function<void()>& save) {
  const pid_t child = fork();
  if (child == 0) {
    ArmFailpoints(failpoint).IgnoreError();
    save();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), kFailpointExitCode) << failpoint;
}

TEST_F(SaveFolderTest, AProcessThatDiesNeverLeavesAHalfCheckpointThatLooksComplete) {
  EXPECT_THAT(Save(1, "first", "key 1"), IsOk());
  for (const char* const failpoint :
       {"save.reserve=crash", "save.sync=crash", "save.sync=crash:3", "save.move=crash",
        "save.move=crash:2", "save.sync=crash:5", "save.marker=crash"}) {
    SaveAndDie(failpoint, [this] { Save(2, "second", "key 2").IgnoreError(); });
    EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000001"))
        << failpoint;
    EXPECT_FALSE(FindCheckpointFolder(folder_, 2).ok()) << failpoint;
  }
  EXPECT_THAT(Save(2, "second", "key 2"), IsOk());
  EXPECT_TRUE(took_over_);
  EXPECT_EQ(Read(folder_ + "/step-00000002/model.safetensors"), "second");
  // With the marker in place, the checkpoint is complete: only old ones may remain too long.
  SaveAndDie("save.collect=crash", [this] { Save(3, "third", "key 3", 1).IgnoreError(); });
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000003"));
  EXPECT_THAT(Save(4, "fourth", "key 4", 1), IsOkAndHolds(ElementsAre(1, 2, 3)));
}

TEST_F(SaveFolderTest, AProcessThatDiesWhileItReplacesACheckpointLosesNoneOfBoth) {
  std::vector<std::string> failpoints = {"save.marker=crash"};
  for (int hit = 1; hit <= 3; ++hit) {
    failpoints.push_back(StrCat("save.aside=crash:", hit));
    failpoints.push_back(StrCat("save.move=crash:", hit));
    failpoints.push_back(StrCat("save.unlink=crash:", hit));
  }
  for (const int hit : {5, 6, 9, 10, 11, 12}) {
    failpoints.push_back(StrCat("save.sync=crash:", hit));
  }
  for (const std::optional<int64_t> step : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    const std::string file =
        StrCat(folder_, step.has_value() ? "/step-00000007" : "", "/model.safetensors");
    for (const std::string& failpoint : failpoints) {
      EXPECT_THAT(Save(step, "old", "key 1"), IsOk()) << failpoint;
      std::ofstream(folder_ + "/config.json") << "{}";
      SaveAndDie(StrCat(failpoint, step.has_value() ? ",save.exchange=eio" : ""),
                 [&] { Save(step, "new", "key 2", 0, /*overwrite=*/true).IgnoreError(); });
      // The next save, which puts the old checkpoint back, may die too.
      SaveAndDie("save.restore=crash:2", [&] {
        const auto save = Lead(step, /*overwrite=*/true);
        _exit(kFailpointExitCode);  // there was nothing to put back
      });
      SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Lead(step, /*overwrite=*/true));
      save.reset();
      EXPECT_THAT(FindCheckpointFolder(folder_, step), IsOk()) << failpoint;
      const std::string text = Read(file);
      EXPECT_TRUE(text == "old" || text == "new") << failpoint << ": " << text;
      EXPECT_THAT(Read(StrCat(StrCat(folder_, step.has_value() ? "/step-00000007" : "", "/"),
                              kCheckpointManifest)),
                  HasSubstr(text == "old" ? "key 1" : "key 2"))
          << failpoint;
      EXPECT_EQ(Entries().size(), step.has_value() ? 5 : 4) << failpoint;
      std::filesystem::remove_all(folder_);
    }
  }
}

// Whether the disk of the tests can exchange folders.
bool CanExchange(const std::string& folder) {
  const std::string a = folder + "/exchange_a";
  const std::string b = folder + "/exchange_b";
  std::filesystem::create_directories(a);
  std::filesystem::create_directories(b);
  const bool can = renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
  std::filesystem::remove(a);
  std::filesystem::remove(b);
  return can;
}

TEST_F(SaveFolderTest, ReadersOfAStepThatIsReplacedSeeTheOldOrTheNewCheckpointAtEveryMoment) {
  if (!CanExchange(root_)) GTEST_SKIP() << "NOT TRIED: this disk cannot exchange folders";
  ASSERT_THAT(Save(7, "0", "key 0"), IsOk());
  std::atomic<bool> is_over = false;
  std::atomic<int> reads = 0;
  std::thread reader([&] {
    do {
      EXPECT_THAT(FindCheckpointFolder(folder_, 7), IsOk());
      ++reads;
    } while (!is_over);
  });
  for (int i = 1; i <= 50; ++i) {
    EXPECT_THAT(Save(7, StrCat(i), StrCat("key ", i), 0, /*overwrite=*/true), IsOk());
    EXPECT_EQ(Read(folder_ + "/step-00000007/model.safetensors"), StrCat(i));
    EXPECT_EQ(Entries().size(), 4) << i;
  }
  is_over = true;
  reader.join();
  EXPECT_GT(reads, 0);
}

// A checkpoint of two files and an index. Each tensor has eight times the same byte.
class ReplacedSaveTest : public SaveFolderTest {
 protected:
  absl::Status SaveTwoFiles(std::optional<int64_t> step, char byte, int number) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<SaveFolder> save,
                               Lead(step, /*overwrite=*/true));
    std::string listed;
    std::vector<std::string> names = {std::string(kCheckpointManifest)};
    for (const char* const tensor : {"1", "2"}) {
      const std::string name = StrCat("model-0000", tensor, "-of-00002.safetensors");
      SHARDMESH_ASSIGN_OR_RETURN(
          const EncodedSafetensorsHeader header,
          EncodeSafetensorsHeader(name, {{.name = tensor, .dtype = Dtype::kU8, .shape = {8}}}, {}));
      const std::string text = header.bytes + std::string(8, byte);
      const auto size = static_cast<int64_t>(text.size());
      const std::string key = StrCat("key ", number, " ", tensor);
      SHARDMESH_RETURN_IF_ERROR(save->MakeFiles({{{name, size, key}}}).status());
      SHARDMESH_RETURN_IF_ERROR(save->WriteText(name, 0, text));
      names.push_back(name);
      StrAppend(&listed, listed.empty() ? "" : ",", R"({"name":")", name, R"(","size_bytes":)",
                size, R"(,"content_key":")", key, R"("})");
    }
    const std::string manifest = StrCat(R"({"files":[)", listed, "]}");
    names.emplace_back(kCheckpointIndex);
    SHARDMESH_RETURN_IF_ERROR(save->WriteText(names.front(), 0, manifest));
    SHARDMESH_RETURN_IF_ERROR(
        save->WriteText(names.back(), 0,
                        R"({"weight_map":{"1":"model-00001-of-00002.safetensors",)"
                        R"("2":"model-00002-of-00002.safetensors"}})"));
    return save->Publish(names, CheckpointMarkerText(manifest), 0).status();
  }
};

// For the folder itself, and for a step where folders cannot be exchanged.
TEST_F(ReplacedSaveTest, ReadersOpenNoMixtureOfACheckpointThatIsReplacedFileByFile) {
  for (const std::optional<int64_t> step : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    ASSERT_THAT(SaveTwoFiles(step, 'a', 0), IsOk());
    std::atomic<bool> is_over = false;
    std::atomic<int> reads = 0;
    std::thread reader([&] {
      do {
        const absl::StatusOr<Checkpoint> opened = Checkpoint::Open(folder_, step);
        ASSERT_THAT(opened, IsOk());
        ASSERT_EQ(opened->tensors().size(), 2);
        const char first = opened->View(opened->tensors()[0]).bytes().front();
        ASSERT_EQ(opened->View(opened->tensors()[1]).bytes().front(), first);
        ++reads;
      } while (!is_over);
    });
    for (int i = 1; i <= 50; ++i) {
      EXPECT_THAT(ArmFailpoints("save.exchange=eio"), IsOk());  // it acts once
      EXPECT_THAT(SaveTwoFiles(step, static_cast<char>('a' + i % 26), i), IsOk()) << i;
    }
    is_over = true;
    reader.join();
    EXPECT_GT(reads, 0);
    ASSERT_THAT(ArmFailpoints(""), IsOk());
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(SaveFolderTest, AProcessThatDiesWhileItExchangesFoldersLeavesAWholeCheckpointInPlace) {
  if (!CanExchange(root_)) GTEST_SKIP() << "NOT TRIED: this disk cannot exchange folders";
  for (const char* const failpoint :
       {"save.move=crash", "save.move=crash:2", "save.move=crash:3", "save.sync=crash:6",
        "save.sync=crash:7", "save.exchange=crash", "save.sync=crash:8", "save.unlink=crash",
        "save.unlink=crash:2", "save.unlink=crash:4"}) {
    ASSERT_THAT(Save(7, "old", "key 1"), IsOk());
    std::filesystem::permissions(folder_ + "/step-00000007", std::filesystem::perms(0750));
    SaveAndDie(failpoint, [this] { Save(7, "new", "key 2", 0, /*overwrite=*/true).IgnoreError(); });
    // Before any other save.
    EXPECT_THAT(FindCheckpointFolder(folder_, 7), IsOk()) << failpoint;
    const std::string text = Read(folder_ + "/step-00000007/model.safetensors");
    EXPECT_TRUE(text == "old" || text == "new") << failpoint << ": " << text;
    EXPECT_THAT(Read(StrCat(folder_, "/step-00000007/", kCheckpointManifest)),
                HasSubstr(text == "old" ? "key 1" : "key 2"))
        << failpoint;
    EXPECT_THAT(Save(7, "newer", "key 3", 0, /*overwrite=*/true), IsOk()) << failpoint;
    EXPECT_EQ(Entries().size(), 4) << failpoint;
    EXPECT_EQ(std::filesystem::status(folder_ + "/step-00000007").permissions(),
              std::filesystem::perms(0750));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(SaveFolderTest, AStepWithFilesOfOthersIsReplacedFileByFile) {
  ASSERT_THAT(Save(7, "old", "key 1"), IsOk());
  const std::string step = folder_ + "/step-00000007";
  std::ofstream(step + "/config.json") << "{}";
  const ino_t before = InodeOf(step);
  EXPECT_THAT(Save(7, "new", "key 2", 0, /*overwrite=*/true), IsOk());
  EXPECT_EQ(InodeOf(step), before);
  EXPECT_EQ(Read(step + "/config.json"), "{}");
  EXPECT_EQ(Read(step + "/model.safetensors"), "new");
  // The same where folders cannot be exchanged.
  std::filesystem::remove(step + "/config.json");
  ASSERT_THAT(ArmFailpoints("save.exchange=eio"), IsOk());
  EXPECT_THAT(Save(7, "newer", "key 3", 0, /*overwrite=*/true), IsOk());
  EXPECT_EQ(InodeOf(step), before);
  EXPECT_EQ(Read(step + "/model.safetensors"), "newer");
  EXPECT_EQ(Entries().size(), 4);
}

// NFS and some FUSE file systems cannot rename without replacing.
TEST_F(SaveFolderTest, NeverReplacesAFileWhereTheFileSystemHasOnlyThePlainRename) {
  EXPECT_THAT(Save({}, "old", "key 1"), IsOk());
  SaveAndDie("save.move=crash",
             [this] { Save({}, "new", "key 2", 0, /*overwrite=*/true).IgnoreError(); });
  // In the place of a file that is to be put back.
  const std::string file = folder_ + "/model.safetensors";
  ASSERT_FALSE(std::filesystem::exists(file));
  std::ofstream(file) << "foreign";
  ASSERT_THAT(ArmFailpoints("save.noreplace=eio"), IsOk());
  const absl::Status refused = Lead({}, /*overwrite=*/true).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(refused.message(), HasSubstr(".shardmesh-save/.aside"));
  EXPECT_EQ(Read(file), "foreign");
  std::filesystem::remove(file);
  std::filesystem::create_symlink("nowhere", file);
  ASSERT_THAT(ArmFailpoints("save.noreplace=eio"), IsOk());
  EXPECT_THAT(Lead({}, /*overwrite=*/true), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_TRUE(std::filesystem::is_symlink(file));
  std::filesystem::remove(file);
  ASSERT_THAT(ArmFailpoints("save.noreplace=eio"), IsOk());
  EXPECT_THAT(Lead({}, /*overwrite=*/true), IsOk());
  EXPECT_EQ(Read(file), "old");
  for (int hit = 1; hit <= 3; ++hit) {
    ASSERT_THAT(ArmFailpoints(StrCat("save.noreplace=eio:", hit)), IsOk());
    EXPECT_THAT(Save(hit, "mine"), IsOk()) << hit;
    EXPECT_EQ(Read(StrCat(folder_, "/", StepFolderName(hit), "/model.safetensors")), "mine");
  }
}

TEST_F(SaveFolderTest, AnErrorWhileFilesAreMovedLeavesNothing) {
  for (const char* const failpoint :
       {"save.move=eio:2", "save.marker=eio", "save.sync=eio:4", "save.sync=eio:5",
        "save.sync=eio:6", "save.sync=eio:7", "save.sync=eio:8"}) {
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    EXPECT_FALSE(Save({}, "tensors").ok()) << failpoint;
    EXPECT_THAT(Entries(), IsEmpty()) << failpoint;
  }
}

TEST_F(SaveFolderTest, RefusesNamesThatLeadOut) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Lead());
  for (const char* const name : {"../x", "a/b", ".hidden", "", "/etc/x"}) {
    EXPECT_FALSE(save->WriteText(name, 0, "x").ok()) << name;
    EXPECT_FALSE(save->MakeFiles({{{name, 1, "key"}}}).ok()) << name;
  }
}

// Saves whose folder keeps what they wrote when they end early. The one file has a header of one
// byte and a tensor of two tiles.
class KeptSaveTest : public SaveFolderTest {
 protected:
  static constexpr size_t kTileBytes = 3;

  static std::string Manifest(const std::string& file, const std::string& text,
                              const std::string& key) {
    const size_t size = text.size() - 1;
    const auto tile = [&](size_t begin, size_t end) {
      return StrCat(R"({"ranges":[[)", begin, ",", end, R"(]],"crc32c":)",
                    Crc32c(text.substr(1 + begin, end - begin)), "}");
    };
    return StrCat(R"({"format":1,"files":[{"name":")", file, R"(","size_bytes":)", size + 1,
                  R"(,"content_key":")", key, R"(","header_bytes":1,"header_crc32c":)",
                  Crc32c(text.substr(0, 1)), R"(}],"tensors":[{"file":")", file,
                  R"(","offset_bytes":1,"size_bytes":)", size, R"(,"dtype":"U8","shape":[)", size,
                  R"(],"tiles":[)", tile(0, kTileBytes), ",", tile(kTileBytes, size), "]}]}");
  }
  absl::StatusOr<std::unique_ptr<SaveFolder>> Lead(std::optional<int64_t> step = {},
                                                   bool overwrite = false,
                                                   int64_t min_kept_bytes = 1) {
    return SaveFolder::Lead(roots_,
                            {.folder = folder_, .step = step, .min_kept_bytes = min_kept_bytes},
                            overwrite, kProbe, &took_over_);
  }
  // Opens the folder, and makes the file.
  absl::StatusOr<std::unique_ptr<SaveFolder>> Make(const std::string& text, const std::string& key,
                                                   std::optional<int64_t> step = {},
                                                   bool overwrite = false) {
    SHARDMESH_ASSIGN_OR_RETURN(auto save, Lead(step, overwrite));
    SHARDMESH_RETURN_IF_ERROR(
        save->WriteText(std::string(kCheckpointManifest), 0, Manifest(kName, text, key)));
    found_.clear();
    SHARDMESH_ASSIGN_OR_RETURN(
        linked_, save->MakeFiles({{{kName, static_cast<int64_t>(text.size()), key}}}, {}, &found_));
    return save;
  }
  // Begins a save that writes the first tile only, and leaves it.
  void WriteFirstTile(const std::string& text, const std::string& key,
                      std::optional<int64_t> step = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make(text, key, step));
    ASSERT_THAT(save->WriteText(kName, 1, text.substr(1, kTileBytes)), IsOk());
    save->Leave();
  }
  // Writes what is not found, and publishes.
  absl::Status Finish(SaveFolder* save, const std::string& text, const std::string& key) {
    const std::vector<bool> found =
        found_.empty() ? std::vector<bool>{false, false} : found_.front().is_intact;
    if (linked_.empty()) {
      SHARDMESH_RETURN_IF_ERROR(save->WriteText(kName, 0, text.substr(0, 1)));
      if (!found.at(0)) {
        SHARDMESH_RETURN_IF_ERROR(save->WriteText(kName, 1, text.substr(1, kTileBytes)));
      }
      if (!found.at(1)) {
        SHARDMESH_RETURN_IF_ERROR(
            save->WriteText(kName, 1 + kTileBytes, text.substr(1 + kTileBytes)));
      }
    }
    return save
        ->Publish({{std::string(kCheckpointManifest), kName}},
                  CheckpointMarkerText(Manifest(kName, text, key)), 0)
        .status();
  }
  std::string Staged(const std::string& name) const {
    return StrCat(folder_, "/", kSaveStaging, "/", name);
  }

  const std::string kName = "model.safetensors";
  std::vector<FoundTiles> found_;
};

TEST_F(KeptSaveTest, FindsTheTilesThatASaveHadWrittenBeforeItEndedEarly) {
  for (const bool is_killed : {false, true}) {
    if (is_killed) {
      const pid_t child = fork();
      if (child == 0) {
        const auto save = Make("headTILE", "key");
        if (save.ok()) (*save)->WriteText(kName, 1, "ead").IgnoreError();
        _exit(save.ok() ? 0 : 1);  // no destructor runs
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
    } else {
      WriteFirstTile("headTILE", "key");
    }
    EXPECT_FALSE(FindCheckpointFolder(folder_).ok());
    EXPECT_EQ(std::filesystem::exists(StrCat(folder_, "/", kSaveLock)), is_killed);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Make("headTILE", "key"));
    EXPECT_TRUE(took_over_);
    ASSERT_EQ(found_.size(), 1);
    EXPECT_THAT(found_[0].is_intact, ElementsAre(true, false));
    EXPECT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
    save.reset();
    EXPECT_EQ(Read(folder_ + "/model.safetensors"), "headTILE");
    EXPECT_EQ(Entries().size(), 3);
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptSaveTest, TrustsNoFileOfAnotherKeyOrSizeAndNoTileOfOtherBytes) {
  const struct {
    std::string what;
    std::string text;
    std::string key;
    std::function<void()> change;
    std::vector<bool> found;
  } kCases[] = {
      {"as it was", "headTILE", "key", [] {}, {true, false}},
      {"other arrays with the same bytes", "headTILE", "other key", [] {}, {}},
      {"another size", "headTILES", "key", [] {}, {}},
      {"a changed byte",
       "headTILE",
       "key",
       [this] { std::fstream(Staged(kName), std::ios::in | std::ios::out).seekp(2) << "x"; },
       {}},
      {"a tile that somebody else completed",
       "headTILE",
       "key",
       [this] { std::fstream(Staged(kName), std::ios::in | std::ios::out).seekp(4) << "TILE"; },
       {true, true}},
      {"a shorter file",
       "headTILE",
       "key",
       [this] { std::filesystem::resize_file(Staged(kName), 4); },
       {}},
      {"a damaged manifest",
       "headTILE",
       "key",
       [this] { std::ofstream(Staged(std::string(kCheckpointManifest))) << "{"; },
       {}},
      {"no manifest",
       "headTILE",
       "key",
       [this] { std::filesystem::remove(Staged(std::string(kCheckpointManifest))); },
       {}},
      {"a link",
       "headTILE",
       "key",
       [this] {
         std::filesystem::rename(Staged(kName), root_ + "/elsewhere");
         std::filesystem::create_symlink(root_ + "/elsewhere", Staged(kName));
       },
       {}},
      {"a second name",
       "headTILE",
       "key",
       [this] { std::filesystem::create_hard_link(Staged(kName), root_ + "/other"); },
       {}},
  };
  for (const auto& each : kCases) {
    WriteFirstTile("headTILE", "key");
    each.change();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Make(each.text, each.key));
    EXPECT_EQ(found_.empty() ? std::vector<bool>() : found_[0].is_intact, each.found) << each.what;
    EXPECT_THAT(Finish(save.get(), each.text, each.key), IsOk()) << each.what;
    save.reset();
    EXPECT_EQ(Read(folder_ + "/model.safetensors"), each.text) << each.what;
    EXPECT_EQ(Entries().size(), 3) << each.what;
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(root_ + "/elsewhere");
    std::filesystem::remove(root_ + "/other");
  }
}

TEST_F(KeptSaveTest, NeverWritesIntoAFileOfAnEarlierCheckpoint) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", 1));
    ASSERT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto linking, Make("headTILE", "key", 2));
  EXPECT_THAT(linked_, ElementsAre(0));
  linking.reset();
  const std::string first = folder_ + "/step-00000001/model.safetensors";
  // A save that had linked the file and was killed.
  std::filesystem::create_directories(folder_ + "/.shardmesh-save");
  std::filesystem::create_hard_link(first, Staged(kName));
  std::ofstream(Staged(std::string(kCheckpointManifest))) << Manifest(kName, "headTILE", "key");
  // The earlier checkpoint is damaged, so that nothing is linked again.
  std::ofstream(StrCat(folder_, "/step-00000001/", kCheckpointMarker)) << "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", 2));
  EXPECT_THAT(linked_, IsEmpty());
  EXPECT_TRUE(found_.empty());
  ASSERT_THAT(save->WriteText(kName, 0, "XXXXXXXX"), IsOk());
  EXPECT_EQ(Read(first), "headTILE");
}

TEST_F(KeptSaveTest, RefusesAStagingFolderThatItCannotEmpty) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("earlier.", "other", 1));
    ASSERT_THAT(Finish(save.get(), "earlier.", "other"), IsOk());
  }
  WriteFirstTile("headTILE", "key", 2);
  // A file that is not kept, since it has a second name.
  const std::string first = folder_ + "/step-00000001/model.safetensors";
  std::filesystem::create_hard_link(first, Staged("linked"));
  ASSERT_THAT(ArmFailpoints("save.unlink=eio"), IsOk());
  EXPECT_THAT(Lead(2).status(), StatusIs(absl::StatusCode::kDataLoss));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", 2));
  EXPECT_FALSE(std::filesystem::exists(Staged("linked")));
  ASSERT_EQ(found_.size(), 1);
  EXPECT_THAT(found_[0].is_intact, ElementsAre(true, false));
  EXPECT_EQ(Read(first), "earlier.");
}

TEST_F(KeptSaveTest, NeverOpensAFileWithASecondNameForWriting) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", 1));
    ASSERT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
  }
  const std::string first = folder_ + "/step-00000001/model.safetensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto leader, Lead(2));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto member,
                                 SaveFolder::Join(roots_, {.folder = folder_, .step = 2}, kProbe));
  std::filesystem::create_hard_link(first, Staged(kName));
  for (SaveFolder* const save : {leader.get(), member.get()}) {
    EXPECT_THAT(save->WriteText(kName, 0, "XXXXXXXX"),
                StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  }
  EXPECT_EQ(Read(first), "headTILE");
}

TEST_F(KeptSaveTest, FindsAllTilesOfASaveThatDiedWhileItPublished) {
  for (const char* const failpoint : {"save.move=crash", "save.move=crash:2", "save.marker=crash",
                                      "save.sync=crash:4", "save.sync=crash:5"}) {
    for (const std::optional<int64_t> step :
         {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
      SaveAndDie(failpoint, [&] {
        const auto save = Make("headTILE", "key", step);
        if (save.ok()) Finish(save->get(), "headTILE", "key").IgnoreError();
      });
      EXPECT_FALSE(FindCheckpointFolder(folder_, step).ok()) << failpoint;
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", step));
      EXPECT_TRUE(took_over_) << failpoint;
      ASSERT_EQ(found_.size(), 1) << failpoint;
      EXPECT_THAT(found_[0].is_intact, ElementsAre(true, true)) << failpoint;
      EXPECT_THAT(Finish(save.get(), "headTILE", "key"), IsOk()) << failpoint;
      EXPECT_THAT(FindCheckpointFolder(folder_, step), IsOk()) << failpoint;
      std::filesystem::remove_all(folder_);
    }
  }
}

TEST_F(KeptSaveTest, ASaveThatIsRefusedTakesNoIncompleteCheckpointApart) {
  for (const std::optional<int64_t> step : {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key", step));
      ASSERT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
    }
    const std::string place = StrCat(folder_, step.has_value() ? "/step-00000007" : "");
    // Somebody removed the marker, and can still restore it.
    const std::string marker = StrCat(place, "/", kCheckpointMarker);
    const std::string text = Read(marker);
    std::filesystem::remove(marker);
    const std::set<std::string> before = Entries();
    // Another worker does not see the folder: the save ends before any file is made.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Lead(step));
    EXPECT_EQ(Read(place + "/model.safetensors"), "headTILE");
    save.reset();
    EXPECT_EQ(Entries(), before);
    // The disk is full, for the same content and for another one.
    for (const std::string key : {"key", "other key"}) {
      ASSERT_THAT(ArmFailpoints("save.reserve=enospc"), IsOk());
      EXPECT_THAT(Make("headTILE", key, step).status(),
                  StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
      EXPECT_EQ(Entries(), before) << key;
    }
    std::ofstream(marker) << text;
    EXPECT_THAT(FindCheckpointFolder(folder_, step), IsOk());
    EXPECT_EQ(Read(place + "/model.safetensors"), "headTILE");
    // The next save that succeeds uses the files.
    std::filesystem::remove(marker);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(save, Make("headTILE", "key", step));
    ASSERT_EQ(found_.size(), 1);
    EXPECT_THAT(found_[0].is_intact, ElementsAre(true, true));
    EXPECT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
    save.reset();
    EXPECT_THAT(FindCheckpointFolder(folder_, step), IsOk());
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptSaveTest, AProcessThatDiesWhileItTakesTheFilesLosesNone) {
  for (const char* const failpoint : {"save.keep=crash", "save.keep=crash:2"}) {
    WriteFirstTile("headTILE", "key");
    SaveAndDie(failpoint, [&] { Make("headTILE", "key").status().IgnoreError(); });
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key"));
    ASSERT_EQ(found_.size(), 1) << failpoint;
    EXPECT_THAT(found_[0].is_intact, ElementsAre(true, false)) << failpoint;
    EXPECT_THAT(Finish(save.get(), "headTILE", "key"), IsOk());
    EXPECT_EQ(Read(folder_ + "/model.safetensors"), "headTILE");
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptSaveTest, ASaveThatIsRefusedOrFailsEarlyLeavesTheFilesForTheNext) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto save, Make("headTILE", "key 1", 1));
    ASSERT_THAT(Finish(save.get(), "headTILE", "key 1"), IsOk());
  }
  WriteFirstTile("abcdEFGH", "key 2", 2);
  // A checkpoint is there.
  EXPECT_THAT(Lead(1).status(), StatusIs(absl::StatusCode::kAlreadyExists));
  // Another worker does not see the folder: the save ends before any file is made.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto opened, Lead(2));
  opened.reset();
  // The disk is full.
  ASSERT_THAT(ArmFailpoints("save.reserve=enospc"), IsOk());
  EXPECT_THAT(Make("abcdEFGH", "key 2", 2).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  // It is left again, before it wrote anything.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto again, Make("abcdEFGH", "key 2", 2));
  again->Leave();
  again.reset();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Make("abcdEFGH", "key 2", 2));
  ASSERT_EQ(found_.size(), 1);
  EXPECT_THAT(found_[0].is_intact, ElementsAre(true, false));
  EXPECT_THAT(Finish(save.get(), "abcdEFGH", "key 2"), IsOk());
  save.reset();
  EXPECT_EQ(Read(folder_ + "/step-00000002/model.safetensors"), "abcdEFGH");
  EXPECT_EQ(Entries().size(), 8);
}

TEST_F(KeptSaveTest, OfTwoSavesAtOnceTheSecondChangesNothingOfTheFirst) {
  WriteFirstTile("headTILE", "key");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto first, Make("headTILE", "key"));
  ASSERT_EQ(found_.size(), 1);
  const std::set<std::string> before = Entries();
  EXPECT_THAT(Lead().status(), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Lead(3).status(), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_EQ(Entries(), before);
  EXPECT_THAT(Finish(first.get(), "headTILE", "key"), IsOk());
  EXPECT_EQ(Read(folder_ + "/model.safetensors"), "headTILE");
}

TEST_F(KeptSaveTest, LeavesNothingOfASaveTooSmallToKeep) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto save, Lead({}, false, /*min_kept_bytes=*/9));
  ASSERT_THAT(
      save->WriteText(std::string(kCheckpointManifest), 0, Manifest(kName, "headTILE", "key")),
      IsOk());
  ASSERT_THAT(save->MakeFiles({{{kName, 8, "key"}}}), IsOk());
  save->Leave();
  EXPECT_FALSE(std::filesystem::exists(folder_));
  // One that was killed has left it, and the next one removes it.
  WriteFirstTile("headTILE", "key");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(save, Lead({}, false, /*min_kept_bytes=*/9));
  EXPECT_THAT(Entries(),
              ElementsAre(".shardmesh-save", ".shardmesh-save.lock", ".shardmesh-save/probe"));
}

TEST_F(SaveFolderTest, ValidatesWhatASaveWouldRefuseAndChangesNothing) {
  const auto validate = [this](const std::string& folder, std::optional<int64_t> step = {},
                               bool overwrite = false, int64_t size_bytes = 5,
                               const std::string& key = "key", int64_t needed_bytes = 0) {
    return SaveFolder::Validate(roots_, {.folder = folder, .step = step}, overwrite,
                                {{{std::string(kSingleCheckpointFile), size_bytes, key}}},
                                needed_bytes);
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FolderFacts missing, validate(folder_ + "/a/b"));
  EXPECT_FALSE(missing.is_there);
  EXPECT_EQ(missing.inode, InodeOf(root_));
  EXPECT_EQ(missing.need_bytes, 5);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_THAT(validate("/elsewhere"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(validate(root_ + "/../elsewhere"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  std::filesystem::create_symlink("/", root_ + "/out");
  EXPECT_THAT(validate(root_ + "/out/x"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  std::filesystem::create_symlink("nowhere", root_ + "/dangling");
  EXPECT_THAT(validate(root_ + "/dangling/x"), StatusIs(absl::StatusCode::kNotFound));
  // Far more than any disk has.
  const absl::Status full = validate(folder_, {}, false, int64_t{1} << 60).status();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_THAT(full.message(), HasSubstr("1.00 EiB"));
  EXPECT_THAT(validate(folder_, {}, false, 5, "key", int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  ASSERT_THAT(Save(1, "saved"), IsOk());
  const std::set<std::string> before = Entries();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FolderFacts linked, validate(folder_, 2));
  EXPECT_TRUE(linked.is_there);
  EXPECT_EQ(linked.inode, InodeOf(folder_));
  EXPECT_EQ(linked.need_bytes, 0) << "the file would be a link";
  EXPECT_EQ(validate(folder_, 2, false, 5, "other key")->need_bytes, 5);
  EXPECT_THAT(validate(folder_, 1),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(validate(folder_, 1, /*overwrite=*/true), IsOk());
  std::filesystem::create_directories(folder_ + "/step-00000003");
  std::ofstream(folder_ + "/step-00000003/model.safetensors") << "foreign";
  EXPECT_THAT(validate(folder_, 3, /*overwrite=*/true),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  std::filesystem::remove_all(folder_ + "/step-00000003");
  EXPECT_EQ(Entries(), before);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto running, Lead(4));
  const absl::Status busy = validate(folder_, 5).status();
  EXPECT_THAT(busy, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(busy.message(), AllOf(HasSubstr("another save"), HasSubstr(StrCat(getpid()))));
}

TEST(SaveFolderDiskTest, FindsAFullDiskBeforeAnythingIsWritten) {
  const test::SmallDisk disk(8 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const auto roots = WriteRoots::Create({disk.folder()});
  ASSERT_THAT(roots, IsOk());
  const std::string folder = disk.folder() + "/run";
  bool took_over = false;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const auto save, SaveFolder::Lead(*roots, {.folder = folder}, false, kProbe, &took_over));
    const absl::Status full =
        save->MakeFiles({{{"a.safetensors", 4 << 20, "a"}, {"b.safetensors", 6 << 20, "b"}}})
            .status();
    EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
    EXPECT_THAT(full.message(), HasSubstr("10.0 MiB"));
    // What was free before the first file took its bytes.
    EXPECT_GT(std::stoll(FactOf(full, fact::kHave).value_or("0")), 7 << 20) << full;
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_GT(disk.free_bytes(), 7 << 20);
}

}  // namespace
}  // namespace shardmesh::worker
