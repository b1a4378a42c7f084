// UndoLog and TileUpdate: what a step overwrites in place comes back.
#include "worker/step/undo_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/crc32c.h"
#include "tests/testing/status_matchers.h"
#include "worker/step/tile_update.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RegionsTest : public testing::Test {
 protected:
  // The regions of a tile of I32 rows of two elements.
  std::vector<ByteRegion> Regions(const Tile& tile, Shape shape, std::vector<int32_t> positions,
                                  const Shape& positions_shape, int64_t first_sequence = 0) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    std::string bytes(static_cast<size_t>(elements) * 4, ' ');
    OpInput input = {.dtype = Dtype::kI32, .shape = positions_shape};
    input.tile = Tile::Whole(positions_shape);
    if (positions_shape.size() == 2) {
      input.tile.ranges[0] = {first_sequence, first_sequence + positions_shape[0]};
    }
    input.bytes = {reinterpret_cast<const char*>(positions.data()), positions.size() * 4};
    return RegionsOfUpdate({.dtype = Dtype::kI32,
                            .shape = std::move(shape),
                            .tile = tile,
                            .bytes = absl::MakeSpan(bytes)},
                           input);
  }
};

TEST_F(RegionsTest, OfEqualPositionsForAllSequences) {
  const Tile tile = Tile::Whole(Shape{2, 4, 2});
  EXPECT_THAT(Regions(tile, {2, 4, 2}, {1}, {1}), ElementsAre(ByteRegion{8, 8}, ByteRegion{40, 8}));
  EXPECT_THAT(Regions(tile, {2, 4, 2}, {3, 0}, {2}),
              ElementsAre(ByteRegion{0, 8}, ByteRegion{24, 16}, ByteRegion{56, 8}))
      << "the last row of one sequence touches the first of the next";
}

TEST_F(RegionsTest, OfEachSequenceInAnyOrderAndTwice) {
  const Tile tile = Tile::Whole(Shape{2, 4, 2});
  EXPECT_THAT(Regions(tile, {2, 4, 2}, {2, 1, 2, 0, 3, 0}, {2, 3}),
              ElementsAre(ByteRegion{8, 16}, ByteRegion{32, 8}, ByteRegion{56, 8}));
}

TEST_F(RegionsTest, PositionsOutsideOfTheTileHaveNone) {
  const Tile tile = Tile::Whole(Shape{1, 4, 2});
  EXPECT_THAT(Regions(tile, {1, 4, 2}, {-1, 4, 1 << 30}, {3}), IsEmpty());
  EXPECT_THAT(Regions(tile, {1, 4, 2}, {}, {0}), IsEmpty());
  // The tile has the rows 4 to 7 of sequences 2 and 3.
  const Tile part = {{{2, 4}, {4, 8}, {0, 2}}};
  EXPECT_THAT(Regions(part, {2, 4, 2}, {3, 5, 6, 8}, {2, 2}, /*first_sequence=*/2),
              ElementsAre(ByteRegion{8, 8}, ByteRegion{48, 8}));
  EXPECT_THAT(Regions(part, {2, 4, 2}, {5}, {1}), ElementsAre(ByteRegion{8, 8}, ByteRegion{40, 8}));
}

TEST_F(RegionsTest, OfRowsOfOneElementAndOfEmptyTiles) {
  EXPECT_THAT(Regions(Tile::Whole(Shape{1, 3}), {1, 3}, {2}, {1}), ElementsAre(ByteRegion{8, 4}));
  EXPECT_THAT(Regions(Tile::Whole(Shape{1, 3, 0}), {1, 3, 0}, {2}, {1}), IsEmpty());
}

TEST_F(RegionsTest, OfRowsThatAreNotWholeBytesAreTheTile) {
  std::string bytes(6, ' ');  // 12 elements of 4 bits
  const int32_t position = 1;
  const OpInput positions = {
      Dtype::kI32, {1}, Tile::Whole(Shape{1}), {reinterpret_cast<const char*>(&position), 4}};
  Dtype half_byte = Dtype::kF32;
  for (const Dtype dtype : AllDtypes()) {
    if (!WholeSizeBytes(dtype, 3).ok() && WholeSizeBytes(dtype, 2).ok()) half_byte = dtype;
  }
  ASSERT_NE(half_byte, Dtype::kF32);
  EXPECT_THAT(
      RegionsOfUpdate({half_byte, {1, 4, 3}, Tile::Whole(Shape{1, 4, 3}), absl::MakeSpan(bytes)},
                      positions),
      ElementsAre(ByteRegion{0, 6}));
}

class UndoLogTest : public testing::Test {
 protected:
  void Keep(UndoLog& log, std::vector<ByteRegion> regions) {
    Buffer copy = *pool_->Allocate(TotalBytes(regions), "a test");
    log.Keep(absl::MakeSpan(bytes_), std::move(regions), std::move(copy));
  }

  MemoryBudget budget_{1 << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, /*max_idle_bytes=*/0);
  std::string bytes_ = "0123456789";
};

TEST_F(UndoLogTest, RestoresTheLastFirst) {
  UndoLog log;
  Keep(log, {{1, 2}, {8, 2}});
  bytes_ = "0ab34567cd";
  Keep(log, {{2, 2}});
  bytes_ = "0axy4567cd";
  log.Undo();
  EXPECT_EQ(bytes_, "0123456789");
  EXPECT_TRUE(log.empty());
  bytes_ = "other";
  log.Undo();
  EXPECT_EQ(bytes_, "other");
}

TEST_F(UndoLogTest, RestoresNothingThatWasForgottenAndFreesItsMemory) {
  UndoLog log;
  Keep(log, {{0, 10}});
  EXPECT_GT(budget_.used_bytes(), 0);
  bytes_ = "abcdefghij";
  log.Clear();
  EXPECT_EQ(budget_.used_bytes(), 0);
  log.Undo();
  EXPECT_EQ(bytes_, "abcdefghij");
}

class TileUpdateTest : public testing::Test {
 protected:
  TileUpdateTest() {
    auto staged = store_->Stage({.array_id = "kv",
                                 .dtype = Dtype::kU8,
                                 .array_shape = {8},
                                 .tile = tile_,
                                 .array_descriptor = "",
                                 .transfer_id = "put"},
                                /*durable=*/false);
    EXPECT_THAT(staged, IsOk());
    std::memcpy((*staged)->mutable_bytes().data(), "01234567", 8);
    EXPECT_THAT((*staged)->Finish(std::nullopt), IsOk());
    EXPECT_THAT(store_->Commit({"kv"}), IsOk());
  }
  std::unique_ptr<TileUpdate> Begin() {
    return std::make_unique<TileUpdate>(*store_->BeginUpdate("kv", tile_, /*step=*/3));
  }
  // Overwrites two bytes as an op of a step does.
  void Write(TileUpdate& update) {
    if (update.needs_undo()) {
      Buffer copy = *pool_->Allocate(2, "a test");
      update.undo_log().Keep(update.block()->Share(0, 8).bytes, {{2, 2}}, std::move(copy));
    }
    std::memcpy(update.block()->Share(0, 8).bytes.data() + 2, "ab", 2);
  }
  std::string Content() {
    const StoredTilePtr found = *store_->Find("kv", tile_);
    return std::string(found->bytes().data(), found->bytes().size());
  }

  const Tile tile_ = Tile::Whole(Shape{8});
  MemoryBudget budget_{1 << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, /*max_idle_bytes=*/0);
  std::unique_ptr<ShardStore> store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
};

TEST_F(TileUpdateTest, IsInPlaceAndLeavesTheNextOneInPlaceToo) {
  const char* const memory = (*store_->Find("kv", tile_))->bytes().data();
  for (int i = 0; i < 2; ++i) {
    const std::unique_ptr<TileUpdate> update = Begin();
    EXPECT_TRUE(update->needs_undo());
    Write(*update);
    EXPECT_THAT(update->Commit(), IsOk());
    EXPECT_EQ(Content(), "01ab4567");
    EXPECT_EQ((*store_->Find("kv", tile_))->bytes().data(), memory);
    EXPECT_EQ((*store_->Find("kv", tile_))->crc32c(), Crc32c(std::string("01ab4567")));
  }
}

TEST_F(TileUpdateTest, IsUndoneWithoutACommit) {
  {
    const std::unique_ptr<TileUpdate> update = Begin();
    Write(*update);
  }
  EXPECT_EQ(Content(), "01234567");
}

TEST_F(TileUpdateTest, IsUndoneWhenAMessageNoLongerNeedsTheBytes) {
  std::unique_ptr<TileUpdate> update = Begin();
  Write(*update);
  OwnedMutableBytes lent = update->block()->Share(0, 8);
  EXPECT_TRUE(update->block()->HasOwners());
  absl::Notification is_sending;
  std::string sent;
  std::thread sender([&] {
    is_sending.Notify();
    for (const char byte : lent.bytes) sent.push_back(byte);
    lent = {};
  });
  is_sending.WaitForNotification();
  update = nullptr;
  sender.join();
  EXPECT_EQ(sent, "01ab4567");
  EXPECT_EQ(Content(), "01234567");
}

TEST_F(TileUpdateTest, LeavesReadersTheirBytes) {
  const StoredTilePtr reader = *store_->Find("kv", tile_);
  const std::unique_ptr<TileUpdate> update = Begin();
  EXPECT_FALSE(update->needs_undo());
  Write(*update);
  EXPECT_THAT(update->Commit(), IsOk());
  EXPECT_EQ(std::string(reader->bytes().data(), 8), "01234567");
  EXPECT_EQ(Content(), "01ab4567");
}

TEST_F(TileUpdateTest, OtherMemoryReplacesAllOfTheTile) {
  for (const bool is_committed : {false, true}) {
    auto memory = std::make_shared<Buffer>(*pool_->Allocate(8, "a test"));
    std::memcpy(memory->data(), "abcdefgh", 8);
    std::unique_ptr<TileUpdate> update = Begin();
    Write(*update);
    update->Replace(std::move(memory));
    if (is_committed) {
      EXPECT_THAT(update->Commit(), IsOk());
    }
    update = nullptr;
    EXPECT_EQ(Content(), is_committed ? "abcdefgh" : "01234567");
  }
}

}  // namespace
}  // namespace shardmesh::worker
