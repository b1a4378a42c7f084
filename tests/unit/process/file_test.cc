// Files that appear complete or not at all.
#include "process/file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/signal.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

TEST(AtomicFileWriterTest, RefusesAnEmptyPathAndLeavesNothing) {
  const absl::Status status = AtomicFileWriter::Create("").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_EQ(status.message(), "the path of the file to write is empty; name a file");
  const std::string of_this_process = StrCat(".", getpid(), ".");
  for (const auto& entry : std::filesystem::directory_iterator(".")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(of_this_process)) << entry.path();
  }
}

TEST(AtomicFileWriterTest, SaysWhatToDoAboutAPathThatIsNoFile) {
  const std::string folder = ::testing::TempDir() + "paths";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/folder");
  std::filesystem::create_symlink("loop", folder + "/loop");
  std::ofstream(folder + "/file") << "x";
  struct Case {
    std::string path;
    absl::StatusCode code;
    std::string error;
  };
  const Case kCases[] = {
      {folder + "/folder", absl::StatusCode::kFailedPrecondition,
       "Is a directory; name a file in it"},
      {folder + "/none/a", absl::StatusCode::kNotFound,
       "No such file or directory; make its folder first"},
      {folder + "/file/a", absl::StatusCode::kFailedPrecondition,
       "Not a directory; name a file in a folder"},
      {folder + "/loop", absl::StatusCode::kFailedPrecondition,
       "Too many levels of symbolic links; name another file, or remove the links"},
      {folder + "/loop/a", absl::StatusCode::kFailedPrecondition,
       "Too many levels of symbolic links; name another file, or remove the links"},
  };
  for (const Case& c : kCases) {
    const absl::Status status = AtomicFileWriter::Create(c.path).status();
    EXPECT_THAT(status, StatusIs(c.code, Reason::kBadFile)) << c.path;
    EXPECT_TRUE(status.message().find(StrCat(c.path, ": ", c.error)) != std::string::npos)
        << status.message();
  }
  std::filesystem::remove_all(folder);
}

// In containers, processes of different hosts often have the same number.
TEST(AtomicFileWriterTest, NeverWritesIntoATemporaryFileOfAnother) {
  const std::string folder = ::testing::TempDir() + "temporary_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/file";
  uint64_t next = 0;
  {
    const auto writer = AtomicFileWriter::Create(path);
    ASSERT_THAT(writer, IsOk());
    const std::string name =
        std::filesystem::directory_iterator(folder)->path().filename().string();
    next = std::stoull(name.substr(StrCat("file.", getpid(), ".").size())) + 1;
  }
  std::vector<std::string> others;
  for (uint64_t i = 0; i < 3; ++i) {
    others.push_back(StrCat(path, ".", getpid(), ".", next + i, kTemporarySuffix));
    std::ofstream(others.back()) << "half";
  }
  absl::StatusOr<AtomicFileWriter> writer = AtomicFileWriter::Create(path);
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT(writer->Append(std::string_view("whole")), IsOk());
  EXPECT_THAT(writer->Finish(), IsOk());
  for (const std::string& other : others) {
    EXPECT_EQ(std::filesystem::file_size(other), 4u) << other;
  }
  EXPECT_EQ(std::filesystem::file_size(path), 5u);
  std::filesystem::remove_all(folder);
}

TEST(AtomicFileWriterTest, SaysThatAFileMayNotBeThatLarge) {
  IgnoreFileSizeSignal();
  const std::string path = ::testing::TempDir() + "large.npy";
  rlimit former = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &former), 0);
  rlimit small = former;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status status;
  {
    absl::StatusOr<AtomicFileWriter> writer = AtomicFileWriter::Create(path);
    status = writer.ok() ? writer->Append(std::string(8192, 'x')) : writer.status();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &former), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("large.npy")) << entry.path();
  }
}

}  // namespace
}  // namespace shardmesh
