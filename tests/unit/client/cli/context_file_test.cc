// Contexts are written as they are read, and broken files are refused.
#include "client/cli/context_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/lock_file.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ContextFileTest : public ::testing::Test {
 protected:
  ~ContextFileTest() override { std::filesystem::remove_all(folder_); }

  static std::string MakeFolder() {
    std::string folder = ::testing::TempDir() + "contexts-XXXXXX";
    return mkdtemp(folder.data());
  }

  const std::string folder_ = MakeFolder();
  const std::string path_ = folder_ + "/new/config.yaml";
};

TEST_F(ContextFileTest, ReadsWhatItWrites) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile none, ReadContexts(path_));
  EXPECT_THAT(none.contexts, IsEmpty());

  ContextFile file;
  file.Set({.name = "dev", .address = "127.0.0.1:7070"});
  file.Set({.name = "prod", .address = "old:1"});
  file.Set({.name = "prod",
            .address = "[::1]:7070",
            .tls = {.certificate = "/c: d", .private_key = "/k", .authorities = "/a"}});
  file.current = "prod";
  const auto write = [&](ContextFile* written) {
    *written = file;
    return absl::OkStatus();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile written, UpdateContexts(path_, write));
  EXPECT_EQ(ContextsTree(written), ContextsTree(file));
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);

  SHARDMESH_ASSERT_OK_AND_ASSIGN(ContextFile read, ReadContexts(path_));
  EXPECT_EQ(ContextsTree(read), ContextsTree(file));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Context prod, read.Find("prod"));
  EXPECT_EQ(prod.address, "[::1]:7070");
  EXPECT_EQ(prod.tls.certificate, "/c: d");
  const absl::Status unknown = read.Find("prd").status();
  EXPECT_THAT(unknown, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("did you mean \"prod\"?"));
  ASSERT_THAT(read.Remove("prod"), IsOk());
  EXPECT_EQ(read.current, "");
  EXPECT_EQ(read.contexts.size(), 1U);
}

// Adds the contexts NAME0 to NAME9, each in a change of its own.
void AddTen(const std::string& path, const std::string& name) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(UpdateContexts(path,
                               [&](ContextFile* file) {
                                 file->Set({.name = StrCat(name, i), .address = "127.0.0.1:7070"});
                                 return absl::OkStatus();
                               })
                    .status(),
                IsOk());
  }
}

TEST_F(ContextFileTest, KeepsTheChangesOfWritersAtTheSameTime) {
  std::vector<std::thread> writers;
  for (const char* name : {"a", "b", "c", "d"}) {
    writers.emplace_back([this, name] { AddTen(path_, name); });
  }
  for (std::thread& writer : writers) writer.join();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile file, ReadContexts(path_));
  EXPECT_EQ(file.contexts.size(), 40U);
}

TEST_F(ContextFileTest, ReadsTheFileAfterItsLockIsFree) {
  AddTen(path_, "old");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(FileLock lock, TakeLock(path_ + ".lock"));
  ASSERT_TRUE(lock.held.valid());
  std::atomic<bool> is_read = false;
  std::thread writer([&] {
    EXPECT_THAT(UpdateContexts(path_,
                               [&](ContextFile* file) {
                                 is_read = true;
                                 file->Set({.name = "new", .address = "127.0.0.1:7070"});
                                 return absl::OkStatus();
                               })
                    .status(),
                IsOk());
  });
  // Another writer's change, in the middle of which the writer above begins.
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(is_read);
  std::ofstream(path_) << "contexts: {other: {address: 'x:1'}}";
  lock.held.Close();
  writer.join();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile file, ReadContexts(path_));
  EXPECT_EQ(file.contexts.size(), 2U);
}

TEST_F(ContextFileTest, LeavesTheFileAfterAnErrorOfTheChange) {
  AddTen(path_, "old");
  const absl::Status status = UpdateContexts(path_, [](ContextFile* file) {
                                file->contexts.clear();
                                return absl::NotFoundError("no such context");
                              }).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile file, ReadContexts(path_));
  EXPECT_EQ(file.contexts.size(), 10U);
  // The file, its lock, and no temporary file.
  const auto entries = std::filesystem::directory_iterator(folder_ + "/new");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
}

TEST_F(ContextFileTest, RefusesBrokenFilesWithTheirLines) {
  const struct Case {
    std::string text;
    std::string error;
  } kCases[] = {
      {"contexts: [a", "is no YAML"},
      {"- a", "is no mapping with contexts and current-context"},
      {"contxts: {}", ":1: unknown key \"contxts\"; did you mean \"contexts\"?"},
      {"contexts:\n  a: 5", ":2: a context is a mapping"},
      {"contexts:\n  a:\n    adress: x:1", ":3: unknown key \"adress\" of a context; did you mean"},
      {"contexts:\n  a:\n    address: nohost", "context \"a\": "},
      {"contexts:\n  a: {address: 'x:1', tls-cert: c}", "context \"a\": "},
      {"contexts:\n  a: {address: [x]}", "\"address\" is no text"},
      {"contexts:\n  a/b: {address: 'x:1'}", "cannot name a context"},
      {"contexts:\n  a: {address: 'x:1'}\n  a: {address: 'y:1'}", "two contexts"},
      {"current-context: [a]", "\"current-context\" is no text"},
      {"contexts: a", "\"contexts\" is no mapping"},
  };
  const std::string path = folder_ + "/broken.yaml";
  for (const Case& c : kCases) {
    std::ofstream(path) << c.text;
    const absl::Status status = ReadContexts(path).status();
    EXPECT_EQ(ReasonOf(status), Reason::kBadFile) << c.text;
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::StartsWith(path), HasSubstr(c.error)));
  }
}

TEST_F(ContextFileTest, ReadsOnlyRegularFilesOfALimitedSize) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string large = folder_ + "/large.yaml";
  std::ofstream(large) << "# " << std::string(size_t{1} << 20, 'x') << "\n";
  const std::string link = folder_ + "/link.yaml";
  std::filesystem::create_symlink("/dev/full", link);
  const struct Case {
    std::string path;
    std::string error;
  } kCases[] = {
      {folder_, "is a folder"},
      {pipe, "is not a regular file"},
      {"/dev/full", "is not a regular file"},
      {link, "is not a regular file"},
      {large, ": 1048579 bytes are more than the 1048576 of a file of contexts"},
  };
  for (const Case& c : kCases) {
    const absl::Status status = ReadContexts(c.path).status();
    EXPECT_EQ(ReasonOf(status), Reason::kBadFile) << c.path;
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::StartsWith(c.path), HasSubstr(c.error)));
  }
  // A file of exactly the largest size is read.
  std::ofstream(large) << "# " << std::string((size_t{1} << 20) - 3, 'x') << "\n";
  EXPECT_THAT(ReadContexts(large).status(), IsOk());
}

TEST_F(ContextFileTest, AFileThatIsEmptyHasNoContexts) {
  const std::string path = folder_ + "/empty.yaml";
  std::ofstream(path) << "# nothing\n";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ContextFile file, ReadContexts(path));
  EXPECT_THAT(file.contexts, IsEmpty());
}

}  // namespace
}  // namespace shardmesh::client
