// The shard store: each transition, each refusal, what survives a restart, and threads.
#include "worker/store/shard_store.h"
#include "absl/strings/str_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/sealed/sealed_memory.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kRowBytes = 16;

// Row `row` of a U8 array of four rows.
TileDescription Row(const std::string& array_id, int64_t row) {
  return {array_id,     Dtype::kU8, {4, kRowBytes}, {{{row, row + 1}, {0, kRowBytes}}},
          "descriptor", "transfer"};
}

std::string RowBytes(int64_t row) { return std::string(kRowBytes, static_cast<char>('a' + row)); }

// Moves one tile aside; whether it was there.
bool PutAside(ShardStore& store, const std::string& array_id, const Tile& tile,
              const std::string& reason, bool array_lives, absl::Time now) {
  return store.Quarantine({{array_id, tile, reason, array_lives}}, now) == 1;
}

class ShardStoreTest : public testing::Test {
 protected:
  ShardStoreTest() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    data_dir_ = StrCat(testing::TempDir(), "/shard_store_", test->name());
    std::filesystem::remove_all(data_dir_);
  }

  std::unique_ptr<ShardStore> OpenMemory() { return Open(""); }
  std::unique_ptr<ShardStore> OpenDisk() {
    auto store = Open(data_dir_);
    EXPECT_THAT(store->SetClusterId("cluster"), IsOk());
    return store;
  }
  std::unique_ptr<ShardStore> Open(const std::string& data_dir) {
    auto store =
        ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir, quarantine_, free_disk_});
    EXPECT_THAT(store, IsOk());
    return *std::move(store);
  }

  // Brings a row to Staged.
  absl::StatusOr<StoredTilePtr> StageRow(ShardStore& store, const std::string& array_id,
                                         int64_t row) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<StagedTile> staged,
                               store.Stage(Row(array_id, row), store.has_data_dir()));
    const std::string bytes = RowBytes(row);
    SHARDMESH_RETURN_IF_ERROR(staged->Append(0, bytes, Crc32c(bytes)));
    return staged->Finish(Crc32c(bytes));
  }

  // Brings rows of an array into quarantine, through a store that is closed again.
  void QuarantineRows(const std::string& array_id, const std::vector<int64_t>& rows, bool lives) {
    const auto store = OpenDisk();
    for (const int64_t row : rows) ASSERT_THAT(StageRow(*store, array_id, row), IsOk());
    ASSERT_THAT(store->Commit({array_id}), IsOk());
    for (const int64_t row : rows) {
      ASSERT_TRUE(
          PutAside(*store, array_id, Row(array_id, row).tile, "test", lives, absl::UnixEpoch()));
    }
    store->AwaitFiles();
  }

  int64_t FilesIn(const std::string& folder) {
    int64_t count = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(StrCat(data_dir_, "/", folder))) {
      count += entry.is_regular_file();
    }
    return count;
  }

  MemoryBudget budget_{1 << 16};
  QuarantineLimits quarantine_;
  std::function<bool(int64_t need_bytes)> free_disk_;
  std::string data_dir_;
};

TEST_F(ShardStoreTest, AnArrayBecomesVisibleWhenItIsCommitted) {
  const auto store = OpenMemory();
  ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
  ASSERT_THAT(StageRow(*store, "a", 1), IsOk());
  EXPECT_THAT(store->Find("a", Row("a", 0).tile), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store->FindAll("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store->FindStaged("a", Row("a", 0).tile), IsOk());
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store->Find("a", Row("a", 1).tile));
  EXPECT_EQ(tile->bytes(), absl::MakeConstSpan(RowBytes(1)));
  EXPECT_EQ(tile->crc32c(), Crc32c(RowBytes(1)));
  EXPECT_EQ(tile->description(), Row("a", 1));
  EXPECT_FALSE(tile->durable());
  EXPECT_THAT(*store->FindAll("a"), SizeIs(2));
  EXPECT_THAT(store->Commit({"a", "a"}), IsOk()) << "repeated";
}

TEST_F(ShardStoreTest, BytesComeInPiecesInOrderEachWithItsChecksum) {
  const auto store = OpenMemory();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(Row("a", 0), false));
  const std::string first = "0123456789";
  const std::string second = "abcdef";
  ASSERT_THAT(staged->Append(0, first, Crc32c(first)), IsOk());
  EXPECT_THAT(staged->Append(0, first, Crc32c(first)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(staged->Append(0, first, Crc32c(first)),
              test::CarriesFacts(Reason::kBadTile,
                                 {{fact::kArray, "a"}, {fact::kHave, 0}, {fact::kNeed, 10}}));
  EXPECT_THAT(staged->Append(11, second, Crc32c(second)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(staged->Append(10, "abcdefg", Crc32c(std::string("abcdefg"))),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(staged->Append(10, second, 1),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(staged->Append(10, second, 1),
              test::CarriesFacts(Reason::kChecksumMismatch,
                                 {{fact::kHave, absl::StrFormat("%08x", Crc32c(second))},
                                  {fact::kNeed, "00000001"}}));
  ASSERT_THAT(staged->Append(10, second, Crc32c(second)), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, staged->Finish(Crc32c(first + second)));
  EXPECT_EQ(tile->bytes(), absl::MakeConstSpan(first + second));
}

TEST_F(ShardStoreTest, ATileThatIsIncompleteOrWrongLeavesNoTrace) {
  const auto store = OpenMemory();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(Row("a", 0), false));
    EXPECT_THAT(staged->Finish(std::nullopt),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kBadTile));
  }
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(Row("a", 0), false));
    ASSERT_THAT(staged->Append(0, RowBytes(0), Crc32c(RowBytes(0))), IsOk());
    EXPECT_THAT(staged->Finish(1),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  }
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto dropped, store->Stage(Row("a", 0), false)); }
  EXPECT_EQ(store->used_bytes(), 0);
  EXPECT_THAT(store->Commit({"a"}), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(StageRow(*store, "a", 0), IsOk()) << "it can be sent again";
}

TEST_F(ShardStoreTest, AProducerWritesInPlace) {
  const auto store = OpenMemory();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(Row("a", 0), false));
  std::fill(staged->mutable_bytes().begin(), staged->mutable_bytes().end(), 'p');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, staged->Finish(std::nullopt));
  EXPECT_EQ(tile->crc32c(), Crc32c(std::string(kRowBytes, 'p')));
}

TEST_F(ShardStoreTest, MemoryOfATileIsTakenWhereNobodyElseHasIt) {
  const auto store = OpenMemory();
  const Tile tile = Row("a", 0).tile;
  ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
  EXPECT_EQ(store->TakeMemory("a", tile), nullptr) << "not committed";
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  EXPECT_EQ(store->TakeMemory("b", tile), nullptr);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr reader, store->Find("a", tile));
    EXPECT_EQ(store->TakeMemory("a", tile), nullptr) << "somebody reads it";
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr known, store->Find("a", tile));
  const char* const bytes = known->bytes().data();
  const_cast<StoredTilePtr&>(known).reset();
  const int64_t used_bytes = store->used_bytes();
  const std::shared_ptr<Buffer> memory = store->TakeMemory("a", tile);
  ASSERT_NE(memory, nullptr);
  EXPECT_THAT(store->Find("a", tile), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store->Release({"a"}), IsOk());

  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto staged, store->Stage(Row("b", 0), false, memory));
  std::fill(staged->mutable_bytes().begin(), staged->mutable_bytes().end(), 'n');
  ASSERT_THAT(staged->Finish(std::nullopt), IsOk());
  ASSERT_THAT(store->Commit({"b"}), IsOk());
  EXPECT_EQ(store->used_bytes(), used_bytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr made, store->Find("b", tile));
  EXPECT_EQ(made->bytes().data(), bytes);
}

// Another process has made it, and nobody may write to it.
TEST_F(ShardStoreTest, SealedMemoryIsATileLikeOthersButIsNotTaken) {
  const auto store = OpenMemory();
  const TileDescription large = {.array_id = "a",
                                 .dtype = Dtype::kF32,
                                 .array_shape = {2, 4'096},
                                 .tile = {{{0, 1}, {0, 4'096}}},
                                 .array_descriptor = "",
                                 .transfer_id = "t"};
  const std::string bytes(4 * 4'096, 's');
  SealedMemoryWriter writer = *SealedMemoryWriter::Create(static_cast<int64_t>(bytes.size()));
  ASSERT_THAT(writer.Append(bytes), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(FileDescriptor memory, std::move(writer).Seal());
  const auto seal = [&] { return FileDescriptor(dup(memory.get())); };
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(auto staged, store->StageSealed(large, false, seal()));
    EXPECT_THAT(staged->FinishFilled(Crc32c(bytes) + 1),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  }
  EXPECT_EQ(store->used_bytes(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto staged, store->StageSealed(large, false, seal()));
  EXPECT_THAT(store->StageSealed(large, false, seal()), StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(staged->FinishFilled(Crc32c(bytes)), IsOk());
  staged.reset();
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  EXPECT_EQ(store->TakeMemory("a", large.tile), nullptr);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr stored, store->Find("a", large.tile));
    EXPECT_TRUE(stored->bytes() == absl::MakeConstSpan(bytes));
  }
  ASSERT_THAT(store->Release({"a"}), IsOk());
  EXPECT_EQ(store->used_bytes(), 0);
}

TEST_F(ShardStoreTest, MemoryThatIsStillSentFromIsNotTaken) {
  const auto store = OpenMemory();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto staged, store->Stage(Row("a", 0), false));
  std::fill(staged->mutable_bytes().begin(), staged->mutable_bytes().end(), 'n');
  std::shared_ptr<const void> sender = staged->memory();
  ASSERT_THAT(staged->Finish(std::nullopt), IsOk());
  staged.reset();
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  EXPECT_EQ(store->TakeMemory("a", Row("a", 0).tile), nullptr);
  sender.reset();
  EXPECT_NE(store->TakeMemory("a", Row("a", 0).tile), nullptr);
}

TEST_F(ShardStoreTest, RefusesTransitionsThatDoNotExist) {
  const auto store = OpenMemory();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto receiving, store->Stage(Row("a", 0), false));
  EXPECT_THAT(store->Commit({"a"}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store->Release({"a"}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store->Stage(Row("a", 0), false), StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(StageRow(*store, "b", 0), IsOk());
  EXPECT_THAT(store->Commit({"b", "a"}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store->FindAll("b"), StatusIs(absl::StatusCode::kNotFound)) << "nothing changed";
  ASSERT_THAT(store->Commit({"b"}), IsOk());
  EXPECT_THAT(store->Abort({"b"}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store->Stage(Row("b", 1), false), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(store->Abort({"unknown"}), IsOk());
  EXPECT_THAT(store->Release({"unknown"}), IsOk());
}

TEST_F(ShardStoreTest, AbortDropsWhatIsStagedAndStopsWhatIsOnItsWay) {
  const auto store = OpenMemory();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto receiving, store->Stage(Row("a", 0), false));
  ASSERT_THAT(StageRow(*store, "a", 1), IsOk());
  ASSERT_THAT(store->Abort({"a", "a"}), IsOk());
  EXPECT_THAT(receiving->Append(0, RowBytes(0), Crc32c(RowBytes(0))),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store->Stage(Row("a", 1), false), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store->Commit({"a"}), StatusIs(absl::StatusCode::kAborted));
  receiving.reset();
  EXPECT_EQ(store->used_bytes(), 0);
  EXPECT_THAT(StageRow(*store, "a", 1), IsOk());
}

TEST_F(ShardStoreTest, AReaderKeepsWhatIsReleased) {
  const auto store = OpenMemory();
  ASSERT_THAT(StageRow(*store, "a", 2), IsOk());
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(StoredTilePtr tile, store->Find("a", Row("a", 2).tile));
  ASSERT_THAT(store->Release({"a"}), IsOk());
  EXPECT_THAT(store->Find("a", Row("a", 2).tile), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(tile->bytes(), absl::MakeConstSpan(RowBytes(2)));
  EXPECT_GT(store->used_bytes(), 0);
  tile.reset();
  EXPECT_EQ(store->used_bytes(), 0);
}

TEST_F(ShardStoreTest, RefusesATileOverTheMemoryLimit) {
  const auto store = OpenMemory();
  TileDescription large = {"a", Dtype::kF32, {1 << 20}, {{{0, 1 << 20}}}, "", ""};
  EXPECT_THAT(store->Stage(large, false),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(store->ListInventory("", 10).tiles, IsEmpty());
}

TEST_F(ShardStoreTest, ListsItsInventoryInPagesOfWholeArrays) {
  const auto store = OpenMemory();
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(StageRow(*store, id, 1), IsOk());
  }
  ASSERT_THAT(store->Commit({"b"}), IsOk());
  ShardStore::InventoryPage page = store->ListInventory("", 3);
  ASSERT_THAT(page.tiles, SizeIs(4));
  EXPECT_EQ(page.tiles[0].state, TileState::kStaged);
  EXPECT_EQ(page.tiles[2].state, TileState::kCommitted);
  EXPECT_EQ(page.next_array_id, "c");
  page = store->ListInventory(page.next_array_id, 3);
  EXPECT_THAT(page.tiles, SizeIs(2));
  EXPECT_THAT(page.next_array_id, IsEmpty());
}

TEST_F(ShardStoreTest, TilesComeBackInTheirStateAfterARestart) {
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "committed", 0), IsOk());
    ASSERT_THAT(StageRow(*store, "committed", 1), IsOk());
    ASSERT_THAT(store->Commit({"committed"}), IsOk());
    ASSERT_THAT(StageRow(*store, "staged", 2), IsOk());
    ASSERT_THAT(StageRow(*store, "aborted", 0), IsOk());
    ASSERT_THAT(store->Abort({"aborted"}), IsOk());
    ASSERT_THAT(StageRow(*store, "released", 0), IsOk());
    ASSERT_THAT(store->Commit({"released"}), IsOk());
    ASSERT_THAT(store->Release({"released"}), IsOk());
  }
  const auto store = OpenDisk();
  EXPECT_EQ(store->cluster_id(), "cluster");
  EXPECT_EQ(store->recovery_report().committed_tiles, 2);
  EXPECT_EQ(store->recovery_report().staged_tiles, 1);
  EXPECT_EQ(store->recovery_report().size_bytes, 3 * kRowBytes);
  EXPECT_THAT(store->recovery_report().problems, IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile,
                                 store->Find("committed", Row("committed", 1).tile));
  EXPECT_EQ(tile->description(), Row("committed", 1));
  EXPECT_EQ(tile->bytes(), absl::MakeConstSpan(RowBytes(1)));
  EXPECT_TRUE(tile->durable());
  EXPECT_THAT(store->ListInventory("", 100).tiles, SizeIs(3));
  ASSERT_THAT(store->Commit({"staged"}), IsOk());
  store->AwaitFiles();
  EXPECT_EQ(FilesIn("arrays"), 3);
  EXPECT_EQ(FilesIn("staged"), 0);
  EXPECT_EQ(FilesIn("trash"), 0);
}

TEST_F(ShardStoreTest, ADamagedFileIsMovedAsideAndNeverServed) {
  const std::string path = StrCat(data_dir_, "/arrays/a/", TileFileName(Row("a", 0).tile));
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(StageRow(*store, "a", 1), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('!');
  }
  const auto store = OpenDisk();
  ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
  const RecoveryProblem& problem = store->recovery_report().problems[0];
  EXPECT_THAT(problem.status, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_EQ(problem.path, path);
  EXPECT_TRUE(std::filesystem::exists(problem.moved_to));
  EXPECT_THAT(store->Find("a", Row("a", 0).tile), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store->Find("a", Row("a", 1).tile), IsOk());
}

TEST_F(ShardStoreTest, AFileInTheWrongPlaceIsMovedAside) {
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "b", 0), IsOk());
    ASSERT_THAT(store->Commit({"b"}), IsOk());
  }
  std::filesystem::rename(data_dir_ + "/arrays/b", data_dir_ + "/arrays/c");
  const auto store = OpenDisk();
  ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
  EXPECT_THAT(store->recovery_report().problems[0].status,
              StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  EXPECT_THAT(store->ListInventory("", 10).tiles, IsEmpty());
  EXPECT_EQ(FilesIn("corrupt"), 1);
}

TEST_F(ShardStoreTest, TakesNoFolderOfACoordinator) {
  std::filesystem::create_directories(data_dir_);
  std::ofstream(data_dir_ + "/state.db") << "state";
  const absl::Status refused =
      ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir_, {}}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.ToString(), HasSubstr("data folder of a coordinator"));
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/arrays"));
}

// As by an unmounted volume: a tile that no start would find is not acknowledged.
TEST_F(ShardStoreTest, NothingIsStagedOnDiskOnceTheFolderIsGone) {
  const std::string away = data_dir_ + ".away";
  std::filesystem::remove_all(away);
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
    std::filesystem::rename(data_dir_, away);
    for (const bool is_mount_point : {false, true}) {
      if (is_mount_point) std::filesystem::create_directory(data_dir_);
      const absl::Status staged = StageRow(*store, "b", 0).status();
      EXPECT_THAT(staged, StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT(staged.ToString(), HasSubstr("moved or removed"));
      EXPECT_EQ(std::filesystem::exists(data_dir_ + "/staged"), false);
    }
    std::filesystem::remove(data_dir_);
    std::filesystem::rename(away, data_dir_);
    EXPECT_THAT(StageRow(*store, "b", 0), IsOk());
  }
  EXPECT_THAT(OpenDisk()->ListInventory("", 10).tiles, SizeIs(2));
}

// The file `cluster_id` is one byte, the tiles are all that there is: none may be moved or deleted
// on its word.
TEST_F(ShardStoreTest, TilesOfAnotherClusterThanTheFolderEndTheStartAndStayWhereTheyAre) {
  {
    const auto store = OpenDisk();
    for (const char* id : {"a", "b"}) ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(store->Commit({"a", "b"}), IsOk());
    ASSERT_THAT(StageRow(*store, "c", 0), IsOk());
  }
  const auto open = [&](const std::string& cluster_id) {
    std::ofstream(data_dir_ + "/cluster_id", std::ios::binary) << cluster_id;
    return ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir_, {.disk_bytes = 1}})
        .status();
  };
  const absl::Status other = open("cluzter");
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kClusterMismatch));
  EXPECT_THAT(other.ToString(), AllOf(HasSubstr(" cluster,"), HasSubstr("cluster_id says cluzter"),
                                      HasSubstr("no sound tile was moved")));
  EXPECT_THAT(open("clus\xfeter"), StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  EXPECT_THAT(open(std::string(7, '\0')), StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  EXPECT_EQ(FilesIn("corrupt"), 0);
  std::filesystem::remove(data_dir_ + "/cluster_id");
  const auto store = OpenDisk();
  EXPECT_THAT(store->recovery_report().problems, IsEmpty());
  EXPECT_THAT(store->ListInventory("", 10).tiles, SizeIs(3));
}

TEST_F(ShardStoreTest, ATileThatFindsNoMemoryStaysOnDisk) {
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
  }
  {
    MemoryBudget nothing(0);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store,
                                   ShardStore::Open({BufferPool::Create(&nothing, 0), data_dir_}));
    ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
    EXPECT_THAT(store->recovery_report().problems[0].status,
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    EXPECT_THAT(store->recovery_report().problems[0].moved_to, IsEmpty());
  }
  EXPECT_EQ(OpenDisk()->recovery_report().committed_tiles, 1);
}

TEST_F(ShardStoreTest, ATileThatTheDiskDoesNotGiveStaysOnDisk) {
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
  }
  for (const char* failpoint : {"tile_file.read=eio", "file.read=eio:2"}) {
    SCOPED_TRACE(failpoint);
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    const auto store = OpenDisk();
    EXPECT_FALSE(IsArmed("tile_file.") || IsArmed("file."));
    ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
    const RecoveryProblem& problem = store->recovery_report().problems.front();
    EXPECT_THAT(problem.status, StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_THAT(problem.moved_to, IsEmpty());
  }
  EXPECT_EQ(OpenDisk()->recovery_report().committed_tiles, 1);
}

TEST_F(ShardStoreTest, ATileOfALiveArrayThatTheDiskDoesNotGiveIsNotDroppedLater) {
  quarantine_.age = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("a", {0}, /*lives=*/true));
  // Each opening and each reading of a start: of the owner's files, the reason, the tile's header.
  for (const char* failpoint : {"file.open=eio:", "file.read=eio:"}) {
    for (int pass = 1; pass <= 4; ++pass) {
      SCOPED_TRACE(StrCat(failpoint, pass));
      ASSERT_THAT(ArmFailpoints(StrCat(failpoint, pass)), IsOk());
      if (const auto store =
              ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir_, quarantine_});
          store.ok()) {
        (*store)->ExpireQuarantine(absl::UnixEpoch());
        (*store)->ExpireQuarantine(absl::UnixEpoch() + absl::Hours(100));
      }
      ASSERT_FALSE(IsArmed("file."));
      const auto store = OpenDisk();
      const std::vector<QuarantinedArray> aside = store->ListQuarantine({}, "", 10);
      ASSERT_THAT(aside, SizeIs(1));
      EXPECT_THAT(aside.front().tiles, SizeIs(1));
      EXPECT_TRUE(aside.front().array_lives);
      EXPECT_EQ(aside.front().reason, "test");
    }
  }
}

TEST_F(ShardStoreTest, ATileWhoseReasonIsLostCountsAsOneOfALiveArray) {
  quarantine_.age = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("a", {0}, /*lives=*/false));
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("b", {0}, /*lives=*/false));
  std::ofstream(data_dir_ + "/quarantine/a/about") << "x";
  std::filesystem::remove(data_dir_ + "/quarantine/b/about");
  const auto store = OpenDisk();
  store->ExpireQuarantine(absl::UnixEpoch());
  store->ExpireQuarantine(absl::UnixEpoch() + absl::Hours(100));
  EXPECT_THAT(store->ListQuarantine({}, "", 10), SizeIs(2));
  EXPECT_THAT(store->DropQuarantined("a"), IsOk());
}

TEST_F(ShardStoreTest, ARestoreBesideATileThatWasNotReadKeepsWhatIsKnownOfIt) {
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("a", {0, 1}, /*lives=*/true));
  {
    // The owner's two files, the reason, and the first tile's header.
    ASSERT_THAT(ArmFailpoints("file.open=eio:4"), IsOk());
    const auto store = OpenDisk();
    ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
    EXPECT_EQ(store->recovery_report().quarantined_tiles, 1);
    ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
    EXPECT_THAT(*store->FindAll("a"), SizeIs(1));
  }
  const auto store = OpenDisk();
  const std::vector<QuarantinedArray> aside = store->ListQuarantine({}, "", 10);
  ASSERT_THAT(aside, SizeIs(1));
  EXPECT_TRUE(aside.front().array_lives);
  EXPECT_EQ(aside.front().reason, "test");
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  EXPECT_THAT(*store->FindAll("a"), SizeIs(2));
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/quarantine/a"));
}

TEST_F(ShardStoreTest, ARestoreThatIsNotSyncedFailsAndLeavesTheQuarantineAsItWas) {
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("a", {0}, /*lives=*/false));
  const auto store = OpenDisk();
  for (const char* failpoint : {"file.sync_folder=eio:1", "file.sync_folder=eio:2"}) {
    SCOPED_TRACE(failpoint);
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    EXPECT_THAT(store->RestoreQuarantined("a"), StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_FALSE(IsArmed("file."));
    EXPECT_THAT(store->FindAll("a"), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_EQ(store->quarantine_totals().arrays, 1);
    EXPECT_EQ(FilesIn("quarantine"), 2);
    EXPECT_EQ(FilesIn("arrays"), 0);
  }
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  EXPECT_EQ(FilesIn("arrays"), 1);
}

TEST_F(ShardStoreTest, AClockThatIsWrongAtAStartDeletesNothing) {
  quarantine_.age = absl::Hours(1);
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("a", {0}, /*lives=*/false));
  std::filesystem::create_directories(data_dir_ + "/arrays/b");
  std::ofstream(data_dir_ + "/arrays/b/garbage.safetensors") << "x";
  const absl::Time ahead = absl::Now() + absl::Hours(24 * 365);
  for (int start = 0; start < 2; ++start) {
    const auto store = OpenDisk();
    store->ExpireQuarantine(ahead);
    store->ExpireQuarantine(ahead + absl::Minutes(59));
    store->AwaitFiles();
    EXPECT_EQ(store->quarantine_totals().arrays, 1);
    EXPECT_EQ(FilesIn("corrupt"), 1);
  }
  const auto store = OpenDisk();
  store->ExpireQuarantine(ahead);
  store->ExpireQuarantine(ahead + absl::Minutes(61));
  store->AwaitFiles();
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
  EXPECT_EQ(FilesIn("corrupt"), 0);
}

TEST_F(ShardStoreTest, AFolderBelongsToOneStoreAndOneCluster) {
  const auto store = OpenDisk();
  const auto second = ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir_});
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(data_dir_));
  EXPECT_THAT(store->SetClusterId("cluster"), IsOk());
  EXPECT_THAT(store->SetClusterId("other"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kClusterMismatch));
  EXPECT_THAT(store->SetClusterId(""), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ShardStoreTest, AFolderBelongsToOneWorker) {
  {
    const auto store = OpenDisk();
    EXPECT_EQ(store->data_identity(), "") << "a folder of before takes the first worker's";
    EXPECT_THAT(store->SetIdentity("worker-0"), IsOk());
    EXPECT_THAT(store->SetIdentity("worker-0"), IsOk());
  }
  const auto store = OpenDisk();
  EXPECT_EQ(store->data_identity(), "worker-0");
  const absl::Status refused = store->SetIdentity("worker-1");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kIdentityMismatch));
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("\"worker-0\""), HasSubstr("\"worker-1\"")));
  EXPECT_EQ(store->data_identity(), "worker-0");
  EXPECT_THAT(OpenMemory()->SetIdentity("anybody"), IsOk());
}

TEST_F(ShardStoreTest, TilesThatAreMovedAsideAreOutOfUseAndComeBack) {
  const Tile tile = Row("a", 0).tile;
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
    EXPECT_TRUE(PutAside(*store, "a", tile, "nobody knows it", false, absl::UnixEpoch()));
    EXPECT_FALSE(PutAside(*store, "a", tile, "nobody knows it", false, absl::UnixEpoch()));
    EXPECT_THAT(store->FindAll("a"), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(store->ListInventory("", 10).tiles, IsEmpty());
    EXPECT_EQ(store->used_bytes(), 0);
  }
  EXPECT_EQ(FilesIn("arrays"), 0);
  EXPECT_EQ(FilesIn("quarantine"), 2) << "the tile, and why";
  const auto store = OpenDisk();
  EXPECT_EQ(store->recovery_report().quarantined_tiles, 1);
  EXPECT_THAT(store->recovery_report().problems, IsEmpty());
  EXPECT_THAT(store->ListInventory("", 10).tiles, IsEmpty());
  const std::vector<QuarantinedArray> aside = store->ListQuarantine({}, "", 10);
  ASSERT_THAT(aside, SizeIs(1));
  EXPECT_EQ(aside[0].array_id, "a");
  EXPECT_EQ(aside[0].reason, "nobody knows it");
  EXPECT_EQ(aside[0].since, absl::UnixEpoch());
  EXPECT_TRUE(aside[0].committed);
  EXPECT_TRUE(aside[0].on_disk);
  EXPECT_EQ(aside[0].size_bytes(), kRowBytes);
  EXPECT_EQ(store->quarantine_totals().disk_bytes, kRowBytes);
  EXPECT_THAT(store->ListQuarantine({"b"}, "", 10), IsEmpty());
  EXPECT_THAT(store->ListQuarantine({}, "a", 10), IsEmpty());

  EXPECT_THAT(store->RestoreQuarantined("b"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr back, store->Find("a", tile));
  EXPECT_EQ(back->bytes(), absl::MakeConstSpan(RowBytes(0)));
  EXPECT_TRUE(back->durable());
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
  EXPECT_EQ(FilesIn("arrays"), 1);
  EXPECT_EQ(FilesIn("quarantine"), 0);
  ASSERT_TRUE(PutAside(*store, "a", tile, "again", false, absl::UnixEpoch()));
  ASSERT_THAT(store->DropQuarantined("a"), IsOk());
  EXPECT_EQ(FilesIn("quarantine"), 0);
}

TEST_F(ShardStoreTest, TheQuarantineIsBoundedBySizeAndAge) {
  quarantine_ = {.disk_bytes = kRowBytes, .memory_bytes = kRowBytes, .age = absl::Hours(1)};
  const auto store = OpenDisk();
  const auto put_aside = [&](const std::string& id, bool committed, bool lives, int second) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    if (committed) {
      ASSERT_THAT(store->Commit({id}), IsOk());
    }
    ASSERT_TRUE(PutAside(*store, id, Row(id, 0).tile, "test", lives,
                         absl::UnixEpoch() + absl::Seconds(second)));
  };
  const auto aside = [&] {
    std::vector<std::string> ids;
    for (const QuarantinedArray& array : store->ListQuarantine({}, "", 10)) {
      ids.push_back(array.array_id);
    }
    return ids;
  };
  put_aside("lives", true, true, 0);
  put_aside("old", true, false, 1);
  EXPECT_THAT(aside(), testing::ElementsAre("lives", "old"));
  put_aside("staged", false, false, 2);
  EXPECT_THAT(aside(), testing::ElementsAre("lives", "old")) << "never committed: the first to go";
  put_aside("young", true, false, 3);
  EXPECT_THAT(aside(), testing::ElementsAre("lives", "young"));
  put_aside("lives_too", true, true, 4);
  put_aside("lives_well", true, true, 5);
  EXPECT_THAT(aside(), testing::ElementsAre("lives", "lives_too", "lives_well", "young"))
      << "those of arrays that live take no room from the others";
  store->ExpireQuarantine(absl::UnixEpoch() + absl::Hours(2));
  EXPECT_THAT(aside(), testing::ElementsAre("lives", "lives_too", "lives_well"))
      << "those of arrays that live go for no bound";
  store->AwaitRemovals();
  EXPECT_EQ(FilesIn("trash"), 0);
  EXPECT_EQ(FilesIn("quarantine"), 6);
  // What is released for good goes from there too.
  bool done = false;
  store->Drop({"lives", "lives_too"}, [&](const absl::Status& status) {
    EXPECT_THAT(status, IsOk());
    done = true;
  });
  store->AwaitFiles();
  EXPECT_TRUE(done);
  EXPECT_THAT(aside(), testing::ElementsAre("lives_well"));
}

TEST_F(ShardStoreTest, WhetherAnArrayLivesIsLearntLater) {
  quarantine_ = {.disk_bytes = 1 << 20, .memory_bytes = 1 << 20, .age = absl::Hours(1)};
  const absl::Time start = absl::UnixEpoch();
  const auto lives = [](const ShardStore& store) {
    std::vector<std::string> ids;
    for (const QuarantinedArray& array : store.ListQuarantine({}, "", 10)) {
      if (array.array_lives) ids.push_back(array.array_id);
    }
    return ids;
  };
  QuarantineRows("known", {0, 1}, /*lives=*/false);
  QuarantineRows("gone", {0}, /*lives=*/true);
  {
    const auto store = OpenDisk();
    store->ExpireQuarantine(start);
    EXPECT_THAT(lives(*store), testing::ElementsAre("gone"));
    store->SetLive({"known", "not there"}, true, start);
    store->SetLive({"gone"}, false, start + absl::Minutes(40));
    store->AwaitFiles();
    EXPECT_THAT(lives(*store), testing::ElementsAre("known"));
  }
  const auto store = OpenDisk();  // and it is written down
  EXPECT_THAT(lives(*store), testing::ElementsAre("known"));
  EXPECT_EQ(FilesIn("quarantine"), 5);
  store->ExpireQuarantine(start);
  store->ExpireQuarantine(start + absl::Minutes(90));
  EXPECT_EQ(store->quarantine_totals().arrays, 2) << "its age counts from when that was learnt";
  store->ExpireQuarantine(start + absl::Hours(2));
  EXPECT_EQ(store->quarantine_totals().arrays, 1);
  EXPECT_THAT(store->RestoreQuarantined("known"), IsOk());
  EXPECT_THAT(*store->FindAll("known"), SizeIs(2));
}

TEST_F(ShardStoreTest, TilesInMemoryStayInQuarantineUntilTheirMemoryIsNeeded) {
  quarantine_.memory_bytes = 2 * kRowBytes;
  const auto store = OpenMemory();
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(store->Commit({id}), IsOk());
  }
  ASSERT_THAT(StageRow(*store, "staged", 0), IsOk());
  for (const char* id : {"a", "b", "c", "staged"}) {
    EXPECT_TRUE(PutAside(*store, id, Row(id, 0).tile, "test", false,
                         absl::UnixEpoch() + absl::Seconds(id[0])));
  }
  EXPECT_EQ(store->quarantine_totals().memory_bytes, 2 * kRowBytes);
  {
    // It has a hold on the memory.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const QuarantinedArray back, store->RestoreQuarantined("b"));
    EXPECT_FALSE(back.on_disk);
  }
  EXPECT_THAT(store->FindAll("b"), IsOk());
  ASSERT_THAT(store->Release({"b"}), IsOk());
  EXPECT_GT(store->used_bytes(), 0) << "\"c\" is left";
  const int64_t all = budget_.limit_bytes() / 4;
  const TileDescription large = {"large", Dtype::kF32, {all}, {{{0, all}}}, "", ""};
  EXPECT_THAT(store->Stage(large, false), IsOk());
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
}

// A disk store with "m" in memory, row 0 of it in quarantine and row 1 in use, and a restore of it
// that waits for files.
class RestoreUnderWay {
 public:
  explicit RestoreUnderWay(ShardStore* store) : store_(store) {
    // What is told on the thread of files holds that up.
    store->Drop({"durable"}, [this](const absl::Status&) {
      entered_.Notify();
      go_.WaitForNotification();
    });
    entered_.WaitForNotification();
    thread_ = std::thread([this] { restored_ = store_->RestoreQuarantined("m"); });
    EXPECT_TRUE(test::Eventually(
        [this] { return store_->quarantine_totals().droppable_memory_bytes == 0; }));
  }
  ~RestoreUnderWay() { EXPECT_FALSE(thread_.joinable()); }

  absl::Status End() {
    go_.Notify();
    thread_.join();
    return restored_.status();
  }

 private:
  ShardStore* const store_;
  absl::Notification entered_;
  absl::Notification go_;
  absl::StatusOr<QuarantinedArray> restored_ = QuarantinedArray();
  std::thread thread_;
};

class RestoreTest : public ShardStoreTest {
 protected:
  RestoreTest() {
    quarantine_ = {.disk_bytes = 1 << 20, .memory_bytes = 1 << 20, .age = absl::Hours(1)};
    store_ = OpenDisk();
    EXPECT_THAT(StageRow(*store_, "durable", 0), IsOk());
    for (int64_t row = 0; row < 2; ++row) {
      auto staged = store_->Stage(Row("m", row), /*durable=*/false);
      EXPECT_THAT(staged, IsOk());
      EXPECT_THAT((*staged)->Append(0, RowBytes(row), Crc32c(RowBytes(row))), IsOk());
      EXPECT_THAT((*staged)->Finish(std::nullopt), IsOk());
    }
    EXPECT_THAT(store_->Commit({"m"}), IsOk());
    EXPECT_TRUE(PutAside(*store_, "m", Row("m", 0).tile, "test", false, absl::UnixEpoch()));
  }

  std::unique_ptr<ShardStore> store_;
};

TEST_F(RestoreTest, NoBoundAndNoOtherCallTakesWhatIsBeingRestored) {
  RestoreUnderWay restore(store_.get());
  store_->ExpireQuarantine(absl::UnixEpoch() + absl::Hours(100));
  EXPECT_THAT(store_->DropQuarantined("m"), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store_->RestoreQuarantined("m"), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(restore.End(), IsOk());
  EXPECT_THAT(*store_->FindAll("m"), SizeIs(2));
  EXPECT_EQ(store_->quarantine_totals().arrays, 0);
  EXPECT_EQ(store_->quarantine_totals().memory_bytes, 0);
}

TEST_F(RestoreTest, WhatIsReleasedMeanwhileDoesNotComeBack) {
  RestoreUnderWay restore(store_.get());
  store_->Drop({"m"}, [](const absl::Status&) {});
  EXPECT_THAT(restore.End(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(store_->FindAll("m"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(store_->quarantine_totals().arrays, 0);
  EXPECT_EQ(store_->quarantine_totals().memory_bytes, 0);
}

TEST_F(RestoreTest, ATileThatIsMovedAsideMeanwhileIsNotForgotten) {
  RestoreUnderWay restore(store_.get());
  EXPECT_TRUE(PutAside(*store_, "m", Row("m", 1).tile, "test", false, absl::UnixEpoch()));
  EXPECT_THAT(restore.End(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(store_->quarantine_totals().memory_bytes, 2 * kRowBytes);
  EXPECT_GE(store_->quarantine_totals().droppable_memory_bytes, 2 * kRowBytes);
  EXPECT_THAT(store_->RestoreQuarantined("m"), IsOk());
  EXPECT_THAT(*store_->FindAll("m"), SizeIs(2));
}

TEST_F(ShardStoreTest, ARestoreThatFailsHalfwayLeavesTheQuarantineAsItWas) {
  const auto store = OpenDisk();
  for (int64_t row = 0; row < 2; ++row) {
    ASSERT_THAT(StageRow(*store, "a", row), IsOk());
  }
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  for (int64_t row = 0; row < 2; ++row) {
    ASSERT_TRUE(PutAside(*store, "a", Row("a", row).tile, "test", false, absl::UnixEpoch()));
  }
  store->AwaitFiles();
  // A folder where the second file is to go.
  const std::string blocked = StrCat(data_dir_, "/arrays/a/", TileFileName(Row("a", 1).tile));
  std::filesystem::create_directories(blocked);
  EXPECT_FALSE(store->RestoreQuarantined("a").ok());
  EXPECT_EQ(FilesIn("quarantine"), 3);
  EXPECT_THAT(store->FindAll("a"), StatusIs(absl::StatusCode::kNotFound));
  std::filesystem::remove(blocked);
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  EXPECT_THAT(*store->FindAll("a"), SizeIs(2));
  EXPECT_EQ(FilesIn("arrays"), 2);
  EXPECT_EQ(FilesIn("quarantine"), 0);
  // A file that somebody took away is told, not passed over.
  ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
  store->AwaitFiles();
  std::filesystem::remove(StrCat(data_dir_, "/quarantine/a/", TileFileName(Row("a", 0).tile)));
  EXPECT_THAT(store->RestoreQuarantined("a"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(store->quarantine_totals().arrays, 1);
}

TEST_F(ShardStoreTest, ATileThatIsTooLargeTakesNothingOutOfTheQuarantine) {
  const auto store = OpenMemory();
  ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
  ASSERT_THAT(store->Commit({"a"}), IsOk());
  ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
  const int64_t all = budget_.limit_bytes() / 4;
  const TileDescription large = {"large", Dtype::kF32, {all + 1}, {{{0, all + 1}}}, "", ""};
  EXPECT_THAT(store->Stage(large, false), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(store->quarantine_totals().arrays, 1);
}

TEST_F(ShardStoreTest, WhoeverNeedsMemoryGetsThatOfTheQuarantine) {
  const auto store = OpenMemory();
  const auto fill = [&] {
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
    ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
  };
  // Such as scratch of a step, from another pool of the same budget.
  const auto scratch = BufferPool::Create(&budget_, 0);
  fill();
  EXPECT_THAT(scratch->Allocate(budget_.limit_bytes() + 1, "too much"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(store->quarantine_totals().arrays, 1) << "it would not have sufficed";
  EXPECT_THAT(scratch->Allocate(budget_.limit_bytes(), "scratch"), IsOk());
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
  // Such as the copy of a message.
  fill();
  EXPECT_THAT(budget_.TryReserve(budget_.limit_bytes(), "packed weights"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(store->quarantine_totals().arrays, 1) << "who does well without takes nothing";
  EXPECT_THAT(budget_.Reserve(budget_.limit_bytes(), "a message"), IsOk());
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(ShardStoreTest, APutThatIsGivenUpTakesNothingOutOfTheQuarantine) {
  for (const bool on_disk : {false, true}) {
    const auto store = on_disk ? OpenDisk() : OpenMemory();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
    ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
    store->AwaitFiles();
    ASSERT_THAT(StageRow(*store, "a", 1), IsOk());
    const auto drop = [&] {
      absl::Notification done;
      store->Drop({"a"}, [&](const absl::Status& status) {
        EXPECT_THAT(status, IsOk());
        done.Notify();
      });
      done.WaitForNotification();
    };
    drop();
    EXPECT_THAT(store->FindAllStaged("a"), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_EQ(store->quarantine_totals().arrays, 1);
    ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
    ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
    drop();
    EXPECT_EQ(store->quarantine_totals().arrays, 0) << "what was released goes";
  }
}

// The files of such an array are among the staged ones.
TEST_F(ShardStoreTest, AnArrayWhoseFilesCouldNotBeCommittedLeavesNoneWhenItGoes) {
  const auto commit = [this](ShardStore& store) {
    ASSERT_THAT(StageRow(store, "a", 0), IsOk());
    ASSERT_THAT(ArmFailpoints("tiles.rename_committed=eio"), IsOk());
    ASSERT_THAT(store.Commit({"a"}), IsOk());
    store.AwaitFiles();
    ASSERT_FALSE(IsArmed("tiles.rename_committed"));
    ASSERT_EQ(FilesIn("staged"), 1);
  };
  const auto expect_nothing = [this](ShardStore& store) {
    store.AwaitFiles();
    EXPECT_EQ(FilesIn("staged"), 0);
    EXPECT_EQ(FilesIn("arrays"), 0);
    EXPECT_EQ(FilesIn("quarantine"), 0);
  };
  const auto store = OpenDisk();
  commit(*store);
  absl::Status dropped = absl::UnknownError("it has not ended");
  store->Drop({"a"}, [&](const absl::Status& status) { dropped = status; });
  expect_nothing(*store);
  EXPECT_THAT(dropped, IsOk());
  commit(*store);
  ASSERT_THAT(store->Release({"a"}), IsOk());
  expect_nothing(*store);
  commit(*store);
  ASSERT_TRUE(PutAside(*store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
  store->AwaitFiles();
  EXPECT_EQ(FilesIn("staged"), 0) << "the quarantine finds them there";
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  ASSERT_THAT(store->Release({"a"}), IsOk());
  expect_nothing(*store);
}

TEST_F(ShardStoreTest, AFileThatNeverReachedTheQuarantineGoesWithItsEntry) {
  const auto put_aside = [this](ShardStore& store) {
    for (const int64_t row : {0, 1}) ASSERT_THAT(StageRow(store, "a", row), IsOk());
    ASSERT_THAT(store.Commit({"a"}), IsOk());
    store.AwaitFiles();
    ASSERT_THAT(ArmFailpoints("tiles.rename_quarantined=eio"), IsOk());
    ASSERT_TRUE(PutAside(store, "a", Row("a", 0).tile, "test", false, absl::UnixEpoch()));
    store.AwaitFiles();
    ASSERT_FALSE(IsArmed("tiles.rename_quarantined"));
    ASSERT_EQ(FilesIn("arrays"), 2);
  };
  const auto store = OpenDisk();
  put_aside(*store);
  ASSERT_THAT(store->DropQuarantined("a"), IsOk());
  EXPECT_EQ(FilesIn("arrays"), 1) << "that of the other tile stays";
  EXPECT_THAT(store->Find("a", Row("a", 1).tile), IsOk());
  ASSERT_THAT(store->Release({"a"}), IsOk());
  store->AwaitFiles();
  put_aside(*store);
  store->Drop({"a"}, [](const absl::Status& status) { EXPECT_THAT(status, IsOk()); });
  store->AwaitFiles();
  EXPECT_EQ(FilesIn("arrays"), 0);
  EXPECT_EQ(FilesIn("quarantine"), 0);
  // A tile that came again has the same file name.
  put_aside(*store);
  ASSERT_THAT(store->RestoreQuarantined("a"), IsOk());
  EXPECT_EQ(FilesIn("arrays"), 2);
  ASSERT_TRUE(PutAside(*store, "a", Row("a", 1).tile, "test", false, absl::UnixEpoch()));
  ASSERT_THAT(store->DropQuarantined("a"), IsOk());
  EXPECT_EQ(FilesIn("arrays"), 1);
  EXPECT_THAT(store->Find("a", Row("a", 0).tile), IsOk());
}

// So many arrays that a sync for each would hold a worker up for minutes.
class ManyQuarantinedTest : public ShardStoreTest {
 protected:
  static constexpr int kArrays = 40;
  static std::string Id(int i) { return StrCat("array-", i); }
  static std::vector<ShardStore::Unknown> All() {
    std::vector<ShardStore::Unknown> all;
    for (int i = 0; i < kArrays; ++i) {
      for (int64_t row = 0; row < 2; ++row) {
        all.push_back({Id(i), Row(Id(i), row).tile, "nobody knows it", i % 2 == 0});
      }
    }
    return all;
  }
  void Put() {
    const auto store = OpenDisk();
    std::vector<std::string> ids;
    for (int i = 0; i < kArrays; ++i) {
      ids.push_back(Id(i));
      for (int64_t row = 0; row < 2; ++row) ASSERT_THAT(StageRow(*store, ids.back(), row), IsOk());
    }
    ASSERT_THAT(store->Commit(ids), IsOk());
    store->AwaitFiles();
  }
  // Moves all of them aside in a process that the failpoint ends; whether it did.
  bool EndsAt(const std::string& failpoint) {
    const pid_t child = fork();
    if (child == 0) {
      const auto store = OpenDisk();
      if (!ArmFailpoints(failpoint).ok()) _exit(1);
      store->Quarantine(All(), absl::UnixEpoch());
      store->AwaitFiles();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status) == kFailpointExitCode;
  }
};

TEST_F(ManyQuarantinedTest, AreSyncedTogether) {
  Put();
  EXPECT_FALSE(EndsAt("file.sync=crash:4,file.sync_folder=crash:20,tiles.sync_all=crash:3"))
      << "so many syncs are not made";
  EXPECT_EQ(FilesIn("quarantine"), 3 * kArrays);
  EXPECT_EQ(FilesIn("arrays"), 0);
}

TEST_F(ManyQuarantinedTest, AreWholeWhereverTheProcessEnds) {
  for (const char* failpoint :
       {"tiles.write_about=crash:20", "tiles.sync_all=crash", "tiles.rename_quarantined=crash",
        "tiles.rename_quarantined=crash:35", "tiles.sync_all=crash:2"}) {
    SCOPED_TRACE(failpoint);
    std::filesystem::remove_all(data_dir_);
    Put();
    ASSERT_TRUE(EndsAt(failpoint));
    const auto store = OpenDisk();
    EXPECT_THAT(store->recovery_report().problems, IsEmpty());
    EXPECT_EQ(store->recovery_report().committed_tiles + store->recovery_report().quarantined_tiles,
              2 * kArrays);
    for (const QuarantinedArray& array : store->ListQuarantine({}, "", kArrays)) {
      EXPECT_EQ(array.reason, "nobody knows it");
      EXPECT_EQ(array.since, absl::UnixEpoch());
    }
  }
}

TEST_F(ShardStoreTest, AFullDiskTakesTilesOutOfTheQuarantineForNewOnes) {
  const auto store = OpenDisk();
  for (const char* id : {"old", "lives"}) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(store->Commit({id}), IsOk());
    ASSERT_TRUE(PutAside(*store, id, Row(id, 0).tile, "test", *id == 'l', absl::UnixEpoch()));
  }
  store->AwaitFiles();
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "new", 0), IsOk());
  EXPECT_EQ(store->quarantine_totals().arrays, 1) << "one that lives goes for nothing";
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "newer", 0), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ShardStoreTest, AFullDiskAsksForRoomThatCachedArraysTake) {
  int64_t asked_bytes = 0;
  ShardStore* opened = nullptr;
  free_disk_ = [&](int64_t need_bytes) {
    asked_bytes = need_bytes;
    if (opened->FindAll("cached").ok()) {
      opened->Drop({"cached"}, [](const absl::Status&) {});
      return true;
    }
    return false;
  };
  const auto store = OpenDisk();
  opened = store.get();
  ASSERT_THAT(StageRow(*store, "cached", 0), IsOk());
  ASSERT_THAT(store->Commit({"cached"}), IsOk());
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "new", 0), IsOk());
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(
      StrCat(data_dir_, "/staged/new/", TileFileName(Row("new", 0).tile))));
  EXPECT_GT(file_bytes, kRowBytes);
  EXPECT_GE(asked_bytes, file_bytes) << "the header takes room too";
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "newer", 0), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ShardStoreTest, AFullDiskAsksForRoomUntilNothingIsFreed) {
  ShardStore* opened = nullptr;
  std::vector<std::string> cached = {"c", "b", "a"};
  int asked = 0;
  std::string place;
  free_disk_ = [&](int64_t) {
    ++asked;
    if (cached.empty()) return false;
    opened->Drop({cached.back()}, [](const absl::Status&) {});
    cached.pop_back();
    // The disk is still full until the last array has left it.
    if (!cached.empty()) {
      EXPECT_THAT(ArmFailpoints(place + "=enospc"), IsOk());
    }
    return true;
  };
  int tries = 0;
  for (const char* each :
       {"file.write", "file.create", "file.sync", "tiles.make_folder", "tile_file.write"}) {
    SCOPED_TRACE(each);
    place = each;
    std::filesystem::remove_all(data_dir_);
    const auto store = OpenDisk();
    opened = store.get();
    cached = {"c", "b", "a"};
    asked = 0;
    for (const std::string& id : cached) {
      ASSERT_THAT(StageRow(*store, id, 0), IsOk());
      ASSERT_THAT(store->Commit({id}), IsOk());
    }
    store->AwaitFiles();
    ASSERT_THAT(ArmFailpoints(place + "=enospc"), IsOk());
    EXPECT_THAT(StageRow(*store, StrCat("new-", ++tries), 0), IsOk());
    EXPECT_EQ(asked, 3);
    ASSERT_THAT(ArmFailpoints(place + "=enospc"), IsOk());
    EXPECT_THAT(StageRow(*store, "none-left", 0),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
    EXPECT_EQ(asked, 4);
  }
}

TEST_F(ShardStoreTest, AFullDiskTakesTheRoomThatOthersMake) {
  ShardStore* opened = nullptr;
  free_disk_ = [&](int64_t) {
    opened->Drop({"removed"}, [](const absl::Status&) {});
    return false;
  };
  const auto store = OpenDisk();
  opened = store.get();
  for (const char* id : {"removed", "before"}) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(store->Commit({id}), IsOk());
  }
  store->AwaitFiles();
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "new", 0), IsOk()) << "a name was removed meanwhile";
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "newer", 0),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
}

TEST_F(ShardStoreTest, AnAbortedTileMakesNoRoom) {
  ShardStore* opened = nullptr;
  int asked = 0;
  free_disk_ = [&](int64_t) {
    ++asked;
    EXPECT_THAT(opened->Abort({"new"}), IsOk());
    EXPECT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
    return true;
  };
  const auto store = OpenDisk();
  opened = store.get();
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(StageRow(*store, "new", 0), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(asked, 1);
}

TEST_F(ShardStoreTest, AFileThatIsWrittenAgainMakesRoomToo) {
  const auto store = OpenDisk();
  for (const char* id : {"old", "new"}) {
    ASSERT_THAT(StageRow(*store, id, 0), IsOk());
    ASSERT_THAT(store->Commit({id}), IsOk());
  }
  ASSERT_TRUE(PutAside(*store, "old", Row("old", 0).tile, "test", false, absl::UnixEpoch()));
  store->AwaitFiles();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr tile, store->Find("new", Row("new", 0).tile));
  ASSERT_THAT(ArmFailpoints("file.write=enospc"), IsOk());
  EXPECT_THAT(store->RewriteFile(tile), IsOk());
  EXPECT_EQ(store->quarantine_totals().arrays, 0);
}

// A worker whose disk is full of tiles of interrupted puts, which went to quarantine when the
// coordinator came back.
class FullOfInterruptedPutsTest : public ShardStoreTest {
 protected:
  static constexpr int64_t kTileBytes = 96 << 10;
  static constexpr int kInterrupted = 6;

  void SetUp() override {
    SHARDMESH_NEEDS_DISK(disk_);
    data_dir_ = disk_.folder() + "/worker";
    quarantine_.disk_bytes = disk_.free_bytes();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        store_, ShardStore::Open({BufferPool::Create(&large_, 0), data_dir_, quarantine_}));
    ASSERT_THAT(store_->SetClusterId("cluster"), IsOk());
    ASSERT_THAT(Stage("kept"), IsOk());
    ASSERT_THAT(store_->Commit({"kept"}), IsOk());
    ASSERT_TRUE(PutAside(*store_, "kept", Whole("kept").tile, "test", false, absl::UnixEpoch()));
    for (int i = 0; i < kInterrupted; ++i) {
      const std::string id = StrCat("interrupted-", i);
      ASSERT_THAT(Stage(id), IsOk());
      ASSERT_TRUE(PutAside(*store_, id, Whole(id).tile, "test", false,
                           absl::UnixEpoch() + absl::Seconds(1)));
    }
    store_->AwaitFiles();
    ASSERT_NO_FATAL_FAILURE(disk_.Fill());
  }

  static TileDescription Whole(const std::string& id) {
    return {id, Dtype::kU8, {1, kTileBytes}, {{{0, 1}, {0, kTileBytes}}}, "descriptor", "transfer"};
  }
  absl::Status Stage(const std::string& id) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<StagedTile> staged,
                               store_->Stage(Whole(id), /*durable=*/true));
    const std::string bytes(static_cast<size_t>(kTileBytes), 'x');
    SHARDMESH_RETURN_IF_ERROR(staged->Append(0, bytes, Crc32c(bytes)));
    return staged->Finish(Crc32c(bytes)).status();
  }

  test::SmallDisk disk_{2 << 20};
  MemoryBudget large_{16 << 20};
  std::unique_ptr<ShardStore> store_;
};

TEST_F(FullOfInterruptedPutsTest, TheseTilesGoFirst) {
  for (int i = 0; i < kInterrupted; ++i) {
    EXPECT_THAT(Stage(StrCat("again-", i)), IsOk());
    EXPECT_THAT(store_->ListQuarantine({"kept"}, "", 1), SizeIs(1)) << i;
  }
  EXPECT_THAT(Stage("more"), IsOk());
  EXPECT_EQ(store_->quarantine_totals().arrays, 0);
  EXPECT_THAT(Stage("too-much"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
}

TEST_F(FullOfInterruptedPutsTest, TilesThatComeAtOnceAllFit) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kInterrupted; ++i) {
    threads.emplace_back([this, i] { EXPECT_THAT(Stage(StrCat("again-", i)), IsOk()); });
  }
  for (std::thread& each : threads) each.join();
}

TEST_F(ShardStoreTest, ALackOfDescriptorsTakesNothingOutOfTheQuarantine) {
  const auto store = OpenDisk();
  ASSERT_THAT(StageRow(*store, "old", 0), IsOk());
  ASSERT_THAT(store->Commit({"old"}), IsOk());
  ASSERT_TRUE(PutAside(*store, "old", Row("old", 0).tile, "test", false, absl::UnixEpoch()));
  store->AwaitFiles();
  int tries = 0;
  for (const char* place : {"file.create", "file.open_folder", "file.sync", "tiles.make_folder"}) {
    SCOPED_TRACE(place);
    ASSERT_THAT(ArmFailpoints(StrCat(place, "=emfile")), IsOk());
    const auto staged = StageRow(*store, StrCat("new-", ++tries), 0);
    EXPECT_THAT(staged, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_NE(ReasonOf(staged.status()), Reason::kStoreFull);
    EXPECT_FALSE(IsArmed(place));
    EXPECT_EQ(store->quarantine_totals().arrays, 1);
  }
  EXPECT_THAT(store->RestoreQuarantined("old"), IsOk());
}

TEST_F(ShardStoreTest, WhatNobodyCanReadInTheQuarantineIsBoundedToo) {
  const auto write = [&](const std::string& path, size_t size) {
    const std::filesystem::path whole = StrCat(data_dir_, "/", path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << std::string(size, 'x');
  };
  write("quarantine/a/garbage.safetensors", 100);
  write("quarantine/a/half.safetensors.partial", 100);
  write("quarantine/b/about", 10);
  quarantine_.disk_bytes = 1000;
  {
    const auto store = OpenDisk();
    ASSERT_THAT(store->recovery_report().problems, SizeIs(1));
    EXPECT_THAT(store->recovery_report().problems[0].moved_to, HasSubstr("/corrupt/a.garbage"));
    EXPECT_THAT(store->ListQuarantine({}, "", 10), IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/quarantine/a"));
  EXPECT_FALSE(std::filesystem::exists(data_dir_ + "/quarantine/b"));
  EXPECT_EQ(FilesIn("corrupt"), 1);
  write("quarantine/c/more.safetensors", 950);
  OpenDisk();
  EXPECT_EQ(FilesIn("corrupt"), 1) << "the older one went";
  EXPECT_TRUE(std::filesystem::exists(data_dir_ + "/corrupt/c.more.safetensors"));
  // Where tiles of live arrays take all the room, what was found now stays for people to see.
  ASSERT_NO_FATAL_FAILURE(QuarantineRows("lives", {0}, /*lives=*/true));
  quarantine_.disk_bytes = kRowBytes - 1;
  write("quarantine/d/last.safetensors", 10);
  OpenDisk();
  EXPECT_EQ(FilesIn("corrupt"), 1);
  EXPECT_TRUE(std::filesystem::exists(data_dir_ + "/corrupt/d.last.safetensors"));
  OpenDisk();
  EXPECT_EQ(FilesIn("corrupt"), 0);
}

TEST_F(ShardStoreTest, FilesThatCannotBeRemovedAreToldAndFoundAgain) {
  {
    const auto store = OpenDisk();
    ASSERT_THAT(StageRow(*store, "a", 0), IsOk());
    ASSERT_THAT(store->Commit({"a"}), IsOk());
    store->AwaitFiles();
    std::filesystem::remove_all(data_dir_ + "/trash");
    std::ofstream(data_dir_ + "/trash") << "no folder";
    absl::Status ended;
    store->Drop({"a"}, [&](const absl::Status& status) { ended = status; });
    store->AwaitFiles();
    EXPECT_FALSE(ended.ok());
    EXPECT_THAT(store->FindAll("a"), StatusIs(absl::StatusCode::kNotFound)) << "forgotten at once";
    ASSERT_THAT(StageRow(*store, "b", 0), IsOk()) << "the store goes on";
  }
  std::filesystem::remove_all(data_dir_ + "/trash");
  EXPECT_EQ(OpenDisk()->recovery_report().committed_tiles, 1);
}

// Whoever tells the store to drop something has other things to do than to wait for a disk.
TEST_F(ShardStoreTest, ManyArraysAreDroppedWithoutWaitingForTheDiskAndSyncedTogether) {
  constexpr int kArrays = 40;
  std::vector<std::string> ids;
  {
    const auto store = OpenDisk();
    for (int i = 0; i < kArrays; ++i) {
      ids.push_back(StrCat("a", i));
      ASSERT_THAT(StageRow(*store, ids.back(), 0), IsOk());
    }
    ASSERT_THAT(store->Commit(ids), IsOk());
    store->AwaitFiles();
  }
  // In a process that ends where so many syncs are made.
  const pid_t child = fork();
  if (child == 0) {
    const auto store = OpenDisk();
    if (!ArmFailpoints("tiles.rename_discarded=delay,file.sync_folder=crash:5,"
                       "tiles.sync_all=crash:5")
             .ok()) {
      _exit(1);
    }
    const absl::Time start = absl::Now();
    absl::Status ended = absl::UnknownError("it has not ended");
    store->Drop(ids, [&](const absl::Status& status) { ended = status; });
    const absl::Duration took = absl::Now() - start;
    if (store->FindAll("a0").ok()) _exit(2);
    store->AwaitFiles();
    if (!ended.ok() || IsArmed("tiles.rename_discarded")) _exit(3);
    _exit(took < absl::Milliseconds(kFailpointDelayMilliseconds) ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2: not forgotten at once; 4: it waited for the disk";
  EXPECT_EQ(FilesIn("arrays"), 0);
}

TEST_F(ShardStoreTest, DurableTilesNeedAFolderAndACluster) {
  EXPECT_THAT(OpenMemory()->Stage(Row("a", 0), true),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Open(data_dir_)->Stage(Row("a", 0), true),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ShardStoreTest, AnAbortedReceiverLeavesNoFile) {
  const auto store = OpenDisk();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged, store->Stage(Row("a", 0), true));
  ASSERT_THAT(staged->Append(0, RowBytes(0), Crc32c(RowBytes(0))), IsOk());
  ASSERT_THAT(store->Abort({"a"}), IsOk());
  EXPECT_THAT(staged->Finish(std::nullopt), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(FilesIn("staged"), 0);
}

TEST_F(ShardStoreTest, ThreadsStageCommitReadAbortAndReleaseAtOnce) {
  const auto store = OpenDisk();
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const std::string id = StrCat("array-", t, "-", i);
        EXPECT_THAT(StageRow(*store, id, 0), IsOk());
        EXPECT_THAT(StageRow(*store, id, 1), IsOk());
        if (i % 3 == 0) {
          EXPECT_THAT(store->Abort({id}), IsOk());
          continue;
        }
        EXPECT_THAT(store->Commit({id}), IsOk());
        EXPECT_THAT(*store->FindAll(id), SizeIs(2));
        if (i % 3 == 1) {
          EXPECT_THAT(store->Release({id}), IsOk());
        }
      }
    });
  }
  // Aborts a tile that another thread is writing, as often as it can.
  threads.emplace_back([&] {
    for (int i = 0; i < 30; ++i) {
      std::thread abort([&] { EXPECT_THAT(store->Abort({"contested"}), IsOk()); });
      const auto result = StageRow(*store, "contested", 0);
      EXPECT_TRUE(result.ok() || absl::IsAborted(result.status())) << result.status();
      abort.join();
      EXPECT_THAT(store->Abort({"contested"}), IsOk());
    }
  });
  std::thread reader([&] {
    while (!stop) {
      for (const ShardStore::HeldTile& held : store->ListInventory("", 1000).tiles) {
        EXPECT_EQ(Crc32c(held.tile->bytes()), held.tile->crc32c());
      }
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  stop = true;
  reader.join();
  store->AwaitFiles();
  EXPECT_THAT(store->ListInventory("", 1000).tiles, SizeIs(3 * 4 * 2));
  EXPECT_EQ(FilesIn("arrays"), 3 * 4 * 2);
  EXPECT_EQ(FilesIn("staged"), 0);
}

}  // namespace
}  // namespace shardmesh::worker
