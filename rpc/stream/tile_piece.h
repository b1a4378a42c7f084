// Pieces of tiles between a client and a worker. They are sent and received without copying their
// bytes.
//
// On the wire a piece is field 15 of a shardmesh.v1.PutTilesRequest or GetTilesResponse. The data
// is the last field of the piece.
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

// Maximum size, in bytes, of a piece's data.
inline constexpr int64_t kMaxTilePieceBytes = int64_t{1} << 20;

// All fields of a piece except its data.
struct TilePieceHeader {
  int64_t offset_bytes = 0;  // offset of the piece in the tile
  uint32_t crc32c = 0;       // checksum of the piece's data
  // Checksum of the whole tile; only the last piece has it.
  std::optional<uint32_t> tile_crc32c = std::nullopt;
};

// Returns a message that carries `data`, at most kMaxTilePieceBytes, without copying it.
grpc::ByteBuffer WriteTilePiece(const TilePieceHeader& header, const grpc::Slice& data);

// A received piece.
struct TilePiece {
  TilePieceHeader header;
  // The piece's bytes, in order. They are part of the message, and valid as long as the message.
  std::vector<absl::Span<const char>> data;

  int64_t size_bytes() const;
};

// Parses a PutTilesRequest or a GetTilesResponse, and checks the checksum of its piece. Returns
// nullopt if the message carries no piece; the caller must then parse it with the generated code.
// The fields of a piece may be in any order.
//
// Errors: DATA_LOSS (CHECKSUM_MISMATCH): the checksum does not match the piece's data.
// INVALID_ARGUMENT (BAD_FIELD): the message is malformed, or the offset is negative.
// INVALID_ARGUMENT (LIMIT_EXCEEDED): the piece exceeds its limit. Thread-safe.
absl::StatusOr<std::optional<TilePiece>> ReadTilePiece(grpc::ByteBuffer* message);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_TILE_PIECE_H_
