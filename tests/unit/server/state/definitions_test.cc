// Definitions: versions, repeated requests, durability, snapshots and watches.
#include "server/state/definitions.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/array_record.h"
#include "server/state/store_repair.h"
#include "server/store/local_store.h"
#include "server/store/sqlite_database.h"
#include "server/store/sqlite_store.h"
#include "server/store/store_file.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

std::string MeshValue(int64_t size) {
  v1::EntryValue value;
  v1::MeshAxis* axis = value.mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("tp");
  axis->set_size(size);
  return value.SerializeAsString();
}

// A tree of tensors `w0`, `w1`, ... of some elements each.
std::string TreeValue(int tensors, int64_t elements = 8) {
  v1::EntryValue value;
  v1::TreeTensors* const columns = value.mutable_tree()->mutable_tensors();
  for (int i = 0; i < tensors; ++i) {
    const std::string name = "w" + std::to_string(i);
    columns->mutable_names()->append(name);
    columns->add_name_sizes(static_cast<uint32_t>(name.size()));
    columns->add_ranks(1);
    columns->add_sizes(elements);
    columns->add_dtypes(v1::DTYPE_F4);
  }
  return value.SerializeAsString();
}

std::string NewFolder() {
  std::string folder = testing::TempDir() + "/definitions_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

using Answer = absl::StatusOr<std::shared_ptr<const Definition>>;

class DefinitionsTest : public testing::Test {
 protected:
  DefinitionsTest() { Open(CreateMemoryStore({.history = DefinitionHistory()})); }

  void Open(std::unique_ptr<Store> store) {
    definition_store_.reset();
    requests_.reset();
    store_ = std::move(store);
    requests_ = *RequestMemory::Open(store_.get(), &clock_);
    definition_store_ = *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  }

  Answer Create(std::string name, int64_t size, std::string request_id = "") {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = std::move(request_id), .name = std::move(name)},
                                MeshValue(size), std::move(done));
    });
  }
  Answer CreateTree(std::string name, std::string value, std::string request_id = "") {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = std::move(request_id), .name = std::move(name)},
                                std::move(value), std::move(done));
    });
  }
  Answer Update(std::string name, int64_t size,
                std::optional<int64_t> expected_version = std::nullopt) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Update(
          {.request_id = "", .name = std::move(name), .expected_version = expected_version},
          MeshValue(size), std::move(done));
    });
  }
  Answer Delete(std::string name) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Delete({.request_id = "", .name = std::move(name)}, DefinitionKind::kMesh,
                                std::move(done));
    });
  }

  Answer Assign(const std::string& name, std::vector<std::string> workers) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Assign(name, std::move(workers), std::move(done));
    });
  }

  Answer Reassign(const std::string& name, const std::string& from, const std::string& to) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Reassign(name, from, to, std::move(done));
    });
  }

  void Close() {
    definition_store_.reset();
    requests_.reset();
    store_.reset();
  }

  // The store in a folder, which forgets whatever it may at once.
  void Reopen(const std::string& folder) {
    Close();
    Open(*OpenSqliteStore({.folder = folder,
                           .quota_bytes = 1 << 30,
                           .local = {.retention = {.bytes = 0}, .history = DefinitionHistory()}}));
  }

  // The size of the mesh of a reference; -1 if there is none.
  int64_t SizeOf(const std::string& reference) {
    const auto mesh = definition_store_->state().FindMesh(reference);
    return mesh.ok() ? (*mesh)->mesh.size() : -1;
  }
  std::vector<int64_t> VersionsOf(const std::string& name) {
    const auto found = definition_store_->state().Versions(DefinitionKind::kMesh, name);
    std::vector<int64_t> versions;
    for (const Definitions::Version& version : *found) {
      versions.push_back(version.version);
    }
    return versions;
  }

  template <typename Call>
  static Answer Wait(Call call) {
    Answer answer;
    absl::Notification done;
    call([&](Answer given) {
      answer = std::move(given);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  test::FakeClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<RequestMemory> requests_;
  std::unique_ptr<DefinitionStore> definition_store_;
};

TEST_F(DefinitionsTest, PublishesEachChangeUnderANewVersion) {
  const std::shared_ptr<const Definitions> before = definition_store_->shared_state();
  ASSERT_TRUE(Create("m", 4).ok());
  EXPECT_EQ((*Update("m", 8))->version, 2);
  EXPECT_EQ((*definition_store_->state().FindMesh("m"))->mesh.size(), 8);
  EXPECT_FALSE(before->FindMesh("m").ok()) << "an older snapshot changed";
  ASSERT_TRUE(Delete("m").ok());
  EXPECT_FALSE(definition_store_->state().FindMesh("m").ok());
}

TEST_F(DefinitionsTest, WaitsForItsChangesBeforeItGoes) {
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  std::atomic<bool> is_told = false;
  definition_store_->Create({.request_id = "", .name = "m"}, MeshValue(2),
                            [&](const Answer&) { is_told = true; });
  std::thread opener([&] { gate.Notify(); });
  definition_store_.reset();
  EXPECT_TRUE(is_told);
  opener.join();
}

// One who writes a whole definition anew must not undo what another made of it meanwhile.
TEST_F(DefinitionsTest, AChangeOfAVersionIsNotMadeOfALaterOne) {
  const int64_t read = (*Create("m", 2))->version;
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification first_done;
  absl::Notification second_done;
  definition_store_->Update({.request_id = "", .name = "m"}, MeshValue(4),
                            [&](const Answer& answer) {
                              EXPECT_TRUE(answer.ok());
                              first_done.Notify();
                            });
  // Both were read before either is committed.
  definition_store_->Update({.request_id = "", .name = "m", .expected_version = read}, MeshValue(2),
                            [&](const Answer& answer) {
                              EXPECT_THAT(answer.status(), StatusIs(absl::StatusCode::kAborted,
                                                                    Reason::kVersionMismatch));
                              second_done.Notify();
                            });
  gate.Notify();
  first_done.WaitForNotification();
  second_done.WaitForNotification();
  EXPECT_EQ(SizeOf("m"), 4);
}

TEST_F(DefinitionsTest, AStaleVersionOfADeletedDefinitionIsRefused) {
  const Answer first = Create("m", 2);
  ASSERT_TRUE(Delete("m").ok());
  const Answer second = Create("m", 8);
  EXPECT_NE((*first)->uid, (*second)->uid);
  EXPECT_THAT(Update("m", 4, (*first)->version).status(),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(SizeOf("m"), 8);
  EXPECT_EQ((*Update("m", 4, (*second)->version))->uid, (*second)->uid);
}

TEST_F(DefinitionsTest, NoVersionIsEverGivenTwice) {
  const std::string folder = NewFolder();
  Reopen(folder);
  EXPECT_EQ((*Create("m", 2))->version, 1);
  EXPECT_EQ((*Create("n", 2))->version, 1) << "nothing was deleted";
  ASSERT_TRUE(Update("m", 4).ok());
  ASSERT_TRUE(Update("m", 8).ok());
  ASSERT_TRUE(Delete("m").ok());
  ASSERT_TRUE(Delete("n").ok()) << "of a lower version";
  EXPECT_EQ((*Create("m", 2))->version, 4);
  EXPECT_EQ((*Create("o", 2))->version, 4) << "another name starts there too";
  ASSERT_TRUE(Update("m", 4).ok());
  ASSERT_TRUE(Delete("m").ok());
  Reopen(folder);
  EXPECT_EQ((*Create("m", 2))->version, 6);
  EXPECT_EQ((*CreateTree("t", TreeValue(1)))->version, 1) << "kinds count apart";
}

TEST_F(DefinitionsTest, DeletionsThatRunTogetherLeaveTheHighestVersion) {
  const std::string folder = NewFolder();
  Reopen(folder);
  constexpr int kMeshes = 20;
  for (int i = 0; i < kMeshes; ++i) {
    ASSERT_TRUE(Create("m" + std::to_string(i), 2).ok());
    for (int update = 0; update < i; ++update) {
      ASSERT_TRUE(Update("m" + std::to_string(i), 4).ok());
    }
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kMeshes; ++i) {
    threads.emplace_back([this, i] { EXPECT_TRUE(Delete("m" + std::to_string(i)).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  Reopen(folder);
  EXPECT_EQ((*Create("m", 2))->version, kMeshes + 1);
}

TEST_F(DefinitionsTest, AWatermarkThatCannotBeReadLeavesNoVersionToRepeat) {
  const std::string folder = NewFolder();
  Reopen(folder);
  ASSERT_TRUE(Create("m", 2).ok());
  ASSERT_TRUE(Update("m", 4).ok());
  ASSERT_TRUE(Delete("m").ok());
  ASSERT_TRUE(CommitAndWait(*store_, {.puts = {{"watermark/mesh", "\xff\xff"}}}).ok());
  Reopen(folder);
  EXPECT_GT((*Create("m", 2))->version, 2);
}

// Calls a function once, at the next question for the time.
class HookedClock final : public Clock {
 public:
  absl::Time Now() const override {
    if (hook_) std::exchange(hook_, nullptr)();
    return absl::UnixEpoch();
  }
  TimerId CallAt(absl::Time, std::function<void()>) override { return {}; }
  bool Cancel(TimerId) override { return true; }

  void SetHook(std::function<void()> hook) { hook_ = std::move(hook); }

 private:
  mutable std::function<void()> hook_;
};

TEST_F(DefinitionsTest, ACreationThatIsOvertakenRepeatsNoVersion) {
  HookedClock clock;
  definition_store_ = *DefinitionStore::Open(store_.get(), &clock, requests_.get());
  int64_t deleted = 0;
  clock.SetHook([&] {
    deleted = (*Create("m", 2))->version;
    EXPECT_TRUE(Delete("m").ok());
  });
  const Answer created = Create("m", 4);
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(deleted, 1);
  EXPECT_GT((*created)->version, deleted);
  definition_store_.reset();
}

TEST_F(DefinitionsTest, CreationsAndDeletionsThatRunTogetherRepeatNoVersion) {
  constexpr int kThreads = 4;
  absl::Mutex mutex;
  std::vector<int64_t> versions;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (const Answer created = Create("m", 2); created.ok()) {
          absl::MutexLock lock(&mutex);
          versions.push_back((*created)->version);
        }
        const Answer deleted = Delete("m");  // another thread may have been first
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(versions.empty());
  EXPECT_EQ(std::set<int64_t>(versions.begin(), versions.end()).size(), versions.size());
}

TEST_F(DefinitionsTest, ARestoredDefinitionRepeatsNoVersionThatWasGivenSince) {
  const std::string folder = NewFolder();
  const std::string snapshot = NewFolder() + "/snapshot";
  Reopen(folder);
  ASSERT_TRUE(
      CommitAndWait(
          *store_,
          {.puts = {{"cluster", EncodeCluster({.cluster_id = std::string(32, 'c'), .term = 3})}}})
          .ok());
  const Answer created = Create("m", 2);
  ASSERT_TRUE(Update("m", 4).ok());
  Close();
  std::filesystem::copy_file(folder + "/state.db", snapshot);
  Reopen(folder);
  const Answer gone = Update("m", 8);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ((*gone)->version, 3);
  Close();
  const auto restored = RestoreSnapshot(folder, snapshot);
  ASSERT_TRUE(restored.ok()) << restored.status();
  Reopen(folder);
  EXPECT_EQ(SizeOf("m"), 4);
  EXPECT_THAT(Update("m", 16, (*gone)->version).status(),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  const Answer updated = Update("m", 16, 2);
  ASSERT_TRUE(updated.ok()) << updated.status();
  const int64_t version = (*updated)->version;
  EXPECT_GT(version, (*gone)->version);
  EXPECT_EQ((*updated)->uid, (*created)->uid);
  EXPECT_EQ((*Update("m", 32))->version, version + 1) << "one more from there on";
  for (int opened = 0; opened < 2; ++opened) {
    EXPECT_THAT(VersionsOf("m"), testing::ElementsAre(version + 1, version, 2, 1));
    EXPECT_EQ(SizeOf("m@" + std::to_string(version)), 16);
    EXPECT_EQ(SizeOf("m@3"), -1) << "of the state that is gone";
    EXPECT_EQ(SizeOf("m@2"), 4);
    Reopen(folder);
  }
}

TEST_F(DefinitionsTest, ARestorationWhoseRecordIsDamagedLeavesNoVersionToRepeat) {
  const std::string folder = NewFolder();
  Reopen(folder);
  ASSERT_TRUE(Create("m", 2).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(CommitAndWait(*store_, {.puts = {{"other", std::to_string(i)}}}).ok());
  }
  const auto restored =
      CommitAndWait(*store_, {.puts = {{std::string(kRestoredKey),
                                        EncodeRestored({.digest = "d", .may_lack_names = true})}}});
  ASSERT_TRUE(restored.ok());
  Close();
  {
    Database database(DatabasePath(folder));
    ASSERT_TRUE(database.Open().ok());
    ASSERT_TRUE(database.Execute("UPDATE event SET crc = crc + 1 WHERE key = 'restored'").ok());
  }
  Reopen(folder);
  ASSERT_EQ(store_->stats().unreadable_records, 1);
  EXPECT_GT((*Create("n", 2))->version, *restored);
  EXPECT_GT((*Update("m", 4))->version, *restored);
}

// Written by a build that knew neither uids nor watermarks, and wrote the workers into the mesh.
TEST_F(DefinitionsTest, ReadsTheStateOfAnEarlierBuild) {
  const std::string folder = NewFolder();
  Reopen(folder);
  for (int version = 1; version <= 2; ++version) {
    store::v1::Definition record;
    record.set_version(version);
    v1::MeshDefinition* const mesh = record.mutable_value()->mutable_mesh();
    v1::MeshAxis* const axis = mesh->mutable_mesh()->add_axes();
    axis->set_name("tp");
    axis->set_size(1);
    if (version == 2) mesh->add_workers("w0");
    ASSERT_TRUE(CommitAndWait(*store_, {.puts = {{"mesh/m", record.SerializeAsString()}}}).ok());
  }
  Reopen(folder);
  const auto found = *definition_store_->state().Find(DefinitionKind::kMesh, "m");
  EXPECT_EQ(found->version, 2);
  EXPECT_THAT(found->uid, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(WorkersOf(*found), testing::ElementsAre("w0"));
  EXPECT_EQ((*definition_store_->state().FindReferred(DefinitionKind::kMesh, "m@1"))->uid,
            found->uid);
  const std::string uid = found->uid;
  Reopen(folder);
  EXPECT_EQ((*definition_store_->state().Find(DefinitionKind::kMesh, "m"))->uid, uid)
      << "the same until it is written";
  ASSERT_TRUE(Update("m", 4).ok());
  Reopen(folder);
  EXPECT_EQ((*definition_store_->state().Find(DefinitionKind::kMesh, "m"))->uid, uid)
      << "written with the update";
  ASSERT_TRUE(Delete("m").ok());
  EXPECT_EQ((*Create("m", 2))->version, 4);
}

TEST_F(DefinitionsTest, AssigningRanksMakesNoVersion) {
  const std::string folder = NewFolder();
  Reopen(folder);
  const Answer created = Create("m", 2);
  const std::vector<std::string> workers = {"w0", "w1"};
  const Answer assigned = Assign("m", workers);
  ASSERT_TRUE(assigned.ok());
  EXPECT_EQ((*assigned)->version, 1);
  EXPECT_EQ((*assigned)->revision, (*created)->revision);
  EXPECT_EQ(WorkersOf(**assigned), workers);
  EXPECT_THAT(VersionsOf("m"), testing::ElementsAre(1));
  EXPECT_TRUE((*definition_store_->state().FindMesh("m@1"))->workers.empty());
  // Whoever read the mesh before the workers came changes it, and they keep their ranks.
  const Answer updated = Update("m", 2, (*created)->version);
  ASSERT_TRUE(updated.ok());
  EXPECT_EQ((*updated)->version, 2);
  EXPECT_EQ(WorkersOf(**updated), workers);
  EXPECT_EQ(WorkersOf(**Assign("m", {"w7", "w8"})), workers) << "they stay";
  Reopen(folder);
  EXPECT_EQ(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")), workers);
  EXPECT_TRUE(WorkersOf(**Update("m", 4)).empty()) << "another number of ranks";
  Reopen(folder);
  EXPECT_TRUE(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")).empty());
  ASSERT_TRUE(Assign("m", {"a", "b", "c", "d"}).ok());
  ASSERT_TRUE(Delete("m").ok());
  ASSERT_TRUE(Create("m", 4).ok());
  EXPECT_TRUE(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")).empty());
}

TEST_F(DefinitionsTest, AMeshIsCreatedWithAssignedWorkers) {
  const std::string folder = NewFolder();
  Reopen(folder);
  const std::vector<std::string> workers = {"w0", "w1"};
  const Answer created = Wait([&](DefinitionStore::Callback done) {
    definition_store_->Create({.request_id = "", .name = "m", .assign = workers}, MeshValue(2),
                              std::move(done));
  });
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(WorkersOf(**created), workers);
  EXPECT_TRUE((*definition_store_->state().FindMesh("m@1"))->workers.empty());
  Reopen(folder);
  EXPECT_EQ(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")), workers);
  const std::vector<std::string> replaced = {"w7", "w1"};
  const Answer moved = Reassign("m", "w0", "w7");
  ASSERT_TRUE(moved.ok()) << "the definition names no workers";
  EXPECT_EQ(WorkersOf(**moved), replaced);
}

TEST_F(DefinitionsTest, ARankGoesFromOneWorkerToAnotherWithoutAVersion) {
  const std::string folder = NewFolder();
  Reopen(folder);
  ASSERT_TRUE(Create("m", 2).ok());
  ASSERT_TRUE(Assign("m", {"w0", "w1"}).ok());
  const Answer moved = Reassign("m", "w1", "w7");
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ((*moved)->version, 1);
  const std::vector<std::string> workers = {"w0", "w7"};
  EXPECT_EQ(WorkersOf(**moved), workers);
  EXPECT_EQ(WorkersOf(**Reassign("m", "w1", "w8")), workers) << "it serves none";
  EXPECT_THAT(
      Reassign("m", "w0", "w7").status(),
      test::CarriesFacts(
          Reason::kWorkerServesRank,
          {{fact::kIdentity, "w7"}, {fact::kMesh, "m"}, {fact::kRank, 1}, {fact::kHave, 1}}));
  EXPECT_THAT(Reassign("n", "w0", "w8").status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(WorkersOf(**Update("m", 2)), workers) << "an update keeps them";
  Reopen(folder);
  EXPECT_EQ(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")), workers);
}

TEST_F(DefinitionsTest, AnUpdateDoesNotUndoRanksThatMoveAtTheSameTime) {
  ASSERT_TRUE(Create("m", 2).ok());
  ASSERT_TRUE(Assign("m", {"w0", "w1"}).ok());
  // Both are queued before either is written.
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification moved;
  absl::Notification updated;
  definition_store_->Reassign("m", "w1", "w7", [&](const Answer& answer) {
    EXPECT_TRUE(answer.ok());
    moved.Notify();
  });
  definition_store_->Update({.request_id = "", .name = "m"}, MeshValue(2),
                            [&](const Answer& answer) {
                              EXPECT_TRUE(answer.ok());
                              updated.Notify();
                            });
  gate.Notify();
  moved.WaitForNotification();
  updated.WaitForNotification();
  EXPECT_THAT(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")),
              testing::ElementsAre("w0", "w7"));
  EXPECT_THAT(VersionsOf("m"), testing::ElementsAre(2, 1));
}

TEST_F(DefinitionsTest, AnUpdateDoesNotUndoRanksThatAreAssignedAtTheSameTime) {
  for (const std::optional<int64_t> expected :
       {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    const std::string name = expected.has_value() ? "expected" : "any";
    ASSERT_TRUE(Create(name, 2).ok());
    absl::Notification gate;
    store_->Commit({.puts = {{"other", name}}},
                   [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
    absl::Notification assigned;
    absl::Notification updated;
    definition_store_->Assign(name, {"w0", "w1"}, [&](const Answer& answer) {
      EXPECT_TRUE(answer.ok());
      assigned.Notify();
    });
    definition_store_->Update({.request_id = "", .name = name, .expected_version = expected},
                              MeshValue(2), [&](const Answer& answer) {
                                EXPECT_TRUE(answer.ok()) << answer.status();
                                updated.Notify();
                              });
    gate.Notify();
    assigned.WaitForNotification();
    updated.WaitForNotification();
    EXPECT_THAT(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, name)),
                testing::ElementsAre("w0", "w1"));
    EXPECT_THAT(VersionsOf(name), testing::ElementsAre(2, 1));
  }
}

TEST_F(DefinitionsTest, TheFirstOfTwoAssignmentsStays) {
  ASSERT_TRUE(Create("m", 2).ok());
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification first;
  absl::Notification second;
  definition_store_->Assign("m", {"w0", "w1"}, [&](const Answer& answer) {
    EXPECT_TRUE(answer.ok());
    first.Notify();
  });
  definition_store_->Assign("m", {"w7", "w8"}, [&](const Answer& answer) {
    EXPECT_THAT(answer.status(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
    second.Notify();
  });
  gate.Notify();
  first.WaitForNotification();
  second.WaitForNotification();
  EXPECT_THAT(WorkersOf(**definition_store_->state().Find(DefinitionKind::kMesh, "m")),
              testing::ElementsAre("w0", "w1"));
}

TEST_F(DefinitionsTest, AMeshWhoseRanksCannotBeReadIsLeftOut) {
  const std::string folder = NewFolder();
  Reopen(folder);
  ASSERT_TRUE(Create("m", 2).ok());
  ASSERT_TRUE(CommitAndWait(*store_, {.puts = {{"ranks/m", "\xff\xff"}}}).ok());
  Reopen(folder);
  EXPECT_THAT(definition_store_->state().FindMesh("m").status(),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
}

TEST_F(DefinitionsTest, TellsAWatcherOfAssignedRanks) {
  ASSERT_TRUE(Create("m", 2).ok());
  absl::Mutex mutex;
  std::vector<std::string> seen;
  const auto watch = definition_store_->Watch(
      {DefinitionKind::kMesh}, store_->revision() + 1,
      [&](const std::vector<DefinitionStore::Event>& events) {
        absl::MutexLock lock(&mutex);
        for (const DefinitionStore::Event& event : events) {
          for (const std::string& worker : WorkersOf(**definition_store_->Describe(event))) {
            seen.push_back(event.name + " " + worker);
          }
        }
      });
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE(Assign("m", {"w0", "w1"}).ok());
  absl::MutexLock lock(&mutex);
  const auto all_seen = [&] { return seen.size() == 2; };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_seen), absl::Seconds(10)));
  EXPECT_THAT(seen, testing::ElementsAre("m w0", "m w1"));
}

TEST_F(DefinitionsTest, WhatIsBeingCreatedCountsToTheLimits) {
  definition_store_->SetLimits({.max_meshes = 1, .max_definitions = 2});
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification done;
  definition_store_->Create({.request_id = "", .name = "a"}, MeshValue(2),
                            [&](const Answer& answer) {
                              EXPECT_TRUE(answer.ok());
                              done.Notify();
                            });
  EXPECT_THAT(Create("b", 2).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  gate.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(CreateTree("t", TreeValue(1)).ok());
  EXPECT_THAT(CreateTree("u", TreeValue(1)).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  ASSERT_TRUE(Delete("a").ok());
  EXPECT_TRUE(Create("b", 2).ok()) << "what was created leaves nothing behind";
}

TEST_F(DefinitionsTest, ACheckKeepsToTheLimitsAndTakesNoRoom) {
  definition_store_->SetLimits({.max_meshes = 1, .max_definitions = 2});
  const auto check = [&](const std::string& name) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = "", .name = name, .validate_only = true},
                                MeshValue(2), std::move(done));
    });
  };
  EXPECT_TRUE(check("a").ok());
  EXPECT_TRUE(check("a").ok()) << "the first check took the room";
  ASSERT_TRUE(Create("a", 2).ok());
  EXPECT_THAT(check("b").status(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
}

TEST_F(DefinitionsTest, NamesTheNearestNameThatThereIs) {
  ASSERT_TRUE(Create("training", 4).ok());
  const auto missing = definition_store_->state().FindMesh("trainig");
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("training"));
}

TEST_F(DefinitionsTest, RefusesWhatDoesNotFitWhatIsThere) {
  ASSERT_TRUE(Create("m", 4).ok());
  EXPECT_THAT(Create("m", 4), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(Update("m", 8, /*expected_version=*/7),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Update("n", 8), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Create("no spaces", 4), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(DefinitionsTest, GivesARepeatedRequestTheFirstAnswer) {
  const Answer first = Create("m", 4, "request-1");
  ASSERT_TRUE(first.ok());
  const Answer again = Create("m", 4, "request-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->revision, (*first)->revision);
  EXPECT_THAT(Create("m", 8, "request-1"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(DefinitionsTest, ARepeatedAnswerHasTheWorkersThatTheMeshWasAssigned) {
  ASSERT_TRUE(Create("m", 2, "request-1").ok());
  ASSERT_TRUE(Assign("m", {"w0", "w1"}).ok());
  const Answer again = Create("m", 2, "request-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(WorkersOf(**again), testing::ElementsAre("w0", "w1"));
  ASSERT_TRUE(Update("m", 2).ok());
  const Answer former = Create("m", 2, "request-1");
  ASSERT_TRUE(former.ok()) << former.status();
  EXPECT_EQ((*former)->version, 1);
  EXPECT_EQ((*former)->assigned, nullptr) << "the answer is of an older version";
}

TEST_F(DefinitionsTest, FindsItsDefinitionsAgainAfterARestart) {
  const std::string folder = testing::TempDir() + "/definitions_restart";
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  const Answer created = Create("kept", 4);
  ASSERT_TRUE(created.ok() || absl::IsAlreadyExists(created.status())) << created.status();
  definition_store_.reset();
  requests_.reset();
  store_.reset();
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  EXPECT_EQ((*definition_store_->state().FindMesh("kept"))->mesh.size(), 4);
}

TEST_F(DefinitionsTest, WritesNothingOverARecordThatCannotBeRead) {
  const std::string folder = testing::TempDir() + "/definitions_unreadable";
  std::filesystem::remove_all(folder);
  Reopen(folder);
  for (const char* name : {"damaged", "lost", "sound"}) ASSERT_TRUE(Create(name, 4).ok());
  definition_store_.reset();
  requests_.reset();
  store_.reset();
  {
    Database database(DatabasePath(folder));
    ASSERT_TRUE(database.Open().ok());
    ASSERT_TRUE(database
                    .Execute("UPDATE event SET crc = crc + 1 WHERE key = 'mesh/damaged';"
                             "UPDATE event SET key = 'mesh/lust' WHERE key = 'mesh/lost'")
                    .ok());
  }
  Reopen(folder);
  for (const char* name : {"damaged", "lost"}) {
    for (const Answer& refused : {Create(name, 8), Update(name, 8), Delete(name)}) {
      EXPECT_THAT(refused.status(), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
      EXPECT_THAT(std::string(refused.status().message()),
                  testing::AllOf(HasSubstr(std::string("\"mesh/") + name + "\""),
                                 HasSubstr("shardmesh admin check")));
    }
    EXPECT_THAT(definition_store_->state().FindMesh(name).status(),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed))
        << "it is not known whether there is one";
  }
  EXPECT_THAT(definition_store_->state().FindMesh("other").status(),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_TRUE(Update("sound", 8).ok());
  EXPECT_TRUE(Create("lust", 8).ok()) << "no record was of that name";
  Reopen(folder);
  EXPECT_EQ(store_->stats().unreadable_records, 2) << "they are as they were";
  EXPECT_EQ(SizeOf("sound"), 8);
}

TEST_F(DefinitionsTest, FindsItsTreesAgainAfterARestart) {
  const std::string folder = testing::TempDir() + "/definitions_trees";
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  // As large as a tree may be: its record must fit a transaction beside what is remembered.
  std::string value = TreeValue(100'000);
  const Answer created = CreateTree("kept", value, "request-1");
  ASSERT_TRUE(created.ok()) << created.status();
  definition_store_.reset();
  requests_.reset();
  store_.reset();
  Open(*OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 30, .local = {}}));
  const auto tree = definition_store_->state().FindTree("kept");
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ((*tree)->tensors().size(), 100'000u);
  EXPECT_EQ((*tree)->tensors()[99'999].name, "w99999");
  EXPECT_EQ((*tree)->tensors()[99'999].dtype, Dtype::kF4);

  const Answer again = CreateTree("kept", value, "request-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->version, 1);
  EXPECT_EQ((*again)->revision, (*created)->revision);
  EXPECT_EQ((*again)->wire_value, value);
  EXPECT_EQ(std::get<std::shared_ptr<const StoredTree>>((*again)->value)->tensors().size(),
            100'000u);
}

TEST_F(DefinitionsTest, GivesARepeatedDeletionItsRevision) {
  ASSERT_TRUE(CreateTree("t", TreeValue(2)).ok());
  const auto remove = [&] {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Delete({.request_id = "request-2", .name = "t"}, DefinitionKind::kTree,
                                std::move(done));
    });
  };
  const Answer first = remove();
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(definition_store_->state().FindTree("t").ok());
  const Answer again = remove();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->revision, (*first)->revision);
}

TEST_F(DefinitionsTest, FindsEachVersionAsItWasWhenItWasCurrent) {
  ASSERT_TRUE(Create("m", 4).ok());
  const std::shared_ptr<const Definitions> first = definition_store_->shared_state();
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(Update("m", 8).ok());
  ASSERT_TRUE(Update("m", 16, /*expected_version=*/2).ok());
  EXPECT_EQ(SizeOf("m"), 16);
  EXPECT_EQ(SizeOf("m@3"), 16);
  EXPECT_EQ(SizeOf("m@2"), 8);
  EXPECT_EQ(SizeOf("m@1"), 4);
  EXPECT_EQ((*first->FindMesh("m@1"))->mesh.size(), 4);
  EXPECT_FALSE(first->FindMesh("m@2").ok()) << "an older snapshot changed";
  EXPECT_THAT(Update("m", 32, /*expected_version=*/1),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Update("m@1", 32), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Delete("m@1"), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));

  const auto old = definition_store_->state().FindReferred(DefinitionKind::kMesh, "m@1");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ((*old)->name, "m");
  EXPECT_EQ((*old)->version, 1);
  EXPECT_EQ((*old)->wire_value, MeshValue(4));
  const auto versions = definition_store_->state().Versions(DefinitionKind::kMesh, "m");
  ASSERT_TRUE(versions.ok());
  ASSERT_EQ(versions->size(), 3u);
  EXPECT_EQ((*versions)[2].version, 1);
  EXPECT_EQ((*versions)[2].revision, (*old)->revision);
  EXPECT_EQ((*versions)[2].updated, (*old)->updated);
  EXPECT_EQ((*versions)[2].size_bytes, static_cast<int64_t>(MeshValue(4).size()));
  EXPECT_EQ((*versions)[1].updated - (*versions)[2].updated, absl::Seconds(5));
}

TEST_F(DefinitionsTest, SaysWhichVersionsThereAre) {
  ASSERT_TRUE(Create("once", 4).ok());
  ASSERT_TRUE(Create("often", 4).ok());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(Update("often", i + 1).ok());
  }
  EXPECT_EQ(SizeOf("often@10"), 9) << "the oldest of 32";
  const struct {
    const char* reference;
    absl::StatusCode code;
    const char* says;
  } kCases[] = {
      {"often@9", absl::StatusCode::kNotFound,
       "version 9 of the mesh \"often\" is no longer kept; kept are versions 10 to 41"},
      {"often@42", absl::StatusCode::kNotFound,
       "version 42 of the mesh \"often\" is still to come; kept are versions 10 to 41"},
      {"once@2", absl::StatusCode::kNotFound,
       "version 2 of the mesh \"once\" is still to come; version 1 is the only one kept"},
      {"oncee@1", absl::StatusCode::kNotFound, "there is no mesh named \"oncee\"; did you mean"},
      {"once@", absl::StatusCode::kInvalidArgument,
       "'once@' names no version; write once@N with a version N of 1 or more"},
      {"once@0", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@-1", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@+1", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@01", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@ 1", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@1@1", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@v1", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@9223372036854775808", absl::StatusCode::kInvalidArgument, "names no version"},
      {"once@9223372036854775807", absl::StatusCode::kNotFound, "still to come"},
      {"@1", absl::StatusCode::kNotFound, "there is no mesh named \"\""},
  };
  for (const auto& [reference, code, says] : kCases) {
    SCOPED_TRACE(reference);
    const absl::Status status = definition_store_->state().FindMesh(reference).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
  EXPECT_THAT(definition_store_->state().Versions(DefinitionKind::kMesh, "oncee"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  const absl::Status of_version =
      definition_store_->state().Versions(DefinitionKind::kMesh, "once@1").status();
  EXPECT_THAT(of_version, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(of_version.message(),
            "'once@1' names a version; versions are listed of a name alone, write once");
}

TEST_F(DefinitionsTest, NamesAnOlderVersionThatCannotBeRead) {
  ASSERT_TRUE(Create("m", 4).ok());
  ASSERT_TRUE(Update("m", 8).ok());
  const std::string second = store_->Get("mesh/m")->value;
  const auto write = [this](std::optional<std::string> value) {
    Transaction transaction;
    if (value.has_value()) {
      transaction.puts.push_back({.key = "mesh/m", .value = *std::move(value)});
    } else {
      transaction.deletes.emplace_back("mesh/m");
    }
    ASSERT_TRUE(CommitAndWait(*store_, std::move(transaction)).ok());
  };
  write(std::nullopt);
  write("\xFF");
  write(second);
  Open(std::move(store_));
  EXPECT_EQ(SizeOf("m"), 8) << "the current one is as it was";
  for (const absl::Status& status :
       {definition_store_->state().FindMesh("m@1").status(),
        definition_store_->state().Versions(DefinitionKind::kMesh, "m").status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("cannot read version 1 of \"m\" in the store: the record is not"));
  }
}

TEST_F(DefinitionsTest, TellsOfOlderVersionsWhatItToldWhenTheyWereCurrent) {
  ASSERT_TRUE(CreateTree("t", TreeValue(1)).ok());
  for (int i = 2; i <= 40; ++i) {
    clock_.Advance(absl::Seconds(i));
    const Answer updated = Wait([&](DefinitionStore::Callback done) {
      definition_store_->Update({.request_id = "", .name = "t"}, TreeValue(i), std::move(done));
    });
    ASSERT_TRUE(updated.ok()) << updated.status();
  }
  const auto as_changed = *definition_store_->state().Versions(DefinitionKind::kTree, "t");
  Open(std::move(store_));
  const auto as_loaded = *definition_store_->state().Versions(DefinitionKind::kTree, "t");
  ASSERT_EQ(as_changed.size(), 32u);
  ASSERT_EQ(as_loaded.size(), 32u);
  for (size_t i = 0; i < as_changed.size(); ++i) {
    const int64_t version = 40 - static_cast<int64_t>(i);
    EXPECT_EQ(as_changed[i].version, version);
    EXPECT_EQ(as_changed[i].size_bytes,
              static_cast<int64_t>(TreeValue(static_cast<int>(version)).size()));
    EXPECT_EQ(as_loaded[i].version, as_changed[i].version);
    EXPECT_EQ(as_loaded[i].revision, as_changed[i].revision);
    EXPECT_EQ(as_loaded[i].updated, as_changed[i].updated);
    EXPECT_EQ(as_loaded[i].size_bytes, as_changed[i].size_bytes);
  }
}

TEST_F(DefinitionsTest, KeepsFewerVersionsOfWhatIsLarge) {
  const std::string value = TreeValue(100'000);  // about 1 MiB
  ASSERT_TRUE(CreateTree("t", value).ok());
  for (int i = 0; i < 10; ++i) {
    const Answer updated = Wait([&](DefinitionStore::Callback done) {
      definition_store_->Update({.request_id = "", .name = "t"}, value, std::move(done));
    });
    ASSERT_TRUE(updated.ok()) << updated.status();
  }
  const auto versions = *definition_store_->state().Versions(DefinitionKind::kTree, "t");
  ASSERT_GT(versions.size(), 2u);
  ASSERT_LT(versions.size(), 11u);
  int64_t bytes = 0;
  for (const Definitions::Version& version : versions) {
    bytes += version.version == 11 ? 0 : version.size_bytes;
  }
  EXPECT_LE(bytes, int64_t{4} << 20);
  EXPECT_GT(bytes + versions[0].size_bytes, int64_t{4} << 20);
}

TEST_F(DefinitionsTest, ForgetsTheVersionsOfWhatIsDeleted) {
  ASSERT_TRUE(Create("m", 4).ok());
  ASSERT_TRUE(Update("m", 8).ok());
  ASSERT_TRUE(Delete("m").ok());
  EXPECT_EQ(SizeOf("m@1"), -1);
  ASSERT_TRUE(Create("m", 16).ok());
  EXPECT_EQ(SizeOf("m@1"), -1);
  EXPECT_EQ(SizeOf("m@2"), -1);
  EXPECT_EQ(SizeOf("m@3"), 16);
  EXPECT_THAT(VersionsOf("m"), testing::ElementsAre(3));
}

TEST_F(DefinitionsTest, FindsOlderVersionsAgainAfterARestart) {
  std::string folder = testing::TempDir() + "/definitions_versions_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Reopen(folder);
  ASSERT_TRUE(Create("m", 1).ok());
  ASSERT_TRUE(Create("gone", 1).ok());
  ASSERT_TRUE(Update("gone", 2).ok());
  for (int64_t size = 2; size <= 40; ++size) {
    ASSERT_TRUE(Update("m", size).ok());
  }
  ASSERT_TRUE(Delete("gone").ok());
  ASSERT_TRUE(Create("gone", 3).ok());
  ASSERT_TRUE(Create("other", 3).ok());
  const std::vector<int64_t> before = VersionsOf("m");
  for (int restart = 0; restart < 2; ++restart) {
    Reopen(folder);
    EXPECT_GT(store_->compacted_revision(), 30) << "nothing was to be forgotten";
    EXPECT_EQ(VersionsOf("m"), before);
    EXPECT_EQ(SizeOf("m@8"), -1);
    for (int64_t size = 9; size <= 40; ++size) {
      EXPECT_EQ(SizeOf("m@" + std::to_string(size)), size);
    }
    EXPECT_THAT(VersionsOf("gone"), testing::ElementsAre(3));
    EXPECT_EQ(SizeOf("gone@1"), -1);
    EXPECT_EQ(SizeOf("gone@3"), 3);
  }
  ASSERT_TRUE(Update("m", 41).ok());
  EXPECT_EQ(SizeOf("m@9"), -1);
  EXPECT_EQ(SizeOf("m@40"), 40);
}

TEST_F(DefinitionsTest, FindsOlderVersionsOfEveryKind) {
  const auto define = [&](const v1::EntryValue& first, const v1::EntryValue& second) {
    ASSERT_TRUE(CreateTree("x", first.SerializeAsString()).ok());
    const Answer updated = Wait([&](DefinitionStore::Callback done) {
      definition_store_->Update({.request_id = "", .name = "x"}, second.SerializeAsString(),
                                std::move(done));
    });
    ASSERT_TRUE(updated.ok()) << updated.status();
  };
  v1::EntryValue first;
  v1::EntryValue second;
  first.mutable_profile()->mutable_head_axis()->set_name("tp");
  second.mutable_profile()->mutable_head_axis()->set_name("sp");
  define(first, second);
  first.mutable_rule_set()->add_rules()->set_pattern("first");
  second.mutable_rule_set()->add_rules()->set_pattern("second");
  define(first, second);
  v1::LogicalRule* const rule = first.mutable_logical_rules()->add_rules();
  rule->set_name("embed");
  rule->mutable_value()->set_name("tp");
  second.mutable_logical_rules();
  define(first, second);
  first.ParseFromString(TreeValue(2));
  second.ParseFromString(TreeValue(3));
  define(first, second);

  const Definitions& state = definition_store_->state();
  EXPECT_EQ((*state.FindProfile("x@1"))->field(AxisField::kHead), AxisValue::Name("tp"));
  EXPECT_EQ((*state.FindProfile("x@2"))->field(AxisField::kHead), AxisValue::Name("sp"));
  EXPECT_EQ((*state.FindRuleSet("x@1"))->rules.rules()[0].pattern, "first");
  EXPECT_EQ((*state.FindRuleSet("x"))->rules.rules()[0].pattern, "second");
  EXPECT_EQ((*state.FindLogicalRules("x@1"))->size(), 1u);
  EXPECT_EQ((*state.FindLogicalRules("x"))->size(), 0u);
  EXPECT_EQ((*state.FindTree("x@1"))->tensors().size(), 2u);
  EXPECT_EQ((*state.FindTree("x@2"))->tensors().size(), 3u);
}

TEST_F(DefinitionsTest, QuestionsThatComeAgainShareAnOlderVersion) {
  ASSERT_TRUE(Create("m", 4).ok());
  ASSERT_TRUE(Update("m", 8).ok());
  const auto find = [this](const std::string& reference) {
    return *definition_store_->state().FindReferred(DefinitionKind::kMesh, reference);
  };
  std::weak_ptr<const Definition> first = find("m@1");
  EXPECT_FALSE(first.expired());
  ASSERT_TRUE(Update("m", 16).ok());
  EXPECT_EQ(find("m@1"), first.lock()) << "a change of the entry does not change it";
  EXPECT_NE(find("m@2"), first.lock());

  // So many that the first is none of those that are kept, though one of them is asked for always.
  std::weak_ptr<const Definition> always;
  for (size_t i = 0; i < DecodedVersions::kMaxVersions / 16 + 1; ++i) {
    const std::string name = "other" + std::to_string(i);
    ASSERT_TRUE(Create(name, 4).ok());
    for (int version = 1; version <= 16; ++version) {
      ASSERT_TRUE(Update(name, version + 4).ok());
      find(name + "@" + std::to_string(version));
      if (i == 0 && version == 1) {
        always = find("other0@1");
      }
      EXPECT_EQ(find("other0@1"), always.lock());
    }
  }
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(SizeOf("m@1"), 4);
}

TEST_F(DefinitionsTest, BoundsTheBytesOfOlderVersionsThatItKeepsDecoded) {
  const std::string value = TreeValue(100'000);  // about 1 MiB
  constexpr int kTrees = 3;
  for (int i = 0; i < kTrees; ++i) {
    const std::string name = "t" + std::to_string(i);
    ASSERT_TRUE(CreateTree(name, value).ok());
    for (int version = 2; version <= 5; ++version) {
      const Answer updated = Wait([&](DefinitionStore::Callback done) {
        definition_store_->Update({.request_id = "", .name = name}, TreeValue(100'000, version),
                                  std::move(done));
      });
      ASSERT_TRUE(updated.ok()) << updated.status();
    }
  }
  std::vector<std::weak_ptr<const Definition>> all;
  for (int i = 0; i < kTrees; ++i) {
    for (int version = 2; version <= 4; ++version) {
      all.push_back(*definition_store_->state().FindReferred(
          DefinitionKind::kTree, "t" + std::to_string(i) + "@" + std::to_string(version)));
    }
  }
  size_t bytes = 0;
  for (const auto& each : all) {
    const auto kept = each.lock();
    bytes += kept == nullptr ? 0 : kept->wire_value.size();
  }
  EXPECT_LE(bytes, DecodedVersions::kMaxRecordBytes);
  EXPECT_GT(bytes, DecodedVersions::kMaxRecordBytes - 2 * value.size());
  EXPECT_TRUE(all.front().expired());
}

TEST_F(DefinitionsTest, DecodingOfAnOlderVersionCanBeCancelled) {
  for (const char* pattern : {"first", "second"}) {
    v1::EntryValue value;
    value.mutable_rule_set()->add_rules()->set_pattern(pattern);
    const Answer changed = Wait([&](DefinitionStore::Callback done) {
      DefinitionStore::Change change{.request_id = "", .name = "r"};
      if (value.rule_set().rules(0).pattern() == "first") {
        definition_store_->Create(std::move(change), value.SerializeAsString(), std::move(done));
      } else {
        definition_store_->Update(std::move(change), value.SerializeAsString(), std::move(done));
      }
    });
    ASSERT_TRUE(changed.ok()) << changed.status();
  }
  const auto is_cancelled = [] { return true; };
  EXPECT_TRUE(definition_store_->state().FindRuleSet("r@2", is_cancelled).ok()) << "is compiled";
  EXPECT_TRUE(
      absl::IsCancelled(definition_store_->state().FindRuleSet("r@1", is_cancelled).status()));
  ASSERT_TRUE(definition_store_->state().FindRuleSet("r@1").ok());
  EXPECT_TRUE(definition_store_->state().FindRuleSet("r@1", is_cancelled).ok()) << "is kept";
}

TEST_F(DefinitionsTest, ACancelledChangeIsNotMade) {
  v1::EntryValue value;
  value.mutable_rule_set()->add_rules()->set_pattern("kernel");
  const auto create = [&](bool cancelled) {
    return Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = "once", .name = "r"}, value.SerializeAsString(),
                                std::move(done), [cancelled] { return cancelled; });
    });
  };
  EXPECT_TRUE(absl::IsCancelled(create(true).status()));
  EXPECT_FALSE(definition_store_->state().FindRuleSet("r").ok());
  EXPECT_TRUE(create(false).ok()) << "the request can be repeated";
}

TEST_F(DefinitionsTest, TellsAWatcherOfEachChangeOnce) {
  absl::Mutex mutex;
  std::vector<std::string> seen;
  const auto watch = definition_store_->Watch(
      {}, store_->revision() + 1, [&](const std::vector<DefinitionStore::Event>& events) {
        absl::MutexLock lock(&mutex);
        for (const DefinitionStore::Event& event : events) {
          seen.push_back(event.name + (event.record == nullptr ? " deleted" : ""));
        }
      });
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE(Create("a", 1).ok());
  ASSERT_TRUE(Create("b", 1).ok());
  ASSERT_TRUE(Delete("a").ok());
  absl::MutexLock lock(&mutex);
  const auto all_seen = [&] { return seen.size() == 3; };
  ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_seen), absl::Seconds(10)));
  EXPECT_THAT(seen, testing::ElementsAre("a", "b", "a deleted"));
}

}  // namespace
}  // namespace shardmesh::server
