// The loops of products of few rows, with each instruction set, against plain loops.
#include "worker/kernel/weight_loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/instruction_sets.h"

namespace shardmesh::worker {
namespace {

constexpr size_t kPitch = 301;  // of lhs: more than any depth below

// Weights of F16 are their bits.
template <typename Weight>
Weight WeightOf(int value) {
  if constexpr (std::is_same_v<Weight, uint16_t>) return F32ToF16(static_cast<float>(value));
  return static_cast<Weight>(value);
}
template <typename Weight>
double ValueOf(Weight weight) {
  if constexpr (std::is_same_v<Weight, uint16_t>) return static_cast<double>(F16ToF32(weight));
  return static_cast<double>(weight);
}

template <typename Weight>
void ExpectSums(AddProductsFn<Weight> add, size_t rows, size_t depth, size_t columns) {
  SCOPED_TRACE(testing::Message() << rows << " rows, depth " << depth << ", " << columns);
  std::vector<float> lhs(rows * kPitch);
  std::vector<Weight> weights(depth * columns);
  uint32_t seed = 1;
  const auto next = [&seed] {
    seed = seed * 1664525u + 1013904223u;
    return static_cast<int>(seed >> 16) % 255 - 127;
  };
  for (float& value : lhs) value = static_cast<float>(next()) / 64;
  for (Weight& value : weights) value = WeightOf<Weight>(next());
  std::vector<float> sums(rows * columns, 3);
  add(lhs.data(), kPitch, rows, weights.data(), depth, columns, sums.data(),
      {reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(Weight)});
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      double expected = 3;
      for (size_t k = 0; k < depth; ++k) {
        expected +=
            static_cast<double>(lhs[row * kPitch + k]) * ValueOf(weights[k * columns + column]);
      }
      // All products and sums are multiples of 1/64 below 2^17, which F32 has exactly.
      ASSERT_EQ(static_cast<double>(sums[row * columns + column]), expected)
          << "row " << row << ", column " << column;
    }
  }
}

TEST(WeightLoopsTest, AddProductsOfAnyNumberOfRowsAndColumns) {
  test::OnEachInstructionSet([](const char* /*name*/) {
    const WeightLoops loops = WeightLoopsOfCpu();
    for (const size_t rows : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 16U}) {
      for (const size_t columns : {16U, 32U, 48U, 64U}) {
        ASSERT_NO_FATAL_FAILURE(ExpectSums<int8_t>(loops.add_i8, rows, 37, columns));
        ASSERT_NO_FATAL_FAILURE(ExpectSums<uint16_t>(loops.add_f16, rows, 37, columns));
        ASSERT_NO_FATAL_FAILURE(ExpectSums<float>(loops.add_f32, rows, 37, columns));
      }
    }
    for (const size_t depth : {0U, 1U, 2U, 300U}) {
      ASSERT_NO_FATAL_FAILURE(ExpectSums<int8_t>(loops.add_i8, 3, depth, 64));
      ASSERT_NO_FATAL_FAILURE(ExpectSums<uint16_t>(loops.add_f16, 3, depth, 64));
      ASSERT_NO_FATAL_FAILURE(ExpectSums<float>(loops.add_f32, 3, depth, 64));
    }
  });
}

TEST(WeightLoopsTest, ConvertEveryI8Exactly) {
  std::vector<int8_t> all;
  for (int value = -128; value < 128; ++value) all.push_back(static_cast<int8_t>(value));
  test::OnEachInstructionSet([&all](const char* /*name*/) {
    const WeightLoops loops = WeightLoopsOfCpu();
    for (const size_t count : {size_t{0}, size_t{1}, size_t{33}, all.size()}) {
      std::vector<float> floats(count + 1, 0.5F);
      std::vector<uint16_t> halves(count + 1, 1);
      loops.i8_to_f32(all.data(), count, floats.data());
      loops.i8_to_bf16(all.data(), count, halves.data());
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(floats[i], static_cast<float>(all[i]));
        EXPECT_EQ(BF16ToF32(halves[i]), static_cast<float>(all[i]));
      }
      EXPECT_EQ(floats.back(), 0.5F) << "nothing is written beyond the end";
      EXPECT_EQ(halves.back(), 1);
    }
  });
}

}  // namespace
}  // namespace shardmesh::worker
