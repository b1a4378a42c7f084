// Arrays and names: commits, lifetimes, and what a restart finds again.
#include "server/state/array_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "process/cpu_time.h"
#include "process/random_bytes.h"
#include "server/state/array_record.h"
#include "server/state/cluster_changes.h"
#include "server/store/local_store.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::shared_ptr<const SourceFile> FileAt(std::string path) {
  SourceFile file;
  file.path = std::move(path);
  file.size_bytes = 4'096;
  return std::make_shared<const SourceFile>(std::move(file));
}

class ArrayRegistryTest : public ::testing::Test {
 protected:
  ArrayRegistryTest() { Reopen(); }
  void TearDown() override { ExpectCountsOfWhatIsThere(); }

  // What the registry counts along is what a look at every array gives.
  void ExpectCountsOfWhatIsThere() const {
    std::map<ArrayState, int64_t> counts;
    for (const ArrayPtr& array : registry_->ListArrays("", 1'000'000)) {
      ++counts[array->state];
    }
    ArrayCounts counted = registry_->CountArrays();
    const ArrayCounts companions = registry_->CountCompanions();
    counted.staging += companions.staging;
    counted.available += companions.available;
    counted.degraded += companions.degraded;
    EXPECT_EQ(counted.staging, counts[ArrayState::kStaging]);
    EXPECT_EQ(counted.available, counts[ArrayState::kAvailable]);
    EXPECT_EQ(counted.degraded, counts[ArrayState::kDegraded]);
    EXPECT_EQ(registry_->CountNames(), std::ssize(registry_->ListNames("", "", 1'000'000)));
  }

  // As after a restart of the coordinator over the same store.
  void Reopen() {
    if (registry_ != nullptr) ExpectCountsOfWhatIsThere();
    registry_.reset();
    released_.clear();
    releases_ = 0;
    auto opened = ArrayRegistry::Open(store_.get(), &clock_, [this](const auto&, const auto& ids) {
      released_.insert(released_.end(), ids.begin(), ids.end());
      ++releases_;
    });
    ASSERT_THAT(opened, IsOk());
    registry_ = *std::move(opened);
    told_.clear();
    registry_->SetVerdictListener([this](const std::string& identity, const InventoryVerdict& v) {
      told_.emplace_back(identity, v);
    });
  }

  static ArrayDescriptor Descriptor(const std::string& id) {
    ArrayDescriptor descriptor;
    descriptor.array_id = id;
    descriptor.dtype = Dtype::kBF16;
    descriptor.shape = {8, 4};
    descriptor.spec = PartitionSpec({SpecEntry::Axis("dp")});
    descriptor.mesh_id = "m";
    descriptor.mesh_revision = 3;
    descriptor.mesh = *Mesh::Parse("dp=2");
    return descriptor;
  }
  // The tile of a rank, as its worker holds it.
  static InventoryTile Held(const std::string& id, int64_t rank, uint32_t crc32c,
                            bool committed = true) {
    return {.array_id = id,
            .tile = Descriptor(id).Tiling()->TileOf(rank),
            .crc32c = crc32c,
            .committed = committed,
            .on_disk = true,
            .descriptor = Descriptor(id)};
  }
  // A rank's staged tile of the result of a step.
  static InventoryTile OfStep(const std::string& id, int64_t rank) {
    InventoryTile tile = Held(id, rank, 10 + static_cast<uint32_t>(rank), /*committed=*/false);
    tile.on_disk = false;
    tile.of_step = true;
    return tile;
  }
  Inventory InventoryOf(int64_t rank, std::vector<InventoryTile> tiles) {
    Inventory inventory{.identity = identities_[static_cast<size_t>(rank)],
                        .attachment = ++attachments_,
                        .meshes = {},
                        .tiles = std::move(tiles)};
    inventory.meshes["m"] = {
        .mesh = &mesh_, .rank = rank, .identities = identities_, .revision = 3};
    return inventory;
  }
  // The worker of a rank attaches and brings its inventory.
  InventoryVerdict Attach(int64_t rank, std::vector<InventoryTile> tiles) {
    return registry_->TakeInventory(InventoryOf(rank, std::move(tiles)));
  }
  void Lose(int64_t rank) { registry_->TilesLost("m", rank, attachments_); }
  void Confirm(int64_t rank, const std::vector<std::string>& ids) {
    registry_->TilesDropped(ids, [rank](std::string_view mesh_id) {
      return mesh_id == "m" ? std::optional(rank) : std::nullopt;
    });
  }
  int64_t StoredReleases() { return std::ssize(store_->List("released/")->items); }

  std::string Stage() {
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.requested_spec = PartitionSpec({SpecEntry::Axis("dp"), SpecEntry::Axis("tp")});
    definition.source = {.file = FileAt("/models/m.safetensors"), .offset_bytes = 64};
    std::string id = definition.descriptor.array_id;
    EXPECT_THAT(registry_->Stage(std::move(definition)), IsOk());
    return id;
  }

  // Stages an array whose origin is known.
  std::string StageLoaded(int64_t offset_bytes = 64, int64_t replicas = 1) {
    auto file = std::make_shared<SourceFile>(*FileAt("/models/m.safetensors"));
    file->change_time = absl::FromUnixSeconds(5);
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.source = {.file = std::move(file), .offset_bytes = offset_bytes};
    definition.replicas = replicas;
    std::string id = definition.descriptor.array_id;
    EXPECT_THAT(registry_->Stage(std::move(definition)), IsOk());
    return id;
  }
  absl::StatusOr<CommitResult> DeleteName(const std::string& name) {
    const auto deleted = Commit({{}, {{name, "", std::nullopt}}, "", ""});
    Settle();
    return deleted;
  }
  // Loads an array under a name, and deletes the name.
  std::string Cached(const std::string& name, int64_t offset_bytes = 64) {
    const std::string id = StageLoaded(offset_bytes);
    EXPECT_THAT(Put(name, id), IsOk());
    EXPECT_THAT(DeleteName(name), IsOk());
    return id;
  }
  std::vector<std::string> CachedIds() {
    Settle();  // what a commit or an unpin released is cached after it was answered
    std::vector<std::string> ids;
    for (const CachedArray& array : registry_->ListCached()) ids.push_back(array.array_id);
    return ids;
  }
  std::string KeyOf(const std::string& id) {
    const std::vector<ArrayPtr> all = registry_->ListArrays("", 1'000);
    for (const ArrayPtr& array : all) {
      if (array->definition.descriptor.array_id == id) return array->definition.origin_key();
    }
    return "";
  }

  static ArrayCommit Staged(const std::string& id) {
    return {.array_id = id, .durability = Durability::kDisk, .tile_crc32c = {10, 11}};
  }

  absl::StatusOr<CommitResult> Commit(CommitRequest request) {
    absl::Notification done;
    absl::StatusOr<CommitResult> result;
    registry_->Commit(std::move(request), [&](absl::StatusOr<CommitResult> committed) {
      result = std::move(committed);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  // Staged arrays, which get the names "w0", "w1", ... together: so they stand in one manifest.
  CommitRequest LoadOf(int64_t count, std::vector<std::string>* ids = nullptr) {
    CommitRequest load;
    for (int64_t i = 0; i < count; ++i) {
      const std::string id = Stage();
      load.arrays.push_back(Staged(id));
      load.moves.push_back({StrCat("w", i), id, std::nullopt});
      if (ids != nullptr) ids->push_back(id);
    }
    return load;
  }
  absl::StatusOr<CommitResult> Put(const std::string& name, const std::string& id,
                                   std::optional<int64_t> expected = std::nullopt) {
    return Commit({{Staged(id)}, {{name, id, expected}}, "", ""});
  }
  // Commits a new array under `name`, and gives up the arrays that lose the name by it.
  absl::StatusOr<CommitResult> Replace(const std::string& name, std::vector<std::string> superseded,
                                       std::string* new_id = nullptr) {
    const std::string id = Stage();
    if (new_id != nullptr) *new_id = id;
    return Commit({.arrays = {Staged(id)},
                   .moves = {{name, id, std::nullopt}},
                   .request_id = "",
                   .answer = "",
                   .superseded = std::move(superseded)});
  }
  // Waits for the store's thread to have made the calls that it began.
  void Settle() { ASSERT_THAT(CommitAndWait(*store_, {}), IsOk()); }
  // The arrays of whose release the registry told. It does so after it answers the commit.
  const std::vector<std::string>& Released() {
    Settle();
    return released_;
  }

  absl::Status MakeState(const std::vector<std::string>& ids) {
    absl::Notification done;
    absl::Status result;
    registry_->MakeState(ids, [&](absl::Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  // Commits an update of the arrays by a step.
  void CommitUpdate(const std::vector<std::string>& ids, int64_t step) {
    CommitRequest update;
    update.updated = ids;
    update.step = step;
    ASSERT_THAT(Commit(std::move(update)), IsOk());
  }
  // The tile of a rank with the content of a step's update.
  static InventoryTile Updated(const std::string& id, int64_t rank, int64_t step) {
    InventoryTile tile = Held(id, rank, 0);
    tile.on_disk = false;
    tile.state_step = step;
    return tile;
  }

  ArrayState StateOf(const std::string& id) {
    const auto array = registry_->FindArray(id);
    return array.ok() ? (*array)->state : ArrayState::kReleased;
  }

  test::FakeClock clock_;
  ClusterChanges changes_{&clock_};
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  const Mesh mesh_ = *Mesh::Parse("dp=2");
  const std::vector<std::string> identities_ = {"w0", "w1"};
  uint64_t attachments_ = 0;
  std::vector<std::string> released_;
  int64_t releases_ = 0;  // how often it was told of some
  std::vector<std::pair<std::string, InventoryVerdict>> told_;
  std::unique_ptr<ArrayRegistry> registry_;
};

TEST_F(ArrayRegistryTest, ChecksAMoveWithoutDoingIt) {
  const std::string id = Stage();
  ASSERT_THAT(Put("a", id), IsOk());
  EXPECT_THAT(registry_->CheckNameMove({.name = "b", .array_id = id, .expected_version = {}}),
              IsOk());
  EXPECT_THAT(registry_->CheckNameMove({.name = "a", .array_id = id, .expected_version = 0}),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(registry_->CheckNameMove({.name = "b", .array_id = "none", .expected_version = {}}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(registry_->CheckNameMove({.name = "b", .array_id = "", .expected_version = {}}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(registry_->CheckNameMove({.name = "a", .array_id = "", .expected_version = {}}),
              IsOk());
  EXPECT_THAT(registry_->ListNames("", "", 10), SizeIs(1));
}

TEST_F(ArrayRegistryTest, TellsWatchersOfArraysAndNamesThatComeAndGo) {
  registry_->SetChanges(&changes_);
  std::vector<std::string> told;
  const auto watch = changes_.Begin([&told](const ClusterChangePtr& change) {
    if (const auto* array = std::get_if<ArrayChange>(&change->value)) {
      told.push_back(StrCat(array->is_deleted ? "-" : "+", array->array_id, " ", array->mesh_id));
    } else {
      const auto& name = std::get<NameChange>(change->value);
      told.push_back(StrCat(name.name, "=", name.array_id, "@", name.version));
    }
  });
  const std::string first = Stage();
  const std::string second = Stage();
  const std::string aborted = Stage();
  EXPECT_THAT(told, IsEmpty()) << "staged arrays are not visible";
  const auto put = Put("a", first);
  ASSERT_THAT(put, IsOk());
  EXPECT_THAT(told, ElementsAre(StrCat("+", first, " m"), StrCat("a=", first, "@", put->revision)));
  told.clear();

  const auto moved = Put("a", second);
  ASSERT_THAT(moved, IsOk());
  // The former array of the name is gone with it, and no name ever points to a deleted array.
  EXPECT_THAT(told,
              ElementsAre(StrCat("+", second, " m"), StrCat("a=", second, "@", moved->revision),
                          StrCat("-", first, " m")));
  told.clear();

  const auto deleted = Commit({{}, {{"a", "", std::nullopt}}, "", ""});
  ASSERT_THAT(deleted, IsOk());
  EXPECT_THAT(told, ElementsAre(StrCat("a=@", deleted->revision), StrCat("-", second, " m")));
  told.clear();
  registry_->Discard({aborted});
  EXPECT_THAT(told, IsEmpty());
  EXPECT_FALSE(Put("b", "none").ok());
  EXPECT_THAT(told, IsEmpty());
}

TEST_F(ArrayRegistryTest, EachOpenIsANewTermOfTheSameCluster) {
  const std::string cluster = registry_->cluster_id();
  EXPECT_EQ(registry_->term(), 1);
  Reopen();
  EXPECT_EQ(registry_->term(), 2);
  EXPECT_EQ(registry_->cluster_id(), cluster);
}

TEST_F(ArrayRegistryTest, ANamedArrayIsThereAgainAfterARestartOnceItsTilesAre) {
  const std::string id = Stage();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult committed, Put("w", id));
  const ArrayPtr before = *registry_->FindArray(id);
  EXPECT_EQ(before->state, ArrayState::kAvailable);
  Reopen();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry name, registry_->FindName("w"));
  EXPECT_THAT(registry_->FindName("W").status().ToString(),
              ::testing::HasSubstr("no array is named \"W\"; did you mean \"w\"?"));
  EXPECT_THAT(registry_->FindName("embeddings").status().ToString(),
              ::testing::HasSubstr("no array is named \"embeddings\"; `shardmesh ls` lists the"));
  EXPECT_EQ(name.array_id, id);
  EXPECT_EQ(name.version, committed.revision);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr after, registry_->FindArray(id));
  EXPECT_EQ(after->definition.descriptor, before->definition.descriptor);
  EXPECT_EQ(after->definition.requested_spec, before->definition.requested_spec);
  ASSERT_NE(after->definition.source.file, nullptr);
  EXPECT_EQ(*after->definition.source.file, *before->definition.source.file);
  EXPECT_EQ(after->definition.source.offset_bytes, 64);
  EXPECT_EQ(after->durability, Durability::kDisk);
  EXPECT_EQ(after->created, before->created);
  EXPECT_EQ(after->state, ArrayState::kDegraded);
  EXPECT_THAT(after->missing_ranks, ElementsAre(0, 1));

  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  const InventoryVerdict other = Attach(1, {Held(id, 1, 99)});
  EXPECT_THAT(other.drop, IsEmpty());
  ASSERT_THAT(other.quarantine, SizeIs(1));
  EXPECT_TRUE(other.quarantine[0].array_lives);
  EXPECT_THAT(other.quarantine[0].reason,
              ::testing::HasSubstr("its checksum is 00000063, the registry's of rank 1"));
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).commit, ElementsAre(id));
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  registry_->TilesLost("m", 0, attachments_);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
}

TEST_F(ArrayRegistryTest, LabelsArraysByNameAndId) {
  const std::string named = Stage();
  const std::string unnamed = Stage();
  ASSERT_THAT(Put("w", named), IsOk());
  EXPECT_EQ(registry_->LabelOf(named), StrCat("array \"w\" (", named, ")"));
  EXPECT_EQ(registry_->LabelOf(unnamed), StrCat("array ", unnamed));
  EXPECT_EQ(registry_->LabelOf("gone"), "array gone");
}

TEST_F(ArrayRegistryTest, ReplacingANameLetsGoOfTheOldArrayUnlessItIsPinned) {
  const std::string first = Stage();
  const std::string second = Stage();
  const std::string third = Stage();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult one, Put("w", first));
  ASSERT_THAT(registry_->Pin(first), IsOk());
  ASSERT_THAT(Put("w", second), IsOk());
  EXPECT_THAT(Released(), IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry old, registry_->FindName("w", one.revision));
  EXPECT_EQ(old.array_id, first);
  registry_->Unpin({first});
  EXPECT_THAT(Released(), ElementsAre(first));
  EXPECT_THAT(registry_->FindName("w", one.revision),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(Put("w", third), IsOk());
  Reopen();
  EXPECT_THAT(registry_->ListArrays("", 10), SizeIs(1));
}

TEST_F(ArrayRegistryTest, ANameTakesThePlaceOfTheGraceThatKeepsAnArray) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(DeleteName("w"), IsOk());
  Reopen();
  EXPECT_TRUE(registry_->FindArray(id).ok()) << "a session may come back for it";
  ASSERT_THAT(Commit({{}, {{"v", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), IsEmpty());
  ASSERT_THAT(DeleteName("v"), IsOk());
  EXPECT_THAT(Released(), ElementsAre(id));
}

TEST_F(ArrayRegistryTest, PinsThatGoTogetherAreOneRelease) {
  std::vector<std::string> ids;
  std::vector<ArrayCommit> commits;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(Stage());
    commits.push_back(Staged(ids.back()));
    ASSERT_THAT(registry_->Pin(ids.back()), IsOk());
  }
  ASSERT_THAT(Commit({commits, {}, "", ""}), IsOk());
  std::vector<std::string> held = ids;
  held.push_back("nobody knows it");
  registry_->Unpin(held);
  EXPECT_THAT(Released(), testing::UnorderedElementsAreArray(ids));
  EXPECT_EQ(releases_, 1) << "one message to each worker, not one an array";
}

TEST_F(ArrayRegistryTest, NamesAreLimited) {
  registry_->SetMaxNames(2);
  ASSERT_THAT(Put("a", Stage()), IsOk());
  ASSERT_THAT(Put("b", Stage()), IsOk());
  const absl::Status third = Put("c", Stage()).status();
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(third.ToString(), AllOf(HasSubstr("2 names"), HasSubstr("--max-names")));
  EXPECT_THAT(Put("b", Stage()), IsOk()) << "it is there already";
  EXPECT_THAT(registry_->CheckRoomForNames(1),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  ASSERT_THAT(Commit({{}, {{"a", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(registry_->CheckRoomForNames(1), IsOk());
}

TEST_F(ArrayRegistryTest, NamesOfCommitsUnderWayCountToo) {
  registry_->SetMaxNames(2);
  const std::string a = Stage();
  const std::string b = Stage();
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification done;
  registry_->Commit({{Staged(a)}, {{"1", a, std::nullopt}, {"2", a, std::nullopt}}, "", ""},
                    [&](const absl::StatusOr<CommitResult>& committed) {
                      EXPECT_THAT(committed, IsOk());
                      done.Notify();
                    });
  EXPECT_THAT(registry_->CheckRoomForNames(1),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(Put("3", b), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  gate.Notify();
  done.WaitForNotification();
  // As many go as come.
  EXPECT_THAT(Commit({{Staged(b)}, {{"2", "", std::nullopt}, {"3", b, std::nullopt}}, "", ""}),
              IsOk());
  EXPECT_EQ(registry_->CountNames(), 2);
  EXPECT_THAT(Commit({{}, {{"2", b, std::nullopt}}, "", ""}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  // What failed has left its room.
  registry_->SetMaxNames(3);
  EXPECT_THAT(Commit({{}, {{"2", b, std::nullopt}, {"4", "none", std::nullopt}}, "", ""}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Commit({{}, {{"2", b, std::nullopt}}, "", ""}), IsOk());
}

TEST_F(ArrayRegistryTest, ANameMayBeMovedToTheArrayThatItHas) {
  const std::string id = Stage();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult put, Put("w", id));
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  }
  EXPECT_THAT(Released(), IsEmpty());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry name, registry_->FindName("w"));
  EXPECT_GT(name.version, put.revision);
  Reopen();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry again, registry_->FindName("w"));
  EXPECT_EQ(again.array_id, id);
  EXPECT_EQ(again.version, name.version);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded) << "its record was not deleted";
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), ElementsAre(id)) << "no pin is left of the moves";
}

TEST_F(ArrayRegistryTest, NamesMaySwapTheirArraysInOneCommit) {
  const std::string a = Stage();
  const std::string b = Stage();
  ASSERT_THAT(Put("a", a), IsOk());
  ASSERT_THAT(Put("b", b), IsOk());
  ASSERT_THAT(Commit({{}, {{"a", b, std::nullopt}, {"b", a, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), IsEmpty());
  Reopen();
  EXPECT_EQ(registry_->FindName("a")->array_id, b);
  EXPECT_EQ(registry_->FindName("b")->array_id, a);
  // One goes on holding both, in either order.
  ASSERT_THAT(Commit({{}, {{"a", a, std::nullopt}, {"b", b, std::nullopt}}, "", ""}), IsOk());
  ASSERT_THAT(Commit({{}, {{"a", b, std::nullopt}, {"b", b, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), ElementsAre(a));
  EXPECT_EQ(StateOf(b), ArrayState::kDegraded);
}

// Names of one manifest are moved among its arrays: the record that holds them is written anew.
TEST_F(ArrayRegistryTest, NamesOfAManifestMaySwapTheirArrays) {
  constexpr int64_t kCount = 200;
  std::vector<std::string> ids;
  CommitRequest load = LoadOf(kCount, &ids);
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  CommitRequest swap;
  for (size_t i = 0; i < kCount; ++i) {
    swap.moves.push_back({StrCat("w", i), ids[kCount - 1 - i], std::nullopt});
  }
  ASSERT_THAT(Commit(std::move(swap)), IsOk());
  EXPECT_THAT(Released(), IsEmpty());
  Reopen();
  EXPECT_EQ(registry_->FindName("w0")->array_id, ids[kCount - 1]);
  EXPECT_EQ(registry_->FindName("w199")->array_id, ids[0]);
}

TEST_F(ArrayRegistryTest, AManifestIsWrittenAnewWhenMostOfItsNamesAreGone) {
  constexpr int64_t kCount = 200;
  std::vector<std::string> ids;
  CommitRequest load = LoadOf(kCount, &ids);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult loaded, Commit(std::move(load)));
  // The entries of all manifests that count; each of them must be whole.
  const auto entries = [this] {
    std::map<std::string, int64_t> chunks;
    std::map<std::string, int64_t> versions;
    const KeyValues stored = *store_->List("manifest/");
    for (const KeyValue& item : stored.items) {
      const size_t slash = item.key.rfind('/');
      if (slash == std::string("manifest").size()) {
        chunks[item.key] = *DecodeManifest(item.key, item.value);
        continue;
      }
      EXPECT_GT(chunks[item.key.substr(0, slash)]--, 0) << item.key;
      const std::vector<ManifestEntry> chunk = *DecodeManifestChunk(item.key, item.value);
      for (const ManifestEntry& entry : chunk) {
        EXPECT_TRUE(versions.emplace(entry.name, entry.version).second) << entry.name;
      }
    }
    for (const auto& [key, missing] : chunks) EXPECT_EQ(missing, 0) << key;
    return versions;
  };
  const auto remove = [&](int64_t begin, int64_t end) {
    CommitRequest request;
    for (int64_t i = begin; i < end; ++i) {
      request.moves.push_back({StrCat("w", i), "", std::nullopt});
    }
    ASSERT_THAT(Commit(std::move(request)), IsOk());
    for (int i = 0; i < 8; ++i) Settle();  // a manifest is some commits, one after the other
  };
  remove(0, 100);
  EXPECT_THAT(entries(), SizeIs(kCount)) << "half of them are current";
  remove(100, 101);
  EXPECT_THAT(entries(), SizeIs(99));
  EXPECT_EQ(entries()["w150"], loaded.revision);
  remove(101, 151);
  EXPECT_THAT(entries(), SizeIs(49));
  EXPECT_EQ(registry_->VersionOf("w199"), loaded.revision);

  Reopen();
  EXPECT_EQ(registry_->CountNames(), 49);
  EXPECT_EQ(registry_->VersionOf("w199"), loaded.revision) << "it did not move";
  EXPECT_EQ(registry_->FindName("w199")->array_id, ids[199]);
  EXPECT_THAT(registry_->FindName("w150"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  // What a manifest had of a name does not come back when the name was made and deleted since.
  ASSERT_THAT(Put("w0", Stage()), IsOk());
  ASSERT_THAT(Put("w199", Stage()), IsOk());
  remove(0, 1);
  remove(199, 200);
  Reopen();
  EXPECT_EQ(registry_->CountNames(), 48);
  remove(151, 199);
  EXPECT_THAT(store_->List("manifest/")->items, IsEmpty());
  Reopen();
  Settle();
  EXPECT_EQ(registry_->CountNames(), 0);
  EXPECT_THAT(store_->List("name/")->items, IsEmpty());
}

// Names that come, move and go while their manifest is written anew.
TEST_F(ArrayRegistryTest, NoNameComesBackByAManifestThatIsWrittenAnew) {
  constexpr int64_t kCount = 130;
  for (int round = 0; round < 30; ++round) {
    ASSERT_THAT(Commit(LoadOf(kCount)), IsOk());
    CommitRequest most;
    for (int64_t i = 0; i < 70; ++i) most.moves.push_back({StrCat("w", i), "", std::nullopt});
    // None waits for another; the manifest is written anew behind the first.
    absl::BlockingCounter done(3);
    const auto send = [&](CommitRequest request) {
      registry_->Commit(std::move(request), [&](const absl::StatusOr<CommitResult>& committed) {
        EXPECT_THAT(committed, IsOk());
        done.DecrementCount();
      });
    };
    send(std::move(most));
    const std::string moved = Stage();
    send({{Staged(moved)}, {{"w100", moved, std::nullopt}}, "", ""});
    CommitRequest rest;
    for (int64_t i = 70 + round; i < 100; ++i) {
      rest.moves.push_back({StrCat("w", i), "", std::nullopt});
    }
    send(std::move(rest));
    done.Wait();
    if (round % 2 == 0) {
      ASSERT_THAT(Commit({{}, {{"w100", "", std::nullopt}}, "", ""}), IsOk());
    }
    std::map<std::string, std::string> before;
    for (const auto& named : registry_->ListNames("", "", 1'000)) {
      before[named.name.name] = StrCat(named.name.array_id, " ", named.name.version);
    }
    Reopen();
    std::map<std::string, std::string> after;
    for (const auto& named : registry_->ListNames("", "", 1'000)) {
      after[named.name.name] = StrCat(named.name.array_id, " ", named.name.version);
    }
    ASSERT_EQ(after, before) << round;
    ASSERT_EQ(std::ssize(after), 30 + round - (round % 2 == 0 ? 1 : 0)) << round;
  }
}

// A move that waits for the store, and whatever else may let go of its array meanwhile.
TEST_F(ArrayRegistryTest, WhatIsBeingNamedStaysWhateverElseLetsGoOfItMeanwhile) {
  const std::string id = Stage();
  ASSERT_THAT(Put("old", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  absl::Notification moved;
  registry_->Commit({{}, {{"new", id, std::nullopt}}, "", ""},
                    [&](const absl::StatusOr<CommitResult>& result) {
                      EXPECT_THAT(result, IsOk());
                      moved.Notify();
                    });
  registry_->Unpin({id});
  ASSERT_THAT(Commit({{}, {{"old", "", std::nullopt}}, "", ""}), IsOk());
  moved.WaitForNotification();
  EXPECT_THAT(Released(), IsEmpty());
  EXPECT_EQ(registry_->FindName("new")->array_id, id);
  ASSERT_THAT(Commit({{}, {{"new", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), ElementsAre(id));
}

TEST_F(ArrayRegistryTest, ComparesTheVersionOfAName) {
  const std::string first = Stage();
  const std::string second = Stage();
  EXPECT_THAT(Put("w", first, 5), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(StateOf(first), ArrayState::kStaging);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult one, Put("w", first, 0));
  EXPECT_THAT(Put("w", second, 0), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Put("w", second, one.revision), IsOk());
}

TEST_F(ArrayRegistryTest, DeletesNames) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), ElementsAre(id));
  EXPECT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  Reopen();
  EXPECT_THAT(registry_->ListNames("", "", 10), IsEmpty());
}

TEST_F(ArrayRegistryTest, AnUnnamedArrayLivesAsLongAsItIsPinned) {
  const std::string id = Stage();
  ASSERT_THAT(registry_->Pin(id), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult committed, Commit({{Staged(id)}, {}, "", ""}));
  EXPECT_EQ(committed.revision, 0);
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  registry_->Unpin({id});
  EXPECT_THAT(Released(), ElementsAre(id));
}

TEST_F(ArrayRegistryTest, AnArrayThatIsGivenAwayIsNeitherPinnedNorNamedMeanwhile) {
  const std::string id = Stage();
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {}, "", ""}), IsOk());
  EXPECT_FALSE(registry_->Give(id, 0)) << "more hold it";
  EXPECT_FALSE(registry_->Give("unknown", 9));
  EXPECT_TRUE(registry_->Give(id, 1));
  EXPECT_THAT(registry_->Pin(id), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  registry_->TakeBack(id);
  EXPECT_THAT(registry_->Pin(id), IsOk());
  EXPECT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_FALSE(registry_->Give(id, 9)) << "it has a name";
}

TEST_F(ArrayRegistryTest, CountsArraysByState) {
  const std::string staging = Stage();
  const std::string named = Stage();
  ASSERT_THAT(Put("w", named), IsOk());
  EXPECT_EQ(registry_->CountArrays().staging, 1);
  EXPECT_EQ(registry_->CountArrays().available, 1);
  Lose(1);
  Lose(1);
  EXPECT_EQ(registry_->CountArrays().degraded, 1);
  EXPECT_EQ(registry_->CountArrays().total(), 2);
  EXPECT_EQ(registry_->CountNames(), 1);
  registry_->Discard({staging});
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_EQ(registry_->CountArrays().total(), 0);
}

TEST_F(ArrayRegistryTest, DiscardedArraysLeaveNoTrace) {
  const std::string id = Stage();
  registry_->Discard({id, "unknown"});
  EXPECT_THAT(registry_->FindArray(id), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Put("w", id), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(ArrayRegistryTest, OnlyAKnownReleaseDropsATileAndItIsKnownUntilEveryRankHasConfirmed) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  Settle();
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
  EXPECT_EQ(StoredReleases(), 1);
  EXPECT_THAT(registry_->RanksYetToDrop("m"), ElementsAre(0, 1));
  EXPECT_THAT(registry_->RanksYetToDrop("another mesh"), IsEmpty());
  Confirm(0, {id, "never heard of"});
  Confirm(0, {id});
  EXPECT_EQ(registry_->CountUnconfirmed(), 1) << "rank 1 has not";
  EXPECT_THAT(registry_->RanksYetToDrop("m"), ElementsAre(1));
  // Rank 1 was away, also when the coordinator was started again.
  Reopen();
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
  const InventoryVerdict verdict = Attach(1, {Held(id, 1, 11)});
  EXPECT_THAT(verdict.drop, ElementsAre(id));
  EXPECT_THAT(verdict.quarantine, IsEmpty());
  Confirm(1, {id});
  EXPECT_EQ(registry_->CountUnconfirmed(), 1) << "after a restart each rank is asked again";
  EXPECT_THAT(Attach(0, {}).drop, IsEmpty());  // an inventory without it says so too
  Settle();
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);
  EXPECT_THAT(registry_->RanksYetToDrop("m"), IsEmpty());
  EXPECT_EQ(StoredReleases(), 0);
}

TEST_F(ArrayRegistryTest, AWorkerHearsWhatBecameOfTheArraysInItsQuarantine) {
  const std::string lives = Stage();
  const std::string released = Stage();
  const std::string staged = Stage();
  ASSERT_THAT(Put("lives", lives), IsOk());
  ASSERT_THAT(Put("released", released), IsOk());
  Lose(0);
  Lose(1);
  ASSERT_THAT(Commit({{}, {{"released", "", std::nullopt}}, "", ""}), IsOk());
  Settle();
  Confirm(1, {released});
  Inventory inventory = InventoryOf(0, {});
  inventory.quarantined = {lives, released, staged, "stranger"};
  InventoryVerdict verdict = registry_->TakeInventory(inventory);
  EXPECT_THAT(verdict.unknown, IsEmpty()) << "it may be one that others still bring";
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  inventory = InventoryOf(0, {});
  inventory.quarantined = {lives, released, staged, "stranger"};
  verdict = registry_->TakeInventory(inventory);
  EXPECT_THAT(verdict.live, ElementsAre(lives));
  EXPECT_THAT(verdict.unknown, ElementsAre("stranger"));
  EXPECT_THAT(verdict.drop, ElementsAre(released));
  EXPECT_EQ(registry_->CountUnconfirmed(), 1) << "it is there until the worker says that it went";
  Confirm(0, {released});
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);
  EXPECT_THAT((*registry_->FindArray(lives))->missing_ranks, ElementsAre(0, 1))
      << "what is in quarantine is not in use";
}

TEST_F(ArrayRegistryTest, WhatNobodyKnowsIsPutAsideAndNotDropped) {
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  const InventoryVerdict verdict = Attach(0, {Held("stranger", 0, 5), Held("staged", 0, 6, false)});
  EXPECT_THAT(verdict.drop, IsEmpty());
  EXPECT_THAT(verdict.commit, IsEmpty());
  ASSERT_THAT(verdict.quarantine, SizeIs(2));
  EXPECT_EQ(verdict.quarantine[0].array_id, "stranger");
  EXPECT_FALSE(verdict.quarantine[0].array_lives);
}

TEST_F(ArrayRegistryTest, ATileOfAnotherRankIsPutAsideAndItsOwnerNamed) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  Reopen();
  InventoryTile swapped = Held(id, 1, 11);
  const InventoryVerdict verdict = Attach(0, {swapped});
  EXPECT_THAT(verdict.drop, IsEmpty());
  ASSERT_THAT(verdict.quarantine, SizeIs(1));
  EXPECT_TRUE(verdict.quarantine[0].array_lives);
  EXPECT_THAT(verdict.quarantine[0].reason,
              ::testing::HasSubstr("rank 1, which \"w1\" serves; this worker serves rank 0"));
  EXPECT_THAT((*registry_->FindArray(id))->missing_ranks, ElementsAre(0, 1));
  // The other rank may get it back; this one may not.
  EXPECT_THAT(registry_->CheckTile(id, 1, swapped.tile, 11), IsOk());
  EXPECT_THAT(registry_->CheckTile(id, 1, swapped.tile, 12),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kChecksumMismatch));
  EXPECT_THAT(registry_->CheckTile(id, 0, swapped.tile, 11),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(registry_->TakeRestored(InventoryOf(1, {Held(id, 1, 11)})).quarantine, IsEmpty());
  EXPECT_THAT((*registry_->FindArray(id))->missing_ranks, ElementsAre(0));
}

// Whoever asked for it may have stopped waiting, or a stream broke meanwhile.
TEST_F(ArrayRegistryTest, ATileThatComesOutOfQuarantineIsJudgedWheneverThatIs) {
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  const std::string lives = Stage();
  const std::string released = Stage();
  const std::string staged = Stage();
  ASSERT_THAT(Put("lives", lives), IsOk());
  ASSERT_THAT(Put("released", released), IsOk());
  ASSERT_THAT(Commit({{}, {{"released", "", std::nullopt}}, "", ""}), IsOk());
  Settle();
  Attach(0, {});
  EXPECT_THAT((*registry_->FindArray(lives))->missing_ranks, ElementsAre(0));
  Inventory restored = InventoryOf(0, {Held(lives, 0, 99)});
  restored.attachment = --attachments_;  // of the same stream
  InventoryVerdict verdict = registry_->TakeRestored(restored);
  ASSERT_THAT(verdict.quarantine, SizeIs(1));
  EXPECT_TRUE(verdict.quarantine[0].array_lives);
  EXPECT_EQ(StateOf(lives), ArrayState::kDegraded) << "it is another tile";
  restored.tiles = {Held(lives, 0, 10), Held("stranger", 0, 5), Held(staged, 0, 10),
                    Held(released, 0, 10)};
  verdict = registry_->TakeRestored(restored);
  EXPECT_EQ(StateOf(lives), ArrayState::kAvailable);
  ASSERT_THAT(verdict.quarantine, SizeIs(1)) << "nobody waits for it any longer";
  EXPECT_EQ(verdict.quarantine[0].array_id, "stranger");
  EXPECT_THAT(verdict.drop, ElementsAre(released));
  registry_->Discard({staged});
  Settle();
  ASSERT_THAT(told_, SizeIs(1)) << "its restore was given up";
  EXPECT_THAT(told_[0].second.quarantine, SizeIs(1));

  Lose(0);
  registry_->TakeRestored(restored);
  EXPECT_EQ(StateOf(lives), ArrayState::kDegraded) << "the worker is lost";
}

TEST_F(ArrayRegistryTest, ATileCountsWhateverStrayTileComesBeforeOrAfterIt) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  for (const bool own_first : {true, false}) {
    std::vector<InventoryTile> tiles = {Held(id, 0, 10), Held(id, 1, 11)};
    if (!own_first) std::swap(tiles[0], tiles[1]);
    EXPECT_THAT(Attach(0, std::move(tiles)).quarantine, SizeIs(1));
    EXPECT_EQ(StateOf(id), ArrayState::kAvailable) << own_first;
  }
  const std::string orphan = RandomId();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10), Held(orphan, 0, 10), Held(orphan, 1, 11)}).quarantine,
              SizeIs(1));
  Attach(1, {Held(id, 1, 11), Held(orphan, 1, 11)});
  EXPECT_EQ(StateOf(orphan), ArrayState::kAvailable);
}

// Such as one whose record cannot be read until it is set aside.
TEST_F(ArrayRegistryTest, TilesOfAMeshThatNobodyIsKnownToServeStayWhereTheyAre) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  Reopen();
  Inventory inventory = InventoryOf(0, {Held(id, 0, 10)});
  inventory.meshes.clear();
  const InventoryVerdict verdict = registry_->TakeInventory(inventory);
  EXPECT_THAT(verdict.quarantine, IsEmpty());
  EXPECT_THAT(verdict.drop, IsEmpty());
  EXPECT_THAT(verdict.commit, IsEmpty());
  // By a mesh that others serve it is put aside.
  inventory.other_mesh = [this](std::string_view mesh_id) {
    return mesh_id == "m" ? InventoryMesh{.mesh = &mesh_, .identities = identities_}
                          : InventoryMesh{};
  };
  const InventoryVerdict aside = registry_->TakeInventory(inventory);
  ASSERT_THAT(aside.quarantine, SizeIs(1));
  EXPECT_TRUE(aside.quarantine[0].array_lives);
  EXPECT_THAT(aside.quarantine[0].reason,
              HasSubstr("rank 0, which \"w0\" serves; this worker serves no rank of it"));
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
}

TEST_F(ArrayRegistryTest, TheLossOfAnAttachmentDoesNotUndoTheNextOnesInventory) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  Attach(0, {Held(id, 0, 10)});
  const uint64_t first = attachments_;
  Attach(0, {Held(id, 0, 10)});
  registry_->TilesLost("m", 0, first);  // it comes late
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  // And the inventory of an attachment that was lost before it was taken in finds nothing.
  const Inventory late = InventoryOf(0, {Held(id, 0, 10)});
  registry_->TilesLost("m", 0, late.attachment);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  registry_->TakeInventory(late);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  Attach(0, {Held(id, 0, 10)});
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
}

// A worker may be lost and come back between the staging of an array and the begin of its put.
TEST_F(ArrayRegistryTest, ALossBeforeAPutBeganDoesNotDegradeItsArray) {
  constexpr int64_t kEpochOfLoss = 5;
  const auto put_of_epoch = [&](int64_t epoch) {
    const std::string id = Stage();
    Attach(1, {});
    registry_->TilesLost("m", 1, attachments_, kEpochOfLoss);
    Attach(1, {});
    ArrayCommit commit = Staged(id);
    commit.epoch = epoch;
    EXPECT_THAT(Commit({{commit}, {{StrCat("w", epoch), id, std::nullopt}}, "", ""}), IsOk());
    return id;
  };
  EXPECT_EQ(StateOf(put_of_epoch(kEpochOfLoss + 1)), ArrayState::kAvailable);
  EXPECT_EQ(StateOf(put_of_epoch(kEpochOfLoss)), ArrayState::kAvailable);
  const std::string lost = put_of_epoch(kEpochOfLoss - 1);
  EXPECT_THAT((*registry_->FindArray(lost))->missing_ranks, ElementsAre(1));
}

TEST_F(ArrayRegistryTest, ATileOfARankThatMovesDuringAPutIsMissing) {
  const std::string id = Stage();
  registry_->TilesLost("m", 1, attachments_);
  ArrayCommit commit = Staged(id);
  commit.epoch = 1'000;
  EXPECT_THAT(Commit({{commit}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT((*registry_->FindArray(id))->missing_ranks, ElementsAre(1));
}

// The new worker of a rank may have attached before the former one.
TEST_F(ArrayRegistryTest, AnInventoryThatWasReadBeforeAChangeOfItsMeshSaysNothingOfTheNewRanks) {
  Inventory newcomer = InventoryOf(1, {});
  const Inventory former = InventoryOf(1, {});
  ASSERT_THAT(registry_->BeginMeshChange("m"), IsOk());
  registry_->EndMeshChange("m", 7);
  registry_->TakeInventory(former);
  ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
  definition.descriptor.mesh_revision = 7;
  const std::string id = definition.descriptor.array_id;
  ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
  ASSERT_THAT(Put("w", id), IsOk());
  newcomer.meshes["m"].revision = 7;
  registry_->TakeInventory(newcomer);
  EXPECT_THAT((*registry_->FindArray(id))->missing_ranks, ElementsAre(1));
}

// What lies elsewhere costs nothing: after a start all workers of all meshes bring theirs at once.
TEST_F(ArrayRegistryTest, AnInventoryCostsWhatLiesOnTheWorkersMeshes) {
  constexpr int kElsewhere = 50'000;
  for (int i = 0; i < kElsewhere; ++i) {
    ArrayDefinition definition{.descriptor = Descriptor(StrCat("elsewhere-", i))};
    definition.descriptor.mesh_id = "other";
    ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
  }
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  const double started = ThreadCpuSeconds();
  for (int i = 0; i < 500; ++i) {
    ASSERT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
    Lose(0);
    ASSERT_EQ(StateOf(id), ArrayState::kDegraded);
  }
  // With a look at all arrays it took seconds.
  EXPECT_LT(ThreadCpuSeconds() - started, 0.5);
}

// Thousands may go at once, with the hosts of a rack.
TEST_F(ArrayRegistryTest, TheLossOfARankCostsLittleHoweverManyThereAre) {
  constexpr int64_t kRanks = 4'096;
  constexpr int64_t kArrays = 200;
  std::string last;
  for (int64_t i = 0; i < kArrays; ++i) {
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.descriptor.shape = {kRanks};
    definition.descriptor.mesh_id = "large";
    definition.descriptor.mesh = *Mesh::Parse(StrCat("dp=", kRanks));
    last = definition.descriptor.array_id;
    ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
    ASSERT_THAT(registry_->Pin(last), IsOk());
    ASSERT_THAT(
        Commit({{{.array_id = last, .tile_crc32c = std::vector<uint32_t>(kRanks)}}, {}, "", ""}),
        IsOk());
  }
  const double started = ThreadCpuSeconds();
  for (int64_t rank = 0; rank < kRanks; ++rank) registry_->TilesLost("large", rank, 1);
  // With a copy of each array for each rank it took seconds.
  EXPECT_LT(ThreadCpuSeconds() - started, 0.5);
  EXPECT_EQ(registry_->CountArrays().degraded, kArrays);
  EXPECT_THAT((*registry_->FindArray(last))->missing_ranks, SizeIs(kRanks));
}

// More of everything than is looked at while others wait for the lock.
TEST_F(ArrayRegistryTest, AnInventoryOfManyTilesIsTakenInPieceByPiece) {
  constexpr int64_t kCount = 5'000;
  std::vector<std::string> ids;
  std::vector<ArrayCommit> commits;
  for (int64_t i = 0; i < kCount; ++i) {
    ids.push_back(Stage());
    commits.push_back(Staged(ids.back()));
    ASSERT_THAT(registry_->Pin(ids.back()), IsOk());
  }
  ASSERT_THAT(Commit({std::move(commits), {}, "", ""}), IsOk());
  std::vector<InventoryTile> all;
  std::vector<InventoryTile> half;
  std::vector<InventoryTile> unknown;
  for (size_t i = 0; i < ids.size(); ++i) {
    all.push_back(Held(ids[i], 0, 10));
    if (i % 2 == 0) half.push_back(all.back());
    unknown.push_back(Held(StrCat("unknown-", i), 0, 10));
  }
  const auto degraded = [this] { return registry_->CountArrays().degraded; };
  EXPECT_THAT(Attach(0, all).commit, SizeIs(kCount));
  EXPECT_EQ(degraded(), 0);
  EXPECT_THAT(Attach(0, {}).commit, IsEmpty());
  EXPECT_EQ(degraded(), kCount);
  EXPECT_THAT(Attach(0, half).commit, SizeIs(kCount / 2));
  EXPECT_EQ(degraded(), kCount / 2);
  EXPECT_EQ(StateOf(ids[1]), ArrayState::kDegraded);
  EXPECT_EQ(StateOf(ids.back()), ArrayState::kDegraded);
  EXPECT_EQ(StateOf(ids[0]), ArrayState::kAvailable);

  // Of arrays that nobody knows.
  EXPECT_THAT(Attach(0, unknown).quarantine, IsEmpty());
  EXPECT_THAT(Attach(0, {}).quarantine, IsEmpty()) << "it has lost them";
  for (InventoryTile& tile : unknown) tile = Held(tile.array_id, 1, 11);
  EXPECT_THAT(Attach(1, std::move(unknown)).quarantine, IsEmpty());
  EXPECT_EQ(registry_->CountArrays().total(), kCount) << "rank 0 has none of them";

  // And of released ones.
  registry_->Unpin(ids);
  Settle();
  EXPECT_EQ(registry_->CountUnconfirmed(), kCount);
  EXPECT_THAT(Attach(0, half).drop, SizeIs(kCount / 2));
  EXPECT_THAT(Attach(1, {}).drop, IsEmpty());
  EXPECT_EQ(registry_->CountUnconfirmed(), kCount / 2) << "rank 0 still has these";
  EXPECT_THAT(Attach(0, {}).drop, IsEmpty());
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);
  EXPECT_THAT(registry_->BeginMeshChange("m"), IsOk()) << "nothing lies on it any more";
}

TEST_F(ArrayRegistryTest, ATileOfAPutUnderWayIsToldHowThatEnds) {
  const std::string committed = Stage();
  const std::string discarded = Stage();
  const std::string other = Stage();
  const InventoryVerdict verdict = Attach(
      0, {Held(committed, 0, 10, false), Held(discarded, 0, 10, false), Held(other, 0, 99, false)});
  EXPECT_THAT(verdict.commit, IsEmpty());
  EXPECT_THAT(verdict.drop, IsEmpty());
  EXPECT_THAT(verdict.quarantine, IsEmpty());
  registry_->Discard({discarded});
  Settle();
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_EQ(told_[0].first, "w0");
  EXPECT_THAT(told_[0].second.drop, ElementsAre(discarded));
  ASSERT_THAT(Put("w", committed), IsOk());
  Settle();
  ASSERT_THAT(told_, SizeIs(2));
  EXPECT_THAT(told_[1].second.commit, ElementsAre(committed));
  ASSERT_THAT(Put("v", other), IsOk());
  Settle();
  ASSERT_THAT(told_, SizeIs(3));
  ASSERT_THAT(told_[2].second.quarantine, SizeIs(1));
  EXPECT_THAT((*registry_->FindArray(other))->missing_ranks, ElementsAre(0));
  // A worker that was away when its put was discarded.
  EXPECT_THAT(Attach(1, {Held(discarded, 1, 11, false)}).drop, ElementsAre(discarded));
}

// An inventory of many tiles is judged long after the worker attached.
TEST_F(ArrayRegistryTest, APutThatBeginsBeforeAnInventoryIsJudgedMissesNoTile) {
  const std::string id = Stage();
  Attach(0, {});
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  // The process that had staged this tile is gone.
  const std::string lost = Stage();
  Lose(0);
  Attach(0, {Held(id, 0, 10)});
  ASSERT_THAT(Put("v", lost), IsOk());
  EXPECT_THAT((*registry_->FindArray(lost))->missing_ranks, ElementsAre(0));
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
}

// A restore from quarantine takes files back to where committed tiles are. A worker that attaches
// meanwhile reports such a tile, the only one of its array.
TEST_F(ArrayRegistryTest, ACommittedTileIsPutAsideWhenWhatItWaitsForIsGivenUp) {
  const std::string id = Stage();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10, true)}).drop, IsEmpty());
  registry_->Discard({id});
  Settle();
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_THAT(told_[0].second.drop, IsEmpty());
  ASSERT_THAT(told_[0].second.quarantine, SizeIs(1));
  EXPECT_EQ(told_[0].second.quarantine[0].array_id, id);
  EXPECT_THAT(Attach(1, {Held(id, 1, 11, true)}).drop, IsEmpty());
}

TEST_F(ArrayRegistryTest, ATileThatItsRankHasLostAgainMakesNoArrayToAdopt) {
  const std::string id = RandomId();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).quarantine, IsEmpty());
  Attach(0, {});
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).quarantine, IsEmpty());
  EXPECT_EQ(StateOf(id), ArrayState::kReleased) << "rank 0 has no tile of it";
  Attach(0, {Held(id, 0, 10)});
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
}

// The former coordinator had answered the caller of the step, and died before it told the workers.
TEST_F(ArrayRegistryTest, AResultIsAdoptedThoughItsWorkersWereNotToldOfItsCommit) {
  const std::string untold = RandomId();
  const std::string half_told = RandomId();
  EXPECT_THAT(Attach(0, {OfStep(untold, 0), Held(half_told, 0, 10)}).quarantine, IsEmpty());
  EXPECT_EQ(StateOf(untold), ArrayState::kReleased) << "rank 1 has not reported it";
  const InventoryVerdict verdict = Attach(1, {OfStep(untold, 1), OfStep(half_told, 1)});
  EXPECT_THAT(verdict.quarantine, IsEmpty());
  EXPECT_THAT(verdict.commit, ElementsAre(untold, half_told));
  for (const std::string& id : {untold, half_told}) {
    EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
    EXPECT_TRUE(std::any_of(told_.begin(), told_.end(), [&](const auto& told) {
      return told.first == identities_[0] && told.second.commit == std::vector{id};
    }));
  }
  EXPECT_THAT(Commit({{}, {{"kept", untold, std::nullopt}}, "", ""}), IsOk());
}

TEST_F(ArrayRegistryTest, TheResultOfAStepThatARankDidNotEndIsPutAside) {
  const std::string first = RandomId();
  const std::string second = RandomId();
  const std::string committed = RandomId();
  EXPECT_THAT(Attach(0, {OfStep(first, 0), Held(committed, 0, 10)}).quarantine, IsEmpty());
  EXPECT_THAT(told_, IsEmpty()) << "rank 1 may still report it";
  EXPECT_THAT(Attach(1, {OfStep(second, 1)}).commit, IsEmpty());
  std::vector<std::string> aside;
  for (const auto& [identity, verdict] : told_) {
    for (const auto& tile : verdict.quarantine) {
      EXPECT_THAT(tile.reason, HasSubstr("this step was done, and no name has its result; it may"));
      aside.push_back(StrCat(identity == identities_[0] ? 0 : 1, " ", tile.array_id));
    }
  }
  EXPECT_THAT(aside, testing::UnorderedElementsAre(StrCat(0, " ", first), StrCat(1, " ", second)));
  EXPECT_THAT(registry_->FindUnnamed(committed), testing::Optional(testing::_));
  EXPECT_EQ(registry_->FindUnnamed(first), std::nullopt);
}

// The former coordinator may have answered the client, and kept no record of it.
TEST_F(ArrayRegistryTest, AnUnnamedPutThatNoWorkerKnowsTheEndOfIsPutAsideAndSaysSo) {
  const std::string id = RandomId();
  for (const int64_t rank : {0, 1}) {
    const InventoryVerdict verdict = Attach(rank, {Held(id, rank, 10, /*committed=*/false)});
    EXPECT_THAT(verdict.drop, IsEmpty());
    ASSERT_THAT(verdict.quarantine, SizeIs(1));
    EXPECT_FALSE(verdict.quarantine[0].array_lives);
    EXPECT_THAT(verdict.quarantine[0].reason,
                AllOf(HasSubstr("this put was done, and no name has the array; it may be dropped"),
                      HasSubstr("unless a client got the put's answer")));
  }
}

// All workers of a large mesh attach at once after a start, and steps may have ended before it.
TEST_F(ArrayRegistryTest, ResultsThatMayBeAdoptedCostLittleHoweverManyRanksThereAre) {
  constexpr int64_t kRanks = 1'024;
  constexpr int64_t kResults = 200;
  const Mesh large = *Mesh::Parse(StrCat("dp=", kRanks));
  const std::vector<std::string> identities(kRanks, "w");
  std::vector<InventoryTile> results;
  for (int64_t i = 0; i < kResults; ++i) {
    ArrayDescriptor descriptor = Descriptor(RandomId());
    descriptor.shape = {kRanks};
    descriptor.mesh_id = "large";
    descriptor.mesh = large;
    results.push_back({.array_id = descriptor.array_id,
                       .tile = descriptor.Tiling()->TileOf(0),
                       .committed = false,
                       .of_step = true,
                       .descriptor = descriptor});
  }
  const double started = ThreadCpuSeconds();
  for (int64_t rank = 0; rank < kRanks - 1; ++rank) {
    Inventory inventory{.identity = "w",
                        .attachment = ++attachments_,
                        .meshes = {},
                        .tiles = std::exchange(results, {})};
    inventory.meshes["large"] = {.mesh = &large, .rank = rank, .identities = identities};
    registry_->TakeInventory(inventory);
  }
  // With a look at all ranks for each result it took tens of seconds.
  EXPECT_LT(ThreadCpuSeconds() - started, 2);
  EXPECT_EQ(registry_->CountUnnamed(), kResults) << "they wait for the last rank";
}

TEST_F(ArrayRegistryTest, AResultWaitsForARankThatIsLost) {
  const std::string id = RandomId();
  Attach(1, {});
  Lose(1);
  EXPECT_THAT(Attach(0, {OfStep(id, 0)}).quarantine, IsEmpty());
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(Attach(1, {OfStep(id, 1)}).commit, ElementsAre(id));
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
}

TEST_F(ArrayRegistryTest, ArraysWithoutNamesAreAdoptedAfterARestart) {
  const std::string kept = RandomId();
  const std::string left = RandomId();
  const std::string named = RandomId();
  const std::string partial = RandomId();
  const auto of_rank = [&](int64_t rank) {
    const uint32_t crc32c = rank == 0 ? 10 : 11;
    return std::vector<InventoryTile>{Held(kept, rank, crc32c), Held(left, rank, crc32c),
                                      Held(named, rank, crc32c)};
  };
  std::vector<InventoryTile> first = of_rank(0);
  first.push_back(Held(partial, 0, 10));
  EXPECT_THAT(registry_->FindUnknown(first), SizeIs(4));
  EXPECT_THAT(Attach(0, std::move(first)).quarantine, IsEmpty());
  EXPECT_EQ(StateOf(kept), ArrayState::kReleased) << "rank 1 has not reported it";
  EXPECT_THAT(Attach(1, of_rank(1)).quarantine, IsEmpty());
  EXPECT_EQ(StateOf(kept), ArrayState::kAvailable);
  EXPECT_THAT((*registry_->FindArray(kept))->tile_crc32c, ElementsAre(10, 11));
  EXPECT_EQ((*registry_->FindArray(kept))->durability, Durability::kDisk);
  ASSERT_THAT(registry_->Pin(kept), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", named, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(told_, IsEmpty());

  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  Settle();
  EXPECT_EQ(StateOf(kept), ArrayState::kAvailable);
  EXPECT_EQ(StateOf(named), ArrayState::kAvailable);
  EXPECT_EQ(StateOf(left), ArrayState::kReleased);
  std::vector<std::string> aside;
  for (const auto& [identity, verdict] : told_) {
    EXPECT_THAT(verdict.drop, IsEmpty());
    ASSERT_THAT(verdict.quarantine, SizeIs(1));
    aside.push_back(StrCat(identity, " ", verdict.quarantine[0].array_id));
  }
  EXPECT_THAT(aside, ::testing::UnorderedElementsAre(StrCat("w0 ", left), StrCat("w1 ", left),
                                                     StrCat("w0 ", partial)));
  // Nor is what a session held deleted: it may have had a name in a store that is gone.
  told_.clear();
  registry_->Unpin({kept});
  Settle();
  EXPECT_THAT(told_, SizeIs(2));
  EXPECT_THAT(Released(), IsEmpty());
  // What has a name is an array like any other.
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), ElementsAre(named));
}

TEST_F(ArrayRegistryTest, ASessionTakesOverAnArrayWithoutANameInPlaceOfTheGrace) {
  const std::string id = RandomId();
  const auto bring = [&] {
    EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).quarantine, IsEmpty());
    EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).quarantine, IsEmpty());
  };
  bring();
  EXPECT_EQ(registry_->CountUnnamed(), 1);
  ASSERT_THAT(registry_->TakeOver(id), IsOk());
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(registry_->HoldsOf(id).pins, 1);
  // A reader beside it does not end what the session holds, nor does the end of the grace.
  ASSERT_THAT(registry_->Pin(id), IsOk());
  registry_->Unpin({id});
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  Settle();
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  registry_->Unpin({id});
  EXPECT_THAT(Released(), ElementsAre(id));
  EXPECT_THAT(told_, IsEmpty()) << "its tiles are deleted, not put aside";
  EXPECT_EQ(StoredReleases(), 1);
  EXPECT_THAT(registry_->TakeOver(id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ArrayRegistryTest, AnArrayIsTakenOverBeforeItsTilesAreReported) {
  const std::string held = RandomId();
  const std::string finished = RandomId();
  ASSERT_THAT(registry_->TakeOver(held), IsOk());
  ASSERT_THAT(registry_->TakeOver(finished), IsOk());
  registry_->Unpin({finished});
  EXPECT_THAT(Attach(0, {Held(held, 0, 10), Held(finished, 0, 10)}).quarantine, IsEmpty());
  EXPECT_FALSE(registry_->ReleaseUnnamed(held)) << "the session has it";
  EXPECT_THAT(Attach(1, {Held(held, 1, 11), Held(finished, 1, 11)}).drop, ElementsAre(finished));
  EXPECT_THAT(Released(), ElementsAre(finished));
  EXPECT_EQ(StateOf(held), ArrayState::kAvailable);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_THAT(Attach(0, {Held(held, 0, 10), Held(finished, 0, 10)}).drop, ElementsAre(finished));
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  Settle();
  EXPECT_EQ(StateOf(held), ArrayState::kAvailable);
  registry_->Unpin({held});
  EXPECT_THAT(Released(), ElementsAre(finished, held));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(ArrayRegistryTest, ThePutThatItsClientGaveUpIsDropped) {
  const std::string id = RandomId();
  ASSERT_THAT(registry_->TakeOver(id), IsOk());
  registry_->Unpin({id});
  EXPECT_THAT(Attach(0, {Held(id, 0, 10, /*committed=*/false)}).drop, ElementsAre(id));
}

TEST_F(ArrayRegistryTest, AwaitsSoManyArraysOfSessionsAndNoMore) {
  constexpr int64_t kMost = ArrayRegistry::kMaxAwaited;
  constexpr int64_t kOwn = ArrayRegistry::kMinAwaitedOfSession;
  // Sessions that take over one array each, and the one array that each could always take over.
  for (int64_t i = 0; i < kMost; ++i) {
    ASSERT_THAT(registry_->TakeOver(StrCat("array-", i)), IsOkAndHolds(TakenOver::kAwaited));
  }
  EXPECT_THAT(registry_->TakeOver("one-more", kOwn), IsOkAndHolds(TakenOver::kNoRoom));
  EXPECT_THAT(registry_->TakeOver("array-7", kOwn), IsOkAndHolds(TakenOver::kNoRoom))
      << "each pin counts";
  EXPECT_FALSE(registry_->IsAwaited("one-more"));
  EXPECT_THAT(registry_->TakeOver("one-more", kOwn - 1), IsOkAndHolds(TakenOver::kAwaited));
  // A removed pin does not count. A session gets an eleventh one where the others leave room for
  // 110.
  for (int64_t i = 0; i < 10 * kOwn + 10; ++i) registry_->Unpin(StrCat("array-", i));
  EXPECT_THAT(registry_->TakeOver("array-7", kOwn), IsOkAndHolds(TakenOver::kAwaited));
  EXPECT_THAT(registry_->TakeOver("array-8", 2 * kOwn), IsOkAndHolds(TakenOver::kNoRoom));
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  EXPECT_THAT(registry_->TakeOver("late"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ArrayRegistryTest, ARestoredArrayHasThePinsOfTheSessionsThatTookItOver) {
  const std::string id = RandomId();
  ASSERT_THAT(registry_->TakeOver(id), IsOk());
  ASSERT_THAT(registry_->Stage({.descriptor = Descriptor(id)}), IsOk());
  ASSERT_THAT(Put("back", id), IsOk());
  EXPECT_FALSE(registry_->IsAwaited(id));
  EXPECT_EQ(registry_->HoldsOf(id).pins, 1);
  ASSERT_THAT(DeleteName("back"), IsOk());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable) << "the session holds it";
  ASSERT_THAT(registry_->Pin(id), IsOk());
  registry_->Unpin({id});
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable) << "another session's pin went";
  registry_->Unpin({id});
  EXPECT_THAT(Released(), ElementsAre(id));
}

TEST_F(ArrayRegistryTest, APartOfAnArrayThatItsClientReleasedIsDeletedWhenTheGraceEnds) {
  for (const bool may_lack_names : {false, true}) {
    if (may_lack_names) {
      ASSERT_THAT(
          CommitAndWait(*store_,
                        {.puts = {{std::string(kRestoredKey),
                                   EncodeRestored({.digest = "abc", .may_lack_names = true})}}}),
          IsOk());
      Reopen();
    }
    const std::string id = RandomId();
    ASSERT_THAT(registry_->TakeOver(id), IsOk());
    registry_->Unpin({id});
    EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).quarantine, IsEmpty());
    clock_.Advance(ArrayRegistry::kAdoptionGrace);
    Settle();
    ASSERT_THAT(told_, SizeIs(1));
    EXPECT_EQ(told_[0].first, "w0");
    EXPECT_THAT(told_[0].second.drop, SizeIs(may_lack_names ? 0 : 1));
    EXPECT_THAT(told_[0].second.quarantine, SizeIs(may_lack_names ? 1 : 0));
    EXPECT_THAT(Released(), SizeIs(may_lack_names ? 0 : 1));
  }
}

TEST_F(ArrayRegistryTest, WhatASessionTakesOverInARestoredStateIsPutAside) {
  ASSERT_THAT(CommitAndWait(
                  *store_, {.puts = {{std::string(kRestoredKey),
                                      EncodeRestored({.digest = "abc", .may_lack_names = true})}}}),
              IsOk());
  Reopen();
  const std::string id = RandomId();
  Attach(0, {Held(id, 0, 10)});
  Attach(1, {Held(id, 1, 11)});
  ASSERT_THAT(registry_->TakeOver(id), IsOk());
  registry_->Unpin({id});
  EXPECT_THAT(Released(), IsEmpty());
  EXPECT_THAT(told_, SizeIs(2)) << "it may have had a name";
}

TEST_F(ArrayRegistryTest, AnArrayInItsGraceIsDroppedUnlessMoreThanTheGraceHoldsIt) {
  const std::string whole = RandomId();
  const std::string partial = RandomId();
  Attach(0, {Held(whole, 0, 10), Held(partial, 0, 10)});
  Attach(1, {Held(whole, 1, 11)});
  ASSERT_THAT(registry_->Pin(whole), IsOk());
  EXPECT_FALSE(registry_->CanReleaseUnnamed(whole));
  EXPECT_FALSE(registry_->ReleaseUnnamed(whole));
  registry_->Unpin({whole});
  EXPECT_EQ(StateOf(whole), ArrayState::kAvailable) << "the grace goes on";
  EXPECT_TRUE(registry_->CanReleaseUnnamed(whole));
  EXPECT_TRUE(registry_->ReleaseUnnamed(whole));
  EXPECT_TRUE(registry_->ReleaseUnnamed(partial));
  EXPECT_FALSE(registry_->ReleaseUnnamed(partial));
  EXPECT_THAT(Released(), ElementsAre(whole, partial));
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_THAT(Attach(1, {Held(whole, 1, 11), Held(partial, 1, 11)}).drop,
              UnorderedElementsAre(whole, partial));
  ASSERT_THAT(Put("w", Stage()), IsOk());
  EXPECT_FALSE(registry_->ReleaseUnnamed(registry_->FindName("w")->array_id));
}

TEST_F(ArrayRegistryTest, ArraysWithoutANameAreShownUntilTheyHaveOneOrTheGraceEnds) {
  std::vector<std::string> ids = {RandomId(), RandomId(), RandomId()};
  std::sort(ids.begin(), ids.end());
  const std::string& partial = ids[1];
  ASSERT_THAT(Put("w", Stage()), IsOk());
  Attach(0, {Held(ids[0], 0, 10), Held(ids[1], 0, 10), Held(ids[2], 0, 10)});
  Attach(1, {Held(ids[0], 1, 11), Held(ids[2], 1, 11)});
  EXPECT_EQ(registry_->CountUnnamed(), 3);
  const auto listed = [&](std::string_view start_after, int64_t limit) {
    std::vector<std::string> found;
    for (const UnnamedArray& array : registry_->ListUnnamed(start_after, limit)) {
      found.push_back(array.descriptor.array_id);
    }
    return found;
  };
  EXPECT_EQ(listed("", 10), ids);
  EXPECT_THAT(listed(ids[0], 1), ElementsAre(ids[1]));
  EXPECT_THAT(registry_->FindUnnamed(partial)->missing_ranks, ElementsAre(1));
  EXPECT_FALSE(registry_->FindUnnamed(partial)->can_be_named);
  EXPECT_TRUE(registry_->FindUnnamed(ids[0])->can_be_named);
  EXPECT_EQ(registry_->FindUnnamed(ids[0])->until, clock_.Now() + ArrayRegistry::kAdoptionGrace);
  // With its name it is an array like any other, also when that goes again.
  ASSERT_THAT(Commit({{}, {{"back", ids[0], 0}}, "", ""}), IsOk());
  EXPECT_THAT(listed("", 10), ElementsAre(ids[1], ids[2]));
  ASSERT_THAT(Commit({{}, {{"back", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_EQ(registry_->CountUnnamed(), 2);
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_THAT(listed("", 10), IsEmpty());
}

TEST_F(ArrayRegistryTest, WhatASessionHeldWhenItsNameWentIsKeptForTheGrace) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  Reopen();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  ASSERT_EQ(registry_->CountUnnamed(), 1);
  const UnnamedArray kept = registry_->ListUnnamed("", 10).front();
  EXPECT_EQ(kept.descriptor.array_id, id);
  EXPECT_TRUE(kept.can_be_named);
  EXPECT_EQ(kept.until, clock_.Now() + ArrayRegistry::kAdoptionGrace);
  EXPECT_THAT(kept.missing_ranks, ElementsAre(1));
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).commit, ElementsAre(id));
  EXPECT_THAT(registry_->FindUnnamed(id)->missing_ranks, IsEmpty());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  EXPECT_THAT(Released(), ElementsAre(id));
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(StoredReleases(), 1);
  Reopen();
  EXPECT_EQ(StateOf(id), ArrayState::kReleased);
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).drop, ElementsAre(id));
}

TEST_F(ArrayRegistryTest, WhatACommitGaveUpDoesNotOutliveTheProcess) {
  const std::string old = Stage();
  ASSERT_THAT(Put("w", old), IsOk());
  ASSERT_THAT(registry_->Pin(old), IsOk());
  std::string fresh;
  ASSERT_THAT(Replace("w", {old, old, "never heard of"}, &fresh), IsOk());
  EXPECT_THAT(Released(), IsEmpty()) << "the pin holds it as long as the process runs";
  EXPECT_EQ(StateOf(old), ArrayState::kAvailable);
  EXPECT_EQ(registry_->HoldsOf(old).pins, 1);
  EXPECT_EQ(StoredReleases(), 1);
  EXPECT_THAT(store_->Get(StrCat("array/", old)), StatusIs(absl::StatusCode::kNotFound));

  Reopen();
  EXPECT_EQ(StateOf(old), ArrayState::kReleased);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
  InventoryVerdict verdict = Attach(0, {Held(old, 0, 10), Held(fresh, 0, 10)});
  EXPECT_THAT(verdict.drop, ElementsAre(old));
  EXPECT_THAT(verdict.commit, ElementsAre(fresh));
  EXPECT_THAT(verdict.quarantine, IsEmpty());
  EXPECT_THAT(Attach(1, {Held(old, 1, 11), Held(fresh, 1, 11)}).drop, ElementsAre(old));
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(registry_->CheckMeshChange("m"), IsOk()) << "nothing lies on the mesh";
  for (const int64_t rank : {0, 1}) Confirm(rank, {old, fresh});
  Settle();
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);
  EXPECT_EQ(StoredReleases(), 0);
}

TEST_F(ArrayRegistryTest, TheReleaseOfAnArrayThatWasGivenUpIsRecordedOnce) {
  for (const bool is_pinned : {false, true}) {
    released_.clear();
    const std::string name = StrCat("w", is_pinned ? 1 : 0);
    const std::string old = Stage();
    ASSERT_THAT(Put(name, old), IsOk());
    if (is_pinned) {
      ASSERT_THAT(registry_->Pin(old), IsOk());
    }
    ASSERT_THAT(Replace(name, {old}), IsOk());
    if (is_pinned) registry_->Unpin(old);
    EXPECT_THAT(Released(), ElementsAre(old));
    EXPECT_EQ(registry_->CountUnconfirmed(), 1);
    EXPECT_EQ(StoredReleases(), 1);
    Confirm(0, {old});
    Settle();
    EXPECT_EQ(StoredReleases(), 1) << "rank 1 has not confirmed it";
    Confirm(1, {old});
    Settle();
    EXPECT_EQ(registry_->CountUnconfirmed(), 0);
    EXPECT_EQ(StoredReleases(), 0);
  }
}

TEST_F(ArrayRegistryTest, ANameTakesBackTheRecordedReleaseOfItsArray) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Replace("w", {id}), IsOk());
  const std::string record = store_->Get(StrCat("released/", id))->value;
  ASSERT_THAT(Commit({{}, {{"v", id, std::nullopt}}, "", ""}), IsOk());
  Settle();
  EXPECT_EQ(StoredReleases(), 0);
  registry_->Unpin(id);
  EXPECT_THAT(Released(), IsEmpty());
  // The end of the process between the commit of the name and the deletion of the record.
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{StrCat("released/", id), record}}}), IsOk());
  Reopen();
  Settle();
  EXPECT_EQ(registry_->FindName("v")->array_id, id);
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);
  EXPECT_EQ(StoredReleases(), 0);
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  // From now on it is kept and released like any other array.
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(DeleteName("v"), IsOk());
  Reopen();
  EXPECT_THAT(registry_->FindUnnamed(id), testing::Optional(testing::_));
  // An array that is kept for the grace can be given up too.
  ASSERT_THAT(Replace("w", {id}), IsOk());
  EXPECT_THAT(registry_->FindArray(id), IsOk());
  Reopen();
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).drop, ElementsAre(id));
}

TEST_F(ArrayRegistryTest, AnArrayWithANameIsNotGivenUp) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(Commit({{}, {{"alias", id, std::nullopt}}, "", ""}), IsOk());
  ASSERT_THAT(Replace("w", {id}), IsOk());
  EXPECT_EQ(StoredReleases(), 0);
  // The same request points another name to it.
  ASSERT_THAT(Commit({{},
                      {{"alias", "", std::nullopt}, {"other", id, std::nullopt}},
                      "",
                      "",
                      /*superseded=*/{id}}),
              IsOk());
  EXPECT_EQ(StoredReleases(), 0);
  // A commit that is not yet in the store does so.
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::Notification named;
  registry_->Commit({{}, {{"late", id, std::nullopt}}, "", ""},
                    [&](const absl::StatusOr<CommitResult>& committed) {
                      EXPECT_THAT(committed, IsOk());
                      named.Notify();
                    });
  const std::string fresh = Stage();
  absl::Notification moved;
  registry_->Commit({{Staged(fresh)}, {{"other", fresh, std::nullopt}}, "", "", {id}},
                    [&](const absl::StatusOr<CommitResult>& committed) {
                      EXPECT_THAT(committed, IsOk());
                      moved.Notify();
                    });
  gate.Notify();
  named.WaitForNotification();
  moved.WaitForNotification();
  EXPECT_EQ(StoredReleases(), 0);
  EXPECT_THAT(Released(), IsEmpty());
  Reopen();
  EXPECT_EQ(registry_->FindName("late")->array_id, id);
  EXPECT_THAT(registry_->left_out(), IsEmpty());
  EXPECT_THAT(registry_->FindArray(id), IsOk());
}

TEST_F(ArrayRegistryTest, ANameThatFollowsARunningCommitKeepsTheArrayThatItGaveUp) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string fresh = Stage();
  absl::Notification gate;
  store_->Commit({.puts = {{"other", "1"}}},
                 [&](const absl::StatusOr<Revision>&) { gate.WaitForNotification(); });
  absl::BlockingCounter done(2);
  const auto committed = [&](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
    done.DecrementCount();
  };
  registry_->Commit({{Staged(fresh)}, {{"w", fresh, std::nullopt}}, "", "", {id}}, committed);
  registry_->Commit({{}, {{"v", id, std::nullopt}}, "", ""}, committed);
  gate.Notify();
  done.Wait();
  Settle();
  EXPECT_EQ(StoredReleases(), 0);
  EXPECT_EQ(registry_->HoldsOf(id).pins, 0);
  Reopen();
  EXPECT_THAT(registry_->left_out(), IsEmpty());
  EXPECT_EQ(registry_->FindName("v")->array_id, id);
}

TEST_F(ArrayRegistryTest, AFailedCommitGivesNothingUp) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto successor,
      ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}));
  EXPECT_THAT(Replace("w", {id}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStaleTerm));
  EXPECT_EQ(registry_->HoldsOf(id).pins, 0);
  EXPECT_EQ(registry_->FindName("w")->array_id, id);
  EXPECT_EQ(StoredReleases(), 0);
}

TEST_F(ArrayRegistryTest, ArraysOfManifestsAreGivenUpToo) {
  std::vector<std::string> ids;
  ASSERT_THAT(Commit(LoadOf(200, &ids)), IsOk());
  for (const std::string& id : ids) ASSERT_THAT(registry_->Pin(id), IsOk());
  // One by a small commit, some by one that is a manifest itself.
  ASSERT_THAT(Replace("w0", {ids[0]}), IsOk());
  CommitRequest load;
  for (size_t i = 1; i < 150; ++i) {
    const std::string id = Stage();
    load.arrays.push_back(Staged(id));
    load.moves.push_back({StrCat("w", i), id, std::nullopt});
    if (i <= 50) load.superseded.push_back(ids[i]);
  }
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  EXPECT_EQ(StoredReleases(), 51);
  EXPECT_THAT(Released(), IsEmpty());
  Reopen();
  EXPECT_EQ(registry_->CountNames(), 200);
  EXPECT_EQ(registry_->CountUnconfirmed(), 51);
  EXPECT_EQ(registry_->CountUnnamed(), 0) << "the manifest was the only record of the others";
  for (size_t i = 0; i <= 50; ++i) {
    EXPECT_THAT(Attach(0, {Held(ids[i], 0, 10)}).drop, ElementsAre(ids[i])) << i;
  }

  CommitRequest many;
  for (int i = 0; i < 51; ++i) many.superseded.push_back(StrCat(i));
  EXPECT_THAT(Commit(std::move(many)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST_F(ArrayRegistryTest, WhatACommitGaveUpIsNotCached) {
  registry_->SetCaching(true);
  const std::string old = StageLoaded();
  ASSERT_THAT(Put("w", old), IsOk());
  ASSERT_THAT(registry_->Pin(old), IsOk());
  ASSERT_THAT(Replace("w", {old}), IsOk());
  registry_->Unpin(old);
  EXPECT_THAT(Released(), ElementsAre(old));
  EXPECT_THAT(CachedIds(), IsEmpty());
  Reopen();
  EXPECT_THAT(CachedIds(), IsEmpty());
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
}

// After the snapshot the array that a pin held may have got a name.
TEST_F(ArrayRegistryTest, WhatWasGivenUpInARestoredStateIsPutAsideAndNotDeleted) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Replace("w", {id}), IsOk());
  ASSERT_THAT(CommitAndWait(
                  *store_, {.puts = {{std::string(kRestoredKey),
                                      EncodeRestored({.digest = "abc", .may_lack_names = true})}}}),
              IsOk());
  Reopen();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).drop, IsEmpty());
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).drop, IsEmpty());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  EXPECT_TRUE(registry_->FindUnnamed(id)->can_be_named);
  Settle();
  EXPECT_EQ(StoredReleases(), 0);
  told_.clear();
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  EXPECT_THAT(Released(), IsEmpty());
  ASSERT_THAT(told_, SizeIs(2));
  for (const auto& [identity, verdict] : told_) {
    EXPECT_THAT(verdict.drop, IsEmpty());
    EXPECT_THAT(verdict.quarantine, SizeIs(1));
  }
}

// In the snapshot a session held it without a name; what became of it later nobody knows.
TEST_F(ArrayRegistryTest, WhatHasNoNameInARestoredStateIsPutAsideAndNotDeleted) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  ASSERT_THAT(CommitAndWait(
                  *store_, {.puts = {{std::string(kRestoredKey),
                                      EncodeRestored({.digest = "abc", .may_lack_names = true})}}}),
              IsOk());
  const auto restored = [&] {
    return *DecodeRestored(kRestoredKey, store_->Get(kRestoredKey)->value);
  };
  Reopen();
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  Reopen();  // within the grace
  EXPECT_TRUE(restored().may_lack_names);
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).commit, ElementsAre(id));
  clock_.Advance(ArrayRegistry::kAdoptionGrace);
  EXPECT_THAT(Released(), IsEmpty());
  EXPECT_EQ(StoredReleases(), 0);
  ASSERT_THAT(told_, SizeIs(2));
  for (const auto& [identity, verdict] : told_) {
    EXPECT_THAT(verdict.drop, IsEmpty());
    ASSERT_THAT(verdict.quarantine, SizeIs(1));
    EXPECT_THAT(verdict.quarantine[0].reason, HasSubstr("snapshot"));
  }
  EXPECT_THAT(store_->List("array/")->items, IsEmpty());
  EXPECT_EQ(restored().digest, "abc");
  EXPECT_FALSE(restored().may_lack_names) << "from now on releases are known again";
}

TEST_F(ArrayRegistryTest, AMeshIsNotChangedUnderAnArrayNorAnArrayPutOnAMeshThatChanges) {
  const std::string id = Stage();
  EXPECT_THAT(registry_->BeginMeshChange("m"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(registry_->BeginMeshChange("m"),
              test::CarriesFacts(Reason::kMeshInUse,
                                 {{fact::kMesh, "m"}, {fact::kArray, id}, {fact::kHave, 1}}));
  EXPECT_THAT(registry_->BeginMeshChange("m").ToString(), HasSubstr("such as array " + id));
  registry_->Discard({id});
  ASSERT_THAT(registry_->BeginMeshChange("m"), IsOk());
  EXPECT_THAT(registry_->BeginMeshChange("m"), StatusIs(absl::StatusCode::kAborted));
  const auto stage = [&](int64_t mesh_revision) {
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.descriptor.mesh_revision = mesh_revision;
    return registry_->Stage(std::move(definition));
  };
  EXPECT_THAT(stage(3), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  registry_->EndMeshChange("m", std::nullopt);  // it failed
  EXPECT_THAT(stage(3), IsOk());
  for (const ArrayPtr& array : registry_->ListArrays("", 10)) {
    registry_->Discard({array->definition.descriptor.array_id});
  }
  ASSERT_THAT(registry_->BeginMeshChange("m"), IsOk());
  registry_->EndMeshChange("m", 7);
  // A put that was resolved before the change.
  EXPECT_THAT(stage(3), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(stage(7), IsOk());
}

TEST_F(ArrayRegistryTest, RemembersTheChangesOfSoManyMeshesAndNoMore) {
  const auto stage = [&] { return registry_->Stage({.descriptor = Descriptor(RandomId())}); };
  registry_->EndMeshChange("m", 7);
  EXPECT_THAT(stage(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  for (int i = 0; i < 20'000; ++i) registry_->EndMeshChange(StrCat("other", i), 8 + i);
  EXPECT_THAT(stage(), IsOk()) << "no put is as old";
  registry_->EndMeshChange("m", 30'000);
  registry_->EndMeshChange("another", 30'001);
  EXPECT_THAT(stage(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
}

TEST_F(ArrayRegistryTest, FindsTheLastVersionsThatLeftAnArrayAndNoMore) {
  const std::string ids[] = {Stage(), Stage()};
  ASSERT_THAT(Put("keep0", ids[0]), IsOk());
  ASSERT_THAT(Put("keep1", ids[1]), IsOk());
  std::vector<int64_t> versions;
  constexpr size_t kMoves = 4 * ArrayRegistry::kFormerVersions;
  for (size_t i = 0; i < kMoves; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult moved,
                                   Commit({{}, {{"w", ids[i % 2], std::nullopt}}, "", ""}));
    versions.push_back(moved.revision);
  }
  // Each array has had the half of them.
  for (size_t i = 0; i < kMoves; ++i) {
    const bool is_found = i + 1 + 2 * ArrayRegistry::kFormerVersions >= kMoves;
    const absl::StatusOr<NameEntry> found = registry_->FindName("w", versions[i]);
    ASSERT_EQ(found.ok(), is_found) << i;
    if (is_found) {
      ASSERT_EQ(found->array_id, ids[i % 2]) << i;
    }
  }
  EXPECT_THAT(registry_->FindName("keep0", registry_->VersionOf("keep0")), IsOk());
  EXPECT_THAT(std::string(registry_->FindName("w", versions[0]).status().message()),
              EndsWith(StrCat("or never existed; the current version is ", versions.back())));
  EXPECT_THAT(std::string(registry_->FindName("nothing", 1).status().message()),
              EndsWith("; there is no array of that name now"));
}

TEST_F(ArrayRegistryTest, WhatASessionLetsGoOfIsReleasedTogether) {
  constexpr int64_t kCount = 1000;
  CommitRequest step;
  std::vector<std::string> ids;
  for (int64_t i = 0; i < kCount; ++i) {
    ids.push_back(Stage());
    ASSERT_THAT(registry_->Pin(ids.back()), IsOk());
    step.arrays.push_back(Staged(ids.back()));
  }
  ASSERT_THAT(Commit(std::move(step)), IsOk());
  const Revision before = store_->revision();
  ids.push_back("unknown");
  registry_->Unpin(ids);
  EXPECT_THAT(Released(), SizeIs(kCount));
  EXPECT_EQ(store_->revision(), before + 1) << "one record of them all";
  EXPECT_EQ(registry_->CountArrays().total(), 0);
}

// Sees what is written, and may hold it back.
class RecordingStore final : public Store {
 public:
  explicit RecordingStore(Store* store) : store_(store) {}
  void Commit(Transaction transaction, CommitCallback callback) override {
    last_ = transaction;
    if (holds_back_) {
      held_back_.emplace_back(std::move(transaction), std::move(callback));
      return;
    }
    store_->Commit(std::move(transaction), std::move(callback));
  }
  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const override {
    return store_->Get(key, at);
  }
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at) const override {
    return store_->History(key, at);
  }
  absl::StatusOr<KeyValues> List(std::string_view prefix, ListOptions options) const override {
    return store_->List(prefix, std::move(options));
  }
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::vector<std::string> prefixes,
                                                     Revision from_revision,
                                                     WatchCallback callback) override {
    return store_->Watch(std::move(prefixes), from_revision, std::move(callback));
  }
  void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) override {
    store_->Compact(revision, std::move(callback));
  }
  void Backup(std::string path, CommitCallback callback) override {
    store_->Backup(std::move(path), std::move(callback));
  }
  Revision revision() const override { return store_->revision(); }
  Revision settled_revision() const override { return store_->settled_revision(); }
  Revision compacted_revision() const override { return store_->compacted_revision(); }
  StoreStats stats() const override { return store_->stats(); }

  const Transaction& last() const { return last_; }

  // From now on writes nothing, until LetGo.
  void HoldBack() { holds_back_ = true; }
  void LetGo() {
    holds_back_ = false;
    for (auto& [transaction, callback] : std::exchange(held_back_, {})) {
      store_->Commit(std::move(transaction), std::move(callback));
    }
  }

 private:
  Store* const store_;
  Transaction last_;
  bool holds_back_ = false;
  std::vector<std::pair<Transaction, CommitCallback>> held_back_;
};

TEST_F(ArrayRegistryTest, OnlyTheDeletionOfNamesMayUseTheStoresReserve) {
  registry_.reset();
  RecordingStore store(store_.get());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      registry_, ArrayRegistry::Open(&store, &clock_, [](const auto&, const auto&) {}));
  const std::string unnamed = Stage();
  const std::string named = Stage();
  ASSERT_THAT(registry_->Pin(unnamed), IsOk());
  ASSERT_THAT(registry_->requests().Begin("r", "f"), IsOk());
  ASSERT_THAT(Commit({{Staged(unnamed)}, {}, "r", "the answer"}), IsOk());
  ASSERT_THAT(store.last().puts, SizeIs(1));
  EXPECT_FALSE(store.last().urgent) << "it makes no room";
  ASSERT_THAT(Put("w", named), IsOk());
  EXPECT_FALSE(store.last().urgent);
  ASSERT_THAT(registry_->Pin(named), IsOk());  // so that its release is not the last write
  ASSERT_THAT(registry_->requests().Begin("s", "f"), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "s", ""}), IsOk());
  EXPECT_TRUE(store.last().urgent);
  registry_.reset();
  Reopen();
}

TEST_F(ArrayRegistryTest, ALargeAnswerLeavesRoomForItselfInTheTransaction) {
  CommitRequest load;
  for (int i = 0; i < 45; ++i) {
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.source.file = FileAt(std::string(20'000, 'p'));
    load.arrays.push_back(Staged(definition.descriptor.array_id));
    load.moves.push_back({StrCat("w", i), definition.descriptor.array_id, std::nullopt});
    ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
  }
  load.request_id = "r";
  load.answer = std::string(800'000, 'a');
  ASSERT_THAT(registry_->requests().Begin("r", "f"), IsOk());
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  Reopen();
  EXPECT_EQ(registry_->CountNames(), 45);

  // Without names there is no manifest that could take anything off.
  const std::string id = Stage();
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(registry_->requests().Begin("s", "f"), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {}, "s", std::string(1'200'000, 'a')}), IsOk());
  Reopen();
  EXPECT_THAT(registry_->requests().Begin("s", "f"), IsOk());
  EXPECT_EQ(registry_->CountNames(), 45);
}

TEST_F(ArrayRegistryTest, ACheckpointOfManyNamesIsOneCommit) {
  constexpr int kNames = 3000;
  CommitRequest load;
  for (int i = 0; i < kNames; ++i) {
    load.arrays.push_back(Staged(Stage()));
    load.moves.push_back({StrCat("layer.", absl::Dec(i, absl::kZeroPad5), std::string(600, 'x')),
                          load.arrays.back().array_id, 0});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CommitResult committed, Commit(load));
  EXPECT_GT(store_->List("manifest/")->items.size(), 2u);

  // One is replaced and one deleted, each by its own key.
  const std::string other = Stage();
  ASSERT_THAT(Put(load.moves[0].name, other), IsOk());
  ASSERT_THAT(Commit({{}, {{load.moves[1].name, "", std::nullopt}}, "", ""}), IsOk());
  Reopen();
  EXPECT_EQ(registry_->FindName(load.moves[0].name)->array_id, other);
  EXPECT_EQ(registry_->FindName(load.moves[1].name).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_->FindName(load.moves[2].name)->version, committed.revision);
  EXPECT_THAT(registry_->ListNames("", "", kNames), SizeIs(kNames - 1));

  // When none of its names is current any more, the manifest goes.
  CommitRequest again;
  for (const NameMove& move : load.moves) {
    again.arrays.push_back(Staged(Stage()));
    again.moves.push_back({move.name, again.arrays.back().array_id, std::nullopt});
  }
  ASSERT_THAT(Commit(again), IsOk());
  Reopen();
  Settle();
  EXPECT_THAT(registry_->ListArrays("", 2 * kNames), SizeIs(kNames));
  EXPECT_THAT(store_->List("name/")->items, IsEmpty());
  EXPECT_THAT(store_->List("array/")->items, IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues stored, store_->List("manifest/"));
  int manifests = 0;
  for (const KeyValue& item : stored.items) {
    manifests += item.key.find('/', 9) == std::string::npos;
  }
  EXPECT_EQ(manifests, 1);
}

TEST_F(ArrayRegistryTest, ChunksWithoutTheirManifestMeanNothing) {
  const std::string id = Stage();
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"manifest/lost/000000", "half a chunk"}}}), IsOk());
  Reopen();
  Settle();
  EXPECT_THAT(store_->List("manifest/")->items, IsEmpty());
}

TEST_F(ArrayRegistryTest, ARecordThatCannotBeReadKeepsNobodyFromTheOthers) {
  const std::string id = Stage();
  ASSERT_THAT(Put("sound", id), IsOk());
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"array/x", "\xff\xff"}, {"name/x", "\xff"}}}),
              IsOk());
  Reopen();
  EXPECT_THAT(registry_->FindArray(id), IsOk());
  Settle();
  EXPECT_THAT(store_->Get("array/x"), IsOk()) << "it is left for a person to look at";
}

TEST_F(ArrayRegistryTest, WithoutTheRecordOfItsClusterItDoesNotBegin) {
  ASSERT_THAT(CommitAndWait(*store_, {.puts = {{"cluster", "\xff\xff"}}}), IsOk());
  EXPECT_THAT(ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}).status(),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
}

TEST_F(ArrayRegistryTest, AStoreThatIsNotNewGetsNoNewCluster) {
  ASSERT_THAT(CommitAndWait(*store_, {.deletes = {"cluster"}}), IsOk());
  EXPECT_THAT(ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}).status(),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
}

TEST_F(ArrayRegistryTest, DoesNotBeginATermOfWhichNumbersWouldOverflow) {
  registry_.reset();
  const auto put_term = [&](int64_t term) {
    ASSERT_THAT(
        CommitAndWait(*store_,
                      {.puts = {{"cluster", EncodeCluster({.cluster_id = "c", .term = term})}}}),
        IsOk());
  };
  put_term(kMaxTerm);
  const absl::Status refused =
      ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStoreFailed));
  EXPECT_THAT(refused.message(), HasSubstr(StrCat(kMaxTerm)));
  put_term(kMaxTerm - 1);
  Reopen();
}

TEST_F(ArrayRegistryTest, ACoordinatorThatWasReplacedCannotWrite) {
  const std::string id = Stage();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto successor,
      ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}));
  const int64_t term = registry_->term();
  const absl::Status replaced = Put("w", id).status();
  EXPECT_THAT(replaced, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kStaleTerm));
  EXPECT_EQ(FactOf(replaced, fact::kHave), StrCat(term));
  EXPECT_EQ(successor->FindName("w").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ArrayRegistryTest, RemembersAnswersForTenMinutesAcrossARestart) {
  const std::string id = Stage();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto first, registry_->requests().Begin("r", "put w"));
  EXPECT_FALSE(first.has_value());
  EXPECT_EQ(registry_->requests().Begin("r", "put w").status().code(), absl::StatusCode::kAborted);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const CommitResult committed,
      Commit({{Staged(id)}, {{"w", id, std::nullopt}}, "r", "the answer"}));
  Reopen();
  clock_.Advance(absl::Minutes(9));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto again, registry_->requests().Begin("r", "put w"));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->bytes, "the answer");
  EXPECT_EQ(again->revision, committed.revision);
  EXPECT_THAT(registry_->requests().Begin("r", "another").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  clock_.Advance(absl::Minutes(1));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto forgotten, registry_->requests().Begin("r", "another"));
  EXPECT_FALSE(forgotten.has_value());
  Settle();
  EXPECT_THAT(store_->List("request/")->items, IsEmpty());
}

TEST_F(ArrayRegistryTest, RemembersAnswersThoughTheWallClockWasSteppedOverTheRestart) {
  const std::string id = Stage();
  ASSERT_THAT(registry_->requests().Begin("r", "put w"), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {{"w", id, std::nullopt}}, "r", "the answer"}), IsOk());
  registry_.reset();
  clock_.Advance(absl::Hours(24));
  Reopen();
  clock_.Advance(absl::Minutes(9));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto again, registry_->requests().Begin("r", "put w"));
  EXPECT_TRUE(again.has_value());
}

TEST_F(ArrayRegistryTest, RequestIdsAreToldApartByCallerAndMethod) {
  EXPECT_EQ(RequestKey("ada", "MoveName", ""), "");
  const std::string key = RequestKey("ada", "MoveName", "r");
  EXPECT_EQ(RequestKey("ada", "MoveName", "r"), key);
  EXPECT_NE(RequestKey("bob", "MoveName", "r"), key);
  EXPECT_NE(RequestKey("ada", "DeleteName", "r"), key);
  EXPECT_NE(RequestKey("ada", "MoveName", "s"), key);
  ASSERT_THAT(registry_->requests().Begin(key, "f"), IsOk());
  EXPECT_THAT(registry_->requests().Begin(RequestKey("bob", "MoveName", "r"), "g"), IsOk());
  const absl::Status reused = registry_->requests().Begin(key, "g").status();
  EXPECT_THAT(reused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  EXPECT_THAT(reused.message(), HasSubstr("\"r\""));
}

TEST_F(ArrayRegistryTest, ACallerWhoIsOverItsLimitForgetsItsOwnOldestAnswers) {
  RequestMemory& requests = registry_->requests();
  requests.SetLimits({.max_answers_per_caller = 20});
  const std::string id = Stage();
  ASSERT_THAT(Commit({{Staged(id)}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  const auto move = [&](const std::string& key) {
    ASSERT_THAT(requests.Begin(key, "f"), IsOk());
    ASSERT_THAT(Commit({{}, {{"w", id, std::nullopt}}, key, ""}), IsOk());
  };
  move(RequestKey("bob", "MoveName", "0"));
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(absl::Milliseconds(1));
    move(RequestKey("ada", "MoveName", StrCat(i)));
  }
  EXPECT_FALSE(requests.Find(RequestKey("ada", "MoveName", "0")).has_value());
  EXPECT_TRUE(requests.Find(RequestKey("ada", "MoveName", "29")).has_value());
  EXPECT_TRUE(requests.Find(RequestKey("bob", "MoveName", "0")).has_value());
  Settle();
  EXPECT_LE(store_->List("request/")->items.size(), 21);
  Reopen();
  EXPECT_TRUE(registry_->requests().Find(RequestKey("ada", "MoveName", "29")).has_value());
}

TEST_F(ArrayRegistryTest, AFailedRequestCanBeTriedAgain) {
  ASSERT_THAT(registry_->requests().Begin("r", "f"), IsOk());
  EXPECT_FALSE(Commit({{}, {{"w", "no such array", std::nullopt}}, "r", "never"}).ok());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto again, registry_->requests().Begin("r", "f"));
  EXPECT_FALSE(again.has_value());
}

// A staged companion of the array, on a mesh of its own.
std::string StageCompanion(ArrayRegistry* registry, ArrayDescriptor descriptor,
                           const std::string& replica_of) {
  descriptor.array_id = RandomId();
  descriptor.mesh_id = "m.replicas-0123456789ab";
  ArrayDefinition definition{.descriptor = descriptor};
  definition.replica_of = replica_of;
  EXPECT_THAT(registry->Stage(std::move(definition)), IsOk());
  return descriptor.array_id;
}

TEST_F(ArrayRegistryTest, ACompanionIsHeldByItsArrayAndReleasedWithIt) {
  ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
  definition.replicas = 2;
  const std::string id = definition.descriptor.array_id;
  ASSERT_THAT(registry_->Stage(definition), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty()) << "it is only staged";
  int told = 0;
  registry_->SetReplicaListener([&told] { ++told; });
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(registry_->ReplicasOf("w"), 2);
  EXPECT_EQ(registry_->ReplicasOf("v"), 1);
  ASSERT_THAT(registry_->ListUnreplicated("", 10), SizeIs(1));
  EXPECT_EQ(registry_->FindTwin(id), nullptr);

  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty());
  ASSERT_NE(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->FindTwin(id)->definition.descriptor.array_id, companion);
  EXPECT_EQ(registry_->FindTwin(companion)->definition.descriptor.array_id, id);
  EXPECT_EQ(registry_->LabelOf(companion),
            StrCat("the second replica of ", registry_->LabelOf(id)));
  EXPECT_THAT(registry_->ListNameless("", 10).arrays, IsEmpty());
  EXPECT_EQ(registry_->CountArrays().available, 1);
  EXPECT_EQ(registry_->CountCompanions().available, 1);

  const std::string second = StageCompanion(registry_.get(), Descriptor(id), id);
  EXPECT_THAT(Commit({{Staged(second)}, {}, "", ""}), StatusIs(absl::StatusCode::kAborted));
  registry_->Discard({second});

  // A second name is no second array, and the pin of a reader holds both.
  ASSERT_THAT(Commit({{}, {{"v", id, std::nullopt}}, "", ""}), IsOk());
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{}, {{"v", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), IsEmpty());
  registry_->Unpin({id});
  EXPECT_THAT(Released(), testing::UnorderedElementsAre(id, companion));
  EXPECT_EQ(StoredReleases(), 2) << "one record for each mesh";
  EXPECT_THAT(store_->List("array/")->items, IsEmpty());
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
}

TEST_F(ArrayRegistryTest, AnArrayThatGetsANameLaterIsToBeCopiedFromThenOn) {
  ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
  definition.replicas = 2;
  const std::string id = definition.descriptor.array_id;
  ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
  int told = 0;
  registry_->SetReplicaListener([&told] { ++told; });
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {}, "", ""}), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty());
  EXPECT_EQ(told, 0);
  ASSERT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), SizeIs(1));
  EXPECT_EQ(told, 1);
  // A second name changes nothing, and a name that comes back does.
  ASSERT_THAT(Commit({{}, {{"v", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_EQ(told, 1);
  for (const char* const name : {"w", "v"}) {
    ASSERT_THAT(Commit({{}, {{name, "", std::nullopt}}, "", ""}), IsOk());
  }
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty());
  ASSERT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
  EXPECT_EQ(told, 2);
  registry_->SetReplicaListener(nullptr);
}

TEST_F(ArrayRegistryTest, ARestartFindsACompanionByItsRecord) {
  // One array is a record of its own, the others stand in a manifest.
  std::vector<std::string> ids;
  CommitRequest load;
  for (int i = 0; i < 200; ++i) {
    ArrayDefinition definition{.descriptor = Descriptor(RandomId())};
    definition.replicas = 2;
    ids.push_back(definition.descriptor.array_id);
    ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
    load.arrays.push_back(Staged(ids.back()));
    load.moves.push_back({StrCat("w", i), ids.back(), std::nullopt});
  }
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  std::vector<std::string> companions;
  for (int i = 0; i < 2; ++i) {
    companions.push_back(
        StageCompanion(registry_.get(), Descriptor(ids[0]), ids[static_cast<size_t>(i)]));
    ASSERT_THAT(Commit({{Staged(companions.back())}, {}, "", ""}), IsOk());
  }
  Reopen();
  EXPECT_THAT(registry_->ListUnreplicated("", 1'000), SizeIs(198));
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_NE(registry_->FindTwin(ids[i]), nullptr);
    EXPECT_EQ(registry_->FindTwin(ids[i])->definition.descriptor.array_id, companions[i]);
  }
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  clock_.Advance(ArrayRegistry::kAdoptionGrace + absl::Seconds(1));
  EXPECT_THAT(Released(), IsEmpty()) << "the end of the grace period is not about companions";
  ASSERT_THAT(Commit({{}, {{"w0", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Released(), testing::UnorderedElementsAre(ids[0], companions[0]));

  Reopen();
  EXPECT_EQ(registry_->FindTwin(companions[0]), nullptr);
  EXPECT_NE(registry_->FindTwin(companions[1]), nullptr);
  EXPECT_EQ(registry_->CountUnconfirmed(), 2);
}

TEST_F(ArrayRegistryTest, ACompanionWhoseArrayIsGoneIsKeptForTheGracePeriodOnly) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  // The end of the process between the two records of the release.
  ASSERT_THAT(CommitAndWait(*store_, {.deletes = {StrCat("array/", id), "name/w"}}), IsOk());
  Reopen();
  EXPECT_EQ(registry_->FindTwin(companion), nullptr);
  EXPECT_THAT(registry_->FindArray(companion), IsOk());
  clock_.Advance(ArrayRegistry::kAdoptionGrace + absl::Seconds(1));
  EXPECT_THAT(Released(), ElementsAre(companion));
}

TEST_F(ArrayRegistryTest, ACompanionOfAnArrayThatWasGivenUpDoesNotOutliveTheProcess) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  std::string fresh;
  ASSERT_THAT(Replace("w", {id, companion}, &fresh), IsOk());
  EXPECT_EQ(StoredReleases(), 1) << "the array holds its companion";
  EXPECT_NE(registry_->FindTwin(id), nullptr);
  for (int start = 0; start < 2; ++start) {
    Reopen();
    EXPECT_EQ(registry_->CountUnnamed(), 0);
    EXPECT_EQ(registry_->CountUnconfirmed(), 2) << start;
    EXPECT_THAT(registry_->ListArrays("", 10), SizeIs(1));
    Settle();
    EXPECT_EQ(StoredReleases(), 2);
    EXPECT_THAT(store_->List("array/")->items, SizeIs(1));
  }
  // The same without a pin, in one process.
  const std::string second = StageCompanion(registry_.get(), Descriptor(fresh), fresh);
  ASSERT_THAT(Commit({{Staged(second)}, {}, "", ""}), IsOk());
  ASSERT_THAT(Replace("w", {fresh}), IsOk());
  EXPECT_THAT(Released(), testing::UnorderedElementsAre(fresh, second));
  EXPECT_EQ(StoredReleases(), 4);
}

TEST_F(ArrayRegistryTest, AnArrayThatWasGivenUpGetsNoCompanion) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Replace("w", {id}), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  EXPECT_THAT(Commit({{Staged(companion)}, {}, "", ""}), StatusIs(absl::StatusCode::kAborted));
  registry_->Discard({companion});
}

TEST_F(ArrayRegistryTest, ACompanionOfAnArrayThatWasReleasedMeanwhileIsRefused) {
  const std::string id = Stage();
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{}, {{"w", "", std::nullopt}}, "", ""}), IsOk());
  EXPECT_THAT(Commit({{Staged(companion)}, {}, "", ""}), StatusIs(absl::StatusCode::kAborted));
  registry_->Discard({companion});
  EXPECT_THAT(registry_->ListArrays("", 10), IsEmpty());
}

TEST_F(ArrayRegistryTest, ADamagedTileIsMissingUntilItsWorkerHasItAgain) {
  const std::string id = Stage();
  registry_->TileDamaged(id, 0);
  EXPECT_EQ(StateOf(id), ArrayState::kStaging) << "its put decides about it";
  ASSERT_THAT(Put("w", id), IsOk());
  registry_->TileDamaged("unknown", 0);
  registry_->TileDamaged(id, 7);  // the mesh has no such rank
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  registry_->TileDamaged(id, 1);
  registry_->TileDamaged(id, 1);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  EXPECT_THAT((*registry_->FindArray(id))->missing_ranks, ::testing::ElementsAre(1));
  // It comes back from the quarantine.
  Inventory restored = InventoryOf(1, {Held(id, 1, 11)});
  registry_->TakeRestored(restored);
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
}

TEST_F(ArrayRegistryTest, AReleasedArrayStaysInTheCacheWhereOnlyItsOriginFindsIt) {
  registry_->SetCaching(true);
  int64_t told = 0;
  registry_->SetCacheListener([&told] { ++told; });
  const std::string id = StageLoaded();
  const std::string key = KeyOf(id);
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_THAT(CachedIds(), IsEmpty());
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  EXPECT_EQ(told, 1);
  EXPECT_THAT(Released(), IsEmpty());
  EXPECT_EQ(registry_->CountUnconfirmed(), 0);

  EXPECT_EQ(StateOf(id), ArrayState::kReleased);
  EXPECT_THAT(registry_->Pin(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(registry_->Give(id, 0));
  EXPECT_THAT(Commit({{}, {{"v", id, std::nullopt}}, "", ""}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(registry_->ListArrays("", 10), IsEmpty());
  EXPECT_THAT(registry_->ListNameless("", 10).arrays, IsEmpty());
  EXPECT_EQ(registry_->CountArrays().total(), 0);
  EXPECT_EQ(registry_->CountTiles("m", 0), 0);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(registry_->MeshOf(id), "m");
  EXPECT_THAT(registry_->CachedBytes().at("m"), ElementsAre(32, 32));
  EXPECT_EQ(registry_->cache_totals().bytes, 64);

  const std::vector<ArrayPtr> found = registry_->FindByOrigin(key, 8);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0]->definition.descriptor.array_id, id);
  EXPECT_EQ(found[0]->state, ArrayState::kAvailable);
  ASSERT_THAT(registry_->PinFound(id), IsOk());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  EXPECT_THAT(CachedIds(), IsEmpty());
  EXPECT_THAT(registry_->CachedBytes(), IsEmpty());
  ExpectCountsOfWhatIsThere();
  ASSERT_THAT(Commit({{}, {{"again", id, std::nullopt}}, "", ""}), IsOk());
  registry_->Unpin(id);
  EXPECT_EQ(registry_->FindName("again")->array_id, id);
  Reopen();
  EXPECT_EQ(registry_->FindName("again")->array_id, id);
  EXPECT_THAT(CachedIds(), IsEmpty()) << "it has a name, and its record says so";
}

TEST_F(ArrayRegistryTest, ArraysOfATypeAndShapeAreListedAlsoIfTheyAreCached) {
  registry_->SetCaching(true);
  const std::string cached = Cached("a", 64);
  const std::string named = StageLoaded(128);
  const std::string staged = StageLoaded(192);
  ASSERT_THAT(Put("b", named), IsOk());
  const ArrayDescriptor form = Descriptor("");
  const auto ids = [&](std::string_view start_after, int64_t limit) {
    std::vector<std::string> listed;
    for (const ArrayPtr& each : registry_->ListAlike(form.dtype, form.shape, start_after, limit)) {
      listed.push_back(each->definition.descriptor.array_id);
    }
    return listed;
  };
  const std::string first = std::min(cached, named);
  const std::string second = std::max(cached, named);
  EXPECT_THAT(ids("", 10), ElementsAre(first, second)) << "what is only staged is left out";
  EXPECT_THAT(ids("", 1), ElementsAre(first));
  EXPECT_THAT(ids(first, 10), ElementsAre(second));
  EXPECT_THAT(registry_->ListAlike(Dtype::kI8, form.shape, "", 10), IsEmpty());
  EXPECT_THAT(registry_->ListAlike(form.dtype, {7}, "", 10), IsEmpty());
  EXPECT_EQ(registry_->FindCommitted(cached)->definition.descriptor.array_id, cached);
  EXPECT_EQ(registry_->FindCommitted(named)->state, ArrayState::kAvailable);
  EXPECT_EQ(registry_->FindCommitted(staged), nullptr);
  EXPECT_EQ(registry_->FindCommitted("unknown"), nullptr);
  registry_->TileDamaged(named, 1);
  EXPECT_EQ(registry_->FindCommitted(named)->state, ArrayState::kDegraded);
  registry_->Evict({cached});
  EXPECT_THAT(ids("", 10), ElementsAre(named));
}

TEST_F(ArrayRegistryTest, AnArrayIsFoundByItsLastOtherOriginsToo) {
  const std::string id = StageLoaded();
  const std::string own = KeyOf(id);
  ASSERT_THAT(Put("w", id), IsOk());
  registry_->AddOrigin(id, own);
  registry_->AddOrigin(id, "");
  registry_->AddOrigin("unknown", "0");
  for (int i = 0; i < 6; ++i) registry_->AddOrigin(id, StrCat(i / 2 * 2));  // "0", "2" and "4"
  for (int i = 5; i < 8; ++i) registry_->AddOrigin(id, StrCat(i));
  EXPECT_THAT(registry_->FindByOrigin("0", 8), IsEmpty()) << "the oldest of six";
  EXPECT_THAT(registry_->FindByOrigin("2", 8), IsEmpty());
  for (const std::string& key : {own, std::string("4"), std::string("7")}) {
    const std::vector<ArrayPtr> found = registry_->FindByOrigin(key, 8);
    ASSERT_THAT(found, SizeIs(1)) << key;
    EXPECT_EQ(found[0]->definition.descriptor.array_id, id);
  }
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(registry_->FindByOrigin("7", 8), IsEmpty());
  EXPECT_THAT(registry_->FindByOrigin(own, 8), IsEmpty());
}

TEST_F(ArrayRegistryTest, OnlyAvailableArraysOfKnownOriginsAreCached) {
  const std::string off = StageLoaded();
  ASSERT_THAT(Put("off", off), IsOk());
  ASSERT_THAT(DeleteName("off"), IsOk());
  EXPECT_THAT(Released(), ElementsAre(off)) << "the cache is off at first";
  registry_->SetCaching(true);
  const std::string unknown = Stage();
  ASSERT_THAT(Put("unknown", unknown), IsOk());
  ASSERT_THAT(DeleteName("unknown"), IsOk());
  const std::string degraded = StageLoaded();
  ASSERT_THAT(Put("degraded", degraded), IsOk());
  registry_->TileDamaged(degraded, 1);
  ASSERT_THAT(DeleteName("degraded"), IsOk());
  EXPECT_THAT(Released(), ElementsAre(off, unknown, degraded));
  EXPECT_THAT(CachedIds(), IsEmpty());
  // A replaced array is released too.
  const std::string replaced = StageLoaded();
  ASSERT_THAT(Put("w", replaced), IsOk());
  ASSERT_THAT(Put("w", StageLoaded(128)), IsOk());
  EXPECT_THAT(CachedIds(), ElementsAre(replaced));
  EXPECT_EQ(registry_->cache_totals().misses, 0);
  registry_->FindByOrigin("no such key", 1);
  registry_->FindByOrigin("", 1);
  EXPECT_EQ(registry_->cache_totals().misses, 1);
}

TEST_F(ArrayRegistryTest, WhatAMoveLeavesBehindIsNotCached) {
  registry_->SetCaching(true);
  const std::string old = StageLoaded();
  ASSERT_THAT(Put("w", old), IsOk());
  ASSERT_THAT(registry_->Pin(old), IsOk());
  const std::string moved = StageLoaded();
  ASSERT_EQ(KeyOf(old), KeyOf(moved));
  ASSERT_THAT(Put("w", moved), IsOk());
  registry_->Unpin(old);
  EXPECT_THAT(Released(), ElementsAre(old)) << "its elements are there in another layout";
  // To another name, in one commit.
  const std::string renamed = StageLoaded();
  ASSERT_THAT(
      Commit({{Staged(renamed)}, {{"w", "", std::nullopt}, {"v", renamed, std::nullopt}}, "", ""}),
      IsOk());
  EXPECT_THAT(Released(), ElementsAre(old, moved));
  EXPECT_THAT(CachedIds(), IsEmpty());
  // The next release has nothing to do with a move.
  ASSERT_THAT(DeleteName("v"), IsOk());
  EXPECT_THAT(CachedIds(), ElementsAre(renamed));
}

TEST_F(ArrayRegistryTest, AnArrayOfTwoReplicasIsCachedWithoutItsCompanion) {
  registry_->SetCaching(true);
  int told = 0;
  registry_->SetReplicaListener([&told] { ++told; });
  const std::string id = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_EQ(told, 1);
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  ASSERT_NE(registry_->FindTwin(id), nullptr);
  const std::string late = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  EXPECT_EQ(told, 2) << "it wants no copy any more";
  EXPECT_THAT(Released(), ElementsAre(companion));
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->CountCompanions().available, 0);
  EXPECT_EQ(registry_->cache_totals().bytes, 64) << "of the first copy only";
  EXPECT_TRUE(test::Eventually([&] { return !store_->Get("array/" + companion).ok(); }));
  EXPECT_THAT(Commit({{Staged(late)}, {}, "", ""}), StatusIs(absl::StatusCode::kAborted))
      << "a copy that ends now gives the cached array no companion";
  registry_->Discard({late});

  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/2), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty()) << "it has no name yet";
  ASSERT_THAT(Commit({{}, {{"again", id, std::nullopt}}, "", ""}), IsOk());
  registry_->Unpin(id);
  EXPECT_EQ(told, 3);
  EXPECT_THAT(registry_->ListUnreplicated("", 10), SizeIs(1));
  const std::string second = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(second)}, {}, "", ""}), IsOk());
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty());
  Reopen();
  ASSERT_NE(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->FindTwin(id)->definition.descriptor.array_id, second);
}

TEST_F(ArrayRegistryTest, ARestartReleasesTheCompanionOfACachedArray) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValue record, store_->Get("array/" + companion));
  ASSERT_THAT(DeleteName("w"), IsOk());
  ASSERT_THAT(CachedIds(), ElementsAre(id));
  // The coordinator ends after it wrote that the array is cached, and before it wrote the release.
  Transaction back;
  back.puts.push_back({record.key, record.value});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const KeyValues releases, store_->List("released/"));
  for (const KeyValue& item : releases.items) back.deletes.push_back(item.key);
  ASSERT_THAT(CommitAndWait(*store_, std::move(back)), IsOk());
  Reopen();
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->FindCommitted(companion), nullptr);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
  EXPECT_TRUE(test::Eventually([&] { return !store_->Get("array/" + companion).ok(); }));
}

TEST_F(ArrayRegistryTest, TheUseOfACachedArraySaysHowManyReplicasItWants) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("w", id), IsOk());
  EXPECT_FALSE(registry_->IsCached(id));
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_TRUE(registry_->IsCached(id));
  EXPECT_FALSE(registry_->IsCached("unknown"));
  const auto wanted = [&] { return registry_->FindCommitted(id)->definition.replicas; };
  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/false, /*replicas=*/1), IsOk());
  EXPECT_EQ(wanted(), 2) << "a validation changes nothing";
  EXPECT_TRUE(registry_->IsCached(id)) << "a use is still a hit";
  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/1), IsOk());
  EXPECT_EQ(wanted(), 1);
  EXPECT_FALSE(registry_->IsCached(id));
  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/2), IsOk());
  EXPECT_EQ(wanted(), 1) << "another use has it already";
  ASSERT_THAT(Commit({{}, {{"once", id, std::nullopt}}, "", ""}), IsOk());
  for (int pins = 0; pins < 3; ++pins) registry_->Unpin(id);
  EXPECT_THAT(registry_->ListUnreplicated("", 10), IsEmpty());
  EXPECT_EQ(registry_->ReplicasOf("once"), 1);
  ExpectCountsOfWhatIsThere();
  ASSERT_THAT(DeleteName("once"), IsOk());
  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/2), IsOk());
  ASSERT_THAT(Commit({{}, {{"twice", id, std::nullopt}}, "", ""}), IsOk());
  registry_->Unpin(id);
  EXPECT_THAT(registry_->ListUnreplicated("", 10), SizeIs(1));
  Reopen();
  EXPECT_EQ(registry_->ReplicasOf("twice"), 2) << "its record says so";
}

TEST_F(ArrayRegistryTest, ACopyThatEndsAfterAUseThatWantsNoneIsNoCompanion) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string late = StageCompanion(registry_.get(), Descriptor(id), id);
  for (const int64_t wanted : {int64_t{1}, int64_t{2}}) {
    ASSERT_THAT(DeleteName("w"), IsOk());
    ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, wanted), IsOk());
    ASSERT_THAT(Commit({{}, {{"w", id, std::nullopt}}, "", ""}), IsOk());
    registry_->Unpin(id);
    if (wanted > 1) break;
    EXPECT_THAT(Commit({{Staged(late)}, {}, "", ""}), StatusIs(absl::StatusCode::kAborted));
    EXPECT_EQ(registry_->FindTwin(id), nullptr);
  }
  EXPECT_THAT(Commit({{Staged(late)}, {}, "", ""}), IsOk()) << "its tiles are those of the array";
  EXPECT_NE(registry_->FindTwin(id), nullptr);
}

TEST_F(ArrayRegistryTest, ARestartReleasesTheCompanionThatAnArrayWantsNoMore) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("w", id), IsOk());
  const std::string companion = StageCompanion(registry_.get(), Descriptor(id), id);
  ASSERT_THAT(registry_->Pin(companion), IsOk());  // as the copy does until its end
  ASSERT_THAT(Commit({{Staged(companion)}, {}, "", ""}), IsOk());
  ASSERT_THAT(DeleteName("w"), IsOk());
  ASSERT_TRUE(registry_->IsCached(id));
  ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/1), IsOk());
  ASSERT_THAT(Commit({{}, {{"again", id, std::nullopt}}, "", ""}), IsOk());
  registry_->Unpin(id);
  EXPECT_THAT(registry_->FindArray(companion), IsOk()) << "its pin holds it";
  Reopen();
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->FindCommitted(companion), nullptr);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
  EXPECT_TRUE(test::Eventually([&] { return !store_->Get("array/" + companion).ok(); }));
}

// The manifest of a large load stays as long as one of its names points to its array.
TEST_F(ArrayRegistryTest, ARestartKnowsTheReplicasThatTheLastUseWants) {
  registry_->SetCaching(true);
  std::vector<std::string> ids;
  CommitRequest load;
  for (int i = 0; i < 200; ++i) {
    ids.push_back(StageLoaded(64 * (i + 1), /*replicas=*/i == 0 ? 1 : 2));
    load.arrays.push_back(Staged(ids.back()));
    load.moves.push_back({StrCat("w", i), ids.back(), std::nullopt});
  }
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_THAT(DeleteName(StrCat("w", i)), IsOk());
    ASSERT_TRUE(registry_->IsCached(ids[i]));
    const int64_t wanted = i == 0 ? 2 : 1;
    ASSERT_THAT(registry_->PinFound(ids[i], /*is_use=*/true, wanted), IsOk());
    ASSERT_THAT(Commit({{}, {{StrCat("v", i), ids[i], std::nullopt}}, "", ""}), IsOk());
    registry_->Unpin(ids[i]);
  }
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(registry_->ReplicasOf("v0"), 2) << start;
    EXPECT_EQ(registry_->ReplicasOf("v1"), 1) << start;
    EXPECT_EQ(registry_->ReplicasOf("w2"), 2) << start;
    EXPECT_THAT(registry_->ListUnreplicated("", 1'000), SizeIs(199)) << start;
    Reopen();
  }
}

TEST_F(ArrayRegistryTest, CachedArraysAreListedByTheirLastUseAndEvicted) {
  registry_->SetCaching(true);
  const std::string a = Cached("a", 64);
  const std::string b = Cached("b", 128);
  const std::string c = Cached("c", 192);
  ASSERT_THAT(registry_->PinFound(a), IsOk());
  EXPECT_THAT(registry_->Evict({a}), IsEmpty()) << "a put uses it";
  registry_->Unpin(a);
  EXPECT_THAT(CachedIds(), ElementsAre(b, c, a));
  EXPECT_THAT(registry_->Evict({b, a, "unknown"}), ElementsAre(b, a));
  EXPECT_THAT(CachedIds(), ElementsAre(c));
  EXPECT_THAT(Released(), ElementsAre(b, a));
  EXPECT_THAT(registry_->PinFound(a), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(registry_->CachedBytes().at("m"), ElementsAre(32, 32));
  const CacheTotals totals = registry_->cache_totals();
  EXPECT_EQ(totals.hits, 1);
  EXPECT_EQ(totals.evictions, 2);
  EXPECT_EQ(totals.arrays, 1);
  Reopen();
  EXPECT_THAT(CachedIds(), ElementsAre(c)) << "evicted ones are gone from the store";
  EXPECT_EQ(registry_->CountUnconfirmed(), 2);
}

TEST_F(ArrayRegistryTest, ACachedArrayIsThereAgainAfterARestartOnceItsTilesAre) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded();
  const std::string key = KeyOf(id);
  ASSERT_THAT(Put("w", id), IsOk());
  ASSERT_THAT(DeleteName("w"), IsOk());
  Reopen();  // its caching is off until a worker attaches
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  EXPECT_EQ(registry_->CountArrays().total(), 0);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  ASSERT_THAT(registry_->FindByOrigin(key, 8), SizeIs(1));
  EXPECT_EQ(registry_->FindByOrigin(key, 8)[0]->state, ArrayState::kDegraded);
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).commit, ElementsAre(id));
  EXPECT_THAT(Attach(1, {Held(id, 1, 11)}).commit, ElementsAre(id));
  EXPECT_EQ(registry_->FindByOrigin(key, 8)[0]->state, ArrayState::kAvailable);
  // A worker that was away and has its tiles again changes nothing.
  Lose(1);
  EXPECT_EQ(registry_->FindByOrigin(key, 8)[0]->state, ArrayState::kDegraded);
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  Attach(1, {Held(id, 1, 11)});
  EXPECT_EQ(registry_->FindByOrigin(key, 8)[0]->state, ArrayState::kAvailable);
  clock_.Advance(ArrayRegistry::kAdoptionGrace + absl::Seconds(1));
  EXPECT_THAT(CachedIds(), ElementsAre(id)) << "it needs no grace";
}

TEST_F(ArrayRegistryTest, ManyCachedArraysOfAManifestOutliveARestart) {
  registry_->SetCaching(true);
  constexpr int64_t kArrays = 250;
  CommitRequest load;
  for (int64_t i = 0; i < kArrays; ++i) {
    const std::string id = StageLoaded(64 * i);
    load.arrays.push_back(Staged(id));
    load.moves.push_back({StrCat("w", i), id, std::nullopt});
  }
  ASSERT_THAT(Commit(std::move(load)), IsOk());
  // Others take all the names at once.
  ASSERT_THAT(Commit(LoadOf(kArrays)), IsOk());
  EXPECT_THAT(CachedIds(), SizeIs(kArrays));
  Settle();
  Reopen();
  EXPECT_THAT(CachedIds(), SizeIs(kArrays));
  EXPECT_EQ(registry_->CountNames(), kArrays);
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  registry_->Evict(CachedIds());
  Settle();
  Reopen();
  EXPECT_THAT(CachedIds(), IsEmpty());
  EXPECT_THAT(store_->List("array/")->items, IsEmpty());
}

TEST_F(ArrayRegistryTest, ACachedArrayThatLostATileIsEvicted) {
  registry_->SetCaching(true);
  const std::string damaged = Cached("a", 64);
  const std::string missing = Cached("b", 128);
  const std::string sound = Cached("c", 192);
  registry_->TileDamaged(damaged, 7);  // the mesh has no such rank
  EXPECT_THAT(CachedIds(), SizeIs(3));
  registry_->TileDamaged(damaged, 1);
  EXPECT_THAT(CachedIds(), ElementsAre(missing, sound));
  EXPECT_THAT(Released(), ElementsAre(damaged));
  Attach(0, {Held(sound, 0, 10)});
  EXPECT_THAT(CachedIds(), ElementsAre(sound));
  EXPECT_THAT(Released(), ElementsAre(damaged, missing));
  // A worker that still has a tile of an evicted array is to drop it.
  EXPECT_THAT(Attach(1, {Held(missing, 1, 11), Held(sound, 1, 11)}).drop, ElementsAre(missing));
  EXPECT_THAT(CachedIds(), ElementsAre(sound));
}

TEST_F(ArrayRegistryTest, AMeshWithOnlyCachedArraysMayChange) {
  registry_->SetCaching(true);
  const std::string id = Cached("a");
  const std::string held = StageLoaded();
  ASSERT_THAT(Put("w", held), IsOk());
  EXPECT_THAT(registry_->BeginMeshChange("m"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshInUse));
  EXPECT_THAT(CachedIds(), ElementsAre(id));
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(registry_->CheckMeshChange("m"), IsOk());
  EXPECT_THAT(CachedIds(), SizeIs(2)) << "a check changes nothing";
  EXPECT_THAT(registry_->BeginMeshChange("m"), IsOk());
  EXPECT_THAT(CachedIds(), IsEmpty());
  EXPECT_THAT(Released(), SizeIs(2));
  registry_->EndMeshChange("m", std::nullopt);
}

TEST_F(ArrayRegistryTest, WatchersSeeACachedArrayAsDeleted) {
  registry_->SetCaching(true);
  registry_->SetChanges(&changes_);
  const std::string id = StageLoaded();
  ASSERT_THAT(Put("w", id), IsOk());
  std::vector<std::string> told;
  const auto watch = changes_.Begin([&told](const ClusterChangePtr& change) {
    if (const auto* array = std::get_if<ArrayChange>(&change->value)) {
      told.push_back(StrCat(array->is_deleted ? "-" : "+", array->array_id));
    }
  });
  ASSERT_THAT(DeleteName("w"), IsOk());
  EXPECT_THAT(told, ElementsAre("-" + id));
  ASSERT_THAT(registry_->PinFound(id), IsOk());
  EXPECT_THAT(told, ElementsAre("-" + id, "+" + id));
  registry_->Unpin(id);
  ASSERT_THAT(registry_->Evict({id}), ElementsAre(id));
  EXPECT_EQ(std::count(told.begin(), told.end(), "-" + id), 2) << "the eviction tells nothing new";
}

TEST_F(ArrayRegistryTest, StateForgetsWhereItsContentCameFrom) {
  registry_->SetCaching(true);
  const std::string id = StageLoaded();
  ASSERT_THAT(Put("kv", id), IsOk());
  const std::string key = KeyOf(id);
  registry_->AddOrigin(id, "another place");
  registry_->SetCheckpoint(id, {.file = FileAt("/saved/kv.safetensors")});
  ASSERT_THAT(registry_->FindByOrigin(key, 10), SizeIs(1));
  EXPECT_EQ(registry_->StateStepOf(id), std::nullopt);
  ASSERT_THAT(MakeState({id}), IsOk());
  ASSERT_THAT(MakeState({id}), IsOk()) << "repeated";

  const auto expect_state = [&] {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr array, registry_->FindArray(id));
    EXPECT_TRUE(array->definition.is_state);
    EXPECT_EQ(array->definition.source.file, nullptr);
    EXPECT_EQ(array->checkpoint.file, nullptr);
    EXPECT_EQ(array->durability, Durability::kMemory);
    EXPECT_THAT(registry_->FindByOrigin(key, 10), IsEmpty());
    EXPECT_THAT(registry_->FindByOrigin("another place", 10), IsEmpty());
    EXPECT_THAT(registry_->ListAlike(Dtype::kBF16, {8, 4}, "", 10), IsEmpty());
    EXPECT_EQ(registry_->FindCommitted(id), nullptr);
  };
  expect_state();
  EXPECT_EQ(registry_->StateStepOf(id), 0);
  registry_->SetCheckpoint(id, {.file = FileAt("/saved/kv.safetensors")});
  registry_->AddOrigin(id, "another place");
  expect_state();
  Reopen();
  registry_->SetCheckpoint(id, {.file = FileAt("/saved/kv.safetensors")});
  expect_state();

  registry_->SetCaching(true);
  ASSERT_THAT(DeleteName("kv"), IsOk());
  EXPECT_THAT(Released(), ElementsAre(id)) << "state is not cached";
  EXPECT_THAT(store_->List("state/")->items, IsEmpty());
}

TEST_F(ArrayRegistryTest, ArraysWithSecondReplicasOrNamesDoNotBecomeState) {
  const std::string replicated = StageLoaded(64, /*replicas=*/2);
  ASSERT_THAT(Put("two", replicated), IsOk());
  EXPECT_THAT(MakeState({replicated}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  const std::string shared = StageLoaded(128);
  ASSERT_THAT(Put("one", shared), IsOk());
  ASSERT_THAT(Commit({{}, {{"other", shared, std::nullopt}}, "", ""}), IsOk());
  const std::string own = StageLoaded(256);
  ASSERT_THAT(Put("own", own), IsOk());
  EXPECT_THAT(MakeState({own, shared}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_FALSE((*registry_->FindArray(own))->definition.is_state) << "all or none";
  EXPECT_THAT(MakeState({"unknown"}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(MakeState({Stage()}), StatusIs(absl::StatusCode::kNotFound)) << "only staged";
  EXPECT_THAT(MakeState({}), IsOk());
}

TEST_F(ArrayRegistryTest, APutDoesNotNameStateThatItFoundByItsContent) {
  const std::string id = StageLoaded();
  ASSERT_THAT(Put("kv", id), IsOk());
  CommitRequest again{
      .arrays = {}, .moves = {{"again", id, std::nullopt}}, .request_id = "", .answer = ""};
  again.reused = {id};
  ASSERT_THAT(MakeState({id}), IsOk());
  EXPECT_THAT(Commit(again), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(registry_->FindName("again"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ArrayRegistryTest, OnlyTilesOfTheLastUpdateCount) {
  const std::string id = Stage();
  ASSERT_THAT(Put("kv", id), IsOk());
  ASSERT_THAT(MakeState({id}), IsOk());
  EXPECT_THAT(Attach(0, {Held(id, 0, 10)}).quarantine, IsEmpty()) << "no step has updated it";
  CommitUpdate({id}, 7);
  EXPECT_EQ(registry_->StateStepOf(id), 7);
  EXPECT_THAT(Attach(0, {Updated(id, 0, 7)}).quarantine, IsEmpty());
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  const InventoryVerdict verdict = Attach(1, {Updated(id, 1, 6)});
  ASSERT_THAT(verdict.quarantine, SizeIs(1));
  EXPECT_THAT(verdict.quarantine[0].reason, HasSubstr("step 7"));
  EXPECT_THAT(verdict.quarantine[0].reason, HasSubstr("step 6"));
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded);
  EXPECT_THAT(registry_->CheckTile(id, 1, Held(id, 1, 11).tile, 11),
              StatusIs(absl::StatusCode::kFailedPrecondition))
      << "nor come back from quarantine";
}

// A worker that attaches anew while the commit of an update is written gives the update up.
TEST_F(ArrayRegistryTest, TilesThatInventoriesBringDuringACommitAreNotOfItsUpdate) {
  RecordingStore store(store_.get());
  registry_.reset();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      registry_, ArrayRegistry::Open(&store, &clock_, [](const auto&, const auto&) {}));
  const std::string id = Stage();
  ASSERT_THAT(Put("kv", id), IsOk());
  ASSERT_THAT(MakeState({id}), IsOk());
  const auto commit = [&](int64_t step, int64_t rank_that_attaches) {
    CommitRequest update{.arrays = {},
                         .moves = {{StrCat("also", step), id, std::nullopt}},
                         .request_id = "",
                         .answer = ""};
    update.updated = {id};
    update.step = step;
    absl::Notification done;
    store.HoldBack();
    registry_->Commit(std::move(update), [&](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    if (rank_that_attaches >= 0) {
      EXPECT_THAT(
          Attach(rank_that_attaches, {Updated(id, rank_that_attaches, step - 1)}).quarantine,
          IsEmpty())
          << "nobody knows yet whether the step commits";
    }
    store.LetGo();
    done.WaitForNotification();
  };
  commit(1, -1);
  EXPECT_EQ(StateOf(id), ArrayState::kAvailable);
  commit(2, 1);
  EXPECT_EQ(StateOf(id), ArrayState::kDegraded) << "the tile of rank 1 is of step 1";
  EXPECT_THAT(Attach(1, {Updated(id, 1, 1)}).quarantine, SizeIs(1));
  EXPECT_EQ(registry_->StateStepOf(id), 2);
  registry_.reset();
  Reopen();
}

// A put that has found an array by its content must not get it while the record is written.
TEST_F(ArrayRegistryTest, APutDoesNotNameAnArrayThatIsBecomingState) {
  RecordingStore store(store_.get());
  registry_.reset();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      registry_, ArrayRegistry::Open(&store, &clock_, [](const auto&, const auto&) {}));
  const std::string id = StageLoaded();
  ASSERT_THAT(Put("kv", id), IsOk());
  CommitRequest again{
      .arrays = {}, .moves = {{"again", id, std::nullopt}}, .request_id = "", .answer = ""};
  again.reused = {id};
  absl::Notification done;
  store.HoldBack();
  registry_->MakeState({id}, [&](const absl::Status& status) {
    EXPECT_THAT(status, IsOk());
    done.Notify();
  });
  EXPECT_THAT(Commit(again), StatusIs(absl::StatusCode::kAborted));
  store.LetGo();
  done.WaitForNotification();
  EXPECT_TRUE((*registry_->FindArray(id))->definition.is_state);
  registry_.reset();
  Reopen();
}

TEST_F(ArrayRegistryTest, AfterARestartAllRanksMustHaveTheSameUpdate) {
  const std::string same = Stage();
  const std::string torn = Stage();
  ASSERT_THAT(Put("same", same), IsOk());
  ASSERT_THAT(Put("torn", torn), IsOk());
  ASSERT_THAT(MakeState({same, torn}), IsOk());
  CommitUpdate({same, torn}, 7);
  Reopen();
  EXPECT_EQ(registry_->StateStepOf(same), std::nullopt) << "no worker has reported it";
  EXPECT_THAT(Attach(0, {Updated(same, 0, 7), Updated(torn, 0, 7)}).quarantine, IsEmpty());
  EXPECT_EQ(registry_->StateStepOf(same), 7);
  EXPECT_THAT(Attach(1, {Updated(same, 1, 7), Updated(torn, 1, 6)}).quarantine, SizeIs(1));
  EXPECT_EQ(StateOf(same), ArrayState::kAvailable);
  EXPECT_EQ(StateOf(torn), ArrayState::kDegraded);
}

// The step has moved a name to its result, and its coordinator has ended before any worker heard
// so.
TEST_F(ArrayRegistryTest, StateDoesNotComeBackFromBeforeAStepWhoseResultIsThere) {
  const std::string named = Stage();
  ASSERT_THAT(Put("kv", named), IsOk());
  const std::string unnamed = Stage();
  ASSERT_THAT(registry_->Pin(unnamed), IsOk());
  ASSERT_THAT(Commit({{Staged(unnamed)}, {}, "", ""}), IsOk());
  ASSERT_THAT(MakeState({named, unnamed}), IsOk());
  CommitUpdate({named, unnamed}, 6);
  const std::string result = Stage();
  CommitRequest step{.arrays = {Staged(result)},
                     .moves = {{"logits", result, std::nullopt}},
                     .request_id = "",
                     .answer = ""};
  step.updated = {named, unnamed};
  step.step = 7;
  ASSERT_THAT(Commit(step), IsOk());
  const auto attach_at = [&](int64_t at_step) {
    Reopen();
    for (const int64_t rank : {0, 1}) {
      const size_t put_aside = at_step < 7 ? 1 : 0;
      EXPECT_THAT(Attach(rank, {Updated(named, rank, at_step)}).quarantine, SizeIs(put_aside));
    }
    return StateOf(named);
  };
  EXPECT_EQ(attach_at(7), ArrayState::kAvailable);
  EXPECT_EQ(attach_at(8), ArrayState::kAvailable) << "steps that move no names leave no record";
  EXPECT_EQ(attach_at(6), ArrayState::kDegraded);
  for (const int64_t rank : {0, 1}) Attach(rank, {Updated(unnamed, rank, 6)});
  EXPECT_THAT(registry_->FindArray(unnamed), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ArrayRegistryTest, StateWithoutANameIsAdoptedAsState) {
  const std::string id = Stage();
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {}, "", ""}), IsOk());
  ASSERT_THAT(MakeState({id}), IsOk());
  CommitUpdate({id}, 7);
  Reopen();
  EXPECT_THAT(Attach(0, {Updated(id, 0, 7)}).quarantine, IsEmpty());
  EXPECT_THAT(Attach(1, {Updated(id, 1, 7)}).quarantine, IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr array, registry_->FindArray(id));
  EXPECT_TRUE(array->definition.is_state);
  EXPECT_EQ(registry_->StateStepOf(id), 7);
  clock_.Advance(ArrayRegistry::kAdoptionGrace + absl::Seconds(1));
  EXPECT_EQ(StateOf(id), ArrayState::kReleased);
  Settle();
  EXPECT_THAT(store_->List("state/")->items, IsEmpty());
}

TEST_F(ArrayRegistryTest, ARecordOfStateThatNobodyBringsGoesWithTheGracePeriod) {
  const std::string id = Stage();
  ASSERT_THAT(registry_->Pin(id), IsOk());
  ASSERT_THAT(Commit({{Staged(id)}, {}, "", ""}), IsOk());
  ASSERT_THAT(MakeState({id}), IsOk());
  Reopen();
  EXPECT_THAT(store_->List("state/")->items, SizeIs(1));
  clock_.Advance(ArrayRegistry::kAdoptionGrace + absl::Seconds(1));
  Settle();
  EXPECT_THAT(store_->List("state/")->items, IsEmpty());
}

}  // namespace
}  // namespace shardmesh::server
