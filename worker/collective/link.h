// How the members of a step exchange bytes: tagged messages between the ranks of one mesh.
#ifndef SHARDMESH_WORKER_COLLECTIVE_LINK_H_
#define SHARDMESH_WORKER_COLLECTIVE_LINK_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

// Which message of which step: step, op within the step, round within the op. Between one sender
// and one receiver each tag is used for one message.
//
// Example: Tag::Create(7, 2, 1) is the second round of the third op of step 7.
// Immutable, hence safe to share between threads.
class Tag {
 public:
  static constexpr int64_t kMaxOp = (int64_t{1} << 24) - 1;
  static constexpr int64_t kMaxRound = (int64_t{1} << 24) - 1;

  // 0 <= step, 0 <= op <= kMaxOp, 0 <= round <= kMaxRound; INVALID_ARGUMENT names the one that is
  // out of range.
  static absl::StatusOr<Tag> Create(int64_t step, int64_t op, int64_t round);

  int64_t step() const { return step_; }
  int64_t op() const { return op_; }
  int64_t round() const { return round_; }

  // `step 7, op 2, round 1`.
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

// Bytes together with what keeps them alive and unchanged: shard memory on its way out, a network
// buffer or a peer's mapped memory on its way in. A copy shares the owner. `owner` may be null for
// bytes that outlive every use.
struct OwnedBytes {
  absl::Span<const char> bytes;
  std::shared_ptr<const void> owner;
};

// One rank's ends of the connections to its peers, for one mesh and as long as a step lasts.
//
// Messages from one rank to another under one tag arrive whole and once; those under different tags
// arrive in any order and do not wait for one another. How a message travels (frames, shared
// memory, a function call) is the implementation's business, and so is flow control.
//
// Thread-safe. A receive of one tag is for one thread at a time.
class Link {
 public:
  virtual ~Link() = default;

  // This end's own rank.
  virtual DeviceId rank() const = 0;

  // Says what this rank is about to do as op `op` of the step, before it sends or receives anything
  // of it: kind, reduction, element types, sizes, group and algorithm, as text of at most 512 bytes
  // that is the same on every rank of the group. It goes along with the first message to each peer.
  // Where a peer says something else, now or later, the step fails with FAILED_PRECONDITION
  // (COLLECTIVE_MISMATCH), which shows both, instead of exchanging what does not belong together.
  // Ops are begun one after the other. INVALID_ARGUMENT for an op that was begun, or longer text.
  virtual absl::Status Begin(int64_t op, std::string signature) = 0;

  // Starts to send `message`, of at least one byte, as the message `tag` to `peer`, and returns
  // without waiting for the receiver, so that no order of sends and receives can deadlock. The
  // owner is released once the bytes are no longer needed, also after an abort; until then they
  // must not change.
  // INVALID_ARGUMENT for an empty message, and for a peer that is this rank or not of the mesh;
  // UNAVAILABLE for a peer that is known to be gone; after an abort, the status that it came with.
  virtual absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) = 0;

  // Waits until `deadline` for the next piece of the message `tag` from `peer`. Pieces come in
  // order, have at least one byte, are cut anywhere and aligned to nothing. `message_bytes` is how
  // long the whole message has to be; the caller calls until it has that much, and no more often.
  //
  // A failure names the rank waited for, the step and the op:
  // DEADLINE_EXCEEDED: nothing came in time. UNAVAILABLE: a rank of the step is gone.
  // DATA_LOSS: the message has another length. Otherwise: the status that an abort came with.
  virtual absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                             absl::Time deadline) = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_LINK_H_
