// Conversions among floating-point types, by integer arithmetic without branches: the compiler
// vectorises the loops. The compiler makes each loop once for each instruction set, and a call
// selects the one for the CPU at hand.
#include "tensor/float_convert.h"

#include <bit>
#include <cmath>
#include <cstddef>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/float_convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::HWY_NAMESPACE {
namespace {

constexpr uint32_t kF32Infinity = 0x7F800000;
// The least F32 magnitude that rounds to more than F16's largest number, 65504.
constexpr uint32_t kF16Overflow = 0x477FF000;  // 65520
// F16's smallest normal number, 2^-14.
constexpr uint32_t kF16SmallestNormal = 0x38800000;

// Converts to F32 without losing what a later rounding to 16 bits needs: an inexact result is the
// neighbour whose last bit is 1 ("round to odd"). Two roundings to nearest could differ from one.
inline float ToF32Odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const bool inexact = back != value && value == value;
  const bool too_large = std::fabs(back) > std::fabs(value);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const uint32_t odd = (bits - (too_large ? 1u : 0u)) | 1u;
  return std::bit_cast<float>(inexact ? odd : bits);
}

inline uint16_t ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Round to the upper 16 bits. If their last bit is 1, add 0x8000, half the value of this bit. If
  // their last bit is 0, add 0x7FFF. Ties therefore round to even.
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x0040;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > kF32Infinity ? quiet_nan : rounded);
}

inline float FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t ToF16(float value) {
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

inline float FromF16(uint16_t bits) {
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

inline float F64ToF32Nearest(double value) { return static_cast<float>(value); }
inline uint16_t F64ToBF16Nearest(double value) { return ToBF16(ToF32Odd(value)); }
inline uint16_t F64ToF16Nearest(double value) { return ToF16(ToF32Odd(value)); }

// Takes the function as a template argument, and pointers: the index check of absl::Span is control
// flow, which prevents vectorisation.
template <auto kConvert, typename From, typename To>
void ConvertEach(const From* __restrict in, size_t count, To* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = kConvert(in[i]);
  }
}

void BF16FromF32(const float* from, size_t count, uint16_t* to) {
  ConvertEach<ToBF16>(from, count, to);
}
void F32FromBF16(const uint16_t* from, size_t count, float* to) {
  ConvertEach<FromBF16>(from, count, to);
}
void F16FromF32(const float* from, size_t count, uint16_t* to) {
  ConvertEach<ToF16>(from, count, to);
}
void F32FromF16(const uint16_t* from, size_t count, float* to) {
  ConvertEach<FromF16>(from, count, to);
}
void F32FromF64(const double* from, size_t count, float* to) {
  ConvertEach<F64ToF32Nearest>(from, count, to);
}
void BF16FromF64(const double* from, size_t count, uint16_t* to) {
  ConvertEach<F64ToBF16Nearest>(from, count, to);
}
void F16FromF64(const double* from, size_t count, uint16_t* to) {
  ConvertEach<F64ToF16Nearest>(from, count, to);
}

inline int8_t Quantised(float value, float scale) {
  // The sum of this number and one of magnitude up to 2^22 has no fraction bits left: the addition
  // rounds to nearest even.
  constexpr float kRound = 12582912.0f;
  constexpr float kLargest = 127.0f;
  const float quotient = value / scale;
  const float from_below = quotient > -kLargest ? quotient : -kLargest;  // also for a NaN
  const float limited = from_below < kLargest ? from_below : kLargest;
  return static_cast<int8_t>(static_cast<int32_t>((limited + kRound) - kRound));
}

void I8FromF32(const float* __restrict from, float scale, size_t count, int8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = Quantised(from[i], scale);
}

void I8FromF32ByElement(const float* __restrict from, const float* __restrict scales, size_t count,
                        int8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = Quantised(from[i], scales[i]);
}

// Magnitudes are compared as signed numbers, for which more instruction sets have a maximum.
inline int32_t MagnitudeBits(float value) { return std::bit_cast<int32_t>(value) & 0x7FFFFFFF; }

uint32_t LargestOf(const float* from, size_t count) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = MagnitudeBits(from[i]);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

void RaiseEach(const float* __restrict from, size_t count, uint32_t* __restrict magnitudes) {
  for (size_t i = 0; i < count; ++i) {
    const int32_t bits = MagnitudeBits(from[i]);
    const int32_t before = static_cast<int32_t>(magnitudes[i]);
    magnitudes[i] = static_cast<uint32_t>(bits > before ? bits : before);
  }
}

}  // namespace
}  // namespace shardmesh::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh {
namespace {

HWY_EXPORT(BF16FromF32);
HWY_EXPORT(F32FromBF16);
HWY_EXPORT(F16FromF32);
HWY_EXPORT(F32FromF16);
HWY_EXPORT(F32FromF64);
HWY_EXPORT(BF16FromF64);
HWY_EXPORT(F16FromF64);
HWY_EXPORT(I8FromF32);
HWY_EXPORT(I8FromF32ByElement);
HWY_EXPORT(LargestOf);
HWY_EXPORT(RaiseEach);

}  // namespace

uint16_t F32ToBF16(float value) { return HWY_STATIC_DISPATCH(ToBF16)(value); }
float BF16ToF32(uint16_t bits) { return HWY_STATIC_DISPATCH(FromBF16)(bits); }
uint16_t F32ToF16(float value) { return HWY_STATIC_DISPATCH(ToF16)(value); }
float F16ToF32(uint16_t bits) { return HWY_STATIC_DISPATCH(FromF16)(bits); }
float F64ToF32(double value) { return HWY_STATIC_DISPATCH(F64ToF32Nearest)(value); }
uint16_t F64ToBF16(double value) { return HWY_STATIC_DISPATCH(F64ToBF16Nearest)(value); }
uint16_t F64ToF16(double value) { return HWY_STATIC_DISPATCH(F64ToF16Nearest)(value); }

void ConvertF32ToBF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  HWY_DYNAMIC_DISPATCH(BF16FromF32)(from.data(), from.size(), to.data());
}

void ConvertBF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  HWY_DYNAMIC_DISPATCH(F32FromBF16)(from.data(), from.size(), to.data());
}

void ConvertF32ToF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  HWY_DYNAMIC_DISPATCH(F16FromF32)(from.data(), from.size(), to.data());
}

void ConvertF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  HWY_DYNAMIC_DISPATCH(F32FromF16)(from.data(), from.size(), to.data());
}

void ConvertF64ToF32(absl::Span<const double> from, absl::Span<float> to) {
  HWY_DYNAMIC_DISPATCH(F32FromF64)(from.data(), from.size(), to.data());
}

void ConvertF64ToBF16(absl::Span<const double> from, absl::Span<uint16_t> to) {
  HWY_DYNAMIC_DISPATCH(BF16FromF64)(from.data(), from.size(), to.data());
}

void ConvertF64ToF16(absl::Span<const double> from, absl::Span<uint16_t> to) {
  HWY_DYNAMIC_DISPATCH(F16FromF64)(from.data(), from.size(), to.data());
}

void QuantiseF32ToI8(absl::Span<const float> from, absl::Span<const float> scales,
                     absl::Span<int8_t> to) {
  if (scales.size() == 1) {
    HWY_DYNAMIC_DISPATCH(I8FromF32)(from.data(), scales.front(), from.size(), to.data());
  } else {
    HWY_DYNAMIC_DISPATCH(I8FromF32ByElement)(from.data(), scales.data(), from.size(), to.data());
  }
}

uint32_t LargestMagnitudeBits(absl::Span<const float> from) {
  return HWY_DYNAMIC_DISPATCH(LargestOf)(from.data(), from.size());
}

void RaiseMagnitudeBits(absl::Span<const float> from, absl::Span<uint32_t> magnitudes) {
  HWY_DYNAMIC_DISPATCH(RaiseEach)(from.data(), from.size(), magnitudes.data());
}

}  // namespace shardmesh
#endif  // HWY_ONCE
