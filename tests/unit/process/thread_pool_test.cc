// Thread pools: order, turns, limits and the end; and hosts that allow no more threads.
#include "process/thread_pool.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/failpoint.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ThreadPoolTest, OneThreadRunsTasksInTheirOrder) {
  std::vector<int> ran;
  {
    ThreadPool pool(1);
    for (int i = 0; i < 100; ++i) {
      pool.Push([&ran, i] { ran.push_back(i); });
    }
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(ThreadPoolTest, ThreadsRunTasksSideBySide) {
  absl::Notification begun[2];
  ThreadPool pool(2);
  for (int i = 0; i < 2; ++i) {
    pool.Push([&begun, i] {
      begun[i].Notify();
      begun[1 - i].WaitForNotification();  // ends only if the other task runs too
    });
  }
}

TEST(ThreadPoolTest, KeysTakeTurns) {
  absl::Notification go;
  absl::Notification runs;
  std::vector<std::string> ran;
  {
    ThreadPool pool(1);
    pool.Run("a", [&] {
      runs.Notify();
      go.WaitForNotification();
    });
    runs.WaitForNotification();
    for (const std::string key : {"b", "b", "b", "c", "d"}) {
      pool.Run(key, [&ran, key] { ran.push_back(key); });
    }
    go.Notify();
  }
  EXPECT_THAT(ran, ElementsAre("b", "c", "d", "b", "b"));
}

TEST(ThreadPoolTest, TasksBeyondALimitAreDropped) {
  absl::Notification go;
  absl::Notification runs;
  std::atomic<int> ran = 0;
  {
    ThreadPool pool(1, {.waiting = 3, .waiting_of_key = 2});
    pool.Run("a", [&] {
      runs.Notify();
      go.WaitForNotification();
    });
    runs.WaitForNotification();
    EXPECT_TRUE(pool.Run("a", [&] { ++ran; }));
    EXPECT_TRUE(pool.Run("a", [&] { ++ran; }));
    EXPECT_FALSE(pool.Run("a", [&] { ++ran; }));
    EXPECT_TRUE(pool.Run("b", [&] { ++ran; }));
    EXPECT_FALSE(pool.Run("c", [&] { ++ran; }));
    go.Notify();
  }
  EXPECT_EQ(ran, 3);
}

TEST(ThreadPoolTest, ATaskMayAddAnother) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool(1);
    pool.Push([&] {
      ++ran;
      pool.Push([&] { ++ran; });
    });
  }
  EXPECT_EQ(ran, 2);
}

TEST(StartThreadTest, StartsAThreadOrSaysWhyNot) {
  std::atomic<bool> has_run = false;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread([&] { has_run = true; }));
  thread.join();
  EXPECT_TRUE(has_run);
  ASSERT_THAT(ArmFailpoints("thread.start=emfile"), IsOk());
  const absl::Status refused = StartThread([] {}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ulimit -u"));
}

TEST(StartThreadTest, EachCallIsMadeOnceOnTheThreadsThatThereAre) {
  constexpr size_t kCalls = 20;
  constexpr size_t kThreads = 4;
  // The first, second and third further thread cannot be started; all can.
  for (size_t refused = 1; refused <= kThreads; ++refused) {
    if (refused < kThreads) {
      ASSERT_THAT(ArmFailpoints(StrCat("thread.start=emfile:", refused)), IsOk());
    }
    absl::Mutex mutex;
    std::vector<int> calls(kCalls);
    std::set<std::thread::id> threads;
    RunOnThreads(kCalls, kThreads, [&](size_t i) {
      absl::MutexLock lock(&mutex);
      ++calls[i];
      threads.insert(std::this_thread::get_id());
    });
    EXPECT_THAT(calls, Each(1)) << refused;
    EXPECT_LE(threads.size(), refused);
    EXPECT_FALSE(IsArmed("thread.start"));
  }
  RunOnThreads(0, kThreads, [](size_t) { FAIL(); });
  const std::thread::id self = std::this_thread::get_id();
  RunOnThreads(3, 1, [self](size_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

TEST(StartThreadTest, APoolThatCannotStartIsAnError) {
  for (const int refused : {1, 2}) {
    ASSERT_THAT(ArmFailpoints(StrCat("thread.start=emfile:", refused)), IsOk());
    EXPECT_THAT(ThreadPool::Start(2).status(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  std::atomic<int> tasks = 0;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto pool, ThreadPool::Start(2));
    for (int i = 0; i < 10; ++i) pool->Push([&tasks] { ++tasks; });
  }
  EXPECT_EQ(tasks, 10);
}

}  // namespace
}  // namespace shardmesh
