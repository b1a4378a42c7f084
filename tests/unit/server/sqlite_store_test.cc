// What the store on disk keeps through closing, kill -9, damage and a full disk.
#include "server/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/store.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/sqlite_store_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& folder) {
  return OpenSqliteStore({.folder = folder});
}

void RunSql(const std::string& file, const std::string& sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
}

TEST(SqliteStoreTest, FindsEverythingAgainWhenReopened) {
  const std::string folder = NewFolder() + "/made by it";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}, {"b", ""}}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "2"}}, .deletes = {"b"}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"c", std::string("\0", 1)}}}), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
  EXPECT_EQ(store->revision(), 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues all, store->List(""));
  ASSERT_EQ(all.items.size(), 2u);
  EXPECT_EQ(all.items[0].value, "2");
  EXPECT_EQ(all.items[0].mod_revision, 2);
  EXPECT_EQ(all.items[1].value, std::string("\0", 1));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue old, store->Get("a", 1));
  EXPECT_EQ(old.value, "1");
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"d", ""}}}), IsOkAndHolds(4));
}

TEST(SqliteStoreTest, RemembersCompactionWhenReopened) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.deletes = {"a"}}), IsOk());
    store->Compact(2, [](absl::Status status) { EXPECT_THAT(status, IsOk()); });
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
  EXPECT_EQ(store->revision(), 2);
  EXPECT_EQ(store->compacted_revision(), 2);
}

TEST(SqliteStoreTest, RefusesAFolderThatIsInUse) {
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
  const absl::StatusOr<std::unique_ptr<Store>> second = Open(folder);
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(second.status().ToString(),
              AllOf(HasSubstr(folder), HasSubstr(StrCat("process ", getpid()))));
}

TEST(SqliteStoreTest, RefusesAFolderWhoseParentIsNotThere) {
  EXPECT_THAT(Open(NewFolder() + "/no/such"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, RefusesAFolderThatIsAFile) {
  const std::string path = NewFolder() + "/file";
  std::ofstream(path) << "x";
  const absl::StatusOr<std::unique_ptr<Store>> opened = Open(path);
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().ToString(), HasSubstr(path));
}

TEST(SqliteStoreTest, RefusesADatabaseThatItCannotWrite) {
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/state.db");
  EXPECT_THAT(Open(folder), StatusIs(absl::StatusCode::kPermissionDenied, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, RefusesADatabaseOfANewerVersion) {
  const std::string folder = NewFolder();
  ASSERT_THAT(Open(folder), IsOk());
  RunSql(folder + "/state.db", "PRAGMA user_version = 2");
  const absl::StatusOr<std::unique_ptr<Store>> opened = Open(folder);
  EXPECT_THAT(opened, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(opened.status().ToString(), HasSubstr("schema version 2"));
}

TEST(SqliteStoreTest, RefusesADatabaseOfAnotherProgram) {
  const std::string folder = NewFolder();
  RunSql(folder + "/state.db", "CREATE TABLE photos (id INTEGER)");
  EXPECT_THAT(Open(folder), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, SaysThatADamagedDatabaseIsDamaged) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
    for (int i = 0; i < 50; ++i) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat(i), std::string(5000, 'v')}}}), IsOk());
    }
  }
  for (const auto& [name, offset] : {std::pair("header", 0), std::pair("pages", 8192)}) {
    SCOPED_TRACE(name);
    const std::string copy = NewFolder();
    std::filesystem::copy_file(folder + "/state.db", copy + "/state.db");
    {
      std::fstream file(copy + "/state.db", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(offset);
      file << std::string(8192, '\x5a');
    }
    const absl::StatusOr<std::unique_ptr<Store>> opened = Open(copy);
    EXPECT_THAT(opened, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(opened.status().ToString(), HasSubstr(copy));
  }
}

TEST(SqliteStoreTest, AFullDiskFailsTheCommitAndNothingElse) {
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store,
                                 OpenSqliteStore({.folder = folder, .quota_bytes = 256 * 1024}));
  ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}}}), IsOk());
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"big", std::string(1 << 20, 'v')}}}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFailed));
  EXPECT_THAT(store->Get("big"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"a", "2"}}}), IsOkAndHolds(2));
}

// Commits from now to its death, and reports each acknowledged revision through the pipe.
[[noreturn]] void CommitUntilKilled(const std::string& folder, int pipe) {
  auto store = Open(folder);
  if (!store.ok()) _exit(1);
  for (int64_t i = (*store)->revision() + 1;; ++i) {
    // Four at a time: they share a group, or not, as it happens.
    (*store)->Commit({.puts = {{StrCat("key/", i), StrCat("value ", i)}}},
                     [pipe](absl::StatusOr<Revision> revision) {
                       if (!revision.ok()) _exit(2);
                       const int64_t acknowledged = *revision;
                       if (write(pipe, &acknowledged, sizeof(acknowledged)) < 0) _exit(3);
                     });
    if (i % 4 == 0) CommitAndWait(**store, {}).IgnoreError();
  }
}

TEST(SqliteStoreTest, KeepsWhatItAcknowledgedThroughKillNine) {
  const std::string folder = NewFolder();
  std::mt19937 random(20);
  std::uniform_int_distribution<int> commits(1, 60);
  for (int round = 0; round < 20; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      CommitUntilKilled(folder, ends[1]);
    }
    close(ends[1]);
    int64_t acknowledged = 0;
    int64_t next = 0;
    for (int left = commits(random); left > 0; --left) {
      ASSERT_EQ(read(ends[0], &next, sizeof(next)), static_cast<ssize_t>(sizeof(next)))
          << "the child ended by itself";
      acknowledged = next;
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(ends[0], &next, sizeof(next)) == static_cast<ssize_t>(sizeof(next))) {
      acknowledged = next;
    }
    close(ends[0]);

    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, Open(folder));
    ASSERT_GE(store->revision(), acknowledged);
    for (int64_t i = 1; i <= store->revision(); ++i) {
      const absl::StatusOr<KeyValue> found = store->Get(StrCat("key/", i));
      ASSERT_THAT(found, IsOk()) << "round " << round << ", acknowledged " << acknowledged;
      ASSERT_EQ(found->value, StrCat("value ", i));
      ASSERT_EQ(found->mod_revision, i);
    }
  }
}

}  // namespace
}  // namespace shardmesh::server
