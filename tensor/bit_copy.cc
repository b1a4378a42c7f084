// Merges the first and the last byte, and shifts the bytes between them.
#include "tensor/bit_copy.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>

#include "tensor/copy.h"

namespace shardmesh {
namespace {

unsigned ByteAt(const char* from, int64_t index) { return static_cast<unsigned char>(from[index]); }

// Returns `bits` bits, at most 8, from bit `from_bit` of `from` on. Reads no byte beyond them.
unsigned ReadBits(const char* from, int64_t from_bit, int64_t bits) {
  from += from_bit / 8;
  const auto shift = static_cast<unsigned>(from_bit % 8);
  unsigned value = ByteAt(from, 0) >> shift;
  if (shift + bits > 8) value |= ByteAt(from, 1) << (8 - shift);
  return value & ((1U << bits) - 1);
}

// Sets the bits [to_bit, to_bit + bits) of one byte to those of `value`. Another thread may set
// other bits of the byte at the same time.
void MergeBits(char* to, int64_t to_bit, int64_t bits, unsigned value) {
  to += to_bit / 8;
  const auto shift = static_cast<unsigned>(to_bit % 8);
  const unsigned mask = ((1U << bits) - 1) << shift;
  std::atomic_ref<unsigned char> byte(reinterpret_cast<unsigned char&>(*to));
  byte.fetch_and(static_cast<unsigned char>(~mask), std::memory_order_relaxed);
  byte.fetch_or(static_cast<unsigned char>(value << shift), std::memory_order_relaxed);
}

// Writes `count` whole bytes with the bits from bit `shift` of `from` on. Requires 0 < shift < 8.
void ShiftBytes(char* to, const char* from, unsigned shift, int64_t count) {
  int64_t i = 0;
  if constexpr (std::endian::native == std::endian::little) {
    for (; i + 8 <= count; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, from + i, sizeof(word));
      word = word >> shift | uint64_t{ByteAt(from, i + 8)} << (64 - shift);
      std::memcpy(to + i, &word, sizeof(word));
    }
  }
  for (; i < count; ++i) {
    to[i] = static_cast<char>(ByteAt(from, i) >> shift | ByteAt(from, i + 1) << (8 - shift));
  }
}

}  // namespace

void CopyBits(char* to, int64_t to_bit, const char* from, int64_t from_bit, int64_t bits) {
  const auto merge = [&](int64_t count) {
    MergeBits(to, to_bit, count, ReadBits(from, from_bit, count));
    to_bit += count;
    from_bit += count;
    bits -= count;
  };
  if (bits > 0 && to_bit % 8 != 0) merge(std::min(8 - to_bit % 8, bits));
  const int64_t bytes = bits / 8;
  if (bytes > 0) {
    char* const whole = to + to_bit / 8;
    const char* const source = from + from_bit / 8;
    if (from_bit % 8 == 0) {
      CopyBytes(whole, source, static_cast<size_t>(bytes));
    } else {
      ShiftBytes(whole, source, static_cast<unsigned>(from_bit % 8), bytes);
    }
    to_bit += 8 * bytes;
    from_bit += 8 * bytes;
    bits -= 8 * bytes;
  }
  if (bits > 0) merge(bits);
}

void ClearBits(char* to, int64_t to_bit, int64_t bits) {
  if (bits > 0) MergeBits(to, to_bit, bits, 0);
}

}  // namespace shardmesh
