// Conversions between F32 and the two 16-bit floating-point types.
#ifndef SHARDMESH_TENSOR_FLOAT_CONVERT_H_
#define SHARDMESH_TENSOR_FLOAT_CONVERT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace shardmesh {

// Conversions to 16 bits round to nearest, ties to even. A value that is too large becomes
// infinity. A NaN keeps its sign and the upper bits of its payload, and becomes quiet. Conversions
// to F32 are exact.
uint16_t F32ToBF16(float value);
float BF16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
float F16ToF32(uint16_t bits);

// Convert every element. `from` and `to` have the same number of elements and do not overlap.
void ConvertF32ToBF16(absl::Span<const float> from, absl::Span<uint16_t> to);
void ConvertBF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to);
void ConvertF32ToF16(absl::Span<const float> from, absl::Span<uint16_t> to);
void ConvertF16ToF32(absl::Span<const uint16_t> from, absl::Span<float> to);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_FLOAT_CONVERT_H_
