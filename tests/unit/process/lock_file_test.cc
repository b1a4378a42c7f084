// Locks of files: exclusive, shared, and what a waiting process is told.
#include "process/lock_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/failpoint.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class LockFileTest : public ::testing::Test {
 protected:
  LockFileTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~LockFileTest() override {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/LOCK"; }

 private:
  std::string folder_ = "/tmp/lock_file_XXXXXX";
};

TEST_F(LockFileTest, ASecondTakerLearnsWhoHasTheLock) {
  auto first = TakeLock(path());
  ASSERT_THAT(first, test::IsOk());
  ASSERT_TRUE(first->held.valid());
  const auto second = TakeLock(path());
  ASSERT_THAT(second, test::IsOk());
  EXPECT_FALSE(second->held.valid());
  EXPECT_THAT(second->holder, StartsWith(StrCat(getpid(), " on host ")));
  first->held.Close();
  EXPECT_TRUE(TakeLock(path())->held.valid());
}

TEST_F(LockFileTest, AWaitingTakerIsToldOnceAndGetsTheLock) {
  auto first = TakeLock(path());
  ASSERT_THAT(first, test::IsOk());
  absl::Notification told;
  std::vector<std::string> holders;
  std::thread owner([&] {
    told.WaitForNotification();
    absl::SleepFor(absl::Milliseconds(100));
    first->held.Close();
  });
  const auto second = TakeLock(path(), {.timeout = absl::Seconds(30),
                                        .on_wait = [&](const std::string& holder, absl::Duration) {
                                          holders.push_back(holder);
                                          told.Notify();
                                        }});
  owner.join();
  ASSERT_THAT(second, test::IsOk());
  EXPECT_TRUE(second->held.valid());
  EXPECT_THAT(holders, SizeIs(1));
}

TEST_F(LockFileTest, AWaitingTakerIsToldAgainAtEachInterval) {
  const auto first = TakeLock(path());
  ASSERT_THAT(first, test::IsOk());
  int times = 0;
  const auto second =
      TakeLock(path(), {.timeout = absl::Milliseconds(300),
                        .on_wait = [&](const std::string&, absl::Duration) { ++times; },
                        .tell_every = absl::Milliseconds(40)});
  ASSERT_THAT(second, test::IsOk());
  EXPECT_FALSE(second->held.valid());
  EXPECT_GE(times, 2);
}

TEST_F(LockFileTest, ReadersShareTheLockAndExcludeAWriter) {
  EXPECT_THAT(TakeSharedLock(path()), test::StatusIs(absl::StatusCode::kNotFound));
  TakeLock(path())->held.Close();
  const auto one = TakeSharedLock(path());
  const auto other = TakeSharedLock(path());
  ASSERT_THAT(one, test::IsOk());
  ASSERT_THAT(other, test::IsOk());
  EXPECT_TRUE(one->held.valid());
  EXPECT_TRUE(other->held.valid());
  EXPECT_FALSE(TakeLock(path())->held.valid());
}

TEST_F(LockFileTest, AWriterExcludesReaders) {
  const auto writer = TakeLock(path());
  const auto reader = TakeSharedLock(path());
  ASSERT_THAT(reader, test::IsOk());
  EXPECT_FALSE(reader->held.valid());
  EXPECT_THAT(reader->holder, HasSubstr("on host"));
}

TEST_F(LockFileTest, AFileThatIsMadeHasTheModeThatWasAskedFor) {
  const auto lock = TakeLock(path(), {.mode = 0600});
  struct stat found = {};
  ASSERT_EQ(stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(LockFileTest, AMissingFolderIsNamed) {
  const auto lock = TakeLock("/nowhere/LOCK");
  EXPECT_THAT(lock, test::StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(lock.status().message()), HasSubstr("/nowhere/LOCK"));
}

TEST_F(LockFileTest, AFullDiskDoesNotPreventTheLock) {
  ASSERT_THAT(ArmFailpoints("lock.write=enospc"), test::IsOk());
  EXPECT_TRUE(TakeLock(path())->held.valid());
  ASSERT_THAT(ArmFailpoints("lock.write=eio"), test::IsOk());
  EXPECT_FALSE(TakeLock(path()).ok());
}

}  // namespace
}  // namespace shardmesh
