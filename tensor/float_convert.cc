// Conversions between F32 and the two 16-bit floating-point types, by integer arithmetic.
#include "tensor/float_convert.h"

#include <bit>
#include <cstddef>

namespace shardmesh {
namespace {

constexpr uint32_t kF32Infinity = 0x7F800000;
// The least F32 magnitude that rounds to more than F16's largest number, 65504.
constexpr uint32_t kF16Overflow = 0x477FF000;  // 65520
// F16's smallest normal number, 2^-14.
constexpr uint32_t kF16SmallestNormal = 0x38800000;

template <typename From, typename To, typename Convert>
void ConvertEach(absl::Span<const From> from, absl::Span<To> to, Convert convert) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = convert(from[i]);
  }
}

}  // namespace

uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > kF32Infinity) {
    return static_cast<uint16_t>(bits >> 16 | 0x0040);
  }
  // Round to the upper 16 bits. If their last bit is 1, add 0x8000, half the value of this bit. If
  // their last bit is 0, add 0x7FFF. Ties therefore round to even.
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > kF32Infinity) {
    return static_cast<uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x01FF));
  }
  if (magnitude >= kF16Overflow) {
    return sign | 0x7C00;
  }
  if (magnitude < kF16SmallestNormal) {
    // The result is subnormal. Between 0.5 and 1, the last bit of an F32 is worth 2^-24, which is
    // F16's smallest positive number. The addition of 0.5 therefore rounds correctly.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000));
  }
  // Change the exponent's bias from 127 to 15, and round to nearest even. A carry out of the
  // mantissa correctly raises the exponent.
  const uint32_t rounded = magnitude - (uint32_t{127 - 15} << 23) + 0x0FFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00) {
    return std::bit_cast<float>(sign | kF32Infinity | (magnitude & 0x03FF) << 13);
  }
  if (magnitude < 0x0400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

void ConvertF32ToBF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach(from, to, F32ToBF16);
}

void ConvertBF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach(from, to, BF16ToF32);
}

void ConvertF32ToF16(absl::Span<const float> from, absl::Span<uint16_t> to) {
  ConvertEach(from, to, F32ToF16);
}

void ConvertF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to) {
  ConvertEach(from, to, F16ToF32);
}

}  // namespace shardmesh
