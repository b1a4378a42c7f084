// Signals that arrive during a wait, and before it.
#include "process/signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace shardmesh {
namespace {

TEST(StopSignalTest, ReturnsSignalsThatArrivedBefore) {
  StopSignal stop;
  ASSERT_EQ(pthread_kill(pthread_self(), SIGTERM), 0);
  EXPECT_EQ(stop.Wait(), SIGTERM);
  ASSERT_EQ(pthread_kill(pthread_self(), SIGINT), 0);
  EXPECT_EQ(stop.WaitFor(absl::Seconds(30)), SIGINT);
}

TEST(StopSignalTest, ReturnsTheEndOfTheTerminalUnlessItIsIgnored) {
  {
    StopSignal stop;
    ASSERT_EQ(pthread_kill(pthread_self(), SIGHUP), 0);
    EXPECT_EQ(stop.WaitFor(absl::Seconds(30)), SIGHUP);
  }
  const auto former = signal(SIGHUP, SIG_IGN);
  {
    StopSignal stop;
    ASSERT_EQ(pthread_kill(pthread_self(), SIGHUP), 0);
    EXPECT_EQ(stop.WaitFor(absl::Milliseconds(1)), std::nullopt);
  }
  signal(SIGHUP, former);
}

TEST(StopSignalTest, GivesUpAfterTheTimeout) {
  StopSignal stop;
  EXPECT_EQ(stop.WaitFor(absl::Milliseconds(1)), std::nullopt);
}

}  // namespace
}  // namespace shardmesh
