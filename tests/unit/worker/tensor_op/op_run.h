// Runs tensor ops in tests of kernels.
#ifndef SHARDMESH_TESTS_UNIT_WORKER_TENSOR_OP_OP_RUN_H_
#define SHARDMESH_TESTS_UNIT_WORKER_TENSOR_OP_OP_RUN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker::op_test {

inline constexpr Dtype kShortFloats[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};

inline int64_t ElementsIn(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

// A tile in memory.
struct TestTile {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  Tile tile;
  std::vector<char> bytes;

  OpInput AsInput() const {
    return {.dtype = dtype, .shape = shape, .tile = tile, .bytes = absl::MakeConstSpan(bytes)};
  }
  OpOutput AsOutput() {
    return {.dtype = dtype, .shape = shape, .tile = tile, .bytes = absl::MakeSpan(bytes)};
  }
  size_t size() const { return static_cast<size_t>(ElementsIn(shape)); }
};

// Returns a whole tensor whose memory is not set.
inline TestTile Unset(Dtype dtype, Shape shape) {
  TestTile tile = {.dtype = dtype, .shape = std::move(shape), .tile = {}, .bytes = {}};
  tile.tile = Tile::Whole(tile.shape);
  tile.bytes.assign(tile.size() * static_cast<size_t>(BitsPerElement(dtype)) / 8, '\x5a');
  return tile;
}

// Calls visit(T*) with the elements as their C++ type; 16-bit floats as uint16_t.
template <typename Bytes, typename Visit>
void VisitElements(Dtype dtype, Bytes* bytes, Visit visit) {
  switch (dtype) {
    case Dtype::kF32:
      return visit(reinterpret_cast<float*>(bytes));
    case Dtype::kF64:
      return visit(reinterpret_cast<double*>(bytes));
    case Dtype::kI8:
      return visit(reinterpret_cast<int8_t*>(bytes));
    case Dtype::kI16:
      return visit(reinterpret_cast<int16_t*>(bytes));
    case Dtype::kI32:
      return visit(reinterpret_cast<int32_t*>(bytes));
    case Dtype::kI64:
      return visit(reinterpret_cast<int64_t*>(bytes));
    case Dtype::kU32:
      return visit(reinterpret_cast<uint32_t*>(bytes));
    case Dtype::kU64:
      return visit(reinterpret_cast<uint64_t*>(bytes));
    case Dtype::kU16:
    case Dtype::kBF16:
    case Dtype::kF16:
      return visit(reinterpret_cast<uint16_t*>(bytes));
    default:
      return visit(reinterpret_cast<uint8_t*>(bytes));
  }
}

// Returns a whole tensor of the values, rounded to the type.
inline TestTile Made(Dtype dtype, Shape shape, const std::vector<double>& values) {
  TestTile tile = Unset(dtype, std::move(shape));
  EXPECT_EQ(tile.size(), values.size());
  VisitElements(dtype, tile.bytes.data(), [&](auto* elements) {
    for (size_t i = 0; i < values.size(); ++i) {
      using Element = std::remove_reference_t<decltype(*elements)>;
      if (dtype == Dtype::kBF16) {
        elements[i] = static_cast<Element>(F64ToBF16(values[i]));
      } else if (dtype == Dtype::kF16) {
        elements[i] = static_cast<Element>(F64ToF16(values[i]));
      } else {
        elements[i] = static_cast<Element>(values[i]);
      }
    }
  });
  return tile;
}

inline std::vector<double> ValuesOf(const TestTile& tile) {
  std::vector<double> values(tile.size());
  std::vector<char> bytes = tile.bytes;
  VisitElements(tile.dtype, bytes.data(), [&](auto* elements) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (tile.dtype == Dtype::kBF16) {
        values[i] = BF16ToF32(static_cast<uint16_t>(elements[i]));
      } else if (tile.dtype == Dtype::kF16) {
        values[i] = F16ToF32(static_cast<uint16_t>(elements[i]));
      } else {
        values[i] = static_cast<double>(elements[i]);
      }
    }
  });
  return values;
}

// Returns a whole tensor that repeats the values, rounded to the type. Fast for large ones.
inline TestTile Repeating(Dtype dtype, Shape shape, const std::vector<double>& values) {
  TestTile tile = Unset(dtype, std::move(shape));
  std::vector<char>& bytes = tile.bytes;
  const TestTile pattern = Made(dtype, {static_cast<int64_t>(values.size())}, values);
  size_t filled = std::min(pattern.bytes.size(), bytes.size());
  std::memcpy(bytes.data(), pattern.bytes.data(), filled);
  while (filled < bytes.size()) {
    const size_t size = std::min(filled, bytes.size() - filled);
    std::memcpy(bytes.data() + filled, bytes.data(), size);
    filled += size;
  }
  return tile;
}

// Returns element `i` of a tensor.
inline double ValueAt(const TestTile& tile, size_t i) {
  TestTile element = Unset(tile.dtype, {1});
  const size_t size = element.bytes.size();
  std::memcpy(element.bytes.data(), tile.bytes.data() + i * size, size);
  return ValuesOf(element)[0];
}

// Returns a whole tensor of numbers between -2 and 2, or of small integers.
inline TestTile Random(Dtype dtype, Shape shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> values(static_cast<size_t>(ElementsIn(shape)));
  const bool is_float =
      dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kBF16 || dtype == Dtype::kF16;
  for (double& value : values) {
    value = is_float ? static_cast<double>(random()) * 0x1p-30 - 2
                     : static_cast<double>(random() % 100);
  }
  return Made(dtype, std::move(shape), values);
}

// Runs the op with one thread, with four, and in the memory of each input that it may overwrite,
// and expects the same bits each time. `output` has the type, the shape and the tile of the result.
inline TestTile RunOp(const TensorOp& op, const std::vector<TestTile>& tiles, TestTile output) {
  std::vector<OpInput> inputs;
  for (const TestTile& tile : tiles) inputs.push_back(tile.AsInput());
  OpContext context;
  const absl::Status run = RunTensorOp(op, inputs, output.AsOutput(), context);
  EXPECT_TRUE(run.ok()) << run;
  context.threads = 4;
  TestTile again = output;
  again.bytes.assign(again.bytes.size(), '\x37');
  const absl::Status run_again = RunTensorOp(op, inputs, again.AsOutput(), context);
  EXPECT_TRUE(run_again.ok()) << run_again;
  EXPECT_EQ(again.bytes, output.bytes) << "other bits with four threads";
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (!MayOverwriteInput(op, i) || tiles[i].dtype != output.dtype ||
        tiles[i].bytes.size() != output.bytes.size()) {
      continue;
    }
    TestTile place = output;
    place.bytes = tiles[i].bytes;
    std::vector<OpInput> placed = inputs;
    placed[i].bytes = absl::MakeConstSpan(place.bytes);
    const absl::Status in_place = RunTensorOp(op, placed, place.AsOutput(), context);
    EXPECT_TRUE(in_place.ok()) << in_place;
    EXPECT_EQ(place.bytes, output.bytes) << "other bits in the place of input " << i;
  }
  return output;
}

// Runs an op on whole tensors.
inline TestTile RunOp(const TensorOp& op, const std::vector<TestTile>& tiles) {
  std::vector<TensorType> types;
  for (const TestTile& tile : tiles) types.push_back({.dtype = tile.dtype, .shape = tile.shape});
  const absl::StatusOr<TensorType> result = ResultTypeOf(op, types);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return Unset(Dtype::kF32, {0});
  return RunOp(op, tiles, Unset(result->dtype, result->shape));
}

inline absl::Status ErrorOf(const TensorOp& op, const std::vector<TestTile>& tiles, TestTile output,
                            const OpContext& context = {}) {
  std::vector<OpInput> inputs;
  for (const TestTile& tile : tiles) inputs.push_back(tile.AsInput());
  return RunTensorOp(op, inputs, output.AsOutput(), context);
}

// Returns the distance of two neighbouring values of a type, near 1.
inline double Epsilon(Dtype dtype) {
  if (dtype == Dtype::kF64) return 0x1p-52;
  if (dtype == Dtype::kF32) return 0x1p-23;
  return dtype == Dtype::kBF16 ? 0x1p-7 : 0x1p-10;
}

// Expects each value to be within `units` of the last place of the expected one, or within
// `units * least` times this unit near zero. NaNs are equal.
inline void ExpectClose(const TestTile& have, const std::vector<double>& expected, double units,
                        double least = 0.01) {
  const std::vector<double> values = ValuesOf(have);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i]) || std::isinf(expected[i])) {
      EXPECT_TRUE(std::isnan(expected[i]) ? std::isnan(values[i]) : values[i] == expected[i])
          << "element " << i << " is " << values[i] << ", not " << expected[i];
      continue;
    }
    const double bound = units * Epsilon(have.dtype) * std::max(std::fabs(expected[i]), least);
    ASSERT_LE(std::fabs(values[i] - expected[i]), bound)
        << "element " << i << " is " << values[i] << ", not " << expected[i] << "; "
        << DtypeName(have.dtype) << ShapeToString(have.shape);
  }
}

}  // namespace shardmesh::worker::op_test

#endif  // SHARDMESH_TESTS_UNIT_WORKER_TENSOR_OP_OP_RUN_H_
