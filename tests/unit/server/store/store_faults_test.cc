// The store on a disk that fails: what was acknowledged is there, and nobody is told of what nobody
// knows.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/store/sqlite_store.h"
#include "server/store/store.h"
#include "tests/testing/faulty_vfs.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::DiskFault;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::UseFaultyVfs;
using Operation = DiskFault::Operation;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/store_faults_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// How the process with the failing disk ended.
constexpr int kNotOpened = 3;
constexpr int kFailStop = 4;

constexpr int kCommits = 14;

// The I-th commit of the load: values that are written over, some of several pages, and deletions.
Transaction CommitOf(int i) {
  const std::string key = StrCat(i % 2 == 0 ? "kept/" : "other/", i % 5);
  if (i % 7 == 6) return {.deletes = {key}};
  return {.puts = {{key, StrCat(i, std::string(static_cast<size_t>(i % 3) * 5000, 'v'))}}};
}

using Keys = std::map<std::string, std::string>;

void Apply(const Transaction& transaction, Keys* keys) {
  for (const Put& put : transaction.puts) (*keys)[put.key] = put.value;
  for (const std::string& key : transaction.deletes) keys->erase(key);
}

SqliteStoreOptions Options(const std::string& folder) {
  return {.folder = folder,
          .local = {.history = {.prefixes = {"kept/"}, .others_have_none = true}},
          .log_pages = 8};
}

// Commits one after the other, and says of each through the pipe what became of it: `+` happened,
// `-` did not.
[[noreturn]] void CommitOnFailingDisk(const std::string& folder, const DiskFault& fault, int pipe) {
  SqliteStoreOptions options = Options(folder);
  options.vfs = UseFaultyVfs(fault);
  options.local.on_failure = [](const absl::Status& status) {
    _exit(absl::IsResourceExhausted(status) ? 1 : kFailStop);
  };
  auto store = OpenSqliteStore(std::move(options));
  if (!store.ok()) _exit(kNotOpened);
  for (int i = 0; i < kCommits; ++i) {
    const absl::StatusOr<Revision> result = CommitAndWait(**store, CommitOf(i));
    // Nothing but a full disk may be told of.
    if (!result.ok() && ReasonOf(result.status()) != Reason::kStoreFull) _exit(1);
    if (write(pipe, result.ok() ? "+" : "-", 1) != 1) _exit(2);
    if (i == kCommits / 2) {
      (*store)->Compact((*store)->revision() - 1, [](const absl::Status&) {});
    }
  }
  store->reset();
  _exit(0);
}

struct Outcome {
  int exit_code = -1;
  std::string told;  // of each commit
};

Outcome RunLoad(const std::string& folder, const DiskFault& fault) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    // Its log line about the failure is what is expected.
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDERR_FILENO);
    CommitOnFailingDisk(folder, fault, ends[1]);
  }
  close(ends[1]);
  Outcome outcome;
  char told = 0;
  while (read(ends[0], &told, 1) == 1) outcome.told += told;
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

Keys Found(const std::string& folder) {
  const auto store = OpenSqliteStore(Options(folder));
  EXPECT_THAT(store, IsOk());
  Keys keys;
  if (!store.ok()) return keys;
  const absl::StatusOr<KeyValues> all = (*store)->List("");
  EXPECT_THAT(all, IsOk());
  for (const KeyValue& item : all->items) keys[item.key] = item.value;
  EXPECT_THAT(CommitAndWait(**store, {.puts = {{"after", "wards"}}}), IsOk());
  return keys;
}

// Lets the N-th operation fail, for all N; returns how often that ended the process.
int FailEach(Operation operation, DiskFault::Error error, bool loses_unsynced, int stride = 1) {
  int fail_stops = 0;
  for (int64_t at = 1;; at += stride) {
    SCOPED_TRACE(at);
    const std::string folder = NewFolder();
    const Outcome outcome = RunLoad(folder, {.operation = operation,
                                             .at = at,
                                             .error = error,
                                             .loses_unsynced = loses_unsynced,
                                             .full_while = {}});
    EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(0, kNotOpened, kFailStop));
    if (outcome.exit_code == kFailStop) ++fail_stops;
    Keys acknowledged;
    for (size_t i = 0; i < outcome.told.size(); ++i) {
      if (outcome.told[i] == '+') Apply(CommitOf(static_cast<int>(i)), &acknowledged);
    }
    Keys with_next = acknowledged;
    if (outcome.exit_code == kFailStop && outcome.told.size() < kCommits) {
      Apply(CommitOf(static_cast<int>(outcome.told.size())), &with_next);
    }
    EXPECT_THAT(Found(folder), ::testing::AnyOf(acknowledged, with_next));
    std::filesystem::remove_all(folder);
    const bool all_done = outcome.exit_code == 0 && outcome.told == std::string(kCommits, '+');
    if (all_done || ::testing::Test::HasFailure()) return fail_stops;
  }
}

TEST(StoreFaultsTest, AFailedSyncEndsTheProcessAndNobodyIsTold) {
  EXPECT_GE(FailEach(Operation::kSync, DiskFault::Error::kInputOutput, false, 2), kCommits / 2);
  EXPECT_GE(FailEach(Operation::kSync, DiskFault::Error::kInputOutput, true), kCommits);
}

TEST(StoreFaultsTest, ASyncWithoutRoomIsAFailureToo) {
  EXPECT_GE(FailEach(Operation::kSync, DiskFault::Error::kNoSpace, true, 5), kCommits / 5);
}

TEST(StoreFaultsTest, AFailedWriteEndsTheProcessAndNobodyIsTold) {
  EXPECT_GE(FailEach(Operation::kWrite, DiskFault::Error::kInputOutput, false, 7), kCommits / 7);
  EXPECT_GE(FailEach(Operation::kWrite, DiskFault::Error::kInputOutput, true, 11), kCommits / 11);
}

TEST(StoreFaultsTest, AWriteWithoutRoomIsRefusedAndTheStoreGoesOn) {
  EXPECT_EQ(FailEach(Operation::kWrite, DiskFault::Error::kNoSpace, false, 3), 0);
}

TEST(StoreFaultsTest, AFailedTruncationLosesNothing) {
  FailEach(Operation::kTruncate, DiskFault::Error::kInputOutput, true);
}

TEST(StoreFaultsTest, AFullDiskStillDeletesAndReads) {
  const std::string folder = NewFolder();
  SqliteStoreOptions options = Options(folder);
  options.vfs = UseFaultyVfs({.full_while = folder + "/reserve"});
  // The layer lets nothing be written as long as the reserve is there, so it must not be there yet.
  std::filesystem::create_directory(folder + "/reserve");
  EXPECT_THAT(OpenSqliteStore(options),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull))
      << "an empty store needs some room";
  std::filesystem::remove(folder + "/reserve");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
  ASSERT_TRUE(std::filesystem::exists(folder + "/reserve")) << "it takes its reserve when it opens";
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"other/1", "x"}}}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_TRUE(std::filesystem::exists(folder + "/reserve"));
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"term", "2"}}, .urgent = true}), IsOk());
  EXPECT_FALSE(std::filesystem::exists(folder + "/reserve")) << "its room was given up";
  EXPECT_THAT(store->Get("term"), IsOk());
  EXPECT_THAT(CommitAndWait(*store, {.deletes = {"term"}}), IsOk());
}

TEST(StoreFaultsTest, AFullQuotaStillDeletesAndBeginsAnew) {
  const std::string folder = NewFolder();
  SqliteStoreOptions options = Options(folder);
  options.quota_bytes = 1 << 20;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
    int written = 0;
    absl::StatusOr<Revision> result;
    for (;; ++written) {
      result =
          CommitAndWait(*store, {.puts = {{StrCat("other/", written), std::string(20'000, 'v')}}});
      if (!result.ok()) break;
      ASSERT_LT(written, 100);
    }
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
    EXPECT_GT(written, 20);
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{"term", std::string(5000, '2')}}, .urgent = true}),
                IsOk());
  }
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{"term", std::string(5000, '3')}}, .urgent = true}),
                IsOk());
    for (int i = 0; i < 10; ++i) {
      ASSERT_THAT(CommitAndWait(*store, {.deletes = {StrCat("other/", i)}}), IsOk());
    }
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{"other/new", std::string(20'000, 'v')}}}), IsOk());
  }
}

TEST(StoreFaultsTest, HistoryMakesRoomBeforeACommitIsRefused) {
  const std::string folder = NewFolder();
  SqliteStoreOptions options = Options(folder);
  options.quota_bytes = 1 << 20;
  options.local.history = {};
  options.local.retention = kRetainAll;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
  for (int i = 0; i < 200; ++i) {
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", std::string(20'000, 'v')}}}), IsOk()) << i;
  }
  EXPECT_LE(store->stats().file_bytes, 1 << 20);
}

}  // namespace
}  // namespace shardmesh::server
