// Putting snapshots back, and looking at data folders that are damaged.
#include "server/store_repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "server/catalogue_record.h"
#include "server/sqlite_store.h"
#include "tensor/failpoint.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/store_folder.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Put Cluster(int64_t term, const std::string& id = "0123456789abcdef0123456789abcdef") {
  return {"cluster", EncodeCluster({.cluster_id = id, .term = term})};
}

TEST(StoreRepairTest, RestoresASnapshotBehindAllThatWasEverTold) {
  const std::string folder = NewFolder();
  const std::string snapshot = NewFolder() + "/snapshot";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(3), {"name/a", "1"}, {"name/b", "1"}}}),
                IsOk());
  }
  std::filesystem::copy_file(folder + "/state.db", snapshot);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(9), {"name/a", "2"}, {"name/c", "1"}},
                                       .deletes = {"name/b"}}),
                IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored, RestoreSnapshot(folder, snapshot));
  EXPECT_EQ(restored.term, 3);
  EXPECT_EQ(restored.revision, 1);
  EXPECT_THAT(restored.lost, ElementsAre("name/c"));
  EXPECT_THAT(restored.back, ElementsAre("name/b"));
  EXPECT_THAT(restored.changed, ElementsAre("name/a"));
  EXPECT_TRUE(std::filesystem::exists(restored.replaced)) << "the state before is kept";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->stats().unreadable_records, 0);
    EXPECT_EQ(store->List("name/")->items.size(), 2u);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue cluster, store->Get("cluster"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ClusterRecord record,
                                   DecodeCluster(cluster.key, cluster.value));
    EXPECT_EQ(record.term, 9 + kSkippedTerms) << "above what workers know";
    EXPECT_EQ(store->revision(), 2 + kSkippedRevisions);
    EXPECT_THAT(store->Watch({""}, 3, [](const auto&) {}).status(),
                StatusIs(absl::StatusCode::kOutOfRange, Reason::kCompacted))
        << "a watch of the state before has to list anew";
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/new", "1"}}}),
                IsOkAndHolds(3 + kSkippedRevisions));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored again, RestoreSnapshot(folder, snapshot));
  EXPECT_TRUE(again.was_done_before);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/new"), IsOk()) << "a flag that stays does no harm";
}

// Closed, so that all is in one file.
std::string SnapshotOf(const std::string& folder, Transaction transaction) {
  {
    const auto store = OpenFolder(folder);
    EXPECT_THAT(store, IsOk());
    EXPECT_THAT(CommitAndWait(**store, std::move(transaction)), IsOk());
  }
  std::string snapshot = NewFolder() + "/snapshot";
  std::filesystem::copy_file(folder + "/state.db", snapshot);
  return snapshot;
}

// A file beside the database could be lost where the database is not: then the next start would
// undo what was acknowledged since.
TEST(StoreRepairTest, TheStateItselfSaysOfWhichSnapshotItIs) {
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  ASSERT_THAT(RestoreSnapshot(folder, snapshot), IsOk());
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/new", "1"}}}), IsOk());
  }
  const std::string same = NewFolder();
  std::filesystem::copy_file(folder + "/state.db", same + "/state.db");
  EXPECT_TRUE(RestoreSnapshot(same, snapshot)->was_done_before);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(same));
    EXPECT_THAT(store->Get("name/new"), IsOk());
  }
  // An operator may ask for it, once.
  std::ofstream(same + "/" + std::string(kRestoreAgain)) << "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored again, RestoreSnapshot(same, snapshot));
  EXPECT_FALSE(again.was_done_before);
  EXPECT_THAT(again.lost, ElementsAre("name/new"));
  EXPECT_TRUE(RestoreSnapshot(same, snapshot)->was_done_before);
}

TEST(StoreRepairTest, ARestoreThatWasInterruptedLeavesNothingToTheNext) {
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/b", "1"}}});
  {
    const std::string other = NewFolder();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(other));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(3), {"name/a", "1"}}}), IsOk());
    std::filesystem::copy_file(other + "/state.db-wal", folder + "/restoring-wal");
  }
  ASSERT_GT(std::filesystem::file_size(folder + "/restoring-wal"), 0u);
  ASSERT_THAT(RestoreSnapshot(folder, snapshot), IsOk());
  for (const char* left : {"restoring", "restoring-wal", "restoring-journal"}) {
    EXPECT_FALSE(std::filesystem::exists(StrCat(folder, "/", left))) << left;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->stats().unreadable_records, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues names, store->List("name/"));
  ASSERT_EQ(names.items.size(), 1u);
  EXPECT_EQ(names.items[0].key, "name/b");
}

// Runs `work` in a process that the failpoint ends; whether it did.
bool EndsAt(const std::string& failpoint, const std::function<absl::Status()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(ArmFailpoints(failpoint).ok() && work().ok() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1) << status;
  return WEXITSTATUS(status) == kFailpointExitCode;
}

// Where a database takes another's place: each step, in order.
constexpr const char* kReplaceSteps[] = {"store.replace=crash",      "store.sync_folder=crash:1",
                                         "store.move_aside=crash:1", "store.move_aside=crash:2",
                                         "store.move_aside=crash:3", "store.sync_folder=crash:2",
                                         "store.replaced=crash",     "store.sync_folder=crash:3"};

TEST(StoreRepairTest, NoStepOfARestoreAfterWhichAProcessEndsLosesTheState) {
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  for (const char* step : kReplaceSteps) {
    SCOPED_TRACE(step);
    const std::string folder = NewFolder();
    SnapshotOf(folder, {.puts = {Cluster(5), {"name/acknowledged", "1"}}});
    // As many syncs as there are before make no difference.
    ASSERT_TRUE(EndsAt(step, [&] { return RestoreSnapshot(folder, snapshot).status(); }));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    const bool is_old = store->Get("name/acknowledged").ok();
    const bool is_new = store->Get("name/a").ok();
    EXPECT_NE(is_old, is_new) << "one of the two states, and whole";
    EXPECT_EQ(std::filesystem::exists(folder + "/replaced.db-1"), is_new);
    EXPECT_FALSE(std::filesystem::exists(folder + "/replaced.db-1.next"));
  }
}

TEST(StoreRepairTest, NoStepOfARepairAfterWhichAProcessEndsLosesTheState) {
  for (const char* step : kReplaceSteps) {
    SCOPED_TRACE(step);
    const std::string folder = NewFolder();
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
      for (int i = 0; i < 60; ++i) {
        ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat("name/", i), std::string(1000, 'v')}}}),
                    IsOk());
      }
    }
    {
      std::fstream file(folder + "/state.db", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(40'960);
      file << std::string(4096, '\x5a');
    }
    ASSERT_TRUE(EndsAt(step, [&] { return CheckDataFolder(folder, true).status(); }));
    // The repair is done again where it had not begun, and is done otherwise.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_GT(check.records, 40);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_GT(store->List("")->items.size(), 40u);
    EXPECT_TRUE(std::filesystem::exists(folder + "/damaged.db-1"));
  }
}

TEST(StoreRepairTest, AStateOfANewerVersionIsNotReplaced) {
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(folder, {.puts = {Cluster(3), {"name/a", "1"}}});
  RunSql(folder + "/state.db", "PRAGMA user_version = 99");
  EXPECT_THAT(RestoreSnapshot(folder, snapshot).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kSchemaMismatch));
  EXPECT_FALSE(std::filesystem::exists(folder + "/replaced.db-1"));
}

// Of "name/a" the newest record, whose key became that of another.
void DamageAKey(const std::string& folder) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (const char* value : {"1", "2"}) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/a", value}, {"name/c", value}}}), IsOk());
    }
  }
  RunSql(folder + "/state.db", "UPDATE event SET key = 'name/c' WHERE position = 512");
}

TEST(StoreRepairTest, ADamagedKeyBringsBackNoOlderValueAndTakesNoOther) {
  const std::string folder = NewFolder();
  ASSERT_NO_FATAL_FAILURE(DamageAKey(folder));
  for (const bool set_aside : {false, true}) {
    if (set_aside) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
      ASSERT_EQ(check.unreadable.size(), 1u);
      EXPECT_EQ(check.unreadable.front().key, "name/a");
      EXPECT_THAT(check.unreadable.front().why, HasSubstr("its key is not as it was written"));
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->stats().unreadable_records, set_aside ? 0 : 1);
    EXPECT_THAT(store->Get("name/a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue other, store->Get("name/c"));
    EXPECT_EQ(other.value, "2");
  }
}

TEST(StoreRepairTest, CanRestoreThousandsOfTimes) {
  static_assert(kMaxTerm / kSkippedTerms > 8000);
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(kMaxTerm - 10)}});
  const absl::Status refused = RestoreSnapshot(folder, snapshot).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(StrCat(kMaxTerm)));
}

// Its commit was acknowledged: the next one must not take its place.
TEST(StoreRepairTest, GoesOnBehindANewestRecordThatCannotBeRead) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (const char* key : {"name/a", "name/b", "name/c"}) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{key, "1"}}}), IsOk());
    }
  }
  RunSql(folder + "/state.db",
         "UPDATE event SET value = X'33' WHERE key = 'name/c';"
         "INSERT INTO event VALUES (9000000000000000000, 'name/x', X'33', 1, NULL)");
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->stats().unreadable_records, 2);
    EXPECT_EQ(store->revision(), 3) << "what is far beyond all others is no revision";
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{"name/d", "1"}}}), IsOkAndHolds(4));
  }
  ASSERT_THAT(CheckDataFolder(folder, true), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->stats().unreadable_records, 0);
  EXPECT_EQ(store->revision(), 4);
}

TEST(StoreRepairTest, RefusesASnapshotOfAnotherClusterOrADamagedOneAndChangesNothing) {
  const std::string folder = NewFolder();
  const std::string other = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(3), {"name/a", "1"}}}), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto second, OpenFolder(other));
    ASSERT_THAT(CommitAndWait(*second, {.puts = {Cluster(1, std::string(32, 'f'))}}), IsOk());
    ASSERT_THAT(CommitAndWait(*second, {.puts = {{"name/x", "1"}}}), IsOk());
  }
  const absl::Status refused = RestoreSnapshot(folder, other + "/state.db").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(32, 'f')));
  RunSql(other + "/state.db", "UPDATE event SET value = X'32' WHERE key = 'name/x'");
  EXPECT_THAT(RestoreSnapshot(folder, other + "/state.db").status(),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_THAT(RestoreSnapshot(folder, other + "/none").status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/a"), IsOk());
  EXPECT_THAT(RestoreSnapshot(folder, folder + "/state.db").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed))
      << "it is in use";
}

TEST(StoreRepairTest, ShowsUnreadableRecordsAndMovesThemAside) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (const char* value : {"1", "2"}) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/a", value}}}), IsOk());
    }
    ASSERT_THAT(CommitAndWait(*store, {.puts = {{"name/b", "1"}}}), IsOk());
  }
  EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
  RunSql(folder + "/state.db",
         "UPDATE event SET value = X'33' WHERE position = 512; UPDATE bounds SET newest = 1");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck found, CheckDataFolder(folder, false));
  EXPECT_FALSE(found.is_sound());
  EXPECT_FALSE(found.bounds.ok());
  ASSERT_EQ(found.unreadable.size(), 1u);
  EXPECT_EQ(found.unreadable.front().key, "name/a");
  EXPECT_THAT(found.unreadable.front().why, HasSubstr("checksum"));
  ASSERT_THAT(CheckDataFolder(folder, true), IsOk());
  EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->stats().unreadable_records, 0);
  EXPECT_EQ(store->revision(), 3);
  EXPECT_THAT(store->Get("name/a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
      << "an older value does not take its place";
  EXPECT_THAT(store->Get("name/b"), IsOk());
}

TEST(StoreRepairTest, SavesWhatCanBeReadOfDamagedPages) {
  const std::string folder = NewFolder();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (int i = 0; i < 60; ++i) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat("name/", i), std::string(1000, 'v')}}}),
                  IsOk());
    }
  }
  {
    std::fstream file(folder + "/state.db", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(40'960);
    file << std::string(4096, '\x5a');
  }
  EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_FALSE(check.pages.ok());
  EXPECT_GT(check.records, 40);
  EXPECT_TRUE(std::filesystem::exists(check.replaced));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(static_cast<int64_t>(store->List("")->items.size()), check.records);
}

TEST(StoreRepairTest, ChecksNoFolderWithoutADatabase) {
  EXPECT_THAT(CheckDataFolder(NewFolder(), false).status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
}

TEST(StoreRepairTest, PointsFromAClustersFolderToItsCoordinators) {
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/coordinator");
  EXPECT_THAT(CheckDataFolder(folder, false).status().ToString(),
              HasSubstr("give the --data-dir of a coordinator"));
  ASSERT_THAT(OpenFolder(folder + "/coordinator"), IsOk());
  const absl::Status refused = CheckDataFolder(folder, false).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
  EXPECT_THAT(refused.ToString(), HasSubstr("the coordinator of this cluster keeps its state in " +
                                            folder + "/coordinator"));
  EXPECT_THAT(CheckDataFolder(folder + "/none", false).status().ToString(),
              HasSubstr("there is no folder " + folder + "/none"));
}

}  // namespace
}  // namespace shardmesh::server
