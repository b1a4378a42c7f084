// Copies of bits between places that may lie within a byte: regions of tensors whose elements have
// less than a byte.
#ifndef SHARDMESH_TENSOR_BIT_COPY_H_
#define SHARDMESH_TENSOR_BIT_COPY_H_

#include <cstdint>

namespace shardmesh {

// Copies `bits` bits, from bit `from_bit` of `from` on, to bit `to_bit` of `to`. Bit i of a
// sequence of bytes is bit i % 8 of byte i / 8, the lowest bit first. All other bits of `to` stay
// as they are. The two ranges of bits must not share a byte of memory. Requires numbers that are
// not negative. Null pointers are allowed for 0 bits.
//
// Several threads may write disjoint ranges of bits of the same memory at the same time, even where
// two ranges share a byte. A byte that a range fills only in part is changed by an atomic AND and
// an atomic OR of the range's own bits. No thread may read the bits meanwhile.
void CopyBits(char* to, int64_t to_bit, const char* from, int64_t from_bit, int64_t bits);

// Sets `bits` bits to zero, from bit `to_bit` of `to` on. Requires that they lie within one byte.
// Threads as with CopyBits.
void ClearBits(char* to, int64_t to_bit, int64_t bits);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_BIT_COPY_H_
