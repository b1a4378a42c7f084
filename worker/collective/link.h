// The interface through which the ranks of a step exchange tagged messages. All ranks belong to one
// mesh.
#ifndef SHARDMESH_WORKER_COLLECTIVE_LINK_H_
#define SHARDMESH_WORKER_COLLECTIVE_LINK_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

// Identifies one message of one step: step, op within the step, round within the op.
//
// A sender and a receiver use each tag for only one message. Immutable and thread-safe. Example:
// Tag::Create(7, 2, 1) is the second round of the third op of step 7.
class Tag {
 public:
  static constexpr int64_t kMaxOp = (int64_t{1} << 24) - 1;
  static constexpr int64_t kMaxRound = (int64_t{1} << 24) - 1;

  // Requires 0 <= step, 0 <= op <= kMaxOp, 0 <= round <= kMaxRound. If a number is out of its
  // range, INVALID_ARGUMENT names it.
  static absl::StatusOr<Tag> Create(int64_t step, int64_t op, int64_t round);

  int64_t step() const { return step_; }
  int64_t op() const { return op_; }
  int64_t round() const { return round_; }

  // Returns the tag as text, such as `step 7, op 2, round 1`.
  std::string ToString() const;

  friend auto operator<=>(const Tag&, const Tag&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Tag& tag) {
    return H::combine(std::move(h), tag.step_, tag.op_, tag.round_);
  }

 private:
  Tag(int64_t step, int32_t op, int32_t round) : step_(step), op_(op), round_(round) {}

  int64_t step_;
  int32_t op_;
  int32_t round_;
};

// Bytes together with the owner that keeps them alive and unchanged. The owner of outgoing bytes is
// memory of the shard store. The owner of incoming bytes is a network buffer or a peer's mapped
// memory. A copy shares the owner. `owner` may be null for bytes that outlive every use.
struct OwnedBytes {
  absl::Span<const char> bytes;
  std::shared_ptr<const void> owner;
};

// One rank's connections to its peers in one mesh, for the duration of one step.
//
// Each message from one rank to another arrives completely and exactly once. Messages under
// different tags arrive in any order, and none of them waits for another. The implementation
// chooses the transport (frames, shared memory, a function call) and its flow control.
//
// Thread-safe. Only one thread at a time may receive under one tag.
class Link {
 public:
  virtual ~Link() = default;

  // Returns the rank whose link this is.
  virtual DeviceId rank() const = 0;

  // Declares op `op` of the step, before this rank sends or receives any message of the op.
  //
  // `signature` describes the kind, reduction, element types, sizes, group and algorithm. It has at
  // most 512 bytes and must be the same on every rank of the group. The first message to each peer
  // carries it. If a peer declares a different signature, before or after this call, the step fails
  // with FAILED_PRECONDITION (COLLECTIVE_MISMATCH), and the error shows both signatures. The caller
  // begins ops one after the other. INVALID_ARGUMENT if the op has begun already, or if the
  // signature is too long.
  virtual absl::Status Begin(int64_t op, std::string signature) = 0;

  // Starts to send `message`, of at least one byte, as the message `tag` to `peer`.
  //
  // Returns without waiting for the receiver, so no order of sends and receives can deadlock. The
  // link releases the message's owner when it no longer needs the bytes, also if the step is
  // aborted. Before that, the bytes must not change. INVALID_ARGUMENT for an empty message, and for
  // a peer that is this rank or not of the mesh. UNAVAILABLE for a peer that is known to be gone.
  // If the step was aborted: the status of the abort.
  virtual absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) = 0;

  // Waits until `deadline` for the next piece of the message `tag` from `peer`.
  //
  // Pieces come in order and have at least one byte. They may be cut anywhere and need no
  // alignment. `message_bytes` is the expected length of the whole message. The caller repeats the
  // call until it has received `message_bytes` bytes, and then does not call again for this
  // message.
  //
  // An error names the peer that this rank waited for, the step and the op:
  // - DEADLINE_EXCEEDED: no piece came in time.
  // - UNAVAILABLE: a rank of the step is lost.
  // - DATA_LOSS: the message's length is not `message_bytes`.
  // - If the step was aborted: the status of the abort.
  virtual absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                             absl::Time deadline) = 0;

  // Like Receive, but does not wait: returns nullopt if no piece has arrived. A link may always
  // return nullopt; the caller then receives with Receive.
  virtual absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId /*peer*/,
                                                               const Tag& /*tag*/,
                                                               int64_t /*message_bytes*/) {
    return std::nullopt;
  }

  // Releases the owners of messages that the peers have read by now. Without this call, the link
  // may release them only later. Does not block.
  virtual void Reclaim() {}
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_LINK_H_
