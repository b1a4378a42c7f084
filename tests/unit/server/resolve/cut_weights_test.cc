// The weights of devices: those of a request, the memory of the workers, and their speed.
#include "server/resolve/cut_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CutWeightsTest : public ::testing::Test {
 protected:
  CutWeightsTest() {
    Attach("large", 3 << 20, 4e9);
    Attach("small", 1 << 20, 1e9);
    Attach("unmeasured", 2 << 20, 0);
  }
  void Attach(const std::string& identity, int64_t capacity_bytes, double speed) {
    EXPECT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 1,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = capacity_bytes,
                                 .kernels = {.f32_flops_per_second = speed}}),
                IsOk());
  }
  absl::StatusOr<std::vector<int64_t>> Choose(UnevenCuts rule, std::vector<int64_t> weights,
                                              std::vector<std::string> workers = {}) {
    return ChooseWeights({.rule = rule,
                          .weights = std::move(weights),
                          .mesh = &mesh_,
                          .mesh_id = "m",
                          .workers = std::move(workers),
                          .path = "header."},
                         *members_.view());
  }
  static std::string FieldIn(const absl::Status& status) {
    const auto violations = rpc::FieldViolationsOf(status);
    return violations.empty() ? "" : violations.front().field;
  }

  const Mesh mesh_ = *Mesh::Parse("x=2");
  test::FakeClock clock_;
  Membership members_{&clock_};
};

TEST_F(CutWeightsTest, ARuleThatWeighsNothingHasNoWeights) {
  EXPECT_THAT(Choose(UnevenCuts::kEqualOnly, {}), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(Choose(UnevenCuts::kCeilChunks, {}), IsOkAndHolds(IsEmpty()));
}

TEST_F(CutWeightsTest, WeightsComeFromTheRequestOrFromTheWorkers) {
  EXPECT_THAT(Choose(UnevenCuts::kByWeights, {1, 3}), IsOkAndHolds(ElementsAre(1, 3)));
  EXPECT_THAT(Choose(UnevenCuts::kByMemory, {}, {"large", "small"}),
              IsOkAndHolds(ElementsAre(3 << 10, 1 << 10)));
  EXPECT_THAT(Choose(UnevenCuts::kBySpeed, {}, {"small", "large"}),
              IsOkAndHolds(ElementsAre(1'000, 4'000)));
  EXPECT_THAT(Choose(UnevenCuts::kByMemory, {}, {"unmeasured", "small"}), IsOk());
}

TEST_F(CutWeightsTest, ErrorsNameTheFieldAndTheRank) {
  const absl::Status few = Choose(UnevenCuts::kByWeights, {1}).status();
  EXPECT_THAT(few, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidCutPoints));
  EXPECT_EQ(FieldIn(few), "header.weights");
  const absl::Status slow = Choose(UnevenCuts::kBySpeed, {}, {"small", "unmeasured"}).status();
  EXPECT_THAT(slow, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_EQ(FieldIn(slow), "header.uneven");
  EXPECT_THAT(std::string(slow.message()),
              HasSubstr("rank 1 (worker \"unmeasured\") has not measured the speed"));
  for (const std::vector<std::string>& workers :
       {std::vector<std::string>{"small"}, std::vector<std::string>{"small", "gone"}}) {
    const absl::Status gone = Choose(UnevenCuts::kByMemory, {}, workers).status();
    EXPECT_THAT(gone, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
    EXPECT_THAT(std::string(gone.message()), HasSubstr("rank 1 of the mesh \"m\" has no worker"));
    EXPECT_EQ(FactOf(gone, fact::kMesh), "m");
  }
}

}  // namespace
}  // namespace shardmesh::server
