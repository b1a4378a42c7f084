// Floats of 32 or 16 bits, converted in blocks on the stack: memory need not be aligned.
#include "worker/kernel/float_block.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/types/span.h"
#include "tensor/float_convert.h"

namespace shardmesh::worker {
namespace {

using Halves = std::array<uint16_t, static_cast<size_t>(kFloatBlock)>;

}  // namespace

int64_t FloatBytes(Dtype dtype) {
  if (dtype == Dtype::kF32) return 4;
  return dtype == Dtype::kBF16 || dtype == Dtype::kF16 ? 2 : 0;
}

void LoadFloats(Dtype dtype, const char* from, size_t count, float* to) {
  if (dtype == Dtype::kF32) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  Halves halves;
  while (count > 0) {
    const size_t size = std::min(count, halves.size());
    std::memcpy(halves.data(), from, size * sizeof(uint16_t));
    const auto in = absl::MakeConstSpan(halves.data(), size);
    const auto out = absl::MakeSpan(to, size);
    dtype == Dtype::kBF16 ? ConvertBF16ToF32(in, out) : ConvertF16ToF32(in, out);
    from += size * sizeof(uint16_t);
    to += size;
    count -= size;
  }
}

void StoreFloats(Dtype dtype, const float* from, size_t count, char* to) {
  if (dtype == Dtype::kF32) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  Halves halves;
  while (count > 0) {
    const size_t size = std::min(count, halves.size());
    const auto in = absl::MakeConstSpan(from, size);
    const auto out = absl::MakeSpan(halves.data(), size);
    dtype == Dtype::kBF16 ? ConvertF32ToBF16(in, out) : ConvertF32ToF16(in, out);
    std::memcpy(to, halves.data(), size * sizeof(uint16_t));
    from += size;
    to += size * sizeof(uint16_t);
    count -= size;
  }
}

}  // namespace shardmesh::worker
