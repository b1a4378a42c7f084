// Searches at their times, tasks in between, and nothing after the end.
#include "server/repair/search_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"

namespace shardmesh::server {
namespace {

class SearchThreadTest : public ::testing::Test {
 protected:
  // Waits until the thread has run the tasks that were added so far.
  void AwaitTasks() {
    absl::Notification done;
    thread_.Run([&done] { done.Notify(); });
    done.WaitForNotification();
  }

  test::FakeClock clock_;
  std::atomic<int> searches_ = 0;
  SearchThread thread_{&clock_, [this] { ++searches_; }};
};

TEST_F(SearchThreadTest, SearchesAtTheEarliestTimeThatWasSet) {
  thread_.SearchAt(clock_.Now() + absl::Seconds(5));
  thread_.SearchAt(clock_.Now() + absl::Seconds(2));
  thread_.SearchAt(absl::InfiniteFuture());
  clock_.Advance(absl::Seconds(1));
  AwaitTasks();
  EXPECT_EQ(searches_, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(test::Eventually([&] { return searches_ == 1; }));
  clock_.Advance(absl::Seconds(10));
  AwaitTasks();
  EXPECT_EQ(searches_, 1) << "the search sets its next time itself";
}

TEST_F(SearchThreadTest, ASearchMayWaitForAPauseThatTheLastOneSet) {
  thread_.NoSearchBefore(clock_.Now() + absl::Seconds(3));
  thread_.SearchAt(clock_.Now());
  clock_.Advance(absl::Seconds(2));
  AwaitTasks();
  EXPECT_EQ(searches_, 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(test::Eventually([&] { return searches_ == 1; }));
}

TEST_F(SearchThreadTest, RunsTasksOnOneThread) {
  std::thread::id first;
  std::thread::id second;
  thread_.Run([&] { first = std::this_thread::get_id(); });
  thread_.Run([&] { second = std::this_thread::get_id(); });
  AwaitTasks();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

TEST_F(SearchThreadTest, BeginsNothingAfterItsEnd) {
  std::atomic<int> tasks = 0;
  thread_.Run([&] { ++tasks; });
  EXPECT_FALSE(thread_.is_stopped());
  EXPECT_TRUE(thread_.Stop());
  EXPECT_EQ(tasks, 1) << "a task that waited has run";
  EXPECT_TRUE(thread_.is_stopped());
  EXPECT_FALSE(thread_.Stop());
  thread_.Run([&] { ++tasks; });
  thread_.SearchAt(clock_.Now());
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(tasks, 1);
  EXPECT_EQ(searches_, 0);
}

}  // namespace
}  // namespace shardmesh::server
