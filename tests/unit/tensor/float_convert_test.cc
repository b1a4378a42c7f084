// Conversions of floats: every 16-bit value, and the roundings.
#include "tensor/float_convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

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

}  // namespace
}  // namespace shardmesh
