// Delivers messages of peers, over any transport, to the mailbox of their step or probe. Returns
// credit for consumed messages, and asks for messages that receivers wait for.
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

// Takes the mutex of ExchangeState itself where it needs it, and delivers without it.
//
// Thread-safe.
class MessageIntake {
 public:
  struct Options {
    // A receiver waits: see Mailbox::Options::poll.
    std::function<void(absl::FunctionRef<bool()> is_done)> poll;
    // A peer requests a probe. Called with the mutex held. False: links are not measured.
    std::function<bool(const Peer& peer, int64_t op)> probe_called;
  };

  // `links` and `state` outlive the intake, and may be constructed after it.
  MessageIntake(const PeerLinks::Options& links, ExchangeState* state, Options options)
      : links_(links), state_(*state), options_(std::move(options)), mailbox_(MailboxOptions()) {}
  MessageIntake(const MessageIntake&) = delete;
  MessageIntake& operator=(const MessageIntake&) = delete;

  // The mailbox of all steps except probes.
  Mailbox& mailbox() { return mailbox_; }
  const Mailbox& mailbox() const { return mailbox_; }
  // For a mailbox of a probe, which this object outlives.
  Mailbox::Options MailboxOptions();
  PeerLink::CreditState& credit_state() { return credit_state_; }

  // PeerLink::Owner::OnData and OnExhausted.
  absl::Status TakeFrame(PeerLink& link, const rpc::Frame& frame,
                         const std::shared_ptr<const void>& charge);
  void DemandAwaited(PeerLink& link);

  // Delivers a message that came through shared memory and that its reader does not wait for.
  absl::Status TakeShared(const std::string& identity, const ShmChannel* channel,
                          ShmChannel::Arrived arrived);
  // Delivers all messages in shared memory that no receiver asks for; calls Refuse on an error.
  void DrainShared(const std::string& identity, ShmChannel& channel);
  // The peer broke the protocol: ends its stream, and thereby its channel.
  void Refuse(const std::string& identity, const ShmChannel* channel, const absl::Status& why);
  // Counts a fault of a peer that ends its stream.
  void CountRefused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // Asks the worker for an awaited message if the stream has no credit left.
  void Demand(const std::string& worker, const Tag& tag, int64_t left_bytes);

  void CountSent(int64_t size_bytes, bool is_shared) {
    (is_shared ? shared_bytes_ : streamed_bytes_).fetch_add(size_bytes, std::memory_order_relaxed);
  }
  // Received through shared memory, directly by a receiver.
  void CountReceived(int64_t size_bytes) {
    received_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  }
  PeerLinks::Counters counters() const;

 private:
  void Grant(const std::string& worker, const Tag& tag, int64_t size_bytes);
  std::shared_ptr<PeerLink> LinkTo(const std::string& worker) const;
  // The mailbox for a message from a peer; null: no receiver needs it. Errors of StepTable::Hold.
  absl::StatusOr<std::shared_ptr<Mailbox>> MailboxFor(const Peer& sender, const Tag& tag,
                                                      int64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void CountDropped(int64_t sequence, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  const PeerLinks::Options& links_;
  ExchangeState& state_;
  const Options options_;

  std::atomic<int64_t> awaited_ = 0;  // messages, by all mailboxes
  PeerLink::CreditState credit_state_;
  Mailbox mailbox_;
  std::atomic<int64_t> streamed_bytes_ = 0;
  std::atomic<int64_t> shared_bytes_ = 0;
  std::atomic<int64_t> received_bytes_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_MESSAGE_INTAKE_H_
