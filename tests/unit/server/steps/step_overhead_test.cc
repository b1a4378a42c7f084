// The overhead that is predicted for a step, from those of the steps before it.
#include "server/steps/step_overhead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>

#include "absl/time/time.h"

namespace shardmesh::server {
namespace {

TEST(StepOverheadTest, KnowsNothingBeforeTheFirstStep) {
  EXPECT_EQ(StepOverhead().Predict(0), std::nullopt);
}

TEST(StepOverheadTest, InstructionsAddTheirShare) {
  StepOverhead overhead;
  overhead.Learn(absl::Microseconds(200), 0);
  EXPECT_EQ(overhead.Predict(0), absl::Microseconds(200));
  EXPECT_EQ(overhead.Predict(32), absl::Microseconds(300));
  StepOverhead of_long_steps;
  of_long_steps.Learn(absl::Microseconds(400), 64);
  EXPECT_EQ(of_long_steps.Predict(0), absl::Microseconds(200));
}

TEST(StepOverheadTest, FirstRunsAndStepsThatWaitedChangeLittle) {
  StepOverhead overhead;
  overhead.Learn(absl::Seconds(1), 0);
  for (int i = 0; i < 4; ++i) {
    overhead.Learn(absl::Microseconds(100), 0);
    overhead.Learn(absl::Milliseconds(50), 0);
  }
  EXPECT_EQ(overhead.Predict(0), absl::Microseconds(100));
}

TEST(StepOverheadTest, ForgetsOldSteps) {
  StepOverhead overhead;
  for (size_t i = 0; i < 2 * StepOverhead::kRemembered; ++i) {
    overhead.Learn(absl::Microseconds(100), 0);
  }
  for (size_t i = 0; i < StepOverhead::kRemembered / 2; ++i) {
    overhead.Learn(absl::Microseconds(300), 0);
  }
  EXPECT_EQ(overhead.Predict(0), absl::Microseconds(100));
  for (size_t i = 0; i < StepOverhead::kRemembered; ++i) {
    overhead.Learn(absl::Microseconds(300), 0);
  }
  EXPECT_EQ(overhead.Predict(0), absl::Microseconds(300));
}

TEST(StepOverheadTest, ANegativeOverheadCountsAsZero) {
  StepOverhead overhead;
  overhead.Learn(absl::Microseconds(-5), 3);
  EXPECT_EQ(overhead.Predict(3), absl::ZeroDuration());
}

}  // namespace
}  // namespace shardmesh::server
