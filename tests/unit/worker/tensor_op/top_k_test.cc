// The largest elements of rows: order, ties, NaNs, types.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

std::vector<size_t> PlainOrder(const std::vector<double>& row) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&row](size_t a, size_t b) {
    if (std::isnan(row[a]) || std::isnan(row[b])) return std::isnan(row[a]) && !std::isnan(row[b]);
    return row[a] > row[b];
  });
  return order;
}

TEST(TopKTest, TypesAndCounts) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kI8,
                            Dtype::kI16, Dtype::kI32, Dtype::kI64}) {
    for (const Shape& shape : {Shape{1}, Shape{7}, Shape{3, 20}, Shape{2, 2, 1031}}) {
      const TestTile input = Random(dtype, shape, 1);
      const std::vector<double> values = ValuesOf(input);
      const auto extent = static_cast<size_t>(shape.back());
      for (const int64_t count : {int64_t{1}, int64_t{5}, shape.back()}) {
        if (count > shape.back()) continue;
        std::vector<double> indices, largest;
        for (size_t row = 0; row < values.size(); row += extent) {
          const std::vector<double> own(values.begin() + static_cast<int64_t>(row),
                                        values.begin() + static_cast<int64_t>(row + extent));
          const std::vector<size_t> order = PlainOrder(own);
          for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
            indices.push_back(static_cast<double>(order[i]));
            largest.push_back(own[order[i]]);
          }
        }
        EXPECT_EQ(ValuesOf(RunOp(TopKOp{.count = count}, {input})), indices);
        EXPECT_EQ(ValuesOf(RunOp(TopKOp{.count = count, .gives_indices = false}, {input})),
                  largest);
      }
    }
  }
}

TEST(TopKTest, OfEqualElementsTheFirstComesFirst) {
  const double infinite = std::numeric_limits<double>::infinity();
  const TestTile input = Made(Dtype::kF32, {2, 6},
                              {0.0, -0.0, 3, -infinite, 3, infinite,  //
                               1, std::nan(""), 5, infinite, std::nan(""), 5});
  EXPECT_EQ(ValuesOf(RunOp(TopKOp{.count = 6}, {input})),
            (std::vector<double>{5, 2, 4, 0, 1, 3, 1, 4, 3, 2, 5, 0}));
  const TestTile argmax = RunOp(TopKOp{.count = 1, .drops_dimension = true}, {input});
  EXPECT_EQ(argmax.shape, (Shape{2}));
  EXPECT_EQ(ValuesOf(argmax), (std::vector<double>{5, 1}));
}

TEST(TopKTest, NegativeZeroIsAsLargeAsZero) {
  const TestTile input = Made(Dtype::kBF16, {1, 3}, {-1, -0.0, 0.0});
  EXPECT_EQ(ValuesOf(RunOp(TopKOp{.count = 3}, {input})), (std::vector<double>{1, 2, 0}));
  EXPECT_TRUE(
      std::signbit(ValuesOf(RunOp(TopKOp{.count = 1, .gives_indices = false}, {input}))[0]));
}

TEST(TopKTest, LargestIntegers) {
  TestTile input = Unset(Dtype::kI64, {3});
  const std::vector<int64_t> values = {std::numeric_limits<int64_t>::min(), 5,
                                       std::numeric_limits<int64_t>::max()};
  std::memcpy(input.bytes.data(), values.data(), input.bytes.size());
  EXPECT_EQ(ValuesOf(RunOp(TopKOp{.count = 3}, {input})), (std::vector<double>{2, 1, 0}));
}

TEST(TopKTest, NoRows) {
  EXPECT_EQ(RunOp(TopKOp{.count = 2}, {Unset(Dtype::kF32, {0, 4})}).size(), 0u);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
