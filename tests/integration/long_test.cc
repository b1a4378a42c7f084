// What takes long to be sure of.
#include "tests/integration/collective_cluster.h"
#include "tests/integration/opposite_orders.h"

namespace shardmesh::test {
namespace {

TEST_F(CollectiveCluster, ClientsThatUseGroupsInOppositeOrdersForAMinuteNeverDeadlock) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t done,
                                 RunInOppositeOrders(cluster_->address(), absl::Minutes(1)));
  EXPECT_GT(done, 100);
  ExpectSumSoon();
}

TEST_F(CollectiveCluster, ARankThatIsTenSecondsLateIsNamedAndWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExpectALateRankIsNamedAndWaitedFor(absl::Seconds(10));
}

}  // namespace
}  // namespace shardmesh::test
