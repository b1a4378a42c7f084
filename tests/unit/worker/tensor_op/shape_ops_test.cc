// Changes of shape: every order of dimensions, steps, tiles, and elements of every size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;

constexpr Dtype kTypeOfEachSize[] = {Dtype::kI8, Dtype::kBF16, Dtype::kF32, Dtype::kF64};

TestTile Numbered(Dtype dtype, Shape shape) {
  std::vector<double> values(static_cast<size_t>(ElementsIn(shape)));
  std::iota(values.begin(), values.end(), 0);
  for (double& value : values) value = std::fmod(value, 127);
  return Made(dtype, std::move(shape), values);
}

// Returns the elements whose indices `from` gives for each index of the shape.
template <typename From>
std::vector<double> Picked(const TestTile& tile, const Shape& shape, From from) {
  const std::vector<double> values = ValuesOf(tile);
  std::vector<double> picked;
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t i = 0; i < ElementsIn(shape); ++i) {
    int64_t rest = i;
    for (size_t dim = shape.size(); dim-- > 0;) {
      index[dim] = rest % shape[dim];
      rest /= shape[dim];
    }
    const std::vector<int64_t> at = from(index);
    int64_t offset = 0;
    for (size_t dim = 0; dim < at.size(); ++dim) offset = offset * tile.shape[dim] + at[dim];
    picked.push_back(values[static_cast<size_t>(offset)]);
  }
  return picked;
}

TEST(ShapeOpsTest, TransposesEveryPermutation) {
  for (const Dtype dtype : kTypeOfEachSize) {
    for (const Shape& shape :
         {Shape{}, Shape{7}, Shape{3, 5}, Shape{33, 65}, Shape{2, 3, 4}, Shape{5, 1, 19},
          Shape{2, 3, 4, 5}, Shape{3, 0, 2}, Shape{1, 17, 1, 18}}) {
      std::vector<int64_t> permutation(shape.size());
      std::iota(permutation.begin(), permutation.end(), 0);
      const TestTile input = Numbered(dtype, shape);
      do {
        const TestTile result = RunOp(TransposeOp{.permutation = permutation}, {input});
        EXPECT_EQ(ValuesOf(result), Picked(input, result.shape,
                                           [&](const std::vector<int64_t>& index) {
                                             std::vector<int64_t> at(index.size());
                                             for (size_t i = 0; i < index.size(); ++i) {
                                               at[static_cast<size_t>(permutation[i])] = index[i];
                                             }
                                             return at;
                                           }))
            << ShapeToString(shape);
      } while (std::next_permutation(permutation.begin(), permutation.end()));
    }
  }
}

TEST(ShapeOpsTest, TransposesLargeTensors) {
  const TestTile input = Random(Dtype::kF32, {1030, 517}, 4);
  const TestTile result = RunOp(TransposeOp{.permutation = {1, 0}}, {input});
  EXPECT_EQ(RunOp(TransposeOp{.permutation = {1, 0}}, {result}).bytes, input.bytes);
  // As heads are moved before attention.
  const TestTile heads = Random(Dtype::kBF16, {2, 300, 8, 64}, 5);
  const TestTile moved = RunOp(TransposeOp{.permutation = {0, 2, 1, 3}}, {heads});
  EXPECT_EQ(RunOp(TransposeOp{.permutation = {0, 2, 1, 3}}, {moved}).bytes, heads.bytes);
}

TEST(ShapeOpsTest, SlicesWithSteps) {
  for (const Dtype dtype : kTypeOfEachSize) {
    const TestTile input = Numbered(dtype, {9, 4, 11});
    for (const int64_t step : {1, 2, 3, 20}) {
      const SliceOp op = {.starts = {1, 0, 2}, .limits = {8, 4, 11}, .steps = {step, 1, step}};
      const TestTile result = RunOp(op, {input});
      EXPECT_EQ(ValuesOf(result),
                Picked(input, result.shape, [&](const std::vector<int64_t>& index) {
                  return std::vector<int64_t>{1 + index[0] * step, index[1], 2 + index[2] * step};
                }));
    }
  }
  EXPECT_EQ(
      RunOp(SliceOp{.starts = {2, 3}, .limits = {2, 5}}, {Numbered(Dtype::kF32, {4, 6})}).size(),
      0u);
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(
      ValuesOf(RunOp(SliceOp{.starts = {2, 3}, .limits = {4, 6}, .steps = {kLargest, kLargest / 2}},
                     {Numbered(Dtype::kF32, {4, 6})})),
      ValuesOf(
          RunOp(SliceOp{.starts = {2, 3}, .limits = {3, 4}}, {Numbered(Dtype::kF32, {4, 6})})));
}

TEST(ShapeOpsTest, ASliceOfATileLeavesOtherDimensionsAlone) {
  // The device has rows 4 to 8 of 8; columns 3 to 9 of 10 are cut out.
  TestTile input = Numbered(Dtype::kF32, {4, 10});
  input.tile.ranges[0] = {4, 8};
  TestTile output = Unset(Dtype::kF32, {4, 3});
  output.tile.ranges[0] = {4, 8};
  const TestTile result =
      RunOp(SliceOp{.starts = {0, 3}, .limits = {8, 9}, .steps = {1, 2}}, {input}, output);
  EXPECT_EQ(ValuesOf(result), Picked(input, {4, 3}, [](const std::vector<int64_t>& index) {
              return std::vector<int64_t>{index[0], 3 + 2 * index[1]};
            }));
  // Rows that the tile does not have.
  output.tile.ranges[0] = {0, 4};
  EXPECT_THAT(
      ErrorOf(SliceOp{.starts = {0, 3}, .limits = {8, 9}, .steps = {1, 2}}, {input}, output),
      StatusIs(kInvalid, Reason::kShapeMismatch));
}

TEST(ShapeOpsTest, ConcatenatesAlongEachDimension) {
  for (const Dtype dtype : kTypeOfEachSize) {
    for (int64_t dimension = 0; dimension < 3; ++dimension) {
      std::vector<TestTile> inputs;
      ConcatenateOp op = {.inputs = {}, .dimension = dimension};
      for (const int64_t extent : {2, 0, 5, 1}) {
        Shape shape = {3, 4, 2};
        shape[static_cast<size_t>(dimension)] = extent;
        inputs.push_back(Random(dtype, shape, static_cast<uint32_t>(extent + 10)));
        op.inputs.push_back(0);
      }
      const TestTile result = RunOp(op, inputs);
      int64_t start = 0;
      for (const TestTile& input : inputs) {
        SliceOp part = {.starts = {0, 0, 0},
                        .limits = {result.shape[0], result.shape[1], result.shape[2]}};
        const auto cut = static_cast<size_t>(dimension);
        part.starts[cut] = start;
        start += input.shape[cut];
        part.limits[cut] = start;
        EXPECT_EQ(RunOp(part, {result}).bytes, input.bytes);
      }
    }
  }
}

TEST(ShapeOpsTest, AReshapeKeepsBytes) {
  const TestTile input = Random(Dtype::kF16, {6, 35}, 6);
  EXPECT_EQ(RunOp(ReshapeOp{.shape = {2, 3, 5, 7}}, {input}).bytes, input.bytes);
  EXPECT_THAT(ErrorOf(ReshapeOp{.shape = {6, 34}}, {input}, Unset(Dtype::kF16, {6, 34})),
              StatusIs(kInvalid, Reason::kShapeMismatch));
}

TEST(ShapeOpsTest, AConstantGivesItsTile) {
  const TestTile whole = Numbered(Dtype::kF32, {4, 6});
  const ConstantOp op = {.value = {.dtype = Dtype::kF32,
                                   .shape = {4, 6},
                                   .bytes = std::string(whole.bytes.begin(), whole.bytes.end())}};
  EXPECT_EQ(RunOp(op, {}, Unset(Dtype::kF32, {4, 6})).bytes, whole.bytes);
  TestTile part = Unset(Dtype::kF32, {2, 3});
  part.tile.ranges = {{1, 3}, {2, 5}};
  EXPECT_EQ(ValuesOf(RunOp(op, {}, part)), (std::vector<double>{8, 9, 10, 14, 15, 16}));
  EXPECT_THAT(ErrorOf(op, {}, Unset(Dtype::kF64, {4, 6})),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
}

}  // namespace
}  // namespace shardmesh::worker::op_test
