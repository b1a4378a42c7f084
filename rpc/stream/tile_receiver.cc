// Compares the messages of a worker with the request.
#include "rpc/stream/tile_receiver.h"

#include <optional>

#include "process/crc32c.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/stream/message_bytes.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {

absl::Status TileReceiver::Receive(grpc::ByteBuffer* message) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<TilePiece> piece, ReadTilePiece(message));
  if (piece.has_value()) {
    return ReceivePiece(*piece);
  }
  v1::GetTilesResponse response;
  if (!ParseMessage(message, &response).ok()) {
    return absl::InternalError("the worker's answer is no message of its service");
  }
  if (!response.has_opening()) {
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tile tile, Decode(response.opening().tile()));
  return ReceiveOpening(response.opening().array_id(), tile, response.opening().size_bytes());
}

absl::Status TileReceiver::Close() const {
  if (is_open_ || opened_ != parts_.size()) {
    return absl::InternalError(StrCat("the worker's stream ended within or before tile ",
                                      is_open_ ? opened_ - 1 : opened_, " of ", parts_.size()));
  }
  return absl::OkStatus();
}

absl::Status TileReceiver::ReceiveOpening(std::string_view array_id, const Tile& tile,
                                          int64_t size_bytes) {
  if (is_open_ || opened_ == parts_.size()) {
    return absl::InternalError("the worker opens a tile that is not due");
  }
  const RequestedPart& due = parts_[opened_];
  if (array_id != due.array_id || tile != due.tile || size_bytes != due.size_bytes) {
    return absl::InternalError(StrCat("the worker answers with tile ", tile.ToString(), " of ",
                                      size_bytes, " bytes of array ", array_id, " where ",
                                      due.tile.ToString(), " of ", due.size_bytes, " bytes of ",
                                      due.array_id, " is due"));
  }
  ++opened_;
  is_open_ = due.size_bytes > 0;
  offset_ = 0;
  crc_ = 0;
  return absl::OkStatus();
}

absl::Status TileReceiver::ReceivePiece(const TilePiece& piece) {
  const int64_t size = piece.size_bytes();
  if (!is_open_) {
    // An empty tile has an opening and then one piece without bytes.
    return opened_ > 0 && size == 0 ? absl::OkStatus()
                                    : absl::InternalError("the worker sends bytes of no tile");
  }
  const RequestedPart& part = parts_[opened_ - 1];
  if (piece.header.offset_bytes != offset_ || size == 0 || size > part.size_bytes - offset_) {
    return absl::InternalError(StrCat("the worker sends bytes [", piece.header.offset_bytes, ", ",
                                      piece.header.offset_bytes, "+", size, ") of a tile", " of ",
                                      part.size_bytes, " where ", offset_, " is next"));
  }
  crc_ = ConcatCrc32c(crc_, piece.header.crc32c, size);
  const bool is_last = offset_ + size == part.size_bytes;
  if (is_last && piece.header.tile_crc32c != crc_) {
    return WithReason(absl::DataLossError(StrCat("tile ", part.tile.ToString(), " of array ",
                                                 part.array_id, " differs from its checksum")),
                      Reason::kChecksumMismatch, {{fact::kArray, part.array_id}});
  }
  for (const absl::Span<const char> bytes : piece.data) {
    SHARDMESH_RETURN_IF_ERROR(sink_(opened_ - 1, offset_, bytes));
    offset_ += static_cast<int64_t>(bytes.size());
  }
  is_open_ = !is_last;
  return absl::OkStatus();
}

}  // namespace shardmesh::rpc
