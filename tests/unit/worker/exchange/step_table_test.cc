// StepTable: which steps are to come, held, open and over, and who is to blame.
#include "worker/exchange/step_table.h"

#include <gtest/gtest.h>

#include "status/reason.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kEpoch = 3;

TEST(StepTableTest, AStepIsOverOnceAHigherOneIsRegistered) {
  StepTable steps;
  EXPECT_FALSE(steps.IsOver(1, kEpoch)) << "to come";
  steps.Register(2, kEpoch);
  EXPECT_TRUE(steps.IsOver(1, kEpoch));
  EXPECT_FALSE(steps.IsOver(2, kEpoch));
  EXPECT_FALSE(steps.IsOver(3, kEpoch));
  steps.Close(2);
  EXPECT_TRUE(steps.IsOver(2, kEpoch));
}

TEST(StepTableTest, MessagesOfAnotherEpochAreStale) {
  StepTable steps;
  steps.Register(2, kEpoch);
  EXPECT_TRUE(steps.IsOver(2, kEpoch - 1));
  EXPECT_TRUE(steps.IsStale(2, kEpoch - 1));
  EXPECT_FALSE(steps.IsStale(2, kEpoch));
  EXPECT_FALSE(steps.IsStale(1, kEpoch)) << "not registered";
}

TEST(StepTableTest, HoldsAsManyStepsAsTheCoordinatorCanHaveUnderWay) {
  StepTable steps;
  for (size_t i = 0; i < StepTable::kMaxHeldSteps; ++i) {
    EXPECT_TRUE(steps.Hold(static_cast<int64_t>(i) + 1).ok());
  }
  const auto last = static_cast<int64_t>(StepTable::kMaxHeldSteps);
  EXPECT_TRUE(steps.Hold(last).ok()) << "it is held already";
  EXPECT_EQ(ReasonOf(steps.Hold(last + 1)), Reason::kLimitExceeded);
  EXPECT_FALSE(steps.AbortByPeer(last + 1, "w-1"));
  // One that is registered ends the holding of all before it.
  steps.Register(last, kEpoch);
  EXPECT_TRUE(steps.Hold(last + 1).ok());
}

TEST(StepTableTest, OnlyTheFirstAbortCounts) {
  StepTable steps;
  steps.Register(2, kEpoch);
  EXPECT_TRUE(steps.Abort(2, /*has_failed=*/false, "w-1"));
  EXPECT_FALSE(steps.Abort(2, /*has_failed=*/false, "w-2"));
  EXPECT_EQ(steps.BlamedFor(2), "w-1");
  EXPECT_FALSE(steps.Abort(1, /*has_failed=*/false, "w-1")) << "over";
  EXPECT_TRUE(steps.Abort(3, /*has_failed=*/false, "w-1")) << "to come";
  EXPECT_FALSE(steps.Abort(3, /*has_failed=*/true, "w-1")) << "to come, and aborted before";
}

TEST(StepTableTest, AnAbortThatAPeerToldIsNotToldAgain) {
  StepTable steps;
  steps.Register(2, kEpoch);
  EXPECT_TRUE(steps.AbortByPeer(2, "w-1"));
  EXPECT_FALSE(steps.Abort(2, /*has_failed=*/true, "w-2"));
  EXPECT_EQ(steps.BlamedFor(2), "w-1");
  EXPECT_FALSE(steps.AbortByPeer(1, "w-1")) << "over";
}

TEST(StepTableTest, KeepsTheBlameOfAStepThatFailedBeforeItBegan) {
  StepTable steps;
  EXPECT_TRUE(steps.AbortByPeer(5, "w-1"));
  EXPECT_TRUE(steps.AbortByPeer(5, "w-2"));
  EXPECT_EQ(steps.BlamedFor(5), "w-1");
  steps.Open(5, kEpoch, {"w-0", "w-1"});
  EXPECT_EQ(steps.BlamedFor(5), "w-1");
  EXPECT_EQ(steps.BlamedFor(6), "");
}

TEST(StepTableTest, AWorkerThatIsGoneIsToBlameForItsOpenSteps) {
  StepTable steps;
  steps.Register(1, kEpoch);
  steps.Open(2, kEpoch, {"w-0", "w-1"});
  steps.Open(3, kEpoch, {"w-0", "w-2"});
  steps.Open(4, kEpoch, {"w-0", "w-1"});
  steps.BlamedIn(4) = "w-0";
  steps.BlameForAll("w-1");
  EXPECT_EQ(steps.BlamedFor(1), "") << "not open";
  EXPECT_EQ(steps.BlamedFor(2), "w-1");
  EXPECT_EQ(steps.BlamedFor(3), "");
  EXPECT_EQ(steps.BlamedFor(4), "w-0") << "blamed before";
}

TEST(StepTableTest, EveryWorkerMayTakePartInAStepThatIsNotOpen) {
  StepTable steps;
  EXPECT_TRUE(steps.TakesPart(2, "w-1"));
  steps.Register(2, kEpoch);
  EXPECT_TRUE(steps.TakesPart(2, "w-1"));
  steps.Open(2, kEpoch, {"w-0", "w-2"});
  EXPECT_FALSE(steps.TakesPart(2, "w-1"));
  EXPECT_TRUE(steps.TakesPart(2, "w-2"));
}

}  // namespace
}  // namespace shardmesh::worker
