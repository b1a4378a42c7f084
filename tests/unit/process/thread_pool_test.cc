// Thread pools: order, turns, limits and the end.
#include "process/thread_pool.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace shardmesh
