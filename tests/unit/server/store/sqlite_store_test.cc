// What the store on disk keeps through closing, kill -9, damage and a full disk.
#include "server/store/sqlite_store.h"

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
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/store/store.h"
#include "status/fact_keys.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/store_folder.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SqliteStoreTest, FindsEverythingAgainWhenReopened) {
  const std::string folder = NewFolder() + "/made by it";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}, {"b", ""}}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "2"}}, .deletes = {"b"}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"c", std::string("\0", 1)}}}), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
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
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", "1"}}}), IsOk());
    ASSERT_THAT(CommitAndWait(*store, {.deletes = {"a"}}), IsOk());
    store->Compact(2, [](absl::Status status) { EXPECT_THAT(status, IsOk()); });
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->revision(), 2);
  EXPECT_EQ(store->compacted_revision(), 2);
}

TEST(SqliteStoreTest, RefusesAFolderThatIsInUse) {
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  const absl::StatusOr<std::unique_ptr<Store>> second = OpenFolder(folder);
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(second, test::CarriesFacts(Reason::kStoreFailed, {{fact::kFile, folder}}));
  EXPECT_THAT(second.status().ToString(),
              AllOf(HasSubstr(folder), HasSubstr(StrCat("process ", getpid()))));
}

TEST(SqliteStoreTest, WaitsForAFolderThatIsInUseForAsLongAsItIsTold) {
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Store> first, OpenFolder(folder));
  const absl::Time start = absl::Now();
  EXPECT_THAT(OpenSqliteStore({.folder = folder, .lock_timeout = absl::Milliseconds(200)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
  std::thread other([&] {
    const auto second = OpenSqliteStore({.folder = folder, .lock_timeout = absl::Seconds(30)});
    EXPECT_THAT(second, IsOk());
    if (second.ok()) {
      EXPECT_THAT((*second)->Get("a"), IsOk());
    }
  });
  // It sees what is written until then.
  EXPECT_THAT(CommitAndWait(*first, {.puts = {{"a", "1"}}}), IsOk());
  first.reset();
  other.join();
}

TEST(SqliteStoreTest, RefusesAFolderWhoseParentIsNotThere) {
  EXPECT_THAT(OpenFolder(NewFolder() + "/no/such"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, RefusesAFolderThatIsAFile) {
  const std::string path = NewFolder() + "/file";
  std::ofstream(path) << "x";
  const absl::StatusOr<std::unique_ptr<Store>> opened = OpenFolder(path);
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().ToString(), HasSubstr(path));
}

TEST(SqliteStoreTest, RefusesADatabaseThatItCannotWrite) {
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/state.db");
  EXPECT_THAT(OpenFolder(folder),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, RefusesADatabaseOfANewerVersion) {
  const std::string folder = NewFolder();
  ASSERT_THAT(OpenFolder(folder), IsOk());
  RunSql(folder + "/state.db", "PRAGMA user_version = 99");
  const absl::StatusOr<std::unique_ptr<Store>> opened = OpenFolder(folder);
  EXPECT_THAT(opened, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kSchemaMismatch));
  EXPECT_THAT(opened,
              test::CarriesFacts(
                  Reason::kSchemaMismatch,
                  {{fact::kHave, 99}, {fact::kNeed, 3}, {fact::kFile, folder + "/state.db"}}));
  EXPECT_THAT(opened.status().ToString(),
              AllOf(HasSubstr("schema version 99"), HasSubstr("reads versions 1 to 3")));
}

TEST(SqliteStoreTest, RefusesADatabaseOfAnotherProgram) {
  const std::string folder = NewFolder();
  RunSql(folder + "/state.db", "CREATE TABLE photos (id INTEGER)");
  EXPECT_THAT(OpenFolder(folder),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
}

TEST(SqliteStoreTest, SaysThatADamagedDatabaseIsDamaged) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
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
    const absl::StatusOr<std::unique_ptr<Store>> opened = OpenFolder(copy);
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
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_THAT(store->Get("big"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"a", "2"}}}), IsOkAndHolds(2));
}

// What the first version of the schema wrote.
void WriteFirstVersion(const std::string& folder) {
  std::string sql =
      "CREATE TABLE event (position INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB);"
      "CREATE TABLE bounds (compacted INTEGER NOT NULL, newest INTEGER NOT NULL);"
      "INSERT INTO bounds VALUES (1, 2);"
      "PRAGMA application_id = 1936221293; PRAGMA user_version = 1; BEGIN;";
  sql += StrCat("INSERT INTO event VALUES (", 1 << 8, ", 'gone', X'00');");
  sql += StrCat("INSERT INTO event VALUES (", (1 << 8) + 1, ", 'a', X'6f6c64');");
  for (int revision = 2; revision < 30; ++revision) {
    sql += StrCat("INSERT INTO event VALUES (", revision << 8, ", 'a', X'6e6577');");
  }
  sql += StrCat("INSERT INTO event VALUES (", 30 << 8, ", 'gone', NULL);");
  sql += StrCat("INSERT INTO event VALUES (", 31 << 8, ", 'empty', X''); COMMIT");
  RunSql(folder + "/state.db", sql);
}

TEST(SqliteStoreTest, BringsAStoreOfAnOlderVersionToItsOwn) {
  const std::string folder = NewFolder();
  ASSERT_NO_FATAL_FAILURE(WriteFirstVersion(folder));
  for (int start = 0; start < 2; ++start) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const auto store,
        OpenSqliteStore({.folder = folder, .local = {.history = {.others_have_none = true}}}));
    EXPECT_EQ(store->revision(), 31);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues all, store->List(""));
    ASSERT_EQ(all.items.size(), 2u);
    EXPECT_EQ(all.items[0].value, "new");
    EXPECT_EQ(all.items[0].mod_revision, 29);
    EXPECT_EQ(all.items[1].key, "empty");
    EXPECT_TRUE(test::Eventually([&] { return store->stats().history_bytes == 0; }))
        << "what it kept of keys that have no history any more is gone";
    EXPECT_EQ(store->stats().unreadable_records, 0);
  }
}

TEST(SqliteStoreTest, BringsAStoreWithoutChecksumsOfKeysToItsOwn) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (const char* value : {"1", "2"}) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/a", value}, {"name/b", value}}}), IsOk());
    }
  }
  // What the second version of the schema wrote, and in it a damaged value.
  RunSql(folder + "/state.db",
         "ALTER TABLE event DROP COLUMN key_crc; PRAGMA user_version = 2;"
         "UPDATE event SET value = X'33' WHERE position = 513");
  for (int start = 0; start < 2; ++start) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->Get("name/a")->value, "2");
    EXPECT_THAT(store->Get("name/b"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
    EXPECT_EQ(store->stats().unreadable_records, 1);
  }
}

// All that a store tells, as one text.
std::string Contents(const Store& store) {
  std::string all = StrCat(store.revision(), " ", store.compacted_revision());
  const absl::StatusOr<KeyValues> found = store.List("");
  for (const KeyValue& item : found->items) {
    all += StrCat("\n", item.key, "@", item.mod_revision, "=", item.value);
  }
  return all;
}

TEST(SqliteStoreTest, TakesNoFlippedBitInSilence) {
  const std::string folder = NewFolder();
  const SqliteStoreOptions options = {.folder = folder, .local = {.retention = kRetainAll}};
  std::string before;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
    for (int i = 0; i < 60; ++i) {
      const std::string value(static_cast<size_t>(100 + i), static_cast<char>('a' + i % 26));
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat("name/", i % 40), value}}}), IsOk());
    }
    ASSERT_THAT(CommitAndWait(*store, {.deletes = {"name/7"}}), IsOk());
    before = Contents(*store);
  }
  const std::string sound = test::ReadFile(folder + "/state.db");
  std::mt19937 random(60);
  int refused = 0;
  int named = 0;
  constexpr int kFlips = 300;
  for (int flip = 0; flip < kFlips; ++flip) {
    const size_t bit = random() % (sound.size() * 8);
    std::string flipped = sound;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    std::filesystem::remove(folder + "/state.db-wal");
    std::ofstream(folder + "/state.db", std::ios::binary) << flipped;
    const auto store = OpenSqliteStore(options);
    if (!store.ok()) {
      ++refused;
    } else if ((*store)->stats().unreadable_records > 0) {
      ++named;
    } else {
      EXPECT_EQ(Contents(**store), before) << "bit " << bit;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(named, kFlips / 10);
}

TEST(SqliteStoreTest, ShowsNoOlderValueInPlaceOfOneThatIsUnreadable) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (const char* value : {"first", "second"}) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{"a", value}}}), IsOk());
    }
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"b", "sound"}}}), IsOk());
  }
  RunSql(folder + "/state.db", "UPDATE event SET value = X'7365636f6e65' WHERE position = 512");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->stats().unreadable_records, 1);
  EXPECT_THAT(store->UnreadableKeys(), testing::ElementsAre("a"));
  EXPECT_THAT(store->Get("a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(store->Get("b"), IsOk());
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"a", "third"}}}), IsOkAndHolds(4));
}

TEST(SqliteStoreTest, DiskAndStartAreBoundedByWhatIsThereNotByCommits) {
  const std::string folder = NewFolder();
  const SqliteStoreOptions options = {
      .folder = folder,
      .local = {.retention = {.bytes = 256 << 10},
                .history = {.prefixes = {"kept/"}, .values = 2, .others_have_none = true}},
      .log_pages = 64};
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
    for (int i = 0; i < 300; ++i) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{"kept/a", std::string(10'000, 'v')},
                                                  {"request/1", std::string(50'000, 'v')}}}),
                  IsOk());
    }
    EXPECT_LE(store->stats().history_bytes, 280 << 10);
  }
  EXPECT_LE(std::filesystem::file_size(folder + "/state.db"), 1u << 20) << "of 18 MB written";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
  EXPECT_EQ(store->revision(), 300);
  EXPECT_LE(store->stats().history_bytes, 280 << 10);
}

TEST(SqliteStoreTest, ACopyMadeBetweenCommitsOpensAsAStore) {
  const std::string folder = NewFolder();
  const std::string copy = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  for (int i = 0; i < 40; ++i) {
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat(i), std::string(100'000, 'v')}}}), IsOk());
  }
  absl::StatusOr<Revision> copied;
  absl::Notification done;
  store->Backup(copy + "/state.db", [&](absl::StatusOr<Revision> revision) {
    copied = std::move(revision);
    done.Notify();
  });
  for (int i = 40; !done.HasBeenNotified(); ++i) {
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat(i), "meanwhile"}}}), IsOk());
  }
  ASSERT_THAT(copied, IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto opened, OpenFolder(copy));
  EXPECT_EQ(opened->revision(), *copied);
  EXPECT_EQ(opened->List("")->items.size(), static_cast<size_t>(*copied));

  absl::Notification refused;
  store->Backup(copy + "/state.db", [&](const absl::StatusOr<Revision>& revision) {
    EXPECT_THAT(revision, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kStoreFailed));
    refused.Notify();
  });
  refused.WaitForNotification();
}

TEST(SqliteStoreTest, TakesNoFolderOfAWorker) {
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/arrays");
  const auto refused = OpenFolder(folder);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(refused.status().ToString(), testing::HasSubstr("data folder of a worker"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/state.db"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/LOCK"));
}

// Of an open file that was removed the system keeps what is written until the process ends, and
// then nothing.
TEST(SqliteStoreTest, WritesNothingOnceItsFilesAreGone) {
  const auto put = [](Store& store, const std::string& key) {
    return CommitAndWait(store, {.puts = {{key, "value"}}});
  };
  for (const char* gone : {"state.db", "state.db-wal"}) {
    SCOPED_TRACE(gone);
    const std::string folder = NewFolder();
    const std::string copy = NewFolder();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto store, OpenFolder(folder));
    ASSERT_THAT(put(*store, "a"), IsOk());
    std::filesystem::rename(folder + "/" + gone, folder + "/away");
    const auto refused = put(*store, "b");
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
    EXPECT_THAT(refused.status().ToString(), testing::HasSubstr("admin snapshot"));
    EXPECT_EQ(store->List("")->items.size(), 1u);
    // The advice works.
    absl::Notification done;
    store->Backup(copy + "/state.db", [&](const absl::StatusOr<Revision>& revision) {
      EXPECT_THAT(revision, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto saved, OpenFolder(copy));
    EXPECT_EQ(saved->List("")->items.size(), 1u);
    // So does putting it back.
    std::filesystem::rename(folder + "/away", folder + "/" + gone);
    EXPECT_THAT(put(*store, "b"), IsOk());
    store.reset();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(store, OpenFolder(folder));
    EXPECT_EQ(store->List("")->items.size(), 2u);
  }
}

// Commits from now to its death, and reports each acknowledged revision through the pipe.
[[noreturn]] void CommitUntilKilled(const std::string& folder, int pipe) {
  auto store = OpenFolder(folder);
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

    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
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
