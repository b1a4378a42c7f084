// CRC-32C over ISA-L, and the arithmetic that joins two checksums.
#include "process/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace shardmesh {
namespace {

// The polynomial with its bits reversed: bit 31 stands for x^0.
constexpr uint32_t kPolynomial = 0x82F63B78;
constexpr uint32_t kOne = 0x80000000;

// Returns the product of two polynomials modulo the polynomial of CRC-32C.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) {
      product ^= b;
    }
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// Element i is x^(8 * 2^i), the factor that shifts a checksum by 2^i bytes.
constexpr std::array<uint32_t, 63> kByteShifts = [] {
  std::array<uint32_t, 63> shifts{};
  shifts[0] = kOne >> 8;
  for (size_t i = 1; i < shifts.size(); ++i) {
    shifts[i] = Multiply(shifts[i - 1], shifts[i - 1]);
  }
  return shifts;
}();

}  // namespace

uint32_t Crc32c(absl::Span<const char> bytes) { return ExtendCrc32c(0, bytes); }

uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const char> bytes) {
  // ISA-L takes the length as an int, so pass the bytes in pieces. ISA-L's caller must invert all
  // bits of the checksum, before and after the call.
  constexpr size_t kMostAtOnce = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const absl::Span<const char> part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    // ISA-L's parameter is not const, but ISA-L only reads the bytes.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(part.data()));
    state = crc32_iscsi(data, static_cast<int>(part.size()), state);
    bytes.remove_prefix(part.size());
  }
  return ~state;
}

uint32_t ConcatCrc32c(uint32_t crc_a, uint32_t crc_b, int64_t size_b_bytes) {
  for (size_t i = 0; size_b_bytes >> i != 0; ++i) {
    if ((size_b_bytes >> i & 1) != 0) {
      crc_a = Multiply(crc_a, kByteShifts[i]);
    }
  }
  return crc_a ^ crc_b;
}

}  // namespace shardmesh
