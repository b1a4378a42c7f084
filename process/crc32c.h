// CRC-32C (Castagnoli), the checksum of tiles, chunks and frames.
#ifndef SHARDMESH_PROCESS_CRC32C_H_
#define SHARDMESH_PROCESS_CRC32C_H_

#include <cstdint>

#include "absl/types/span.h"

namespace shardmesh {

// Returns the checksum of `bytes` (RFC 3720). The checksum of "123456789" is 0xE3069283; the
// checksum of no bytes is 0.
uint32_t Crc32c(absl::Span<const char> bytes);

// Returns the checksum of earlier bytes followed by `bytes`. `crc` is the checksum of the earlier
// bytes.
uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const char> bytes);

// Returns the checksum of A followed by B, from their checksums and the length of B. Takes O(log
// size_b_bytes). Use it to compute the checksum of a tile from the checksums of its pieces, without
// reading the tile again. Requires size_b_bytes >= 0.
uint32_t ConcatCrc32c(uint32_t crc_a, uint32_t crc_b, int64_t size_b_bytes);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_CRC32C_H_
