// Receives a message from a peer that shares its memory: polls that memory and the mailbox, and
// spins, yields and sleeps between the polls.
#ifndef SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_
#define SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"
#include "worker/shm/shm_channel.h"

namespace shardmesh::worker {

// How the receivers of one step wait. If every rank has a core, a receiver first polls without a
// pause. Then it yields to other threads between polls. Then it sleeps, and the sender wakes it.
//
// Thread-safe: any number of receives at once. Holds no lock while it waits or calls its Owner.
class SharedReceive {
 public:
  // The step that receives from one peer. Called on the receiver's thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A message of `size_bytes` came directly to its receiver.
    virtual void CountReceived(int64_t size_bytes) = 0;
    // Delivers a message that is not the awaited one. An error is a breach of the protocol.
    virtual absl::Status TakeOther(ShmChannel::Arrived arrived) = 0;
    // The peer broke the protocol: ends its stream, which fails the step.
    virtual void Refuse(const absl::Status& why) = 0;
    // Whether some stream has no credit left for its peer.
    virtual bool has_exhausted_streams() const = 0;
    // The receiver is about to sleep: the message may be one for which shared memory had no room
    // and the stream has no credit.
    virtual void Demand(const Tag& tag, int64_t message_bytes) = 0;
  };

  // The awaited message.
  struct Awaited {
    DeviceId peer = 0;
    Tag tag;
    int64_t epoch = 0;
    int64_t message_bytes = 0;
    uint64_t signature_hash = 0;  // of the tag's op, as begun by this rank
  };

  // `ranks` ranks of the step, including this one, share memory. The mailbox outlives this object.
  SharedReceive(Mailbox* mailbox, int64_t ranks);

  // Link::Receive, from `channel` or over any other way by which the message came.
  // `checked_changes`: Mailbox::changes(), or a larger number, of the last time when the step had
  // not failed.
  absl::StatusOr<OwnedBytes> Receive(ShmChannel& channel, const Awaited& awaited,
                                     const std::atomic<uint64_t>& checked_changes, Owner& owner,
                                     absl::Time deadline);

 private:
  Mailbox& mailbox_;
  const int spins_;
  std::atomic<absl::Time> no_yields_until_ = absl::InfinitePast();
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_SHARED_RECEIVE_H_
