// Putting snapshots back, and looking at data folders that are damaged.
#include "server/state/store_repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "server/state/array_record.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_file.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/store_folder.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// Commits to the store of a folder as a process that is killed behind it: the log stays.
void CommitAndDie(const std::string& folder, const Transaction& transaction) {
  const pid_t child = fork();
  if (child == 0) {
    const auto store = OpenFolder(folder);
    _exit(store.ok() && CommitAndWait(**store, transaction).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_GT(std::filesystem::file_size(folder + "/state.db-wal"), 0u);
}

TEST(StoreRepairTest, RestoresTheCommitsThatAreInTheLogAlone) {
  const std::string source = NewFolder();
  ASSERT_NO_FATAL_FAILURE(CommitAndDie(source, {.puts = {Cluster(3), {"name/a", "1"}}}));
  ASSERT_NO_FATAL_FAILURE(CommitAndDie(source, {.puts = {{"name/b", "1"}}}));
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored,
                                 RestoreSnapshot(folder, source + "/state.db"));
  EXPECT_EQ(restored.revision, 2);
  EXPECT_GT(std::filesystem::file_size(source + "/state.db-wal"), 0u) << "the source is as it was";
  for (const char* left : {"restoring", "restoring-wal"}) {
    EXPECT_FALSE(std::filesystem::exists(StrCat(folder, "/", left))) << left;
  }
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_THAT(store->Get("name/a"), IsOk());
    EXPECT_THAT(store->Get("name/b"), IsOk());
  }
  EXPECT_TRUE(RestoreSnapshot(folder, source + "/state.db")->was_done_before);
  // Whoever opens the source takes the log into it.
  RunSql(source + "/state.db", "SELECT COUNT(*) FROM event");
  ASSERT_FALSE(std::filesystem::exists(source + "/state.db-wal"));
  EXPECT_TRUE(RestoreSnapshot(folder, source + "/state.db")->was_done_before);
}

TEST(StoreRepairTest, RestoresADatabaseThatWasMovedAwayWithItsLog) {
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  ASSERT_NO_FATAL_FAILURE(CommitAndDie(folder, {.puts = {Cluster(3), {"name/b", "1"}}}));
  std::filesystem::create_directory(folder + "/away");
  for (const char* file : {"state.db", "state.db-wal"}) {
    std::filesystem::copy_file(StrCat(folder, "/", file), StrCat(folder, "/away/", file));
  }
  ASSERT_THAT(RestoreSnapshot(folder, snapshot), IsOk());
  ASSERT_THAT(RestoreSnapshot(folder, folder + "/away/state.db"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/b"), IsOk());
}

TEST(StoreRepairTest, RestoresNoDatabaseThatAProcessHasOpen) {
  const std::string source = NewFolder();
  const std::string folder = NewFolder();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(source));
  ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(3)}}), IsOk());
  const absl::Status refused = RestoreSnapshot(folder, source + "/state.db").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(source + " is in use by process"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/restoring"));
}

// A backup that nobody may write is a state that its coordinator must write.
TEST(StoreRepairTest, ARestoredStateIsItsOwnersToWriteWhateverTheModeOfTheFile) {
  namespace fs = std::filesystem;
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  fs::permissions(snapshot, fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
  ASSERT_THAT(RestoreSnapshot(folder, snapshot), IsOk());
  EXPECT_EQ(fs::status(folder + "/state.db").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
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

// Makes a state of 60 names, and overwrites the page of three of them.
void MakeDamagedState(const std::string& folder) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    for (int i = 0; i < 60; ++i) {
      ASSERT_THAT(CommitAndWait(*store, {.puts = {{StrCat("name/", i), std::string(1000, 'v')}}}),
                  IsOk());
    }
  }
  std::fstream file(folder + "/state.db", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(40'960);
  file << std::string(4096, '\x5a');
}

TEST(StoreRepairTest, NoStepOfARepairAfterWhichAProcessEndsLosesTheState) {
  for (const char* step : kReplaceSteps) {
    SCOPED_TRACE(step);
    const std::string folder = NewFolder();
    ASSERT_NO_FATAL_FAILURE(MakeDamagedState(folder));
    ASSERT_TRUE(EndsAt(step, [&] { return CheckDataFolder(folder, true).status(); }));
    // The repair is done again where it had not begun, and is done otherwise.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_GE(check.records, 57);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->List("name/")->items.size(), 57u);
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

TEST(StoreRepairTest, CanRestoreHundredsOfTimes) {
  static_assert(kMaxTerm / kSkippedTerms == 511);
  static_assert(1 + 511 * kSkippedTerms + kSkippedTerms / 4 < kMaxTerm, "and start in between");
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

TEST(StoreRepairTest, MendsBoundsThatAreGone) {
  const std::string folder = NewFolder();
  SnapshotOf(folder, {.puts = {Cluster(3), {"name/a", "1"}}});
  RunSql(folder + "/state.db", "DELETE FROM bounds");
  EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_FALSE(CheckDataFolder(folder, true)->bounds.ok());
  EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->revision(), 1);
  EXPECT_THAT(store->Get("name/a"), IsOk());
}

TEST(StoreRepairTest, SavesWhatCanBeReadOfDamagedPages) {
  const std::string folder = NewFolder();
  ASSERT_NO_FATAL_FAILURE(MakeDamagedState(folder));
  EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_FALSE(check.pages.ok());
  EXPECT_EQ(check.records, 57) << "all but the three of that page";
  EXPECT_TRUE(std::filesystem::exists(check.replaced));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(static_cast<int64_t>(store->List("name/")->items.size()), check.records);
  EXPECT_GT(store->revision(), 60) << "the newest commits may be what is lost";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue said, store->Get(kRestoredKey));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RestoredRecord restored,
                                 DecodeRestored(said.key, said.value));
  EXPECT_EQ(restored.digest, kUnknownSnapshot);
  EXPECT_TRUE(restored.may_lack_names);
}

// A state of records that are the first of their revisions, which rise.
struct Record {
  Revision revision = 0;
  std::string key;
  std::string value;
};

void WriteState(const std::string& folder, const std::vector<Record>& records) {
  Database database(folder + "/state.db");
  ASSERT_THAT(database.Open(), IsOk());
  ASSERT_THAT(PrepareSchema(database), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto insert, database.Prepare(kInsertRecord));
  ASSERT_THAT(database.InTransaction([&]() -> absl::Status {
    for (const Record& record : records) {
      SHARDMESH_RETURN_IF_ERROR(InsertRecord(database, insert, RowId({.revision = record.revision}),
                                             record.key, &record.value));
    }
    return WriteBounds(database, {.compacted = 0, .newest = records.back().revision});
  }),
              IsOk());
}

constexpr size_t kPageBytes = 4096;

// Writes over the page where `text` is, which is what was written there last.
void DamagePageOf(const std::string& folder, const std::string& text) {
  const std::string file = folder + "/state.db";
  const size_t at = test::ReadFile(file).rfind(text);
  ASSERT_NE(at, std::string::npos) << text;
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(at / kPageBytes * kPageBytes));
  out << std::string(kPageBytes, '\x5a');
}

// Records of which three are on a page: the first three, the next three, and so on.
std::vector<Record> ThreeOnAPage(int count, const std::function<Revision(int)>& revision_of) {
  std::vector<Record> records;
  for (int i = 0; i < count; ++i) {
    records.push_back({revision_of(i), StrCat("name/", i), StrCat("<", std::string(1100, 'v'))});
  }
  return records;
}

// Damages the pages of these records. Their neighbours on them are lost too, and nothing else is.
void ExpectToSaveAllOthers(const std::vector<Record>& records, const std::set<int>& damaged) {
  const std::string folder = NewFolder();
  ASSERT_NO_FATAL_FAILURE(WriteState(folder, records));
  std::set<std::string> expected;
  for (const Record& record : records) expected.insert(record.key);
  for (const int each : damaged) {
    ASSERT_NO_FATAL_FAILURE(DamagePageOf(folder, StrCat("name/", each, "<")));
    for (int i = each / 3 * 3; i < each / 3 * 3 + 3; ++i) expected.erase(StrCat("name/", i));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_THAT(check.pages, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_EQ(check.records, std::ssize(expected));
  EXPECT_THAT(check.unreadable, IsEmpty());
  ASSERT_EQ(check.lost.size(), damaged.size());
  for (size_t i = 0; const int each : damaged) {
    const LostRows& lost = check.lost[i++];
    const int64_t row_id = RowId({.revision = records[static_cast<size_t>(each)].revision});
    EXPECT_LE(lost.first, row_id);
    EXPECT_GE(lost.last, row_id);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues saved, store->List("name/"));
  std::set<std::string> found;
  for (const KeyValue& item : saved.items) found.insert(item.key);
  EXPECT_EQ(found, expected);
}

TEST(StoreRepairTest, LosesNothingBesideTheDamagedPages) {
  const auto dense = ThreeOnAPage(90, [](int i) { return i + 1; });
  const auto sparse = ThreeOnAPage(90, [](int i) { return Revision{50'000} * (i + 1); });
  const auto restored =
      ThreeOnAPage(90, [](int i) { return (i < 29 ? 0 : kSkippedRevisions) + i + 1; });
  for (const auto* records : {&dense, &sparse, &restored}) {
    SCOPED_TRACE(records->back().revision);
    ExpectToSaveAllOthers(*records, {29});
    ExpectToSaveAllOthers(*records, {20, 26});
    ExpectToSaveAllOthers(*records, {0, 40, 62, 89});
  }
  // With pages between the root and those of the rows.
  const auto many = ThreeOnAPage(3000, [](int i) { return i + 1; });
  ExpectToSaveAllOthers(many, {3, 1000, 1500, 1506, 2997});
}

std::string DefinitionOf(int64_t version, const std::string& worker = "") {
  store::v1::Definition record;
  record.set_version(version);
  auto* mesh = record.mutable_value()->mutable_mesh();
  if (!worker.empty()) mesh->add_workers(worker);
  return record.SerializeAsString();
}

TEST(StoreRepairTest, LosesOneRecordOfWhichAPartIsOnADamagedPage) {
  const std::string folder = NewFolder();
  const std::string part(20'000, 'v');
  ASSERT_NO_FATAL_FAILURE(WriteState(folder, {{1, "name/a", "1"},
                                              {2, "name/b", "1"},
                                              {3, "name/b", StrCat(part, "the middle", part)},
                                              {4, "name/c", "1"},
                                              {5, "mesh/a", DefinitionOf(1)}}));
  ASSERT_NO_FATAL_FAILURE(DamagePageOf(folder, "the middle"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_FALSE(check.pages.ok());
  EXPECT_THAT(check.lost, IsEmpty());
  EXPECT_THAT(check.former, IsEmpty());
  ASSERT_EQ(check.unreadable.size(), 1u);
  EXPECT_EQ(check.unreadable.front().key, "name/b");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/a"), IsOk());
  EXPECT_THAT(store->Get("name/b"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
      << "what it was before is not what it is";
  EXPECT_THAT(store->Get("name/c"), IsOk());
}

TEST(StoreRepairTest, SaysWhichDefinitionsMayBeFormerOnesAndGivesNoVersionTwice) {
  const std::string folder = NewFolder();
  const std::string pad = StrCat("<", std::string(3000, 'v'));
  store::v1::Definition replaced;
  ASSERT_TRUE(replaced.ParseFromString(DefinitionOf(2)));
  replaced.mutable_value()->mutable_tree()->mutable_tensors()->set_names(pad);
  // Each of the large ones fills a page: version 2 of "mesh/a" is on one with nothing else.
  ASSERT_NO_FATAL_FAILURE(WriteState(folder, {{1, "mesh/a", DefinitionOf(1)},
                                              {2, "mesh/b", DefinitionOf(1)},
                                              {3, "manifest/0123", "1"},
                                              {4, "pad/1", pad},
                                              {5, "mesh/a", replaced.SerializeAsString()},
                                              {6, "pad/2", pad},
                                              {7, "mesh/b", DefinitionOf(2)},
                                              {8, "mesh/c", DefinitionOf(4)},
                                              {9, "mesh/c", DefinitionOf(6)},
                                              {10, "mesh/c", DefinitionOf(7)}}));
  ASSERT_NO_FATAL_FAILURE(DamagePageOf(folder, "mesh/a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  ASSERT_EQ(check.lost.size(), 1u);
  ASSERT_EQ(check.former.size(), 2u);
  EXPECT_EQ(check.former[0].key, "manifest/0123");
  EXPECT_EQ(check.former[1].key, "mesh/a");
  EXPECT_EQ(check.former[1].revision, 1);
  EXPECT_EQ(check.former[1].version, 1);
  HistoryOptions history;
  history.prefixes = {"mesh/"};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto store, OpenSqliteStore({.folder = folder, .local = {.history = history}}));
  const auto versions_of = [&](const std::string& key) {
    std::vector<int64_t> versions;
    const auto kept = store->History(key);
    EXPECT_THAT(kept, IsOk());
    for (const KeptValue& each : *kept) {
      versions.push_back(DecodeDefinitionOutline(key, *each.value)->version);
    }
    return versions;
  };
  EXPECT_THAT(versions_of("mesh/a"), ElementsAre(1 + kSkippedVersions));
  EXPECT_GT(store->Get("mesh/a")->mod_revision, 10) << "whoever watches hears of it";
  EXPECT_LT(store->Get("mesh/a")->mod_revision, store->revision());
  EXPECT_THAT(versions_of("mesh/b"), ElementsAre(2, 1)) << "it came behind what is lost";
  EXPECT_THAT(versions_of("mesh/c"), ElementsAre(7, 6)) << "version 5 is missing before these";
}

// Lets the N-th read of the disk fail while a sound state is checked, for N = 1, 1 + stride, ...,
// until there are no more. Returns how often the check was refused.
int FailReads(const std::vector<Record>& records, int stride) {
  const std::string sound = NewFolder();
  WriteState(sound, records);
  int refused = 0;
  for (int read = 1;; read += stride) {
    SCOPED_TRACE(read);
    const std::string folder = NewFolder();
    std::filesystem::copy_file(sound + "/state.db", folder + "/state.db");
    const pid_t child = fork();
    if (child == 0) {
      if (!ArmFailpoints(StrCat("sqlite.read=eio:", read)).ok()) _exit(1);
      const absl::Status checked = CheckDataFolder(folder, true).status();
      if (IsArmed("sqlite.")) _exit(2);
      _exit(checked.ok() ? 3 : absl::IsInternal(checked) ? 4 : 5);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    EXPECT_THAT(code, ::testing::AllOf(::testing::Ge(2), ::testing::Le(4)));
    if (code == 4) ++refused;
    EXPECT_FALSE(std::filesystem::exists(folder + "/damaged.db-1"));
    const absl::StatusOr<StoreCheck> check = CheckDataFolder(folder, false);
    EXPECT_THAT(check, IsOk());
    EXPECT_TRUE(check->is_sound());
    EXPECT_EQ(check->records, std::ssize(records));
    std::filesystem::remove_all(folder);
    if (code == 2 || ::testing::Test::HasFailure()) return refused;
  }
}

TEST(StoreRepairTest, TakesNoFailedReadForDamage) {
  EXPECT_GT(FailReads(ThreeOnAPage(30, [](int i) { return i + 1; }), 1), 10);
  // More than SQLite keeps in memory, so that the records are read again after the pages.
  EXPECT_GT(FailReads(ThreeOnAPage(2400, [](int i) { return i + 1; }), 59), 20);
}

int64_t SchemaOf(const std::string& folder) {
  Database database(folder + "/state.db");
  EXPECT_THAT(database.Open(), IsOk());
  return SchemaVersionOf(database).value_or(-1);
}

// The state of a folder as a build with the second version of the schema wrote it, or the first.
void BringBackTo(const std::string& folder, int version) {
  std::string sql = "ALTER TABLE event DROP COLUMN key_crc;";
  if (version == 1) {
    sql +=
        "ALTER TABLE event DROP COLUMN crc; ALTER TABLE bounds DROP COLUMN crc;"
        "DROP TABLE set_aside;";
  }
  RunSql(folder + "/state.db", StrCat(sql, "PRAGMA user_version = ", version));
}

// The build that wrote it may have to go on with it.
TEST(StoreRepairTest, LeavesAnOlderSchemaToTheBuildThatWroteIt) {
  for (const int version : {1, 2}) {
    SCOPED_TRACE(version);
    const std::string folder = NewFolder();
    SnapshotOf(folder, {.puts = {Cluster(3), {"name/a", "1"}}});
    BringBackTo(folder, version);
    for (const bool set_aside : {false, true}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, set_aside));
      EXPECT_TRUE(check.is_sound());
      EXPECT_EQ(check.schema_version, version);
      EXPECT_EQ(check.records, 2);
      EXPECT_EQ(check.newest, 1);
      EXPECT_FALSE(check.lacks_cluster);
      EXPECT_EQ(SchemaOf(folder), version);
    }
    const std::string other =
        SnapshotOf(NewFolder(), {.puts = {Cluster(3, std::string(32, 'f')), {"name/b", "1"}}});
    EXPECT_THAT(RestoreSnapshot(folder, other).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
    EXPECT_EQ(SchemaOf(folder), version);
    EXPECT_FALSE(std::filesystem::exists(folder + "/restoring"));

    // A snapshot of that build is one for us.
    const std::string snapshot = NewFolder() + "/snapshot";
    std::filesystem::copy_file(folder + "/state.db", snapshot);
    const std::string third = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/c", "1"}}});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored, RestoreSnapshot(folder, third));
    EXPECT_THAT(restored.lost, ElementsAre("name/a"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored back, RestoreSnapshot(folder, snapshot));
    EXPECT_THAT(back.back, ElementsAre("name/a"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_THAT(store->Get("name/a"), IsOk());
    EXPECT_EQ(store->stats().unreadable_records, 0);
  }
}

TEST(StoreRepairTest, SetsRecordsOfAnOlderSchemaAside) {
  const std::string folder = NewFolder();
  SnapshotOf(folder, {.puts = {Cluster(3), {"name/a", "1"}, {"name/b", "1"}}});
  BringBackTo(folder, 2);
  RunSql(folder + "/state.db", "UPDATE event SET value = X'33' WHERE key = 'name/a'");
  EXPECT_EQ(CheckDataFolder(folder, false)->unreadable.size(), 1u);
  EXPECT_EQ(SchemaOf(folder), 2);
  ASSERT_THAT(CheckDataFolder(folder, true), IsOk());
  EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(store->Get("name/b"), IsOk());
}

// A start waits for it: its time is that of as many steps as there are records.
TEST(StoreRepairTest, SetsManyRecordsAsideInLittleTime) {
  const std::string folder = NewFolder();
  constexpr int kKeys = 10'000;
  std::vector<Record> records = {{1, "name/sound", "1"}};
  for (int i = 0; i < 2 * kKeys; ++i) {
    records.push_back({i + 2, StrCat("name/", i % kKeys), "1"});
  }
  ASSERT_NO_FATAL_FAILURE(WriteState(folder, records));
  RunSql(folder + "/state.db", StrCat("UPDATE event SET crc = crc + 1 WHERE position >= ",
                                      RowId({.revision = kKeys + 2})));
  const auto begin = std::chrono::steady_clock::now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(check.unreadable.size(), static_cast<size_t>(kKeys));
  {
    Database database(folder + "/state.db");
    ASSERT_THAT(database.Open(), IsOk());
    EXPECT_THAT(database.Number("SELECT COUNT(*) FROM set_aside"), IsOkAndHolds(2 * kKeys))
        << "with what the keys were before";
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues left, store->List("name/"));
  ASSERT_EQ(left.items.size(), 1u);
  EXPECT_EQ(left.items[0].key, "name/sound");
}

// A folder of the version before, with a damaged page and a record of "name/a" that cannot be read.
std::string DamagedFolderOfTheVersionBefore() {
  std::string folder = NewFolder();
  {
    const auto store = OpenFolder(folder);
    EXPECT_THAT(store, IsOk());
    for (const char* value : {"1", "2"}) {
      EXPECT_THAT(CommitAndWait(**store, {.puts = {Cluster(3), {"name/a", value}}}), IsOk());
    }
    for (int i = 0; i < 60; ++i) {
      EXPECT_THAT(CommitAndWait(**store, {.puts = {{StrCat("name/", i), std::string(1000, 'v')}}}),
                  IsOk());
    }
  }
  RunSql(folder + "/state.db",
         "UPDATE event SET crc = crc + 1 WHERE position = 513;"
         "ALTER TABLE event DROP COLUMN key_crc; PRAGMA user_version = 2");
  std::fstream file(folder + "/state.db", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(40'960);
  file << std::string(4096, '\x5a');
  return folder;
}

TEST(StoreRepairTest, SavesWhatCanBeReadOfDamagedPagesOfTheVersionBefore) {
  const std::string folder = DamagedFolderOfTheVersionBefore();
  EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck found, CheckDataFolder(folder, false));
  EXPECT_EQ(found.schema_version, 2) << "what is damaged is not brought to another version";
  EXPECT_FALSE(found.pages.ok());
  EXPECT_THAT(found.bounds, IsOk());
  EXPECT_GT(found.records, 40);
  EXPECT_FALSE(found.lacks_cluster);
  const auto is_a = [](const UnreadableRecord& record) { return record.key == "name/a"; };
  EXPECT_TRUE(std::any_of(found.unreadable.begin(), found.unreadable.end(), is_a));

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_EQ(check.records, found.records);
  EXPECT_TRUE(std::filesystem::exists(check.replaced));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck after, CheckDataFolder(folder, false));
  EXPECT_TRUE(after.is_sound());
  EXPECT_EQ(after.schema_version, kSchemaVersion);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->stats().unreadable_records, 0);
    EXPECT_THAT(store->Get("name/a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
        << "an older value does not take its place";
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues names, store->List("name/"));
    EXPECT_GT(names.items.size(), 40u);
    for (const KeyValue& item : names.items) EXPECT_EQ(item.value, std::string(1000, 'v'));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue said, store->Get(kRestoredKey));
    EXPECT_TRUE(DecodeRestored(said.key, said.value)->may_lack_names);
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{"name/new", "1"}}}), IsOk());
  }
  // Its keys have checksums of their own from then on.
  RunSql(folder + "/state.db", "UPDATE event SET key = 'name/old' WHERE key = 'name/new'");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_EQ(store->stats().unreadable_records, 1);
  EXPECT_THAT(store->Get("name/old"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST(StoreRepairTest, ASnapshotOverADamagedStateOfTheVersionBeforeGoesOnBehindIt) {
  const std::string folder = DamagedFolderOfTheVersionBefore();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(1), {"name/b", "1"}}});
  const absl::Status refused = RestoreSnapshot(folder, snapshot).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(kRestoreAgain)));
  std::ofstream(StrCat(folder, "/", kRestoreAgain)) << "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored, RestoreSnapshot(folder, snapshot));
  EXPECT_THAT(restored.unread, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(std::filesystem::exists(restored.replaced));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/b"), IsOk());
  EXPECT_GT(store->revision(), 62 + kSkippedRevisions) << "behind all that was ever told";
  const std::string record = store->Get("cluster")->value;
  EXPECT_GT(DecodeCluster("cluster", record)->term, 3 + kSkippedTerms);
}

TEST(StoreRepairTest, ChecksNoFolderWithoutADatabase) {
  const std::string folder = NewFolder();
  std::ofstream(folder + "/notes.txt") << "not a coordinator's";
  for (const bool set_aside : {false, true}) {
    EXPECT_THAT(CheckDataFolder(folder, set_aside).status(),
                StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
  }
  const std::string file = folder + "/notes.txt";
  EXPECT_THAT(CheckDataFolder(file, false).status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kStoreFailed));
  // It leaves nothing there.
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    left.push_back(entry.path());
  EXPECT_THAT(left, ElementsAre(file));
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

TEST(StoreRepairTest, RestoresNothingBesideTheStateOfTheCoordinator) {
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/coordinator");
  ASSERT_THAT(OpenFolder(folder + "/coordinator"), IsOk());
  const absl::Status refused = RestoreSnapshot(folder, snapshot).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(refused.ToString(), HasSubstr("restore with --data-dir " + folder + "/coordinator"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    left.push_back(entry.path());
  }
  EXPECT_THAT(left, ElementsAre(folder + "/coordinator"));
  EXPECT_THAT(RestoreSnapshot(folder + "/none", snapshot), IsOk());
}

TEST(StoreRepairTest, RefusesAFileThatCannotBeReadToItsEnd) {
  EXPECT_THAT(RestoreSnapshot(NewFolder(), "/proc/self/mem").status(),
              StatusIs(absl::StatusCode::kInternal, Reason::kStoreFailed));
  EXPECT_THAT(RestoreSnapshot(NewFolder(), NewFolder()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
}

// A state made of a snapshot, with what was acknowledged since: name/new.
struct LivedOn {
  std::string folder = NewFolder();
  std::string snapshot;
};

LivedOn RestoreAndGoOn() {
  LivedOn lived{.snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}})};
  EXPECT_THAT(RestoreSnapshot(lived.folder, lived.snapshot), IsOk());
  const auto store = OpenFolder(lived.folder);
  EXPECT_THAT(store, IsOk());
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(CommitAndWait(**store, {.puts = {{StrCat("pad/", i), std::string(1000, 'v')}}}),
                IsOk());
  }
  EXPECT_THAT(CommitAndWait(**store, {.puts = {{"name/new", "1"}}}), IsOk());
  return lived;
}

// Refuses, leaves the state alone and says what to do; and restores once it is asked to.
void ExpectToRefuse(const LivedOn& lived) {
  const absl::Status refused = RestoreSnapshot(lived.folder, lived.snapshot).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(kRestoreAgain)));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("without --restore"));
  EXPECT_FALSE(std::filesystem::exists(lived.folder + "/replaced.db-1"));
  std::ofstream(StrCat(lived.folder, "/", kRestoreAgain)) << "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored again,
                                 RestoreSnapshot(lived.folder, lived.snapshot));
  EXPECT_FALSE(again.was_done_before);
}

// The flag may stay: an error at some later start must not undo all since the restore.
TEST(StoreRepairTest, DoesNotRestoreOverAStateThatCannotTellOfWhichSnapshotItIs) {
  {
    const LivedOn lived = RestoreAndGoOn();
    RunSql(lived.folder + "/state.db", "UPDATE event SET value = X'33' WHERE key = 'restored'");
    ExpectToRefuse(lived);
  }
  {
    const LivedOn lived = RestoreAndGoOn();
    RunSql(lived.folder + "/state.db", "UPDATE event SET key = 'rastored' WHERE key = 'restored'");
    ExpectToRefuse(lived);
  }
  {
    const LivedOn lived = RestoreAndGoOn();
    RunSql(lived.folder + "/state.db", "UPDATE event SET crc = 1 WHERE key = 'restored'");
    ASSERT_THAT(CheckDataFolder(lived.folder, true), IsOk());
    ExpectToRefuse(lived);
  }
  {
    const LivedOn lived = RestoreAndGoOn();
    std::filesystem::remove(lived.folder + "/state.db");
    std::filesystem::create_directory(lived.folder + "/state.db");
    EXPECT_THAT(RestoreSnapshot(lived.folder, lived.snapshot).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed))
        << "it cannot be opened";
  }
}

TEST(StoreRepairTest, WhatIsUnreadableBesideItDoesNotKeepAStateFromTelling) {
  const LivedOn lived = RestoreAndGoOn();
  RunSql(lived.folder + "/state.db", "UPDATE event SET value = X'33' WHERE key = 'name/new'");
  EXPECT_TRUE(RestoreSnapshot(lived.folder, lived.snapshot)->was_done_before);
  ASSERT_THAT(CheckDataFolder(lived.folder, true), IsOk());
  EXPECT_TRUE(RestoreSnapshot(lived.folder, lived.snapshot)->was_done_before);
}

// An upgrade with the flag in place is no reason to restore either.
TEST(StoreRepairTest, HonoursTheFileInWhichOlderBuildsNotedTheSnapshot) {
  const LivedOn lived = RestoreAndGoOn();
  std::string digest;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(lived.folder));
    const std::string record = store->Get(kRestoredKey)->value;
    digest = DecodeRestored(kRestoredKey, record)->digest;
  }
  RunSql(lived.folder + "/state.db", "DELETE FROM event WHERE key = 'restored'");
  std::ofstream(lived.folder + "/restored") << digest << "\n";
  EXPECT_TRUE(RestoreSnapshot(lived.folder, lived.snapshot)->was_done_before);
  std::ofstream(lived.folder + "/restored", std::ios::trunc) << "";
  ExpectToRefuse(lived);
}

int64_t TermOf(const std::string& folder) {
  const auto store = OpenFolder(folder);
  EXPECT_THAT(store, IsOk());
  const std::string record = (*store)->Get("cluster")->value;
  return DecodeCluster("cluster", record)->term;
}

TEST(StoreRepairTest, SaysThatAFileIsNoSnapshotAndChangesNothing) {
  const std::string folder = NewFolder();
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder)); }
  const std::string before = test::ReadFile(folder + "/state.db");
  const std::string text = folder + "/notes.txt";
  std::ofstream(text) << "A text that is longer than the head of a database.";
  std::ofstream(folder + "/empty");
  std::ofstream(folder + "/cut.db") << std::string("SQLite format 3\0", 16) + std::string(84, 'x');
  for (const auto& [file, why] : std::vector<std::pair<std::string, std::string>>{
           {text, " is no snapshot: it does not begin as an SQLite database"},
           {folder + "/empty", " is no snapshot: it is empty"},
           {folder, " is no snapshot: it is a folder"},
           {"/dev/null", " is no snapshot: it is no regular file"},
           {folder + "/none", " to restore"},
           {folder + "/cut.db", ": it is damaged, or no snapshot"}}) {
    const absl::Status refused = RestoreSnapshot(folder, file).status();
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr(file + why), HasSubstr("nothing was changed"),
                                          testing::Not(HasSubstr("admin check"))));
    EXPECT_EQ(test::ReadFile(folder + "/state.db"), before) << file;
  }
  EXPECT_THAT(CheckDataFolder(text, false).status().ToString(), HasSubstr(text + " is no folder"));
}

// One that cannot be read now may be of another cluster, and of a higher term.
TEST(StoreRepairTest, RestoresOverNoStateThatTheDiskDoesNotGive) {
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  const std::string before = SnapshotOf(NewFolder(), {.puts = {Cluster(9), {"name/b", "1"}}});
  int refused = 0;
  for (int read = 1;; ++read) {
    SCOPED_TRACE(read);
    const std::string folder = NewFolder();
    std::filesystem::copy_file(before, folder + "/state.db");
    const pid_t child = fork();
    if (child == 0) {
      if (!ArmFailpoints(StrCat("sqlite.read=eio:", read)).ok()) _exit(1);
      const bool is_restored = RestoreSnapshot(folder, snapshot).ok();
      _exit(IsArmed("sqlite.") ? 2 : is_restored ? 3 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ASSERT_THAT(code, ::testing::AllOf(::testing::Ge(2), ::testing::Le(4)));
    EXPECT_FALSE(std::filesystem::exists(folder + "/restoring"));
    EXPECT_EQ(std::filesystem::exists(folder + "/replaced.db-1"), code != 4);
    EXPECT_EQ(TermOf(folder), code == 4 ? 9 : 9 + kSkippedTerms);
    if (code == 2) break;
    if (code == 4) ++refused;
  }
  EXPECT_GT(refused, 5);
}

// Else workers would know a higher term than the second restore's, and refuse its coordinator.
TEST(StoreRepairTest, ASnapshotOverAStateThatCannotBeReadGoesOnBehindIt) {
  const std::string folder = NewFolder();
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  int64_t term = 0;
  Revision revision = 0;
  for (int i = 0; i < 3; ++i) {
    std::ofstream(StrCat(folder, "/", kRestoreAgain)) << "";
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored, RestoreSnapshot(folder, snapshot));
    EXPECT_EQ(restored.unread.ok(), i == 0);
    EXPECT_GT(TermOf(folder), term + 1000) << i;
    term = TermOf(folder);
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
      EXPECT_GT(store->revision(), revision);
      revision = store->revision();
    }
    std::ofstream(folder + "/state.db", std::ios::trunc) << std::string(8192, 'x');
    std::filesystem::remove(folder + "/state.db-wal");
  }
}

// Commits to the store of a folder one by one, as a process that is killed behind them: the log has
// them, and the database has not.
void CommitAllAndDie(const std::string& folder, const std::vector<Transaction>& transactions) {
  const pid_t child = fork();
  if (child == 0) {
    const auto store = OpenFolder(folder);
    if (!store.ok()) _exit(1);
    for (const Transaction& transaction : transactions) {
      if (!CommitAndWait(**store, transaction).ok()) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// A folder whose coordinator was killed: "name/0" to "name/39" are in the log.
std::string KilledFolder() {
  const std::string folder = NewFolder();
  SnapshotOf(folder, {.puts = {Cluster(3), {"name/before", "1"}}});
  std::vector<Transaction> transactions = {{.puts = {Cluster(4)}}};
  for (int i = 0; i < 40; ++i) {
    transactions.push_back({.puts = {{StrCat("name/", i), std::string(1000, 'v')}}});
  }
  CommitAllAndDie(folder, transactions);
  return folder;
}

// The names and bytes of all files in a folder.
std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = test::ReadFile(entry.path());
  }
  return files;
}

void FlipBit(const std::string& file, size_t at) {
  std::string bytes = test::ReadFile(file);
  ASSERT_LT(at, bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void Overwrite(const std::string& file, size_t at, const std::string& with) {
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(at));
  out << with;
}

TEST(StoreRepairTest, AWrongBitInTheLogIsRefusedAndSettingAsideLosesNothing) {
  for (const size_t at : {5u, 40u, 156u, 20'000u}) {
    SCOPED_TRACE(at);
    const std::string folder = KilledFolder();
    ASSERT_NO_FATAL_FAILURE(FlipBit(folder + "/state.db-wal", at));
    const auto before = FilesOf(folder);
    const absl::Status refused = OpenFolder(folder).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(folder + "/state.db-wal is damaged"), HasSubstr("commits")));
    EXPECT_EQ(FactOf(refused, fact::kFile), folder + "/state.db-wal");
    for (const char* file : {"state.db", "state.db-wal"}) {
      EXPECT_EQ(test::ReadFile(StrCat(folder, "/", file)), before.at(file)) << file;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_THAT(check.log, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(check.pages, IsOk());
    EXPECT_EQ(check.records, 43) << "with the cluster of term 3";
    EXPECT_EQ(test::ReadFile(check.replaced), before.at("state.db")) << "it is kept";
    EXPECT_EQ(test::ReadFile(check.replaced + "-wal"), before.at("state.db-wal"));
    EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
    EXPECT_EQ(TermOf(folder), 4);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(store->List("name/")->items.size(), 41u);
    EXPECT_EQ(store->revision(), 42) << "nothing is uncertain";
  }
}

TEST(StoreRepairTest, AFrameThatIsOverwrittenLosesNoCommitBehindIt) {
  const std::string folder = KilledFolder();
  // The page of it is in a later frame again, or its records cannot be read; nobody knows which.
  Overwrite(folder + "/state.db-wal", 5 * 4120 + 1000, std::string(700, '\x5a'));
  EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_GT(check.records, 35);
  EXPECT_GT(TermOf(folder), 4 + 1000) << "the begin of a newer one may be lost";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
  EXPECT_THAT(store->Get("name/39"), IsOk());
  EXPECT_GT(store->revision(), kSkippedRevisions);
}

TEST(StoreRepairTest, RestoresNoSnapshotWhoseLogIsDamagedAndReplacesNoSuchStateUnasked) {
  const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
  const std::string damaged = KilledFolder();
  ASSERT_NO_FATAL_FAILURE(FlipBit(damaged + "/state.db-wal", 156));
  const std::string folder = NewFolder();
  EXPECT_THAT(RestoreSnapshot(folder, damaged + "/state.db").status(),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  const auto before = FilesOf(damaged);
  EXPECT_THAT(RestoreSnapshot(damaged, snapshot).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_EQ(test::ReadFile(damaged + "/state.db-wal"), before.at("state.db-wal"));
  std::ofstream(StrCat(damaged, "/", kRestoreAgain)) << "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Restored restored, RestoreSnapshot(damaged, snapshot));
  EXPECT_EQ(test::ReadFile(restored.replaced + "-wal"), before.at("state.db-wal"));
  EXPECT_GT(TermOf(damaged), 4 + 1000);
}

// What a check looks at is perhaps all that is left.
TEST(StoreRepairTest, ACheckChangesNothing) {
  const auto cut = [](const std::string& file, size_t bytes) {
    std::filesystem::resize_file(file, bytes);
  };
  struct Case {
    const char* name;
    std::function<void(const std::string& database)> damage;
  };
  const Case cases[] = {
      {"sound", [](const auto&) {}},
      {"no lock",
       [](const auto& d) { std::filesystem::remove(d.substr(0, d.rfind('/')) + "/LOCK"); }},
      {"a wrong bit", [](const auto& d) { FlipBit(d + "-wal", 156); }},
      {"no header", [](const auto& d) { Overwrite(d + "-wal", 0, std::string(32, '\0')); }},
      {"a lost frame", [](const auto& d) { Overwrite(d + "-wal", 20'000, std::string(700, 'x')); }},
      {"a torn log", [&](const auto& d) { cut(d + "-wal", 30'000); }},
      {"an empty log", [&](const auto& d) { cut(d + "-wal", 0); }},
      {"no log", [](const auto& d) { std::filesystem::remove(d + "-wal"); }},
      {"no database", [](const auto& d) { std::filesystem::remove(d); }},
      {"an empty database", [&](const auto& d) { cut(d, 0); }},
      {"half a database", [&](const auto& d) { cut(d, 8192); }},
      {"a first page", [](const auto& d) { Overwrite(d, 0, std::string(4096, 'x')); }},
      {"another page", [](const auto& d) { Overwrite(d, 4096, std::string(4096, 'x')); }},
      {"a journal",
       [](const auto& d) {
         Overwrite(d, 4096, "");
         std::ofstream(d + "-journal") << std::string(600, 'x');
       }},
      {"a replacement",
       [](const auto& d) {
         std::filesystem::copy_file(d, d.substr(0, d.rfind('/')) + "/damaged.db-1.next");
       }},
  };
  for (const bool is_killed : {false, true}) {
    const std::string made = is_killed ? KilledFolder() : NewFolder();
    if (!is_killed) SnapshotOf(made, {.puts = {Cluster(3), {"name/a", std::string(20'000, 'v')}}});
    for (const Case& each : cases) {
      SCOPED_TRACE(StrCat(each.name, is_killed ? " after a kill" : ""));
      if (!is_killed && std::string(each.name).find("log") != std::string::npos) continue;
      const std::string folder = NewFolder();
      std::filesystem::copy(made, folder, std::filesystem::copy_options::recursive);
      if (std::filesystem::file_size(folder + "/state.db-wal") > 0 ||
          std::string(each.name).find("bit") == std::string::npos) {
        each.damage(folder + "/state.db");
      }
      const auto before = FilesOf(folder);
      CheckDataFolder(folder, false).status().IgnoreError();
      const auto after = FilesOf(folder);
      EXPECT_EQ(before.size(), after.size());
      for (const auto& [name, bytes] : before) {
        ASSERT_EQ(after.count(name), 1u) << name;
        EXPECT_TRUE(after.at(name) == bytes) << name;
      }
    }
  }
}

// Workers would refuse the new cluster, and what is put back later would not fit it.
TEST(StoreRepairTest, AStateThatIsGoneIsNotTakenForANewOne) {
  namespace fs = std::filesystem;
  const std::pair<const char*, std::function<void(const std::string&)>> cases[] = {
      {"no database", [](const std::string& d) { fs::remove(d); }},
      {"neither", [](const std::string& d) { fs::remove(d), fs::remove(d + "-wal"); }},
      {"empty", [](const std::string& d) { fs::resize_file(d, 0); }},
      {"both empty",
       [](const std::string& d) { fs::resize_file(d, 0), fs::resize_file(d + "-wal", 0); }},
      {"no reserve",
       [](const std::string& d) {
         fs::resize_file(d, 0), fs::remove(d.substr(0, d.rfind('/')) + "/reserve");
       }},
      {"no tables",
       [](const std::string& d) {
         fs::remove(d), fs::remove(d + "-wal");
         RunSql(d, "PRAGMA journal_mode = WAL");
       }},
  };
  for (const auto& [name, lose] : cases) {
    SCOPED_TRACE(name);
    const std::string folder = KilledFolder();
    lose(folder + "/state.db");
    const auto before = FilesOf(folder);
    const absl::Status refused = OpenFolder(folder).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("is lost"), HasSubstr("restore a snapshot")));
    for (const bool set_aside : {false, true}) {
      EXPECT_THAT(CheckDataFolder(folder, set_aside).status(),
                  StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    }
    if (before.count("state.db-wal") > 0) {
      EXPECT_EQ(test::ReadFile(folder + "/state.db-wal"), before.at("state.db-wal"));
    }
    const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
    ASSERT_THAT(RestoreSnapshot(folder, snapshot), IsOk()) << "what it says helps";
    EXPECT_GT(TermOf(folder), 4 + 1000);
  }
}

TEST(StoreRepairTest, TheDatabaseOfANewFolderKnowsItsClusterWithoutItsLog) {
  const std::string folder = NewFolder();
  ASSERT_NO_FATAL_FAILURE(
      CommitAllAndDie(folder, {{.puts = {Cluster(1)}}, {.puts = {{"name/a", "1"}}}}));
  std::filesystem::remove(folder + "/state.db-wal");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
  EXPECT_FALSE(check.lacks_cluster);
  EXPECT_EQ(TermOf(folder), 1 + kSkippedTerms);
}

// Else the commits that it alone has are gone without a word.
TEST(StoreRepairTest, ALogThatIsLostIsMissed) {
  namespace fs = std::filesystem;
  const std::pair<const char*, std::function<void(const std::string&)>> cases[] = {
      {"is missing", [](const std::string& log) { fs::remove(log); }},
      {"has only 0 bytes", [](const std::string& log) { fs::resize_file(log, 0); }},
      {"has only 32 bytes", [](const std::string& log) { fs::resize_file(log, 32); }},
  };
  for (const auto& [what, lose] : cases) {
    SCOPED_TRACE(what);
    const std::string folder = KilledFolder();
    lose(folder + "/state.db-wal");
    const auto before = FilesOf(folder);
    const absl::Status refused = OpenFolder(folder).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr(StrCat(folder, "/state.db-wal ", what)),
                                          HasSubstr("--set-aside"), HasSubstr("--restore")));
    EXPECT_EQ(test::ReadFile(folder + "/state.db"), before.at("state.db"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck look, CheckDataFolder(folder, false));
    EXPECT_FALSE(look.is_sound());
    EXPECT_THAT(std::string(look.log.message()), HasSubstr(what));

    // What the message says helps: a restore, also of this very file, and setting aside.
    const std::string elsewhere = NewFolder();
    ASSERT_THAT(RestoreSnapshot(elsewhere, folder + "/state.db"), IsOk());
    EXPECT_GT(TermOf(elsewhere), 4 + 1000);
    const std::string copy = NewFolder();
    fs::copy(folder, copy, fs::copy_options::recursive);
    const std::string snapshot = SnapshotOf(NewFolder(), {.puts = {Cluster(3), {"name/a", "1"}}});
    ASSERT_THAT(RestoreSnapshot(copy, snapshot), IsOk());
    EXPECT_GE(TermOf(copy), 4 + 2 * kSkippedTerms) << "nobody knows what the last one was";
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_EQ(test::ReadFile(check.replaced), before.at("state.db")) << "it is kept";
    EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
    EXPECT_GT(TermOf(folder), 4 + 1000) << "the begin of a newer one may be lost";
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_THAT(store->Get("name/before"), IsOk());
    EXPECT_GT(store->revision(), kSkippedRevisions);
  }
}

TEST(StoreRepairTest, AStateThatIsWholeWithoutALogIsTakenWithoutOne) {
  const auto expect_to_open = [](const std::string& database) {
    const std::string folder = NewFolder();
    std::filesystem::copy_file(database, folder + "/state.db");
    EXPECT_TRUE(CheckDataFolder(folder, false)->is_sound());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_THAT(store->Get("name/a"), IsOk());
  };
  const std::string folder = NewFolder();
  const std::string snapshot = NewFolder() + "/snapshot";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    ASSERT_THAT(CommitAndWait(*store, {.puts = {Cluster(3), {"name/a", "1"}}}), IsOk());
    absl::Notification made;
    store->Backup(snapshot, [&](const absl::StatusOr<Revision>& revision) {
      EXPECT_THAT(revision, IsOk());
      made.Notify();
    });
    made.WaitForNotification();
  }
  {
    SCOPED_TRACE("a snapshot of a coordinator that runs");
    expect_to_open(snapshot);
  }
  {
    SCOPED_TRACE("after a clean end");
    expect_to_open(folder + "/state.db");
  }
  {
    SCOPED_TRACE("after a start without a commit");
    ASSERT_THAT(OpenFolder(folder), IsOk());
    expect_to_open(folder + "/state.db");
  }
  {
    SCOPED_TRACE("restored");
    const std::string source = NewFolder();
    ASSERT_NO_FATAL_FAILURE(CommitAndDie(source, {.puts = {Cluster(3), {"name/a", "1"}}}));
    ASSERT_THAT(RestoreSnapshot(folder, source + "/state.db"), IsOk());
    expect_to_open(folder + "/state.db");
  }
  {
    SCOPED_TRACE("records set aside after a kill");
    SnapshotOf(folder, {.puts = {{"name/b", "1"}}});
    RunSql(folder + "/state.db", "UPDATE event SET value = X'33' WHERE key = 'name/b'");
    ASSERT_NO_FATAL_FAILURE(CommitAndDie(folder, {.puts = {{"name/c", "1"}}}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_EQ(check.unreadable.size(), 1u);
    EXPECT_EQ(check.replaced, "") << "the same database";
    expect_to_open(folder + "/state.db");
  }
}

TEST(StoreRepairTest, NoMomentAtWhichACoordinatorEndsLeavesAStateThatMissesItsLog) {
  for (const char* const step :
       {"sqlite.open", "sqlite.write", "sqlite.sync", "sqlite.truncate", "sqlite.delete"}) {
    for (int pass = 1;; ++pass) {
      SCOPED_TRACE(StrCat(step, " ", pass));
      ASSERT_LT(pass, 200);
      const std::string folder = NewFolder();
      const bool is_ended = EndsAt(StrCat(step, "=crash:", pass), [&]() -> absl::Status {
        for (int start = 1; start <= 2; ++start) {
          SHARDMESH_ASSIGN_OR_RETURN(const auto store, OpenFolder(folder));
          SHARDMESH_RETURN_IF_ERROR(CommitAndWait(*store, {.puts = {Cluster(start)}}).status());
          SHARDMESH_RETURN_IF_ERROR(CommitAndWait(*store, {.puts = {{"name/a", "1"}}}).status());
        }
        return CheckDataFolder(folder, true).status();
      });
      EXPECT_THAT(OpenFolder(folder), IsOk());
      if (!is_ended) break;
    }
  }
}

TEST(StoreRepairTest, AFirstStartThatWasInterruptedIsStartedAgain) {
  // As SQLite leaves the database before the tables are committed, and before there is a byte.
  for (const bool has_page : {false, true}) {
    const std::string folder = NewFolder();
    std::ofstream(folder + "/LOCK") << "1 on host a";
    std::ofstream(folder + "/state.db") << "";
    if (has_page) RunSql(folder + "/state.db", "PRAGMA journal_mode = WAL");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, false));
    EXPECT_TRUE(check.is_empty());
    EXPECT_FALSE(check.is_sound());
    EXPECT_THAT(OpenFolder(folder), IsOk());
  }
}

TEST(StoreRepairTest, SavesWhatIsThereOfADatabaseThatWasCutOffOrHasNoFirstPage) {
  const auto records = ThreeOnAPage(90, [](int i) { return i + 1; });
  const std::string made = NewFolder();
  ASSERT_NO_FATAL_FAILURE(WriteState(made, records));
  const auto bytes = test::ReadFile(made + "/state.db").size();
  const std::pair<const char*, std::function<void(const std::string&)>> cases[] = {
      {"half", [&](const std::string& d) { std::filesystem::resize_file(d, bytes / 2); }},
      {"first", [](const std::string& d) { Overwrite(d, 0, std::string(4096, 'x')); }},
      {"header", [](const std::string& d) { Overwrite(d, 0, std::string(100, '\0')); }},
      {"schema", [](const std::string& d) { Overwrite(d, 100, std::string(8, 'x')); }},
  };
  for (const auto& [name, damage] : cases) {
    SCOPED_TRACE(name);
    const std::string folder = NewFolder();
    std::filesystem::copy_file(made + "/state.db", folder + "/state.db");
    damage(folder + "/state.db");
    const bool is_half = std::string(name) == "half";
    EXPECT_THAT(OpenFolder(folder), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck found, CheckDataFolder(folder, false));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder, true));
    EXPECT_THAT(check.pages, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_EQ(found.records, check.records);
    if (is_half) {
      EXPECT_GE(check.records, 35);
      EXPECT_LT(check.records, 90);
    } else {
      EXPECT_EQ(check.records, 90) << "the first page has none of them";
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder));
    EXPECT_EQ(std::ssize(store->List("name/")->items), check.records);
  }
}

TEST(StoreRepairTest, SaysThatAStateIsTooDamagedToBeSalvaged) {
  const std::string folder = NewFolder();
  SnapshotOf(folder, {.puts = {Cluster(3), {"name/a", "1"}}});
  Overwrite(folder + "/state.db", 0, std::string(12'288, 'x'));
  for (const bool set_aside : {false, true}) {
    const absl::Status refused = CheckDataFolder(folder, set_aside).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("too damaged"), HasSubstr("restore a snapshot"),
                                          ::testing::Not(HasSubstr("admin check"))));
  }
}

// A registry over the store of a folder.
class RepairedCatalogueTest : public ::testing::Test {
 protected:
  RepairedCatalogueTest() {
    Open();
    EXPECT_THAT(CommitAndWait(*store_, {.puts = {{"mesh/m", DefinitionOf(1, "w")}}}), IsOk());
  }

  void Open() {
    store_ = *OpenFolder(folder_);
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [this](const auto&, const auto& ids) {
      released_.insert(released_.end(), ids.begin(), ids.end());
    });
    registry_->SetVerdictListener(
        [this](const std::string&, const InventoryVerdict& v) { told_.push_back(v); });
  }
  void Close() {
    registry_.reset();
    store_.reset();
  }
  // What a person does whose coordinator says that records are unreadable.
  void Damage(const std::string& where) {
    Close();
    RunSql(folder_ + "/state.db", "UPDATE event SET crc = crc + 1 WHERE " + where);
  }
  void SetAside() { ASSERT_THAT(CheckDataFolder(folder_, true), IsOk()); }
  // The workers that the mesh is assigned.
  std::vector<std::string> RanksOf(const std::string& mesh_id) {
    store::v1::MeshAssignment ranks;
    const auto stored = store_->Get(StrCat("ranks/", mesh_id));
    EXPECT_THAT(stored, IsOk());
    EXPECT_TRUE(stored.ok() && ranks.ParseFromString(stored->value));
    return {ranks.workers().begin(), ranks.workers().end()};
  }

  static ArrayDescriptor Descriptor(const std::string& id) {
    ArrayDescriptor descriptor;
    descriptor.array_id = id;
    descriptor.dtype = Dtype::kBF16;
    descriptor.shape = {8};
    descriptor.spec = PartitionSpec({SpecEntry::Axis("dp")});
    descriptor.mesh_id = "m";
    descriptor.mesh_revision = 1;
    descriptor.mesh = *Mesh::Parse("dp=1");
    return descriptor;
  }
  absl::Status TryMove(std::vector<NameMove> moves, std::vector<ArrayCommit> arrays = {}) {
    absl::Notification done;
    absl::Status status;
    registry_->Commit({std::move(arrays), std::move(moves), "", ""},
                      [&](const absl::StatusOr<CommitResult>& committed) {
                        status = committed.status();
                        done.Notify();
                      });
    done.WaitForNotification();
    return status;
  }
  void Move(std::vector<ArrayCommit> arrays, std::vector<NameMove> moves) {
    EXPECT_THAT(TryMove(std::move(moves), std::move(arrays)), IsOk());
  }
  std::string Put(const std::vector<std::string>& names) {
    std::string id = RandomId();
    EXPECT_THAT(registry_->Stage({.descriptor = Descriptor(id)}), IsOk());
    std::vector<NameMove> moves;
    for (const std::string& name : names) moves.push_back({name, id, std::nullopt});
    Move({{.array_id = id, .durability = Durability::kDisk, .tile_crc32c = {7}}}, std::move(moves));
    return id;
  }
  // The one worker comes with the array's tile.
  InventoryVerdict Attach(const std::string& id) {
    Inventory inventory{.identity = "w", .attachment = ++attachments_, .meshes = {}, .tiles = {}};
    inventory.meshes["m"] = {.mesh = &mesh_, .rank = 0, .identities = identities_};
    inventory.tiles.push_back({.array_id = id,
                               .tile = Descriptor(id).Tiling()->TileOf(0),
                               .crc32c = 7,
                               .on_disk = true,
                               .descriptor = Descriptor(id)});
    return registry_->TakeInventory(inventory);
  }
  void EndGrace() {
    clock_.Advance(ArrayRegistry::kAdoptionGrace);
    ASSERT_THAT(CommitAndWait(*store_, {}), IsOk());
  }

  const std::string folder_ = NewFolder();
  const Mesh mesh_ = *Mesh::Parse("dp=1");
  const std::vector<std::string> identities_ = {"w"};
  uint64_t attachments_ = 0;
  std::vector<std::string> released_;
  std::vector<InventoryVerdict> told_;
  test::FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ArrayRegistry> registry_;
};

TEST_F(RepairedCatalogueTest, TilesOfANameThatWasSetAsideAreNotDeleted) {
  const std::string id = Put({"w"});
  Damage("key = 'name/w'");
  SetAside();
  Open();
  EXPECT_THAT(Attach(id).commit, ElementsAre(id));
  EndGrace();
  EXPECT_THAT(released_, IsEmpty());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(told_[0].drop, IsEmpty());
  ASSERT_EQ(told_[0].quarantine.size(), 1u);
  EXPECT_EQ(told_[0].quarantine[0].array_id, id);
  Close();
  Open();
  EXPECT_THAT(Attach(id).drop, IsEmpty()) << "nor by a later start";
}

TEST_F(RepairedCatalogueTest, TilesAreNotDeletedWithTheLastNameThatCanBeRead) {
  const std::string id = Put({"latest", "step-100"});
  Damage("key = 'name/step-100'");
  Open();
  EXPECT_THAT(Attach(id).commit, ElementsAre(id));
  Put({"latest"});
  EXPECT_THAT(released_, IsEmpty());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].quarantine.size(), 1u);
  // What came since is released as ever.
  const std::string other = Put({"other"});
  Move({}, {{"other", "", std::nullopt}});
  ASSERT_THAT(CommitAndWait(*store_, {}), IsOk());
  EXPECT_THAT(released_, ElementsAre(other));
}

TEST_F(RepairedCatalogueTest, WhatAManifestHadOfANameDoesNotPassForWhatWasSetAside) {
  std::vector<std::string> names;
  for (int i = 0; i < 150; ++i) names.push_back(StrCat("n", i));
  const std::string checkpoint = Put(names);
  ASSERT_EQ(store_->List("manifest/")->items.size(), 2u);
  Put({"n0"});
  Damage("key = 'name/n0'");
  SetAside();
  Open();
  EXPECT_THAT(registry_->FindName("n0"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(registry_->FindName("n1")->array_id, checkpoint);
}

TEST_F(RepairedCatalogueTest, NorDoesItWhileTheRecordIsNotSetAside) {
  std::vector<std::string> names;
  for (int i = 0; i < 150; ++i) names.push_back(StrCat("n", i));
  const std::string checkpoint = Put(names);
  const std::string newer = Put({"n0"});
  Damage("key = 'name/n0'");
  Open();
  const absl::Status refused = registry_->FindName("n0").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("\"name/n0\""), HasSubstr("shardmesh admin check")));
  EXPECT_EQ(registry_->FindName("n1")->array_id, checkpoint);
  // Who expects something of it, or takes it away, is told; who says what it is from now on is not.
  EXPECT_THAT(TryMove({{"n0", checkpoint, 0}}),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_THAT(TryMove({{"n0", "", std::nullopt}}),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_THAT(TryMove({{"n0", checkpoint, std::nullopt}}), IsOk());
  EXPECT_EQ(registry_->FindName("n0")->array_id, checkpoint);
  Close();
  Open();
  EXPECT_EQ(registry_->FindName("n0")->array_id, checkpoint);
  // Deleted from then on is deleted, and not unreadable again.
  ASSERT_THAT(TryMove({{"n0", "", std::nullopt}}), IsOk());
  EXPECT_THAT(registry_->FindName("n0"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  Close();
  Open();
  EXPECT_THAT(registry_->FindName("n0"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(registry_->FindArray(newer), IsOk()) << "it may have been the name's";
}

TEST_F(RepairedCatalogueTest, ANameWhoseArrayIsUnreadableIsNotSaidToBeUnknown) {
  const std::string id = Put({"w"});
  Damage("key LIKE 'array/%'");
  Open();
  const absl::Status refused = registry_->FindName("w").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(StrCat("\"array/", id, "\"")));
  EXPECT_THAT(TryMove({{"w", "", std::nullopt}}), StatusIs(absl::StatusCode::kDataLoss));
  const std::string other = Put({"w"});
  EXPECT_EQ(registry_->FindName("w")->array_id, other);
  EXPECT_THAT(registry_->FindName("nobody"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(RepairedCatalogueTest, AnArrayThatWasSetAsideLeavesACleanState) {
  const std::string id = Put({"w"});
  Damage("key LIKE 'array/%'");
  SetAside();
  Open();
  EXPECT_THAT(registry_->FindName("w"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(CommitAndWait(*store_, {}), IsOk());
  EXPECT_THAT(store_->List("name/")->items, IsEmpty()) << "the next start knows nothing of it";
  EXPECT_THAT(Attach(id).drop, IsEmpty());
  EndGrace();
  EXPECT_THAT(released_, IsEmpty());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].quarantine.size(), 1u) << "its tiles stay";
  Close();
  Open();
  EXPECT_THAT(Attach(id).drop, IsEmpty()) << "by a later start too";
  // What came since is an array like any other, also after a start: nothing is damaged.
  const std::string other = Put({"other"});
  Close();
  Open();
  Move({}, {{"other", "", std::nullopt}});
  ASSERT_THAT(CommitAndWait(*store_, {}), IsOk());
  EXPECT_THAT(released_, ElementsAre(other));
}

TEST_F(RepairedCatalogueTest, AManifestOfWhichAllChunksAreThereIsMended) {
  std::vector<std::string> names;
  for (int i = 0; i < 150; ++i) names.push_back(StrCat("n", i));
  const std::string checkpoint = Put(names);
  Damage("key LIKE 'manifest/%' AND key NOT LIKE 'manifest/%/%'");
  SetAside();
  Open();
  EXPECT_EQ(registry_->CountNames(), 150);
  EXPECT_EQ(registry_->FindName("n149")->array_id, checkpoint);
}

// Else other workers may get them, with which the tiles of the arrays do not count.
TEST_F(RepairedCatalogueTest, SetsNothingAsideWhereTheRanksOfAMeshWithArraysAreLost) {
  Put({"w"});
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"mesh/m", DefinitionOf(2)}}}), IsOk());
  Damage("key = 'nothing'");
  RunSql(folder_ + "/state.db", "DELETE FROM bounds");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck check, CheckDataFolder(folder_, false));
  ASSERT_EQ(check.lost_ranks.size(), 1u);
  EXPECT_EQ(check.lost_ranks.front().mesh_id, "m");
  EXPECT_EQ(check.lost_ranks.front().arrays, 1);
  const absl::Status refused = CheckDataFolder(folder_, true).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMissingArgument));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--ranks=m=WORKER"));
  for (const GivenRanks& wrong : {GivenRanks{{"m", {"w", "x"}}}, GivenRanks{{"m", {"a b\n"}}},
                                  GivenRanks{{"m", {"w"}}, {"n", {"w"}}}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckDataFolder(folder_, true, "", wrong).status()));
  }
  EXPECT_FALSE(CheckDataFolder(folder_, false)->bounds.ok()) << "nothing was changed";
  EXPECT_THAT(CheckDataFolder(folder_, true, "", {{"m", {"w"}}})->lost_ranks, IsEmpty());
  Open();
  const auto outline = DecodeDefinitionOutline("mesh/m", store_->Get("mesh/m")->value);
  EXPECT_FALSE(outline->has_ranks) << "no user named them";
  EXPECT_EQ(outline->version, 2 + kSkippedVersions) << "it had no axes";
  EXPECT_THAT(RanksOf("m"), ElementsAre("w"));
}

TEST_F(RepairedCatalogueTest, GivenRanksCanBeMovedLikeOthers) {
  Put({"w"});
  store::v1::Definition mesh;
  mesh.set_version(2);
  v1::MeshAxis* const axis = mesh.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(1);
  ASSERT_THAT(
      CommitAndWait(*store_, {.puts = {{"mesh/m", mesh.SerializeAsString()}, {"ranks/m", "lost"}}}),
      IsOk());
  Damage("key = 'ranks/m'");
  ASSERT_THAT(CheckDataFolder(folder_, true, "", {{"m", {"a"}}}), IsOk());
  Open();
  EXPECT_EQ(DecodeDefinitionOutline("mesh/m", store_->Get("mesh/m")->value)->version, 2)
      << "the definition is as it was";
  EXPECT_THAT(RanksOf("m"), ElementsAre("a"));
  const auto definitions = *DefinitionStore::Open(store_.get(), &clock_, &registry_->requests());
  EXPECT_THAT(DefinitionStore::CheckReassign(*definitions->shared_state(), "m", "a", "b"), IsOk());
}

TEST_F(RepairedCatalogueTest, AMeshThatIsLostIsMadeOfItsArraysAndTheGivenRanks) {
  Put({"w"});
  Damage("key = 'mesh/m'");
  EXPECT_EQ(CheckDataFolder(folder_, false)->lost_ranks.size(), 1u);
  EXPECT_THAT(CheckDataFolder(folder_, true).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMissingArgument));
  ASSERT_THAT(CheckDataFolder(folder_, true, "", {{"m", {"v"}}}), IsOk());
  Open();
  store::v1::Definition record;
  ASSERT_TRUE(record.ParseFromString(store_->Get("mesh/m")->value));
  EXPECT_EQ(record.version(), kSkippedVersions);
  EXPECT_THAT(record.value().mesh().workers(), IsEmpty());
  EXPECT_THAT(RanksOf("m"), ElementsAre("v"));
  EXPECT_EQ(record.value().mesh().mesh().axes_size(), 1);
  Damage("key = 'mesh/m'");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck none,
                                 CheckDataFolder(folder_, true, "", {{"m", {}}}));
  EXPECT_EQ(none.lost_ranks.size(), 1u) << "so it was asked for";
  Open();
  EXPECT_THAT(store_->Get("mesh/m"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  Close();
  const absl::Status known = CheckDataFolder(folder_, true, "", {{"m", {"w"}}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(known)) << known;
}

TEST_F(RepairedCatalogueTest, AStateThatLacksItsClusterGetsNoNewId) {
  Put({"w"});
  const std::string cluster_id = registry_->cluster_id();
  Close();
  const std::string snapshot = NewFolder() + "/snapshot";
  std::filesystem::copy_file(folder_ + "/state.db", snapshot);
  Damage("key = 'cluster'");
  SetAside();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenFolder(folder_));
    EXPECT_EQ(store->stats().unreadable_records, 0);
    const absl::Status refused =
        ArrayRegistry::Open(store.get(), &clock_, [](const auto&, const auto&) {}).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--cluster-of"));
  }
  EXPECT_TRUE(CheckDataFolder(folder_, false)->lacks_cluster);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoreCheck taken, CheckDataFolder(folder_, true, snapshot));
  EXPECT_FALSE(taken.lacks_cluster);
  EXPECT_EQ(taken.taken_cluster_id, cluster_id);
  const absl::Status again = CheckDataFolder(folder_, true, snapshot).status();
  EXPECT_TRUE(absl::IsInvalidArgument(again)) << "it would seem to be taken once more";
  EXPECT_THAT(std::string(again.message()), HasSubstr(cluster_id));
  Open();
  EXPECT_EQ(registry_->cluster_id(), cluster_id);
  EXPECT_EQ(registry_->term(), 1 + 2 * kSkippedTerms + 1) << "above what workers know";
  EXPECT_THAT(registry_->FindName("w"), IsOk());
}

}  // namespace
}  // namespace shardmesh::server
