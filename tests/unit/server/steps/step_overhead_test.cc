// The overhead that is predicted for a step, from those of the steps before it.
#include "server/steps/step_overhead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
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

// Returns a time of a clock that started at 0.
absl::Time After(int64_t milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(StepOverheadTest, IsTheTimeWithoutKernelsCollectivesAndWaits) {
  StepTimes times = {.admitted = After(0),
                     .submitted = After(2),
                     .started = After(2),
                     .ended = After(20),
                     .busy = absl::Milliseconds(10)};
  EXPECT_EQ(OverheadOf(times), absl::Milliseconds(10));
  // The same step behind one of 100 ms.
  times.started = After(102);
  times.ended = After(120);
  EXPECT_EQ(OverheadOf(times), absl::Milliseconds(10));
  // Behind another one on the workers, too.
  times.queued = absl::Milliseconds(5);
  times.ended = After(125);
  EXPECT_EQ(OverheadOf(times), absl::Milliseconds(10));
}

TEST(StepOverheadTest, IsNeverNegative) {
  EXPECT_EQ(OverheadOf({.admitted = After(0),
                        .submitted = After(1),
                        .started = After(1),
                        .ended = After(5),
                        .busy = absl::Milliseconds(6)}),
            absl::ZeroDuration())
      << "the clocks of workers differ";
  EXPECT_EQ(OverheadOf({.admitted = After(0), .submitted = After(1), .ended = After(5)}),
            absl::Milliseconds(5))
      << "a step that the sequencer never let run";
}

TEST(StepOverheadTest, StepsOfAStreamTeachOnlyTheirOwnTime) {
  StepOverhead overhead;
  for (int64_t i = 1; i <= 8; ++i) {
    // All are submitted at once, and run one after the other for 50 ms, of which 49 are kernels.
    overhead.Learn(OverheadOf({.admitted = After(0),
                               .submitted = After(0),
                               .started = After(50 * (i - 1)),
                               .ended = After(50 * i),
                               .busy = absl::Milliseconds(49)}),
                   0);
  }
  EXPECT_EQ(overhead.Predict(0), absl::Milliseconds(1));
}

}  // namespace
}  // namespace shardmesh::server
