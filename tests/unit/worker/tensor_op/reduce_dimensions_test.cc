// Reductions along every set of dimensions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProduct, Reduction::kMin,
                                     Reduction::kMax, Reduction::kMean};

std::vector<double> PlainReduce(const ReduceOp& op, const TestTile& input) {
  const std::vector<double> values = ValuesOf(input);
  int64_t results = 1, reduced = 1;
  std::vector<bool> is_reduced(input.shape.size(), false);
  for (const int64_t dimension : op.dimensions) is_reduced[static_cast<size_t>(dimension)] = true;
  for (size_t i = 0; i < is_reduced.size(); ++i) {
    (is_reduced[i] ? reduced : results) *= input.shape[i];
  }
  const double first = op.reduction == Reduction::kProduct ? 1
                       : op.reduction == Reduction::kMin   ? std::numeric_limits<double>::infinity()
                       : op.reduction == Reduction::kMax ? -std::numeric_limits<double>::infinity()
                                                         : 0;
  std::vector<long double> sums(static_cast<size_t>(results), first);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), at = 0, stride = 1;
    for (size_t dim = input.shape.size(); dim-- > 0;) {
      const int64_t index = rest % input.shape[dim];
      rest /= input.shape[dim];
      if (is_reduced[dim]) continue;
      at += index * stride;
      stride *= input.shape[dim];
    }
    long double& sum = sums[static_cast<size_t>(at)];
    switch (op.reduction) {
      case Reduction::kProduct:
        sum *= values[i];
        break;
      case Reduction::kMin:
        sum = std::isnan(values[i]) || std::isnan(sum) ? std::nan("")
                                                       : std::min<long double>(sum, values[i]);
        break;
      case Reduction::kMax:
        sum = std::isnan(values[i]) || std::isnan(sum) ? std::nan("")
                                                       : std::max<long double>(sum, values[i]);
        break;
      default:
        sum += values[i];
    }
  }
  std::vector<double> result;
  for (const long double sum : sums) {
    result.push_back(static_cast<double>(
        op.reduction == Reduction::kMean ? sum / static_cast<long double>(reduced) : sum));
  }
  return result;
}

TEST(ReduceDimensionsTest, EverySetOfDimensions) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
    for (const Shape& shape : {Shape{5}, Shape{3, 7}, Shape{2, 3, 4, 5}, Shape{1, 6, 1, 3},
                               Shape{3, 700}, Shape{700, 3}}) {
      for (unsigned set = 1; set < 1u << shape.size(); ++set) {
        ReduceOp op = {.dimensions = {}};
        for (size_t i = 0; i < shape.size(); ++i) {
          if ((set >> i & 1) != 0) op.dimensions.push_back(static_cast<int64_t>(i));
        }
        for (const Reduction reduction : kReductions) {
          op.reduction = reduction;
          op.keeps_dimensions = set % 2 == 0;
          const TestTile input = Random(dtype, shape, set);
          std::vector<double> expected = PlainReduce(op, input);
          const TestTile result = RunOp(op, {input});
          expected = ValuesOf(Made(dtype, result.shape, expected));
          SCOPED_TRACE(ShapeToString(shape) + std::to_string(set));
          ExpectClose(result, expected, dtype == Dtype::kF64 ? 2000 : 1.01, 1e-4);
        }
      }
    }
  }
}

TEST(ReduceDimensionsTest, LargeOnesAreCutInChunks) {
  // All; long runs with a short last part; many rows of few and of many columns.
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {{{700'001}, {0}},
                                                                     {{3, 330'001}, {1}},
                                                                     {{300'001, 3}, {0}},
                                                                     {{700, 1031}, {0}},
                                                                     {{2, 400, 3, 301}, {1, 3}}};
  for (const auto& [shape, dimensions] : cases) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      const ReduceOp op = {.reduction = reduction, .dimensions = dimensions};
      const TestTile input = Random(Dtype::kF32, shape, 3);
      ExpectClose(RunOp(op, {input}), PlainReduce(op, input), 1, 1e-3);
    }
  }
}

TEST(ReduceDimensionsTest, IntegersWrap) {
  const TestTile input = Made(Dtype::kI8, {2, 3}, {100, 100, 100, -128, -128, 1});
  const auto of = [&](Reduction reduction) {
    return ValuesOf(RunOp(ReduceOp{.reduction = reduction, .dimensions = {1}}, {input}));
  };
  EXPECT_EQ(of(Reduction::kSum), (std::vector<double>{44, 1}));
  EXPECT_EQ(of(Reduction::kProduct), (std::vector<double>{64, 0}));
  EXPECT_EQ(of(Reduction::kMin), (std::vector<double>{100, -128}));
  EXPECT_EQ(of(Reduction::kMax), (std::vector<double>{100, 1}));
}

TEST(ReduceDimensionsTest, NansStay) {
  const TestTile input = Made(Dtype::kF32, {2, 3}, {1, std::nan(""), 2, 1, 2, 3});
  for (const Reduction reduction : kReductions) {
    const std::vector<double> values =
        ValuesOf(RunOp(ReduceOp{.reduction = reduction, .dimensions = {1}}, {input}));
    EXPECT_TRUE(std::isnan(values[0]));
    EXPECT_FALSE(std::isnan(values[1]));
  }
}

TEST(ReduceDimensionsTest, AnEmptyTileGivesTheNeutralElement) {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> of_floats = {0, 1, infinite, -infinite, 0};
  const std::vector<double> of_integers = {0, 1, 32767, -32768};
  for (size_t i = 0; i < std::size(kReductions); ++i) {
    const ReduceOp op = {.reduction = kReductions[i], .dimensions = {0}};
    EXPECT_EQ(ValuesOf(RunOp(op, {Unset(Dtype::kBF16, {0, 2})}, Unset(Dtype::kBF16, {2}))),
              std::vector<double>(2, of_floats[i]));
    if (i >= of_integers.size()) continue;
    EXPECT_EQ(ValuesOf(RunOp(op, {Unset(Dtype::kI16, {0, 2})}, Unset(Dtype::kI16, {2}))),
              std::vector<double>(2, of_integers[i]));
  }
  EXPECT_EQ(RunOp(ReduceOp{.dimensions = {0}}, {Unset(Dtype::kF32, {3, 0})}).size(), 0u);
}

TEST(ReduceDimensionsTest, AllInstructionSetsGiveTheSameBits) {
  const TestTile input = Random(Dtype::kF32, {37, 1031}, 4);
  for (const std::vector<int64_t>& dimensions : {std::vector<int64_t>{0}, {1}, {0, 1}}) {
    std::vector<char> first;
    OnEachInstructionSet([&](const std::string&) {
      const TestTile result = RunOp(ReduceOp{.dimensions = dimensions}, {input});
      if (first.empty()) first = result.bytes;
      EXPECT_EQ(result.bytes, first);
    });
  }
}

}  // namespace
}  // namespace shardmesh::worker::op_test
