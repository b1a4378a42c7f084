// The loops of reductions on all instruction sets, against arithmetic on one element at a time.
#include "worker/kernel/reduce_loops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/testing/instruction_sets.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

template <typename T>
using ElementBitsType =
    std::conditional_t<sizeof(T) == 8, uint64_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t,
                                          std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <typename T>
ElementBitsType<T> ElementBits(T value) {
  return std::bit_cast<ElementBitsType<T>>(value);
}

// The result of reduce.h for one pair.
template <typename T>
T CombinedOne(Reduction reduction, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    const auto quiet = [](T nan) {
      constexpr int kQuietBit = sizeof(T) == 8 ? 51 : 22;
      return std::bit_cast<T>(ElementBits(nan) | ElementBitsType<T>{1} << kQuietBit);
    };
    const bool keeps_nan = reduction == Reduction::kMin || reduction == Reduction::kMax;
    if (left != left) return keeps_nan ? left : quiet(left);
    if (right != right) return keeps_nan ? right : quiet(right);
    if (reduction == Reduction::kProduct) return left * right;
    if (!keeps_nan) return left + right;
  } else {
    const auto a = static_cast<uint64_t>(left), b = static_cast<uint64_t>(right);
    if (reduction == Reduction::kProduct) return static_cast<T>(a * b);
    if (reduction == Reduction::kSum) return static_cast<T>(a + b);
  }
  if (reduction == Reduction::kMin) return left <= right ? left : right;
  return left >= right ? left : right;
}

template <typename T>
std::vector<T> OperandValues() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values = {T{0}, T{1}, static_cast<T>(-1), Limits::max(), Limits::lowest(), T{3}};
  if constexpr (std::is_floating_point_v<T>) {
    values.insert(values.end(), {-T{0}, Limits::infinity(), -Limits::infinity(),
                                 Limits::denorm_min(), -Limits::denorm_min(), Limits::min()});
    constexpr ElementBitsType<T> kInfinity = ElementBitsType<T>{sizeof(T) == 8 ? 0x7FF : 0xFF}
                                             << (sizeof(T) == 8 ? 52 : 23);
    constexpr ElementBitsType<T> kSign = ElementBitsType<T>{1} << (sizeof(T) * 8 - 1);
    for (const ElementBitsType<T> payload : {1, 2}) {
      values.push_back(std::bit_cast<T>(static_cast<ElementBitsType<T>>(kInfinity | payload)));
      values.push_back(
          std::bit_cast<T>(static_cast<ElementBitsType<T>>(kInfinity | kSign | payload)));
    }
  }
  std::mt19937_64 random(7);
  while (values.size() < 61)
    values.push_back(std::bit_cast<T>(static_cast<ElementBitsType<T>>(random())));
  return values;
}

template <typename T>
void ExpectCombined(Dtype dtype) {
  const std::vector<T> values = OperandValues<T>();
  std::vector<T> left, right;
  for (const T a : values) {
    for (const T b : values) {
      left.push_back(a);
      right.push_back(b);
    }
  }
  const size_t bytes = left.size() * sizeof(T);
  OnEachInstructionSet([&](const std::string&) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kProduct, Reduction::kMin, Reduction::kMax}) {
      const CombineFn combine = CombineLoop(reduction, dtype);
      ASSERT_NE(combine, nullptr);
      // One byte off any alignment, and with the result in the memory of the left operand.
      std::vector<char> in_place(bytes + 1), operand(bytes + 1);
      std::memcpy(in_place.data() + 1, left.data(), bytes);
      std::memcpy(operand.data() + 1, right.data(), bytes);
      combine(in_place.data() + 1, operand.data() + 1, static_cast<int64_t>(left.size()),
              in_place.data() + 1);
      for (size_t i = 0; i < left.size(); ++i) {
        T found;
        std::memcpy(&found, in_place.data() + 1 + i * sizeof(T), sizeof(T));
        const T expected = CombinedOne(reduction, left[i], right[i]);
        // The sign of a NaN that an operation makes, such as infinity minus infinity, is the CPU's.
        const bool is_new_nan = expected != expected && left[i] == left[i] && right[i] == right[i];
        if (is_new_nan) {
          ASSERT_NE(found, found);
        } else {
          ASSERT_EQ(ElementBits(found), ElementBits(expected))
              << "reduction " << static_cast<int>(reduction) << " of " << +left[i] << " and "
              << +right[i];
        }
      }
    }
  });
}

TEST(ReduceLoopsTest, FloatsAreCombinedAsOneByOne) {
  ExpectCombined<float>(Dtype::kF32);
  ExpectCombined<double>(Dtype::kF64);
}

TEST(ReduceLoopsTest, IntegersAreCombinedAsOneByOne) {
  ExpectCombined<int8_t>(Dtype::kI8);
  ExpectCombined<uint8_t>(Dtype::kU8);
  ExpectCombined<int32_t>(Dtype::kI32);
  ExpectCombined<int64_t>(Dtype::kI64);
}

TEST(ReduceLoopsTest, ScalesByTheFactorInTheTypeOfTheElements) {
  const std::vector<float> values = OperandValues<float>();
  OnEachInstructionSet([&](const std::string&) {
    std::vector<float> scaled(values.size());
    ScaleLoop(Dtype::kF32)(reinterpret_cast<const char*>(values.data()), 1.0 / 3,
                           static_cast<int64_t>(values.size()),
                           reinterpret_cast<char*>(scaled.data()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(ElementBits(scaled[i]), ElementBits(values[i] * static_cast<float>(1.0 / 3)))
          << values[i];
    }
  });
  EXPECT_EQ(ScaleLoop(Dtype::kI32), nullptr);
}

}  // namespace
}  // namespace shardmesh::worker
