// Recovery: whom the coordinator waits for after its start, and since when.
#include "server/recovery.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_clock.h"

namespace shardmesh::server {
namespace {

class RecoveryTest : public ::testing::Test {
 protected:
  static MembershipView ViewOf(std::vector<std::string> identities) {
    MembershipView view;
    const auto size = static_cast<int64_t>(identities.size());
    view.meshes["m"] = {.mesh_id = "m", .identities = std::move(identities), .size = size};
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

}  // namespace
}  // namespace shardmesh::server
