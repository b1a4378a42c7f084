// Recovery: whom the coordinator waits for after its start, and since when.
#include "server/state/recovery.h"

#include <gtest/gtest.h>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"

namespace shardmesh::server {
namespace {

class RecoveryTest : public ::testing::Test {
 protected:
  static MembershipView ViewOf(std::vector<std::string> identities) {
    MembershipView view;
    const auto size = static_cast<int64_t>(identities.size());
    view.meshes["m"] = std::make_shared<const MeshRanks>("m", std::move(identities), size);
    return view;
  }

  test::FakeClock clock_;
  const absl::Time started_ = clock_.Now();
  Recovery recovery_{&clock_};
};

TEST_F(RecoveryTest, WaitsForEachWorkerOnceAndThenNeverAgain) {
  recovery_.Begin({"worker-0", "worker-1"});
  clock_.Advance(absl::Seconds(1));
  recovery_.Heard("worker-1");
  recovery_.Heard("worker-1");
  recovery_.Heard("stranger");
  EXPECT_EQ(recovery_.awaited(), 1);
  EXPECT_EQ(recovery_.since(), started_);
  clock_.Advance(absl::Seconds(1));
  recovery_.Heard("worker-0");
  EXPECT_EQ(recovery_.awaited(), 0);
  EXPECT_EQ(recovery_.since(), started_ + absl::Seconds(2));
  clock_.Advance(absl::Seconds(1));
  recovery_.Heard("worker-0");
  EXPECT_EQ(recovery_.since(), started_ + absl::Seconds(2));
}

TEST_F(RecoveryTest, WithoutRanksThereIsNothingToWaitFor) {
  recovery_.Begin({});
  EXPECT_EQ(recovery_.awaited(), 0);
  EXPECT_EQ(recovery_.since(), started_);
  recovery_.MeshesChanged({});
  EXPECT_EQ(recovery_.since(), started_);
}

TEST_F(RecoveryTest, WhoServesNoRankAnyMoreIsNotWaitedFor) {
  recovery_.Begin({"worker-0", "worker-1"});
  recovery_.MeshesChanged(ViewOf({"worker-0"}));
  EXPECT_EQ(recovery_.awaited(), 1);
  clock_.Advance(absl::Seconds(3));
  recovery_.MeshesChanged({});
  EXPECT_EQ(recovery_.awaited(), 0);
  EXPECT_EQ(recovery_.since(), started_ + absl::Seconds(3));
}

TEST_F(RecoveryTest, WorkersAreExpectedBackForAWhileAfterTheStartAndAfterALoss) {
  Recovery recovery(&clock_, absl::Seconds(10));
  recovery.Begin({"worker-0", "worker-1"});
  EXPECT_TRUE(recovery.ComesBack("worker-0"));
  EXPECT_TRUE(recovery.IsAwaited("worker-0"));
  EXPECT_FALSE(recovery.ComesBack("stranger"));
  recovery.Heard("worker-0");
  EXPECT_FALSE(recovery.ComesBack("worker-0"));
  clock_.Advance(absl::Seconds(10));
  EXPECT_FALSE(recovery.ComesBack("worker-1")) << "it had ten seconds";
  EXPECT_FALSE(recovery.IsAwaited("worker-1"));

  recovery.Lost("worker-0");
  EXPECT_TRUE(recovery.ComesBack("worker-0"));
  EXPECT_FALSE(recovery.IsAwaited("worker-0")) << "what it had in memory is gone";
  EXPECT_EQ(recovery.awaited(), 1) << "of the start alone";
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(recovery.ComesBack("worker-0"));
  recovery.Heard("worker-0");
  EXPECT_FALSE(recovery.ComesBack("worker-0"));
  recovery.Lost("worker-0");
  clock_.Advance(absl::Seconds(10));
  EXPECT_FALSE(recovery.ComesBack("worker-0"));
}

TEST_F(RecoveryTest, SaysForHowLongWorkersAreExpected) {
  EXPECT_EQ(Recovery(&clock_, absl::Seconds(90)).WaitAdvice(),
            "for at most 1m30s (--return-grace of the coordinator); try again, and start the "
            "workers if they stay away");
}

TEST_F(RecoveryTest, SaysThatTheCallMayBeTriedAgain) {
  const absl::Status status = Recovering("waits for rank 1");
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(ReasonOf(status), Reason::kRecovering);
  EXPECT_GT(RetryDelayOf(status).value_or(absl::ZeroDuration()), absl::ZeroDuration());
}

}  // namespace
}  // namespace shardmesh::server
