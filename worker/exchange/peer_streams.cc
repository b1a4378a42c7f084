// Keeps a stream to every member, and decides how the loss of a stream affects steps.
#include "worker/exchange/peer_streams.h"

#include <set>

#include "absl/synchronization/mutex.h"
#include "process/log.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/exchange/link_probe.h"
#include "worker/exchange/step_table.h"

namespace shardmesh::worker {
namespace {

// How long a peer on this host may take to share its memory. After that, the peer counts as reached
// without shared memory, unless the transport is kShm.
constexpr absl::Duration kSharingLimit = absl::Seconds(2);

}  // namespace

PeerStreams::PeerStreams(const PeerLinks::Options& options, ExchangeState* state,
                         MessageIntake* intake, decltype(LinkProber::Options::open) open_probe)
    : options_(options),
      state_(*state),
      intake_(*intake),
      service_(ExchangeService::Create(
          [this](std::shared_ptr<ExchangeStream> stream) { return Accept(std::move(stream)); })),
      poller_([this] { return mailbox().awaited(); }),
      alarm_(std::in_place, options_.clock, [this] { Tick(); }),
      diagnosis_(options_, &state_) {
  if (options_.arena != nullptr && options_.transport != Transport::kStream) ShareMemory();
  if (options_.probe_pool != nullptr) {
    prober_.emplace(LinkProber::Options{.identity = options_.self.identity,
                                        .pool = options_.probe_pool,
                                        .open = std::move(open_probe)});
  }
}

PeerStreams::~PeerStreams() {
  Close();
  // Frames that still arrive may call the prober: it stays until the poller has stopped.
  if (prober_.has_value()) prober_->Join();
  shm_.reset();
  service_->AwaitIdle();
  {
    absl::MutexLock lock(&state_.mutex);
    const auto none_left = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
      return state_.peers.live_links() == 0;
    };
    state_.mutex.Await(absl::Condition(&none_left));
  }
  poller_.Stop();
  service_.reset();
}

void PeerStreams::Customize(grpc::ServerBuilder& builder) {
  service_->Customize(builder);
  poller_.Start(service_->queue());
}

void PeerStreams::Close() {
  service_->StopAccepting();
  if (prober_.has_value()) prober_->Stop();
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&state_.mutex);
    state_.closed = true;
    for (auto& [identity, peer] : state_.peers.all()) {
      if (peer.link != nullptr) links.push_back(peer.link);
      if (peer.channel != nullptr) peer.channel->Close();
      mailbox().FailWorker(identity, "this worker is shutting down");
      EndProbes(peer, "this worker is shutting down");
    }
    const auto& greeting = state_.peers.greeting();
    links.insert(links.end(), greeting.begin(), greeting.end());
  }
  for (const auto& link : links) {
    link->Close(
        WorkerLost(StrCat(options_.self.identity, " is shutting down"), options_.self.identity));
  }
  alarm_.reset();  // waits for a running Tick, which may call peers_changed
}

// --- Membership.

void PeerStreams::SetMembership(MembershipView view) {
  std::vector<std::pair<std::shared_ptr<PeerLink>, absl::Status>> ended;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.closed) return;
    const auto leave = [&](Peer& peer,
                           std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
      Lose(peer, reason);
      if (peer.link == nullptr) return;
      ended.emplace_back(peer.link, WorkerLost(StrCat(peer.device.identity, " is gone: ", reason),
                                               peer.device.identity));
    };
    const auto join = [&](const std::string& identity) {
      mailbox().FailWorker(identity, "it is not connected yet");
    };
    if (!state_.peers.SetMembership(std::move(view), leave, join)) return;
    Notify();
  }
  for (const auto& [link, status] : ended) link->Close(status);
}

void PeerStreams::Tick() {
  PeerTable::Due due;
  int64_t epoch = 0;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.closed) return;
    epoch = state_.peers.view().epoch;
    due = state_.peers.Look(options_.clock->Now(), this, service_->queue());
    if (due.next.has_value()) alarm_->SetNoLaterThan(*due.next);
  }
  for (const auto& link : due.links) link->Tick(options_.ping_interval, options_.silence_limit);
  // No receiver reads messages of steps that failed or have not begun yet. Take such messages out
  // of the shared memory here.
  for (const auto& [identity, channel] : due.channels) {
    channel->Reap();
    intake_.DrainShared(identity, *channel);
  }
  std::pair<int64_t, std::vector<std::string>> present = {epoch, std::move(due.unreached)};
  if (epoch > 0 && present != told_) {
    told_ = std::move(present);
    if (options_.peers_changed) options_.peers_changed(told_->first, told_->second);
  }
}

void PeerStreams::Lose(Peer& peer, std::string_view reason) {
  const std::string& identity = peer.device.identity;
  if (peer.up) {
    ++state_.counters.broken_streams;
    for (const int64_t sequence : peer.link->recent_steps()) {
      if (sequence != kProbeStep) peer.broken_steps.insert(sequence);
    }
  }
  EndProbes(peer, reason);
  peer.up = false;
  if (std::exchange(peer.shm_link, 0) != 0) shm_->Forget(identity);
  if (peer.channel != nullptr) std::exchange(peer.channel, nullptr)->Close();
  mailbox().FailWorker(identity, reason);
  state_.steps.BlameForAll(identity);
}

// --- Probes.

absl::StatusOr<PeerWay> PeerStreams::WayForProbe(const LinkProber::Connection& connection,
                                                 const std::shared_ptr<Mailbox>& mailbox,
                                                 absl::Time deadline) {
  absl::MutexLock lock(&state_.mutex);
  const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) -> Peer* {
    Peer* const found = state_.peers.Find(connection.peer);
    const bool is_up =
        !state_.closed && found != nullptr && found->up && found->connection == connection.number;
    return is_up ? found : nullptr;
  };
  const auto is_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    const Peer* const peer = find();
    return peer == nullptr || !state_.peers.IsSharing(*peer);
  };
  state_.mutex.AwaitWithDeadline(absl::Condition(&is_settled), deadline);
  Peer* const peer = find();
  if (peer == nullptr || !state_.peers.IsReached(*peer, options_.clock->Now())) {
    return WorkerLost(StrCat(connection.peer, " is not reached any more"), connection.peer);
  }
  peer->probe = mailbox;
  return PeerWay{.identity = connection.peer, .link = peer->link, .channel = peer->channel};
}

void PeerStreams::EndProbes(Peer& peer, std::string_view reason) {
  if (!prober_.has_value()) return;
  prober_->Disconnected(peer.device.identity);
  if (const auto probe = peer.probe.lock(); probe != nullptr) {
    probe->FailWorker(peer.device.identity, reason);
  }
}

// --- Streams.

std::shared_ptr<ExchangeStream::Handler> PeerStreams::Accept(
    std::shared_ptr<ExchangeStream> stream) {
  auto link = std::make_shared<PeerLink>(this, options_.clock, std::nullopt);
  link->Attach(std::move(stream));
  absl::MutexLock lock(&state_.mutex);
  state_.peers.AddGreeting(link);
  Notify();
  return link;
}

absl::StatusOr<rpc::FrameHello> PeerStreams::CheckHello(PeerLink& link,
                                                        const rpc::FrameHello& hello) {
  SHARDMESH_RETURN_IF_ERROR(link.CheckPeer(options_.credentials, hello.identity));
  absl::MutexLock lock(&state_.mutex);
  if (state_.closed) {
    return WorkerLost(StrCat(options_.self.identity, " is shutting down"), options_.self.identity);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const Peer* const peer,
      state_.peers.CheckHello(hello, link.dialled() ? std::optional(link.peer()) : std::nullopt));
  // If this worker dialled, it sent the first hello, and this hello is the peer's answer. No more
  // hellos are needed. The dial also reserved the memory for the credit in the first hello.
  if (link.dialled()) return rpc::FrameHello();
  MemoryBudget::Reservation credit;
  rpc::FrameHello answer = state_.peers.HelloTo(peer->device, &credit);
  link.KeepReservation(std::move(credit));
  return answer;
}

rpc::PayloadChecksum PeerStreams::ChecksumFor(const rpc::FrameHello& hello) const {
  // Equal boot ids prove no common host: virtual machines may be resumed from one snapshot. The
  // address of the peer does not decide either: pods of one host have addresses of their own, and
  // both ends must choose the same (docs/security.md, known gaps).
  const std::string& boot_id = options_.self.boot_id;
  const bool is_on_this_host = !boot_id.empty() && hello.boot_id == boot_id;
  const bool is_protected = is_on_this_host || options_.credentials.is_secure();
  return is_protected && hello.accepts_plain_payloads && !options_.frame_checksums
             ? rpc::PayloadChecksum::kNone
             : rpc::PayloadChecksum::kCrc32c;
}

void PeerStreams::OnUp(const std::shared_ptr<PeerLink>& link) {
  std::shared_ptr<PeerLink> replaced;
  std::set<int64_t> broken_steps;
  bool is_member = false;
  {
    absl::MutexLock lock(&state_.mutex);
    state_.peers.EndGreeting(link);
    Peer* const peer = state_.peers.Find(link->peer());
    // The membership may have changed since CheckHello.
    is_member = !state_.closed && peer != nullptr && (!link->dialled() || peer->link == link);
    if (is_member) {
      if (peer->link != link && peer->link != nullptr) {
        Lose(*peer, "it opened another stream");
        replaced = std::move(peer->link);
      }
      Join(*peer, link);
      broken_steps.swap(peer->broken_steps);
    }
  }
  if (!is_member) {
    link->Close(WrongHello("the membership has changed", Reason::kStaleEpoch, {}));
    return;
  }
  if (replaced != nullptr) {
    replaced->Close(WorkerLost("another stream took its place", link->peer()));
  }
  LogInfo("peer connected", {{"identity", options_.self.identity}, {"peer", link->peer()}});
  for (const int64_t sequence : broken_steps) {
    link->SendAbort(sequence, {.status = WorkerLost(
                                   StrCat("the stream between ", options_.self.identity, " and ",
                                          link->peer(), " broke during step ", sequence),
                                   link->peer())});
  }
}

void PeerStreams::Join(Peer& peer, const std::shared_ptr<PeerLink>& link) {
  peer.link = link;
  peer.up = true;
  peer.connection = ++last_connection_;
  if (prober_.has_value() && link->dialled()) prober_->Connected(peer.ConnectionOf());
  if (!peer.shm_address.empty()) {
    peer.shm_link = ++last_shm_link_;
    peer.shm_deadline = options_.clock->Now() + kSharingLimit;
    shm_->Expect(peer.device.identity, peer.shm_link, peer.shm_address, link->dialled());
  }
  peer.backoff.Reset();
  mailbox().RestoreWorker(peer.device.identity);
  Notify();
}

void PeerStreams::OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) {
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&state_.mutex);
    const std::string blamed = abort.blamed_identity.empty() ? link.peer() : abort.blamed_identity;
    if (state_.steps.AbortByPeer(sequence, blamed)) {
      mailbox().Abort(sequence, abort.status);
    } else {
      // The step is over or cannot be held: count the frame of the abort as dropped. The code below
      // still drops this worker's unsent messages of the step.
      ++state_.counters.dropped_frames;
    }
    links = state_.peers.LinksUp();
  }
  for (const auto& each : links) each->DropStep(sequence);
}

void PeerStreams::OnRefused(const absl::Status& why) {
  absl::MutexLock lock(&state_.mutex);
  intake_.CountRefused(why);
}

void PeerStreams::OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
                         const absl::Status& status) {
  absl::MutexLock lock(&state_.mutex);
  state_.peers.EndGreeting(link);
  if (Peer* const peer = state_.peers.Find(link->peer()); peer != nullptr && peer->link == link) {
    if (!state_.closed) {
      Lose(*peer,
           StrCat(was_up ? "its stream to " : "there is no stream to ", options_.self.identity,
                  was_up ? " broke: " : ": ", ToStd(status.message())));
    }
    peer->link = nullptr;
    peer->up = false;  // Lose also does this, but is not called while closing
    if (link->dialled() && !was_up && absl::IsUnavailable(status) &&
        ReasonOf(status) == Reason::kUnspecified) {
      diagnosis_.Begin(*peer);
    }
    if (state_.peers.Dials(peer->device.identity)) {
      peer->dial_time = options_.clock->Now() + peer->backoff.NextDelay(status);
    }
  }
  if (was_up && !state_.closed) {
    LogWarning("peer lost",
               {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
  } else if (!state_.closed) {
    LogInfo(link->dialled() ? "peer not reached" : "stream refused",
            {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
  }
  Notify();
  state_.peers.EndLink();
}

// --- Shared memory.

void PeerStreams::ShareMemory() {
  auto shm = ShmPeers::Start(
      {.identity = options_.self.identity,
       .arena = options_.arena,
       .budget = options_.budget,
       .connected =
           [this](const std::string& peer, uint64_t link, std::shared_ptr<ShmChannel> channel) {
             OnShared(peer, link, std::move(channel));
           },
       .lost = [this](
                   const std::string& peer, uint64_t link, bool was_connected,
                   const absl::Status& why) { OnSharingEnded(peer, link, was_connected, why); }});
  if (!shm.ok()) {
    LogWarning("no memory is shared with peers",
               {{"identity", options_.self.identity}, {"error", shm.status()}});
    return;
  }
  shm_ = *std::move(shm);
  absl::MutexLock lock(&state_.mutex);
  state_.peers.SetShmAddress(shm_->address());
}

void PeerStreams::OnShared(const std::string& identity, uint64_t link,
                           std::shared_ptr<ShmChannel> channel) {
  {
    absl::MutexLock lock(&state_.mutex);
    Peer* const peer = state_.peers.Find(identity);
    if (!state_.closed && peer != nullptr && peer->up && peer->shm_link == link) {
      peer->channel = std::move(channel);
      Notify();
    }
  }
  if (channel != nullptr) {
    channel->Close();
    return;
  }
  LogInfo("memory shared", {{"identity", options_.self.identity}, {"peer", identity}});
}

void PeerStreams::OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                                 const absl::Status& why) {
  std::shared_ptr<PeerLink> ended;
  {
    absl::MutexLock lock(&state_.mutex);
    Peer* const peer = state_.peers.Find(identity);
    if (state_.closed || peer == nullptr || peer->shm_link != link) return;
    peer->shm_link = 0;
    peer->shm_deadline = absl::InfinitePast();
    Notify();
    // Messages in transit through the shared memory are lost, so their steps must fail: end the
    // stream. Also end the stream if shared memory is the only permitted transport: the next stream
    // tries to share memory again.
    if (was_connected || options_.transport == Transport::kShm) ended = peer->link;
  }
  LogWarning(was_connected ? "shared memory lost" : "no memory shared",
             {{"identity", options_.self.identity}, {"peer", identity}, {"error", why}});
  if (ended != nullptr) {
    ended->Close(WorkerLost(StrCat("it shares no memory: ", ToStd(why.message())), identity));
  }
}

}  // namespace shardmesh::worker
