// Updates of state operands: their layouts, their errors, and which are made in place; the memory
// of tensor ops' results.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program/memory_plan.h"
#include "program/plan_check.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "program/tensor_op.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/program/dense_ops.h"
#include "tests/unit/program/plan_examples.h"
#include "tests/unit/program/plan_simulation.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorOp UpdateRows(ValueIndex input, ValueIndex update, ValueIndex positions) {
  return UpdateRowsOp{.input = input, .update = update, .positions = positions};
}
TensorOp Apply(MapFunction function, std::vector<ValueIndex> inputs) {
  return MapOp{.function = function, .inputs = std::move(inputs)};
}

// Operands: 0: a cache of 12 rows, 1: new rows, 2: their positions. Value 3 is the first result.
absl::StatusOr<Plan> PlanWithCache(std::vector<ProgramOp> ops, std::vector<ValueIndex> outputs,
                                   std::vector<StateUpdate> updates,
                                   PartitionSpec cache = Spec({{"a"}, {}, {"b"}})) {
  return PlanProgram(Program{.operand_count = 3,
                             .ops = std::move(ops),
                             .outputs = std::move(outputs),
                             .updates = std::move(updates)},
                     {Value({4, 12, 8}, std::move(cache)), Value({4, 2, 8}, PartitionSpec()),
                      Value({2}, PartitionSpec(), Dtype::kI32)},
                     Target("a=2,b=2"));
}

TEST(StateUpdateTest, ValuesLieAsTheirOperands) {
  for (const PartitionSpec& spec :
       {PartitionSpec(), Spec({{"a"}, {}, {"b"}}), Spec({{}, {"a", "b"}}), Spec({{"b"}, {"a"}})}) {
    SCOPED_TRACE(spec.ToString());
    const auto plan = PlanWithCache({UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {3})}, {4},
                                    {{.operand = 0, .value = 3}}, spec);
    ASSERT_THAT(plan, IsOk());
    ASSERT_THAT(CheckPlan(*plan), IsOk());
    ASSERT_EQ(plan->updates.size(), 1u);
    EXPECT_EQ(plan->updates[0].operand, 0u);
    Simulation simulation(*plan);
    const Dense cache = Numbered({4, 12, 8}, 1);
    const Dense rows = Numbered({4, 2, 8}, 2);
    const Dense positions = {.shape = {2}, .elements = {11, 3}};
    simulation.SetOperand(0, cache);
    simulation.SetOperand(1, rows);
    simulation.SetOperand(2, positions);
    simulation.Run();
    simulation.ExpectOutput(
        plan->updates[0].value,
        ComputeDense(UpdateRows(0, 1, 2), {{cache, rows, positions}}, {4, 12, 8}));
  }
}

TEST(StateUpdateTest, ErrorsNameTheOperand) {
  const std::vector<ProgramOp> ops = {UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {1}),
                                      TensorOp(ConvertOp{.input = 3, .dtype = Dtype::kBF16})};
  const auto error_of = [&](std::vector<ValueIndex> outputs, std::vector<StateUpdate> updates) {
    return PlanWithCache(ops, std::move(outputs), std::move(updates)).status();
  };
  struct Case {
    std::vector<StateUpdate> updates;
    Reason reason;
    std::string message;
  };
  const Case cases[] = {
      {{{.operand = 3, .value = 3}}, Reason::kBadField, "update of operand 3: the program has 3"},
      {{{.operand = 0, .value = 3}, {.operand = 0, .value = 5}},
       Reason::kBadField,
       "update of operand 0: the operand is updated twice"},
      {{{.operand = 0, .value = 3}, {.operand = 1, .value = 3}},
       Reason::kBadField,
       "value 3 is an output or updates another operand"},
      {{{.operand = 0, .value = 1}}, Reason::kBadField, "value 1 is an operand"},
      {{{.operand = 0, .value = 6}}, Reason::kBadField, "value 6 does not exist"},
      {{{.operand = 0, .value = 4}},
       Reason::kShapeMismatch,
       "update of operand 0: value 4 of op 1 (negate) has shape (4, 2, 8); the operand has "
       "(4, 12, 8)"},
      {{{.operand = 0, .value = 5}},
       Reason::kUnsupportedDtype,
       "value 5 of op 2 (convert) has type BF16; the operand has F32"},
  };
  for (const Case& each : cases) {
    const absl::Status status = error_of({}, each.updates);
    EXPECT_THAT(status, StatusIs(kInvalid, each.reason));
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message));
  }
  EXPECT_THAT(error_of({3}, {{.operand = 0, .value = 3}}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(PlanWithCache(ops, {}, {{.operand = 0, .value = 3}}, Spec({{}, {}}, {"a"})).status(),
              StatusIs(kInvalid, Reason::kInvalidSpec));
}

TEST(StateUpdateTest, ChecksUpdatesOfPlans) {
  const auto plan = PlanWithCache({UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {3})}, {4},
                                  {{.operand = 0, .value = 3}});
  ASSERT_THAT(plan, IsOk());
  const auto status_with = [&](std::vector<StateUpdate> updates) {
    Plan changed = *plan;
    changed.updates = std::move(updates);
    return CheckPlan(changed);
  };
  const StateUpdate good = plan->updates[0];
  EXPECT_THAT(status_with({good}), IsOk());
  EXPECT_THAT(status_with({good, good}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status_with({{.operand = 9, .value = good.value}}),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status_with({{.operand = 0, .value = 0}}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status_with({{.operand = 0, .value = 99}}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status_with({{.operand = 0, .value = plan->outputs[0]}}),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(status_with({{.operand = 1, .value = good.value}}),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  Plan moved = *plan;
  moved.values[good.value].spec = Spec({{"a"}});
  EXPECT_FALSE(CheckPlan(moved).ok());
}

// Returns the number of values that are made in the memory of operand 0.
size_t PlacesInCache(const absl::StatusOr<Plan>& plan) {
  EXPECT_THAT(plan, IsOk());
  if (!plan.ok()) return 99;
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  const auto places = StatePlaces(*plan);
  const MemoryPlan memory = MemoryPlanOf(*plan);
  size_t count = 0;
  for (size_t value = 0; value < places.size(); ++value) {
    if (!places[value].has_value()) continue;
    EXPECT_EQ(places[value], 0u);
    EXPECT_FALSE(memory.places[value].has_value());
    ++count;
  }
  return count;
}

TEST(StateUpdateTest, ChainsOfRowUpdatesAreMadeInPlace) {
  const std::vector<StateUpdate> first = {{.operand = 0, .value = 3}};
  const std::vector<StateUpdate> second = {{.operand = 0, .value = 4}};
  EXPECT_EQ(PlacesInCache(PlanWithCache({UpdateRows(0, 1, 2)}, {}, first)), 1u);
  EXPECT_EQ(PlacesInCache(PlanWithCache({UpdateRows(0, 1, 2), UpdateRows(3, 1, 2)}, {}, second)),
            2u);
  // Reads before the update, and after it of the result.
  EXPECT_EQ(PlacesInCache(PlanWithCache({Apply(MapFunction::kNegate, {0}), UpdateRows(0, 1, 2),
                                         Apply(MapFunction::kAbs, {4})},
                                        {3, 5}, second)),
            1u);
}

TEST(StateUpdateTest, BrokenChainsHaveMemoryOfTheirOwn) {
  const std::vector<StateUpdate> first = {{.operand = 0, .value = 3}};
  const std::vector<StateUpdate> second = {{.operand = 0, .value = 4}};
  // The old state is read later.
  EXPECT_EQ(PlacesInCache(
                PlanWithCache({UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {0})}, {4}, first)),
            0u);
  // The value between is read after the second update, or is an output.
  EXPECT_EQ(PlacesInCache(PlanWithCache(
                {UpdateRows(0, 1, 2), UpdateRows(3, 1, 2), Apply(MapFunction::kNegate, {3})}, {5},
                second)),
            0u);
  EXPECT_EQ(PlacesInCache(PlanWithCache({UpdateRows(0, 1, 2), UpdateRows(3, 1, 2)}, {3}, second)),
            0u);
  // No update of rows.
  EXPECT_EQ(PlacesInCache(PlanWithCache({Apply(MapFunction::kNegate, {0})}, {}, first)), 0u);
  EXPECT_EQ(PlacesInCache(
                PlanWithCache({UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {3})}, {}, second)),
            0u);
  // No update of this operand.
  EXPECT_EQ(PlacesInCache(PlanWithCache({UpdateRows(0, 1, 2)}, {3}, {})), 0u);
  // The rows are partitioned, so that the update is computed in another layout.
  EXPECT_EQ(PlacesInCache(PlanWithCache({UpdateRows(0, 1, 2)}, {}, first, Spec({{}, {"a"}}))), 0u);
}

TEST(StateUpdateTest, UpdatesInPlaceTakeNoMemory) {
  const auto in_place = PlanWithCache({UpdateRows(0, 1, 2)}, {}, {{.operand = 0, .value = 3}});
  ASSERT_THAT(in_place, IsOk());
  // The device's part of the new rows.
  EXPECT_EQ(in_place->cost.memory_bytes, 2 * 2 * 4 * 4);
  const auto apart = PlanWithCache({UpdateRows(0, 1, 2), Apply(MapFunction::kNegate, {0})}, {4},
                                   {{.operand = 0, .value = 3}});
  ASSERT_THAT(apart, IsOk());
  // Tiles of the cache: the value of the update and the output.
  EXPECT_EQ(apart->cost.memory_bytes, 2 * (2 * 12 * 4 * 4));
  EXPECT_GE(apart->cost.memory_bytes, LeastBytesOf(*apart));
  EXPECT_THAT(ResultsOverOperands(*apart), testing::Each(std::optional<ValueIndex>(std::nullopt)));
}

TEST(StateUpdateTest, ResultsOfTensorOpsAreMadeOverInputs) {
  const auto plan = PlanProgram(
      Program{.operand_count = 2,
              .ops = {Apply(MapFunction::kExp, {0}),                   // 2
                      Apply(MapFunction::kAdd, {1, 2}),                // 3, over 2
                      TensorOp(ReshapeOp{.input = 3, .shape = {24}}),  // 4, over 3
                      Apply(MapFunction::kMultiply, {4, 4}),           // 5, reads the input twice
                      TensorOp(ConvertOp{.input = 5, .dtype = Dtype::kF16}),  // 6, smaller
                      TensorOp(TransposeOp{.input = 6, .permutation = {0}}),  // 7
                      Apply(MapFunction::kAbs, {7})},                         // 8, an output
              .outputs = {8}},
      {Value({4, 6}, PartitionSpec()), Value({4, 6}, PartitionSpec())}, Target("a=1"));
  ASSERT_THAT(plan, IsOk());
  const MemoryPlan memory = MemoryPlanOf(*plan);
  const auto over = [&](size_t value) { return memory.places[value]->over; };
  EXPECT_EQ(over(2), std::nullopt);
  EXPECT_EQ(over(3), 2u);
  EXPECT_EQ(over(4), 3u);
  EXPECT_EQ(over(5), std::nullopt);
  EXPECT_EQ(over(6), std::nullopt);
  EXPECT_EQ(over(7), std::nullopt);
  EXPECT_FALSE(memory.places[8].has_value());
}

TEST(StateUpdateTest, BroadcastInputsAreNotOverwritten) {
  const auto plan =
      PlanProgram(Program{.operand_count = 2,
                          .ops = {Apply(MapFunction::kExp, {1}), Apply(MapFunction::kAdd, {2, 0}),
                                  Apply(MapFunction::kAbs, {3})},
                          .outputs = {4}},
                  {Value({4, 6}, PartitionSpec()), Value({6}, PartitionSpec())}, Target("a=1"));
  ASSERT_THAT(plan, IsOk());
  const MemoryPlan memory = MemoryPlanOf(*plan);
  EXPECT_EQ(memory.places[3]->over, std::nullopt);
  EXPECT_NE(memory.places[3]->offset_bytes, memory.places[2]->offset_bytes);
}

}  // namespace
}  // namespace shardmesh
