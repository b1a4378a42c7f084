// Times of heartbeats, with and without slow instructions.
#include "worker/service/heartbeat_pace.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace shardmesh::worker {
namespace {

class HeartbeatPaceTest : public testing::Test {
 protected:
  HeartbeatPaceTest() { pace_.Begin(absl::Seconds(10), At(0)); }

  static absl::Time At(int64_t milliseconds) {
    return absl::FromUnixSeconds(1000) + absl::Milliseconds(milliseconds);
  }
  static std::vector<StepProgress> Runs(int64_t op, int64_t started) {
    return {
        {.step = 7,
         .started = At(0),
         .instruction = FlightRecord{.number = 0, .step = 7, .op = op, .started = At(started)}}};
  }

  HeartbeatPace pace_;
};

TEST_F(HeartbeatPaceTest, HeartbeatsAreDueInTheInterval) {
  EXPECT_EQ(pace_.next(), At(10000));
  EXPECT_EQ(pace_.NotDueUntil({}, At(9999)), At(10000));
  EXPECT_EQ(pace_.NotDueUntil({}, At(10000)), std::nullopt);
  EXPECT_EQ(pace_.Sent({}, At(10001)), At(20001)) << "a late one delays the next";
  EXPECT_EQ(pace_.NotDueUntil({}, At(10001)), At(20001));
}

TEST_F(HeartbeatPaceTest, IntervalsHaveALeastLength) {
  pace_.Begin(absl::ZeroDuration(), At(0));
  EXPECT_EQ(pace_.next(), At(10));
  pace_.Begin(-absl::Seconds(1), At(0));
  EXPECT_EQ(pace_.next(), At(10));
}

TEST_F(HeartbeatPaceTest, ASlowInstructionMakesOneDueOnce) {
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 1000), At(1000)), At(1100));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 1000), At(1099)), At(1100));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 1000), At(1100)), std::nullopt);
  EXPECT_EQ(pace_.Sent(Runs(0, 1000), At(1100)), At(1200));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 1000), At(1200)), At(1300)) << "it was told";
  EXPECT_EQ(pace_.NotDueUntil(Runs(1, 1210), At(1300)), At(1310)) << "the next of the same step";
  EXPECT_EQ(pace_.NotDueUntil(Runs(1, 1210), At(1310)), std::nullopt);
}

TEST_F(HeartbeatPaceTest, TheIntervalGoesOnBesideSlowInstructions) {
  pace_.Begin(absl::Milliseconds(150), At(0));
  EXPECT_EQ(pace_.Sent(Runs(0, 0), At(100)), At(200));
  EXPECT_EQ(pace_.next(), At(250));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 0), At(200)), At(250));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 0), At(250)), std::nullopt);
}

TEST_F(HeartbeatPaceTest, AStepWithoutAnInstructionCountsFromItsOwnStart) {
  const std::vector<StepProgress> progress = {{.step = 7, .started = At(500)}};
  EXPECT_EQ(pace_.NotDueUntil(progress, At(599)), At(600));
  EXPECT_EQ(pace_.NotDueUntil(progress, At(600)), std::nullopt);
  EXPECT_EQ(pace_.Sent(progress, At(600)), At(700));
  EXPECT_EQ(pace_.NotDueUntil(progress, At(700)), At(800));
}

TEST_F(HeartbeatPaceTest, ANewStreamHasHeardNothing) {
  EXPECT_EQ(pace_.Sent(Runs(0, 0), At(100)), At(200));
  pace_.Begin(absl::Seconds(10), At(300));
  EXPECT_EQ(pace_.next(), At(10300));
  EXPECT_EQ(pace_.NotDueUntil(Runs(0, 0), At(300)), std::nullopt) << "it is slow already";
}

TEST_F(HeartbeatPaceTest, MakesOneDueAtATimeOfTheCaller) {
  pace_.MakeDue(At(20));
  EXPECT_EQ(pace_.NotDueUntil({}, At(19)), At(20));
  EXPECT_EQ(pace_.NotDueUntil({}, At(20)), std::nullopt);
}

}  // namespace
}  // namespace shardmesh::worker
