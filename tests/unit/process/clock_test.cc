// The real clock, alarms, and the fake clock that other tests rely on.
#include "process/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "process/steady_deadline.h"
#include "process/steady_waits.h"
#include "tests/testing/fake_clock.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLimit = absl::Seconds(20);

TEST(RealClockTest, NeverRunsBackwards) {
  const RealClock clock;
  absl::Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    ASSERT_LE(last, now);
    last = now;
  }
}

TEST(RealClockTest, CallsInTheOrderOfTimesNotOfRegistration) {
  RealClock clock;
  absl::Mutex mutex;
  std::vector<int> calls;
  absl::Notification done;
  const absl::Time start = clock.Now() + absl::Milliseconds(20);
  for (const int place : {3, 1, 2}) {
    clock.CallAt(start + absl::Milliseconds(place), [&, place] {
      absl::MutexLock lock(&mutex);
      calls.push_back(place);
      if (calls.size() == 3) done.Notify();
    });
  }
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLimit));
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(calls, ElementsAre(1, 2, 3));
}

TEST(RealClockTest, DoesNotCallWhatWasCancelled) {
  RealClock clock;
  absl::Notification done;
  bool called = false;
  const Clock::TimerId timer =
      clock.CallAt(clock.Now() + absl::Milliseconds(10), [&] { called = true; });
  EXPECT_TRUE(clock.Cancel(timer));
  EXPECT_FALSE(clock.Cancel(timer));
  clock.CallAt(clock.Now() + absl::Milliseconds(20), [&] { done.Notify(); });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLimit));
  EXPECT_FALSE(called);
}

TEST(RealClockTest, DropsWhatIsNotDueWhenItEnds) {
  auto held = std::make_shared<int>(0);
  {
    RealClock clock;
    clock.CallAt(clock.Now() + absl::Hours(1), [held] {});
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FakeClockTest, StandsAtEachFunctionsTimeAsItRuns) {
  test::FakeClock clock;
  const absl::Time start = clock.Now();
  std::vector<absl::Duration> times;
  clock.CallAt(start + absl::Seconds(2), [&] { times.push_back(clock.Now() - start); });
  clock.CallAt(start + absl::Seconds(1), [&] {
    times.push_back(clock.Now() - start);
    clock.CallAt(clock.Now() + absl::Milliseconds(500),
                 [&] { times.push_back(clock.Now() - start); });
  });
  clock.Advance(absl::Seconds(2));
  EXPECT_THAT(times, ElementsAre(absl::Seconds(1), absl::Milliseconds(1500), absl::Seconds(2)));
  EXPECT_EQ(clock.Now(), start + absl::Seconds(2));
}

TEST(AlarmTest, RingsAtTheEarliestTimeSet) {
  test::FakeClock clock;
  std::vector<absl::Duration> rings;
  const absl::Time start = clock.Now();
  Alarm alarm(&clock, [&] { rings.push_back(clock.Now() - start); });
  alarm.SetNoLaterThan(start + absl::Seconds(5));
  alarm.SetNoLaterThan(start + absl::Seconds(3));
  alarm.SetNoLaterThan(start + absl::Seconds(9));
  EXPECT_EQ(clock.pending(), 1);
  clock.Advance(absl::Seconds(10));
  EXPECT_THAT(rings, ElementsAre(absl::Seconds(3)));
}

TEST(AlarmTest, CanBeSetAgainByItsOwnFunction) {
  test::FakeClock clock;
  int rings = 0;
  std::unique_ptr<Alarm> alarm;
  alarm = std::make_unique<Alarm>(&clock, [&] {
    if (++rings < 3) alarm->SetNoLaterThan(clock.Now() + absl::Seconds(1));
  });
  alarm->SetNoLaterThan(clock.Now());
  clock.Advance(absl::Seconds(10));
  EXPECT_EQ(rings, 3);
}

TEST(AlarmTest, CanBeDestroyedByItsOwnFunction) {
  test::FakeClock clock;
  int rings = 0;
  std::unique_ptr<Alarm> alarm;
  alarm = std::make_unique<Alarm>(&clock, [&] {
    ++rings;
    alarm.reset();
  });
  alarm->SetNoLaterThan(clock.Now());
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(rings, 1);
  EXPECT_EQ(clock.pending(), 0);
}

TEST(AlarmTest, DestructorWaitsForTheRunningFunction) {
  RealClock clock;
  for (int i = 0; i < 50; ++i) {
    auto counter = std::make_unique<int>(0);
    absl::Notification entered;
    {
      Alarm alarm(&clock, [&] {
        if (!entered.HasBeenNotified()) entered.Notify();
        for (int k = 0; k < 1000; ++k) ++*counter;
      });
      alarm.SetNoLaterThan(clock.Now());
      ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kLimit));
    }
    EXPECT_EQ(*counter, 1000);
    counter.reset();
  }
}

TEST(FormatRoundedTest, LeavesOutWhatNobodyReads) {
  EXPECT_EQ(FormatRounded(absl::Nanoseconds(5'000'108'242)), "5s");
  EXPECT_EQ(FormatRounded(absl::Milliseconds(1'290)), "1.2s");
  EXPECT_EQ(FormatRounded(absl::Nanoseconds(73'510'002)), "73ms");
  EXPECT_EQ(FormatRounded(absl::Microseconds(12)), "12us");
  EXPECT_EQ(FormatRounded(absl::Minutes(2)), "2m");
}

TEST(SteadyWaitsTest, AbseilWaitsByTheSteadyClock) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  GTEST_SKIP() << "not in builds for ThreadSanitizer";
#endif
  UseSteadyWaits();
  EXPECT_TRUE(WaitsAreSteady()) << "the library's own function is used: was it built otherwise?";
  absl::Mutex mutex;
  absl::CondVar changed;
  const auto start = std::chrono::steady_clock::now();
  {
    absl::MutexLock lock(&mutex);
    while (!changed.WaitWithTimeout(&mutex, absl::Milliseconds(50))) {
    }
    EXPECT_TRUE(changed.WaitWithDeadline(&mutex, absl::InfinitePast()));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  // Signals still come through, with and without a timeout.
  bool is_set = false;
  std::thread setter([&] {
    absl::MutexLock lock(&mutex);
    is_set = true;
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is_set), absl::Seconds(60)));
  }
  setter.join();
}

TEST(SteadyDeadlineTest, CountsDownAndNeverEndsWhereItIsInfinite) {
  EXPECT_TRUE(SteadyDeadline::After(absl::ZeroDuration()).is_over());
  EXPECT_TRUE(SteadyDeadline::After(-absl::InfiniteDuration()).is_over());
  EXPECT_TRUE(SteadyDeadline::At(absl::InfinitePast()).is_over());
  const auto never = SteadyDeadline::At(absl::InfiniteFuture());
  EXPECT_EQ(never.left(), absl::InfiniteDuration());
  EXPECT_EQ(never.wall(), absl::InfiniteFuture());
  const auto soon = SteadyDeadline::After(absl::Minutes(1));
  EXPECT_LE(soon.left(), absl::Minutes(1));
  EXPECT_GT(soon.left(), absl::Seconds(30));
  EXPECT_GT(soon.wall(), absl::Now());
}

}  // namespace
}  // namespace shardmesh
