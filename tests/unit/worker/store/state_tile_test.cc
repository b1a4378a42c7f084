// Updates of stored tiles by steps: who may read meanwhile, and how each of them ends.
#include "worker/store/state_tile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

constexpr int64_t kStateBytes = 24;

// The first of two tiles of a U8 array.
TileDescription FirstHalf(const std::string& array_id) {
  return {array_id,     Dtype::kU8, {2, kStateBytes}, {{{0, 1}, {0, kStateBytes}}},
          "descriptor", "transfer"};
}

std::string Filled(char with) { return std::string(static_cast<size_t>(kStateBytes), with); }

std::string TextOf(const StoredTilePtr& tile) {
  return std::string(tile->bytes().begin(), tile->bytes().end());
}

void Fill(StateTile& update, char with) {
  const absl::Span<char> bytes = update.mutable_bytes();
  std::fill(bytes.begin(), bytes.end(), with);
}

class StateTileTest : public testing::Test {
 protected:
  StateTileTest() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    data_dir_ = StrCat(testing::TempDir(), "/state_tile_", test->name());
    std::filesystem::remove_all(data_dir_);
  }

  std::unique_ptr<ShardStore> Open(const std::string& data_dir) {
    auto store = ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir});
    EXPECT_THAT(store, IsOk());
    EXPECT_THAT((*store)->SetClusterId("cluster"), IsOk());
    return *std::move(store);
  }

  // Commits the array "kv", whose tile has 'a' in each byte.
  std::unique_ptr<ShardStore> OpenWithArray(const std::string& data_dir) {
    std::unique_ptr<ShardStore> store = Open(data_dir);
    Stage(*store);
    EXPECT_THAT(store->Commit({"kv"}), IsOk());
    return store;
  }

  void Stage(ShardStore& store) {
    auto staged = store.Stage(FirstHalf("kv"), store.has_data_dir());
    ASSERT_THAT(staged, IsOk());
    const std::string bytes = Filled('a');
    ASSERT_THAT((*staged)->Append(0, bytes, Crc32c(bytes)), IsOk());
    ASSERT_THAT((*staged)->Finish(std::nullopt), IsOk());
  }

  std::string Content(const ShardStore& store) {
    const auto found = store.Find("kv", kTile);
    EXPECT_THAT(found, IsOk());
    return found.ok() ? TextOf(*found) : std::string();
  }

  const Tile kTile = FirstHalf("kv").tile;
  MemoryBudget budget_{1 << 16};
  std::string data_dir_;
};

TEST_F(StateTileTest, AnExclusiveUpdateWritesTheBytesOfTheArray) {
  const auto store = OpenWithArray("");
  const char* const bytes = (*store->Find("kv", kTile))->bytes().data();
  const int64_t used_bytes = store->used_bytes();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  EXPECT_TRUE(update->is_exclusive());
  EXPECT_EQ(update->step(), 7);
  EXPECT_EQ(update->description(), FirstHalf("kv"));
  EXPECT_EQ(update->mutable_bytes().data(), bytes) << "not a copy";
  EXPECT_EQ(store->used_bytes(), used_bytes);
  Fill(*update, 'b');
  ASSERT_THAT(update->Commit(), IsOk());
  EXPECT_TRUE(update->mutable_bytes().empty());

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr updated, store->Find("kv", kTile));
  EXPECT_EQ(TextOf(updated), Filled('b'));
  EXPECT_TRUE(updated->is_state());
  EXPECT_EQ(updated->state_step(), 7);
  EXPECT_EQ(updated->crc32c(), Crc32c(Filled('b')));
  EXPECT_EQ(updated->crc32c(), Crc32c(Filled('b'))) << "remembered";
  EXPECT_EQ(store->used_bytes(), used_bytes);
}

TEST_F(StateTileTest, AReaderKeepsTheOldBytesAndTheUpdateGetsACopy) {
  const auto store = OpenWithArray("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StoredTilePtr reader, store->Find("kv", kTile));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  EXPECT_FALSE(update->is_exclusive());
  EXPECT_EQ(std::string(update->mutable_bytes().data(), Filled('a').size()), Filled('a'));
  Fill(*update, 'b');
  EXPECT_EQ(Content(*store), Filled('a')) << "finds do not wait, and see the old bytes";
  ASSERT_THAT(update->Commit(), IsOk());
  EXPECT_EQ(TextOf(reader), Filled('a'));
  EXPECT_EQ(Content(*store), Filled('b'));
  reader = nullptr;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(update, store->BeginUpdate("kv", kTile, 8));
  EXPECT_TRUE(update->is_exclusive()) << "nobody holds the tile any more";
}

TEST_F(StateTileTest, NobodyFindsTheOldContentOnceTheStepMayHaveCommitted) {
  const auto store = OpenWithArray("");
  for (const bool commits : {true, false}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr reader, store->Find("kv", kTile));
    const std::string before = TextOf(reader);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
    ASSERT_FALSE(update->is_exclusive());
    Fill(*update, 'b');
    EXPECT_EQ(Content(*store), before) << "the step runs";
    update->AwaitCommit();
    EXPECT_THAT(store->Find("kv", kTile),
                StatusIs(absl::StatusCode::kUnavailable, Reason::kOverloaded));
    EXPECT_THAT(store->FindAllHeld("kv", /*staged_too=*/true),
                StatusIs(absl::StatusCode::kUnavailable, Reason::kOverloaded));
    if (commits) {
      ASSERT_THAT(update->Commit(), IsOk());
    } else {
      update->Abort();
    }
    update->AwaitCommit();
    EXPECT_EQ(Content(*store), Filled('b'));
    EXPECT_EQ(TextOf(reader), before);
  }
}

TEST_F(StateTileTest, AnUpdateThatAbortsLeavesTheTileAsItWas) {
  const auto store = OpenWithArray("");
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
    Fill(*update, 'b');
    Fill(*update, 'a');  // the executor restores the bytes
    update->Abort();
    update->Abort();
  }
  {
    const auto reader = store->Find("kv", kTile);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 8));
    Fill(*update, 'c');  // a copy, which needs no restoring; the destructor aborts
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store->Find("kv", kTile));
  EXPECT_EQ(TextOf(tile), Filled('a'));
  EXPECT_FALSE(tile->is_state()) << "no step has updated it";
  EXPECT_EQ(tile->crc32c(), Crc32c(Filled('a')));
}

TEST_F(StateTileTest, FindsOfATileUnderExclusiveUpdateWaitForItsEnd) {
  const auto store = OpenWithArray("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  for (const absl::Status& refused :
       {store->Find("kv", kTile).status(), store->FindStaged("kv", kTile).status(),
        store->FindAll("kv").status(), store->FindAllStaged("kv").status()}) {
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, Reason::kOverloaded));
  }
  EXPECT_EQ(store->ListInventory("", 10).tiles.size(), 1u) << "the inventory lists it";
  Fill(*update, 'b');
  std::thread committer([&] { EXPECT_THAT(update->Commit(), IsOk()); });
  std::string content;
  while (content.empty()) {
    const auto found = store->Find("kv", kTile);
    if (found.ok()) content = TextOf(*found);
  }
  committer.join();
  EXPECT_EQ(content, Filled('b'));
}

TEST_F(StateTileTest, ReadersBesideUpdatesNeverSeeAPartOfOne) {
  const auto store = OpenWithArray("");
  absl::Notification is_done;
  std::thread reader([&] {
    while (!is_done.HasBeenNotified()) {
      const auto found = store->Find("kv", kTile);
      if (!found.ok()) continue;
      const std::string text = TextOf(*found);
      ASSERT_EQ(text, Filled(text.front()));
    }
  });
  for (int64_t step = 1; step <= 200; ++step) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update,
                                   store->BeginUpdate("kv", kTile, step));
    Fill(*update, static_cast<char>('b' + step % 20));
    ASSERT_THAT(update->Commit(), IsOk());
  }
  is_done.Notify();
  reader.join();
  EXPECT_EQ((*store->Find("kv", kTile))->state_step(), 200);
}

TEST_F(StateTileTest, OneUpdateOfATileAtATime) {
  const auto store = OpenWithArray("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  std::thread next([&] {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr later, store->BeginUpdate("kv", kTile, 8));
    EXPECT_EQ(later->mutable_bytes().front(), 'b') << "after the first has ended";
  });
  Fill(*update, 'b');
  ASSERT_THAT(update->Commit(), IsOk());
  next.join();
}

TEST_F(StateTileTest, TilesThatAreMissingOrNotCommittedAreRefused) {
  const auto store = Open("");
  EXPECT_THAT(store->BeginUpdate("kv", kTile, 7), StatusIs(absl::StatusCode::kNotFound));
  Stage(*store);
  EXPECT_THAT(store->BeginUpdate("kv", kTile, 7), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StateTileTest, ATileThatIsDroppedDuringItsUpdateStaysDropped) {
  const auto store = OpenWithArray("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  store->Drop({"kv"}, [](const absl::Status&) {});
  Fill(*update, 'b');
  EXPECT_THAT(update->Commit(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store->Find("kv", kTile), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StateTileTest, ATileThatIsPutAsideDuringAnExclusiveUpdateIsDropped) {
  const auto store = OpenWithArray("");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  Fill(*update, 'b');
  EXPECT_EQ(store->Quarantine({{"kv", kTile, "test", false, false}}, absl::UnixEpoch()), 1);
  EXPECT_THAT(store->ListQuarantine({}, "", 10), testing::IsEmpty());
  update->Abort();
  EXPECT_THAT(store->Find("kv", kTile), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StateTileTest, TheFileOfATileGoesBeforeItsFirstUpdate) {
  {
    const auto store = OpenWithArray(data_dir_);
    store->AwaitFiles();
    ASSERT_TRUE((*store->Find("kv", kTile))->durable());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
    EXPECT_FALSE(std::filesystem::exists(StrCat(data_dir_, "/arrays/kv")));
    Fill(*update, 'b');
    ASSERT_THAT(update->Commit(), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store->Find("kv", kTile));
    EXPECT_FALSE(tile->durable());
    EXPECT_EQ(TextOf(tile), Filled('b'));
  }
  const auto store = Open(data_dir_);
  EXPECT_THAT(store->Find("kv", kTile), StatusIs(absl::StatusCode::kNotFound))
      << "state does not outlive its worker";
}

TEST_F(StateTileTest, AFileThatCannotBeRemovedKeepsTheTileAsItIs) {
  const auto store = OpenWithArray(data_dir_);
  store->AwaitFiles();
  {
    ASSERT_THAT(ArmFailpoints("tiles.remove_for_update=eio"), IsOk());
    EXPECT_FALSE(store->BeginUpdate("kv", kTile, 7).ok());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store->Find("kv", kTile));
  EXPECT_TRUE(tile->durable());
  EXPECT_EQ(TextOf(tile), Filled('a'));
  EXPECT_TRUE(std::filesystem::exists(StrCat(data_dir_, "/arrays/kv")));
}

TEST_F(StateTileTest, AnUnloadedTileComesBackToMemory) {
  const auto store = OpenWithArray(data_dir_);
  store->AwaitFiles();
  ASSERT_THAT(store->Unload({"kv"}, "next", absl::Seconds(1), [] { return absl::OkStatus(); }),
              IsOk());
  ASSERT_TRUE((*store->Find("kv", kTile))->is_unloaded());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StateTilePtr update, store->BeginUpdate("kv", kTile, 7));
  EXPECT_EQ(update->mutable_bytes().front(), 'a');
  Fill(*update, 'b');
  ASSERT_THAT(update->Commit(), IsOk());
  EXPECT_EQ(Content(*store), Filled('b'));
}

}  // namespace
}  // namespace shardmesh::worker
