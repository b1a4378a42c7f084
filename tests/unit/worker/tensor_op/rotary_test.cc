// Rotary embedding: both layouts of pairs, and positions far out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

std::vector<double> UsualFrequencies(int64_t pairs) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < pairs; ++i) {
    frequencies.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs)));
  }
  return frequencies;
}

std::vector<double> PlainRotary(const RotaryOp& op, const TestTile& input,
                                const TestTile& positions, const TestTile& frequencies) {
  const std::vector<double> x = ValuesOf(input), p = ValuesOf(positions), f = ValuesOf(frequencies);
  std::vector<double> result(x.size());
  const auto sequence = static_cast<size_t>(input.shape[1]);
  const auto heads = static_cast<size_t>(input.shape[2]);
  const size_t pairs = f.size();
  for (size_t vector = 0; vector * 2 * pairs < x.size(); ++vector) {
    const size_t token = vector / heads;
    const double position = p[positions.shape.size() == 1 ? token % sequence : token];
    for (size_t i = 0; i < pairs; ++i) {
      const size_t first = vector * 2 * pairs + (op.is_interleaved ? 2 * i : i);
      const size_t second = op.is_interleaved ? first + 1 : first + pairs;
      const long double angle = static_cast<long double>(position) * f[i];
      result[first] = static_cast<double>(x[first] * std::cos(angle) - x[second] * std::sin(angle));
      result[second] =
          static_cast<double>(x[second] * std::cos(angle) + x[first] * std::sin(angle));
    }
  }
  return result;
}

TEST(RotaryTest, BothLayoutsOfPairs) {
  for (const Dtype dtype : kShortFloats) {
    for (const bool is_interleaved : {false, true}) {
      for (const int64_t features : {2, 6, 64, 128}) {
        for (const bool is_shared : {false, true}) {
          const TestTile input = Random(dtype, {2, 5, 3, features}, 1);
          const TestTile positions =
              is_shared ? Made(Dtype::kI32, {5}, {0, 1, 77, -3, 100000})
                        : Made(Dtype::kI32, {2, 5}, {0, 1, 2, 3, 4, 100, 4095, 131071, 7, 99999});
          const TestTile frequencies =
              Made(Dtype::kF32, {features / 2}, UsualFrequencies(features / 2));
          const RotaryOp op = {.is_interleaved = is_interleaved};
          ExpectClose(RunOp(op, {input, positions, frequencies}),
                      PlainRotary(op, input, positions, frequencies),
                      dtype == Dtype::kF32 ? 2 : 0.52, 1);
        }
      }
    }
  }
}

TEST(RotaryTest, AnglesOfLargePositionsAreExact) {
  std::vector<double> all = {100000, 1048575, 16777213, 16777215, -16777217, -2147483648.0};
  for (int i = 0; i < 26; ++i) all.push_back(2147483647.0 - 37 * i * i);
  const auto count = static_cast<int64_t>(all.size());
  std::vector<double> ones_and_zeros;
  for (int64_t i = 0; i < count; ++i) ones_and_zeros.insert(ones_and_zeros.end(), {1, 1, 0, 0});
  const TestTile input = Made(Dtype::kF32, {1, count, 1, 4}, ones_and_zeros);
  const TestTile positions = Made(Dtype::kI32, {count}, all);
  const TestTile frequencies = Made(Dtype::kF32, {2}, {1, 0.9172});  // not all products are F64s
  const std::vector<double> expected = PlainRotary({}, input, positions, frequencies);
  const std::vector<double> values = ValuesOf(RunOp(RotaryOp{}, {input, positions, frequencies}));
  // The results are the cosines and sines themselves: half a unit of the last place below 1, and
  // the error of a product below 2^31.
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], i % 2 == 0 ? 0x1.01p-25 : 0x1.01p-25 + 0x1p-23) << i;
  }
}

TEST(RotaryTest, NansAndAnglesOutOfRangeGiveOneNan) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const TestTile input =
      Made(Dtype::kF32, {1, 2, 1, 10}, {kInfinite, 1, 1, kInfinite, -NAN, 0, 1, 1, kInfinite, NAN,
                                        kInfinite, 1, 1, kInfinite, -NAN, 0, 1, 1, kInfinite, NAN});
  const TestTile positions = Made(Dtype::kI32, {2}, {0, 2147483647});
  const TestTile frequencies = Made(Dtype::kF32, {5}, {1, 2, kInfinite, 1, -NAN});
  for (const bool is_interleaved : {false, true}) {
    OnEachInstructionSet([&](const std::string&) {
      const TestTile result =
          RunOp(RotaryOp{.is_interleaved = is_interleaved}, {input, positions, frequencies});
      size_t nans = 0;
      for (size_t i = 0; i < result.size(); ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, result.bytes.data() + i * sizeof(bits), sizeof(bits));
        if ((bits & 0x7FFFFFFF) <= 0x7F800000) continue;
        ++nans;
        EXPECT_EQ(bits, 0x7FC00000u) << i;
      }
      EXPECT_GE(nans, 12u);
      if (is_interleaved) return;
      EXPECT_EQ(ValuesOf(result)[1], 1) << "an angle of 0";
      EXPECT_TRUE(std::isnan(ValuesOf(result)[11])) << "an angle of 4.3e9";
    });
  }
}

TEST(RotaryTest, NoElements) {
  const TestTile frequencies = Made(Dtype::kF32, {2}, {1, 1});
  EXPECT_EQ(
      RunOp(RotaryOp{}, {Unset(Dtype::kF32, {2, 0, 3, 4}), Unset(Dtype::kI32, {0}), frequencies})
          .size(),
      0u);
  EXPECT_EQ(RunOp(RotaryOp{}, {Unset(Dtype::kF32, {1, 1, 1, 0}), Made(Dtype::kI32, {1}, {0}),
                               Unset(Dtype::kF32, {0})})
                .size(),
            0u);
}

TEST(RotaryTest, ManyTokens) {
  const TestTile input = Random(Dtype::kBF16, {2, 129, 8, 64}, 3);
  std::vector<double> all;
  for (int i = 0; i < 129; ++i) all.push_back(i);
  const TestTile positions = Made(Dtype::kI32, {129}, all);
  const TestTile frequencies = Made(Dtype::kF32, {32}, UsualFrequencies(32));
  ExpectClose(RunOp(RotaryOp{}, {input, positions, frequencies}),
              PlainRotary({}, input, positions, frequencies), 0.52, 1);
}

TEST(RotaryTest, AllInstructionSetsGiveTheSameBits) {
  for (const bool is_interleaved : {false, true}) {
    const TestTile input = Random(Dtype::kF32, {1, 4, 2, 70}, 4);
    const TestTile positions = Made(Dtype::kI32, {4}, {1, 500, 70000, -9});
    const TestTile frequencies = Made(Dtype::kF32, {35}, UsualFrequencies(35));
    std::vector<char> first;
    OnEachInstructionSet([&](const std::string&) {
      const TestTile result =
          RunOp(RotaryOp{.is_interleaved = is_interleaved}, {input, positions, frequencies});
      if (first.empty()) first = result.bytes;
      EXPECT_EQ(result.bytes, first);
    });
  }
}

}  // namespace
}  // namespace shardmesh::worker::op_test
