// Tiles that are out of memory: their bytes, their memory, restarts, and the way back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::SizeIs;

class UnloadTest : public testing::Test {
 protected:
  static constexpr int64_t kTileBytes = 8192;

  UnloadTest() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    data_dir_ = StrCat(testing::TempDir(), "/unload_", test->name());
    std::filesystem::remove_all(data_dir_);
  }

  static TileDescription Half(const std::string& array_id, int64_t index) {
    return {array_id,     Dtype::kU8, {2, kTileBytes}, {{{index, index + 1}, {0, kTileBytes}}},
            "descriptor", "transfer"};
  }
  static std::string BytesOf(const std::string& array_id, int64_t index) {
    return std::string(kTileBytes, static_cast<char>(array_id[0] + index));
  }

  // The memory has room for three tiles.
  void OpenStore(bool on_disk = true) {
    store_.reset();
    auto store = ShardStore::Open({BufferPool::Create(&budget_, 0), on_disk ? data_dir_ : ""});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
    ASSERT_THAT(store_->SetClusterId("cluster"), IsOk());
  }
  absl::Status StageHalf(const std::string& array_id, int64_t index) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<StagedTile> staged,
                               store_->Stage(Half(array_id, index), store_->has_data_dir()));
    const std::string bytes = BytesOf(array_id, index);
    SHARDMESH_RETURN_IF_ERROR(staged->Append(0, bytes, Crc32c(bytes)));
    return staged->Finish(Crc32c(bytes)).status();
  }
  // Stages and commits both halves.
  void Add(const std::string& array_id) {
    for (const int64_t index : {0, 1}) ASSERT_THAT(StageHalf(array_id, index), IsOk());
    ASSERT_THAT(store_->Commit({array_id}), IsOk());
  }
  absl::StatusOr<int64_t> Unload(const std::string& array_id, const std::string& successor_id) {
    return store_->Unload({array_id}, successor_id, absl::ZeroDuration(),
                          [] { return absl::OkStatus(); });
  }
  // Moves both halves to quarantine, as many as there are.
  int64_t Quarantine(const std::string& array_id) {
    std::vector<ShardStore::Unknown> halves;
    for (const int64_t index : {0, 1}) {
      halves.push_back(
          {.array_id = array_id, .tile = Half(array_id, index).tile, .reason = "unknown"});
    }
    return store_->Quarantine(halves, absl::Now());
  }
  // Waits for all that the store does on its own threads.
  void AwaitStore() {
    store_->AwaitRemovals();
    store_->AwaitReloads();
  }
  void ExpectBytes(const std::string& array_id) {
    for (const int64_t index : {0, 1}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile,
                                     store_->Find(array_id, Half(array_id, index).tile));
      EXPECT_EQ(tile->bytes(), absl::MakeConstSpan(BytesOf(array_id, index)));
      EXPECT_EQ(tile->crc32c(), Crc32c(BytesOf(array_id, index)));
      EXPECT_EQ(tile->description(), Half(array_id, index));
      EXPECT_TRUE(tile->durable());
    }
  }
  bool IsMarked(const std::string& array_id) const {
    return std::filesystem::exists(StrCat(data_dir_, "/unloaded/", array_id));
  }

  MemoryBudget budget_{3 * kTileBytes};
  std::string data_dir_;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(UnloadTest, TilesTakeNoMemoryAndKeepTheirBytes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  EXPECT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  EXPECT_EQ(store_->used_bytes(), 0);
  EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes);
  EXPECT_TRUE(IsMarked("a"));
  ExpectBytes("a");
  EXPECT_THAT(Unload("a", "b"), IsOkAndHolds(0)) << "repeated";
  // The successor fits, and the commit releases the old array and its files.
  ASSERT_NO_FATAL_FAILURE(Add("b"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr reader, store_->Find("a", Half("a", 0).tile));
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  EXPECT_FALSE(IsMarked("a"));
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/arrays/a"));
  EXPECT_EQ(reader->bytes(), absl::MakeConstSpan(BytesOf("a", 0)));
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
}

TEST_F(UnloadTest, ItWaitsForReadersOfTheMemory) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StoredTilePtr reader, store_->Find("a", Half("a", 0).tile));
  EXPECT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes)) << "it waits no longer than it may";
  EXPECT_EQ(store_->used_bytes(), kTileBytes);
  EXPECT_EQ(reader->bytes(), absl::MakeConstSpan(BytesOf("a", 0)));
  EXPECT_FALSE(reader->is_unloaded());
  store_->EndUnload("b");
  reader = nullptr;
  AwaitStore();
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(reader, store_->Find("a", Half("a", 0).tile));
  int polls = 0;
  const auto end_soon = [&] {
    if (++polls == 6) reader = nullptr;
    return absl::OkStatus();
  };
  EXPECT_THAT(store_->Unload({"a"}, "b", absl::InfiniteDuration(), end_soon),
              IsOkAndHolds(2 * kTileBytes));
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(UnloadTest, TilesComeBackIfTheirSuccessorDoesNot) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  const auto drop = [this](const std::string& id) {
    store_->Drop({id}, [](const absl::Status&) {});
  };
  const std::function<void()> kEnds[] = {[&] { EXPECT_THAT(store_->Abort({"b"}), IsOk()); },
                                         [&] { drop("b"); }, [&] { store_->EndUnload("b"); }};
  for (size_t end = 0; end < std::size(kEnds); ++end) {
    SCOPED_TRACE(end);
    ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
    if (end < 2) {
      ASSERT_THAT(StageHalf("b", 0), IsOk());
    }
    EXPECT_THAT(store_->Abort({"c"}), IsOk());
    AwaitStore();
    EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes) << "another array ended";
    kEnds[end]();
    AwaitStore();
    EXPECT_EQ(store_->unloaded_bytes(), 0);
    EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
    EXPECT_FALSE(IsMarked("a"));
    ExpectBytes("a");
  }
  // A committed successor has come.
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  ASSERT_THAT(StageHalf("b", 0), IsOk());
  ASSERT_THAT(store_->Commit({"b"}), IsOk());
  store_->EndUnload("b");
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes);
}

TEST_F(UnloadTest, TilesThatFindNoRoomComeBackLater) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  ASSERT_NO_FATAL_FAILURE(Add("other"));
  store_->EndUnload("b");
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), kTileBytes) << "one tile fits";
  ExpectBytes("a");
  ASSERT_THAT(store_->Release({"other"}), IsOk());
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  ExpectBytes("a");
}

TEST_F(UnloadTest, ARestartTakesNoMoreMemoryThanThereWas) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  for (const int64_t index : {0, 1}) ASSERT_THAT(StageHalf("b", index), IsOk());
  // Both arrays together have four tiles, and there is room for three.
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_THAT(store_->recovery_report().problems, SizeIs(0));
  EXPECT_EQ(store_->recovery_report().committed_tiles, 2);
  EXPECT_EQ(store_->recovery_report().staged_tiles, 2);
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes);
  ExpectBytes("a");
  // The coordinator has committed the successor, or gives it up.
  ASSERT_THAT(store_->Commit({"b"}), IsOk());
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_THAT(store_->recovery_report().problems, SizeIs(0));
  ExpectBytes("a");
  ExpectBytes("b");
  ASSERT_THAT(store_->Release({"b"}), IsOk());
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  ExpectBytes("a");
}

TEST_F(UnloadTest, ARestartWithoutTheSuccessorReadsTheTilesBack) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  // A file of an array that this store does not have has no effect.
  std::ofstream(data_dir_ + "/unloaded/gone") << "b";
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  EXPECT_FALSE(IsMarked("a"));
  EXPECT_FALSE(IsMarked("gone"));
  ExpectBytes("a");
}

TEST_F(UnloadTest, AnOldArrayThatIsNotYetRemovedTakesNoRoomOfItsSuccessor) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  ASSERT_NO_FATAL_FAILURE(Add("b"));
  store_->AwaitFiles();
  // The second folder that the release moves is that of committed tiles. A process that is killed
  // before that leaves the same files.
  ASSERT_THAT(ArmFailpoints("tiles.rename_discarded=eio:2"), IsOk());
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  AwaitStore();
  EXPECT_TRUE(std::filesystem::exists(data_dir_ + "/arrays/a"));
  EXPECT_TRUE(IsMarked("a"));
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_THAT(store_->recovery_report().problems, SizeIs(0));
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  ExpectBytes("b");
  // The coordinator orders the release again.
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  AwaitStore();
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/arrays/a"));
  EXPECT_FALSE(IsMarked("a"));
  ExpectBytes("b");
}

TEST_F(UnloadTest, TilesComeBackIfTheirSuccessorGoesIntoQuarantine) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  for (const int64_t index : {0, 1}) ASSERT_THAT(StageHalf("b", index), IsOk());
  EXPECT_EQ(Quarantine("b"), 2);
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  EXPECT_FALSE(IsMarked("a"));
  ExpectBytes("a");
}

TEST_F(UnloadTest, AnUnloadedArrayInQuarantineIsForgotten) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  EXPECT_EQ(Quarantine("a"), 2);
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  EXPECT_FALSE(IsMarked("a"));
  ASSERT_THAT(store_->RestoreQuarantined("a"), IsOk());
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  ExpectBytes("a");
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  ExpectBytes("a");
}

TEST_F(UnloadTest, ARefusedCallEndsNoSuccessor) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  ASSERT_THAT(StageHalf("b", 0), IsOk());
  EXPECT_THAT(store_->Release({"b"}), StatusIs(absl::StatusCode::kFailedPrecondition));
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes);
}

TEST_F(UnloadTest, NoQuarantinedTileIsDroppedForTheWayBack) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  for (const int64_t index : {0, 1}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedTile> staged,
                                   store_->Stage(Half("kept", index), /*durable=*/false));
    const std::string bytes = BytesOf("kept", index);
    ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
    ASSERT_THAT(staged->Finish(Crc32c(bytes)), IsOk());
  }
  ASSERT_THAT(store_->Commit({"kept"}), IsOk());
  EXPECT_EQ(Quarantine("kept"), 2);
  store_->EndUnload("b");
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), kTileBytes) << "one tile fits";
  EXPECT_EQ(store_->quarantine_totals().memory_bytes, 2 * kTileBytes);
}

TEST_F(UnloadTest, ARepeatedMoveWaitsForTheWayBack) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(Unload("a", "b"), IsOkAndHolds(2 * kTileBytes));
  ASSERT_THAT(ArmFailpoints("tiles.reload=delay"), IsOk());
  store_->EndUnload("b");
  EXPECT_TRUE(test::Eventually([&] { return store_->used_bytes() > 0; }));
  EXPECT_THAT(store_->Unload({"a"}, "c", absl::InfiniteDuration(), [] { return absl::OkStatus(); }),
              IsOk());
  EXPECT_EQ(store_->used_bytes(), 0);
  EXPECT_EQ(store_->unloaded_bytes(), 2 * kTileBytes);
  AwaitStore();
  EXPECT_EQ(store_->used_bytes(), 0);
  ExpectBytes("a");
}

TEST_F(UnloadTest, AnArrayAndItsCompanionLeaveMemoryTogether) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  ASSERT_THAT(StageHalf("companion", 0), IsOk());
  ASSERT_THAT(store_->Commit({"companion"}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StoredTilePtr first, store_->Find("a", Half("a", 0).tile));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StoredTilePtr second,
                                 store_->Find("companion", Half("companion", 0).tile));
  // Readers end one after the other, once both arrays are out of memory.
  int polls = 0;
  const auto end_soon = [&] {
    if (store_->unloaded_bytes() < 3 * kTileBytes) return absl::OkStatus();
    ++polls;
    if (polls == 3) first = nullptr;
    if (polls == 6) second = nullptr;
    return absl::OkStatus();
  };
  EXPECT_THAT(store_->Unload({"a", "companion"}, "b", absl::InfiniteDuration(), end_soon),
              IsOkAndHolds(3 * kTileBytes));
  EXPECT_EQ(polls, 6);
  EXPECT_EQ(store_->used_bytes(), 0);
  store_->EndUnload("b");
  AwaitStore();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
}

TEST_F(UnloadTest, AReleasedArrayThatCouldNotLeaveMemoryIsForgotten) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  store_->AwaitFiles();
  ASSERT_THAT(ArmFailpoints("tile_file.map=eio"), IsOk());
  EXPECT_THAT(Unload("a", "b"), testing::Not(IsOk()));
  EXPECT_TRUE(IsMarked("a"));
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  AwaitStore();
  EXPECT_FALSE(IsMarked("a"));
}

TEST_F(UnloadTest, ADamagedOrMissingFileKeepsItsTileInMemory) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  store_->AwaitFiles();
  for (const char* place : {"tiles.unload", "tile_file.map", "file.map", "file.write"}) {
    ASSERT_THAT(ArmFailpoints(StrCat(place, "=eio")), IsOk());
    EXPECT_THAT(Unload("a", "b"), testing::Not(IsOk())) << place;
    ExpectBytes("a");
  }
  // The folder of the marker is synced in its parent, and then the marker in it.
  for (const char* sync : {"file.sync_folder=eio:1", "file.sync_folder=eio:2"}) {
    ASSERT_THAT(ArmFailpoints(sync), IsOk());
    EXPECT_THAT(Unload("a", "b"), testing::Not(IsOk())) << sync;
    ExpectBytes("a");
  }
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  const std::string path = StrCat(data_dir_, "/arrays/a/", TileFileName(Half("a", 0).tile));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\0');
  }
  EXPECT_THAT(Unload("a", "b"), StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  ExpectBytes("a");
  std::filesystem::remove(path);
  EXPECT_THAT(Unload("a", "b"), StatusIs(absl::StatusCode::kNotFound));
  ExpectBytes("a");
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
}

TEST_F(UnloadTest, TilesInMemoryOnlyStayThere) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/false));
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  EXPECT_THAT(Unload("a", "b"), IsOkAndHolds(0));
  EXPECT_THAT(Unload("unknown", "b"), IsOkAndHolds(0));
  EXPECT_EQ(store_->used_bytes(), 2 * kTileBytes);
  EXPECT_EQ(store_->unloaded_bytes(), 0);
}

TEST_F(UnloadTest, ACallThatIsCancelledEnds) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  ASSERT_NO_FATAL_FAILURE(Add("a"));
  EXPECT_THAT(store_->Unload({"a"}, "b", absl::InfiniteDuration(),
                             [] { return absl::CancelledError("the transfer has ended"); }),
              StatusIs(absl::StatusCode::kCancelled));
  ExpectBytes("a");
  store_->EndUnload("b");
  AwaitStore();
  EXPECT_FALSE(IsMarked("a"));
}

}  // namespace
}  // namespace shardmesh::worker
