// Threads where the host allows no more: an error, and work on the threads that there are.
#include "process/start_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "process/failpoint.h"
#include "process/thread_pool.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

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
