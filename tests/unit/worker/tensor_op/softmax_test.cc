// Softmax of rows: masks of every shape, infinities, and rows without elements.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

constexpr double kSoftmaxInfinity = std::numeric_limits<double>::infinity();

// `mask` is empty or as large as `x`.
std::vector<double> PlainSoftmax(const std::vector<double>& x, size_t count, double scale,
                                 const std::vector<bool>& mask) {
  std::vector<double> result(x.size(), 0);
  for (size_t row = 0; row < x.size(); row += count) {
    long double largest = -kSoftmaxInfinity, sum = 0;
    const auto is_seen = [&](size_t i) { return mask.empty() || mask[row + i]; };
    for (size_t i = 0; i < count; ++i) {
      if (is_seen(i)) largest = std::max<long double>(largest, scale * x[row + i]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (is_seen(i)) sum += std::exp(scale * x[row + i] - largest);
    }
    for (size_t i = 0; i < count; ++i) {
      if (is_seen(i)) {
        result[row + i] = static_cast<double>(std::exp(scale * x[row + i] - largest) / sum);
      }
    }
  }
  return result;
}

TEST(SoftmaxTest, TypesShapesAndMasks) {
  const std::vector<Shape> shapes = {{1}, {3, 5}, {2, 3, 33}, {2, 2, 3, 700}, {0, 4}, {4, 0}};
  for (const Dtype dtype : kShortFloats) {
    for (const Shape& shape : shapes) {
      const TestTile input = Random(dtype, shape, 1);
      const std::vector<double> x = ValuesOf(input);
      const auto count = static_cast<size_t>(shape.back());
      SCOPED_TRACE(ShapeToString(shape));
      for (const float scale : {1.0f, -0.5f, 8.0f}) {
        const TestTile result = RunOp(SoftmaxOp{.scale = scale}, {input});
        if (result.size() > 0) {
          ExpectClose(result, PlainSoftmax(x, count, scale, {}), dtype == Dtype::kF32 ? 12 : 0.52,
                      1e-4);
        }
      }
      // Each way to broadcast the mask: some dimensions are 1, some leading ones are left out.
      for (size_t left_out = 0; left_out <= shape.size(); ++left_out) {
        for (unsigned ones = 0; ones < 1u << (shape.size() - left_out); ++ones) {
          Shape of_mask(shape.begin() + static_cast<int64_t>(left_out), shape.end());
          for (size_t i = 0; i < of_mask.size(); ++i) {
            if ((ones >> i & 1) != 0) of_mask[i] = 1;
          }
          const Dtype mask_type = ones % 2 == 0 ? Dtype::kBool : Dtype::kI32;
          TestTile mask = Random(Dtype::kI32, of_mask, 2 + ones);
          std::vector<double> bits = ValuesOf(mask);
          for (double& bit : bits) bit = static_cast<int>(bit) % 3 != 0 ? 1 : 0;
          mask = Made(mask_type, of_mask, bits);
          const TestTile whole = RunOp(MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}},
                                       {Made(Dtype::kI32, shape, std::vector<double>(x.size(), 0)),
                                        Made(Dtype::kI32, of_mask, bits)});
          std::vector<bool> seen;
          for (const double bit : ValuesOf(whole)) seen.push_back(bit != 0);
          const TestTile result = RunOp(SoftmaxOp{.mask = 1}, {input, mask});
          if (result.size() == 0) continue;
          ExpectClose(result, PlainSoftmax(x, count, 1, seen), dtype == Dtype::kF32 ? 6 : 0.52,
                      1e-4);
        }
      }
    }
  }
}

TEST(SoftmaxTest, ARowWithoutSeenElementsIsZero) {
  const TestTile input = Made(Dtype::kF32, {2, 3}, {std::nan(""), 1, 2, 1, std::nan(""), 3});
  const TestTile mask = Made(Dtype::kI32, {2, 3}, {0, 0, 0, 1, 0, 1});
  const std::vector<double> values = ValuesOf(RunOp(SoftmaxOp{.mask = 1}, {input, mask}));
  for (const size_t hidden : {0u, 1u, 2u, 4u}) EXPECT_EQ(values[hidden], 0);
  EXPECT_NEAR(values[3], 1 / (1 + std::exp(2)), 1e-6);
  EXPECT_NEAR(values[5], 1 / (1 + std::exp(-2)), 1e-6);
}

TEST(SoftmaxTest, InfinitiesAndNans) {
  const TestTile input = Made(Dtype::kF32, {4, 2},
                              {-kSoftmaxInfinity, 0, -kSoftmaxInfinity, -kSoftmaxInfinity,
                               kSoftmaxInfinity, 0, std::nan(""), 0});
  const std::vector<double> values = ValuesOf(RunOp(SoftmaxOp{}, {input}));
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[1], 1);
  for (size_t i = 2; i < 8; ++i) EXPECT_TRUE(std::isnan(values[i])) << i;
}

TEST(SoftmaxTest, LargeScoresDoNotOverflow) {
  const TestTile input = Made(Dtype::kF32, {1, 3}, {1e38, 1e38, -3e38});
  EXPECT_EQ(ValuesOf(RunOp(SoftmaxOp{}, {input})), (std::vector<double>{0.5, 0.5, 0}));
}

TEST(SoftmaxTest, AllInstructionSetsGiveTheSameBits) {
  for (const Dtype dtype : kShortFloats) {
    const TestTile input = Random(dtype, {3, 1037}, 4);
    const TestTile mask = Random(Dtype::kI32, {1037}, 5);
    std::vector<char> first;
    OnEachInstructionSet([&](const std::string&) {
      const TestTile result = RunOp(SoftmaxOp{.mask = 1, .scale = 3}, {input, mask});
      if (first.empty()) first = result.bytes;
      EXPECT_EQ(result.bytes, first);
    });
  }
}

// A row that is so long that it is computed in pieces.
constexpr int64_t kLongSoftmaxRow = (int64_t{1} << 21) + 37;

TEST(SoftmaxTest, ALongRowIsThatOfItsPieces) {
  // Elements are 0 and 1 in turn; the mask hides the last one.
  constexpr auto kLast = static_cast<size_t>(kLongSoftmaxRow - 1);
  TestTile mask = Repeating(Dtype::kBool, {1, kLongSoftmaxRow}, {1});
  mask.bytes.back() = 0;
  const TestTile result = RunOp(SoftmaxOp{.mask = 1, .scale = 2},
                                {Repeating(Dtype::kBF16, {1, kLongSoftmaxRow}, {0, 1}), mask});
  const double large = 1 / (static_cast<double>(kLongSoftmaxRow / 2) * (1 + std::exp(-2.0)));
  for (const size_t i : {size_t{0}, size_t{1}, size_t{32768}, size_t{65537}, kLast - 1}) {
    const double expected = i % 2 == 1 ? large : large * std::exp(-2.0);
    EXPECT_NEAR(ValueAt(result, i), expected, expected * 0x1p-8) << i;
  }
  EXPECT_EQ(ValueAt(result, kLast), 0);
}

TEST(SoftmaxTest, ALongRowEndsWithItsAbort) {
  const TestTile input = Unset(Dtype::kBF16, {1, kLongSoftmaxRow});
  OpContext context;
  int calls = 0;
  context.abort_check = [&calls] {
    ++calls;
    return absl::AbortedError("the step was aborted");
  };
  EXPECT_EQ(ErrorOf(SoftmaxOp{}, {input}, input, context).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
