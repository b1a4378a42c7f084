// Receives a message from a peer that shares its memory. The receiver polls that memory and the
// mailbox. Between polls, the receiver at first spins, later yields its core, and at last sleeps.
#ifndef SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_
#define SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"
#include "worker/shm/shm_channel.h"

namespace shardmesh::worker {

// How the receivers of one step wait. If there are enough cores for all ranks that share memory, a
// receiver first polls without a pause. After that, it yields to other threads between polls. At
// last, it sleeps until the sender wakes it.
//
// Thread-safe: any number of receivers at once. Holds no lock while it waits or calls its Owner.
class SharedReceive {
 public:
  // The part of a step's link that a receiver needs, for messages of one peer. Called on the
  // receiver's thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Counts a message of `size_bytes` that its receiver took directly from shared memory.
    virtual void CountReceived(int64_t size_bytes) = 0;
    // Delivers a message that the receiver found but does not wait for. An error means that the
    // peer broke the protocol.
    virtual absl::Status TakeOther(ShmChannel::Arrived arrived) = 0;
    // Ends the peer's stream, because the peer broke the protocol. The step then fails.
    virtual void Refuse(const absl::Status& why) = 0;
    // Returns whether any peer, not only the sender, has no credit left on its stream to this
    // worker.
    virtual bool has_exhausted_streams() const = 0;
    // Demands the awaited message from the peer, just before the receiver sleeps. The message may
    // be stuck at the peer: shared memory had no room for it, and the stream has no credit.
    virtual void Demand(const Tag& tag, int64_t message_bytes) = 0;
  };

  // The message for which the receiver waits.
  struct Awaited {
    DeviceId peer = 0;
    Tag tag;
    int64_t epoch = 0;
    int64_t message_bytes = 0;
    uint64_t signature_hash = 0;  // hash of this rank's signature for the tag's op
  };

  // `ranks` is the number of the step's ranks that share memory, including this one. The mailbox
  // outlives this object.
  SharedReceive(Mailbox* mailbox, int64_t ranks);

  // Implements Link::Receive: takes the message from `channel`, or from the mailbox if the message
  // came over another transport. `checked_changes` is a value of Mailbox::changes() at which the
  // step had not failed. Before the first check, `checked_changes` is larger than any such value.
  absl::StatusOr<OwnedBytes> Receive(ShmChannel& channel, const Awaited& awaited,
                                     const std::atomic<uint64_t>& checked_changes, Owner& owner,
                                     absl::Time deadline);

  // Implements Link::TryReceive: like Receive, but returns nullopt if no message has arrived.
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(ShmChannel& channel, const Awaited& awaited,
                                                       Owner& owner);

 private:
  Mailbox& mailbox_;
  const int spins_;
  std::atomic<absl::Time> no_yields_until_ = absl::InfinitePast();
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_
