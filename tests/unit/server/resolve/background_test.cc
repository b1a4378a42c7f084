// Background: callers by turns, and places for others.
#include "server/resolve/background.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "rpc/codec/status.h"
#include "server/watch/caller_count.h"
#include "status/detail.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;

TEST(BackgroundTest, OneCallerLeavesPlacesForOthers) {
  absl::Notification go;
  absl::Notification runs;
  Background background(1);
  ASSERT_TRUE(background.Run("ada", [&] {
    runs.Notify();
    go.WaitForNotification();
  }));
  runs.WaitForNotification();
  for (size_t i = 0; i < Background::kMaxWaitingOfCaller; ++i) {
    EXPECT_TRUE(background.Run("ada", [] {}));
  }
  EXPECT_FALSE(background.Run("ada", [] {}));
  for (size_t i = Background::kMaxWaitingOfCaller; i < Background::kMaxWaiting; ++i) {
    EXPECT_TRUE(background.Run("bob", [] {}));
  }
  EXPECT_FALSE(background.Run("eve", [] {}));
  EXPECT_THAT(TooManyWait(),
              test::StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(TooManyWait()).has_value());
  go.Notify();
}

TEST(BackgroundTest, CallersAreServedByTurns) {
  absl::Notification go;
  absl::Notification runs;
  absl::Mutex mutex;
  std::vector<std::string> served;
  {
    Background background(1);
    ASSERT_TRUE(background.Run("first", [&] {
      runs.Notify();
      go.WaitForNotification();
    }));
    runs.WaitForNotification();
    // By rising names, after "first".
    for (const std::string caller : {"kay", "kay", "kay", "lou", "max"}) {
      ASSERT_TRUE(background.Run(caller, [&, caller] {
        absl::MutexLock lock(&mutex);
        served.push_back(caller);
      }));
    }
    go.Notify();
  }
  EXPECT_THAT(served, ElementsAre("kay", "lou", "max", "kay", "kay"));
}

TEST(BackgroundTest, ACancelledCallIsNotOneThatTookTooLong) {
  BackgroundStop stop;
  EXPECT_FALSE(stop.is_due());
  stop.Begin();
  EXPECT_FALSE(stop.is_due());
  stop.Cancel();
  EXPECT_TRUE(stop.is_due());
  EXPECT_THAT(stop.Explain(absl::CancelledError("left")),
              test::StatusIs(absl::StatusCode::kCancelled));
}

TEST(CallerCountTest, EachCallerHasItsOwnCount) {
  CallerCount count(1);
  std::optional<CallerCount::Place> of_ada = count.Take("ada");
  EXPECT_TRUE(of_ada.has_value());
  EXPECT_FALSE(count.Take("ada").has_value());
  EXPECT_TRUE(count.Take("bob").has_value());
  of_ada.reset();
  EXPECT_TRUE(count.Take("ada").has_value());
}

}  // namespace
}  // namespace shardmesh::server
