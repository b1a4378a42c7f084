// The store on a disk that others have filled: what makes room goes on, as often as it is started.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/store/sqlite_store.h"
#include "server/store/store.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/eventually.h"
#include "tests/testing/faulty_vfs.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

// How the file systems of this program differ from the system's.
struct DiskHabits {
  // Blocks are given only where as many are free as are asked for, though the file has them: XFS.
  bool wants_all_free = false;
  // The file system says neither how large nor how full it is.
  bool has_no_sizes = false;
  std::optional<uint64_t> free_bytes = {};  // what it says is free
  // SQLite can make no file while the disk is full, also not an empty one: XFS.
  bool makes_no_files = false;
};
DiskHabits habits;

// In place of SQLite's open(2).
int OpenWithHabits(const char* path, int flags, int mode) {
  struct stat found;
  struct statvfs disk;
  const std::string folder = std::filesystem::path(path).parent_path();
  if ((flags & O_CREAT) != 0 && stat(path, &found) != 0 && statvfs(folder.c_str(), &disk) == 0 &&
      disk.f_bavail == 0) {
    errno = ENOSPC;
    return -1;
  }
  return open(path, flags, mode);
}

class WithHabits {
 public:
  explicit WithHabits(const DiskHabits& wanted) {
    habits = wanted;
    if (wanted.makes_no_files) SetOpen(reinterpret_cast<sqlite3_syscall_ptr>(&OpenWithHabits));
  }
  ~WithHabits() {
    if (habits.makes_no_files) SetOpen(nullptr);
    habits = {};
  }
  WithHabits(const WithHabits&) = delete;
  WithHabits& operator=(const WithHabits&) = delete;

 private:
  static void SetOpen(sqlite3_syscall_ptr call) {
    sqlite3_vfs* const vfs = sqlite3_vfs_find(nullptr);
    EXPECT_EQ(vfs->xSetSystemCall(vfs, "open", call), SQLITE_OK);
  }
};

// 0, or what errno is to be.
int AllocateWithHabits(int fd, int mode, off_t offset, off_t bytes) {
  struct statvfs disk;
  if (habits.wants_all_free && fstatvfs(fd, &disk) == 0 &&
      static_cast<uint64_t>(bytes) > disk.f_bavail * disk.f_frsize) {
    return ENOSPC;
  }
  return syscall(SYS_fallocate, fd, mode, offset, bytes) == 0 ? 0 : errno;
}

}  // namespace
}  // namespace shardmesh::server

// In place of the C library's, for the store in this program.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  const int error = shardmesh::server::AllocateWithHabits(fd, mode, offset, bytes);
  if (error != 0) errno = error;
  return error == 0 ? 0 : -1;
}
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  return shardmesh::server::AllocateWithHabits(fd, 0, offset, bytes);
}
extern "C" int statvfs(const char* path, struct statvfs* disk) noexcept {
  using Call = int (*)(const char*, struct statvfs*);
  const int result = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "statvfs"))(path, disk);
  if (shardmesh::server::habits.has_no_sizes) {
    disk->f_blocks = disk->f_bfree = disk->f_bavail = 0;
  } else if (shardmesh::server::habits.free_bytes.has_value()) {
    disk->f_bavail = *shardmesh::server::habits.free_bytes / disk->f_frsize;
  }
  return result;
}

namespace shardmesh::server {
namespace {

using ::shardmesh::test::DiskFault;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::SmallDisk;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::UseFaultyVfs;
using ::testing::HasSubstr;
using ::testing::Not;

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
      EXPECT_TRUE(FactOf(written, fact::kFile).has_value()) << written;
      EXPECT_THAT(written,
                  test::CarriesFacts(Reason::kStoreFull,
                                     {{fact::kHave, FactOf(written, fact::kHave).value_or("")},
                                      {fact::kNeed, FactOf(written, fact::kNeed).value_or("")},
                                      {fact::kFile, FactOf(written, fact::kFile).value_or("")}}));
      return;
    }
    FAIL() << "the disk does not become full";
  }
  // Starts on a disk that others fill each time, and kills or stops what was started.
  static void StartOften(SmallDisk& disk);
};

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

void FullDiskTest::StartOften(SmallDisk& disk) {
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

TEST_F(FullDiskTest, StartsAsOftenAsOneLikes) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  StartOften(disk);
}

TEST_F(FullDiskTest, StartsAlsoWhereBlocksThatAreThereAreToBeFreeAgain) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const WithHabits xfs({.wants_all_free = true});
  StartOften(disk);
}

TEST_F(FullDiskTest, StartsAlsoWhereNoFileCanBeMade) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const WithHabits xfs({.makes_no_files = true});
  StartOften(disk);
}

TEST_F(FullDiskTest, AStateMayBeLargerThanWhatIsFree) {
  SmallDisk disk(48 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const WithHabits xfs({.wants_all_free = true});
  constexpr int kArrays = 250;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
    for (int i = 0; i < kArrays; ++i) {
      ASSERT_THAT(Write(*store, StrCat("array/", i), 100'000), IsOk()) << i;
    }
    EXPECT_LT(disk.free_bytes(), 20 << 20);
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
  }
  ASSERT_NO_FATAL_FAILURE(disk.Fill());
  for (int start = 0; start < 3; ++start) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
    EXPECT_EQ(ReserveBytes(disk), kReservedBytes) << "a start gives nothing away";
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
  for (int i = 0; i < kArrays; ++i) ASSERT_THAT(Delete(*store, StrCat("array/", i)), IsOk()) << i;
  EXPECT_GE(ReserveBytes(disk), kReservedBytes / 2);
}

TEST_F(FullDiskTest, AFileSystemWithoutSizesIsUsedUntilItRefuses) {
  SmallDisk disk(16 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const WithHabits no_sizes({.has_no_sizes = true});
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
    EXPECT_EQ(ReserveBytes(disk), kReservedBytes);
    ASSERT_NO_FATAL_FAILURE(WriteUntilFull(*store, "array/"));
    EXPECT_EQ(ReserveBytes(disk), kReservedBytes);
    for (int i = 0; i < 100; ++i) ASSERT_THAT(Delete(*store, StrCat("array/", i)), IsOk()) << i;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore(Options(disk)));
  EXPECT_THAT(CommitAndWait(*store, {.puts = {{"term", "2"}}, .urgent = true}), IsOk());
  EXPECT_GE(ReserveBytes(disk), kReservedBytes / 2);
}

TEST_F(FullDiskTest, TellsOfTheUseOfAPartThatAnEarlierProcessLeft) {
  SmallDisk disk(24 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  SqliteStoreOptions options = Options(disk);
  options.fill_reserve_every = absl::Milliseconds(20);
  ASSERT_THAT(OpenSqliteStore(options), IsOk());
  std::ofstream(options.folder + "/reserve") << std::string(1 << 20, 'r');
  ASSERT_NO_FATAL_FAILURE(disk.Fill());
  std::filesystem::resize_file(disk.folder() + "/others",
                               std::filesystem::file_size(disk.folder() + "/others") - (1 << 20));
  ::testing::internal::CaptureStderr();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto store, OpenSqliteStore(options));
  const int64_t left = ReserveBytes(disk);
  ASSERT_NO_FATAL_FAILURE(disk.Fill());
  for (int i = 0; i < 100 && ReserveBytes(disk) >= left; ++i) {
    EXPECT_THAT(CommitAndWait(*store, {.puts = {{StrCat("released/", i), std::string(20'000, 'r')}},
                                       .urgent = true}),
                IsOk());
  }
  disk.MakeRoom();
  EXPECT_TRUE(test::Eventually([&] { return ReserveBytes(disk) == kReservedBytes; }));
  store.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the disk has too little room for the reserve"));
  EXPECT_THAT(log, HasSubstr("the reserve for deletions and starts is being used"));
  EXPECT_THAT(log, HasSubstr("the reserve for deletions and starts is whole again"));
}

TEST_F(FullDiskTest, AQuotaThatIsUsedUpTakesNothingOfWhatTheDiskKeepsBack) {
  const std::string folder = ::testing::TempDir() + "/quota";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store,
                                 OpenSqliteStore({.folder = folder, .quota_bytes = 1 << 20}));
  struct stat before;
  ASSERT_EQ(stat((folder + "/reserve").c_str(), &before), 0);
  ASSERT_EQ(before.st_size, kReservedBytes);
  ::testing::internal::CaptureStderr();
  absl::Status written;
  for (int i = 0; i < 200 && written.ok(); ++i) {
    written = CommitAndWait(*store, {.puts = {{StrCat("released/", i), std::string(20'000, 'r')}},
                                     .urgent = true})
                  .status();
  }
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
  EXPECT_THAT(std::string(written.message()), HasSubstr("the quota of the state is used up"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("the disk is full")));
  struct stat after;
  ASSERT_EQ(stat((folder + "/reserve").c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_ctim.tv_sec, before.st_ctim.tv_sec);
  EXPECT_EQ(after.st_ctim.tv_nsec, before.st_ctim.tv_nsec) << "it was cut and filled again";
  EXPECT_LE(store->stats().file_bytes, 1 << 20);
  EXPECT_THAT(CommitAndWait(*store, {.deletes = {"released/0"}, .urgent = true}), IsOk());
}

TEST_F(FullDiskTest, AStartThatFailsLeavesWhatWasKeptBack) {
  const std::string folder = ::testing::TempDir() + "/failing";
  // As a process that died left it: the start copies its log.
  const std::string whole = ::testing::TempDir() + "/whole";
  const std::string left = ::testing::TempDir() + "/left";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto store, OpenSqliteStore({.folder = whole}));
    for (const char* const value : {"1", "2"}) {
      EXPECT_THAT(CommitAndWait(*store, {.puts = {{"name/a", value}}}), IsOk());
    }
    std::filesystem::copy(whole, left);
  }
  const WithHabits little({.free_bytes = 1 << 20});
  int failed = 0;
  for (int64_t at = 1;; ++at) {
    SCOPED_TRACE(at);
    ASSERT_LT(at, 50);
    std::filesystem::remove_all(folder);
    std::filesystem::copy(left, folder);
    std::ofstream(folder + "/reserve") << std::string(kReservedBytes, 'r');
    {
      const auto store = OpenSqliteStore(
          {.folder = folder,
           .vfs = UseFaultyVfs(
               {.operation = DiskFault::Operation::kSync, .at = at, .full_while = {}})});
      if (!store.ok()) ++failed;
      if (store.ok()) break;
    }
    EXPECT_EQ(std::filesystem::file_size(folder + "/reserve"), kReservedBytes);
  }
  EXPECT_GT(failed, 0);
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
