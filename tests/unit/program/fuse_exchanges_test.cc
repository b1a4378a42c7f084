// Plans in which an exchange and a product are one instruction.
#include "program/fuse/fuse_exchanges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "program/kernel_time.h"
#include "program/memory_plan.h"
#include "program/plan_check.h"
#include "program/plan_forecast.h"
#include "program/product_layout.h"
#include "program/value_layout.h"
#include "status/reason.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A target on which an exchange and a product of some rows take about as long as each other.
PlanTarget Overlapping(std::string_view mesh, bool may_overlap = true,
                       bool may_overlap_parts = false) {
  PlanTarget target = Target(mesh);
  target.links.seconds_per_byte = 1e-3;
  target.kernels.flops_per_second = 2e4;
  target.kernels.may_overlap = may_overlap;
  target.kernels.may_overlap_parts = may_overlap_parts;
  return target;
}

const Program kMatmul = {.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};

// A product whose left operand is partitioned by rows, and whose right operand by columns.
std::vector<ValueDescriptor> GatheredOperands(int64_t m = 16) {
  return {Value({m, 8}, Spec({{"tp"}, {}})), Value({8, 64}, Spec({{}, {"tp"}}))};
}

Plan GatherPlan(bool may_overlap = true) {
  return *PlanProgram(kMatmul, GatheredOperands(), Overlapping("tp=4", may_overlap));
}

// A product that contracts a partitioned dimension, and whose result is partitioned by rows.
Plan ScatterPlan(bool may_overlap = true) {
  return *PlanProgram(Program{.operand_count = 2,
                              .ops = {MatmulOp{.lhs = 0, .rhs = 1},
                                      ReshardOp{.input = 2, .spec = Spec({{"tp"}, {}})}},
                              .outputs = {3}},
                      {Value({16, 64}, Spec({{}, {"tp"}})), Value({64, 16}, Spec({{"tp"}, {}}))},
                      Overlapping("tp=4", may_overlap));
}

template <typename Kind>
int64_t CountOf(const Plan& plan) {
  return std::count_if(plan.instructions.begin(), plan.instructions.end(),
                       [](const Instruction& instruction) {
                         return std::holds_alternative<Kind>(instruction.kind);
                       });
}

double SecondsOf(const Plan& plan, const PlanTarget& target) {
  const PlanForecast forecast = ForecastOf(plan, target.links, target.kernels);
  return forecast.kernel_seconds + forecast.exchange_seconds;
}

TEST(FuseExchangesTest, AGatherAndItsProductAreOneInstruction) {
  const Plan plain = GatherPlan(/*may_overlap=*/false);
  ASSERT_EQ(plain.instructions.size(), 2U);
  ASSERT_EQ(CountOf<GroupCollective>(plain), 1);
  EXPECT_FALSE(OverlapsExchanges(plain));
  const Plan fused = GatherPlan();
  ASSERT_EQ(fused.instructions.size(), 1U);
  EXPECT_TRUE(OverlapsExchanges(fused));
  EXPECT_EQ(fused.values.size(), 3U);
  EXPECT_EQ(fused.outputs, std::vector<ValueIndex>{2});
  EXPECT_TRUE(CheckPlan(fused).ok()) << CheckPlan(fused);
  const Instruction& instruction = fused.instructions.front();
  const auto& kind = std::get<GatherMatmul>(instruction.kind);
  EXPECT_EQ(kind.gathered, plain.values[2]);
  EXPECT_EQ(InputsOf(instruction), (std::vector<ValueIndex>{0, 1}));
  EXPECT_EQ(instruction.label,
            "op 0 (matmul): all-gather of dimension 0 over tp, multiplied as it arrives");
}

TEST(FuseExchangesTest, AProductAndItsScatterAreOneInstruction) {
  const Plan plain = ScatterPlan(/*may_overlap=*/false);
  ASSERT_EQ(plain.instructions.size(), 2U);
  const Plan fused = ScatterPlan();
  ASSERT_EQ(fused.instructions.size(), 1U);
  EXPECT_TRUE(OverlapsExchanges(fused));
  EXPECT_TRUE(CheckPlan(fused).ok()) << CheckPlan(fused);
  const auto& kind = std::get<MatmulScatter>(fused.instructions.front().kind);
  EXPECT_EQ(kind.product, plain.values[2]);
  EXPECT_THAT(fused.instructions.front().label,
              AllOf(HasSubstr("reduce-scatter of dimension 0 over tp"),
                    HasSubstr(", sent as it is multiplied")));
}

TEST(FuseExchangesTest, ThePlainFormIsThePlanWithoutFusion) {
  for (const auto& plan_of : {GatherPlan, ScatterPlan}) {
    const Plan plain = plan_of(false);
    const Plan fused = plan_of(true);
    const auto pair = PlainFormOf(fused, fused.instructions.front());
    ASSERT_TRUE(pair.has_value());
    EXPECT_EQ(pair->values, plain.values);
    EXPECT_EQ(pair->outputs, plain.outputs);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(pair->instructions[i].kind, plain.instructions[i].kind);
      EXPECT_EQ(pair->instructions[i].output, plain.instructions[i].output);
      EXPECT_FALSE(PlainFormOf(plain, plain.instructions[i]).has_value());
    }
    EXPECT_TRUE(CheckFusible(*pair).ok());
  }
}

TEST(FuseExchangesTest, TheForecastHasTheSameBytesInLessTime) {
  const PlanTarget target = Overlapping("tp=4");
  for (const auto& plan_of : {GatherPlan, ScatterPlan}) {
    const Plan plain = plan_of(false);
    const Plan fused = plan_of(true);
    const PlanForecast before = ForecastOf(plain, target.links, target.kernels);
    const PlanForecast after = ForecastOf(fused, target.links, target.kernels);
    EXPECT_EQ(after.link_traffic, before.link_traffic);
    EXPECT_EQ(LinkPairsOf(fused), LinkPairsOf(plain));
    ASSERT_EQ(after.traffic.size(), 1U);
    EXPECT_EQ(after.traffic[0].collectives, 1);
    EXPECT_EQ(after.traffic[0].sent_bytes, before.traffic[0].sent_bytes);
    EXPECT_EQ(after.traffic[0].seconds, after.exchange_seconds);
    EXPECT_EQ(fused.cost.sent_bytes, plain.cost.sent_bytes);
    EXPECT_EQ(fused.cost.flops, plain.cost.flops);
    const double longer = std::max(before.kernel_seconds, before.exchange_seconds);
    EXPECT_LT(SecondsOf(fused, target), SecondsOf(plain, target) - kLeastSavedSeconds);
    EXPECT_GT(SecondsOf(fused, target), longer);
    EXPECT_GT(after.exchange_seconds, 0);
  }
}

TEST(FuseExchangesTest, CandidatesArePricedWithTheTimeThatOverlapSaves) {
  const PlanTarget target = Overlapping("tp=4");
  const std::vector<PlanCandidate> plain =
      *PlanCandidates(kMatmul, GatheredOperands(), Overlapping("tp=4", false), 9);
  const std::vector<PlanCandidate> candidates =
      *PlanCandidates(kMatmul, GatheredOperands(), target, 9);
  ASSERT_EQ(candidates.size(), plain.size());
  EXPECT_LT(candidates.front().seconds, plain.front().seconds - kLeastSavedSeconds);
  EXPECT_EQ(candidates.front().plan, GatherPlan());
  int fused = 0;
  for (const PlanCandidate& candidate : candidates) {
    EXPECT_NEAR(candidate.seconds, SecondsOf(candidate.plan, target), 1e-9) << candidate.roles;
    fused += OverlapsExchanges(candidate.plan) ? 1 : 0;
  }
  EXPECT_GE(fused, 1);
}

TEST(FuseExchangesTest, ThePartsOfAFusedInstructionTakeMemory) {
  const Plan gather = GatherPlan();
  // The result, and the gathered rows, which are fewer than those that are multiplied at once.
  EXPECT_EQ(gather.cost.memory_bytes, 16 * 16 * 4 + 16 * 8 * 4);
  EXPECT_EQ(LeastBytesOf(gather), 16 * 16 * 4);
  const Plan scatter = ScatterPlan();
  EXPECT_EQ(scatter.cost.memory_bytes, 4 * 16 * 4 + 16 * 16 * 4);
  EXPECT_EQ(RowsAtOnce(4), (1 << 20) / 4);
  EXPECT_EQ(RowsAtOnce(1 << 20), 256);
}

TEST(FuseExchangesTest, NothingIsFusedThatSavesLittle) {
  PlanTarget fast_links = Overlapping("tp=4");
  fast_links.links.seconds_per_byte = 1e-9;
  EXPECT_FALSE(OverlapsExchanges(*PlanProgram(kMatmul, GatheredOperands(), fast_links)))
      << "the exchange takes no time beside the product";
  PlanTarget short_ones = Overlapping("tp=4");
  short_ones.links.seconds_per_byte = 1e-8;
  short_ones.kernels.flops_per_second = 2e9;
  EXPECT_FALSE(OverlapsExchanges(*PlanProgram(kMatmul, GatheredOperands(), short_ones)))
      << "both take some microseconds";
}

TEST(FuseExchangesTest, OnlyPairwiseExchangesAreFused) {
  PlanTarget ring = Overlapping("tp=4");
  ring.preferred = {{CollectiveKind::kAllGather, CollectiveAlgorithm::kRing}};
  EXPECT_FALSE(OverlapsExchanges(*PlanProgram(kMatmul, GatheredOperands(), ring)));
}

TEST(FuseExchangesTest, OnlyRowsThatFollowOneAnotherAreFused) {
  const auto is_fused = [](const MatmulOp& op, const ValueDescriptor& lhs,
                           const ValueDescriptor& rhs) {
    const Plan plan = *PlanProgram(Program{.operand_count = 2, .ops = {op}, .outputs = {2}},
                                   {lhs, rhs}, Overlapping("tp=4"));
    EXPECT_GE(CountOf<GroupCollective>(plan) + CountOf<GatherMatmul>(plan), 1);
    return OverlapsExchanges(plan);
  };
  const ValueDescriptor rhs = Value({8, 64}, Spec({{}, {"tp"}}));
  EXPECT_TRUE(is_fused({.lhs = 0, .rhs = 1}, Value({16, 8}, Spec({{"tp"}, {}})), rhs));
  EXPECT_TRUE(is_fused({.lhs = 0, .rhs = 1, .transpose_rhs = true},
                       Value({16, 8}, Spec({{"tp"}, {}})), Value({64, 8}, Spec({{"tp"}, {}}))));
  EXPECT_TRUE(is_fused({.lhs = 0, .rhs = 1}, Value({4, 4, 8}, Spec({{"tp"}, {}, {}})), rhs));
  EXPECT_TRUE(is_fused({.lhs = 0, .rhs = 1}, Value({1, 16, 8}, Spec({{}, {"tp"}, {}})), rhs));
  EXPECT_FALSE(is_fused({.lhs = 0, .rhs = 1}, Value({2, 8, 8}, Spec({{}, {"tp"}, {}})), rhs));
  EXPECT_FALSE(is_fused({.lhs = 0, .rhs = 1, .transpose_lhs = true},
                        Value({8, 16}, Spec({{}, {"tp"}})), rhs));
}

// A product, and the all-gather of an operand before it or the reduce-scatter behind it.
struct PartsCase {
  std::string_view what;
  Shape lhs, rhs;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  ProductSide side = ProductSide::kLhs;  // the tensor that is gathered or scattered
  int64_t dimension = 0;                 // of this tensor
};

const PartsCase kCasesOfParts[] = {
    {"columns", {16, 8}, {8, 64}, false, false, ProductSide::kRhs, 1},
    {"columns of a transposed operand", {16, 8}, {64, 8}, false, true, ProductSide::kRhs, 0},
    {"columns for a vector", {8}, {8, 64}, false, false, ProductSide::kRhs, 1},
    {"columns of batches", {2, 4, 8}, {2, 8, 64}, false, false, ProductSide::kRhs, 2},
    {"rows of a transposed operand", {8, 16}, {8, 64}, true, false, ProductSide::kLhs, 1},
    {"rows behind a batch", {2, 8, 8}, {8, 64}, false, false, ProductSide::kLhs, 1},
    {"rows of batches", {2, 16, 8}, {2, 8, 16}, false, false, ProductSide::kLhs, 1},
    {"a batch of both", {8, 4, 8}, {8, 8, 16}, false, false, ProductSide::kLhs, 0},
    {"a batch of the right operand", {4, 8}, {8, 8, 16}, false, false, ProductSide::kRhs, 0},
    {"columns of the result", {20, 16}, {16, 64}, false, false, ProductSide::kOut, 1},
    {"columns of the result, of a transposed operand",
     {20, 16},
     {64, 16},
     false,
     true,
     ProductSide::kOut,
     1},
    {"rows of batches of the result", {2, 8, 16}, {2, 16, 16}, false, false, ProductSide::kOut, 1},
    {"a batch of the result", {8, 4, 16}, {8, 16, 16}, false, false, ProductSide::kOut, 0},
};

PartitionSpec WholeSpec(size_t rank, std::vector<std::string> unreduced = {}) {
  return Spec(std::vector<std::vector<std::string>>(rank), std::move(unreduced));
}

// Returns a spec that partitions one dimension over tp.
PartitionSpec PartitionedAt(size_t rank, size_t dimension) {
  std::vector<std::vector<std::string>> dims(rank);
  dims[dimension] = {"tp"};
  return Spec(std::move(dims));
}

// Returns the plan of the two instructions.
Plan PlainPlanOf(const PartsCase& c) {
  const ProductDims dims = *ProductDimsOf(c.lhs, c.transpose_lhs, c.rhs, c.transpose_rhs);
  const Shape out = OutputShapeOf(dims);
  const auto dimension = static_cast<size_t>(c.dimension);
  const bool is_scatter = c.side == ProductSide::kOut;
  const auto whole = [](const Shape& shape) { return Value(shape, WholeSpec(shape.size())); };
  Plan plan;
  plan.mesh_id = "m";
  plan.mesh_revision = 1;
  plan.mesh = *Mesh::Parse("tp=4");
  plan.operand_count = 2;
  plan.values = {whole(c.lhs), whole(c.rhs)};
  GroupCollective exchange = {
      .kind = is_scatter ? CollectiveKind::kReduceScatter : CollectiveKind::kAllGather,
      .axes = {"tp"},
      .dimension = c.dimension,
      .algorithm = CollectiveAlgorithm::kPairwise};
  LocalMatmul matmul = {
      .lhs = 0, .rhs = 1, .transpose_lhs = c.transpose_lhs, .transpose_rhs = c.transpose_rhs};
  if (is_scatter) {
    plan.values[0].spec = PartitionedAt(c.lhs.size(), *dims.back().lhs);
    plan.values[1].spec = PartitionedAt(c.rhs.size(), *dims.back().rhs);
    plan.values.push_back(Value(out, WholeSpec(out.size(), {"tp"})));
    plan.values.push_back(Value(out, PartitionedAt(out.size(), dimension)));
    exchange.input = 2;
    plan.instructions = {{.output = 2, .kind = matmul, .label = "multiply"},
                         {.output = 3, .kind = exchange, .label = "reduce-scatter"}};
  } else {
    const ValueIndex gathered = c.side == ProductSide::kRhs ? 1 : 0;
    plan.values.push_back(plan.values[gathered]);
    plan.values.push_back(whole(out));
    plan.values[gathered].spec = PartitionedAt(plan.values[gathered].shape.size(), dimension);
    exchange.input = gathered;
    (gathered == 1 ? matmul.rhs : matmul.lhs) = 2;
    plan.instructions = {{.output = 2, .kind = exchange, .label = "all-gather"},
                         {.output = 3, .kind = matmul, .label = "multiply"}};
  }
  plan.outputs = {3};
  return plan;
}

Plan Fused(const Plan& plan, bool may_overlap_parts = true) {
  const PlanTarget target = Overlapping("tp=4", /*may_overlap=*/true, may_overlap_parts);
  return FuseExchanges(plan, target.links, target.kernels);
}

TEST(FuseExchangesTest, PartsOfAllDimensionsOfTheResultAreFusedWhereTheWorkersRunThem) {
  const PlanTarget target = Overlapping("tp=4", true, true);
  for (const PartsCase& c : kCasesOfParts) {
    SCOPED_TRACE(c.what);
    const Plan plain = PlainPlanOf(c);
    ASSERT_TRUE(CheckPlan(plain).ok()) << CheckPlan(plain);
    EXPECT_FALSE(OverlapsParts(plain));
    EXPECT_EQ(Fused(plain, /*may_overlap_parts=*/false), plain) << "older workers cannot run it";
    const Plan fused = Fused(plain);
    ASSERT_EQ(fused.instructions.size(), 1U);
    EXPECT_TRUE(OverlapsExchanges(fused));
    EXPECT_TRUE(OverlapsParts(fused));
    EXPECT_TRUE(CheckPlan(fused).ok()) << CheckPlan(fused);
    const Plan pair = *PlainFormOf(fused, fused.instructions.front());
    EXPECT_EQ(pair.values, plain.values);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(pair.instructions[i].kind, plain.instructions[i].kind);
    }
    EXPECT_LT(SecondsOf(fused, target), SecondsOf(plain, target) - kLeastSavedSeconds);
    EXPECT_EQ(ForecastOf(fused, target.links, target.kernels).link_traffic,
              ForecastOf(plain, target.links, target.kernels).link_traffic);
    EXPECT_GT(FusedCopiesBytes(fused, fused.instructions.front()), 0);
    Simulation simulation(fused);
    const Dense lhs = Numbered(c.lhs, 1);
    const Dense rhs = Numbered(c.rhs, 2);
    simulation.SetOperand(0, lhs);
    simulation.SetOperand(1, rhs);
    simulation.Run();
    simulation.ExpectOutput(fused.outputs.front(), Multiply(lhs, rhs, nullptr, c.transpose_lhs,
                                                            c.transpose_rhs, 1, Activation::kNone));
  }
}

TEST(FuseExchangesTest, FusedRowsNeedNothingMore) {
  const Plan plain = PlainPlanOf({"rows", {16, 8}, {8, 64}, false, false, ProductSide::kLhs, 0});
  const Plan fused = Fused(plain, /*may_overlap_parts=*/false);
  EXPECT_TRUE(OverlapsExchanges(fused));
  EXPECT_FALSE(OverlapsParts(fused));
  EXPECT_EQ(Fused(plain), fused);
}

TEST(FuseExchangesTest, PartsOfTheContractedDimensionStayApart) {
  for (const PartsCase& c :
       {PartsCase{"left", {16, 8}, {8, 64}, false, false, ProductSide::kLhs, 1},
        PartsCase{"right", {16, 8}, {8, 64}, false, false, ProductSide::kRhs, 0},
        PartsCase{"transposed", {8, 16}, {64, 8}, true, true, ProductSide::kLhs, 0}}) {
    const Plan plain = PlainPlanOf(c);
    ASSERT_TRUE(CheckPlan(plain).ok()) << CheckPlan(plain);
    EXPECT_EQ(Fused(plain), plain) << c.what;
    EXPECT_FALSE(CheckFusible(plain).ok());
  }
}

// oneDNN chooses the order of sums by the sizes of these products.
TEST(FuseExchangesTest, ProductsBeyondTheSizesThatKeepTheirBitsStayApart) {
  const auto is_fusible = [](const PartsCase& c) { return CheckFusible(PlainPlanOf(c)).ok(); };
  const auto columns = [](int64_t k) {
    return PartsCase{"columns", {16, k}, {k, 1 << 16}, false, false, ProductSide::kRhs, 1};
  };
  EXPECT_TRUE(is_fusible(columns(1024)));
  EXPECT_FALSE(is_fusible(columns(1025))) << "the right matrix is several panels";
  const auto transposed = [](int64_t k, int64_t m, int64_t n) {
    return PartsCase{"rows", {k, m}, {k, n}, true, false, ProductSide::kLhs, 1};
  };
  EXPECT_TRUE(is_fusible(transposed(2047, 64, 64)));
  EXPECT_FALSE(is_fusible(transposed(2048, 64, 64)));
  EXPECT_TRUE(is_fusible(transposed(1024, 2048, 2048)));
  EXPECT_FALSE(is_fusible(transposed(1024, 2048, 2052)));
  EXPECT_FALSE(is_fusible(transposed(1, 1 << 16, 1 << 12)));
  // A batch leaves the matrices whole.
  EXPECT_TRUE(is_fusible({"batch", {4, 2048, 64}, {2048, 64}, true, false, ProductSide::kLhs, 0}));
  EXPECT_FALSE(
      is_fusible({"many", {1 << 17, 1, 1}, {1 << 17, 1, 1}, false, false, ProductSide::kLhs, 0}));
  // Matrices behind the dimension that is gathered, here in parts of which all but one are empty.
  Plan many =
      PlainPlanOf({"many", {1, 1 << 17, 1, 1}, {1, 1, 1, 1}, false, false, ProductSide::kRhs, 0});
  many.values[1].cut_points = {{0, 1, 1, 1, 1}, {}, {}, {}};
  EXPECT_TRUE(CheckPlan(many).ok()) << CheckPlan(many);
  EXPECT_FALSE(CheckFusible(many).ok());
}

// The plain form may multiply few rows by packed weights, which the columns of a part cannot be.
TEST(FuseExchangesTest, ScatteredColumnsNeedEnoughRowsInEachProductOfEachDevice) {
  const auto is_fusible = [](Shape lhs, bool transpose_lhs) {
    return CheckFusible(PlainPlanOf({"columns of the result",
                                     std::move(lhs),
                                     {16, 64},
                                     transpose_lhs,
                                     false,
                                     ProductSide::kOut,
                                     transpose_lhs ? 2 : 1}))
        .ok();
  };
  EXPECT_TRUE(is_fusible({17, 16}, false));
  EXPECT_FALSE(is_fusible({16, 16}, false));
  EXPECT_TRUE(is_fusible({4, 16, 17}, true));
  EXPECT_FALSE(is_fusible({4, 16, 16}, true)) << "each matrix is multiplied on its own";

  Plan uneven =
      PlainPlanOf({"rows that are apart", {40, 16}, {16, 64}, false, false, ProductSide::kOut, 1});
  uneven.mesh = *Mesh::Parse("dp=2,tp=4");
  const auto cut_rows = [&uneven](int64_t first_rows) {
    for (const ValueIndex value : {0, 2, 3}) {
      ValueDescriptor& each = uneven.values[value];
      each.spec = value == 0   ? Spec({{"dp"}, {"tp"}})
                  : value == 2 ? Spec({{"dp"}, {}}, {"tp"})
                               : Spec({{"dp"}, {"tp"}});
      each.cut_points = {{0, first_rows, 40}, {}};
    }
    const absl::Status checked = CheckPlan(uneven);
    EXPECT_TRUE(checked.ok()) << checked;
    return CheckFusible(uneven).ok();
  };
  EXPECT_TRUE(cut_rows(17));
  EXPECT_FALSE(cut_rows(24)) << "one device has 16 rows";
  EXPECT_TRUE(cut_rows(40)) << "a device without rows multiplies nothing";
}

TEST(FuseExchangesTest, AValueThatIsReadTwiceOrIsAResultIsNotFused) {
  const CollectiveOp gather = {
      .input = 0, .kind = CollectiveKind::kAllGather, .axes = {"tp"}, .dimension = 0};
  const auto plan_of = [&](std::vector<ProgramOp> ops, std::vector<ValueIndex> outputs) {
    return *PlanProgram(
        Program{.operand_count = 2, .ops = std::move(ops), .outputs = std::move(outputs)},
        GatheredOperands(), Overlapping("tp=4"));
  };
  const MatmulOp matmul = {.lhs = 2, .rhs = 1};
  EXPECT_TRUE(OverlapsExchanges(plan_of({gather, matmul}, {3})));
  EXPECT_FALSE(OverlapsExchanges(plan_of({gather, matmul}, {2, 3})));
  EXPECT_FALSE(OverlapsExchanges(plan_of({gather, matmul, matmul}, {3, 4})));
}

TEST(FuseExchangesTest, LaterValuesGetLowerNumbers) {
  // Two layers: the second one multiplies the result of the first.
  const Program program = {
      .operand_count = 4,
      .ops = {LinearOp{.input = 0,
                       .weight = 1,
                       .bias = 3,
                       .weight_layout = WeightLayout::kInOut,
                       .activation = Activation::kRelu},
              LinearOp{.input = 4, .weight = 2, .weight_layout = WeightLayout::kInOut},
              ReshardOp{.input = 5, .spec = Spec({{"tp"}, {}})}},
      .outputs = {6}};
  const std::vector<ValueDescriptor> operands = {
      Value({16, 8}, Spec({{"tp"}, {}})), Value({8, 64}, Spec({{}, {"tp"}})),
      Value({64, 16}, Spec({{"tp"}, {}})), Value({64}, Spec({{"tp"}}))};
  const Plan plain = *PlanProgram(program, operands, Overlapping("tp=4", false));
  const Plan fused = *PlanProgram(program, operands, Overlapping("tp=4"));
  ASSERT_EQ(CountOf<GatherMatmul>(fused), 1);
  ASSERT_EQ(CountOf<MatmulScatter>(fused), 1);
  EXPECT_EQ(fused.instructions.size() + 2, plain.instructions.size());
  EXPECT_TRUE(CheckPlan(fused).ok()) << CheckPlan(fused);
  std::vector<Dense> tensors;
  for (size_t i = 0; i < operands.size(); ++i) {
    tensors.push_back(Numbered(operands[i].shape, static_cast<int>(i)));
  }
  const Dense hidden =
      Multiply(tensors[0], tensors[1], &tensors[3], false, false, 1, Activation::kRelu);
  const Dense expected = Multiply(hidden, tensors[2], nullptr, false, false, 1, Activation::kNone);
  Simulation simulation(fused);
  for (ValueIndex i = 0; i < operands.size(); ++i) simulation.SetOperand(i, tensors[i]);
  simulation.Run();
  simulation.ExpectOutput(fused.outputs.front(), expected);
}

TEST(FuseExchangesTest, RandomPlansComputeTheSame) {
  std::mt19937 random(7);
  int64_t gathers = 0;
  int64_t scatters = 0;
  int64_t parts = 0;
  for (int round = 0; round < 600; ++round) {
    const Mesh mesh = *Mesh::Parse(round % 2 == 0 ? "tp=2,dp=2" : "tp=3");
    const auto extent = [&] { return 1 + static_cast<int64_t>(random() % 9); };
    const int64_t m = extent();
    const int64_t k = extent();
    const int64_t n = extent();
    const Shape lhs_shape = round % 3 == 0 ? Shape{2, m, k} : Shape{m, k};
    Shape out_shape = lhs_shape;
    out_shape.back() = n;
    const Shape rhs_shape = round % 6 == 0 ? Shape{2, k, n} : Shape{k, n};
    const std::vector<ValueDescriptor> operands = {
        RandomValueWithEmptyParts(mesh, lhs_shape, random),
        RandomValueWithEmptyParts(mesh, rhs_shape, random)};
    const ValueDescriptor wanted = RandomValueWithEmptyParts(mesh, out_shape, random);
    std::vector<std::vector<int64_t>> part_starts;
    for (const CutPoints& points : wanted.cut_points) {
      part_starts.emplace_back();
      if (!points.empty()) part_starts.back() = {points.begin() + 1, points.end() - 1};
    }
    const Program program = {
        .operand_count = 2,
        .ops = {MatmulOp{.lhs = 0, .rhs = 1},
                ReshardOp{.input = 2, .spec = wanted.spec, .part_starts = part_starts}},
        .outputs = {3}};
    PlanTarget target = Overlapping("tp=2", /*may_overlap=*/true, /*may_overlap_parts=*/true);
    target.mesh = mesh;
    const auto plan = PlanProgram(program, operands, target);
    if (!plan.ok()) continue;  // such as a layout that does not divide
    SCOPED_TRACE(StrCat("round ", round));
    ASSERT_TRUE(CheckPlan(*plan).ok()) << CheckPlan(*plan);
    gathers += CountOf<GatherMatmul>(*plan);
    scatters += CountOf<MatmulScatter>(*plan);
    parts += OverlapsParts(*plan) ? 1 : 0;
    Simulation simulation(*plan);
    const Dense lhs = Numbered(lhs_shape, round);
    const Dense rhs = Numbered(rhs_shape, round + 1);
    simulation.SetOperand(0, lhs);
    simulation.SetOperand(1, rhs);
    simulation.Run();
    simulation.ExpectOutput(plan->outputs.front(),
                            Multiply(lhs, rhs, nullptr, false, false, 1, Activation::kNone));
    EXPECT_EQ(plan->cost.memory_bytes, PeakBytesOf(*plan));
  }
  EXPECT_GT(gathers, 10);
  EXPECT_GT(scatters, 10);
  EXPECT_GT(parts, 10);
}

TEST(FuseExchangesTest, FusedInstructionsThatWereTamperedWithAreRefused) {
  const Plan gather = GatherPlan();
  const std::function<void(GatherMatmul*)> gather_tampers[] = {
      [](GatherMatmul* fused) { fused->gather.algorithm = CollectiveAlgorithm::kRing; },
      [](GatherMatmul* fused) { fused->gather.kind = CollectiveKind::kAllToAll; },
      [](GatherMatmul* fused) { fused->gather.kind = CollectiveKind::kReduceScatter; },
      [](GatherMatmul* fused) { fused->gather.dimension = 1; },
      [](GatherMatmul* fused) { fused->gather.dimension = -1; },
      [](GatherMatmul* fused) { fused->gather.axes = {"dp"}; },
      [](GatherMatmul* fused) { fused->gather.input = 1; },
      [](GatherMatmul* fused) { fused->gathers_rhs = true; },
      [](GatherMatmul* fused) { fused->matmul.lhs = 1; },
      [](GatherMatmul* fused) { fused->matmul.rhs = 0; },
      [](GatherMatmul* fused) { fused->matmul.transpose_lhs = true; },
      [](GatherMatmul* fused) { fused->matmul.bias = 0; },
      [](GatherMatmul* fused) { fused->gathered.dtype = Dtype::kBF16; },
      [](GatherMatmul* fused) {
        fused->gathered.shape = {8, 8};
      },
      [](GatherMatmul* fused) {
        fused->gathered.spec = Spec({{"tp"}, {}});
      },
      [](GatherMatmul* fused) {
        fused->gathered.spec = Spec({{"pp"}, {}});
      },
      [](GatherMatmul* fused) { fused->matmul.rhs = 17; },
  };
  for (const auto& tamper : gather_tampers) {
    Plan plan = gather;
    tamper(&std::get<GatherMatmul>(plan.instructions[0].kind));
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument)
        << "case " << (&tamper - gather_tampers);
  }
  const Plan scatter = ScatterPlan();
  const std::function<void(MatmulScatter*)> scatter_tampers[] = {
      [](MatmulScatter* fused) { fused->scatter.algorithm = CollectiveAlgorithm::kRing; },
      [](MatmulScatter* fused) { fused->scatter.kind = CollectiveKind::kScatter; },
      [](MatmulScatter* fused) { fused->scatter.reduction = Reduction::kMean; },
      [](MatmulScatter* fused) { fused->scatter.dimension = 1; },
      [](MatmulScatter* fused) { fused->scatter.input = 1; },
      [](MatmulScatter* fused) { fused->matmul.activation = Activation::kRelu; },
      [](MatmulScatter* fused) {
        fused->product.shape = {16, 8};
      },
      [](MatmulScatter* fused) {
        fused->product.spec = Spec({{"tp"}, {}});
      },
  };
  for (const auto& tamper : scatter_tampers) {
    Plan plan = scatter;
    tamper(&std::get<MatmulScatter>(plan.instructions[0].kind));
    EXPECT_EQ(CheckPlan(plan).code(), absl::StatusCode::kInvalidArgument)
        << "case " << (&tamper - scatter_tampers);
  }
}

}  // namespace
}  // namespace shardmesh
