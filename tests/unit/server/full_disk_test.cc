// The store on a disk that others have filled: what makes room goes on, as often as it is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/sqlite_store.h"
#include "server/store.h"
#include "tests/testing/eventually.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::SmallDisk;
using ::shardmesh::test::StatusIs;

constexpr size_t kValueBytes = 8'000;

class FullDiskTest : public ::testing::Test {
 protected:
  static SqliteStoreOptions Options(const SmallDisk& disk) {
    return {.folder = disk.folder() + "/state",
            .local = {.history = {.prefixes = {"kept/"}, .others_have_none = true}}};
  }
  static int64_t ReserveBytes(const SmallDisk& disk) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(disk.folder() + "/state/reserve", error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  static absl::Status Write(Store& store, const std::string& key, size_t bytes = kValueBytes) {
    return CommitAndWait(store, {.puts = {{key, std::string(bytes, 'v')}}}).status();
  }
  // As the deletion of an array: it tells workers, and remembers what it answered.
  static absl::Status Delete(Store& store, const std::string& key) {
    return CommitAndWait(store, {.puts = {{"released/" + key, std::string(100, 'r')},
                                          {"request/" + key, std::string(100, 'r')}},
                                 .deletes = {key},
                                 .urgent = true})
        .status();
  }
  // Writes values until one is refused.
  static void WriteUntilFull(Store& store, const std::string& prefix) {
    for (int i = 0; i < 2000; ++i) {
      const absl::Status written = Write(store, StrCat(prefix, i));
      if (written.ok()) continue;
      EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
      return;
    }
    FAIL() << "the disk does not become full";
  }
};

#define SHARDMESH_NEEDS_DISK(disk)                                                            \
  if (!(disk).error().empty()) {                                                              \
    GTEST_SKIP() << "NO DISK WAS FILLED: this user cannot mount a tmpfs: " << (disk).error(); \
  }

TEST_F(FullDiskTest, OrdinaryCommitsAreRefusedAndDeletionsGoOn) {
  SmallDisk disk(24 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
  constexpr int kArrays = 400;
  for (int i = 0; i < kArrays; ++i) ASSERT_THAT(Write(*store, StrCat("array/", i)), IsOk());
  ASSERT_EQ(ReserveBytes(disk), kReservedBytes);
  ASSERT_NO_FATAL_FAILURE(disk.Fill());

  ASSERT_NO_FATAL_FAILURE(WriteUntilFull(*store, "more/"));
  for (int i = 0; i < 300; ++i) {
    // The history of a definition gives way for a commit; what is kept back does not.
    EXPECT_THAT(Write(*store, StrCat("kept/", i % 3), 4 * kValueBytes),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
    EXPECT_THAT(Write(*store, StrCat("other/", i)),
                StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  }
  EXPECT_EQ(ReserveBytes(disk), kReservedBytes);

  for (int i = 0; i < kArrays; ++i) ASSERT_THAT(Delete(*store, StrCat("array/", i)), IsOk()) << i;
  for (int i = 0; i < kArrays; ++i) {
    ASSERT_THAT(CommitAndWait(*store, {.deletes = {StrCat("released/array/", i)}}), IsOk()) << i;
  }
  // What they left is used again, on a disk that is still full.
  for (int i = 0; i < kArrays / 2; ++i) {
    ASSERT_THAT(Write(*store, StrCat("kept/again/", i % 50)), IsOk()) << i;
  }
  EXPECT_GE(ReserveBytes(disk), kReservedBytes / 2);
  EXPECT_LT(disk.free_bytes(), 512 << 10);
}

TEST_F(FullDiskTest, DeletionsAreNotBoundedByWhatIsKeptBack) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
  for (int i = 0; i < 20; ++i) ASSERT_THAT(Write(*store, StrCat("array/", i)), IsOk());
  ASSERT_NO_FATAL_FAILURE(disk.Fill());
  // Each commit puts some 10 pages into the log: 80 MB in all.
  for (int i = 0; i < 2000; ++i) {
    ASSERT_THAT(
        CommitAndWait(*store, {.puts = {{StrCat("released/", i % 20), std::string(9'000, 'r')},
                                        {"request/1", std::string(9'000, 'r')}},
                               .deletes = {StrCat("released/", (i + 10) % 20)},
                               .urgent = true}),
        IsOk())
        << i;
  }
  EXPECT_GE(ReserveBytes(disk), kReservedBytes / 4);
}

TEST_F(FullDiskTest, StartsAsOftenAsOneLikes) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
    for (int i = 0; i < 100; ++i) ASSERT_THAT(Write(*store, StrCat("array/", i)), IsOk());
  }
  for (int round = 0; round < 60; ++round) {
    // Others take whatever becomes free.
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
    const bool is_killed = round % 3 != 0;
    const pid_t child = fork();
    if (child == 0) {
      auto store = OpenSqliteStore(Options(disk));
      if (!store.ok()) _exit(2);
      const absl::Status begun =
          CommitAndWait(**store, {.puts = {{"term", StrCat(round)}}, .urgent = true}).status();
      if (!begun.ok()) _exit(3);
      if (ReasonOf(Write(**store, "new", 256 << 10)) != Reason::kStoreFull) _exit(4);
      if (!Delete(**store, StrCat("array/", round)).ok()) _exit(5);
      if (is_killed) _exit(0);
      store->reset();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0) << "round " << round;
    ASSERT_GE(ReserveBytes(disk), kReservedBytes / 2) << "round " << round;
  }
  disk.MakeRoom();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
  EXPECT_EQ(ReserveBytes(disk), kReservedBytes);
  EXPECT_EQ(store->Get("term")->value, "59");
  EXPECT_THAT(Write(*store, "new", 256 << 10), IsOk());
}

TEST_F(FullDiskTest, KeepsBackAgainWhenThereIsRoomThoughNothingIsWritten) {
  SmallDisk disk(32 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  ASSERT_NO_FATAL_FAILURE(disk.Fill());
  std::filesystem::resize_file(disk.folder() + "/others",
                               std::filesystem::file_size(disk.folder() + "/others") - (2 << 20));
  SqliteStoreOptions options = Options(disk);
  options.fill_reserve_every = absl::Milliseconds(20);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(options));
  EXPECT_GT(ReserveBytes(disk), 0) << "half of what there is";
  ASSERT_NO_FATAL_FAILURE(WriteUntilFull(*store, "array/"));
  EXPECT_THAT(Delete(*store, "array/0"), IsOk());
  EXPECT_LT(ReserveBytes(disk), kReservedBytes);
  disk.MakeRoom();
  EXPECT_TRUE(test::Eventually([&] { return ReserveBytes(disk) == kReservedBytes; }));
}

}  // namespace
}  // namespace shardmesh::server
