// What takes long to be sure of.
#include "tests/integration/collective_cluster.h"
#include "tests/integration/opposite_orders.h"
#include "tests/integration/random_graphs.h"
#include "tests/testing/random_cases.h"

namespace shardmesh::test {
namespace {

// By how data goes between the workers.
class LongTest : public CollectiveCluster, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.coordinator_flags = {}, .worker_flags = {StrCat("--transport=", GetParam())}}));
  }
};

INSTANTIATE_TEST_SUITE_P(Over, LongTest, ::testing::Values("stream", "shm"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(LongTest, ClientsThatUseGroupsInOppositeOrdersForAMinuteNeverDeadlock) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t done,
                                 RunInOppositeOrders(cluster_->address(), absl::Minutes(1)));
  EXPECT_GT(done, 100);
  ExpectSumSoon();
}

TEST_P(LongTest, ARankThatIsTenSecondsLateIsNamedAndWaitedFor) {
  ExpectALateRankIsNamedAndWaitedFor(absl::Seconds(10));
}

TEST_P(LongTest, AThousandRandomGraphsAreComputedWithinTheBounds) {
  ExpectRandomGraphsVerified(client(), *Mesh::Parse("fsdp=2,tp=2"), RandomCasesOf(1'000));
}

}  // namespace
}  // namespace shardmesh::test
