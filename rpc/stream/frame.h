// The frames that two workers exchange: a small header and a payload. The payload is sent from its
// own memory, and received in the pieces that the network delivered.
//
// On the wire a frame is a shardmesh.internal.v1.ExchangeRequest, or an ExchangeResponse, which has
// the same fields. First comes a CRC-32C of all following bytes, then the header fields, and last
// the payload. Two workers may agree that the checksum leaves out the payload (PayloadChecksum).
#ifndef SHARDMESH_RPC_STREAM_FRAME_H_
#define SHARDMESH_RPC_STREAM_FRAME_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh::rpc {

// Maximum size, in bytes, of a frame's payload.
inline constexpr int64_t kMaxFramePayloadBytes = int64_t{1} << 20;
// Maximum size, in bytes, of a frame's signature.
inline constexpr int64_t kMaxSignatureBytes = 512;
// Maximum size, in bytes, of a whole frame: the message limit of channels and servers that carry
// frames.
inline constexpr int64_t kMaxFrameBytes = kMaxFramePayloadBytes + (int64_t{64} << 10);

// Whether the checksum of a data frame covers its payload. All other frames, and the headers of all
// frames, always have a checksum.
enum class PayloadChecksum {
  kCrc32c,
  // For streams whose bytes something else protects: both ends are on one host, so that the bytes
  // never leave the kernel's memory, or the stream is encrypted, which authenticates each record.
  kNone,
};

enum class FrameKind {
  kHello,   // the first frame on a stream, once in each direction
  kData,    // bytes of a message
  kCredit,  // the receiver of this frame may send more bytes
  kAbort,   // the sender has ended a step
  kPing,    // asks the peer for a sign of life, or answers a kPing
};

// Identifies the step, op and round of a frame's message.
struct FrameTag {
  int64_t sequence = 0;
  uint32_t op = 0;
  uint32_t round = 0;

  friend bool operator==(const FrameTag&, const FrameTag&) = default;
};

// First frame of a stream: who the sender is, and which worker it expects as its peer.
struct FrameHello {
  std::string identity;
  uint64_t incarnation = 0;
  std::string peer_identity;
  uint64_t peer_incarnation = 0;  // 0: unknown
  std::string cluster_id;
  int64_t initial_credit_bytes = 0;
  std::string boot_id;
  std::string shm_socket = {};  // abstract socket on the sender's host; empty: no shared memory
  std::string shm_token = {};   // 16 bytes; empty: no shared memory
  int64_t link_credit_bytes = 0;
  // Whether the sender takes frames with PayloadChecksum::kNone, where bytes are protected anyway.
  bool accepts_plain_payloads = false;

  friend bool operator==(const FrameHello&, const FrameHello&) = default;
};

// Why the sender has ended a step. Only code, message and reason of the status are sent.
struct FrameAbort {
  absl::Status status;
  std::string blamed_identity = {};

  friend bool operator==(const FrameAbort&, const FrameAbort&) = default;
};

// All fields except the payload. The kind determines which fields are used; the others keep their
// default.
struct FrameHeader {
  FrameKind kind = FrameKind::kPing;
  int64_t epoch = 0;
  int64_t term = 0;
  FrameTag tag = {};
  int64_t offset_bytes = 0;       // kData: offset of the payload in the message
  int64_t message_bytes = 0;      // kData: size of the whole message
  int64_t credit_bytes = 0;       // kCredit: how many more bytes of the tag the peer may send
  int64_t link_credit_bytes = 0;  // kCredit: how many more bytes of all tags the peer may send
  // For kData: whether the frame is urgent, so that it uses no link credit. For kCredit: whether
  // the credit permits urgent frames of the tag.
  bool is_urgent = false;
  std::optional<FrameHello> hello = std::nullopt;  // only for kHello
  std::optional<FrameAbort> abort = std::nullopt;  // only for kAbort
  // For kPing: a positive number asks the peer to answer with the negated number.
  int64_t ping = 0;
  // For kData: describes the operation that the sender runs as the tag's op. The receiver compares
  // it with its own operation.
  std::string signature = {};

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// Returns a frame to send. Its payload consists of the pieces of `payload` in order. The payload
// is not copied: its bytes must not change until gRPC releases `owner`. gRPC releases `owner`, on
// any thread, when it no longer uses any of the bytes, also if the stream breaks. With a null
// `owner`, the bytes must outlive the stream. INVALID_ARGUMENT (LIMIT_EXCEEDED): the payload or the
// frame exceeds its limit. With PayloadChecksum::kNone, the checksum leaves out the payload of a
// data frame. Thread-safe.
absl::StatusOr<grpc::ByteBuffer> WriteFrame(const FrameHeader& header,
                                            absl::Span<const absl::Span<const char>> payload = {},
                                            std::shared_ptr<const void> owner = nullptr,
                                            PayloadChecksum checksum = PayloadChecksum::kCrc32c);

// A received frame. A copy shares the payload's memory.
struct Frame {
  FrameHeader header;
  // The pieces of the payload in order, in the memory that received them. Empty without a payload.
  std::vector<grpc::Slice> payload;

  int64_t payload_bytes() const;
};

// Checks and parses a frame. The checksum must come first; the other fields may be in any order.
// Skips unknown fields. If a field occurs several times, its last value counts. A missing field has
// its default.
//
// `least` is the checksum that the payload of a data frame must have. With PayloadChecksum::kNone,
// frames with and without a checksum of their payload are read.
//
// Errors: DATA_LOSS (CHECKSUM_MISMATCH) if the checksum is missing or wrong, or leaves out a
// payload that it must cover, even if other faults exist (a damaged header of a frame whose payload
// has none may count as illegal content instead); INVALID_ARGUMENT (LIMIT_EXCEEDED) for a
// frame or payload over its limit; INVALID_ARGUMENT (BAD_FIELD) for any other illegal content: not
// a protobuf message, an unknown kind, a negative size, data outside its message, a hello or abort
// without its body. Thread-safe.
absl::StatusOr<Frame> ReadFrame(const grpc::ByteBuffer& bytes,
                                PayloadChecksum least = PayloadChecksum::kCrc32c);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_FRAME_H_
