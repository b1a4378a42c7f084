// Some random products and graphs on simulated devices. random_programs_long_test.cc has many.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <random>
#include <variant>

#include "program/step_plan.h"
#include "tests/testing/random_cases.h"
#include "tests/unit/program/dense.h"
#include "tests/unit/program/program_checks.h"
#include "tests/unit/program/random_programs.h"

namespace shardmesh {
namespace {

TEST(RandomProgramsTest, ProductsComputeAndSendAsForecast) {
  ExpectRandomProducts(test::RandomCasesOf(300));
}

TEST(RandomProgramsTest, GraphsComputeAndSendAsForecast) {
  ExpectRandomGraphs(test::RandomCasesOf(150));
}

// Returns how many checks of a plan fail.
int FailuresOf(const RandomProgram& program, const Plan& plan, const PlanTarget& target) {
  testing::TestPartResultArray results;
  const testing::ScopedFakeTestPartResultReporter reporter(
      testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
  ProgramCheck(program).ExpectComputes(plan);
  ExpectForecast(plan, target);
  return results.size();
}

TEST(RandomProgramsTest, ChecksFindPlansThatAreWrong) {
  std::mt19937 random(2);
  const Mesh mesh = *Mesh::Parse("a=2,b=2");
  const PlanTarget target = RandomTarget(mesh, random);
  int products = 0;
  for (int i = 0; i < 20; ++i) {
    const RandomProgram product = RandomProduct(mesh, random);
    Plan plan = *PlanProgram(product.program, product.operands, target);
    SCOPED_TRACE(product.ToString());
    EXPECT_EQ(FailuresOf(product, plan, target), 0);
    ++plan.cost.memory_bytes;
    EXPECT_GT(FailuresOf(product, plan, target), 0) << "another peak than that of the plan";
    --plan.cost.memory_bytes;
    for (Instruction& instruction : plan.instructions) {
      auto* const matmul = std::get_if<LocalMatmul>(&instruction.kind);
      const Shape& shape = plan.values[instruction.output].shape;
      if (matmul == nullptr || matmul->bias.has_value() || Count(shape) < 4) continue;
      if (Count(product.operands[0].shape) == 0) continue;  // a product of nothing is zero
      matmul->scale += 1;
      EXPECT_GT(FailuresOf(product, plan, target), 0) << "another scale than that of the program";
      ++products;
    }
  }
  EXPECT_GT(products, 5);
}

}  // namespace
}  // namespace shardmesh
