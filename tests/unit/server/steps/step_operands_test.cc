// The rates of a mesh, and the workers that run a plan.
#include "server/steps/step_operands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "program/fuse/fuse_exchanges.h"
#include "program/kernel_time.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StepOperandsTest : public ::testing::Test {
 protected:
  void Attach(const std::string& identity, double speed, bool multiplies_batches = true,
              bool runs_tensor_ops = true, bool overlaps_exchanges = true,
              bool multiplies_short_types = true, bool runs_fused_ops = true,
              bool overlaps_parts = true) {
    EXPECT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 1,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = 1 << 20,
                                 .kernels = {.f32_flops_per_second = speed},
                                 .multiplies_batches = multiplies_batches,
                                 .runs_tensor_ops = runs_tensor_ops,
                                 .multiplies_short_types = multiplies_short_types,
                                 .overlaps_exchanges = overlaps_exchanges,
                                 .overlaps_parts = overlaps_parts,
                                 .runs_fused_ops = runs_fused_ops}),
                IsOk());
  }
  // Returns a view in which the mesh "m" has these workers.
  MembershipView ViewOf(const std::vector<std::string>& identities) {
    MembershipView view = *members_.view();
    view.meshes["m"] =
        std::make_shared<const MeshRanks>("m", identities, static_cast<int64_t>(identities.size()));
    return view;
  }

  test::FakeClock clock_;
  Membership members_{&clock_};
  KernelTable table_;
};

TEST_F(StepOperandsTest, AMeshIsAsFastAsItsSlowestMeasuredWorker) {
  Attach("fast", 4e11);
  Attach("slow", 1e11);
  Attach("unmeasured", 0);
  Attach("absurd", 1e-310);
  EXPECT_EQ(table_.RatesOf(ViewOf({"fast", "slow"}), "m").flops_per_second, 1e11);
  EXPECT_EQ(table_.RatesOf(ViewOf({"fast", "unmeasured"}), "m").flops_per_second, 4e11)
      << "the mesh has other workers in the same epoch";
  EXPECT_EQ(table_.RatesOf(ViewOf({"fast", "absurd"}), "m").flops_per_second, 4e11);
  EXPECT_TRUE(table_.RatesOf(ViewOf({"fast", "unmeasured"}), "m").is_measured);
  const KernelRates defaults = table_.RatesOf(ViewOf({"unmeasured"}), "m");
  EXPECT_FALSE(defaults.is_measured);
  EXPECT_EQ(defaults.flops_per_second, KernelRates().flops_per_second);
  EXPECT_FALSE(table_.RatesOf(ViewOf({"fast"}), "other").is_measured);
}

TEST_F(StepOperandsTest, EachCostIsThatOfTheSlowestWorkerThatHasMeasuredIt) {
  const auto attach = [this](const std::string& identity, double read, double gelu) {
    MeasuredKernels kernels = {.f32_flops_per_second = 1e11};
    kernels.costs[KernelCost::kReadByte] = read;
    kernels.costs[KernelCost::kFunctionElement] = gelu;
    kernels.costs[ProductKind::kF16][1] = gelu;
    EXPECT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 1,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = 1 << 20,
                                 .kernels = kernels}),
                IsOk());
  };
  attach("one", 1e-10, 3e-9);
  attach("other", 2e-10, 1e-9);
  attach("older", 0, 0);
  const KernelRates rates = table_.RatesOf(ViewOf({"one", "other", "older"}), "m");
  EXPECT_EQ(rates.costs.Of(KernelCost::kReadByte), 2e-10);
  EXPECT_EQ(rates.costs.Of(KernelCost::kFunctionElement), 3e-9);
  EXPECT_EQ(rates.costs.Of(ProductKind::kF16)[1], 3e-9);
  EXPECT_EQ(rates.costs.Of(KernelCost::kProductStart), 0);
  EXPECT_EQ(table_.RatesOf(ViewOf({"older"}), "m").costs, KernelCosts());
}

TEST_F(StepOperandsTest, BatchesNeedWorkersThatMultiplyThem) {
  Attach("new", 1e11);
  Attach("old", 1e11, /*multiplies_batches=*/false);
  const auto plan_of = [](const Shape& shape) {
    const ValueDescriptor value = {.shape = shape, .spec = PartitionSpec()};
    return *PlanProgram(
        Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
        {value, value}, {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("tp=2")});
  };
  const Plan batches = plan_of({3, 4, 4});
  EXPECT_THAT(CheckWorkersRun(batches, ViewOf({"new", "new"})), IsOk());
  EXPECT_THAT(CheckWorkersRun(plan_of({4, 4}), ViewOf({"new", "old"})), IsOk());
  const absl::Status refused = CheckWorkersRun(batches, ViewOf({"new", "old"}));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), Reason::kNotAvailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("worker \"old\" (rank 1)"));
}

TEST_F(StepOperandsTest, ProductsOfF16AndByI8NeedWorkersThatHaveThem) {
  Attach("new", 1e11);
  Attach("old", 1e11, /*multiplies_batches=*/true, /*runs_tensor_ops=*/true,
         /*overlaps_exchanges=*/true, /*multiplies_short_types=*/false);
  const auto plan_of = [](Dtype input, Dtype weight, bool has_scales) {
    LinearOp op = {.input = 0, .weight = 1};
    if (has_scales) op.scales = 2;
    const auto value = [](Dtype dtype, const Shape& shape) {
      return ValueDescriptor{.dtype = dtype, .shape = shape, .spec = PartitionSpec()};
    };
    return *PlanProgram(Program{.operand_count = 3, .ops = {op}, .outputs = {3}},
                        {value(input, {4, 4}), value(weight, {4, 4}), value(Dtype::kF32, {4})},
                        {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("tp=2")});
  };
  for (const Plan& plan :
       {plan_of(Dtype::kF16, Dtype::kF16, false), plan_of(Dtype::kF32, Dtype::kI8, true)}) {
    EXPECT_THAT(CheckWorkersRun(plan, ViewOf({"new", "new"})), IsOk());
    const absl::Status refused = CheckWorkersRun(plan, ViewOf({"new", "old"}));
    EXPECT_EQ(ReasonOf(refused), Reason::kNotAvailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("worker \"old\" (rank 1)"));
  }
  EXPECT_THAT(CheckWorkersRun(plan_of(Dtype::kBF16, Dtype::kBF16, false), ViewOf({"new", "old"})),
              IsOk());
}

TEST_F(StepOperandsTest, TensorOpsAndUpdatesNeedWorkersThatRunThem) {
  Attach("new", 1e11);
  Attach("old", 1e11, /*multiplies_batches=*/true, /*runs_tensor_ops=*/false);
  const ValueDescriptor value = {.shape = {4}, .spec = PartitionSpec()};
  const Plan copies = {.mesh_id = "m",
                       .mesh_revision = 1,
                       .mesh = *Mesh::Parse("tp=2"),
                       .values = {value, value},
                       .operand_count = 1,
                       .instructions = {{.output = 1, .kind = LocalSlice{0}, .label = "copy"}},
                       .outputs = {1},
                       .cost = {}};
  Plan computes = copies;
  computes.instructions[0].kind = LocalCompute{ReshapeOp{.input = 0, .shape = {4}}};
  Plan updates = copies;
  updates.updates = {{.operand = 0, .value = 1}};
  EXPECT_THAT(CheckWorkersRun(copies, ViewOf({"new", "old"})), IsOk());
  for (const Plan& plan : {computes, updates}) {
    EXPECT_THAT(CheckWorkersRun(plan, ViewOf({"new", "new"})), IsOk());
    const absl::Status refused = CheckWorkersRun(plan, ViewOf({"new", "old"}));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(refused), Reason::kNotAvailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("worker \"old\" (rank 1)"));
  }
}

TEST(MarkUpdatesTest, OnlyArraysOfTheirOwnAreUpdated) {
  const auto array_of = [](const std::string& id) {
    auto array = std::make_shared<Array>();
    array->definition.descriptor.array_id = id;
    return FoundOperand{.array = std::move(array),
                        .described = {.shape = {4}, .spec = PartitionSpec()}};
  };
  Plan plan;
  plan.operand_count = 2;
  plan.updates = {{.operand = 1, .value = 2}};
  std::vector<FoundOperand> operands = {array_of("x"), array_of("kv")};
  ASSERT_THAT(MarkUpdates(plan, &operands), IsOk());
  EXPECT_FALSE(operands[0].is_updated);
  EXPECT_TRUE(operands[1].is_updated);

  const auto refusal = [&plan](std::vector<FoundOperand> wrong) {
    const absl::Status refused = MarkUpdates(plan, &wrong);
    EXPECT_EQ(ReasonOf(refused), Reason::kBadField);
    EXPECT_THAT(ToStd(refused.message()), HasSubstr("operand 1 is updated"));
    return std::string(refused.message());
  };
  EXPECT_THAT(refusal({array_of("x"), FoundOperand()}), HasSubstr("literal"));
  EXPECT_THAT(refusal({array_of("kv"), array_of("kv")}), HasSubstr("another operand too"));
  operands[1].donate = true;
  EXPECT_THAT(refusal(operands), HasSubstr("donated"));
  operands[1].donate = false;
  operands[1].described.spec = PartitionSpec({}, {"tp"});
  EXPECT_THAT(refusal(operands), HasSubstr("partial sums"));
}

TEST_F(StepOperandsTest, FusedOpsNeedWorkersThatRunThem) {
  Attach("new", 1e11);
  Attach("old", 1e11, /*multiplies_batches=*/true, /*runs_tensor_ops=*/true,
         /*overlaps_exchanges=*/true, /*multiplies_short_types=*/true, /*runs_fused_ops=*/false);
  const MembershipView all_new = ViewOf({"new", "new"});
  const MembershipView mixed = ViewOf({"new", "old"});
  EXPECT_TRUE(table_.RatesOf(all_new, "m").may_fuse_ops);
  EXPECT_FALSE(table_.RatesOf(mixed, "m").may_fuse_ops);
  EXPECT_TRUE(table_.RatesOf(mixed, "m").may_overlap);
  EXPECT_FALSE(table_.RatesOf(ViewOf({"new", "gone"}), "m").may_fuse_ops);
  EXPECT_FALSE(AreAlike(table_.RatesOf(all_new, "m"), table_.RatesOf(mixed, "m")))
      << "a cached plan would serve both";
  const auto plan_for = [&](const MembershipView& view) {
    const Program program = {
        .operand_count = 1,
        .ops = {TensorOp(MapOp{MapFunction::kAbs, {0}}), TensorOp(MapOp{MapFunction::kExp, {1}})},
        .outputs = {2}};
    const ValueDescriptor value = {.shape = {4}, .spec = PartitionSpec()};
    return *PlanProgram(program, {value},
                        {.mesh_id = "m",
                         .mesh_revision = 1,
                         .mesh = *Mesh::Parse("tp=2"),
                         .kernels = table_.RatesOf(view, "m")});
  };
  const Plan fused = plan_for(all_new);
  ASSERT_TRUE(HasFusedOps(fused));
  EXPECT_FALSE(HasFusedOps(plan_for(mixed)));
  EXPECT_THAT(CheckWorkersRun(fused, all_new), IsOk());
  EXPECT_THAT(CheckWorkersRun(plan_for(mixed), mixed), IsOk());
  const absl::Status refused = CheckWorkersRun(fused, mixed);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), Reason::kNotAvailable);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("worker \"old\" (rank 1)"), HasSubstr("compile the program again")));
}

TEST_F(StepOperandsTest, FusedInstructionsNeedWorkersThatRunThem) {
  Attach("new", 1e11);
  Attach("other", 1e11, /*multiplies_batches=*/true, /*runs_tensor_ops=*/true,
         /*overlaps_exchanges=*/false);
  EXPECT_TRUE(table_.RatesOf(ViewOf({"new", "new"}), "m").may_overlap);
  EXPECT_FALSE(table_.RatesOf(ViewOf({"new", "other"}), "m").may_overlap);
  EXPECT_FALSE(table_.RatesOf(ViewOf({"new", "gone"}), "m").may_overlap);
  EXPECT_FALSE(AreAlike(table_.RatesOf(ViewOf({"new", "new"}), "m"),
                        table_.RatesOf(ViewOf({"new", "other"}), "m")))
      << "a cached plan would serve both";
  Attach("rows", 1e11, /*multiplies_batches=*/true, /*runs_tensor_ops=*/true,
         /*overlaps_exchanges=*/true, /*multiplies_short_types=*/true, /*runs_fused_ops=*/true,
         /*overlaps_parts=*/false);
  EXPECT_TRUE(table_.RatesOf(ViewOf({"new", "new"}), "m").may_overlap_parts);
  const KernelRates of_rows = table_.RatesOf(ViewOf({"new", "rows"}), "m");
  EXPECT_TRUE(of_rows.may_overlap);
  EXPECT_FALSE(of_rows.may_overlap_parts);
  EXPECT_FALSE(AreAlike(table_.RatesOf(ViewOf({"new", "new"}), "m"), of_rows));
  const auto plan_with = [](bool may_overlap, bool gathers_rhs = false) {
    const auto value = [](const Shape& shape, const PartitionSpec& spec) {
      return ValueDescriptor{.shape = shape, .spec = spec};
    };
    const PartitionSpec by_rows({SpecEntry::Axis("tp"), SpecEntry::None()});
    const PartitionSpec by_columns({SpecEntry::None(), SpecEntry::Axis("tp")});
    const CollectiveOp gather = {.input = gathers_rhs ? 1U : 0U,
                                 .kind = CollectiveKind::kAllGather,
                                 .axes = {"tp"},
                                 .dimension = gathers_rhs ? 1 : 0};
    const MatmulOp matmul =
        gathers_rhs ? MatmulOp{.lhs = 0, .rhs = 2} : MatmulOp{.lhs = 2, .rhs = 1};
    return *PlanProgram(Program{.operand_count = 2, .ops = {gather, matmul}, .outputs = {3}},
                        {value({4096, 4096}, by_rows), value({4096, 4096}, by_columns)},
                        {.mesh_id = "m",
                         .mesh_revision = 1,
                         .mesh = *Mesh::Parse("tp=2"),
                         .links = {.seconds_per_byte = 1e-9},
                         .kernels = {.flops_per_second = 5e12,
                                     .may_overlap = may_overlap,
                                     .may_overlap_parts = may_overlap}});
  };
  const Plan fused = plan_with(true);
  ASSERT_TRUE(OverlapsExchanges(fused));
  const Plan plain = plan_with(false);
  EXPECT_FALSE(OverlapsExchanges(plain));
  EXPECT_THAT(CheckWorkersRun(fused, ViewOf({"new", "new"})), IsOk());
  EXPECT_THAT(CheckWorkersRun(plain, ViewOf({"new", "other"})), IsOk());
  const Plan parts = plan_with(true, /*gathers_rhs=*/true);
  ASSERT_TRUE(OverlapsParts(parts));
  EXPECT_THAT(CheckWorkersRun(fused, ViewOf({"new", "rows"})), IsOk());
  EXPECT_THAT(CheckWorkersRun(parts, ViewOf({"new", "new"})), IsOk());
  EXPECT_EQ(ReasonOf(CheckWorkersRun(parts, ViewOf({"new", "rows"}))), Reason::kNotAvailable);
  const absl::Status refused = CheckWorkersRun(fused, ViewOf({"new", "other"}));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), Reason::kNotAvailable);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("worker \"other\" (rank 1)"), HasSubstr("compile")));
}

}  // namespace
}  // namespace shardmesh::server
