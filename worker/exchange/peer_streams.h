// The streams and the shared memory between one worker and its peers: dialled, accepted, greeted or
// lost; and the probes that measure them.
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

// Thread-safe. Acquires the mutex of ExchangeState where needed. Ticks, closes and notifies links
// without it.
class PeerStreams final : public PeerLink::Owner {
 public:
  // All three outlive the streams. `open_probe`: see LinkProber::Options::open.
  PeerStreams(const PeerLinks::Options& options, ExchangeState* state, MessageIntake* intake,
              decltype(LinkProber::Options::open) open_probe);
  // Closes everything, and waits for it. See ~PeerLinks.
  ~PeerStreams() override;

  ExchangeService& service() { return *service_; }
  // The poller of the service's queue, on which this worker dials as well.
  CompletionPoller& poller() { return poller_; }
  // PeerLinks::Customize, Close, SetMembership and measured_links.
  void Customize(grpc::ServerBuilder& builder);
  void Close();
  void SetMembership(MembershipView view);
  MeasuredLinks measured_links() const {
    return prober_.has_value() ? prober_->measured() : MeasuredLinks{};
  }

  // The way for a probe, once it is known whether memory is shared; its messages go to `mailbox`
  // from then on. Waits until `deadline`. UNAVAILABLE: the connection is lost.
  absl::StatusOr<PeerWay> WayForProbe(const LinkProber::Connection& connection,
                                      const std::shared_ptr<Mailbox>& mailbox, absl::Time deadline);
  // A peer requests a probe. False: links are not measured.
  bool CallProber(const Peer& peer, int64_t op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    if (prober_.has_value()) prober_->Called(peer.ConnectionOf(), op);
    return prober_.has_value();
  }

  // PeerLink::Owner.
  absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link, const rpc::FrameHello& hello) override;
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

  // Dials, pings, reports changes; runs on the clock's thread.
  void Tick();
  // Makes Tick run soon.
  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    // After closing, the alarm may already be destroyed.
    if (!state_.closed) alarm_->SetNoLaterThan(options_.clock->Now());
  }
  // A greeted peer takes part from now on.
  void Join(Peer& peer, const std::shared_ptr<PeerLink>& link)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // The peer's stream has ended: its steps fail.
  void Lose(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  void EndProbes(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // Shared memory. These calls run on the thread of ShmPeers.
  void ShareMemory();
  void OnShared(const std::string& identity, uint64_t link, std::shared_ptr<ShmChannel> channel);
  void OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                      const absl::Status& why);

  const PeerLinks::Options& options_;
  ExchangeState& state_;
  MessageIntake& intake_;
  uint64_t last_shm_link_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t last_connection_ ABSL_GUARDED_BY(state_.mutex) = 0;
  // For the clock's thread: the last call of peers_changed.
  std::optional<std::pair<int64_t, std::vector<std::string>>> told_;

  // Constant after construction, or synchronised by themselves; destroyed from the last to the
  // first, so that threads end before anything that they use.
  std::unique_ptr<ShmPeers> shm_;  // null if nothing is shared
  std::unique_ptr<ExchangeService> service_;
  CompletionPoller poller_;
  std::optional<rpc::Alarm> alarm_;   // starts when all members above exist
  std::optional<LinkProber> prober_;  // the same; none if links are not measured
  PeerDiagnosis diagnosis_;           // the same
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_STREAMS_H_
