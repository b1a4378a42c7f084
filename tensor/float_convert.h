// Conversions among F64, F32 and the two 16-bit floating-point types.
#ifndef SHARDMESH_TENSOR_FLOAT_CONVERT_H_
#define SHARDMESH_TENSOR_FLOAT_CONVERT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace shardmesh {

// Conversions to a narrower type round once, to nearest, ties to even. A value that is too large
// becomes infinity. A NaN keeps its sign and the upper bits of its payload, and becomes quiet.
// Conversions from 16 bits to F32 are exact.
uint16_t F32ToBF16(float value);
float BF16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
float F16ToF32(uint16_t bits);
float F64ToF32(double value);
uint16_t F64ToBF16(double value);
uint16_t F64ToF16(double value);

// Convert every element. `from` and `to` have the same number of elements and do not overlap.
void ConvertF32ToBF16(absl::Span<const float> from, absl::Span<uint16_t> to);
void ConvertBF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to);
void ConvertF32ToF16(absl::Span<const float> from, absl::Span<uint16_t> to);
void ConvertF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to);
void ConvertF64ToF32(absl::Span<const double> from, absl::Span<float> to);
void ConvertF64ToBF16(absl::Span<const double> from, absl::Span<uint16_t> to);
void ConvertF64ToF16(absl::Span<const double> from, absl::Span<uint16_t> to);

// Quantises to I8: `to` is `from` divided by its scale, rounded to nearest with ties to even, and
// limited to [-127, 127]. A NaN becomes -127. `scales` has one scale for all elements, or one for
// each.
void QuantiseF32ToI8(absl::Span<const float> from, absl::Span<const float> scales,
                     absl::Span<int8_t> to);

// Returns the largest magnitude of `from`, as the bits of an F32 without sign; 0 for no elements. A
// result above 0x7F7FFFFF: some element is an infinity or a NaN.
uint32_t LargestMagnitudeBits(absl::Span<const float> from);
// Raises each of `magnitudes`, bits as above, to the magnitude of its element of `from`.
void RaiseMagnitudeBits(absl::Span<const float> from, absl::Span<uint32_t> magnitudes);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_FLOAT_CONVERT_H_
