// CheckStepRoom: refuses a step that certainly does not fit, by worker, and no other.
#include "server/steps/step_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/program.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kKibi = int64_t{1} << 10;

class StepRoomTest : public ReadyCluster {
 protected:
  // A plan on the mesh "m" of one collective over x.
  Plan PlanOf(CollectiveKind kind, const ValueDescriptor& operand) const {
    return *PlanProgram(
        {.operand_count = 1,
         .ops = {CollectiveOp{
             .input = 0, .kind = kind, .axes = {"x"}, .algorithm = CollectiveAlgorithm::kPairwise}},
         .outputs = {1}},
        {operand}, {.mesh_id = "m", .mesh_revision = revision_, .mesh = mesh_});
  }
  static ValueDescriptor Vector(int64_t elements, bool is_partitioned) {
    return {.dtype = Dtype::kF32,
            .shape = {elements},
            .spec = is_partitioned ? PartitionSpec({SpecEntry::Axis("x")}) : PartitionSpec()};
  }
  absl::Status Check(const Plan& plan) const {
    return CheckStepRoom(plan, {}, *members_.view(), *registry_);
  }
  // Commits an array of which each worker has `kibi` KiB. Returns its id.
  std::string AddTiles(int64_t kibi) {
    ArrayDescriptor descriptor = Descriptor();
    descriptor.shape = {2 * kibi * kKibi / 4};
    return AddArray(descriptor, "");
  }

  // Each rank gathers 768 KiB. A worker has a mebibyte.
  const Plan gather_ = PlanOf(CollectiveKind::kAllGather, Vector(192 * kKibi, true));
};

TEST_F(StepRoomTest, NeedsThePeakOfThePlan) {
  EXPECT_EQ(gather_.cost.memory_bytes, 768 * kKibi);
  EXPECT_THAT(NeedOfStep(gather_, {FoundOperand()}, gather_.cost.memory_bytes),
              ElementsAre(768 * kKibi, 768 * kKibi));
}

TEST_F(StepRoomTest, ResultsInTheMemoryOfDonatedOperandsNeedNone) {
  const Plan plan = PlanOf(CollectiveKind::kAllReduce, Vector(64, false));
  EXPECT_THAT(NeedOfStep(plan, {FoundOperand()}, plan.cost.memory_bytes), ElementsAre(256, 256));
  EXPECT_THAT(NeedOfStep(plan, {FoundOperand{.donate = true}}, plan.cost.memory_bytes),
              ElementsAre(0, 0));
}

TEST_F(StepRoomTest, ARankWithASmallerTileNeedsLess) {
  CollectiveOp scatter{
      .input = 0, .kind = CollectiveKind::kReduceScatter, .axes = {"x"}, .counts = {16, 48}};
  const Plan plan =
      *PlanProgram({.operand_count = 1, .ops = {scatter}, .outputs = {1}}, {Vector(64, false)},
                   {.mesh_id = "m", .mesh_revision = revision_, .mesh = mesh_});
  EXPECT_THAT(NeedOfStep(plan, {FoundOperand()}, plan.cost.memory_bytes),
              ElementsAre(16 * 4, 48 * 4));
}

TEST_F(StepRoomTest, ARankWithASmallerTileOfStateNeedsLess) {
  ValueDescriptor state = Vector(64, true);
  state.cut_points = {{0, 16, 64}};
  const Plan plan =
      *PlanProgram({.operand_count = 1,
                    .ops = {TensorOp(MapOp{.function = MapFunction::kNegate, .inputs = {0}})},
                    .outputs = {},
                    .updates = {{.operand = 0, .value = 1}}},
                   {state}, {.mesh_id = "m", .mesh_revision = revision_, .mesh = mesh_});
  EXPECT_EQ(plan.cost.memory_bytes, 48 * 4);
  EXPECT_THAT(NeedOfStep(plan, {FoundOperand()}, plan.cost.memory_bytes),
              ElementsAre(16 * 4, 48 * 4));
}

TEST_F(StepRoomTest, AStepThatFitsIsNotRefused) {
  Beat(/*used_bytes=*/0);
  EXPECT_THAT(Check(gather_), IsOk());
  Beat(256 * kKibi);
  EXPECT_THAT(Check(gather_), IsOk()) << "exactly";
}

TEST_F(StepRoomTest, AStepThatFitsWithoutItsBlockIsNotRefused) {
  // 600 KiB and 300 KiB, then a result of 600 KiB that is made of the 300 KiB.
  const auto along_x = [](CollectiveKind kind, ValueIndex input) {
    return CollectiveOp{.input = input, .kind = kind, .axes = {"x"}};
  };
  const Plan plan = *PlanProgram(
      {.operand_count = 1,
       .ops = {along_x(CollectiveKind::kAllGather, 0), along_x(CollectiveKind::kReduceScatter, 1),
               along_x(CollectiveKind::kAllGather, 2)},
       .outputs = {3}},
      {Vector(150 * kKibi, true)}, {.mesh_id = "m", .mesh_revision = revision_, .mesh = mesh_});
  EXPECT_EQ(plan.cost.memory_bytes, 1500 * kKibi);
  Beat(0);
  EXPECT_THAT(Check(plan), IsOk());
  AddTiles(100);
  Beat(124 * kKibi);
  EXPECT_THAT(Check(plan), IsOk()) << "exactly";
  AddTiles(100);
  Beat(200 * kKibi);
  const absl::Status refused = Check(plan);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(refused.message(), HasSubstr("has 824 KiB of 1.00 MiB left, and needs 1.46 MiB"));
}

TEST_F(StepRoomTest, AStepIsRefusedWithWhatEachWorkerHasAndNeeds) {
  AddTiles(300);
  Beat(300 * kKibi);
  const absl::Status refused = Check(gather_);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(refused.message(), HasSubstr("the step lacks memory on 2 ranks; release arrays"));
  for (const char* each : {"rank 0 (worker \"w0\")", "rank 1 (worker \"w1\")"}) {
    EXPECT_THAT(refused.message(),
                HasSubstr(std::string(each) + " has 724 KiB of 1.00 MiB left, and needs 768 KiB"));
  }
  EXPECT_THAT(refused, test::CarriesFacts(Reason::kMemoryLimit, {{fact::kHave, 724 * kKibi},
                                                                 {fact::kNeed, 768 * kKibi},
                                                                 {fact::kRank, "0,1"},
                                                                 {fact::kIdentity, "w0,w1"}}));
}

TEST_F(StepRoomTest, MemoryOfRunningStepsAndOfReleasedArraysRefusesNone) {
  Beat(900 * kKibi);
  EXPECT_THAT(Check(gather_), IsOk()) << "no array takes the memory that is in use";
}

TEST_F(StepRoomTest, ArraysThatAreGivenToAStepRefuseNone) {
  const std::string array_id = AddTiles(300);
  Beat(300 * kKibi);
  EXPECT_FALSE(Check(gather_).ok());
  ASSERT_TRUE(registry_->Give(array_id, /*pins=*/2));
  EXPECT_THAT(Check(gather_), IsOk());
  registry_->TakeBack(array_id);
  EXPECT_FALSE(Check(gather_).ok());
}

TEST_F(StepRoomTest, ArraysThatHaveLeftMemoryRefuseNone) {
  AddTiles(900);
  Beat(0);
  EXPECT_THAT(Check(gather_), IsOk()) << "the workers have them on disk only";
}

}  // namespace
}  // namespace shardmesh::server
