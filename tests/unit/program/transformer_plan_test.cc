// Counts the exchanges in the plan of a decoder's step, and the time that planning takes.
#include <chrono>
#include <cstddef>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program/memory_plan.h"
#include "program/plan_check.h"
#include "program/plan_forecast.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/transformer_program.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the labels of the instructions that exchange data.
std::vector<std::string> ExchangesOf(const Plan& plan) {
  std::vector<std::string> labels;
  for (const Instruction& instruction : plan.instructions) {
    if (std::holds_alternative<GroupCollective>(instruction.kind) ||
        std::holds_alternative<MoveRegions>(instruction.kind)) {
      labels.push_back(instruction.label);
    }
  }
  return labels;
}

int SlicesOf(const Plan& plan) {
  int slices = 0;
  for (const Instruction& instruction : plan.instructions) {
    if (std::holds_alternative<LocalSlice>(instruction.kind)) ++slices;
  }
  return slices;
}

TEST(TransformerPlanTest, EachBlockHasOneAllReduce) {
  const TransformerProgram step = Transformer({.layers = 2});
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=2,tp=4"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  EXPECT_THAT(ExchangesOf(*plan),
              ElementsAre(AllOf(HasSubstr("(embedding)"), HasSubstr("all-reduce over tp")),
                          AllOf(HasSubstr("(linear)"), HasSubstr("all-reduce over tp")),
                          AllOf(HasSubstr("(linear)"), HasSubstr("all-reduce over tp")),
                          AllOf(HasSubstr("(linear)"), HasSubstr("all-reduce over tp")),
                          AllOf(HasSubstr("(linear)"), HasSubstr("all-reduce over tp")),
                          AllOf(HasSubstr("(top-k)"), HasSubstr("all-gather"))));
  EXPECT_EQ(SlicesOf(*plan), 0);
}

TEST(TransformerPlanTest, CachesAreUpdatedInPlace) {
  const TransformerProgram step = Transformer({.layers = 2});
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=2,tp=4"));
  ASSERT_THAT(plan, IsOk());
  const auto places = StatePlaces(*plan);
  const MemoryPlan memory = MemoryPlanOf(*plan);
  ASSERT_EQ(plan->updates.size(), 4u);
  for (const StateUpdate& update : plan->updates) {
    EXPECT_EQ(plan->values[update.value].spec, Spec({{"dp"}, {}, {"tp"}, {}}));
    EXPECT_EQ(places[update.value], update.operand);
    EXPECT_FALSE(memory.places[update.value].has_value());
  }
  // The block and the peak do not depend on the number of rows in the caches.
  const TransformerProgram longer = Transformer({.layers = 2, .rows = 1 << 20});
  const auto longer_plan = PlanProgram(longer.program, longer.operands, Target("dp=2,tp=4"));
  ASSERT_THAT(longer_plan, IsOk());
  EXPECT_EQ(longer_plan->cost.memory_bytes, plan->cost.memory_bytes);
}

TEST(TransformerPlanTest, WholeProjectionsAreCutToTheHeadsOfTheCaches) {
  const TransformerProgram step = Transformer({.layers = 1, .has_sharded_projections = false});
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=2,tp=4"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  // Slices, but no other exchanges than with projections that are partitioned.
  EXPECT_EQ(ExchangesOf(*plan).size(), 4u) << testing::PrintToString(ExchangesOf(*plan));
  EXPECT_GT(SlicesOf(*plan), 0);
}

TEST(TransformerPlanTest, ADeviceAloneExchangesNothing) {
  const TransformerProgram step = Transformer({.layers = 2});
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=1,tp=1"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  EXPECT_THAT(ExchangesOf(*plan), IsEmpty());
  EXPECT_EQ(plan->instructions.size(), step.program.ops.size());
}

// Key heads that tp does not divide: the caches cannot be partitioned by heads.
TEST(TransformerPlanTest, UnevenHeadsArePlannedToo) {
  TransformerProgram step = Transformer({.layers = 1, .heads = 6, .key_heads = 3});
  for (ValueDescriptor& operand : step.operands) {
    if (operand.shape.size() == 4) operand.spec = Spec({{"dp"}, {"tp"}});
  }
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=2,tp=4"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
}

TEST(TransformerPlanTest, PlansManyLayersQuickly) {
  const TransformerProgram step = Transformer({.layers = 80});
  const auto begin = std::chrono::steady_clock::now();
  const auto plan = PlanProgram(step.program, step.operands, Target("dp=2,tp=4"));
  const auto planned = std::chrono::steady_clock::now();
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  const auto checked = std::chrono::steady_clock::now();
  const MemoryPlan memory = MemoryPlanOf(*plan);
  const auto placed = std::chrono::steady_clock::now();
  EXPECT_EQ(ExchangesOf(*plan).size(), 2u * 80 + 2);
  EXPECT_GT(memory.block_bytes, 0);
  const auto ms = [](auto from, auto to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  };
  std::cout << step.program.ops.size() << " ops, " << plan->instructions.size()
            << " instructions: planned in " << ms(begin, planned) << " ms, checked in "
            << ms(planned, checked) << " ms, memory in " << ms(checked, placed) << " ms\n";
}

}  // namespace
}  // namespace shardmesh
