// Delivers messages of peers, over any transport, to the mailbox of their step or probe. Returns
// credit to senders when receivers have consumed messages. If a stream has no credit left, demands
// the messages that receivers wait for.
#ifndef SHARDMESH_WORKER_EXCHANGE_MESSAGE_INTAKE_H_
#define SHARDMESH_WORKER_EXCHANGE_MESSAGE_INTAKE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/stream/frame.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"
#include "worker/exchange/exchange_state.h"
#include "worker/exchange/peer_link.h"
#include "worker/exchange/peer_links.h"
#include "worker/shm/shm_channel.h"

namespace shardmesh::worker {

rpc::FrameTag FrameTagOf(const Tag& tag);

// Acquires the mutex of ExchangeState itself where needed. Does not hold this mutex while it
// delivers to mailboxes.
//
// Thread-safe.
class MessageIntake {
 public:
  struct Options {
    // Called when a receiver begins to wait: see Mailbox::Options::poll.
    std::function<void(absl::FunctionRef<bool()> is_done)> poll;
    // Called with the mutex of ExchangeState held, when a peer asks this worker to answer a probe.
    // Returns false if this worker does not measure links.
    std::function<bool(const Peer& peer, int64_t op)> probe_called;
  };

  // `links` and `state` outlive the intake. They may be constructed after the intake.
  MessageIntake(const PeerLinks::Options& links, ExchangeState* state, Options options)
      : links_(links), state_(*state), options_(std::move(options)), mailbox_(MailboxOptions()) {}
  MessageIntake(const MessageIntake&) = delete;
  MessageIntake& operator=(const MessageIntake&) = delete;

  // The mailbox of all steps. Probes have their own mailboxes.
  Mailbox& mailbox() { return mailbox_; }
  const Mailbox& mailbox() const { return mailbox_; }
  // Returns the options for a probe's mailbox. This object outlives that mailbox.
  Mailbox::Options MailboxOptions();
  PeerLink::CreditState& credit_state() { return credit_state_; }

  // Implement PeerLink::Owner::OnData and OnExhausted.
  absl::Status TakeFrame(PeerLink& link, const rpc::Frame& frame,
                         const std::shared_ptr<const void>& charge);
  void DemandAwaited(PeerLink& link);

  // Delivers a message that came through shared memory to the mailbox of its receiver. Called by a
  // thread that read the message but does not wait for it.
  absl::Status TakeShared(const std::string& identity, const ShmChannel* channel,
                          ShmChannel::Arrived arrived);
  // Reads up to kRingSlots messages from the channel and delivers them, because possibly no
  // receiver reads the channel. Calls Refuse on an error.
  void DrainShared(const std::string& identity, ShmChannel& channel);
  // Handles a peer that broke the protocol in shared memory: ends the peer's stream, and thereby
  // `channel`. No effect if the peer no longer uses `channel`.
  void Refuse(const std::string& identity, const ShmChannel* channel, const absl::Status& why);
  // Counts a fault of a peer, by the kind of `why`. Because of this fault, this worker ends the
  // peer's stream.
  void CountRefused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // If the peer `worker` has no credit left on its stream, asks this peer for the message `tag`. A
  // receiver waits for this message, of which `left_bytes` have not come.
  void Demand(const std::string& worker, const Tag& tag, int64_t left_bytes);

  void CountSent(int64_t size_bytes, bool is_shared) {
    (is_shared ? shared_bytes_ : streamed_bytes_).fetch_add(size_bytes, std::memory_order_relaxed);
  }
  // Counts bytes that a receiver took directly from shared memory.
  void CountReceived(int64_t size_bytes) {
    received_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  }
  PeerLinks::Counters counters() const;

 private:
  void Grant(const std::string& worker, const Tag& tag, int64_t size_bytes);
  std::shared_ptr<PeerLink> LinkTo(const std::string& worker) const;
  // Returns the mailbox for a message from a peer; null if no receiver needs the message. Errors
  // are those of StepTable::Hold.
  absl::StatusOr<std::shared_ptr<Mailbox>> MailboxFor(const Peer& sender, const Tag& tag,
                                                      int64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void CountDropped(int64_t sequence, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  const PeerLinks::Options& links_;
  ExchangeState& state_;
  const Options options_;

  std::atomic<int64_t> awaited_ = 0;  // number of messages that receivers wait for
  PeerLink::CreditState credit_state_;
  Mailbox mailbox_;
  std::atomic<int64_t> streamed_bytes_ = 0;
  std::atomic<int64_t> shared_bytes_ = 0;
  std::atomic<int64_t> received_bytes_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_MESSAGE_INTAKE_H_
