// Plans that were tampered with are refused.
#include "program/plan_check.h"

#include <cstdint>
#include <functional>
#include <iterator>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "program/collective_choice.h"
#include "program/tensor_op.h"
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

TEST(PlanCheckTest, JudgesMovesAndSlicesThatWereTamperedWith) {
  const auto plan_of = [](const PartitionSpec& to, std::vector<std::vector<int64_t>> starts) {
    return *PlanProgram(
        Program{.operand_count = 1,
                .ops = {ReshardOp{.input = 0, .spec = to, .part_starts = std::move(starts)}},
                .outputs = {1}},
        {Value({8, 4}, Spec({{"tp"}, {}}))}, Target("tp=2,dp=2"));
  };
  const Plan move = plan_of(Spec({{"tp"}, {}}), {{3}});
  ASSERT_TRUE(std::holds_alternative<MoveRegions>(move.instructions[0].kind));
  EXPECT_TRUE(CheckPlan(move).ok()) << CheckPlan(move);
  const std::function<void(ValueDescriptor*)> tampers[] = {
      [](ValueDescriptor* output) {
        output->shape = {8, 8};
      },
      [](ValueDescriptor* output) { output->dtype = Dtype::kBF16; },
      [](ValueDescriptor* output) {
        output->spec = Spec({{"tp"}, {}}, {"dp"});
      },
      [](ValueDescriptor* output) {
        output->cut_points[0] = {0, 3, 9};
      },
  };
  for (const auto& tamper : tampers) {
    Plan plan = move;
    tamper(&plan.values[1]);
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument);
  }
  Plan slice = plan_of(Spec({{"tp"}, {"dp"}}), {});
  ASSERT_TRUE(std::holds_alternative<LocalSlice>(slice.instructions[0].kind));
  EXPECT_TRUE(CheckPlan(slice).ok()) << CheckPlan(slice);
  slice.values[1].cut_points = {{0, 3, 8}, {}};
  EXPECT_EQ(ReasonOf(CheckPlan(slice)), Reason::kShapeMismatch) << "a device lacks a row";
}

TEST(PlanCheckTest, JudgesProductsOfUnevenTiles) {
  const Plan plan = *PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {CutValue({8, 4}, Spec({{"tp"}, {}}), {{0, 3, 8}, {}}), Value({4, 6}, PartitionSpec())},
      Target("tp=2"));
  EXPECT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  Plan other_rows = plan;
  other_rows.values[2].cut_points = {{0, 4, 8}, {}};
  EXPECT_EQ(ReasonOf(CheckPlan(other_rows)), Reason::kShapeMismatch);
  Plan other_axis = plan;
  other_axis.values[2].spec = PartitionSpec();
  other_axis.values[2].cut_points = {};
  EXPECT_EQ(ReasonOf(CheckPlan(other_axis)), Reason::kShapeMismatch);
}

// A worker runs kernels on tiles whose sizes follow from these values.
TEST(PlanCheckTest, RefusesTensorOpsThatWereTamperedWith) {
  struct Case {
    TensorOp op;
    std::vector<ValueDescriptor> inputs;
    std::function<void(Plan*)> tamper;
  };
  const ValueDescriptor matrix = Value({4, 6}, Spec({{"tp"}, {}}));
  const ValueDescriptor ids = Value({4}, Spec({{}}), Dtype::kI32);
  const ValueDescriptor rows = Value({6}, Spec({{}}), Dtype::kI32);
  const auto op_of = [](Plan* plan) -> TensorOp& {
    return std::get<LocalCompute>(plan->instructions.back().kind).op;
  };
  const MapOp add = {.function = MapFunction::kAdd, .inputs = {0, 1}};
  const SliceOp slice = {.input = 0, .starts = {0, 1}, .limits = {4, 5}, .steps = {}};
  const ReshapeOp reshape = {.input = 0, .shape = {4, 2, 3}};
  const UpdateRowsOp update = {.input = 0, .update = 1, .positions = 2};
  const Case cases[] = {
      {add,
       {matrix, matrix},
       [](Plan* plan) {
         plan->values[1].shape = {4, 3};
       }},
      {add,
       {matrix, matrix},
       [](Plan* plan) {
         plan->values[1].spec = Spec({{}, {"tp"}});
       }},
      {add,
       {matrix, matrix},
       [](Plan* plan) {
         plan->values[1].cut_points = {{0, 1, 4}, {}};
       }},
      {add, {matrix, matrix}, [](Plan* plan) { plan->values[1].spec = Spec({{"tp"}}, {"dp"}); }},
      {add, {matrix, matrix}, [](Plan* plan) { plan->values[2].dtype = Dtype::kF64; }},
      {add,
       {matrix, matrix},
       [](Plan* plan) {
         plan->values[2].spec = Spec({{}, {}});
       }},
      {add, {matrix, matrix}, [&](Plan* plan) { op_of(plan) = MapOp{.inputs = {0}}; }},
      {slice,
       {matrix},
       [&](Plan* plan) {
         std::get<SliceOp>(op_of(plan)).limits = {4, 7};
       }},
      {slice, {matrix}, [&](Plan* plan) { std::get<SliceOp>(op_of(plan)).starts = {0}; }},
      {slice,
       {matrix},
       [](Plan* plan) {
         plan->values[1].spec = Spec({{}, {"tp"}});
       }},
      {reshape,
       {matrix},
       [](Plan* plan) {
         plan->values[0].shape = {4, 8};
       }},
      {reshape,
       {matrix},
       [](Plan* plan) {
         plan->values[1].spec = Spec({{}, {"tp"}, {}});
       }},
      {reshape, {matrix}, [](Plan* plan) { plan->values[0].dtype = Dtype::kI8; }},
      {EmbeddingOp{.table = 0, .ids = 1},
       {Value({4096, 6}, Spec({{"tp"}, {}})), ids},
       [](Plan* plan) {
         plan->values[2].spec = Spec({{}, {}});
       }},
      {ReduceOp{.input = 0, .dimensions = {1}},
       {matrix},
       [&](Plan* plan) {
         std::get<ReduceOp>(op_of(plan)).dimensions = {1, 2};
       }},
      {update, {matrix, matrix, rows}, [](Plan* plan) { plan->values[2].shape = {4}; }},
      {update, {matrix, matrix, rows}, [](Plan* plan) { plan->values[2].dtype = Dtype::kF32; }},
  };
  for (const Case& each : cases) {
    const auto count = static_cast<uint32_t>(each.inputs.size());
    SCOPED_TRACE(TensorOpName(each.op));
    auto plan = PlanProgram(Program{.operand_count = count, .ops = {each.op}, .outputs = {count}},
                            each.inputs, Target("tp=2,dp=2"));
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
    each.tamper(&*plan);
    EXPECT_EQ(CheckPlan(*plan).code(), absl::StatusCode::kInvalidArgument)
        << &each - std::begin(cases);
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
