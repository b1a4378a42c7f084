// Pauses of a save beside steps.
#include "worker/save/save_pace.h"

#include <gtest/gtest.h>

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/cpu_time.h"

namespace shardmesh::worker {
namespace {

constexpr absl::Duration kPiece = absl::Milliseconds(5);

void Work(absl::Duration time) {
  const double end = ThreadCpuSeconds() + absl::ToDoubleSeconds(time);
  while (ThreadCpuSeconds() < end) {
  }
}

absl::Duration PauseTime(SavePace& pace) {
  const absl::Time start = absl::Now();
  pace.Pause();
  return absl::Now() - start;
}

TEST(SavePaceTest, APauseIsAsLongAsThePieceAsksWhileStepsRun) {
  const SavePace::Options options{.steps_run = [] { return true; }, .workers = 2};
  const std::atomic<bool> is_cancelled = false;
  SavePace pace(options, is_cancelled);
  for (int piece = 0; piece < 3; ++piece) {
    Work(kPiece);
    EXPECT_GE(PauseTime(pace), SavePace::kPauses * 2 * kPiece);
  }
  // The time of a piece counts once, and the pause itself takes none.
  EXPECT_LT(PauseTime(pace), SavePace::kPauses * kPiece);
}

TEST(SavePaceTest, ThereIsNoPauseWithoutSteps) {
  bool is_running = false;
  const SavePace::Options options{.steps_run = [&] { return is_running; }};
  const std::atomic<bool> is_cancelled = false;
  SavePace pace(options, is_cancelled);
  Work(20 * kPiece);
  EXPECT_LT(PauseTime(pace), SavePace::kPauses * 20 * kPiece);
  // A step that begins later is not delayed for what was written before it.
  is_running = true;
  EXPECT_LT(PauseTime(pace), SavePace::kPauses * 20 * kPiece);

  const SavePace::Options none;
  SavePace alone(none, is_cancelled);
  Work(20 * kPiece);
  EXPECT_LT(PauseTime(alone), SavePace::kPauses * 20 * kPiece);
}

TEST(SavePaceTest, ACancelledSaveDoesNotPause) {
  const SavePace::Options options{.steps_run = [] { return true; }, .workers = 2};
  const std::atomic<bool> is_cancelled = true;
  SavePace pace(options, is_cancelled);
  Work(20 * kPiece);
  EXPECT_LT(PauseTime(pace), SavePace::kPauses * 20 * kPiece);
}

}  // namespace
}  // namespace shardmesh::worker
