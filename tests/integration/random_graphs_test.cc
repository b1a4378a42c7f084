// Some random graphs on real workers. long_test.cc has many.
#include "tests/integration/random_graphs.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

TEST(RandomGraphsTest, WorkersComputeThemWithinTheBounds) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TestCluster> cluster, TestCluster::Start());
  ExpectRandomGraphsVerified(cluster->client(), *Mesh::Parse("fsdp=2,tp=2"), RandomCasesOf(20));
}

}  // namespace
}  // namespace shardmesh::test
