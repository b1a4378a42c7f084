// Writes and reads frames without copying their payload.
//
// Parses the outer message by hand: the payload's pieces are never joined, and the checksum covers
// the bytes as received. Generated code parses the nested messages.
#include "rpc/stream/frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "process/crc32c.h"
#include "rpc/stream/tile_sender.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// ExchangeRequest and ExchangeResponse have the same fields, so this file uses one type for both.
using Wire = internal::v1::ExchangeRequest;

constexpr uint32_t MakeTag(int field, WireFormatLite::WireType type) {
  return (static_cast<uint32_t>(field) << 3) | static_cast<uint32_t>(type);
}
constexpr uint32_t kCrcTag = MakeTag(Wire::kCrc32CFieldNumber, WireFormatLite::WIRETYPE_FIXED32);
constexpr uint32_t kHeaderCrcTag =
    MakeTag(Wire::kHeaderCrc32CFieldNumber, WireFormatLite::WIRETYPE_FIXED32);
constexpr uint32_t kPayloadTag =
    MakeTag(Wire::kPayloadFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
static_assert(kCrcTag < 0x80 && kPayloadTag < 0x80, "each of these tags is one byte");
static_assert(kHeaderCrcTag >= 0x80 && kHeaderCrcTag < 0x4000, "this tag is two bytes");

// The checksum field: its tag, and four bytes.
constexpr size_t CrcFieldBytes(PayloadChecksum checksum) {
  return checksum == PayloadChecksum::kCrc32c ? 5 : 6;
}

// The error for a malformed frame. `field`: the field at fault; empty if the frame cannot be
// parsed.
absl::Status BadFrame(std::string_view message, std::string_view field = {}) {
  return WithReason(absl::InvalidArgumentError(StrCat("malformed frame: ", message)),
                    Reason::kBadField, {{fact::kField, field}});
}

absl::Status OverLimit(std::string_view what, int64_t have, int64_t limit) {
  return WithReason(absl::InvalidArgumentError(
                        StrCat(what, " has ", have, " bytes; at most ", limit, " are allowed")),
                    Reason::kLimitExceeded, {{fact::kHave, have}, {fact::kLimit, limit}});
}

absl::Status BadChecksum(std::string_view message, Facts facts = {}) {
  return WithReason(absl::DataLossError(StrCat("corrupted frame: ", message)),
                    Reason::kChecksumMismatch, facts);
}

absl::Span<const char> BytesOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// --- Encoding and decoding of header fields.

void EncodeHello(const FrameHello& from, internal::v1::FrameHello* to) {
  to->set_identity(from.identity);
  to->set_incarnation(from.incarnation);
  to->set_peer_identity(from.peer_identity);
  to->set_peer_incarnation(from.peer_incarnation);
  to->set_cluster_id(from.cluster_id);
  to->set_initial_credit_bytes(from.initial_credit_bytes);
  to->set_boot_id(from.boot_id);
  to->set_shm_socket(from.shm_socket);
  to->set_shm_token(from.shm_token);
  to->set_link_credit_bytes(from.link_credit_bytes);
  to->set_accepts_plain_payloads(from.accepts_plain_payloads);
}

FrameHello DecodeHello(const internal::v1::FrameHello& from) {
  return {from.identity(),
          from.incarnation(),
          from.peer_identity(),
          from.peer_incarnation(),
          from.cluster_id(),
          from.initial_credit_bytes(),
          from.boot_id(),
          from.shm_socket(),
          from.shm_token(),
          from.link_credit_bytes(),
          from.accepts_plain_payloads()};
}

void EncodeAbort(const FrameAbort& from, internal::v1::FrameAbort* to) {
  to->set_code(static_cast<int>(from.status.code()));
  to->set_message(std::string(from.status.message()));
  if (const Reason reason = ReasonOf(from.status); reason != Reason::kUnspecified) {
    to->set_reason(std::string(ReasonName(reason)));
  }
  to->set_blamed_identity(from.blamed_identity);
}

FrameAbort DecodeAbort(const internal::v1::FrameAbort& from) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  const bool is_known = from.code() > 0 && from.code() <= kLastCode;
  FrameAbort abort;
  abort.status = absl::Status(
      is_known ? static_cast<absl::StatusCode>(from.code()) : absl::StatusCode::kUnknown,
      from.message());
  if (const auto reason = ReasonFromName(from.reason());
      reason.has_value() && *reason != Reason::kUnspecified) {
    abort.status = WithReason(std::move(abort.status), *reason);
  }
  abort.blamed_identity = from.blamed_identity();
  return abort;
}

void EncodeHeader(const FrameHeader& from, Wire* to) {
  // The wire's enum has the same kinds in the same order; its 0 means "not set".
  static_assert(static_cast<int>(FrameKind::kPing) + 1 == internal::v1::FRAME_KIND_PING);
  to->set_kind(static_cast<internal::v1::FrameKind>(static_cast<int>(from.kind) + 1));
  to->set_epoch(from.epoch);
  to->set_term(from.term);
  if (from.tag != FrameTag()) {
    to->mutable_tag()->set_sequence(from.tag.sequence);
    to->mutable_tag()->set_op(from.tag.op);
    to->mutable_tag()->set_round(from.tag.round);
  }
  to->set_offset_bytes(from.offset_bytes);
  to->set_message_bytes(from.message_bytes);
  to->set_credit_bytes(from.credit_bytes);
  to->set_link_credit_bytes(from.link_credit_bytes);
  to->set_urgent(from.is_urgent);
  if (from.hello.has_value()) {
    EncodeHello(*from.hello, to->mutable_hello());
  }
  if (from.abort.has_value()) {
    EncodeAbort(*from.abort, to->mutable_abort());
  }
  to->set_ping(from.ping);
  to->set_signature(from.signature);
}

absl::StatusOr<FrameHeader> DecodeHeader(const Wire& from, int64_t payload_bytes) {
  if (from.kind() == internal::v1::FRAME_KIND_UNSPECIFIED ||
      !internal::v1::FrameKind_IsValid(from.kind())) {
    return BadFrame(StrCat("kind ", static_cast<int>(from.kind()), " is not known"), "kind");
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(static_cast<int>(from.kind()) - 1);
  header.epoch = from.epoch();
  header.term = from.term();
  header.tag = {from.tag().sequence(), from.tag().op(), from.tag().round()};
  header.offset_bytes = from.offset_bytes();
  header.message_bytes = from.message_bytes();
  header.credit_bytes = from.credit_bytes();
  header.link_credit_bytes = from.link_credit_bytes();
  header.is_urgent = from.urgent();
  header.ping = from.ping();
  if (static_cast<int64_t>(from.signature().size()) > kMaxSignatureBytes) {
    return BadFrame(StrCat("a signature of ", from.signature().size(), " bytes; the limit is ",
                           kMaxSignatureBytes),
                    "signature");
  }
  header.signature = from.signature();
  if (from.has_hello()) {
    header.hello = DecodeHello(from.hello());
  }
  if (from.has_abort()) {
    header.abort = DecodeAbort(from.abort());
  }
  if (header.offset_bytes < 0 || header.message_bytes < 0 || header.credit_bytes < 0 ||
      header.link_credit_bytes < 0 || header.tag.sequence < 0) {
    return BadFrame("a size, an offset or a sequence number is negative");
  }
  if (header.kind == FrameKind::kHello && !header.hello.has_value()) {
    return BadFrame("a hello without a body", "hello");
  }
  if (header.kind == FrameKind::kAbort && !header.abort.has_value()) {
    return BadFrame("an abort without a body", "abort");
  }
  if (header.kind == FrameKind::kData) {
    if (header.offset_bytes > header.message_bytes ||
        payload_bytes > header.message_bytes - header.offset_bytes) {
      return BadFrame(StrCat("data at [", header.offset_bytes, ", ", header.offset_bytes, "+",
                             payload_bytes, ") of a message of ", header.message_bytes, " bytes"),
                      "offset_bytes");
    }
  } else if (payload_bytes > 0) {
    return BadFrame("a payload in a frame that is not data", "payload");
  }
  return header;
}

// --- Reading.

// Reads the bytes of a frame across its received slices.
class SliceInput final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit SliceInput(absl::Span<const grpc::Slice> slices) : slices_(slices) {}

  bool Next(const void** data, int* size) override {
    while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    if (index_ == slices_.size()) {
      return false;
    }
    *data = slices_[index_].begin() + offset_;
    *size = static_cast<int>(slices_[index_].size() - offset_);
    position_ += *size;
    offset_ = slices_[index_].size();
    return true;
  }
  // `count` is at most the size of the last Next.
  void BackUp(int count) override {
    offset_ -= static_cast<size_t>(count);
    position_ -= count;
  }
  bool Skip(int count) override {
    const void* data;
    int size;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) {
        BackUp(size - count);
        size = count;
      }
      count -= size;
    }
    return count == 0;
  }
  int64_t ByteCount() const override { return position_; }

 private:
  const absl::Span<const grpc::Slice> slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  int64_t position_ = 0;
};

// Returns bytes [begin, end) of the joined slices as slices, without copying.
std::vector<grpc::Slice> Cut(absl::Span<const grpc::Slice> slices, size_t begin, size_t end) {
  std::vector<grpc::Slice> cut;
  size_t start = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t stop = start + slice.size();
    const size_t from = std::max(start, begin);
    const size_t to = std::min(stop, end);
    if (from < to) {
      cut.push_back(to - from == slice.size() ? slice : slice.sub(from - start, to - start));
    }
    start = stop;
  }
  return cut;
}

// The checksum field at the start of a frame.
struct StatedCrc {
  PayloadChecksum checksum = PayloadChecksum::kCrc32c;
  uint32_t crc = 0;
};

absl::StatusOr<StatedCrc> ReadStatedCrc(absl::Span<const grpc::Slice> slices, size_t size,
                                        PayloadChecksum least) {
  std::array<uint8_t, CrcFieldBytes(PayloadChecksum::kNone)> start;
  if (size < CrcFieldBytes(PayloadChecksum::kCrc32c)) {
    return BadChecksum(StrCat("it has ", size, " bytes, too few for a checksum"));
  }
  size_t filled = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t head = std::min(slice.size(), start.size() - filled);
    std::memcpy(start.data() + filled, slice.begin(), head);
    filled += head;
  }
  std::array<uint8_t, 2> header_tag;
  CodedOutputStream::WriteTagToArray(kHeaderCrcTag, header_tag.data());
  StatedCrc stated;
  if (start[0] == kCrcTag) {
    stated.checksum = PayloadChecksum::kCrc32c;
  } else if (filled == start.size() && start[0] == header_tag[0] && start[1] == header_tag[1]) {
    stated.checksum = PayloadChecksum::kNone;
  } else {
    return BadChecksum("it does not start with its checksum");
  }
  if (stated.checksum == PayloadChecksum::kNone && least != PayloadChecksum::kNone) {
    return BadChecksum("its checksum leaves out the payload, which this stream does not allow");
  }
  CodedInputStream::ReadLittleEndian32FromArray(
      start.data() + CrcFieldBytes(stated.checksum) - sizeof stated.crc, &stated.crc);
  return stated;
}

// Returns `crc` extended by bytes [begin, end) of the joined slices.
uint32_t ExtendCrc(uint32_t crc, absl::Span<const grpc::Slice> slices, size_t begin, size_t end) {
  size_t start = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t stop = start + slice.size();
    const size_t from = std::max(start, begin);
    const size_t to = std::min(stop, end);
    if (from < to) crc = ExtendCrc32c(crc, BytesOf(slice).subspan(from - start, to - from));
    start = stop;
  }
  return crc;
}

absl::Status CompareCrc(uint32_t actual, uint32_t expected) {
  if (actual == expected) return absl::OkStatus();
  return BadChecksum(StrCat("its checksum says ", absl::Hex(expected, absl::kZeroPad8),
                            ", its bytes have ", absl::Hex(actual, absl::kZeroPad8)),
                     {{fact::kHave, absl::Hex(actual, absl::kZeroPad8)},
                      {fact::kNeed, absl::Hex(expected, absl::kZeroPad8)}});
}

// Where the payload lies in a frame, and the bytes of the header fields for the generated code. A
// frame without a payload has an empty one at its end.
struct Layout {
  std::string header;  // all fields except checksum and payload, in their order
  size_t payload_begin = 0;
  size_t payload_end = 0;
};

// Finds the fields after the checksum field, which has `begin` bytes.
absl::StatusOr<Layout> FindFields(absl::Span<const grpc::Slice> slices, size_t begin, size_t size) {
  SliceInput stream(slices);
  CodedInputStream input(&stream);
  input.Skip(static_cast<int>(begin));
  Layout layout{.header = {}, .payload_begin = size, .payload_end = size};
  {
    google::protobuf::io::StringOutputStream header_stream(&layout.header);
    CodedOutputStream header(&header_stream);
    while (static_cast<size_t>(input.CurrentPosition()) < size) {
      const uint32_t tag = input.ReadTag();
      const int field = WireFormatLite::GetTagFieldNumber(tag);
      if (tag == 0 || field == 0) {
        return BadFrame("a field without a number");
      }
      if (field == Wire::kCrc32CFieldNumber || field == Wire::kHeaderCrc32CFieldNumber) {
        return BadFrame("a second checksum", "crc32c");
      }
      if (tag == kPayloadTag) {
        int length = 0;
        if (!input.ReadVarintSizeAsInt(&length)) {
          return BadFrame("a payload without a length", "payload");
        }
        layout.payload_begin = static_cast<size_t>(input.CurrentPosition());
        const size_t length_bytes = static_cast<size_t>(length);
        if (length_bytes > size - layout.payload_begin) {
          return BadFrame("a payload that ends after the frame", "payload");
        }
        if (length > kMaxFramePayloadBytes) {
          return OverLimit("the payload of a frame", length, kMaxFramePayloadBytes);
        }
        layout.payload_end = layout.payload_begin + length_bytes;
        input.Skip(length);
      } else if (!WireFormatLite::SkipField(&input, tag, &header)) {
        return BadFrame("not a protobuf message");
      }
    }
  }
  return layout;
}

}  // namespace

int64_t Frame::payload_bytes() const {
  int64_t bytes = 0;
  for (const grpc::Slice& slice : payload) {
    bytes += static_cast<int64_t>(slice.size());
  }
  return bytes;
}

absl::StatusOr<grpc::ByteBuffer> WriteFrame(const FrameHeader& header,
                                            absl::Span<const absl::Span<const char>> payload,
                                            std::shared_ptr<const void> owner,
                                            PayloadChecksum checksum) {
  size_t payload_bytes = 0;
  for (const absl::Span<const char> piece : payload) {
    payload_bytes += piece.size();
  }
  if (static_cast<int64_t>(payload_bytes) > kMaxFramePayloadBytes) {
    return OverLimit("the payload of a frame", static_cast<int64_t>(payload_bytes),
                     kMaxFramePayloadBytes);
  }
  Wire wire;
  EncodeHeader(header, &wire);
  // The head consists of the checksum, the header fields, and the payload's tag and length.
  const size_t header_bytes = wire.ByteSizeLong();
  const auto length = static_cast<uint32_t>(payload_bytes);
  const size_t prefix_bytes = payload_bytes == 0 ? 0 : 1 + CodedOutputStream::VarintSize32(length);
  if (header.kind != FrameKind::kData) checksum = PayloadChecksum::kCrc32c;
  const size_t crc_field_bytes = CrcFieldBytes(checksum);
  const size_t head_bytes = crc_field_bytes + header_bytes + prefix_bytes;
  if (static_cast<int64_t>(head_bytes + payload_bytes) > kMaxFrameBytes) {
    return OverLimit("a frame", static_cast<int64_t>(head_bytes + payload_bytes), kMaxFrameBytes);
  }
  grpc::Slice head(head_bytes);
  // The slice is writable, because gRPC does not share it yet.
  auto* const start = const_cast<uint8_t*>(head.begin());
  uint8_t* at = start + crc_field_bytes;
  at = wire.SerializeWithCachedSizesToArray(at);
  if (payload_bytes > 0) {
    at = CodedOutputStream::WriteTagToArray(kPayloadTag, at);
    at = CodedOutputStream::WriteVarint32ToArray(length, at);
  }
  uint32_t crc = Crc32c(BytesOf(head).subspan(crc_field_bytes));
  if (checksum == PayloadChecksum::kCrc32c) {
    for (const absl::Span<const char> piece : payload) crc = ExtendCrc32c(crc, piece);
  }
  at = CodedOutputStream::WriteTagToArray(
      checksum == PayloadChecksum::kCrc32c ? kCrcTag : kHeaderCrcTag, start);
  CodedOutputStream::WriteLittleEndian32ToArray(crc, at);
  // Copy the slice `head` only now that it is complete. A short slice stores its bytes inline, so a
  // copy would not see bytes that are written later.
  std::vector<grpc::Slice> slices = {head};
  slices.reserve(1 + payload.size());
  for (const absl::Span<const char> piece : payload) {
    if (!piece.empty()) {
      slices.push_back(LendSlice(piece, owner));
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<Frame> ReadFrame(const grpc::ByteBuffer& bytes, PayloadChecksum least) {
  const size_t size = bytes.Length();
  if (static_cast<int64_t>(size) > kMaxFrameBytes) {
    return OverLimit("a frame", static_cast<int64_t>(size), kMaxFrameBytes);
  }
  std::vector<grpc::Slice> slices;
  if (size > 0 && !bytes.Dump(&slices).ok()) {
    return BadFrame("its bytes cannot be read");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StatedCrc stated, ReadStatedCrc(slices, size, least));
  const size_t begin = CrcFieldBytes(stated.checksum);
  if (stated.checksum == PayloadChecksum::kCrc32c) {
    SHARDMESH_RETURN_IF_ERROR(CompareCrc(ExtendCrc(0, slices, begin, size), stated.crc));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Layout layout, FindFields(slices, begin, size));
  if (stated.checksum == PayloadChecksum::kNone) {
    // The payload is where the fields say, so a changed length of a field shows in the checksum.
    const uint32_t head = ExtendCrc(0, slices, begin, layout.payload_begin);
    SHARDMESH_RETURN_IF_ERROR(
        CompareCrc(ExtendCrc(head, slices, layout.payload_end, size), stated.crc));
  }
  Wire wire;
  if (!wire.ParseFromString(layout.header)) {
    return BadFrame("not a protobuf message");
  }
  Frame frame;
  SHARDMESH_ASSIGN_OR_RETURN(
      frame.header,
      DecodeHeader(wire, static_cast<int64_t>(layout.payload_end - layout.payload_begin)));
  frame.payload = Cut(slices, layout.payload_begin, layout.payload_end);
  return frame;
}

}  // namespace shardmesh::rpc
