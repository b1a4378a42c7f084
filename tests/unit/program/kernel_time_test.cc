// Tests of program/kernel_time.h.
#include "program/kernel_time.h"

#include <gtest/gtest.h>

#include "program/memory_plan.h"
#include "program/plan_forecast.h"
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

TEST(KernelTimeTest, RatesWithinAFactorAreAlike) {
  KernelRates rates;
  EXPECT_TRUE(AreAlike(rates, KernelRates()));
  rates.flops_per_second *= 1.4;
  EXPECT_TRUE(AreAlike(rates, KernelRates()));
  rates.flops_per_second *= 1.4;
  EXPECT_FALSE(AreAlike(rates, KernelRates()));
}

}  // namespace
}  // namespace shardmesh
