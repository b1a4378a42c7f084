// Receives the answer of GetTiles: checks that tiles come as requested, and passes on their bytes.
#ifndef SHARDMESH_RPC_STREAM_TILE_RECEIVER_H_
#define SHARDMESH_RPC_STREAM_TILE_RECEIVER_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/stream/tile_piece.h"
#include "sharding/tile.h"

namespace shardmesh::rpc {

// A tile that a GetTiles call requested.
struct RequestedPart {
  std::string_view array_id;
  Tile tile;
  int64_t size_bytes = 0;
};

// Receives bytes of the tile at `index` of the request, which begin at `offset_bytes` of the tile.
// The bytes are valid only during the call. An error becomes the error of Receive.
using PartSink =
    std::function<absl::Status(size_t index, int64_t offset_bytes, absl::Span<const char> bytes)>;

// Checks the messages of one call. `parts`, their texts and `sink` outlive the receiver. Not
// thread-safe.
class TileReceiver {
 public:
  TileReceiver(absl::Span<const RequestedPart> parts, const PartSink& sink)
      : parts_(parts), sink_(sink) {}

  // Takes the next message, and passes each byte of a tile to the sink once, in order.
  // - DATA_LOSS (CHECKSUM_MISMATCH): a piece or a tile differs from its checksum. The sink has not
  //   received the bytes of this piece, or those of the tile's last piece.
  // - INTERNAL: the answer does not match the request. Errors of ReadTilePiece and of the sink.
  absl::Status Receive(grpc::ByteBuffer* message);
  // INTERNAL if a tile, or a part of it, has not come. Call it when the stream has ended with OK.
  absl::Status Close() const;
  // The CRC-32C of the last opened tile up to the end of the piece whose bytes the sink receives.
  // With the tile's last bytes this is the checksum of the tile, which Receive has compared.
  uint32_t crc32c() const { return crc_; }

 private:
  absl::Status ReceiveOpening(std::string_view array_id, const Tile& tile, int64_t size_bytes);
  absl::Status ReceivePiece(const TilePiece& piece);

  const absl::Span<const RequestedPart> parts_;
  const PartSink& sink_;
  size_t opened_ = 0;     // tiles whose opening has arrived, including the open tile
  bool is_open_ = false;  // more bytes of the tile at opened_ - 1 must follow
  int64_t offset_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_TILE_RECEIVER_H_
