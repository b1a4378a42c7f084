// What the client library promises, with real processes behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sharding/status_macros.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override { SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({})); }

  // Puts four numbers and returns the array's id.
  absl::StatusOr<std::string> Put(const std::string& name) {
    const client::PutTensor tensor{
        .name = name,
        .view = *TensorView::Create(
            Dtype::kF32, {4}, {reinterpret_cast<const char*>(values_.data()), 4 * sizeof(float)}),
        .spec = PartitionSpec({SpecEntry::Axis("tp")}),
        .cut_points = {}};
    SHARDMESH_ASSIGN_OR_RETURN(const client::PutResult result, client().PutTensors({&tensor, 1}));
    return result.arrays[0].descriptor.array_id;
  }
  client::MeshClient& client() { return cluster_->client(); }

  const std::vector<float> values_ = {1, 2, 3, 4};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ClientTest, AnArrayThatWasReadGoesWithItsName) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string first, Put("w"));
  EXPECT_THAT(client().Gather(client::ArraySelector::ByName("w")), IsOk());
  EXPECT_THAT(client().Gather(client::ArraySelector::ById(first)), IsOk());
  ASSERT_THAT(Put("w"), IsOk());
  EXPECT_THAT(client().DescribeArray(client::ArraySelector::ById(first)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClientTest, ReadingDoesNotEndWhatTheSessionKeeps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string unnamed, Put(""));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(client().Gather(client::ArraySelector::ById(unnamed)), IsOk());
  }
}

}  // namespace
}  // namespace shardmesh::test
