// Conversions between all types.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

constexpr Dtype kConvertedTypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBF16, Dtype::kF16,
                                     Dtype::kI8,  Dtype::kI16, Dtype::kI32,  Dtype::kI64,
                                     Dtype::kU8,  Dtype::kU16, Dtype::kU32,  Dtype::kU64};

bool IsFloatingPoint(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kBF16 ||
         dtype == Dtype::kF16;
}

// The limits of a type of integers, as long double.
std::pair<long double, long double> LimitsOf(Dtype dtype) {
  const int bits = BitsPerElement(dtype);
  const bool is_unsigned =
      dtype == Dtype::kU8 || dtype == Dtype::kU16 || dtype == Dtype::kU32 || dtype == Dtype::kU64;
  if (is_unsigned) return {0, std::ldexp(1.0L, bits) - 1};
  return {-std::ldexp(1.0L, bits - 1), std::ldexp(1.0L, bits - 1) - 1};
}

TEST(ConvertTest, SmallIntegersStayInAllTypes) {
  for (const Dtype from : kConvertedTypes) {
    for (const Dtype to : kConvertedTypes) {
      std::vector<double> values;
      for (int i = 0; i < 1200; ++i) values.push_back(i % 128);
      const TestTile result = RunOp(ConvertOp{.dtype = to}, {Made(from, {3, 400}, values)});
      EXPECT_EQ(ValuesOf(result), values) << DtypeName(from) << " to " << DtypeName(to);
    }
  }
}

TEST(ConvertTest, FloatsToIntegersGoTowardsZeroAndSaturate) {
  const std::vector<double> values = {0.99, -0.99, 1.5,  -1.5,  127.9, -128.9, 255.5, 300,
                                      -300, 4e4,   -4e4, 65504, 1e-7,  -0.0,   2.5,   -3.5};
  for (const Dtype from : kConvertedTypes) {
    if (!IsFloatingPoint(from)) continue;
    std::vector<double> all = values;
    if (from != Dtype::kF16) {
      all.insert(all.end(), {2147483648.0, 4294967296.0, 9.3e18, 1.9e19, -9.3e18, 1e30, -1e30});
    }
    all.insert(all.end(),
               {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()});
    const TestTile input = Made(from, {static_cast<int64_t>(all.size())}, all);
    const std::vector<double> rounded = ValuesOf(input);
    for (const Dtype to : kConvertedTypes) {
      if (IsFloatingPoint(to)) continue;
      const auto [low, high] = LimitsOf(to);
      std::vector<double> expected;
      for (const double value : rounded) {
        const long double clamped = std::min(std::max<long double>(value, low), high);
        expected.push_back(static_cast<double>(std::trunc(clamped)) + 0.0);
      }
      EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = to}, {input})), expected)
          << DtypeName(from) << " to " << DtypeName(to);
    }
  }
  const TestTile nan = Made(Dtype::kBF16, {1}, {std::nan("")});
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kI16}, {nan})), std::vector<double>{0});
}

TEST(ConvertTest, IntegersWrap) {
  const TestTile input = Made(Dtype::kI32, {5}, {-1, 128, 70000, -2147483648.0, 2147483647.0});
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kI8}, {input})),
            (std::vector<double>{-1, -128, 112, 0, -1}));
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kU16}, {input})),
            (std::vector<double>{65535, 128, 4464, 0, 65535}));
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kU64}, {input}))[0], 18446744073709551616.0);
}

TEST(ConvertTest, LargeIntegersAreRoundedOnce) {
  // Halfway between two values of the type, and a little above and below.
  TestTile input = Unset(Dtype::kI64, {6});
  const int64_t half = (int64_t{1} << 60) + (int64_t{1} << 52);  // of BF16: 8 bits
  const std::vector<int64_t> values = {half, half + 1, half - 1, -half, -half - 1, -half + 1};
  std::memcpy(input.bytes.data(), values.data(), input.bytes.size());
  const double low = 0x1p60, high = 0x1.02p60;
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kBF16}, {input})),
            (std::vector<double>{low, high, low, -low, -high, -low}));
  const int64_t float_half = (int64_t{1} << 62) + (int64_t{1} << 38);
  const std::vector<int64_t> others = {float_half,  float_half + 1,  float_half - 1,
                                       -float_half, -float_half - 1, -float_half + 1};
  std::memcpy(input.bytes.data(), others.data(), input.bytes.size());
  std::vector<double> expected;
  for (const int64_t value : others) expected.push_back(static_cast<float>(value));
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kF32}, {input})), expected);
}

TEST(ConvertTest, F64IsRoundedOnceToShortTypes) {
  // Rounding to F32 first would end at the tie, and then at the even neighbour.
  const TestTile input = Made(Dtype::kF64, {2}, {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40});
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kBF16}, {input}))[0], 1 + 0x1p-7);
  EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = Dtype::kF16}, {input}))[1], 1 + 0x1p-10);
}

TEST(ConvertTest, ABoolBecomesZeroOrOne) {
  TestTile input = Unset(Dtype::kBool, {3});
  input.bytes = {0, 1, 7};
  for (const Dtype to : kConvertedTypes) {
    EXPECT_EQ(ValuesOf(RunOp(ConvertOp{.dtype = to}, {input})), (std::vector<double>{0, 1, 1}));
  }
}

TEST(ConvertTest, NoElementsAndMany) {
  EXPECT_EQ(RunOp(ConvertOp{.dtype = Dtype::kF32}, {Unset(Dtype::kI8, {0, 4})}).size(), 0u);
  const TestTile input = Random(Dtype::kF32, {400, 1031}, 3);
  const TestTile half = RunOp(ConvertOp{.dtype = Dtype::kBF16}, {input});
  ExpectClose(half, ValuesOf(input), 0.5, 1e-30);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
