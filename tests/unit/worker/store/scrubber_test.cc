// The scrubber: which damage it finds, and what becomes of the tile.
#include "worker/store/scrubber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "worker/store/state_tile.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Large enough for three pieces, the last one cut short.
constexpr int64_t kTileBytes = (int64_t{5} << 19) + 3;

class ScrubberTest : public testing::Test {
 protected:
  ScrubberTest() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    data_dir_ = StrCat(testing::TempDir(), "/scrubber_", test->name());
    std::filesystem::remove_all(data_dir_);
    auto store = ShardStore::Open({BufferPool::Create(&budget_, 0), data_dir_, {}});
    EXPECT_THAT(store, IsOk());
    store_ = *std::move(store);
    EXPECT_THAT(store_->SetClusterId("cluster"), IsOk());
  }
  ~ScrubberTest() override {
    store_.reset();
    std::filesystem::remove_all(data_dir_);
  }

  static TileDescription Describe(const std::string& array_id) {
    return {array_id, Dtype::kU8, {kTileBytes}, {{{0, kTileBytes}}}, "descriptor", "transfer"};
  }
  void AddTile(const std::string& array_id, bool durable = true, bool commit = true) {
    auto staged = store_->Stage(Describe(array_id), durable);
    ASSERT_THAT(staged, IsOk());
    const absl::Span<char> bytes = (*staged)->mutable_bytes();
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    ASSERT_THAT((*staged)->FinishInPlace(Crc32c(bytes)), IsOk());
    if (commit) {
      ASSERT_THAT(store_->Commit({array_id}), IsOk());
    }
  }
  // Changes one byte of the tile in memory, as a fault of the memory would.
  void Flip(const std::string& array_id, size_t at) {
    const auto tile = store_->FindStaged(array_id, Describe(array_id).tile);
    ASSERT_THAT(tile, IsOk());
    const_cast<char*>((*tile)->bytes().data())[at] ^= 4;
  }
  std::string FileOf(const std::string& array_id) {
    store_->AwaitFiles();
    return StrCat(data_dir_, "/arrays/", array_id, "/", TileFileName(Describe(array_id).tile));
  }
  static void FlipInFile(const std::string& path, int64_t from_end) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-from_end, std::ios::end);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(-from_end, std::ios::end);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  std::unique_ptr<Scrubber> NewScrubber(absl::Duration interval = absl::Hours(1)) {
    return std::make_unique<Scrubber>(Scrubber::Options{
        .store = store_.get(),
        .clock = &clock_,
        .bytes_per_second = int64_t{1} << 40,
        .interval = interval,
        .damaged = [this](const std::string& array_id,
                          const std::string& reason) { damaged_.emplace_back(array_id, reason); },
        .reread = [this](const std::string& array_id) { reread_.push_back(array_id); }});
  }
  void Unload(const std::string& array_id) {
    ASSERT_THAT(store_->Unload({array_id}, "successor", absl::InfiniteDuration(),
                               [] { return absl::OkStatus(); }),
                IsOk());
  }
  bool Holds(const std::string& array_id) {
    return store_->Find(array_id, Describe(array_id).tile).ok();
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{64} << 20};
  std::string data_dir_;
  std::unique_ptr<ShardStore> store_;
  std::vector<std::pair<std::string, std::string>> damaged_;
  std::vector<std::string> reread_;
};

TEST_F(ScrubberTest, ReadsAllCommittedTilesInMemoryAndOnDisk) {
  AddTile("disk");
  AddTile("memory", /*durable=*/false);
  AddTile("staged", /*durable=*/true, /*commit=*/false);
  const auto scrubber = NewScrubber();
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().passes, 1);
  EXPECT_EQ(scrubber->counters().bytes, 3 * kTileBytes);
  EXPECT_EQ(scrubber->counters().damaged_tiles, 0);
  EXPECT_EQ(scrubber->counters().damaged_files, 0);
  EXPECT_THAT(damaged_, IsEmpty());
}

TEST_F(ScrubberTest, AnEmptyStoreIsPassedAtOnce) {
  const auto scrubber = NewScrubber();
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().passes, 1);
  EXPECT_EQ(scrubber->counters().bytes, 0);
}

TEST_F(ScrubberTest, ATileThatIsDamagedInMemoryIsReadBackFromItsFile) {
  for (const size_t at : {size_t{0}, size_t{1} << 20, static_cast<size_t>(kTileBytes - 1)}) {
    const std::string id = StrCat("a", at);
    AddTile(id);
    AddTile(StrCat(id, "-sound"));
    Flip(id, at);
    const auto scrubber = NewScrubber();
    scrubber->RunPass();
    const auto tile = store_->Find(id, Describe(id).tile);
    ASSERT_THAT(tile, IsOk());
    EXPECT_EQ(Crc32c((*tile)->bytes()), (*tile)->crc32c());
    EXPECT_TRUE((*tile)->durable());
    EXPECT_EQ(scrubber->counters().damaged_tiles, 1);
    EXPECT_EQ(scrubber->counters().reread_tiles, 1);
    EXPECT_THAT(reread_, ElementsAre(id)) << "an inventory may have had the tile in quarantine";
    scrubber->RunPass();
    EXPECT_EQ(scrubber->counters().damaged_tiles, 1);
    EXPECT_THAT(std::exchange(reread_, {}), ElementsAre(id));
  }
  EXPECT_THAT(damaged_, IsEmpty());
  EXPECT_EQ(store_->quarantine_totals().arrays, 0);
}

TEST_F(ScrubberTest, ATileThatCannotBeReadBackStaysAsideUntilItCan) {
  AddTile("a");
  Flip("a", 3);
  const auto scrubber = NewScrubber();
  ASSERT_THAT(ArmFailpoints("tile_file.read=eio"), IsOk());
  scrubber->RunPass();
  EXPECT_FALSE(Holds("a"));
  EXPECT_THAT(damaged_, ElementsAre(Pair("a", HasSubstr("could not be read back"))));
  EXPECT_THAT(reread_, IsEmpty());
  const auto aside = store_->ListQuarantine({}, "", 10);
  ASSERT_EQ(aside.size(), 1u);
  EXPECT_TRUE(aside[0].array_lives) << "it must not be dropped for lack of space";
  EXPECT_THAT(aside[0].reason, HasSubstr("damaged in memory"));
  EXPECT_THAT(store_->RestoreQuarantined("a"), IsOk());
  EXPECT_TRUE(Holds("a"));
}

// Such as on a full disk.
TEST_F(ScrubberTest, AFileThatCannotBeMovedAsideIsReadInItsPlace) {
  for (const auto& [id, failpoint] :
       std::vector<std::pair<std::string, std::string>>{{"a", "tiles.make_folder=enospc"},
                                                        {"b", "file.create=enospc"},
                                                        {"c", "tiles.rename_quarantined=eio"}}) {
    AddTile(id);
    const std::string path = FileOf(id);
    Flip(id, 3);
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    NewScrubber()->RunPass();
    EXPECT_TRUE(Holds(id)) << failpoint;
    EXPECT_TRUE(std::filesystem::exists(path)) << failpoint;
    EXPECT_EQ(store_->quarantine_totals().arrays, 0) << failpoint;
  }
  EXPECT_THAT(damaged_, IsEmpty());
  EXPECT_THAT(reread_, ElementsAre("a", "b", "c"));
  ASSERT_THAT(ArmFailpoints(""), IsOk());
}

TEST_F(ScrubberTest, ATileWithoutAFileIsComparedToo) {
  AddTile("a", /*durable=*/false);
  Flip("a", 5);
  NewScrubber()->RunPass();
  EXPECT_FALSE(Holds("a"));
  EXPECT_THAT(damaged_, ElementsAre(Pair("a", HasSubstr("it has no file"))));
}

TEST_F(ScrubberTest, ADamagedTileWithoutAFileTakesNoMemoryInQuarantine) {
  AddTile("a", /*durable=*/false);
  ASSERT_GE(store_->used_bytes(), kTileBytes);
  Flip("a", 5);
  NewScrubber()->RunPass();
  EXPECT_EQ(store_->used_bytes(), 0);
  EXPECT_EQ(store_->quarantine_totals().arrays, 1);
  EXPECT_EQ(store_->quarantine_totals().memory_bytes, 0);
  const auto aside = store_->ListQuarantine({}, "", 10);
  ASSERT_EQ(aside.size(), 1u);
  ASSERT_EQ(aside[0].tiles.size(), 1u);
  EXPECT_EQ(aside[0].tiles[0].size_bytes, kTileBytes);
  EXPECT_THAT(store_->RestoreQuarantined("a"),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  // A repair brings the tile back beside the entry, which nothing drops for lack of memory.
  AddTile("a", /*durable=*/false);
  EXPECT_TRUE(Holds("a"));
  // Its array is no longer live: the entry expires as any other.
  store_->SetLive({"a"}, false, clock_.Now());
  EXPECT_EQ(store_->quarantine_totals().droppable_memory_bytes, 0);
  EXPECT_THAT(store_->DropQuarantined("a"), IsOk());
  EXPECT_TRUE(Holds("a"));
}

TEST_F(ScrubberTest, AFileIsWrittenAgainInTurnWithTheOtherChangesOfFiles) {
  AddTile("a");
  const std::string path = FileOf("a");
  std::filesystem::remove(path);
  auto tile = store_->Find("a", Describe("a").tile);
  ASSERT_THAT(tile, IsOk());
  EXPECT_THAT(store_->RewriteFile(*tile), IsOk());
  EXPECT_TRUE(std::filesystem::exists(path));
  // A tile that was released since the scrubber looked gets no file again.
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  EXPECT_THAT(store_->RewriteFile(*tile), StatusIs(absl::StatusCode::kNotFound));
  store_->AwaitFiles();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path()));
  // Nor does one that is another tile now.
  AddTile("b");
  tile = store_->Find("b", Describe("b").tile);
  ASSERT_THAT(tile, IsOk());
  const ShardStore::Unknown aside{
      .array_id = "b", .tile = Describe("b").tile, .reason = "test", .array_lives = true};
  ASSERT_EQ(store_->Quarantine({&aside, 1}, clock_.Now()), 1);
  EXPECT_THAT(store_->RewriteFile(*tile), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(store_->RestoreQuarantined("b"), IsOk());
  EXPECT_THAT(store_->RewriteFile(*tile), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->RewriteFile(*store_->Find("b", Describe("b").tile)), IsOk());
}

TEST_F(ScrubberTest, OtherChangesOfFilesPassAFileThatIsWrittenAgain) {
  AddTile("a");
  const auto tile = store_->Find("a", Describe("a").tile);
  ASSERT_THAT(tile, IsOk());
  std::filesystem::remove(FileOf("a"));
  // On a busy machine a commit may take longer than the delay of the write.
  bool has_passed = false;
  for (int i = 0; i < 10 && !has_passed; ++i) {
    const std::string other = StrCat("b", i);
    AddTile(other, /*durable=*/true, /*commit=*/false);
    ASSERT_THAT(ArmFailpoints("tile_file.write=delay"), IsOk());
    std::atomic<bool> is_written = false;
    std::thread writer([&] {
      EXPECT_THAT(store_->RewriteFile(*tile), IsOk());
      is_written = true;
    });
    EXPECT_TRUE(test::Eventually([] { return !IsArmed("tile_file.write"); }));
    EXPECT_THAT(store_->Commit({other}), IsOk());
    EXPECT_TRUE(std::filesystem::exists(FileOf(other)));
    has_passed = !is_written;
    writer.join();
  }
  EXPECT_TRUE(has_passed) << "commits wait for the write";
  EXPECT_TRUE(std::filesystem::exists(FileOf("a")));
  EXPECT_TRUE(test::Eventually([this] { return std::filesystem::is_empty(data_dir_ + "/trash"); }));
}

TEST_F(ScrubberTest, ATileThatIsReleasedWhileItsFileIsWrittenGetsNone) {
  AddTile("a");
  const std::string path = FileOf("a");
  const auto tile = store_->Find("a", Describe("a").tile);
  ASSERT_THAT(tile, IsOk());
  ASSERT_THAT(ArmFailpoints("tile_file.write=delay"), IsOk());
  absl::Status written;
  std::thread writer([&] { written = store_->RewriteFile(*tile); });
  EXPECT_TRUE(test::Eventually([] { return !IsArmed("tile_file.write"); }));
  EXPECT_THAT(store_->Release({"a"}), IsOk());
  writer.join();
  // On a busy machine the file may have been there before the release.
  EXPECT_TRUE(written.ok() || absl::IsNotFound(written)) << written;
  store_->AwaitFiles();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path()));
  EXPECT_TRUE(test::Eventually([this] { return std::filesystem::is_empty(data_dir_ + "/trash"); }));
}

TEST_F(ScrubberTest, ADamagedFileIsWrittenAgainFromMemory) {
  AddTile("a");
  const std::string path = FileOf("a");
  const std::string sound = test::ReadFile(path);
  const std::vector<std::function<void()>> damages = {
      [&] { FlipInFile(path, 1); },
      [&] { FlipInFile(path, kTileBytes); },
      [&] { FlipInFile(path, kTileBytes + 40); },  // in the header
      [&] { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1); },
      [&] { std::filesystem::resize_file(path, 0); },
      [&] { std::filesystem::remove(path); },
      [&] { std::filesystem::remove_all(std::filesystem::path(path).parent_path()); },
      [&] {  // the file of another tile
        AddTile("b");
        std::filesystem::copy_file(FileOf("b"), path,
                                   std::filesystem::copy_options::overwrite_existing);
      },
  };
  const auto scrubber = NewScrubber();
  for (size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    scrubber->RunPass();
    EXPECT_EQ(scrubber->counters().damaged_files, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(scrubber->counters().rewritten_files, static_cast<int64_t>(i) + 1);
    EXPECT_TRUE(test::ReadFile(path) == sound) << "damage " << i;
    EXPECT_TRUE(Holds("a"));
  }
  EXPECT_THAT(damaged_, IsEmpty());
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().damaged_files, static_cast<int64_t>(damages.size()));
}

TEST_F(ScrubberTest, AFileThatCannotBeWrittenIsTriedAgain) {
  AddTile("a");
  const std::string path = FileOf("a");
  FlipInFile(path, 1);
  const auto scrubber = NewScrubber();
  ASSERT_THAT(ArmFailpoints("tile_file.write=enospc"), IsOk());
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().rewritten_files, 0);
  EXPECT_TRUE(Holds("a")) << "the memory is sound";
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().rewritten_files, 1);
}

TEST_F(ScrubberTest, ATileThatIsDamagedTwiceSaysSo) {
  AddTile("a");
  FlipInFile(FileOf("a"), 1);
  Flip("a", 9);
  NewScrubber()->RunPass();
  EXPECT_FALSE(Holds("a"));
  EXPECT_THAT(damaged_, ElementsAre(Pair("a", HasSubstr("its file is damaged too"))));
  EXPECT_THAT(store_->RestoreQuarantined("a"), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(ScrubberTest, AnUnloadedTileIsComparedInItsFileOnly) {
  AddTile("a");
  const std::string path = FileOf("a");
  const std::string sound = test::ReadFile(path);
  Unload("a");
  const auto scrubber = NewScrubber();
  scrubber->RunPass();
  EXPECT_EQ(scrubber->counters().bytes, kTileBytes) << "no second time through the mapping";
  EXPECT_EQ(scrubber->counters().damaged_files, 0);
  // The kernel still has the bytes.
  const std::vector<std::function<void()>> damages = {
      [&] { std::filesystem::remove(path); },
      [&] { FlipInFile(path, kTileBytes + 40); },  // in the header
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr old, store_->Find("a", Describe("a").tile));
    damages[i]();
    scrubber->RunPass();
    EXPECT_EQ(scrubber->counters().rewritten_files, static_cast<int64_t>(i) + 1);
    EXPECT_TRUE(test::ReadFile(path) == sound) << "damage " << i;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StoredTilePtr now, store_->Find("a", Describe("a").tile));
    EXPECT_NE(now, old) << "readers read the new file";
    EXPECT_TRUE(now->is_unloaded());
    EXPECT_TRUE(now->bytes() == old->bytes());
  }
  EXPECT_THAT(damaged_, IsEmpty());
}

TEST_F(ScrubberTest, AnUnloadedTileWhoseBytesAreLostGoesIntoQuarantine) {
  const std::vector<std::function<void(const std::string& path)>> damages = {
      [](const std::string& path) { FlipInFile(path, 1); },
      // A read of the mapping would end the process.
      [](const std::string& path) { std::filesystem::resize_file(path, kTileBytes / 2); },
      [](const std::string& path) { std::filesystem::resize_file(path, 0); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string id = StrCat("a", i);
    AddTile(id);
    const std::string path = FileOf(id);
    Unload(id);
    damages[i](path);
    const auto scrubber = NewScrubber();
    scrubber->RunPass();
    EXPECT_EQ(scrubber->counters().rewritten_files, 0);
    EXPECT_EQ(scrubber->counters().damaged_tiles, 1);
    EXPECT_FALSE(Holds(id));
    EXPECT_THAT(std::exchange(damaged_, {}),
                ElementsAre(Pair(id, HasSubstr("its bytes are not in memory"))));
  }
}

TEST_F(ScrubberTest, AStepMayUpdateATileWhileItIsCompared) {
  AddTile("kv", /*durable=*/false);
  const auto update = [this](int64_t step) {
    auto begun = store_->BeginUpdate("kv", Describe("kv").tile, step);
    ASSERT_THAT(begun, IsOk());
    const absl::Span<char> bytes = (*begun)->mutable_bytes();
    std::fill(bytes.begin(), bytes.end(), static_cast<char>(step));
    ASSERT_THAT((*begun)->Commit(), IsOk());
  };
  // It waits after each piece, so that the updates usually come between two pieces.
  Scrubber scrubber(
      {.store = store_.get(),
       .clock = &clock_,
       .bytes_per_second = int64_t{20} << 20,
       .interval = absl::Hours(1),
       .damaged = [this](const std::string& array_id,
                         const std::string& reason) { damaged_.emplace_back(array_id, reason); },
       .reread = [this](const std::string& array_id) { reread_.push_back(array_id); }});
  for (int64_t step = 1; step <= 4; step += 2) {  // a plain tile becomes state, then state changes
    std::thread pass([&] { scrubber.RunPass(); });
    const int64_t before = scrubber.counters().bytes;
    while (scrubber.counters().bytes == before && scrubber.counters().passes < (step + 1) / 2) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    update(step);
    update(step + 1);
    pass.join();
    EXPECT_THAT(damaged_, IsEmpty());
    EXPECT_TRUE(Holds("kv"));
  }
}

TEST_F(ScrubberTest, HoldsNoMemoryOfAReleasedTile) {
  AddTile("a", /*durable=*/false);
  const int64_t with_tile = store_->used_bytes();
  // A pass that waits for hours after its first piece.
  Scrubber slow({.store = store_.get(),
                 .clock = &clock_,
                 .bytes_per_second = 100,
                 .interval = absl::ZeroDuration(),
                 .damaged = nullptr,
                 .reread = nullptr});
  slow.Start();
  ASSERT_TRUE(test::Eventually([&] { return slow.counters().bytes > 0; }));
  ASSERT_THAT(store_->Release({"a"}), IsOk());
  EXPECT_TRUE(test::Eventually([&] { return store_->used_bytes() < with_tile; }));
}

TEST_F(ScrubberTest, BeginsAPassAfterEachInterval) {
  AddTile("a");
  const auto scrubber = NewScrubber(absl::Milliseconds(1));
  scrubber->Start();
  EXPECT_TRUE(test::Eventually([&] { return scrubber->counters().passes >= 3; }));
}

}  // namespace
}  // namespace shardmesh::worker
