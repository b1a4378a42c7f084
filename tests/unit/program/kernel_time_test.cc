// Tests of program/kernel_time.h.
#include "program/kernel_time.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/memory_plan.h"
#include "program/plan_forecast.h"
#include "program/tensor_op.h"
#include "tensor/dtype.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

Plan PlanOfProduct(const ValueDescriptor& lhs, const ValueDescriptor& rhs,
                   bool transpose_lhs = false) {
  return *PlanProgram(Program{.operand_count = 2,
                              .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_lhs = transpose_lhs}},
                              .outputs = {2}},
                      {lhs, rhs}, Target("tp=2"));
}

double FirstSeconds(const Plan& plan, const KernelRates& rates) {
  return KernelSeconds(plan, plan.instructions[0], rates);
}

TEST(KernelTimeTest, AProductTakesTheTimeOfItsOperationsOrOfItsBytes) {
  const KernelRates slow_kernel = {
      .flops_per_second = 1e6, .seconds_per_byte = 1e-12, .seconds_per_product = 0};
  const KernelRates slow_memory = {
      .flops_per_second = 1e15, .seconds_per_byte = 1e-6, .seconds_per_product = 0};
  // Each device multiplies [4, 16] by [16, 8].
  const Plan plan =
      PlanOfProduct(Value({8, 16}, Spec({{"tp"}, {}})), Value({16, 8}, PartitionSpec()));
  EXPECT_NEAR(FirstSeconds(plan, slow_kernel), 2 * 4 * 16 * 8 / 1e6, 1e-9);
  EXPECT_NEAR(FirstSeconds(plan, slow_memory), 4 * (4 * 16 + 16 * 8 + 4 * 8) * 1e-6, 1e-9);
}

TEST(KernelTimeTest, EachMatrixOfABatchHasItsStart) {
  const KernelRates rates = {
      .flops_per_second = 1e18, .seconds_per_byte = 1e-18, .seconds_per_product = 1};
  const ValueDescriptor batch = Value({6, 4, 4}, Spec({{"tp"}, {}, {}}));
  const ValueDescriptor matrix = Value({4, 4}, PartitionSpec());
  EXPECT_NEAR(FirstSeconds(PlanOfProduct(batch, batch), rates), 3, 1e-6);
  EXPECT_NEAR(FirstSeconds(PlanOfProduct(batch, matrix), rates), 1, 1e-6)
      << "one product of all rows";
  EXPECT_NEAR(FirstSeconds(PlanOfProduct(batch, matrix, true), rates), 3, 1e-6);
}

TEST(KernelTimeTest, AForecastHasTheTimeOfAllKernels) {
  const KernelRates rates;
  const Plan plan = PlanOfProduct(Value({8, 16}, Spec({{}, {"tp"}}), Dtype::kBF16),
                                  Value({16, 8}, Spec({{"tp"}, {}}), Dtype::kBF16));
  ASSERT_EQ(plan.instructions.size(), 3U);  // the product, a sum, and the rounding to BF16
  double seconds = 0;
  for (const Instruction& instruction : plan.instructions) {
    seconds += KernelSeconds(plan, instruction, rates);
  }
  const PlanForecast forecast = ForecastOf(plan, {}, rates);
  EXPECT_DOUBLE_EQ(forecast.kernel_seconds, seconds);
  EXPECT_EQ(forecast.peak_bytes, PeakBytesOf(plan));
  EXPECT_GT(KernelSeconds(plan, plan.instructions[0], rates), 0);
  EXPECT_EQ(KernelSeconds(plan, plan.instructions[1], rates), 0);
  EXPECT_GT(KernelSeconds(plan, plan.instructions[2], rates), 0);
}

// Returns rates at which bytes cost nothing.
KernelRates OnlyCompute() {
  return {.flops_per_second = 1e9, .seconds_per_byte = 0, .seconds_per_product = 0};
}

// Returns costs of a product whose rows take `flop` for each operation.
ProductCosts CostsOfRows(double flop) {
  ProductCosts costs;
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i] = 2 * static_cast<double>(kProductRows[i]) * flop;
  }
  return costs;
}

TEST(KernelTimeTest, EachCombinationOfTypesHasItsCosts) {
  KernelRates rates = OnlyCompute();
  rates.costs[ProductKind::kF32] = CostsOfRows(1e-8);
  rates.costs[ProductKind::kBf16] = CostsOfRows(2e-8);
  rates.costs[ProductKind::kF16] = CostsOfRows(3e-8);
  constexpr double kFlops = 2.0 * 20 * 16 * 8;
  const auto seconds = [&rates](Dtype dtype) {
    return FirstSeconds(PlanOfProduct(Value({20, 16}, PartitionSpec(), dtype),
                                      Value({16, 8}, PartitionSpec(), dtype)),
                        rates);
  };
  EXPECT_NEAR(seconds(Dtype::kF32), kFlops * 1e-8, 1e-12);
  EXPECT_NEAR(seconds(Dtype::kBF16), kFlops * 2e-8, 1e-12);
  EXPECT_NEAR(seconds(Dtype::kF16), kFlops * 3e-8, 1e-12);
}

TEST(KernelTimeTest, WeightsOfI8HaveTheCostsOfTheirInputs) {
  KernelRates rates = OnlyCompute();
  rates.costs[ProductKind::kI8] = CostsOfRows(4e-8);
  rates.costs[ProductKind::kI8Bf16] = CostsOfRows(5e-8);
  const auto seconds = [&rates](Dtype dtype) {
    const auto plan =
        PlanProgram(Program{.operand_count = 3,
                            .ops = {LinearOp{.input = 0, .weight = 1, .scales = 2}},
                            .outputs = {3}},
                    {Value({32, 16}, PartitionSpec(), dtype),
                     Value({8, 16}, PartitionSpec(), Dtype::kI8), Value({8}, PartitionSpec())},
                    Target("tp=2"));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? FirstSeconds(*plan, rates) : 0;
  };
  constexpr double kFlops = 2.0 * 32 * 16 * 8;
  EXPECT_NEAR(seconds(Dtype::kF32), kFlops * 4e-8, 1e-12);
  EXPECT_NEAR(seconds(Dtype::kF16), kFlops * 4e-8, 1e-12);
  EXPECT_NEAR(seconds(Dtype::kBF16), kFlops * 5e-8, 1e-12);
}

TEST(KernelTimeTest, TimesBetweenMeasuredNumbersOfRowsAreInterpolated) {
  KernelRates rates = OnlyCompute();
  rates.costs[ProductKind::kF32] = {1, 2, 4, 20, 116};  // 1, 4, 16, 32 and 128 rows
  const auto seconds = [&rates](int64_t rows) {
    return FirstSeconds(
        PlanOfProduct(Value({rows, 1}, PartitionSpec()), Value({1, 1}, PartitionSpec())), rates);
  };
  EXPECT_NEAR(seconds(1), 1, 1e-9);
  EXPECT_NEAR(seconds(4), 2, 1e-9);
  EXPECT_NEAR(seconds(10), 3, 1e-9);
  EXPECT_NEAR(seconds(24), 12, 1e-9);
  EXPECT_NEAR(seconds(128), 116, 1e-9);
  EXPECT_NEAR(seconds(1128), 1116, 1e-9) << "with the slope of the last two";
  rates.costs[ProductKind::kF32][2] = 0;  // not measured
  EXPECT_NEAR(seconds(10), 2 * 10 / rates.flops_per_second, 1e-15);
}

TEST(KernelTimeTest, WithoutCostsAllTypesHaveTheRateOfF32) {
  const KernelRates rates = OnlyCompute();
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    const Plan plan = PlanOfProduct(Value({20, 16}, PartitionSpec(), dtype),
                                    Value({16, 8}, PartitionSpec(), dtype));
    EXPECT_NEAR(FirstSeconds(plan, rates), 2 * 20 * 16 * 8 / 1e9, 1e-15) << DtypeName(dtype);
  }
}

TEST(KernelTimeTest, MoreRowsNeverTakeLessTime) {
  KernelRates rates;
  rates.costs[ProductKind::kF32] = {1e-10, 1e-10, 3e-10, 3e-10, 2e-9};
  rates.costs[KernelCost::kReadByte] = 1e-10;
  rates.costs[KernelCost::kPlainByte] = 1e-10;
  double before = 0;
  for (const int64_t rows : {1, 2, 15, 16, 17, 31, 32, 128, 1000, 100000}) {
    const double seconds = FirstSeconds(
        PlanOfProduct(Value({rows, 256}, PartitionSpec()), Value({256, 256}, PartitionSpec())),
        rates);
    EXPECT_GE(seconds, before) << rows;
    before = seconds;
  }
}

TEST(KernelTimeTest, AProductWithoutRowsTakesOnlyItsStart) {
  KernelRates rates;
  rates.costs[ProductKind::kF32] = CostsOfRows(1e-9);
  rates.costs[KernelCost::kProductStart] = 3e-6;
  Plan plan = PlanOfProduct(Value({2, 16}, PartitionSpec()), Value({16, 8}, PartitionSpec()));
  plan.values[0].shape[0] = 0;
  plan.values[2].shape[0] = 0;
  EXPECT_NEAR(FirstSeconds(plan, rates), 3e-6, 1e-12);
}

TEST(KernelTimeTest, AProductOfOneRowTakesTheTimeToReadItsWeights) {
  KernelRates rates = {.flops_per_second = 1e12};
  rates.costs[KernelCost::kReadByte] = 1e-10;
  rates.costs[KernelCost::kStreamedByte] = 1;  // is for other ops
  const Plan plan =
      PlanOfProduct(Value({1, 4096}, PartitionSpec()), Value({4096, 4096}, PartitionSpec()));
  EXPECT_NEAR(FirstSeconds(plan, rates), 4096 * 4096 * 4 * 1e-10, 1e-5);
}

TEST(KernelTimeTest, OnlyWeightsArePackedBefore) {
  KernelRates rates = OnlyCompute();
  rates.costs[KernelCost::kPlainByte] = 1e-3;
  const ValueDescriptor matrix = Value({4, 4}, PartitionSpec());
  const ValueDescriptor batch = Value({6, 4, 4}, Spec({{"tp"}, {}, {}}));
  EXPECT_LT(FirstSeconds(PlanOfProduct(batch, matrix), rates), 1e-3);
  EXPECT_NEAR(FirstSeconds(PlanOfProduct(batch, batch), rates), 3 * 4 * 4 * 4 * 1e-3, 1e-3);
  // The second product is by the result of the first.
  const Plan chain =
      *PlanProgram(Program{.operand_count = 1,
                           .ops = {MatmulOp{.lhs = 0, .rhs = 0}, MatmulOp{.lhs = 0, .rhs = 1}},
                           .outputs = {2}},
                   {matrix}, Target("tp=2"));
  EXPECT_NEAR(KernelSeconds(chain, chain.instructions[1], rates), 4 * 4 * 4 * 1e-3, 1e-3);
}

// Returns a plan of one op, whose inputs are replicated.
Plan PlanOfTensorOp(TensorOp op, const std::vector<ValueDescriptor>& operands) {
  const auto count = static_cast<uint32_t>(operands.size());
  return *PlanProgram(Program{.operand_count = count, .ops = {std::move(op)}, .outputs = {count}},
                      operands, Target("tp=2"));
}

TEST(KernelTimeTest, FunctionsTakeTheTimeOfTheirElementsOrOfTheirBytes) {
  KernelRates rates = OnlyCompute();
  rates.costs[KernelCost::kStreamedByte] = 1e-9;
  rates.costs[KernelCost::kFunctionElement] = 1e-6;
  rates.costs[KernelCost::kGeluElement] = 2e-6;
  rates.costs[KernelCost::kNormElement] = 3e-6;
  rates.costs[KernelCost::kHalfElement] = 4e-6;
  rates.costs[KernelCost::kSoftmaxElement] = 5e-6;
  rates.costs[KernelCost::kReducedElement] = 6e-6;
  rates.costs[KernelCost::kTransposedElement] = 7e-6;
  ValueDescriptor value = Value({8, 16}, PartitionSpec());
  const auto seconds = [&](TensorOp op, size_t inputs = 1) {
    return FirstSeconds(PlanOfTensorOp(std::move(op), std::vector<ValueDescriptor>(inputs, value)),
                        rates);
  };
  constexpr double kElements = 8 * 16;
  constexpr double kBytes = 4 * kElements;
  EXPECT_NEAR(seconds(MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}}, 2), 3 * kBytes * 1e-9,
              1e-12);
  EXPECT_NEAR(seconds(MapOp{.function = MapFunction::kRelu, .inputs = {0}}), 2 * kBytes * 1e-9,
              1e-12);
  EXPECT_NEAR(seconds(MapOp{.function = MapFunction::kSilu, .inputs = {0}}), kElements * 1e-6,
              1e-12);
  EXPECT_NEAR(seconds(MapOp{.function = MapFunction::kGelu, .inputs = {0}}), kElements * 2e-6,
              1e-12);
  EXPECT_NEAR(seconds(NormOp{.input = 0}), kElements * 3e-6, 1e-12);
  EXPECT_NEAR(seconds(SoftmaxOp{.input = 0}), kElements * 5e-6 + 2 * kBytes * 1e-9, 1e-12);
  EXPECT_NEAR(seconds(ReduceOp{.input = 0, .dimensions = {0}}), kElements * 6e-6, 1e-12);
  EXPECT_NEAR(seconds(TransposeOp{.input = 0, .permutation = {1, 0}}), kElements * 7e-6, 1e-12);
  EXPECT_NEAR(seconds(TransposeOp{.input = 0, .permutation = {0, 1}}), 2 * kBytes * 1e-9, 1e-12);
  value.dtype = Dtype::kBF16;
  EXPECT_NEAR(seconds(NormOp{.input = 0}), kElements * 7e-6, 1e-12);
  rates.costs[KernelCost::kStreamedByte] = 1;
  EXPECT_NEAR(seconds(NormOp{.input = 0}), kBytes, 1e-6) << "slow memory";
}

TEST(KernelTimeTest, CausalAttentionComputesHalfOfThePairs) {
  EXPECT_EQ(SeenPairs(4, 4, false), 16);
  EXPECT_EQ(SeenPairs(4, 4, true), 1 + 2 + 3 + 4);
  EXPECT_EQ(SeenPairs(5, 5, true), 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(SeenPairs(4, 9, true), 1 + 2 + 3 + 4) << "a prefill of a part of a cache";
  EXPECT_EQ(SeenPairs(4, 2, true), 1 + 2 + 2 + 2);
  EXPECT_EQ(SeenPairs(1, 100, true), 100) << "decoding";
  EXPECT_EQ(SeenPairs(0, 4, true), 0);
  EXPECT_EQ(SeenPairs(4, 0, true), 0);
  EXPECT_EQ(SeenPairs(int64_t{1} << 40, int64_t{1} << 40, true), INT64_MAX);
  int64_t before = 0;
  for (int64_t queries = 0; queries < 40; ++queries) {
    const int64_t pairs = SeenPairs(queries, 30, true);
    EXPECT_GE(pairs, before);
    EXPECT_LE(pairs, SeenPairs(queries, 30, false));
    before = pairs;
  }
}

TEST(KernelTimeTest, AttentionHasACostOfItsOwn) {
  KernelRates rates = OnlyCompute();
  const ValueDescriptor heads = Value({2, 128, 8, 16}, PartitionSpec());
  const ValueDescriptor positions = Value({128}, PartitionSpec(), Dtype::kI32);
  const AttentionOp all = {.query = 0, .keys = 1, .values = 2};
  AttentionOp causal = all;
  causal.positions = 3;
  constexpr double kFlopsOfPair = 2 * (2 * 8) * (16 + 16);
  const Plan all_plan = PlanOfTensorOp(all, {heads, heads, heads});
  const Plan causal_plan = PlanOfTensorOp(causal, {heads, heads, heads, positions});
  constexpr double kAll = 128 * 128;
  // With 32 rows for each query that it does not see.
  constexpr double kSeen = 128 * 129 / 2 + 128 * 32;
  EXPECT_NEAR(FirstSeconds(all_plan, rates), kAll * kFlopsOfPair * 1e-9, 1e-9)
      << "as products of F32";
  rates.costs[KernelCost::kAttentionFlop] = 3e-9;
  EXPECT_NEAR(FirstSeconds(all_plan, rates), kAll * kFlopsOfPair * 3e-9, 1e-9);
  EXPECT_NEAR(FirstSeconds(causal_plan, rates), kSeen * kFlopsOfPair * 3e-9, 1e-9);
  rates.costs[KernelCost::kReadByte] = 1;
  EXPECT_NEAR(FirstSeconds(all_plan, rates), 4 * (2 * 128 * 8 * 16) * 4, 1e-3) << "slow memory";
}

TEST(KernelTimeTest, RatesWithinAFactorAreAlike) {
  KernelRates rates;
  EXPECT_TRUE(AreAlike(rates, KernelRates()));
  rates.flops_per_second *= 1.4;
  EXPECT_TRUE(AreAlike(rates, KernelRates()));
  rates.flops_per_second *= 1.4;
  EXPECT_FALSE(AreAlike(rates, KernelRates()));
}

TEST(KernelTimeTest, CostsWithinAFactorAreAlike) {
  KernelRates rates;
  rates.costs.seconds.fill(1e-9);
  for (size_t i = 0; i < kKernelCosts; ++i) {
    KernelRates other = rates;
    other.costs.seconds[i] = 1.4e-9;
    EXPECT_TRUE(AreAlike(rates, other)) << i;
    other.costs.seconds[i] = 1e-7;
    EXPECT_FALSE(AreAlike(rates, other)) << i;
    EXPECT_FALSE(AreAlike(other, rates)) << i;
  }
  for (ProductCosts& costs : rates.costs.products) costs = CostsOfRows(1e-9);
  for (size_t kind = 0; kind < kProductKinds; ++kind) {
    for (size_t i = 0; i < kProductRows.size(); ++i) {
      KernelRates other = rates;
      other.costs.products[kind][i] *= 1.1;
      EXPECT_TRUE(AreAlike(rates, other)) << kind << " " << i;
      other.costs.products[kind][i] *= 2;
      EXPECT_FALSE(AreAlike(rates, other)) << kind << " " << i;
    }
  }
}

}  // namespace
}  // namespace shardmesh
