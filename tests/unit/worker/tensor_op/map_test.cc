// Functions of elements: against the C library, broadcast, types, and equal bits on all CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/unit/worker/tensor_op/op_run.h"
#include "worker/tensor_op/map_loops.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

long double Exact(MapFunction function, long double x, long double y = 0) {
  switch (function) {
    case MapFunction::kAdd:
      return x + y;
    case MapFunction::kSubtract:
      return x - y;
    case MapFunction::kMultiply:
      return x * y;
    case MapFunction::kDivide:
      return x / y;
    case MapFunction::kMinimum:
      return std::isnan(x) || std::isnan(y) ? x + y : std::min(x, y);
    case MapFunction::kMaximum:
      return std::isnan(x) || std::isnan(y) ? x + y : std::max(x, y);
    case MapFunction::kNegate:
      return -x;
    case MapFunction::kAbs:
      return std::fabs(x);
    case MapFunction::kExp:
      return std::exp(x);
    case MapFunction::kLog:
      return std::log(x);
    case MapFunction::kSqrt:
      return std::sqrt(x);
    case MapFunction::kRsqrt:
      return 1 / std::sqrt(x);
    case MapFunction::kTanh:
      return std::tanh(x);
    case MapFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case MapFunction::kRelu:
      return x < 0 ? 0 : x;
    case MapFunction::kGelu:
      return x == -INFINITY ? 0 : x / 2 * std::erfc(-x / std::sqrt(2.0L));
    case MapFunction::kGeluTanh: {
      const long double u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
      return x == -INFINITY ? 0 : x / (1 + std::exp(-2 * u));
    }
    case MapFunction::kSilu:
      return x == -INFINITY ? 0 : x / (1 + std::exp(-x));
  }
  return 0;
}

MapOp MakeMap(MapFunction function) {
  return {.function = function,
          .inputs = std::vector<ValueIndex>(InputCountOf(function), ValueIndex{0})};
}

std::vector<double> MapInputs(double largest) {
  std::vector<double> values = {0.0, -0.0, kInfinite, -kInfinite, kNan, 1, -1, largest, -largest};
  for (double x = 1e-30; x < largest; x *= 1.37) {
    values.push_back(x);
    values.push_back(-x);
  }
  for (double x = -12; x < 12; x += 0.0137) values.push_back(x);
  return values;
}

TEST(MapTest, FunctionsOfOneFloatAreExactToTheLastPlaces) {
  for (const MapFunction function : AllMapFunctions()) {
    if (InputCountOf(function) != 1) continue;
    SCOPED_TRACE(std::string(MapFunctionName(function)));
    for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      SCOPED_TRACE(std::string(DtypeName(dtype)));
      const std::vector<double> inputs = MapInputs(dtype == Dtype::kF16 ? 6e4 : 1e30);
      const auto count = static_cast<int64_t>(inputs.size());
      const TestTile input = Made(dtype, {count}, inputs);
      const std::vector<double> rounded = ValuesOf(input);
      std::vector<double> expected;
      for (const double x : rounded) {
        // Results of overflow are those of the type.
        const double exact = static_cast<double>(Exact(function, x));
        expected.push_back(ValuesOf(Made(dtype, {1}, {exact}))[0]);
      }
      // The exponents of gelu and gelu-tanh are rounded.
      const bool is_rounded = function == MapFunction::kGelu || function == MapFunction::kGeluTanh;
      if (dtype == Dtype::kF64) {
        ExpectClose(RunOp(MakeMap(function), {input}), expected, is_rounded ? 4000 : 60, 1e-290);
      } else {
        ExpectClose(RunOp(MakeMap(function), {input}), expected, 1.01,
                    dtype == Dtype::kF16 ? 0x1p-14 : 1e-30);
      }
    }
  }
}

TEST(MapTest, FunctionsOfTwoAreBroadcastInEveryWay) {
  const std::vector<std::pair<Shape, Shape>> cases = {{{}, {}},
                                                      {{5}, {5}},
                                                      {{5}, {}},
                                                      {{}, {5}},
                                                      {{3, 5}, {5}},
                                                      {{3, 5}, {3, 1}},
                                                      {{3, 1}, {1, 5}},
                                                      {{1, 5}, {3, 1}},
                                                      {{2, 3, 4}, {3, 1}},
                                                      {{2, 1, 4}, {3, 1}},
                                                      {{2, 3, 4}, {2, 1, 1}},
                                                      {{4, 1, 3, 1}, {2, 1, 7}},
                                                      {{2, 700}, {700}},
                                                      {{700, 3}, {700, 1}},
                                                      {{0, 3}, {1, 3}},
                                                      {{3, 0}, {3, 1}},
                                                      {{1, 1, 1}, {1}},
                                                      {{131, 1031}, {131, 1031}},
                                                      {{65, 1031}, {65, 1}}};
  for (const MapFunction function : AllMapFunctions()) {
    if (InputCountOf(function) != 2) continue;
    SCOPED_TRACE(std::string(MapFunctionName(function)));
    for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kI8,
                              Dtype::kI16, Dtype::kI32, Dtype::kI64}) {
      // Large shapes are cut among threads in the same way for all types and functions.
      const bool has_large = dtype == Dtype::kBF16 && function == MapFunction::kSubtract;
      const bool is_float = dtype != Dtype::kI8 && dtype != Dtype::kI16 && dtype != Dtype::kI32 &&
                            dtype != Dtype::kI64;
      if (function == MapFunction::kDivide && !is_float) continue;
      for (const auto& [left_shape, right_shape] : cases) {
        if (!has_large && ElementsIn(left_shape) > 10'000) continue;
        const TestTile left = Random(dtype, left_shape, 1);
        const TestTile right = Random(dtype, right_shape, 2);
        const TestTile result = RunOp(MakeMap(function), {left, right});
        const std::vector<double> a = ValuesOf(left), b = ValuesOf(right);
        std::vector<double> expected;
        const auto index_of = [&](const Shape& shape, int64_t element) {
          int64_t index = 0, stride = 1;
          for (size_t i = 0; i < result.shape.size(); ++i) {
            const int64_t extent = result.shape[result.shape.size() - 1 - i];
            const int64_t at = element % extent;
            element /= extent;
            if (i >= shape.size()) continue;
            const int64_t own = shape[shape.size() - 1 - i];
            index += own == 1 ? 0 : at * stride;
            stride *= own;
          }
          return static_cast<size_t>(index);
        };
        for (int64_t i = 0; i < ElementsIn(result.shape); ++i) {
          const double exact = static_cast<double>(
              Exact(function, a[index_of(left_shape, i)], b[index_of(right_shape, i)]));
          expected.push_back(dtype == Dtype::kI8 ? static_cast<int8_t>(static_cast<int64_t>(exact))
                                                 : exact);
        }
        if (is_float) expected = ValuesOf(Made(dtype, result.shape, expected));
        if (is_float) {
          ExpectClose(result, expected, 1.01, 1e-6);
        } else {
          EXPECT_EQ(ValuesOf(result), expected) << DtypeName(dtype);
        }
      }
    }
  }
}

TEST(MapTest, IntegersWrap) {
  const TestTile low = Made(Dtype::kI8, {3}, {-128, 127, 100});
  const TestTile other = Made(Dtype::kI8, {3}, {-1, 1, 3});
  EXPECT_EQ(ValuesOf(RunOp(MakeMap(MapFunction::kAdd), {low, other})),
            (std::vector<double>{127, -128, 103}));
  EXPECT_EQ(ValuesOf(RunOp(MakeMap(MapFunction::kSubtract), {low, other})),
            (std::vector<double>{-127, 126, 97}));
  EXPECT_EQ(ValuesOf(RunOp(MakeMap(MapFunction::kMultiply), {low, other})),
            (std::vector<double>{-128, 127, 44}));
  EXPECT_EQ(ValuesOf(RunOp(MakeMap(MapFunction::kNegate), {low})),
            (std::vector<double>{-128, -127, -100}));
  EXPECT_EQ(ValuesOf(RunOp(MakeMap(MapFunction::kAbs), {low})),
            (std::vector<double>{-128, 127, 100}));
}

TEST(MapTest, ANanOnEitherSideStays) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    const TestTile left = Made(dtype, {4}, {kNan, 1, kNan, -kInfinite});
    const TestTile right = Made(dtype, {4}, {1, kNan, kNan, kInfinite});
    EXPECT_THAT(
        ValuesOf(RunOp(MakeMap(MapFunction::kMaximum), {left, right})),
        ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), {kNan, kNan, kNan, kInfinite}));
    EXPECT_THAT(
        ValuesOf(RunOp(MakeMap(MapFunction::kMinimum), {left, right})),
        ::testing::Pointwise(::testing::NanSensitiveDoubleEq(), {kNan, kNan, kNan, -kInfinite}));
    EXPECT_THAT(ValuesOf(RunOp(MakeMap(MapFunction::kAdd), {left, right})),
                ::testing::Each(::testing::IsNan()));
  }
}

TEST(MapTest, SpecialNumbersOfActivations) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    for (const MapFunction function :
         {MapFunction::kGelu, MapFunction::kGeluTanh, MapFunction::kSilu}) {
      const std::vector<double> values =
          ValuesOf(RunOp(MakeMap(function), {Made(dtype, {3}, {-kInfinite, kInfinite, -0.0})}));
      EXPECT_EQ(values[0], 0);
      EXPECT_TRUE(std::signbit(values[0])) << MapFunctionName(function);
      EXPECT_EQ(values[1], kInfinite);
      EXPECT_TRUE(std::signbit(values[2]));
    }
  }
}

TEST(MapTest, AllInstructionSetsGiveTheSameBits) {
  const std::vector<double> inputs = MapInputs(1e30);
  const auto count = static_cast<int64_t>(inputs.size());
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    for (const MapFunction function : AllMapFunctions()) {
      std::vector<char> first;
      OnEachInstructionSet([&](const std::string&) {
        std::vector<TestTile> tiles(InputCountOf(function), Made(dtype, {count}, inputs));
        if (tiles.size() == 2)
          std::rotate(tiles[1].bytes.begin(), tiles[1].bytes.begin() + 800, tiles[1].bytes.end());
        const TestTile result = RunOp(MakeMap(function), tiles);
        if (first.empty()) first = result.bytes;
        EXPECT_EQ(result.bytes, first) << MapFunctionName(function) << DtypeName(dtype);
      });
    }
  }
}

TEST(MapTest, ALargeOneEndsWithItsAbort) {
  const TestTile input = Unset(Dtype::kBF16, {5'000'000});
  OpContext context;
  int calls = 0;
  context.abort_check = [&calls] {
    ++calls;
    return absl::AbortedError("the step was aborted");
  };
  EXPECT_EQ(ErrorOf(MakeMap(MapFunction::kExp), {input}, input, context).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
