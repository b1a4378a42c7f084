// Tiles that the store holds in another form than their bytes: readers, memory, files, quarantine.
#include "worker/store/tile_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/store/reversed_tile.h"
#include "worker/store/scrubber.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::ReversedTile;
using ::shardmesh::test::StatusIs;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TileFormTest : public testing::Test {
 protected:
  // Large enough for two pieces of a check, and no multiple of a page.
  static constexpr int64_t kTileBytes = (int64_t{3} << 19) + 12;

  TileFormTest() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    data_dir_ = StrCat(testing::TempDir(), "/tile_form_", test->name());
    std::filesystem::remove_all(data_dir_);
  }
  void OpenStore(bool on_disk = false) {
    store_.reset();
    auto store = ShardStore::Open({BufferPool::Create(&budget_, 0), on_disk ? data_dir_ : ""});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
    ASSERT_THAT(store_->SetClusterId("cluster"), IsOk());
  }

  static TileDescription Describe(const std::string& array_id = "a") {
    return {array_id, Dtype::kU8, {kTileBytes}, {{{0, kTileBytes}}}, "descriptor", "transfer"};
  }
  static std::string Bytes() {
    std::string bytes(kTileBytes, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    return bytes;
  }
  static const Tile& Whole() {
    static const auto* const tile = new Tile(Describe().tile);
    return *tile;
  }
  void Add(const std::string& array_id = "a", bool commit = true) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto staged,
                                   store_->Stage(Describe(array_id), store_->has_data_dir()));
    const std::string bytes = Bytes();
    ASSERT_THAT(staged->Append(0, bytes, Crc32c(bytes)), IsOk());
    ASSERT_THAT(staged->Finish(Crc32c(bytes)), IsOk());
    if (commit) {
      ASSERT_THAT(store_->Commit({array_id}), IsOk());
    }
  }
  std::shared_ptr<ReversedTile> Reversed() {
    return std::make_shared<ReversedTile>(Bytes(), *budget_.Reserve(kTileBytes, "a form"));
  }
  // Adds an array that the store holds in another form, and returns that form.
  std::shared_ptr<ReversedTile> AddReversed(const std::string& array_id = "a") {
    Add(array_id);
    std::shared_ptr<ReversedTile> form = Reversed();
    EXPECT_THAT(store_->HoldAs(array_id, Whole(), form), IsOk());
    return form;
  }
  void ExpectBytes(const absl::StatusOr<StoredTilePtr>& tile) {
    ASSERT_THAT(tile, IsOk());
    EXPECT_EQ((*tile)->form(), nullptr);
    EXPECT_TRUE((*tile)->bytes() == absl::MakeConstSpan(Bytes()));
    EXPECT_EQ((*tile)->size_bytes(), kTileBytes);
    EXPECT_EQ((*tile)->crc32c(), Crc32c(Bytes()));
    EXPECT_EQ((*tile)->description().tile, Whole());
    EXPECT_EQ((*tile)->durable(), store_->has_data_dir());
  }
  // The memory of a tile's bytes in the pool.
  int64_t PlainBytes() const { return plain_bytes_; }
  int64_t MeasurePlainBytes() {
    const int64_t before = store_->used_bytes();
    Add("measured");
    plain_bytes_ = store_->used_bytes() - before;
    EXPECT_THAT(store_->Release({"measured"}), IsOk());
    return plain_bytes_;
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{64} << 20};
  int64_t plain_bytes_ = 0;
  std::string data_dir_;
  std::unique_ptr<ShardStore> store_;
};

TEST_F(TileFormTest, AFormTakesTheMemoryOfTheBytes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  Add();
  EXPECT_EQ(store_->used_bytes(), PlainBytes());
  const std::shared_ptr<ReversedTile> form = Reversed();
  EXPECT_EQ(store_->used_bytes(), PlainBytes() + kTileBytes);
  ASSERT_THAT(store_->HoldAs("a", Whole(), form), IsOk());
  EXPECT_EQ(store_->used_bytes(), kTileBytes);
  EXPECT_EQ((*store_->FindHeld("a", Whole()))->form(), form);
  EXPECT_THAT(*store_->FindAllHeld("a", /*staged_too=*/false), SizeIs(1));
  EXPECT_EQ(store_->ListInventory("", 10).tiles.front().tile->crc32c(), Crc32c(Bytes()));
  EXPECT_EQ(store_->used_bytes(), kTileBytes) << "these unpack nothing";
}

TEST_F(TileFormTest, ReadersGetTheBytesAndShareThem) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  const std::shared_ptr<ReversedTile> form = AddReversed();
  const int64_t reads = form->reads();
  {
    const absl::StatusOr<StoredTilePtr> first = store_->Find("a", Whole());
    ExpectBytes(first);
    EXPECT_EQ(store_->used_bytes(), kTileBytes + PlainBytes());
    const absl::StatusOr<StoredTilePtr> second = store_->FindStaged("a", Whole());
    ExpectBytes(second);
    EXPECT_EQ((*second)->bytes().data(), (*first)->bytes().data());
    EXPECT_EQ((*store_->FindAll("a"))[0]->bytes().data(), (*first)->bytes().data());
    EXPECT_EQ((*store_->FindAllStaged("a"))[0]->bytes().data(), (*first)->bytes().data());
    EXPECT_EQ(store_->used_bytes(), kTileBytes + PlainBytes());
    EXPECT_EQ(form->reads(), reads + 1);
  }
  EXPECT_EQ(store_->used_bytes(), kTileBytes);
  ExpectBytes(store_->Find("a", Whole()));
  EXPECT_EQ(form->reads(), reads + 2);
}

TEST_F(TileFormTest, ReadersOnManyThreadsShareOneBuffer) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  const std::shared_ptr<ReversedTile> form = AddReversed();
  const int64_t reads = form->reads();
  std::vector<absl::StatusOr<StoredTilePtr>> found(4, absl::UnknownError(""));
  std::vector<std::thread> threads;
  for (absl::StatusOr<StoredTilePtr>& each : found) {
    threads.emplace_back([&] { each = store_->Find("a", Whole()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::StatusOr<StoredTilePtr>& each : found) {
    ExpectBytes(each);
    EXPECT_EQ((*each)->bytes().data(), (*found[0])->bytes().data());
  }
  EXPECT_EQ(form->reads(), reads + 1);
  EXPECT_EQ(store_->used_bytes(), kTileBytes + PlainBytes());
}

TEST_F(TileFormTest, AReaderKeepsTheBytesAndSharesThemWithLaterOnes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  Add();
  absl::StatusOr<StoredTilePtr> reader = store_->Find("a", Whole());
  const std::shared_ptr<ReversedTile> form = Reversed();
  ASSERT_THAT(store_->HoldAs("a", Whole(), form), IsOk());
  const int64_t reads = form->reads();
  ExpectBytes(reader);
  EXPECT_EQ((*store_->Find("a", Whole()))->bytes().data(), (*reader)->bytes().data());
  EXPECT_EQ(form->reads(), reads);
  EXPECT_EQ(store_->used_bytes(), kTileBytes + PlainBytes());
  reader = absl::UnknownError("");
  EXPECT_EQ(store_->used_bytes(), kTileBytes);
}

TEST_F(TileFormTest, AFormWithOtherBytesIsRefused) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  Add();
  std::shared_ptr<ReversedTile> form = Reversed();
  form->Damage();
  EXPECT_THAT(store_->HoldAs("a", Whole(), form),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  form = nullptr;
  ExpectBytes(store_->Find("a", Whole()));
  EXPECT_EQ(store_->used_bytes(), PlainBytes());
}

TEST_F(TileFormTest, OnlyACommittedTileInMemoryIsHeldInAnotherForm) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  const auto form = Reversed();
  EXPECT_THAT(store_->HoldAs("a", Whole(), form), StatusIs(absl::StatusCode::kNotFound));
  Add("a", /*commit=*/false);
  EXPECT_THAT(store_->HoldAs("a", Whole(), form), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(store_->Commit({"a"}), IsOk());
  ASSERT_THAT(store_->HoldAs("a", Whole(), form), IsOk());
  EXPECT_THAT(store_->HoldAs("a", Whole(), form), StatusIs(absl::StatusCode::kFailedPrecondition));
  Add("b");
  ASSERT_THAT(store_->Unload({"b"}, "c", absl::ZeroDuration(), [] { return absl::OkStatus(); }),
              IsOk());
  EXPECT_THAT(store_->HoldAs("b", Whole(), form), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(TileFormTest, AReleasedTileLeavesItsReadersTheBytes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  AddReversed();
  {
    const absl::StatusOr<StoredTilePtr> reader = store_->Find("a", Whole());
    ASSERT_THAT(store_->Release({"a"}), IsOk());
    EXPECT_THAT(store_->Find("a", Whole()), StatusIs(absl::StatusCode::kNotFound));
    ExpectBytes(reader);
  }
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileFormTest, WithoutMemoryForTheBytesReadersAreRefused) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  AddReversed();
  {
    const auto others = budget_.Reserve(budget_.limit_bytes() - budget_.used_bytes(), "others");
    ASSERT_THAT(others, IsOk());
    EXPECT_THAT(store_->Find("a", Whole()),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    EXPECT_THAT(store_->FindAll("a"),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    EXPECT_THAT(store_->FindHeld("a", Whole()), IsOk());
  }
  ExpectBytes(store_->Find("a", Whole()));
}

TEST_F(TileFormTest, TheBytesTakeThePlaceOfAFormAgain) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  AddReversed();
  EXPECT_EQ(store_->TakeMemory("a", Whole()), nullptr) << "a form is no memory for a result";
  ExpectBytes(store_->HoldPlain("a", Whole()));
  EXPECT_EQ((*store_->FindHeld("a", Whole()))->form(), nullptr);
  EXPECT_EQ(store_->used_bytes(), PlainBytes());
  ExpectBytes(store_->HoldPlain("a", Whole()));
  EXPECT_EQ(store_->used_bytes(), PlainBytes()) << "repeated";
  EXPECT_NE(store_->TakeMemory("a", Whole()), nullptr);
  EXPECT_THAT(store_->HoldPlain("a", Whole()), StatusIs(absl::StatusCode::kNotFound));
}

// A held tile gives its readers the object that it unpacked last. If the store held that object, a
// reader could get it while a step writes the bytes.
TEST_F(TileFormTest, TheStoreHoldsAnotherObjectThanReadersShare) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  MeasurePlainBytes();
  AddReversed();
  absl::StatusOr<StoredTilePtr> reader = store_->Find("a", Whole());
  ASSERT_THAT(reader, IsOk());
  absl::StatusOr<StoredTilePtr> plain = store_->HoldPlain("a", Whole());
  ASSERT_THAT(plain, IsOk());
  EXPECT_NE(*plain, *reader);
  EXPECT_EQ((*plain)->bytes().data(), (*reader)->bytes().data());
  EXPECT_EQ(*store_->FindHeld("a", Whole()), *plain);
  EXPECT_EQ(store_->used_bytes(), PlainBytes());
  plain = absl::NotFoundError("");
  EXPECT_EQ(store_->TakeMemory("a", Whole()), nullptr) << "the reader has the bytes";
  reader = absl::NotFoundError("");
  EXPECT_NE(store_->TakeMemory("a", Whole()), nullptr);
}

TEST_F(TileFormTest, ADurableTileKeepsItsFile) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  AddReversed();
  EXPECT_THAT(store_->CheckFile(Describe(), Crc32c(Bytes()), int64_t{1} << 20,
                                [](int64_t) { return absl::OkStatus(); }),
              IsOk());
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  ExpectBytes(store_->Find("a", Whole()));
  EXPECT_EQ((*store_->FindHeld("a", Whole()))->form(), nullptr);
}

TEST_F(TileFormTest, AFileIsWrittenAgainFromAForm) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  AddReversed();
  store_->AwaitFiles();
  std::filesystem::remove(StrCat(data_dir_, "/arrays/a/", TileFileName(Whole())));
  ASSERT_THAT(store_->RewriteFile(*store_->FindHeld("a", Whole())), IsOk());
  std::filesystem::remove(StrCat(data_dir_, "/arrays/a/", TileFileName(Whole())));
  ASSERT_THAT(store_->RewriteFile(*store_->Find("a", Whole())), IsOk()) << "by its bytes";
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  ExpectBytes(store_->Find("a", Whole()));
}

TEST_F(TileFormTest, AFormIsUnloadedLikeBytes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  AddReversed();
  EXPECT_THAT(store_->Unload({"a"}, "b", absl::Seconds(60), [] { return absl::OkStatus(); }),
              IsOkAndHolds(kTileBytes));
  EXPECT_EQ(store_->used_bytes(), 0);
  EXPECT_EQ(store_->unloaded_bytes(), kTileBytes);
  ExpectBytes(store_->Find("a", Whole()));
  store_->EndUnload("b");
  store_->AwaitReloads();
  EXPECT_EQ(store_->unloaded_bytes(), 0);
  ExpectBytes(store_->Find("a", Whole()));
}

TEST_F(TileFormTest, AFormGoesIntoQuarantineAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(OpenStore());
  const std::shared_ptr<ReversedTile> form = AddReversed();
  ASSERT_EQ(store_->Quarantine({{.array_id = "a", .tile = Whole(), .reason = "test"}}, absl::Now()),
            1);
  EXPECT_EQ(store_->quarantine_totals().droppable_memory_bytes, kTileBytes);
  EXPECT_EQ(store_->quarantine_totals().droppable_tiles_bytes, kTileBytes);
  ASSERT_THAT(store_->RestoreQuarantined("a"), IsOk());
  ExpectBytes(store_->Find("a", Whole()));
  EXPECT_EQ((*store_->FindHeld("a", Whole()))->form(), form);
  ASSERT_EQ(store_->Quarantine({{.array_id = "a", .tile = Whole(), .reason = "test"}}, absl::Now()),
            1);
  form->Damage();
  EXPECT_THAT(store_->RestoreQuarantined("a"), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_THAT(store_->DropQuarantined("a"), IsOk());
  EXPECT_EQ(store_->used_bytes(), kTileBytes) << "only the test holds the form";
}

TEST_F(TileFormTest, TheScrubberReadsFormsWithoutMemoryForTheBytes) {
  ASSERT_NO_FATAL_FAILURE(OpenStore(/*on_disk=*/true));
  const std::shared_ptr<ReversedTile> form = AddReversed("a");
  const std::shared_ptr<ReversedTile> damaged = AddReversed("b");
  std::vector<std::string> reread;
  std::vector<std::pair<std::string, std::string>> lost;
  Scrubber scrubber(
      {.store = store_.get(),
       .clock = &clock_,
       .bytes_per_second = int64_t{1} << 40,
       .interval = absl::Hours(1),
       .damaged = [&](const std::string& array_id,
                      const std::string& reason) { lost.emplace_back(array_id, reason); },
       .reread = [&](const std::string& array_id) { reread.push_back(array_id); }});
  {
    const auto others = budget_.Reserve(budget_.limit_bytes() - budget_.used_bytes(), "others");
    scrubber.RunPass();
    EXPECT_EQ(scrubber.counters().bytes, 4 * kTileBytes) << "both forms and both files";
    EXPECT_EQ(scrubber.counters().damaged_tiles, 0);
  }
  damaged->Damage();
  scrubber.RunPass();
  EXPECT_EQ(scrubber.counters().damaged_tiles, 1);
  EXPECT_THAT(reread, testing::ElementsAre("b"));
  EXPECT_THAT(lost, IsEmpty());
  ExpectBytes(store_->Find("b", Whole()));
}

}  // namespace
}  // namespace shardmesh::worker
