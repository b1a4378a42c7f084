// Norms of rows against plain sums in long double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

constexpr NormKind kNormKinds[] = {NormKind::kRms, NormKind::kLayer, NormKind::kL2};

std::vector<double> PlainNorm(const NormOp& op, const std::vector<double>& x, size_t features,
                              const std::vector<double>& weight, const std::vector<double>& bias) {
  std::vector<double> result;
  const auto count = static_cast<long double>(features);
  for (size_t row = 0; row < x.size(); row += features) {
    long double mean = 0, squares = 0;
    for (size_t i = 0; i < features; ++i) mean += x[row + i] / count;
    if (op.kind != NormKind::kLayer) mean = 0;
    for (size_t i = 0; i < features; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
    const auto epsilon = static_cast<long double>(op.epsilon);
    const long double divisor = op.kind == NormKind::kL2 ? std::max(std::sqrt(squares), epsilon)
                                                         : std::sqrt(squares / count + epsilon);
    for (size_t i = 0; i < features; ++i) {
      long double value = (x[row + i] - mean) / divisor;
      if (!weight.empty()) value *= weight[i];
      if (!bias.empty()) value += bias[i];
      result.push_back(static_cast<double>(value));
    }
  }
  return result;
}

TEST(NormTest, AllKindsTypesAndShapes) {
  for (const NormKind kind : kNormKinds) {
    for (const Dtype dtype : kShortFloats) {
      for (const Shape& shape : {Shape{1}, Shape{3, 7}, Shape{2, 3, 33}, Shape{2, 513},
                                 Shape{70, 1031}, Shape{0, 5}, Shape{5, 0}}) {
        if (ElementsIn(shape) > 10'000 && kind != NormKind::kLayer) continue;
        const int64_t features = shape.back();
        for (const int with : {0, 1, 2, 3}) {
          NormOp op = {.kind = kind, .epsilon = 1e-3f};
          std::vector<TestTile> inputs = {Random(dtype, shape, 1)};
          std::vector<double> weight, bias;
          if ((with & 1) != 0) {
            op.weight = 0;
            inputs.push_back(Random(dtype, {features}, 2));
            weight = ValuesOf(inputs.back());
          }
          if ((with & 2) != 0) {
            op.bias = 0;
            inputs.push_back(Random(Dtype::kF32, {features}, 3));
            bias = ValuesOf(inputs.back());
          }
          SCOPED_TRACE(ShapeToString(shape) + std::to_string(with));
          const TestTile result = RunOp(op, inputs);
          if (result.size() == 0) continue;
          ExpectClose(
              result,
              PlainNorm(op, ValuesOf(inputs[0]), static_cast<size_t>(features), weight, bias), 0.52,
              0.01);
        }
      }
    }
  }
}

TEST(NormTest, ALargeMeanDoesNotCancel) {
  std::vector<double> values;
  for (int i = 0; i < 256; ++i) values.push_back(100000 + i % 16);
  const TestTile input = Made(Dtype::kF32, {1, 256}, values);
  const NormOp op = {.kind = NormKind::kLayer, .epsilon = 0};
  ExpectClose(RunOp(op, {input}), PlainNorm(op, values, 256, {}, {}), 1);
}

TEST(NormTest, LargeAndSmallNumbers) {
  for (const double scale : {1e30, 1e-30}) {
    std::vector<double> values;
    for (int i = 0; i < 40; ++i) values.push_back((i - 20) * scale);
    const TestTile input = Made(Dtype::kF32, {2, 20}, values);
    const NormOp op = {.kind = NormKind::kRms, .epsilon = 0};
    ExpectClose(RunOp(op, {input}), PlainNorm(op, ValuesOf(input), 20, {}, {}), 1);
  }
}

TEST(NormTest, ZerosAndNans) {
  const TestTile input = Made(Dtype::kF32, {3, 2},
                              {0, 0, std::nan(""), 1, std::numeric_limits<double>::infinity(), 1});
  for (const NormKind kind : kNormKinds) {
    const std::vector<double> values =
        ValuesOf(RunOp(NormOp{.kind = kind, .epsilon = 1e-5f}, {input}));
    EXPECT_EQ(values[0], 0);
    EXPECT_TRUE(std::isnan(values[2]));
    EXPECT_TRUE(std::isnan(values[3]));
    EXPECT_TRUE(std::isnan(values[4]));
  }
}

TEST(NormTest, AllInstructionSetsGiveTheSameBits) {
  for (const NormKind kind : kNormKinds) {
    for (const Dtype dtype : kShortFloats) {
      const TestTile input = Random(dtype, {5, 1037}, 4);
      const TestTile weight = Random(dtype, {1037}, 5);
      std::vector<char> first;
      OnEachInstructionSet([&](const std::string&) {
        const TestTile result =
            RunOp(NormOp{.kind = kind, .weight = 1, .bias = 2}, {input, weight, weight});
        if (first.empty()) first = result.bytes;
        EXPECT_EQ(result.bytes, first);
      });
    }
  }
}

TEST(NormTest, ALongRowIsThatOfItsPieces) {
  // Elements are 1 and 3 in turn: the mean is 2, the variance 1, the mean of the squares 5.
  constexpr int64_t kCount = (int64_t{1} << 21) + 38;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const TestTile input = Repeating(dtype, {1, kCount}, {1, 3});
    const TestTile weight = Repeating(dtype, {kCount}, {1, 2, 4});
    const TestTile layer = RunOp(NormOp{.kind = NormKind::kLayer, .weight = 1}, {input, weight});
    const TestTile rms = RunOp(NormOp{.kind = NormKind::kRms}, {input});
    for (const size_t i :
         {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, static_cast<size_t>(kCount - 1)}) {
      const double x = i % 2 == 0 ? 1 : 3;
      EXPECT_NEAR(ValueAt(layer, i), (x - 2) * ValueAt(weight, i), 1e-3) << i;
      EXPECT_NEAR(ValueAt(rms, i), x / std::sqrt(5.0), 0x1p-8) << i;
    }
  }
}

TEST(NormTest, ALongRowEndsWithItsAbort) {
  const TestTile input = Unset(Dtype::kF32, {1, (int64_t{1} << 21) + 1});
  OpContext context;
  int calls = 0;
  context.abort_check = [&calls] {
    ++calls;
    return absl::AbortedError("the step was aborted");
  };
  EXPECT_EQ(ErrorOf(NormOp{.kind = NormKind::kRms}, {input}, input, context).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
