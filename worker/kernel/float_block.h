// Elements in memory, read and written in blocks: short floats as F32, all others as F64 or as
// 64-bit integers.
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

// All functions below take at most kFloatBlock elements, aligned. `from` and `to` do not overlap.
template <typename T>
using WideBlock = std::array<T, static_cast<size_t>(kFloatBlock)>;

// Whether the type is F64, F32, BF16 or F16.
bool IsFloat(Dtype dtype);

// Loads elements of a type of IsFloat.
void LoadDoubles(Dtype dtype, const char* from, size_t count, double* to);
// Loads elements of BOOL (0 and 1) or of a type of integers of 8 to 64 bits. Negative integers are
// two's complements.
void LoadIntegers(Dtype dtype, const char* from, size_t count, uint64_t* to);

// Store elements of a type of IsFloat or of a type of integers.
//
// F64s are rounded once to floats, ties to even, and become integers towards zero with saturation;
// a NaN becomes 0. Integers wrap. They are rounded once to floats; `is_signed` says how to read
// them.
void StoreDoubles(Dtype dtype, const double* from, size_t count, char* to);
void StoreIntegers(Dtype dtype, bool is_signed, const uint64_t* from, size_t count, char* to);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_FLOAT_BLOCK_H_
