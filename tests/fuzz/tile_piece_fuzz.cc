// Fuzzes the reading of pieces of tiles: the bytes have the checksum that the piece claims, and
// written anew it is the same piece.
#include "rpc/stream/tile_piece.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "process/crc32c.h"
#include "tests/fuzz/byte_buffer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

std::string Join(const rpc::TilePiece& piece) {
  std::string bytes;
  for (const absl::Span<const char> part : piece.data) {
    bytes.append(part.data(), part.size());
  }
  return bytes;
}

}  // namespace

// The first byte says in slices of which size the rest arrives.
void Check(std::string_view input) {
  const size_t slice_bytes = input.empty() ? 1 : static_cast<uint8_t>(input.front()) + size_t{1};
  grpc::ByteBuffer message = BufferOf(input.substr(std::min<size_t>(1, input.size())), slice_bytes);
  const auto piece = rpc::ReadTilePiece(&message);
  if (!piece.ok() || !piece->has_value()) {
    return;
  }
  const rpc::TilePieceHeader& header = (*piece)->header;
  const std::string data = Join(**piece);
  Require((*piece)->size_bytes() == static_cast<int64_t>(data.size()));
  Require(header.offset_bytes >= 0 && header.crc32c == Crc32c(data));

  grpc::ByteBuffer written = rpc::WriteTilePiece(header, grpc::Slice(data));
  const auto again = rpc::ReadTilePiece(&written);
  Require(again.ok() && again->has_value() && Join(**again) == data);
  Require((*again)->header.offset_bytes == header.offset_bytes &&
          (*again)->header.tile_crc32c == header.tile_crc32c);
}

}  // namespace shardmesh::fuzz
