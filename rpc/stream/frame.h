// The frames that two workers exchange: a small header and a payload. The payload is sent from its
// own memory, and received in the pieces that the network delivered.
//
// On the wire a frame is a shardmesh.internal.v1.ExchangeRequest, or an ExchangeResponse, which has
// the same fields. The CRC-32C of all bytes after it comes first, then header fields, and the
// payload last.
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

// Upper bounds on the bytes of a payload and of a whole frame. Channels and servers for frames use
// the latter as their message limit.
inline constexpr int64_t kMaxFramePayloadBytes = int64_t{1} << 20;
// Upper bound on the bytes of a signature.
inline constexpr int64_t kMaxSignatureBytes = 512;
inline constexpr int64_t kMaxFrameBytes = kMaxFramePayloadBytes + (int64_t{64} << 10);

enum class FrameKind {
  kHello,   // first frame on a stream, once in each direction
  kData,    // bytes of a message
  kCredit,  // the receiver of this frame may send more bytes
  kAbort,   // a step is over on the sender
  kPing,    // asks for a sign of life, or answers
};

// Identifies the message and step of a frame.
struct FrameTag {
  int64_t sequence = 0;
  uint32_t op = 0;
  uint32_t round = 0;

  friend bool operator==(const FrameTag&, const FrameTag&) = default;
};

// The dialling worker, and the worker that it expects.
struct FrameHello {
  std::string identity;
  uint64_t incarnation = 0;
  std::string peer_identity;
  uint64_t peer_incarnation = 0;  // 0: unknown
  std::string cluster_id;
  int64_t initial_credit_bytes = 0;
  std::string boot_id;
  std::string shm_socket = {};  // abstract, on the sender's host; empty: no shared memory
  std::string shm_token = {};   // 16 bytes, or none
  int64_t link_credit_bytes = 0;

  friend bool operator==(const FrameHello&, const FrameHello&) = default;
};

// Why a step is over. The status travels as code, message and reason.
struct FrameAbort {
  absl::Status status;
  std::string blamed_identity = {};

  friend bool operator==(const FrameAbort&, const FrameAbort&) = default;
};

// All fields except the payload. The kind determines the fields in use; the others keep their
// default.
struct FrameHeader {
  FrameKind kind = FrameKind::kPing;
  int64_t epoch = 0;
  int64_t term = 0;
  FrameTag tag = {};
  int64_t offset_bytes = 0;       // data: where the payload goes in the message
  int64_t message_bytes = 0;      // data: bytes of the whole message
  int64_t credit_bytes = 0;       // credit: bytes beyond those allowed before
  int64_t link_credit_bytes = 0;  // credit: the same, for the whole stream
  // Data: uses no credit of the stream. Credit: permits such data for the tag.
  bool is_urgent = false;
  std::optional<FrameHello> hello = std::nullopt;  // hello
  std::optional<FrameAbort> abort = std::nullopt;  // abort
  int64_t ping = 0;                                // ping: a positive number asks for its negative
  std::string signature = {};                      // data: the operation that the sender runs under
                                                   // the tag's op

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// Returns a frame to send, with the pieces of `payload` joined in order. The bytes are not copied:
// they must stay unchanged until gRPC releases `owner`. gRPC does so once it no longer uses any of
// them, on any thread, also when the stream breaks. A null owner means that the bytes outlive the
// stream. INVALID_ARGUMENT (LIMIT_EXCEEDED) for a payload or a frame over its limit. Thread-safe.
absl::StatusOr<grpc::ByteBuffer> WriteFrame(const FrameHeader& header,
                                            absl::Span<const absl::Span<const char>> payload = {},
                                            std::shared_ptr<const void> owner = nullptr);

// A received frame. A copy shares the payload's memory.
struct Frame {
  FrameHeader header;
  // The pieces of the payload in order, in the memory that received them. Empty if there is none.
  std::vector<grpc::Slice> payload;

  int64_t payload_bytes() const;
};

// Checks and parses a frame. Fields may be in any order, except the checksum, which is first.
// Unknown fields are skipped, the last of a repeated field counts, and a missing field has its
// default.
//
// Errors: DATA_LOSS (CHECKSUM_MISMATCH) if the checksum is missing or wrong, even if other faults
// exist; INVALID_ARGUMENT (LIMIT_EXCEEDED) for a frame or payload over its limit; INVALID_ARGUMENT
// (BAD_FIELD) for any other illegal content: not a protobuf message, an unknown kind, a negative
// size, data outside its message, a hello or abort without its body. Thread-safe.
absl::StatusOr<Frame> ReadFrame(const grpc::ByteBuffer& bytes);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_FRAME_H_
