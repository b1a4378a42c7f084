// Conversions among floating-point types, by integer arithmetic without branches: the compiler
// vectorises the loops.
#include "tensor/float_convert.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace shardmesh {
namespace {

constexpr uint32_t kF32Infinity = 0x7F800000;
// The least F32 magnitude that rounds to more than F16's largest number, 65504.
constexpr uint32_t kF16Overflow = 0x477FF000;  // 65520
// F16's smallest normal number, 2^-14.
constexpr uint32_t kF16SmallestNormal = 0x38800000;

// Takes the function as a template argument, and uses pointers: the index check of absl::Span is
// control flow, which prevents vectorisation.
template <auto kConvert, typename From, typename To>
void ConvertEach(absl::Span<const From> from, absl::Span<To> to) {
  const From* const __restrict in = from.data();
  To* const __restrict out = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) {
    out[i] = kConvert(in[i]);
  }
}

// Converts to F32 without losing what a later rounding to 16 bits needs: an inexact result is the
// neighbour whose last bit is 1 ("round to odd"). Two roundings to nearest could differ from one.
float F64ToF32Odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const bool inexact = back != value && value == value;
  const bool too_large = std::fabs(back) > std::fabs(value);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const uint32_t odd = (bits - (too_large ? 1u : 0u)) | 1u;
  return std::bit_cast<float>(inexact ? odd : bits);
}

}  // namespace

uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Round to the upper 16 bits. If their last bit is 1, add 0x8000, half the value of this bit. If
  // their last bit is 0, add 0x7FFF. Ties therefore round to even.
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x0040;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > kF32Infinity ? quiet_nan : rounded);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t quiet_nan = 0x7E00 | (magnitude >> 13 & 0x01FF);
  // For subnormal results. Between 0.5 and 1, the last bit of an F32 is worth 2^-24, which is F16's
  // smallest positive number. The addition of 0.5 therefore rounds correctly.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  // Change the exponent's bias from 127 to 15, and round to nearest even. A carry out of the
  // mantissa correctly raises the exponent.
  const uint32_t normal =
      (magnitude - (uint32_t{127 - 15} << 23) + 0x0FFF + (magnitude >> 13 & 1)) >> 13;
  uint32_t result = magnitude < kF16SmallestNormal ? subnormal : normal;
  result = magnitude >= kF16Overflow ? 0x7C00 : result;
  result = magnitude > kF32Infinity ? quiet_nan : result;
  return static_cast<uint16_t>(sign | result);
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  const uint32_t infinite = kF32Infinity | (magnitude & 0x03FF) << 13;
  const uint32_t normal = (magnitude << 13) + (uint32_t{127 - 15} << 23);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t result = magnitude < 0x0400 ? subnormal : normal;
  result = magnitude >= 0x7C00 ? infinite : result;
  return std::bit_cast<float>(sign | result);
}

float F64ToF32(double value) { return static_cast<float>(value); }
uint16_t F64ToBF16(double value) { return F32ToBF16(F64ToF32Odd(value)); }
uint16_t F64ToF16(double value) { return F32ToF16(F64ToF32Odd(value)); }

void ConvertF32ToBF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach<F32ToBF16>(from, to);
}

void ConvertBF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach<BF16ToF32>(from, to);
}

void ConvertF32ToF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach<F32ToF16>(from, to);
}

void ConvertF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach<F16ToF32>(from, to);
}

void ConvertF64ToF32(absl::Span<const double> from, absl::Span<float> to) {
  ConvertEach<F64ToF32>(from, to);
}

void ConvertF64ToBF16(absl::Span<const double> from, absl::Span<uint16_t> to) {
  ConvertEach<F64ToBF16>(from, to);
}

void ConvertF64ToF16(absl::Span<const double> from, absl::Span<uint16_t> to) {
  ConvertEach<F64ToF16>(from, to);
}

void QuantiseF32ToI8(absl::Span<const float> from, absl::Span<const float> scales,
                     absl::Span<int8_t> to) {
  // The sum of this number and one of magnitude up to 2^22 has no fraction bits left: the addition
  // rounds to nearest even.
  constexpr float kRound = 12582912.0f;
  constexpr float kLargest = 127.0f;
  const float* const __restrict in = from.data();
  const float* const __restrict scale = scales.data();
  int8_t* const __restrict out = to.data();
  const size_t count = from.size();
  const auto quantise = [](float value, float by) {
    const float quotient = value / by;
    const float from_below = quotient > -kLargest ? quotient : -kLargest;  // also for a NaN
    const float limited = from_below < kLargest ? from_below : kLargest;
    return static_cast<int8_t>(static_cast<int32_t>((limited + kRound) - kRound));
  };
  if (scales.size() == 1) {
    const float by = scale[0];
    for (size_t i = 0; i < count; ++i) out[i] = quantise(in[i], by);
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = quantise(in[i], scale[i]);
  }
}

uint32_t LargestMagnitudeBits(absl::Span<const float> from) {
  const float* const __restrict in = from.data();
  const size_t count = from.size();
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(in[i]) & 0x7FFFFFFF;
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

void RaiseMagnitudeBits(absl::Span<const float> from, absl::Span<uint32_t> magnitudes) {
  const float* const __restrict in = from.data();
  uint32_t* const __restrict out = magnitudes.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(in[i]) & 0x7FFFFFFF;
    const int32_t before = static_cast<int32_t>(out[i]);
    out[i] = static_cast<uint32_t>(bits > before ? bits : before);
  }
}

}  // namespace shardmesh
