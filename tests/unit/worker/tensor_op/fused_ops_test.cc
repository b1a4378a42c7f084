// Fused functions of elements have the bits of the separate ops.
#include "worker/tensor_op/fused_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "program/step_plan.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Fused ops and their inputs.
struct FusedCase {
  std::vector<TestTile> inputs;
  FusedCompute fused;
};

void AddOp(TensorOp op, FusedCase* to) {
  std::string label = StrCat("op ", to->fused.ops.size(), " (", TensorOpName(op), ")");
  to->fused.ops.push_back({.op = std::move(op), .label = std::move(label)});
}

FusedCase CaseOf(std::vector<TestTile> inputs, const std::vector<TensorOp>& ops) {
  FusedCase each = {.inputs = std::move(inputs), .fused = {}};
  for (size_t i = 0; i < each.inputs.size(); ++i) {
    each.fused.inputs.push_back(static_cast<ValueIndex>(i));
  }
  for (const TensorOp& op : ops) AddOp(op, &each);
  return each;
}

TensorOp Apply(MapFunction function, std::vector<ValueIndex> inputs) {
  return MapOp{.function = function, .inputs = std::move(inputs)};
}

// Runs the ops one after the other, and returns the last result.
TestTile RunSeparately(const FusedCase& each) {
  std::vector<TestTile> values = each.inputs;
  for (const FusedOp& op : each.fused.ops) {
    std::vector<TensorType> types;
    std::vector<OpInput> inputs;
    for (const ValueIndex input : InputsOf(op.op)) {
      types.push_back({.dtype = values[input].dtype, .shape = values[input].shape});
      inputs.push_back(values[input].AsInput());
    }
    const absl::StatusOr<TensorType> type = ResultTypeOf(op.op, types);
    EXPECT_THAT(type, IsOk());
    if (!type.ok()) break;
    TestTile made = Unset(type->dtype, type->shape);
    EXPECT_THAT(RunTensorOp(op.op, inputs, made.AsOutput(), {}), IsOk());
    values.push_back(std::move(made));
  }
  return values.back();
}

absl::Status RunFused(const FusedCase& each, TestTile* result, const OpContext& context = {}) {
  std::vector<OpInput> inputs;
  for (const TestTile& input : each.inputs) inputs.push_back(input.AsInput());
  return RunFusedOps(each.fused, inputs, result->AsOutput(), context);
}

// Compares the fused ops with the separate ones: with one thread, with three, and in the memory of
// each input of the output's type and size.
void ExpectSameBits(const FusedCase& each) {
  const TestTile expected = RunSeparately(each);
  for (const int threads : {1, 3}) {
    TestTile fused = Unset(expected.dtype, expected.shape);
    OpContext context;
    context.threads = threads;
    ASSERT_THAT(RunFused(each, &fused, context), IsOk());
    EXPECT_EQ(fused.bytes, expected.bytes) << threads << " threads";
  }
  for (size_t i = 0; i < each.inputs.size(); ++i) {
    if (each.inputs[i].dtype != expected.dtype ||
        each.inputs[i].bytes.size() != expected.bytes.size()) {
      continue;
    }
    TestTile place = Unset(expected.dtype, expected.shape);
    place.bytes = each.inputs[i].bytes;
    std::vector<OpInput> inputs;
    for (const TestTile& input : each.inputs) inputs.push_back(input.AsInput());
    inputs[i].bytes = absl::MakeConstSpan(place.bytes);
    ASSERT_THAT(RunFusedOps(each.fused, inputs, place.AsOutput(), {}), IsOk());
    EXPECT_EQ(place.bytes, expected.bytes) << "in the place of input " << i;
  }
}

// Returns a shape that can be broadcast to `shape`.
Shape Narrowed(const Shape& shape, std::mt19937& random) {
  Shape narrow(shape.begin() + static_cast<std::ptrdiff_t>(random() % (shape.size() + 1)),
               shape.end());
  for (int64_t& extent : narrow) {
    if (random() % 3 == 0) extent = 1;
  }
  return narrow;
}

// Adds a random op, whose result has the whole shape, and returns the type of its result. `types`
// are those of the inputs and of the results so far.
Dtype AddRandomOp(const std::vector<TensorType>& types, const Shape& shape, std::mt19937& random,
                  FusedCase* to) {
  constexpr Dtype kTypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                              Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64,
                              Dtype::kU8,  Dtype::kU16, Dtype::kU32,  Dtype::kU64};
  const absl::Span<const MapFunction> functions = AllMapFunctions();
  while (true) {
    const auto left = static_cast<ValueIndex>(random() % types.size());
    const auto right = static_cast<ValueIndex>(random() % types.size());
    const MapFunction function = functions[random() % functions.size()];
    TensorOp op = ConvertOp{.input = left, .dtype = kTypes[random() % std::size(kTypes)]};
    std::vector<TensorType> read = {types[left]};
    if (random() % 4 != 0) {
      const bool is_pair = InputCountOf(function) == 2;
      op = Apply(function,
                 is_pair ? std::vector<ValueIndex>{left, right} : std::vector<ValueIndex>{left});
      if (is_pair) read.push_back(types[right]);
    }
    const absl::StatusOr<TensorType> type = ResultTypeOf(op, read);
    if (!type.ok() || type->shape != shape) continue;
    AddOp(std::move(op), to);
    return type->dtype;
  }
}

TEST(FusedOpsTest, RandomOpsOfAllTypesHaveTheBitsOfSeparateOps) {
  const std::vector<Shape> shapes = {{3, 5},  {1},    {7, 1, 33}, {513}, {2, 600}, {2, 3, 1, 9},
                                     {70, 8}, {0, 4}, {5, 1, 1},  {},    {1025},   {2, 2, 257}};
  constexpr Dtype kInputTypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kI8,
                                   Dtype::kI16, Dtype::kI32, Dtype::kI64,  Dtype::kU8};
  std::mt19937 random(5);
  for (int i = 0; i < 150; ++i) {
    SCOPED_TRACE(i);
    const Shape& shape = shapes[random() % shapes.size()];
    const Dtype dtype = kInputTypes[static_cast<size_t>(i) % std::size(kInputTypes)];
    std::vector<TestTile> inputs = {Random(dtype, shape, static_cast<uint32_t>(random()))};
    for (size_t more = random() % 3; more > 0; --more) {
      inputs.push_back(Random(dtype, Narrowed(shape, random), static_cast<uint32_t>(random())));
    }
    std::vector<TensorType> types;
    for (const TestTile& input : inputs) {
      types.push_back({.dtype = input.dtype, .shape = input.shape});
    }
    FusedCase each = CaseOf(std::move(inputs), {});
    for (size_t left = 2 + random() % 10; left > 0; --left) {
      const Dtype made = AddRandomOp(types, shape, random, &each);
      types.push_back({.dtype = made, .shape = shape});
    }
    ExpectSameBits(each);
    if (HasFailure()) return;
  }
}

TEST(FusedOpsTest, EachResultIsRoundedToItsType) {
  // 1 + 2^-9 is 1 in BF16: in F32 throughout, the result would not be 0.
  const TestTile one = Made(Dtype::kBF16, {1}, {1});
  const TestTile small = Made(Dtype::kBF16, {1}, {0x1p-9});
  const FusedCase each = CaseOf(
      {one, small}, {Apply(MapFunction::kAdd, {0, 1}), Apply(MapFunction::kSubtract, {2, 0})});
  TestTile result = Unset(Dtype::kBF16, {1});
  ASSERT_THAT(RunFused(each, &result), IsOk());
  EXPECT_EQ(ValuesOf(result), std::vector<double>{0});
  ExpectSameBits(each);
}

TEST(FusedOpsTest, NansAndInfinitiesHaveTheBitsOfSeparateOps) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {
      kInfinity, -kInfinity, 0, -0.0, 1e30, -1e30, std::numeric_limits<double>::quiet_NaN()};
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    SCOPED_TRACE(DtypeName(dtype));
    std::vector<TestTile> inputs = {Made(dtype, {7, 1}, values), Made(dtype, {7}, values),
                                    Repeating(dtype, {7, 7}, values)};
    ExpectSameBits(CaseOf(std::move(inputs),
                          {Apply(MapFunction::kAdd, {2, 0}), Apply(MapFunction::kMultiply, {3, 1}),
                           Apply(MapFunction::kSilu, {4}), Apply(MapFunction::kMinimum, {5, 3}),
                           ConvertOp{.input = 6, .dtype = Dtype::kI32},
                           ConvertOp{.input = 7, .dtype = Dtype::kBF16}}));
  }
}

TEST(FusedOpsTest, ThreadsShareLongTensors) {
  const Shape shape = {3, 50'000};
  std::vector<TestTile> inputs = {Repeating(Dtype::kF32, shape, {1, -2, 0.5, 3, -0.25}),
                                  Repeating(Dtype::kF32, {50'000}, {0.5, 0.25, -1}),
                                  Made(Dtype::kF32, {3, 1}, {1, 2, 3}),
                                  Made(Dtype::kF32, {}, {0.125})};
  ExpectSameBits(CaseOf(std::move(inputs),
                        {Apply(MapFunction::kMultiply, {0, 3}), Apply(MapFunction::kAdd, {4, 1}),
                         Apply(MapFunction::kRelu, {5}), Apply(MapFunction::kMultiply, {6, 2}),
                         Apply(MapFunction::kSubtract, {7, 5})}));
}

TEST(FusedOpsTest, AnAbortEndsTheRun) {
  const Shape shape = {3 << 20};
  const FusedCase each =
      CaseOf({Repeating(Dtype::kI8, shape, {1, 2, 3})},
             {Apply(MapFunction::kAdd, {0, 0}), Apply(MapFunction::kNegate, {1})});
  TestTile result = Unset(Dtype::kI8, shape);
  int checks = 0;
  OpContext context;
  context.abort_check = [&checks] {
    ++checks;
    return absl::AbortedError("a peer has left");
  };
  const absl::Status run = RunFused(each, &result, context);
  EXPECT_EQ(run.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(checks, 1);
}

TEST(FusedOpsTest, ErrorsNameTheOp) {
  const TestTile a = Random(Dtype::kF32, {4, 6}, 1);
  const TestTile b = Random(Dtype::kBF16, {4, 6}, 2);
  const TestTile row = Random(Dtype::kF32, {6}, 3);
  const auto error_of = [](const FusedCase& each, TestTile result) {
    return RunFused(each, &result);
  };
  const TestTile result = Unset(Dtype::kF32, {4, 6});
  const TensorOp negate = Apply(MapFunction::kNegate, {0});
  const absl::Status types =
      error_of(CaseOf({a, b}, {negate, Apply(MapFunction::kAdd, {2, 1})}), result);
  EXPECT_THAT(types, StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(std::string(types.message()), AllOf(HasSubstr("op 1 (add): "), HasSubstr("BF16")));
  const absl::Status shapes =
      error_of(CaseOf({row, a}, {negate, Apply(MapFunction::kAdd, {2, 1})}), result);
  EXPECT_THAT(shapes, StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(std::string(shapes.message()), HasSubstr("op 0 (negate): "));
  EXPECT_THAT(error_of(CaseOf({a}, {negate, Apply(MapFunction::kNegate, {1})}),
                       Unset(Dtype::kBF16, {4, 6})),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
  EXPECT_THAT(error_of(CaseOf({a}, {negate, Apply(MapFunction::kNegate, {2})}), result),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(error_of(CaseOf({a}, {negate, ReduceOp{.input = 1, .dimensions = {0}}}),
                       Unset(Dtype::kF32, {6})),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(error_of(CaseOf({a}, {negate, NormOp{.input = 1}}), result),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(error_of(CaseOf({a}, {}), result), StatusIs(kInvalid, Reason::kBadField));
  FusedCase missing = CaseOf({a}, {negate, Apply(MapFunction::kNegate, {1})});
  missing.fused.inputs.push_back(1);
  EXPECT_THAT(error_of(missing, result), StatusIs(kInvalid, Reason::kBadField));
  TestTile short_result = result;
  short_result.bytes.resize(8);
  EXPECT_THAT(error_of(CaseOf({a}, {negate, Apply(MapFunction::kNegate, {1})}), short_result),
              StatusIs(kInvalid, Reason::kShapeMismatch));
}

}  // namespace
}  // namespace shardmesh::worker::op_test
