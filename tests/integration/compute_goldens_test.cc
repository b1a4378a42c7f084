// The recorded products and linear layers, computed by workers in processes of their own.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "status/str_cat.h"
#include "tests/conformance/compute_subject.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

// Of the questions, every one with this stride is asked. Builds with sanitizers, which are slow,
// ask fewer.
#ifndef SHARDMESH_GOLDENS_STRIDE
#define SHARDMESH_GOLDENS_STRIDE 1
#endif

namespace shardmesh::test {
namespace {

class ComputeGoldensTest : public ::testing::Test {
 protected:
  void StartCluster(const std::string& mesh, int workers) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = mesh, .coordinator_flags = {}, .worker_flags = {}}));
    std::vector<std::string> identities;
    for (int i = 0; i < workers; ++i) identities.push_back(StrCat("worker-", i));
    conformance::AddComputeQuestions(
        conformance::WireCompute(cluster_->client(), std::move(identities)), &questions_);
  }

  std::unique_ptr<TestCluster> cluster_;
  conformance::Questions questions_;
};

// The meshes of the recorded products have up to eight devices.
TEST_F(ComputeGoldensTest, WorkersComputeEveryRecordedProduct) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("dp=2,tp=4", 8));
  ExpectGoldens("matmul.jsonl", "matmul", 272, questions_.at("matmul"), SHARDMESH_GOLDENS_STRIDE);
}

TEST_F(ComputeGoldensTest, WorkersComputeEveryRecordedLinearLayer) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("tp=2", 2));
  ExpectGoldens("linear.jsonl", "linear_forward", 118, questions_.at("linear_forward"),
                SHARDMESH_GOLDENS_STRIDE);
}

}  // namespace
}  // namespace shardmesh::test
