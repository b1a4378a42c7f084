// Rotary embedding: both layouts of pairs, and positions far out.
#include <gtest/gtest.h>

#include <cmath>
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
  const TestTile input = Made(Dtype::kF32, {1, 3, 1, 4}, {1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0});
  const TestTile positions = Made(Dtype::kI32, {3}, {100000, 1048575, 2147483647});
  const TestTile frequencies = Made(Dtype::kF32, {2}, {1, 0.9172});
  const std::vector<double> expected = PlainRotary({}, input, positions, frequencies);
  const std::vector<double> values = ValuesOf(RunOp(RotaryOp{}, {input, positions, frequencies}));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], i < 8 ? 1.2e-7 : 4e-7) << i;
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
