// Pieces of tiles on their way to and from a worker: sent from the memory where their bytes lie,
// and read where the network put them.
//
// On the wire a piece is field 15 of a shardmesh.v1.PutTilesRequest or GetTilesResponse, which are
// alike in it; its bytes are its last field.
#ifndef SHARDMESH_RPC_STREAM_TILE_PIECE_H_
#define SHARDMESH_RPC_STREAM_TILE_PIECE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh::rpc {

// Most bytes of a tile in one piece.
inline constexpr int64_t kMaxTilePieceBytes = int64_t{1} << 20;

// Everything but the bytes.
struct TilePieceHeader {
  int64_t offset_bytes = 0;  // in the tile
  uint32_t crc32c = 0;       // of the bytes
  // Of the whole tile; in its last piece alone.
  std::optional<uint32_t> tile_crc32c = std::nullopt;
};

// A message that carries `data`, at most kMaxTilePieceBytes, without copying it.
grpc::ByteBuffer WriteTilePiece(const TilePieceHeader& header, const grpc::Slice& data);

// A piece as received.
struct TilePiece {
  TilePieceHeader header;
  // Its bytes, to be joined in order: they lie in the message, and live as long as it.
  std::vector<absl::Span<const char>> data;

  int64_t size_bytes() const;
};

// Takes apart a message of either kind and checks the piece's own checksum; nullopt if it carries
// something else than a piece (hand it to the generated code then). Fields may stand in any order.
// Errors: DATA_LOSS (CHECKSUM_MISMATCH); INVALID_ARGUMENT (BAD_FIELD) for what is no such message,
// or a negative offset; LIMIT_EXCEEDED for a piece over its limit. Thread-safe.
absl::StatusOr<std::optional<TilePiece>> ReadTilePiece(grpc::ByteBuffer* message);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_TILE_PIECE_H_
