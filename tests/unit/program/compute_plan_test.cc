// Plans of single tensor ops for operands in random layouts, run on simulated devices and compared
// with the whole tensors; sums, wishes, and errors.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "program/kernel_time.h"
#include "program/plan_builder.h"
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
using ::testing::IsEmpty;

// An op, and the types of its inputs, which are values 0, 1, ...
struct OpCase {
  TensorOp op;
  std::vector<TensorType> inputs;
};

TensorType F32(Shape shape) { return {.dtype = Dtype::kF32, .shape = std::move(shape)}; }
TensorType I32(Shape shape) { return {.dtype = Dtype::kI32, .shape = std::move(shape)}; }

std::vector<OpCase> OpCases() {
  const auto map = [](MapFunction function, std::vector<ValueIndex> inputs) {
    return MapOp{.function = function, .inputs = std::move(inputs)};
  };
  return {
      {map(MapFunction::kAdd, {0, 1}), {F32({4, 12}), F32({4, 12})}},
      {map(MapFunction::kMultiply, {0, 1}), {F32({4, 12}), F32({12})}},
      {map(MapFunction::kMultiply, {0, 1}), {F32({4, 1}), F32({3, 1, 12})}},
      {map(MapFunction::kAdd, {0, 0}), {F32({6, 0, 2})}},
      {map(MapFunction::kNegate, {0}), {F32({})}},
      {map(MapFunction::kNegate, {0}), {F32({7, 5})}},
      {ConvertOp{.input = 0, .dtype = Dtype::kBF16}, {F32({6, 4})}},
      {NormOp{.input = 0, .weight = 1}, {F32({4, 12}), F32({12})}},
      {SoftmaxOp{.input = 0}, {F32({2, 6, 12})}},
      {ReduceOp{.input = 0, .dimensions = {0, 2}}, {F32({4, 6, 12})}},
      {ReduceOp{.input = 0, .dimensions = {1}, .keeps_dimensions = true}, {F32({4, 6, 12})}},
      {ReduceOp{.input = 0, .reduction = Reduction::kMax, .dimensions = {1}}, {F32({4, 6})}},
      {RotaryOp{.input = 0, .positions = 1, .frequencies = 2},
       {F32({2, 4, 6, 4}), I32({4}), F32({2})}},
      {RotaryOp{.input = 0, .positions = 1, .frequencies = 2},
       {F32({2, 4, 6, 4}), I32({2, 4}), F32({2})}},
      {EmbeddingOp{.table = 0, .ids = 1}, {F32({12, 4}), I32({4, 6})}},
      {EmbeddingOp{.table = 0, .ids = 1}, {F32({7, 1}), I32({})}},
      {AttentionOp{.query = 0, .keys = 1, .values = 2, .scale = 0.01F},
       {F32({2, 4, 12, 4}), F32({2, 3, 6, 4}), F32({2, 3, 6, 2})}},
      {AttentionOp{.query = 0, .keys = 1, .values = 2, .positions = 3, .scale = 0.01F},
       {F32({2, 1, 12, 4}), F32({2, 5, 1, 4}), F32({2, 5, 1, 6}), I32({2, 1})}},
      {TopKOp{.input = 0, .count = 3}, {F32({4, 12})}},
      {TopKOp{.input = 0, .drops_dimension = true}, {F32({4, 12})}},
      {ReshapeOp{.input = 0, .shape = {4, 12, 2}}, {F32({4, 24})}},
      {ReshapeOp{.input = 0, .shape = {4, 24}}, {F32({4, 12, 2})}},
      {ReshapeOp{.input = 0, .shape = {6, 4}}, {F32({4, 6})}},
      {ReshapeOp{.input = 0, .shape = {2, 1, 24, 3}}, {F32({12, 12})}},
      {ReshapeOp{.input = 0, .shape = {12, 12}}, {F32({2, 2, 3, 1, 6, 2})}},
      {ReshapeOp{.input = 0, .shape = {0, 5}}, {F32({4, 0, 3})}},
      {ReshapeOp{.input = 0, .shape = {}}, {F32({1, 1})}},
      {TransposeOp{.input = 0, .permutation = {2, 0, 1}}, {F32({4, 6, 12})}},
      {SliceOp{.input = 0, .starts = {0, 1}, .limits = {4, 11}, .steps = {1, 3}}, {F32({4, 12})}},
      {SliceOp{.input = 0, .starts = {2, 0}, .limits = {2, 12}}, {F32({4, 12})}},
      {ConcatenateOp{.inputs = {0, 1, 0}, .dimension = 1}, {F32({4, 6}), F32({4, 2})}},
      {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
       {F32({4, 6, 12}), F32({4, 2, 12}), I32({2})}},
      {UpdateRowsOp{.input = 0, .update = 1, .positions = 2},
       {F32({4, 6}), F32({4, 3}), I32({4, 3})}},
      {ConstantOp{.value = {.dtype = Dtype::kU8, .shape = {2, 6}, .bytes = std::string(12, '\1')}},
       {}},
  };
}

// Integers are row numbers or positions: distinct along the last dimension, some out of range.
Dense ContentOf(const TensorType& type, int seed) {
  if (type.dtype != Dtype::kI32) return Numbered(type.shape, seed);
  Dense dense{.shape = type.shape, .elements = {}};
  for (int64_t i = 0; i < Count(type.shape); ++i) {
    dense.elements.push_back(static_cast<double>((i * 5 + 2) % 14 - 1));
  }
  return dense;
}

TEST(ComputePlanTest, EachOpRunsForOperandsInAnyLayout) {
  std::mt19937 random(7);
  for (const OpCase& each : OpCases()) {
    std::vector<Dense> contents;
    for (const TensorType& type : each.inputs) {
      contents.push_back(ContentOf(type, static_cast<int>(contents.size())));
    }
    const auto type = ResultTypeOf(each.op, [&] {
      std::vector<TensorType> inputs;
      for (const ValueIndex input : InputsOf(each.op)) inputs.push_back(each.inputs[input]);
      return inputs;
    }());
    ASSERT_THAT(type, IsOk()) << TensorOpName(each.op);
    std::vector<Dense> inputs;
    for (const ValueIndex input : InputsOf(each.op)) inputs.push_back(contents[input]);
    const Dense expected = ComputeDense(each.op, inputs, type->shape);
    for (int round = 0; round < 16; ++round) {
      const PlanTarget target = Target("a=2,b=2,c=3");
      Program program{.operand_count = static_cast<uint32_t>(each.inputs.size()),
                      .ops = {each.op},
                      .outputs = {static_cast<ValueIndex>(each.inputs.size())}};
      // Every second time, a reshard reads the result.
      if (round % 2 == 1) {
        const ValueDescriptor wanted =
            type->shape.empty() ? Value({}, PartitionSpec())
                                : RandomValueWithEmptyParts(target.mesh, type->shape, random);
        program.ops.emplace_back(ReshardOp{
            .input = program.outputs[0], .spec = wanted.spec, .part_starts = StartsOf(wanted)});
        ++program.outputs[0];
      }
      std::vector<ValueDescriptor> operands;
      std::string trace(TensorOpName(each.op));
      for (const TensorType& input : each.inputs) {
        operands.push_back(input.shape.empty()
                               ? Value({}, PartitionSpec())
                               : RandomValueWithEmptyParts(target.mesh, input.shape, random));
        operands.back().dtype = input.dtype;
        trace += " " + operands.back().spec.ToString();
      }
      SCOPED_TRACE(trace);
      const auto plan = PlanProgram(program, operands, target);
      ASSERT_THAT(plan, IsOk());
      ASSERT_THAT(CheckPlan(*plan), IsOk());
      Simulation simulation(*plan);
      for (ValueIndex i = 0; i < contents.size(); ++i) simulation.SetOperand(i, contents[i]);
      simulation.Run();
      simulation.ExpectOutput(plan->outputs[0], expected);
    }
  }
}

absl::StatusOr<Plan> PlanOfOp(TensorOp op, const std::vector<ValueDescriptor>& operands) {
  const auto count = static_cast<uint32_t>(operands.size());
  return PlanProgram(Program{.operand_count = count, .ops = {std::move(op)}, .outputs = {count}},
                     operands, Target("a=2,b=2,c=3"));
}

TEST(ComputePlanTest, SumsOverPartsAreReduced) {
  const auto sum =
      PlanOfOp(ReduceOp{.input = 0, .dimensions = {1}}, {Value({4, 1200}, Spec({{"a"}, {"b"}}))});
  ASSERT_THAT(sum, IsOk());
  EXPECT_THAT(LabelsOf(*sum), ElementsAre("compute", "all-reduce over b"));
  EXPECT_EQ(sum->values[2].spec, Spec({{"a"}}));
  // Sixteen-bit sums are rounded once, so that a device must have all the elements.
  const auto rounded = PlanOfOp(ReduceOp{.input = 0, .dimensions = {1}},
                                {Value({4, 1200}, Spec({{"a"}, {"b"}}), Dtype::kBF16)});
  ASSERT_THAT(rounded, IsOk());
  EXPECT_THAT(LabelsOf(*rounded), ElementsAre(HasSubstr("all-gather"), "compute"));
}

TEST(ComputePlanTest, PartialSumsStayForCollectivesAndScatterForReshards) {
  const std::vector<ValueDescriptor> operands = {Value({1200, 4}, Spec({{"a"}})),
                                                 Value({400}, PartitionSpec(), Dtype::kI32)};
  const EmbeddingOp lookup = {.table = 0, .ids = 1};
  const auto plan_of = [&](ProgramOp reader) {
    return PlanProgram(
        Program{.operand_count = 2, .ops = {TensorOp(lookup), std::move(reader)}, .outputs = {3}},
        operands, Target("a=2,b=2"));
  };
  const auto summed = plan_of(CollectiveOp{.input = 2, .axes = {"a"}});
  ASSERT_THAT(summed, IsOk());
  EXPECT_EQ(summed->values[2].spec, PartitionSpec(Spec({{}, {}}, {"a"})));
  EXPECT_THAT(LabelsOf(*summed), ElementsAre("compute", "all-reduce over a"));
  const auto scattered = plan_of(ReshardOp{.input = 2, .spec = Spec({{"a"}})});
  ASSERT_THAT(scattered, IsOk());
  EXPECT_THAT(LabelsOf(*scattered),
              ElementsAre("compute", HasSubstr("reduce-scatter of dimension 0")));
}

TEST(ComputePlanTest, AWishCutsOperandsThatEachDeviceHas) {
  const auto plan =
      PlanProgram(Program{.operand_count = 1,
                          .ops = {TensorOp(MapOp{.function = MapFunction::kExp, .inputs = {0}}),
                                  TensorOp(ReshapeOp{.input = 1, .shape = {4, 6, 2}}),
                                  ReshardOp{.input = 2, .spec = Spec({{"a"}, {"c"}})}},
                          .outputs = {3}},
                  {Value({4, 12}, PartitionSpec())}, Target("a=2,b=2,c=3"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(LabelsOf(*plan), ElementsAre(HasSubstr("slice to"), "compute", "compute"));
  EXPECT_EQ(plan->values[1].spec, Spec({{"a"}, {"c"}}));
}

TEST(ComputePlanTest, AnInputThatIsReadTwiceMovesOnce) {
  const auto plan = PlanOfOp(ConcatenateOp{.inputs = {0, 0}, .dimension = 1},
                             {Value({4, 12}, Spec({{"a"}, {"b"}}))});
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(LabelsOf(*plan), ElementsAre(HasSubstr("all-gather of dimension 1"), "compute"));
  EXPECT_EQ(plan->values.back().spec, Spec({{"a"}, {}}));
}

TEST(ComputePlanTest, CountsWorkByBytesAndAttentionByProducts) {
  const std::vector<ValueDescriptor> operands = {Value({2, 4, 12, 4}, Spec({{"a"}, {}, {"c"}})),
                                                 Value({2, 5, 6, 4}, Spec({{"a"}, {}, {"c"}})),
                                                 Value({2, 5, 6, 2}, Spec({{"a"}, {}, {"c"}}))};
  const auto attention = PlanOfOp(AttentionOp{.query = 0, .keys = 1, .values = 2}, operands);
  ASSERT_THAT(attention, IsOk());
  EXPECT_EQ(attention->cost.flops, 2 * (1 * 4 * 4) * 5 * (4 + 2));
  const auto seconds_of = [](const Plan& plan) {
    return KernelSeconds(plan, plan.instructions.back(), {.seconds_per_byte = 1});
  };
  EXPECT_DOUBLE_EQ(seconds_of(*attention), 4 * (1 * 4 * 4 * (4 + 2) + 1 * 5 * 2 * (4 + 2)));
  const auto negated =
      PlanOfOp(MapOp{.function = MapFunction::kNegate, .inputs = {0}}, {operands[0]});
  ASSERT_THAT(negated, IsOk());
  EXPECT_EQ(negated->cost.flops, 0);
  EXPECT_DOUBLE_EQ(seconds_of(*negated), 2 * 4 * (1 * 4 * 4 * 4));
  // A lookup reads only the rows that it copies.
  const auto lookup =
      PlanOfOp(EmbeddingOp{.table = 0, .ids = 1},
               {Value({1000, 8}, PartitionSpec()), Value({3}, PartitionSpec(), Dtype::kI32)});
  ASSERT_THAT(lookup, IsOk());
  EXPECT_DOUBLE_EQ(seconds_of(*lookup), 2 * 4 * (3 * 8));
}

// The planner takes a time in proportion to the inputs.
TEST(ComputePlanTest, ConcatenationsOfManyInputsHaveALimit) {
  const std::vector<ValueDescriptor> operands(kMaxProgramSize, Value({2, 3}, Spec({{"a"}, {}})));
  ConcatenateOp join = {.inputs = std::vector<ValueIndex>(kMaxProgramSize), .dimension = 1};
  std::iota(join.inputs.begin(), join.inputs.end(), ValueIndex{0});
  Program program = {.operand_count = kMaxProgramSize,
                     .ops = std::vector<ProgramOp>(1, TensorOp(join)),
                     .outputs = {kMaxProgramSize}};
  const auto plan = PlanProgram(program, operands, Target("a=2"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->instructions.size(), 1U) << "the inputs keep their layout";
  EXPECT_EQ(plan->values.back(), Value({2, 3 * int64_t{kMaxProgramSize}}, Spec({{"a"}, {}})));
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  program.ops.assign(9, TensorOp(join));
  EXPECT_THAT(PlanProgram(program, operands, Target("a=2")).status(),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

// Each op differs from the others, so the planner cannot take the layout of an op before it.
TEST(ComputePlanTest, OpsBeyondTheMostLayoutsKeepTheLayoutsOfTheirInputs) {
  Program program = {.operand_count = 1, .ops = {}, .outputs = {}};
  const int64_t rows = int64_t{kMostComputeLayouts} / 2 + 1;
  for (int64_t i = 0; i < rows; ++i) {
    program.ops.emplace_back(
        TensorOp(SliceOp{.input = 0, .starts = {0, i, 0}, .limits = {2, i + 1, 2}, .steps = {}}));
    program.ops.emplace_back(
        ReshardOp{.input = static_cast<ValueIndex>(2 * i + 1), .spec = Spec({{}, {}, {"a"}})});
    program.outputs.push_back(static_cast<ValueIndex>(2 * i + 2));
  }
  const auto plan =
      PlanProgram(program, {Value({2, rows, 2}, Spec({{"a"}, {}, {}}))}, Target("a=2"));
  ASSERT_THAT(plan, IsOk());
  EXPECT_THAT(CheckPlan(*plan), IsOk());
  for (const Instruction& instruction : plan->instructions) {
    if (!std::holds_alternative<LocalCompute>(instruction.kind)) continue;
    EXPECT_EQ(plan->values[instruction.output].spec, Spec({{"a"}, {}, {}}));
  }
  EXPECT_EQ(plan->values[plan->outputs.back()].spec, Spec({{}, {}, {"a"}}));
}

TEST(ComputePlanTest, ErrorsNameTheOp) {
  const auto add = [](ValueIndex a, ValueIndex b) {
    return TensorOp(MapOp{.function = MapFunction::kAdd, .inputs = {a, b}});
  };
  const auto plan_of = [&](std::vector<ProgramOp> ops) {
    return PlanProgram(Program{.operand_count = 2, .ops = std::move(ops), .outputs = {2}},
                       {Value({4}, PartitionSpec()), Value({3}, PartitionSpec())}, Target("a=2"))
        .status();
  };
  EXPECT_THAT(plan_of({add(0, 1)}), StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(plan_of({add(0, 1)}).message(), HasSubstr("op 0 (add): shapes (4,) and (3,)"));
  EXPECT_THAT(plan_of({add(0, 0), add(2, 9)}), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(plan_of({add(0, 0), add(2, 9)}).message(),
            "op 1 (add): value 9 does not exist; the program has 4 values");
  EXPECT_EQ(plan_of({add(0, 2)}).message(), "op 0 (add): reads value 2, its own result");
  EXPECT_EQ(plan_of({add(0, 3), add(0, 0)}).message(),
            "op 0 (add): reads value 3, which op 1 (add) makes; an op reads only operands and the "
            "results of ops before it");
  EXPECT_EQ(plan_of({add(0, 0), add(0, 5), add(3, 0), add(1, 4)}).message(),
            "op 1 (add): reads value 5, which op 3 (add) makes; op 3 reads value 4, which op 2 "
            "(add) makes; op 2 reads value 3, which op 1 (add) makes; this is a cycle");
}

}  // namespace
}  // namespace shardmesh
