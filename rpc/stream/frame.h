// The frames that two workers exchange: a small header, and a payload that is sent from the memory
// where it lies and received as the pieces in which the network delivered it.
//
// On the wire a frame is a shardmesh.v1.ExchangeRequest (or ExchangeResponse, which has the same
// fields): first the CRC-32C of all bytes that follow it, then header fields, the payload last.
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

// Most bytes of a payload, and of a whole frame. Channels and servers that carry frames set the
// latter as their message limit.
inline constexpr int64_t kMaxFramePayloadBytes = int64_t{1} << 20;
// Most bytes of a signature.
inline constexpr int64_t kMaxSignatureBytes = 512;
inline constexpr int64_t kMaxFrameBytes = kMaxFramePayloadBytes + (int64_t{64} << 10);

enum class FrameKind {
  kHello,   // first frame on a stream, once in each direction
  kData,    // bytes of a message
  kCredit,  // the receiver of this frame may send more bytes
  kAbort,   // a step is over on the sender
  kPing,    // asks for, or is, a sign of life
};

// Which message of which step a frame belongs to.
struct FrameTag {
  int64_t sequence = 0;
  uint32_t op = 0;
  uint32_t round = 0;

  friend bool operator==(const FrameTag&, const FrameTag&) = default;
};

// Who dials, and whom it expects.
struct FrameHello {
  std::string identity;
  uint64_t incarnation = 0;
  std::string peer_identity;
  uint64_t peer_incarnation = 0;  // 0: not known
  std::string cluster_id;
  int64_t initial_credit_bytes = 0;
  std::string boot_id;
  std::string shm_socket = {};  // abstract, on the sender's host; empty: nothing is shared
  std::string shm_token = {};   // 16 bytes, or none
  int64_t link_credit_bytes = 0;

  friend bool operator==(const FrameHello&, const FrameHello&) = default;
};

// Why a step is over. Of the status code, message and reason travel.
struct FrameAbort {
  absl::Status status;
  std::string blamed_identity = {};

  friend bool operator==(const FrameAbort&, const FrameAbort&) = default;
};

// Everything but the payload. Which fields count depends on the kind; the others keep their
// default.
struct FrameHeader {
  FrameKind kind = FrameKind::kPing;
  int64_t epoch = 0;
  int64_t term = 0;
  FrameTag tag = {};
  int64_t offset_bytes = 0;       // data: where the payload goes in the message
  int64_t message_bytes = 0;      // data: bytes of the whole message
  int64_t credit_bytes = 0;       // credit: bytes beyond those allowed before
  int64_t link_credit_bytes = 0;  // credit: the same, of the whole stream
  // Data: costs no credit of the stream. Credit: allows the tag's bytes to be sent so.
  bool is_urgent = false;
  std::optional<FrameHello> hello = std::nullopt;  // hello
  std::optional<FrameAbort> abort = std::nullopt;  // abort
  int64_t ping = 0;                                // ping: asks for the number's negative
  std::string signature = {};                      // data: what the sender does as the tag's op

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// A frame as it is sent: `payload` joined in order. Its bytes are not copied: they must stay where
// and as they are until `owner` is released, which gRPC does when it has let go of all of them, on
// whatever thread and also when the stream breaks. A null owner means that they outlive the stream.
// INVALID_ARGUMENT (LIMIT_EXCEEDED) for a payload or a frame over its limit. Thread-safe.
absl::StatusOr<grpc::ByteBuffer> WriteFrame(const FrameHeader& header,
                                            absl::Span<const absl::Span<const char>> payload = {},
                                            std::shared_ptr<const void> owner = nullptr);

// A frame as it was received. Copying it shares the payload's memory.
struct Frame {
  FrameHeader header;
  // The payload's bytes, to be joined in order: pieces of the memory that they were received in.
  // Empty if there is none.
  std::vector<grpc::Slice> payload;

  int64_t payload_bytes() const;
};

// Checks and takes apart a frame. Fields may stand in any order, but for the checksum, which is the
// first; unknown ones are skipped; of a repeated one the last counts; a missing one has its
// default.
//
// Errors: DATA_LOSS (CHECKSUM_MISMATCH) if the checksum is missing or wrong, whatever else is wrong
// too; INVALID_ARGUMENT (LIMIT_EXCEEDED) for a frame or payload over its limit; INVALID_ARGUMENT
// (BAD_FIELD) for anything else that no sender may send: not a protobuf message, no known kind, a
// negative size, data outside its message, a hello or abort without its body. Thread-safe.
absl::StatusOr<Frame> ReadFrame(const grpc::ByteBuffer& bytes);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_FRAME_H_
