// Conversions of floats: every 16-bit value, and the roundings.
#include "tensor/float_convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"

namespace shardmesh {
namespace {

TEST(FloatConvertTest, EveryHalfSurvivesTheWayToF32AndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const bool f16_nan = (half & 0x7FFF) > 0x7C00;
    EXPECT_EQ(F32ToF16(F16ToF32(half)), f16_nan ? half | 0x0200 : half);
    const bool bf16_nan = (half & 0x7FFF) > 0x7F80;
    EXPECT_EQ(F32ToBF16(BF16ToF32(half)), bf16_nan ? half | 0x0040 : half);
  }
}

TEST(FloatConvertTest, EveryF16HasTheValueThatItsFieldsSay) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const double mantissa = static_cast<double>(bits & 0x3FF) / 1024;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
    EXPECT_EQ(F16ToF32(static_cast<uint16_t>(bits)), value);
    EXPECT_EQ(F16ToF32(static_cast<uint16_t>(bits | 0x8000)), -value);
  }
}

TEST(FloatConvertTest, RoundsToNearestWithTiesToEven) {
  // Between each two neighbours: just below the middle, the middle, just above it.
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const uint16_t low = static_cast<uint16_t>(bits);
    const uint16_t high = static_cast<uint16_t>(bits + 1);
    const float middle = (F16ToF32(low) + F16ToF32(high)) / 2;
    EXPECT_EQ(F32ToF16(std::nextafterf(middle, 0)), low);
    EXPECT_EQ(F32ToF16(middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(F32ToF16(std::nextafterf(middle, 1e9f)), high);
  }
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
}

TEST(FloatConvertTest, TooLargeBecomesInfinityAndNaNStaysNaN) {
  EXPECT_EQ(F32ToF16(65519.99f), 0x7BFF);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7C00);
  EXPECT_EQ(F32ToF16(-1e30f), 0xFC00);
  EXPECT_EQ(F32ToBF16(std::numeric_limits<float>::max()), 0x7F80);
  // A NaN whose payload would be cut off entirely.
  const float nan = std::bit_cast<float>(0xFF800001u);
  EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(nan))));
  EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(nan))));
  EXPECT_TRUE(std::signbit(BF16ToF32(F32ToBF16(nan))));
}

// The nearest number with `bits` bits of mantissa after the point and exponents from `least` on,
// ties to even, by exact arithmetic on doubles.
double Nearest(double value, int bits, int least, double overflow) {
  if (!std::isfinite(value) || value == 0) return value;
  if (std::fabs(value) >= overflow) return std::copysign(INFINITY, value);
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), least) - bits);
  return std::copysign(std::nearbyint(value / unit) * unit, value);
}
double NearestF16(double value) { return Nearest(value, 10, -14, 65520.0); }
double NearestBF16(double value) { return Nearest(value, 7, -126, 0x1.FFp127); }
double NearestF32(double value) { return Nearest(value, 23, -126, 0x1.FFFFFFp127); }

bool IsSame(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b) && std::signbit(a) == std::signbit(b));
}

TEST(FloatConvertTest, RandomF32RoundAsExactArithmeticSays) {
  std::mt19937 random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    uint32_t bits = random();
    if (i % 4 == 1) bits &= 0x807FFFFF;  // subnormal
    if (i % 4 == 2) bits = (bits & 0x80FFFFFF) | (0x38000000 - (random() & 0x03000000));
    if (i % 4 == 3) bits = (bits & 0xFFFF0000) | 0x8000 | (random() % 3 - 1);  // near a tie of BF16
    const float value = std::bit_cast<float>(bits);
    ASSERT_TRUE(IsSame(F16ToF32(F32ToF16(value)), NearestF16(value))) << std::hex << bits;
    ASSERT_TRUE(IsSame(BF16ToF32(F32ToBF16(value)), NearestBF16(value))) << std::hex << bits;
  }
}

TEST(FloatConvertTest, F64RoundsOnce) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 1'000'000; ++i) {
    uint64_t bits = random();
    // Exponents near those of F16, BF16 and F32, and mantissas near ties.
    if (i % 2 == 1) bits = (bits & ~(uint64_t{0x7FF} << 52)) | (1023 - 150 + random() % 300) << 52;
    if (i % 4 == 3) bits = (bits >> 41 << 41) + random() % 3 - 1;
    const double value = std::bit_cast<double>(bits);
    ASSERT_TRUE(IsSame(F64ToF32(value), NearestF32(value))) << std::hex << bits;
    ASSERT_TRUE(IsSame(F16ToF32(F64ToF16(value)), NearestF16(value))) << std::hex << bits;
    ASSERT_TRUE(IsSame(BF16ToF32(F64ToBF16(value)), NearestBF16(value))) << std::hex << bits;
  }
  // Just above the middle between two numbers of BF16; as F32 it is the middle.
  EXPECT_EQ(F64ToBF16(1 + 0x1p-8 + 0x1p-40), 0x3F81);
  EXPECT_EQ(F64ToF16(1 + 0x1p-11 + 0x1p-40), 0x3C01);
  EXPECT_EQ(F64ToBF16(-1e300), 0xFF80);
  EXPECT_EQ(F64ToF16(1e-300), 0);
}

// Whether the bits are those of `want`.
template <typename T>
bool HasBitsOf(T have, T want) {
  return std::memcmp(&have, &want, sizeof(T)) == 0;
}

TEST(FloatConvertTest, ManyElementsAreConvertedAsEachOnAllInstructionSets) {
  test::OnEachInstructionSet([](const std::string&) {
    std::mt19937_64 random(5);
    for (const size_t size : {0, 1, 3, 7, 8, 31, 64, 1001, 70'000}) {
      std::vector<float> floats(size + 1);
      std::vector<double> doubles(size + 1);
      std::vector<uint16_t> halves(size + 1);
      for (size_t i = 0; i <= size; ++i) {
        floats[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
        halves[i] = static_cast<uint16_t>(i);  // each of them in the longest run
        doubles[i] = i % 4 == 0 ? std::bit_cast<double>(random())
                                : std::ldexp(static_cast<double>(random() >> 32),
                                             static_cast<int>(random() % 300) - 180);
        if (i % 16 == 1) floats[i] = std::bit_cast<float>(static_cast<uint32_t>(i * 25));  // tiny
        if (i % 16 == 2) floats[i] = std::bit_cast<float>(static_cast<uint32_t>(0xFF800001 + i));
        if (i % 16 == 3) floats[i] = i % 32 == 3 ? INFINITY : -INFINITY;
        if (i % 16 == 4) floats[i] = std::ldexp(floats[i], -130) * 0.0f;  // zeros and NaNs
      }
      // From the second element on, which is not aligned for vectors.
      const auto from_floats = absl::MakeConstSpan(floats).subspan(1);
      const auto from_doubles = absl::MakeConstSpan(doubles).subspan(1);
      const auto from_halves = absl::MakeConstSpan(halves).subspan(1);
      std::vector<uint16_t> to_halves(size);
      std::vector<float> to_floats(size);
      const auto expect = [&](const auto& have, const auto& from, const auto& one) {
        for (size_t i = 0; i < size; ++i) ASSERT_TRUE(HasBitsOf(have[i], one(from[i]))) << i;
      };
      ConvertF32ToF16(from_floats, absl::MakeSpan(to_halves));
      expect(to_halves, from_floats, F32ToF16);
      ConvertF32ToBF16(from_floats, absl::MakeSpan(to_halves));
      expect(to_halves, from_floats, F32ToBF16);
      ConvertF64ToF16(from_doubles, absl::MakeSpan(to_halves));
      expect(to_halves, from_doubles, F64ToF16);
      ConvertF64ToBF16(from_doubles, absl::MakeSpan(to_halves));
      expect(to_halves, from_doubles, F64ToBF16);
      ConvertF64ToF32(from_doubles, absl::MakeSpan(to_floats));
      expect(to_floats, from_doubles, F64ToF32);
      ConvertF16ToF32(from_halves, absl::MakeSpan(to_floats));
      expect(to_floats, from_halves, F16ToF32);
      ConvertBF16ToF32(from_halves, absl::MakeSpan(to_floats));
      expect(to_floats, from_halves, BF16ToF32);

      uint32_t largest = 0;
      std::vector<uint32_t> magnitudes(size, 0x3F800000u);
      RaiseMagnitudeBits(from_floats, absl::MakeSpan(magnitudes));
      for (size_t i = 0; i < size; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(from_floats[i]) & 0x7FFFFFFF;
        ASSERT_EQ(magnitudes[i], std::max(bits, 0x3F800000u));
        largest = std::max(largest, bits);
      }
      EXPECT_EQ(LargestMagnitudeBits(from_floats), largest);
    }
  });
}

TEST(FloatConvertTest, QuantisesToTheNearestWithTiesToEvenAndLimits) {
  const std::vector<float> values = {0,   0.5f, 1.5f,   2.5f,   -0.5f,    -1.5f,     126.4f, 127.0f,
                                     300, -300, -0.49f, 126.5f, INFINITY, -INFINITY, NAN};
  const std::vector<int8_t> expected = {0,   0,    2, 2,   0,   -2,   126, 127,
                                        127, -127, 0, 126, 127, -127, -127};
  test::OnEachInstructionSet([&](const std::string&) {
    std::vector<int8_t> quantised(values.size());
    QuantiseF32ToI8(values, {1.0f}, absl::MakeSpan(quantised));
    EXPECT_EQ(quantised, expected);
    // So many that some are in a whole vector, and some are left over.
    std::vector<float> many, scales;
    std::vector<int8_t> each;
    for (int i = 0; i < 157; ++i) {
      many.push_back(static_cast<float>(4 * i - 300));
      scales.push_back(static_cast<float>(1 << i % 4));
      each.push_back(static_cast<int8_t>(
          std::clamp(std::nearbyint(many.back() / scales.back()), -127.0f, 127.0f)));
    }
    std::vector<int8_t> by_element(many.size());
    QuantiseF32ToI8(many, scales, absl::MakeSpan(by_element));
    EXPECT_EQ(by_element, each);
  });
}

}  // namespace
}  // namespace shardmesh
