// The loops of products of pairs of BF16 against plain loops.
#include "worker/kernel/pair_loops.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/float_convert.h"

namespace shardmesh::worker {
namespace {

uint32_t PairOf(float first, float second) {
  return F32ToBF16(first) | static_cast<uint32_t>(F32ToBF16(second)) << 16;
}
float FirstOf(uint32_t pair) { return BF16ToF32(static_cast<uint16_t>(pair)); }
float SecondOf(uint32_t pair) { return BF16ToF32(static_cast<uint16_t>(pair >> 16)); }

// Small integers, whose products and sums F32 has exactly.
std::vector<uint32_t> SmallPairs(size_t count, uint32_t seed) {
  std::vector<uint32_t> pairs(count);
  for (uint32_t& pair : pairs) {
    seed = seed * 1664525u + 1013904223u;
    pair = PairOf(static_cast<float>(static_cast<int>(seed >> 24) - 128),
                  static_cast<float>(static_cast<int>(seed >> 16 & 255) - 128));
  }
  return pairs;
}

class PairLoopsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (loops_ == nullptr) GTEST_SKIP() << "this CPU does not multiply pairs of BF16";
  }
  const PairLoops* const loops_ = PairLoopsOfCpu();
};

TEST_F(PairLoopsTest, AddProductsOfAnyNumberOfRowsAndColumns) {
  constexpr size_t kLhsPitch = 50;
  for (const size_t rows : {0U, 1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U}) {
    for (const size_t columns : {16U, 32U, 48U, 64U}) {
      for (const size_t depth : {0U, 1U, 2U, 37U}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, depth " << depth << ", " << columns);
        const std::vector<uint32_t> lhs = SmallPairs(rows * kLhsPitch, 1);
        const std::vector<uint32_t> weights = SmallPairs(depth * columns, 2);
        std::vector<float> sums(rows * columns, 3);
        loops_->add(lhs.data(), kLhsPitch, rows, weights.data(), depth, columns, sums.data(),
                    {reinterpret_cast<const char*>(weights.data()), depth * columns * 4});
        for (size_t row = 0; row < rows; ++row) {
          for (size_t column = 0; column < columns; ++column) {
            float expected = 3;
            for (size_t k = 0; k < depth; ++k) {
              const uint32_t left = lhs[row * kLhsPitch + k];
              const uint32_t right = weights[k * columns + column];
              expected += FirstOf(left) * FirstOf(right) + SecondOf(left) * SecondOf(right);
            }
            ASSERT_EQ(sums[row * columns + column], expected) << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST_F(PairLoopsTest, ConvertEveryI8Exactly) {
  constexpr size_t kColumns = 32, kDepth = 4;
  std::vector<int8_t> all;
  for (int value = -128; value < 128; ++value) all.push_back(static_cast<int8_t>(value));
  std::vector<uint32_t> pairs(kDepth * kColumns + 1, 7);
  loops_->i8_to_pairs(all.data(), kDepth, kColumns, pairs.data());
  for (size_t k = 0; k < kDepth; ++k) {
    for (size_t column = 0; column < kColumns; ++column) {
      const uint32_t pair = pairs[k * kColumns + column];
      EXPECT_EQ(FirstOf(pair), static_cast<float>(all[2 * k * kColumns + column]));
      EXPECT_EQ(SecondOf(pair), static_cast<float>(all[(2 * k + 1) * kColumns + column]));
    }
  }
  EXPECT_EQ(pairs.back(), 7U) << "nothing is written beyond the end";
}

}  // namespace
}  // namespace shardmesh::worker
