// Plans that were tampered with are refused.
#include "program/plan_check.h"

#include <cstdint>
#include <functional>
#include <variant>

#include "gtest/gtest.h"
#include "program/collective_choice.h"
#include "status/reason.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

TEST(PlanCheckTest, RefusesPlansThatWereTamperedWith) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4, 8}, Spec({{}, {"tp"}})), Value({8, 4}, Spec({{"tp"}, {}}))}, Target("tp=4"));
  ASSERT_TRUE(plan.ok());
  Plan reads_itself = *plan;
  std::get<LocalMatmul>(reads_itself.instructions[0].kind).lhs = 2;
  EXPECT_FALSE(CheckPlan(reads_itself).ok());
  Plan wrong_shape = *plan;
  wrong_shape.values[0].shape = {4, 12};
  EXPECT_FALSE(CheckPlan(wrong_shape).ok());
  Plan missing_output = *plan;
  missing_output.outputs = {17};
  EXPECT_FALSE(CheckPlan(missing_output).ok());
}

TEST(PlanCheckTest, JudgesCollectivesThatWereTamperedWith) {
  const auto plan_of = [](CollectiveKind kind) {
    return *PlanOf(PossibleOp(kind), Value({8, 4}, Spec({{"tp"}, {}})), "tp=2");
  };
  struct Case {
    CollectiveKind kind;
    std::function<void(CollectiveOp*)> tamper;
  };
  const Case cases[] = {
      {CollectiveKind::kBroadcast, [](CollectiveOp* op) { op->root = 2; }},
      {CollectiveKind::kReduce, [](CollectiveOp* op) { op->root = -1; }},
      {CollectiveKind::kPermute,
       [](CollectiveOp* op) {
         op->permutation = {{0, 5}};
       }},
      {CollectiveKind::kPermute,
       [](CollectiveOp* op) {
         op->permutation = {{0, 1}, {1, 1}};
       }},
      {CollectiveKind::kAllToAll, [](CollectiveOp* op) { op->split_dimension = 0; }},
      {CollectiveKind::kAllToAll, [](CollectiveOp* op) { op->split_dimension = 7; }},
      {CollectiveKind::kGather, [](CollectiveOp* op) { op->dimension = 1; }},
      {CollectiveKind::kScatter, [](CollectiveOp* op) { op->dimension = -1; }},
      {CollectiveKind::kAllReduce,
       [](CollectiveOp* op) { op->algorithm = CollectiveAlgorithm::kAuto; }},
      {CollectiveKind::kAllReduce,
       [](CollectiveOp* op) { op->algorithm = CollectiveAlgorithm::kRing; }},
      {CollectiveKind::kBarrier,
       [](CollectiveOp* op) { op->algorithm = CollectiveAlgorithm::kChain; }},
      {CollectiveKind::kBroadcast, [](CollectiveOp* op) { op->kind = CollectiveKind::kScatter; }},
      {CollectiveKind::kBarrier, [](CollectiveOp* op) { op->axes = {"pp"}; }},
  };
  for (const Case& c : cases) {
    Plan plan = plan_of(c.kind);
    EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
    c.tamper(&std::get<GroupCollective>(plan.instructions[0].kind));
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument)
        << CollectiveKindName(c.kind);
  }
}

TEST(PlanCheckTest, RefusesAGatherBeyond64Bits) {
  auto plan =
      PlanProgram(Program{.operand_count = 1,
                          .ops = {CollectiveOp{.kind = CollectiveKind::kAllGather, .axes = {"tp"}}},
                          .outputs = {1}},
                  {Value({8, 4}, Spec({{"tp"}, {}}))}, Target("tp=4"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(CheckPlan(*plan).ok());
  plan->values[0].shape = {int64_t{1} << 62, 1};
  plan->values[0].spec = PartitionSpec();
  EXPECT_EQ(ReasonOf(CheckPlan(*plan)), Reason::kShapeMismatch) << CheckPlan(*plan);
}

}  // namespace
}  // namespace shardmesh
