// Keeps the streams and the shared memory between one worker and its peers: dials and accepts
// streams, exchanges hellos, and handles lost streams. Also runs the probes that measure the links.
#ifndef SHARDMESH_WORKER_EXCHANGE_PEER_STREAMS_H_
#define SHARDMESH_WORKER_EXCHANGE_PEER_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "rpc/stream/frame.h"
#include "worker/collective/mailbox.h"
#include "worker/exchange/completion_poller.h"
#include "worker/exchange/exchange_service.h"
#include "worker/exchange/exchange_state.h"
#include "worker/exchange/exchange_stream.h"
#include "worker/exchange/link_prober.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/message_intake.h"
#include "worker/exchange/peer_diagnosis.h"
#include "worker/exchange/peer_link.h"
#include "worker/exchange/peer_links.h"
#include "worker/exchange/peer_table.h"
#include "worker/shm/shm_channel.h"
#include "worker/shm/shm_peers.h"

namespace shardmesh::worker {

// Thread-safe. Acquires the mutex of ExchangeState where needed. Releases this mutex before it
// ticks, closes or notifies links.
class PeerStreams final : public PeerLink::Owner {
 public:
  // The options, the state and the intake outlive the streams. `open_probe`: see
  // LinkProber::Options::open.
  PeerStreams(const PeerLinks::Options& options, ExchangeState* state, MessageIntake* intake,
              decltype(LinkProber::Options::open) open_probe);
  // Closes all streams, and waits until they are closed. See ~PeerLinks.
  ~PeerStreams() override;

  ExchangeService& service() { return *service_; }
  // The poller of the service's completion queue. Streams that this worker dials use the same
  // queue.
  CompletionPoller& poller() { return poller_; }
  // Implement PeerLinks::Customize, Close, SetMembership and measured_links.
  void Customize(grpc::ServerBuilder& builder);
  void Close();
  void SetMembership(MembershipView view);
  MeasuredLinks measured_links() const {
    return prober_.has_value() ? prober_->measured() : MeasuredLinks{};
  }

  // Returns the transports to a peer for a probe, and delivers the peer's probe messages to
  // `mailbox` from then on. First waits, at most until `deadline`, until it is known whether the
  // peer shares memory. UNAVAILABLE: the connection is lost, or steps cannot use the peer
  // (PeerTable::IsReached).
  absl::StatusOr<PeerWay> WayForProbe(const LinkProber::Connection& connection,
                                      const std::shared_ptr<Mailbox>& mailbox, absl::Time deadline);
  // Handles a peer's request to answer a probe. Returns false if this worker does not measure
  // links.
  bool CallProber(const Peer& peer, int64_t op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    if (prober_.has_value()) prober_->Called(peer.ConnectionOf(), op);
    return prober_.has_value();
  }

  // Implement PeerLink::Owner.
  absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link, const rpc::FrameHello& hello) override;
  rpc::PayloadChecksum ChecksumFor(const rpc::FrameHello& hello) const override;
  void OnUp(const std::shared_ptr<PeerLink>& link) override;
  absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                      const std::shared_ptr<const void>& charge) override {
    return intake_.TakeFrame(link, frame, charge);
  }
  void OnExhausted(PeerLink& link) override { intake_.DemandAwaited(link); }
  PeerLink::CreditState& credit_state() override { return intake_.credit_state(); }
  void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) override;
  void OnRefused(const absl::Status& why) override;
  void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
              const absl::Status& status) override;

 private:
  Mailbox& mailbox() { return intake_.mailbox(); }
  std::shared_ptr<ExchangeStream::Handler> Accept(std::shared_ptr<ExchangeStream> stream);

  // Dials peers, pings peers, and reports changes of the epoch and of the unreachable peers. Runs
  // on the clock's thread.
  void Tick();
  // Makes Tick run soon.
  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    // Once state_.closed is set, the alarm may already be destroyed.
    if (!state_.closed) alarm_->SetNoLaterThan(options_.clock->Now());
  }
  // Makes a peer available to steps, after the hello of the peer was accepted.
  void Join(Peer& peer, const std::shared_ptr<PeerLink>& link)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // Handles the end of a peer's stream: the steps in which the peer takes part fail.
  void Lose(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void EndProbes(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // Share memory with peers. ShmPeers calls OnShared and OnSharingEnded on its own thread.
  void ShareMemory();
  void OnShared(const std::string& identity, uint64_t link, std::shared_ptr<ShmChannel> channel);
  void OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                      const absl::Status& why);

  const PeerLinks::Options& options_;
  ExchangeState& state_;
  MessageIntake& intake_;
  uint64_t last_shm_link_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t last_connection_ ABSL_GUARDED_BY(state_.mutex) = 0;
  // The arguments of the last call of peers_changed. Used only on the clock's thread.
  std::optional<std::pair<int64_t, std::vector<std::string>>> told_;

  // Constant after construction, or synchronised by themselves. C++ destroys them from the last to
  // the first. The last three members run code that uses the members above, so these three end
  // first.
  std::unique_ptr<ShmPeers> shm_;  // null if this worker shares no memory
  std::unique_ptr<ExchangeService> service_;
  CompletionPoller poller_;
  std::optional<Alarm> alarm_;        // calls Tick
  std::optional<LinkProber> prober_;  // nullopt if links are not measured
  PeerDiagnosis diagnosis_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_STREAMS_H_
