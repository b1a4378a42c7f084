// Candidate plans of products. Those of random products run on simulated devices, and are compared
// with the whole tensors.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "program/kernel_time.h"
#include "program/plan_builder.h"
#include "program/plan_check.h"
#include "program/product_layout.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"
#include "tests/unit/program/program_checks.h"
#include "tests/unit/program/random_programs.h"

namespace shardmesh {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kAll = 100'000;

TEST(ProductCandidatesTest, EveryCandidateOfRandomProductsMultiplies) {
  std::mt19937 random(7);
  size_t candidates = 0;
  // The last mesh has too many layouts to price all of them.
  for (const std::string mesh :
       {"a=2", "a=2,b=2", "a=3,b=2", "a=2,b=2,c=2", "a=4,b=1,c=2", "a=2,b=2,c=2,d=2,e=2"}) {
    const int cases = mesh.size() > 15 ? 6 : 40;
    for (int i = 0; i < cases; ++i) {
      const RandomProgram product = RandomProduct(*Mesh::Parse(mesh), random);
      SCOPED_TRACE(StrCat("case ", i, ", ", product.ToString()));
      const PlanTarget target = Target(mesh);
      const auto plans = PlanCandidates(product.program, product.operands, target, kAll);
      ASSERT_TRUE(plans.ok()) << plans.status();
      const auto chosen = PlanProgram(product.program, product.operands, target);
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_EQ(plans->front().plan, *chosen);
      ProgramCheck check(product);
      double fastest = 0;
      for (const PlanCandidate& candidate : *plans) {
        SCOPED_TRACE(candidate.roles);
        EXPECT_GE(candidate.seconds, fastest - 1e-9);
        fastest = candidate.seconds;
        check.ExpectComputes(candidate.plan);
        ExpectForecast(candidate.plan, target);
        ++candidates;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(candidates, 1500U);
}

// Returns the plan of a product of two matrices, whose result is to have the layout `result`.
Plan PlanWithResult(const ValueDescriptor& lhs, const ValueDescriptor& rhs,
                    const PartitionSpec& result, const PlanTarget& target) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2,
              .ops = {MatmulOp{.lhs = 0, .rhs = 1}, ReshardOp{.input = 2, .spec = result}},
              .outputs = {3}},
      {lhs, rhs}, target);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

TEST(ProductCandidatesTest, SumsAreScatteredWhereTheResultIsPartitioned) {
  const ValueDescriptor lhs = Value({64, 64}, Spec({{}, {"tp"}}));
  const ValueDescriptor rhs = Value({64, 64}, Spec({{"tp"}, {}}));
  for (const PartitionSpec& result : {Spec({{"tp"}, {}}), Spec({{}, {"tp"}})}) {
    const Plan plan = PlanWithResult(lhs, rhs, result, Target("tp=4"));
    ASSERT_EQ(plan.instructions.size(), 2U);
    EXPECT_EQ(LabelsOf(plan)[0], "multiply");
    EXPECT_THAT(LabelsOf(plan)[1], HasSubstr("reduce-scatter of dimension"));
    EXPECT_EQ(plan.values[plan.outputs[0]].spec, result);
  }
  EXPECT_THAT(LabelsOf(PlanWithResult(lhs, rhs, PartitionSpec(), Target("tp=4"))),
              ElementsAre("multiply", "all-reduce over tp"));
}

TEST(ProductCandidatesTest, BiasAndActivationFollowTheScatteredSums) {
  const auto plan = PlanProgram(Program{.operand_count = 3,
                                        .ops = {LinearOp{.input = 0,
                                                         .weight = 1,
                                                         .bias = 2,
                                                         .weight_layout = WeightLayout::kInOut,
                                                         .activation = Activation::kRelu},
                                                ReshardOp{.input = 3, .spec = Spec({{}, {"tp"}})}},
                                        .outputs = {4}},
                                {Value({8, 64}, Spec({{}, {"tp"}})),
                                 Value({64, 64}, Spec({{"tp"}, {}})), Value({64}, PartitionSpec())},
                                Target("tp=4"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(LabelsOf(*plan), ElementsAre("multiply", "reduce-scatter of dimension 1 over tp",
                                           "slice to P('tp')", "bias and activation"));
}

TEST(ProductCandidatesTest, TimeDecidesHowAReplicatedProductIsPartitioned) {
  const ValueDescriptor square = Value({512, 512}, PartitionSpec());
  const auto with_rates = [](double flops_per_second, double seconds_per_byte) {
    PlanTarget target = Target("tp=4");
    target.kernels.flops_per_second = flops_per_second;
    target.links.seconds_per_byte = seconds_per_byte;
    return target;
  };
  // Slow kernels: each device computes a part, and the parts are joined.
  const Plan parted = PlanWithResult(square, square, PartitionSpec(), with_rates(1e9, 1e-10));
  EXPECT_GT(parted.cost.sent_bytes, 0);
  // Slow links: each device computes everything.
  const Plan whole = PlanWithResult(square, square, PartitionSpec(), with_rates(1e12, 1e-6));
  EXPECT_THAT(LabelsOf(whole), ElementsAre("multiply"));
  // Without a requested layout, the result keeps the layouts of the operands.
  const auto plan = PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {square, square}, with_rates(1e9, 1e-10));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(LabelsOf(*plan), ElementsAre("multiply"));
}

TEST(ProductCandidatesTest, MeasuredRatesDoNotChangeTheLayoutOfAResult) {
  const PartitionSpec specs[] = {
      PartitionSpec(),          Spec({{"dp"}, {}}),     Spec({{}, {"dp"}}),
      Spec({{"dp"}, {"tp"}}),   Spec({{"tp"}, {"dp"}}), Spec({{"dp", "tp"}, {}}),
      Spec({{}, {"dp", "tp"}}),
  };
  const std::vector<Shape> shapes = {{32, 4096, 64}, {256, 512, 128}, {64, 256, 4096}};  // M, K, N
  const Program program = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const auto planned = [&](const std::vector<ValueDescriptor>& operands, double speed) {
    PlanTarget target = Target("dp=2,tp=4");
    target.kernels.flops_per_second *= speed;
    target.links.latency_seconds /= speed;
    target.links.seconds_per_byte *= speed;
    const auto plan = PlanProgram(program, operands, target);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : Plan();
  };
  int different_plans = 0;
  for (const Shape& sizes : shapes) {
    for (const PartitionSpec& lhs : specs) {
      for (const PartitionSpec& rhs : specs) {
        SCOPED_TRACE(StrCat(ShapeToString(sizes), " ", lhs.ToString(), " x ", rhs.ToString()));
        const std::vector<ValueDescriptor> operands = {Value({sizes[0], sizes[1]}, lhs),
                                                       Value({sizes[1], sizes[2]}, rhs)};
        const Plan plan = planned(operands, 1);
        for (const double speed : {1e-4, 100.0}) {
          const Plan other = planned(operands, speed);
          EXPECT_EQ(other.values[other.outputs[0]], plan.values[plan.outputs[0]]);
          if (other != plan) ++different_plans;
        }
      }
    }
  }
  EXPECT_GT(different_plans, 0) << "time decides among the plans with that layout";
}

TEST(ProductCandidatesTest, AProductMayGatherBothOperands) {
  // Two-dimensional layouts of both operands: each device multiplies a row of tiles by a column.
  const auto plans = PlanCandidates(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({64, 64}, Spec({{"x"}, {"y"}})), Value({64, 64}, Spec({{"x"}, {"y"}}))},
      Target("x=2,y=2"), kAll);
  ASSERT_TRUE(plans.ok()) << plans.status();
  std::vector<std::string> roles;
  for (const PlanCandidate& plan : *plans) roles.push_back(plan.roles);
  EXPECT_THAT(roles, testing::Contains("x: M, y: N"));
  EXPECT_THAT(roles, testing::Contains("x: K, y: N"));
  EXPECT_THAT(roles, testing::Contains("x: M, y: K"));
  EXPECT_THAT(roles, testing::Contains("x: every device the same, y: every device the same"));
  EXPECT_EQ(PlanCandidates(
                Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
                {Value({64, 64}, Spec({{"x"}, {"y"}})), Value({64, 64}, Spec({{"x"}, {"y"}}))},
                Target("x=2,y=2"), 2)
                ->size(),
            2U);
}

TEST(ProductCandidatesTest, NoPlanIsComparedTwice) {
  // The cuts of four parts are those of equal parts if pairs of parts are joined.
  const auto plans = PlanCandidates(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {CutValue({8, 8}, Spec({{"a", "b"}, {}}), {{0, 1, 4, 5, 8}, {}}),
       Value({8, 8}, Spec({{"a"}, {"b"}}))},
      Target("a=2,b=2"), kAll);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (size_t i = 0; i < plans->size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE((*plans)[i].plan, (*plans)[j].plan) << (*plans)[i].roles;
    }
  }
}

TEST(ProductCandidatesTest, BatchesStayWhereTheyAre) {
  const auto plan =
      PlanProgram(Program{.operand_count = 2,
                          .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_rhs = true}},
                          .outputs = {2}},
                  {Value({4, 8, 16, 32}, Spec({{"dp"}, {"tp"}, {}, {}})),
                   Value({4, 8, 16, 32}, Spec({{"dp"}, {"tp"}, {}, {}}))},
                  Target("dp=2,tp=4"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(LabelsOf(*plan), ElementsAre("multiply"));
  EXPECT_EQ(plan->values[2], Value({4, 8, 16, 16}, Spec({{"dp"}, {"tp"}, {}, {}})));
  EXPECT_EQ(plan->cost.flops, 2 * 32 * (2 * 2 * 16 * 16));
  EXPECT_TRUE(MultipliesBatches(*plan));
}

TEST(ProductCandidatesTest, LayersThatAreEqualArePlannedEqually) {
  // More layers than layouts that may be priced for one program.
  constexpr uint32_t kLayers = 1024;
  Program program{.operand_count = 2, .ops = {}, .outputs = {}};
  for (uint32_t i = 0; i < kLayers; ++i) {
    program.ops.push_back(MatmulOp{.lhs = i == 0 ? 0 : i + 1, .rhs = 1});
  }
  program.outputs = {kLayers + 1};
  const auto plan = PlanProgram(
      program, {Value({8, 8}, Spec({{"a"}, {"b"}})), Value({8, 8}, Spec({{"b"}, {"c"}}))},
      Target("a=2,b=2,c=2"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::map<std::string, std::vector<std::string>> labels;  // by op
  for (const Instruction& instruction : plan->instructions) {
    const size_t colon = instruction.label.find(':');
    labels[instruction.label.substr(0, colon)].push_back(instruction.label.substr(colon));
  }
  EXPECT_THAT(labels["op 10 (matmul)"], testing::Not(testing::IsEmpty()));
  EXPECT_EQ(labels["op 10 (matmul)"], labels["op 1000 (matmul)"]);
  EXPECT_FALSE(MultipliesBatches(*plan));
}

TEST(ProductCandidatesTest, LargeMeshesHaveFewLayoutsComparedForAProgram) {
  // Every product is another one, so none is planned by the choice for an earlier one.
  constexpr uint32_t kProducts = 12;
  std::vector<ValueDescriptor> operands = {Value({1024, 1024}, Spec({{"a"}, {"c"}}))};
  for (uint32_t i = 0; i < kProducts; ++i) {
    operands.push_back(Value({1024, 1024 + 64 * i}, Spec({{"b"}, {"a"}})));
  }
  PlanBuilder builder(Target("a=16,b=16,c=16"), operands);
  const auto plans_of = [&](ValueIndex rhs) {
    const Product product = {
        .lhs = 0, .rhs = rhs, .reshard = ReshardOp{.input = 0, .spec = Spec({{"c"}, {}})}};
    const auto plans = builder.ProductPlansOf(product, kAll);
    EXPECT_TRUE(plans.ok()) << plans.status();
    return plans.ok() ? plans->size() : 0;
  };
  const size_t first = plans_of(1);
  EXPECT_GT(first, 4U);
  for (ValueIndex rhs = 2; rhs < kProducts; ++rhs) plans_of(rhs);
  EXPECT_EQ(plans_of(kProducts), 2U) << "those in which an operand stays in place";
}

TEST(ProductCandidatesTest, NamesTheDimensionsThatDoNotMultiply) {
  const auto refusal = [](const Shape& lhs, const Shape& rhs, bool transpose_lhs = false) {
    const auto plan =
        PlanProgram(Program{.operand_count = 2,
                            .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_lhs = transpose_lhs}},
                            .outputs = {2}},
                    {Value(lhs, PartitionSpec()), Value(rhs, PartitionSpec())}, Target("tp=2"));
    EXPECT_EQ(ReasonOf(plan.status()), Reason::kShapeMismatch);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(refusal({3, 4, 8}, {2, 8, 4}),
              HasSubstr("shapes (3, 4, 8) and (2, 8, 4) do not multiply: batch dimension 0 of the "
                        "result has 3 matrices on the left and 2 on the right"));
  EXPECT_THAT(refusal({3, 4, 8}, {3, 4, 8}), HasSubstr("8 is contracted with 4"));
  EXPECT_THAT(refusal({3, 4, 8}, {3, 8, 4}, true),
              HasSubstr("(3, 4, 8) (transposed) and (3, 8, 4) do not multiply"));
  EXPECT_THAT(refusal({8}, {8, 4}), HasSubstr("it must be a matrix, or a batch of matrices"));
  EXPECT_THAT(refusal({4, 8}, {8}), HasSubstr("it must be a matrix, or a batch of matrices"));
  EXPECT_THAT(refusal({}, {8, 4}), HasSubstr("is a scalar"));
}

TEST(ProductCandidatesTest, RefusesAResultOfTooManyElements) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  Program scattered = product;
  scattered.ops.push_back(CollectiveOp{.input = 2,
                                       .kind = CollectiveKind::kScatter,
                                       .axes = {"a"},
                                       .dimension = 0,
                                       .counts = {1, kHuge - 1}});
  scattered.outputs = {3};
  const auto refusal = [](const Program& program, const Shape& lhs, const Shape& rhs) {
    const absl::Status status =
        PlanProgram(program, {Value(lhs, PartitionSpec()), Value(rhs, PartitionSpec())},
                    Target("a=2"))
            .status();
    EXPECT_EQ(ReasonOf(status), Reason::kInvalidShape);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(scattered, {kHuge, 0}, {0, kHuge}),
              HasSubstr("op 0 (matmul): the shape (4611686018427387904, 4611686018427387904) has "
                        "more than 2^63 - 1 elements"));
  constexpr int64_t kBatches = int64_t{1} << 40;
  EXPECT_THAT(refusal(product, {kBatches, 1, 1, 0}, {kBatches, 0, 1}),
              HasSubstr("has more than 2^63 - 1 elements"));
}

// A product between other ops, and three products of one input, as those of layers.
TEST(ProductCandidatesTest, LayersOfSeveralOpsHaveCandidatesThatComputeTheSame) {
  const PlanTarget target = Target("dp=2,tp=2");
  const std::vector<ValueDescriptor> operands = {
      Value({8, 16}, Spec({{"dp"}, {}})), Value({16, 12}, Spec({{}, {"tp"}})),
      Value({16, 4}, Spec({{"tp"}, {}})), Value({16, 8}, PartitionSpec())};
  const auto layer = [](ValueIndex weight) {
    return LinearOp{.input = 4, .weight = weight, .weight_layout = WeightLayout::kInOut};
  };
  const TensorOp doubled = MapOp{.function = MapFunction::kAdd, .inputs = {0, 0}};
  const Program one = {
      .operand_count = 4,
      .ops = {doubled, layer(1), TensorOp{SliceOp{.input = 5, .starts = {0, 0}, .limits = {8, 5}}},
              ReshardOp{.input = 6, .spec = Spec({{"dp"}, {}})}},
      .outputs = {7}};
  const Program three = {.operand_count = 4,
                         .ops = {doubled, layer(1), layer(2), layer(3),
                                 ReshardOp{.input = 5, .spec = PartitionSpec()}},
                         .outputs = {8, 6, 7}};
  const std::vector<Dense> tensors = {Numbered({8, 16}, 1), Numbered({16, 12}, 2),
                                      Numbered({16, 4}, 3), Numbered({16, 8}, 4)};
  for (const Program* const program : {&one, &three}) {
    const auto plans = PlanCandidates(*program, operands, target, 12);
    ASSERT_TRUE(plans.ok()) << plans.status();
    EXPECT_GT(plans->size(), 1U);
    EXPECT_LE(plans->size(), 12U);
    EXPECT_EQ(plans->front().plan, *PlanProgram(*program, operands, target));
    for (size_t i = 0; i < plans->size(); ++i) {
      const PlanCandidate& candidate = (*plans)[i];
      SCOPED_TRACE(candidate.roles);
      ASSERT_TRUE(CheckPlan(candidate.plan).ok()) << CheckPlan(candidate.plan);
      EXPECT_GT(candidate.seconds, 0);
      if (i > 1) {
        EXPECT_GE(candidate.seconds, (*plans)[i - 1].seconds - 1e-9);
      }
      Simulation simulation(candidate.plan);
      for (ValueIndex operand = 0; operand < 4; ++operand) {
        simulation.SetOperand(operand, tensors[operand]);
      }
      simulation.Run();
      for (size_t output = 0; output < candidate.plan.outputs.size(); ++output) {
        Dense expected =
            Multiply(tensors[0], tensors[output + 1], nullptr, false, false, 2, Activation::kNone);
        if (program == &one) {
          expected = Cut(expected, Tile{.ranges = {{0, 8}, {0, 5}}}, Tile::Whole({8, 12}));
        }
        simulation.ExpectOutput(candidate.plan.outputs[output], expected);
      }
    }
  }
  const auto plans = PlanCandidates(three, operands, target, 64);
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_LE(plans->size(), 21U) << "64 / 3";
  EXPECT_THAT(plans->front().roles,
              AllOf(HasSubstr("op 1 (linear): "), HasSubstr("; op 3 (linear): ")));
}

TEST(ProductCandidatesTest, OnlyAProgramOfSomeProductsHasCandidates) {
  const std::vector<ValueDescriptor> operands = {Value({4, 4}, PartitionSpec()),
                                                 Value({4, 4}, PartitionSpec())};
  const MatmulOp matmul = {.lhs = 0, .rhs = 1};
  const Program refused[] = {
      {.operand_count = 2, .ops = {}, .outputs = {}},
      {.operand_count = 2, .ops = {ReshardOp{.input = 0, .spec = PartitionSpec()}}, .outputs = {2}},
      {.operand_count = 2,
       .ops = std::vector<ProgramOp>(kMostCandidateProducts + 1, matmul),
       .outputs = {2}},
  };
  for (const Program& program : refused) {
    EXPECT_EQ(ReasonOf(PlanCandidates(program, operands, Target("tp=2"), 1).status()),
              Reason::kBadField);
  }
}

TEST(ProductCandidatesTest, ChecksRefuseBatchesThatWereTamperedWith) {
  const Plan plan = *PlanProgram(
      Program{.operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}},
      {Value({4, 8, 8}, Spec({{"tp"}, {}, {}})), Value({1, 8, 8}, PartitionSpec())},
      Target("tp=2"));
  ASSERT_TRUE(CheckPlan(plan).ok()) << CheckPlan(plan);
  const std::function<void(Plan*)> tampers[] = {
      [](Plan* p) {
        p->values[2].shape = {8, 8, 8};
      },
      [](Plan* p) { p->values[2].spec = PartitionSpec(); },
      [](Plan* p) {
        p->values[1].shape = {2, 8, 8};
      },
      [](Plan* p) { p->values[0].spec = PartitionSpec(); },
      [](Plan* p) {
        p->values[1] = CutValue({1, 8, 8}, Spec({{"tp"}, {}, {}}), {{0, 1, 1}, {}, {}});
      },
      [](Plan* p) { p->values[0].shape = {8}; },
  };
  for (const auto& tamper : tampers) {
    Plan tampered = plan;
    tamper(&tampered);
    EXPECT_EQ(CheckPlan(tampered).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace shardmesh
