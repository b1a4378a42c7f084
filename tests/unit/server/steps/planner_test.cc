// Planner: which plans are found again, and what links change about them.
#include "server/steps/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "program/graph/symbolic_program.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

Program AllReduce() {
  return {.operand_count = 1,
          .ops = {CollectiveOp{.input = 0, .kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
          .outputs = {1}};
}

// Of F32 elements that lie over x.
class PlannerTest : public testing::Test {
 protected:
  std::shared_ptr<const PreparedPlan> Prepare(const LinkCost& links, int64_t elements = 1 << 18,
                                              std::string_view caller = "ada") {
    const ValueDescriptor operand{
        .dtype = Dtype::kF32, .shape = {elements}, .spec = PartitionSpec({SpecEntry::Axes({"x"})})};
    auto prepared = planner_.Prepare(
        caller, AllReduce(), {&operand, 1},
        {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4"), .links = links});
    EXPECT_THAT(prepared, test::IsOk());
    return prepared.ok() ? *prepared : nullptr;
  }
  static CollectiveAlgorithm AlgorithmOf(const PreparedPlan& prepared) {
    return std::get<GroupCollective>(prepared.plan.instructions.at(0).kind).algorithm;
  }

  Planner planner_;
};

TEST_F(PlannerTest, TheAlgorithmFollowsTheLinks) {
  EXPECT_EQ(AlgorithmOf(*Prepare({})), CollectiveAlgorithm::kPairwise);
  EXPECT_EQ(AlgorithmOf(*Prepare({.latency_seconds = 50e-3})), CollectiveAlgorithm::kDirect);
  EXPECT_EQ(AlgorithmOf(*Prepare({})), CollectiveAlgorithm::kPairwise);
}

TEST_F(PlannerTest, FiguresThatDifferALittleFindTheSamePlan) {
  const auto first = Prepare({});
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.7, 1.4);
  for (int i = 0; i < 100; ++i) {
    LinkCost links;
    links.latency_seconds *= noise(random);
    links.seconds_per_byte *= noise(random);
    EXPECT_EQ(Prepare(links), first);
  }
}

TEST_F(PlannerTest, FiguresThatDifferMuchGetAPlanOfTheirOwnAndTheOldOneIsStillFound) {
  const auto first = Prepare({});
  const auto second = Prepare({.latency_seconds = 50e-3});
  EXPECT_NE(first->hash, second->hash);
  EXPECT_EQ(Prepare({}), first);
  EXPECT_EQ(Prepare({.latency_seconds = 55e-3}), second);
  EXPECT_THAT(planner_.Find(first->hash), test::IsOk());
  EXPECT_THAT(planner_.Find(second->hash), test::IsOk());
}

TEST_F(PlannerTest, ProductsArePlannedAnewForKernelsOfAnotherSpeed) {
  const Program program = {
      .operand_count = 2,
      .ops = {MatmulOp{.lhs = 0, .rhs = 1}, ReshardOp{.input = 2, .spec = PartitionSpec()}},
      .outputs = {3}};
  const ValueDescriptor square = {.shape = {512, 512}, .spec = PartitionSpec()};
  const std::vector<ValueDescriptor> operands = {square, square};
  const auto prepare = [&](double flops_per_second) {
    PlanTarget target = {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")};
    target.kernels.flops_per_second = flops_per_second;
    return *planner_.Prepare("ada", program, operands, target);
  };
  const auto slow = prepare(1e9);
  EXPECT_EQ(prepare(1.2e9), slow);
  const auto fast = prepare(1e13);
  EXPECT_NE(fast, slow);
  EXPECT_GT(slow->plan.cost.sent_bytes, 0) << "each device computes a part";
  EXPECT_EQ(fast->plan.cost.sent_bytes, 0) << "each device computes everything";
}

TEST_F(PlannerTest, APlanKeepsTheFiguresThatItWasMadeWith) {
  const LinkCost defaults;
  const auto first = Prepare({.latency_seconds = 1.3 * defaults.latency_seconds});
  EXPECT_EQ(Prepare(defaults), first);
  EXPECT_EQ(first->links.latency_seconds, 1.3 * defaults.latency_seconds);
  const auto measured = Prepare({.is_measured = true});
  EXPECT_NE(measured, first) << "its times are not those of measured links";
  EXPECT_TRUE(measured->links.is_measured);
}

TEST_F(PlannerTest, AHashFindsThePlanWithTheFiguresOfTheLastProgram) {
  const auto assumed = Prepare({});
  EXPECT_THAT(planner_.Find(assumed->hash), test::IsOkAndHolds(assumed));
  const auto measured = Prepare({.is_measured = true});
  ASSERT_EQ(measured->hash, assumed->hash);
  ASSERT_NE(measured, assumed);
  EXPECT_THAT(planner_.Find(assumed->hash), test::IsOkAndHolds(measured));
  EXPECT_THAT(planner_.Find(assumed->hash), test::IsOkAndHolds(measured));
  EXPECT_EQ(Prepare({}), assumed);
  EXPECT_THAT(planner_.Find(assumed->hash), test::IsOkAndHolds(assumed));
}

// The sum of a vector of 8 to 64 elements and its reverse of two halves.
Program OfAnyLength() {
  const SymbolicNumber half = {.index = 0};
  const SymbolicNumber all = {.index = 0, .factor = 2};
  return {.operand_count = 1,
          .ops = {TensorOp(
                      SliceOp{.input = 0, .starts = {0}, .limits = {0}, .symbolic_limits = {half}}),
                  TensorOp(SliceOp{.input = 0,
                                   .starts = {0},
                                   .limits = {0},
                                   .symbolic_starts = {half},
                                   .symbolic_limits = {all}}),
                  TensorOp(ConcatenateOp{.inputs = {2, 1}, .dimension = 0}),
                  TensorOp(MapOp{.function = MapFunction::kAdd, .inputs = {0, 3}})},
          .outputs = {4},
          .updates = {},
          .symbol = SymbolicDimension{.name = "half", .min = 4, .max = 32},
          .symbolic_extents = {{.operand = 0, .extent = all}}};
}

TEST_F(PlannerTest, EachLengthOfAProgramIsPlannedOnce) {
  const auto prepare = [&](int64_t elements) {
    const ValueDescriptor operand{.dtype = Dtype::kF32, .shape = {elements}, .spec = {}};
    return planner_.Prepare("ada", OfAnyLength(), {&operand, 1},
                            {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")});
  };
  const auto shortest = prepare(8);
  ASSERT_THAT(shortest, test::IsOk());
  const auto longest = prepare(64);
  ASSERT_THAT(longest, test::IsOk());
  EXPECT_NE((*shortest)->hash, (*longest)->hash);
  ASSERT_NE((*shortest)->symbolic, nullptr);
  EXPECT_EQ((*shortest)->symbolic, (*longest)->symbolic);
  EXPECT_EQ((*shortest)->symbolic->program, OfAnyLength());
  EXPECT_THAT(prepare(8), test::IsOkAndHolds(*shortest)) << "it is planned once";
  EXPECT_THAT(prepare(64), test::IsOkAndHolds(*longest));
  EXPECT_EQ(planner_.FindSymbolic((*longest)->symbolic->hash), (*longest)->symbolic);
  EXPECT_EQ(planner_.FindSymbolic((*longest)->hash), nullptr);
  EXPECT_EQ((*longest)->plan.values[(*longest)->plan.outputs[0]].shape, (Shape{64}));
  // It is the plan of the program of that length.
  const ValueDescriptor operand{.dtype = Dtype::kF32, .shape = {64}, .spec = {}};
  const auto plain =
      planner_.Prepare("ada", ProgramAt(OfAnyLength(), 32), {&operand, 1},
                       {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")});
  ASSERT_THAT(plain, test::IsOk());
  EXPECT_EQ((*plain)->hash, (*longest)->hash);
  EXPECT_EQ((*plain)->symbolic, nullptr);
  EXPECT_THAT(prepare(66),
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                             testing::HasSubstr("half is 33")));
  EXPECT_THAT(prepare(9), test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                                         testing::HasSubstr("is 9; it must be 2*half")));
}

TEST_F(PlannerTest, AHashOfAProgramIsFoundWhileOneOfItsPlansIsCached) {
  const auto bytes_of_one = [] {
    Planner planner;
    const ValueDescriptor operand{.dtype = Dtype::kF32, .shape = {8}, .spec = {}};
    EXPECT_THAT(planner.Prepare("ada", OfAnyLength(), {&operand, 1},
                                {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")}),
                test::IsOk());
    return planner.size_bytes();
  }();
  Planner planner({.max_bytes = 4 * bytes_of_one});
  const auto prepare = [&](const Program& program, int64_t elements) {
    const ValueDescriptor operand{.dtype = Dtype::kF32, .shape = {elements}, .spec = {}};
    return *planner.Prepare("ada", program, {&operand, 1},
                            {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")});
  };
  const std::string hash = prepare(OfAnyLength(), 8)->symbolic->hash;
  for (int64_t elements = 10; elements <= 64; elements += 2) {
    prepare(OfAnyLength(), elements);
    EXPECT_NE(planner.FindSymbolic(hash), nullptr);
  }
  for (int64_t half = 4; half <= 32; ++half) prepare(ProgramAt(OfAnyLength(), half), 2 * half);
  EXPECT_EQ(planner.FindSymbolic(hash), nullptr);
}

TEST_F(PlannerTest, MoreProgramsThanEverAreFoundAgainByTheirHashes) {
  std::vector<std::shared_ptr<const PreparedPlan>> plans;
  for (int64_t i = 0; i < 1000; ++i) {
    plans.push_back(Prepare({}, 1024 + 4 * i));
  }
  for (const auto& plan : plans) {
    EXPECT_THAT(planner_.Find(plan->hash), test::IsOkAndHolds(plan));
  }
}

TEST_F(PlannerTest, ACallerWhoPlansWithoutEndDrivesOutOnlyHisOwnPlans) {
  const auto first = Prepare({}, 1024, "bob");
  const int64_t plan_bytes = planner_.size_bytes();
  Planner planner({.max_bytes = 10 * plan_bytes});
  const auto prepare = [&](std::string_view caller, int64_t elements) {
    const ValueDescriptor operand{
        .dtype = Dtype::kF32, .shape = {elements}, .spec = PartitionSpec({SpecEntry::Axes({"x"})})};
    return *planner.Prepare(caller, AllReduce(), {&operand, 1},
                            {.mesh_id = "m", .mesh_revision = 1, .mesh = *Mesh::Parse("x=4")});
  };
  const auto of_bob = prepare("bob", 1024);
  const auto oldest_of_ada = prepare("ada", 2048);
  for (int64_t i = 0; i < 100; ++i) {
    prepare("ada", 4096 + 4 * i);
    EXPECT_LE(planner.size_bytes(), 10 * plan_bytes);
  }
  EXPECT_THAT(planner.Find(of_bob->hash), test::IsOkAndHolds(of_bob));
  EXPECT_THAT(planner.Find(oldest_of_ada->hash),
              test::StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

}  // namespace
}  // namespace shardmesh::server
