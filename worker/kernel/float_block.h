// Floats of 32 or 16 bits in memory, read and written as F32.
#ifndef SHARDMESH_WORKER_KERNEL_FLOAT_BLOCK_H_
#define SHARDMESH_WORKER_KERNEL_FLOAT_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace shardmesh::worker {

// Elements of a block: its floats fit into the nearest cache beside those of a few other blocks.
inline constexpr int64_t kFloatBlock = 512;
using FloatBlock = std::array<float, static_cast<size_t>(kFloatBlock)>;

// Returns the size of an element in bytes if the type is F32, BF16 or F16; 0 for other types.
int64_t FloatBytes(Dtype dtype);

// Converts `count` elements of a type of FloatBytes to F32. `from` need not be aligned and does not
// overlap `to`.
void LoadFloats(Dtype dtype, const char* from, size_t count, float* to);
// Rounds `count` F32s to the nearest values of a type of FloatBytes, ties to even. `to` need not be
// aligned and does not overlap `from`.
void StoreFloats(Dtype dtype, const float* from, size_t count, char* to);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_FLOAT_BLOCK_H_
