// Writes and parses the outer message of a piece by hand, so that the piece's bytes are never
// joined.
#include "rpc/stream/tile_piece.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "process/crc32c.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t MakeTag(int field, WireFormatLite::WireType type) {
  return (static_cast<uint32_t>(field) << 3) | static_cast<uint32_t>(type);
}
constexpr uint32_t kPieceTag =
    MakeTag(v1::PutTilesRequest::kPieceFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kOffsetTag =
    MakeTag(v1::TilePiece::kOffsetBytesFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kCrcTag =
    MakeTag(v1::TilePiece::kCrc32CFieldNumber, WireFormatLite::WIRETYPE_FIXED32);
constexpr uint32_t kTileCrcTag =
    MakeTag(v1::TilePiece::kTileCrc32CFieldNumber, WireFormatLite::WIRETYPE_FIXED32);
constexpr uint32_t kDataTag =
    MakeTag(v1::TilePiece::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
static_assert(int{v1::PutTilesRequest::kPieceFieldNumber} ==
              int{v1::GetTilesResponse::kPieceFieldNumber});

// The error for a malformed message. `field`: the field at fault; empty if the message cannot be
// parsed.
absl::Status BadPiece(std::string_view message, std::string_view field = {}) {
  return WithReason(
      absl::InvalidArgumentError(StrCat("malformed message of a tile stream: ", message)),
      Reason::kBadField, {{fact::kField, field}});
}

// Parses the fields of a piece, up to the input's limit.
absl::Status ReadFields(CodedInputStream& input, TilePiece* piece) {
  while (const uint32_t tag = input.ReadTag()) {
    if (tag == kOffsetTag) {
      uint64_t offset = 0;
      if (!input.ReadVarint64(&offset)) {
        return BadPiece("no offset", "piece.offset_bytes");
      }
      piece->header.offset_bytes = static_cast<int64_t>(offset);
    } else if (tag == kCrcTag || tag == kTileCrcTag) {
      uint32_t crc = 0;
      if (!input.ReadLittleEndian32(&crc)) {
        return BadPiece("no checksum", tag == kCrcTag ? "piece.crc32c" : "piece.tile_crc32c");
      }
      if (tag == kCrcTag) {
        piece->header.crc32c = crc;
      } else {
        piece->header.tile_crc32c = crc;
      }
    } else if (tag == kDataTag) {
      int length = 0;
      if (!input.ReadVarintSizeAsInt(&length)) {
        return BadPiece("data without a length", "piece.data");
      }
      if (length > kMaxTilePieceBytes) {
        return WithReason(
            absl::InvalidArgumentError(StrCat("a piece of a tile has ", length, " bytes; at most ",
                                              kMaxTilePieceBytes, " are allowed")),
            Reason::kLimitExceeded, {{fact::kHave, length}, {fact::kLimit, kMaxTilePieceBytes}});
      }
      piece->data.clear();
      for (int left = length; left > 0;) {
        const void* bytes = nullptr;
        int size = 0;
        if (!input.GetDirectBufferPointer(&bytes, &size)) {
          return BadPiece("data that ends after the message", "piece.data");
        }
        size = std::min(size, left);
        piece->data.push_back({static_cast<const char*>(bytes), static_cast<size_t>(size)});
        input.Skip(size);
        left -= size;
      }
    } else if (!WireFormatLite::SkipField(&input, tag)) {
      return BadPiece("not a protobuf message");
    }
  }
  return input.ConsumedEntireMessage() ? absl::OkStatus() : BadPiece("not a protobuf message");
}

absl::Status Check(const TilePiece& piece) {
  if (piece.header.offset_bytes < 0) {
    return BadPiece(StrCat("offset ", piece.header.offset_bytes), "piece.offset_bytes");
  }
  uint32_t crc = 0;
  for (const absl::Span<const char> bytes : piece.data) {
    crc = ExtendCrc32c(crc, bytes);
  }
  if (crc != piece.header.crc32c) {
    return WithReason(absl::DataLossError(StrCat(
                          "corrupted piece of a tile at offset ", piece.header.offset_bytes,
                          ": its checksum says ", absl::Hex(piece.header.crc32c, absl::kZeroPad8),
                          ", its bytes have ", absl::Hex(crc, absl::kZeroPad8))),
                      Reason::kChecksumMismatch,
                      {{fact::kHave, absl::Hex(crc, absl::kZeroPad8)},
                       {fact::kNeed, absl::Hex(piece.header.crc32c, absl::kZeroPad8)}});
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ByteBuffer WriteTilePiece(const TilePieceHeader& header, const grpc::Slice& data) {
  // `inner`: the encoded fields of the piece except the data, then the data's tag and length. In
  // the message, the tag and length of the piece precede `inner`.
  std::array<uint8_t, 64> inner;
  uint8_t* at = inner.data();
  if (header.offset_bytes != 0) {
    at = CodedOutputStream::WriteTagToArray(kOffsetTag, at);
    at = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(header.offset_bytes), at);
  }
  at = CodedOutputStream::WriteTagToArray(kCrcTag, at);
  at = CodedOutputStream::WriteLittleEndian32ToArray(header.crc32c, at);
  if (header.tile_crc32c.has_value()) {
    at = CodedOutputStream::WriteTagToArray(kTileCrcTag, at);
    at = CodedOutputStream::WriteLittleEndian32ToArray(*header.tile_crc32c, at);
  }
  at = CodedOutputStream::WriteTagToArray(kDataTag, at);
  at = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(data.size()), at);
  const size_t inner_bytes = static_cast<size_t>(at - inner.data());

  std::array<uint8_t, 80> head;
  at = CodedOutputStream::WriteTagToArray(kPieceTag, head.data());
  at =
      CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(inner_bytes + data.size()), at);
  std::memcpy(at, inner.data(), inner_bytes);
  at += inner_bytes;
  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(head.data(), static_cast<size_t>(at - head.data())), data};
  return grpc::ByteBuffer(slices.data(), data.size() == 0 ? 1 : 2);
}

int64_t TilePiece::size_bytes() const {
  int64_t size = 0;
  for (const absl::Span<const char> bytes : data) {
    size += static_cast<int64_t>(bytes.size());
  }
  return size;
}

absl::StatusOr<std::optional<TilePiece>> ReadTilePiece(grpc::ByteBuffer* message) {
  std::optional<TilePiece> piece;
  if (message->Length() == 0) {
    return piece;
  }
  grpc::ProtoBufferReader reader(message);
  CodedInputStream input(&reader);
  while (const uint32_t tag = input.ReadTag()) {
    if (tag != kPieceTag) {
      if (!WireFormatLite::SkipField(&input, tag)) {
        return BadPiece("not a protobuf message");
      }
      continue;
    }
    int length = 0;
    if (!input.ReadVarintSizeAsInt(&length)) {
      return BadPiece("a piece without a length");
    }
    const CodedInputStream::Limit limit = input.PushLimit(length);
    piece.emplace();
    if (absl::Status status = ReadFields(input, &*piece); !status.ok()) {
      return status;
    }
    if (input.BytesUntilLimit() != 0) {
      return BadPiece("a piece that ends after the message");
    }
    input.PopLimit(limit);
  }
  if (!input.ConsumedEntireMessage() ||
      static_cast<size_t>(input.CurrentPosition()) != message->Length()) {
    return BadPiece("not a protobuf message");
  }
  if (piece.has_value()) {
    if (absl::Status status = Check(*piece); !status.ok()) {
      return status;
    }
  }
  return piece;
}

}  // namespace shardmesh::rpc
