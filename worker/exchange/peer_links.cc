// PeerLinks: wires peers, steps and messages together.
#include "worker/exchange/peer_links.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/log.h"
#include "rpc/stream/frame.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/exchange/completion_poller.h"
#include "worker/exchange/exchange_service.h"
#include "worker/exchange/exchange_state.h"
#include "worker/exchange/exchange_stream.h"
#include "worker/exchange/link_probe.h"
#include "worker/exchange/message_intake.h"
#include "worker/exchange/peer_diagnosis.h"
#include "worker/exchange/peer_link.h"
#include "worker/exchange/peer_table.h"
#include "worker/exchange/step_link.h"
#include "worker/exchange/step_table.h"
#include "worker/shm/shm_channel.h"
#include "worker/shm/shm_peers.h"

namespace shardmesh::worker {
namespace {

// How long a peer on this host may take to share its memory before it counts as reached all the
// same, over its stream.
constexpr absl::Duration kSharingLimit = absl::Seconds(2);

// Locks: state_.mutex guards the tables, and is taken before every other mutex. Links are ticked,
// closed and told without it.
class PeerLinksImpl final : public PeerLinks, public PeerLink::Owner {
 public:
  explicit PeerLinksImpl(Options options)
      : options_(std::move(options)),
        intake_(options_, &state_,
                {.poll = [this](absl::FunctionRef<bool()> is_done) { poller_.Poll(is_done); },
                 .probe_called = [this](const Peer& peer,
                                        int64_t op) { return CallProber(peer, op); }}),
        state_(options_),
        service_(ExchangeService::Create(
            [this](std::shared_ptr<ExchangeStream> stream) { return Accept(std::move(stream)); })),
        poller_([this] { return intake_.mailbox().awaited(); }),
        alarm_(std::in_place, options_.clock, [this] { Tick(); }),
        diagnosis_(options_, &state_) {
    if (options_.arena != nullptr && options_.transport != Transport::kStream) ShareMemory();
    if (options_.probe_pool != nullptr) {
      prober_.emplace(
          LinkProber::Options{.identity = options_.self.identity,
                              .pool = options_.probe_pool,
                              .open = [this](const LinkProber::Connection& connection, int64_t op,
                                             bool leads, absl::Time deadline) {
                                return OpenProbe(connection, op, leads, deadline);
                              }});
    }
  }

  ~PeerLinksImpl() override {
    Close();
    prober_.reset();
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

  // The server's side.
  void Customize(grpc::ServerBuilder& builder) override {
    service_->Customize(builder);
    poller_.Start(service_->queue());
  }
  grpc::Service* service() override { return service_->service(); }
  void Start() override { service_->Start(); }
  void Close() override;

  // Membership.
  void SetClusterId(std::string cluster_id) override {
    absl::MutexLock lock(&state_.mutex);
    state_.peers.SetClusterId(std::move(cluster_id));
  }
  void SetMembership(MembershipView view) override;
  MembershipView membership() const override {
    absl::MutexLock lock(&state_.mutex);
    return state_.peers.view();
  }

  // Steps.
  absl::Status ExpectStep(int64_t sequence, int64_t epoch) override;
  void CloseStep(int64_t sequence) override;
  absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view mesh_id, int64_t sequence,
                                                     int64_t epoch, absl::Time deadline) override;
  void AbortStep(int64_t sequence, const absl::Status& status, std::string_view blamed) override;
  std::string BlamedFor(int64_t sequence) const override {
    absl::MutexLock lock(&state_.mutex);
    return state_.steps.BlamedFor(sequence);
  }

  MeasuredLinks measured_links() const override {
    return prober_.has_value() ? prober_->measured() : MeasuredLinks{};
  }
  Counters counters() const override { return intake_.counters(); }

 private:
  StepLinkImpl::Parts PartsFor(Mailbox* mailbox) {
    return {.intake = &intake_,
            .poller = &poller_,
            .mailbox = mailbox,
            .close = [this](int64_t sequence) { CloseStep(sequence); }};
  }

  // Dials, pings, tells of changes; on the clock's thread.
  void Tick();
  // Has Tick called soon.
  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    // Once closed, the alarm may be gone.
    if (!state_.closed) alarm_->SetNoLaterThan(options_.clock->Now());
  }
  // The peer's stream is over: its steps fail.
  void Lose(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);
  // A greeted peer takes part from now on.
  void Join(Peer& peer, const std::shared_ptr<PeerLink>& link)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // Probes. See LinkProber::Options::open and MessageIntake::Options::probe_called.
  absl::StatusOr<LinkProber::End> OpenProbe(const LinkProber::Connection& connection, int64_t op,
                                            bool leads, absl::Time deadline);
  absl::StatusOr<PeerWay> WayForProbe(const LinkProber::Connection& connection,
                                      const std::shared_ptr<Mailbox>& mailbox, absl::Time deadline);
  bool CallProber(const Peer& peer, int64_t op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    if (prober_.has_value()) prober_->Called(peer.ConnectionOf(), op);
    return prober_.has_value();
  }
  void EndProbes(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex);

  // Shared memory, on the thread of ShmPeers.
  void ShareMemory();
  void OnShared(const std::string& identity, uint64_t link, std::shared_ptr<ShmChannel> channel);
  void OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                      const absl::Status& why);

  // PeerLink::Owner.
  std::shared_ptr<ExchangeStream::Handler> Accept(std::shared_ptr<ExchangeStream> stream);
  absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link, const rpc::FrameHello& hello) override;
  void OnUp(const std::shared_ptr<PeerLink>& link) override;
  absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                      const std::shared_ptr<const void>& charge) override {
    return intake_.TakeFrame(link, frame, charge);
  }
  void OnExhausted(PeerLink& link) override { intake_.DemandAwaited(link); }
  PeerLink::CreditState& credit_state() override { return intake_.credit_state(); }
  void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) override;
  void OnRefused(const absl::Status& why) override {
    absl::MutexLock lock(&state_.mutex);
    intake_.CountRefused(why);
  }
  void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
              const absl::Status& status) override;

  // Constant after construction, or synchronised by themselves. The order is that of destruction,
  // reversed: threads end before anything that they use.
  const Options options_;
  MessageIntake intake_;
  std::unique_ptr<ShmPeers> shm_;  // null if nothing is shared
  ExchangeState state_;
  uint64_t last_shm_link_ ABSL_GUARDED_BY(state_.mutex) = 0;
  uint64_t last_connection_ ABSL_GUARDED_BY(state_.mutex) = 0;
  // For the clock's thread: the last call of peers_changed.
  std::optional<std::pair<int64_t, std::vector<std::string>>> told_;
  std::unique_ptr<ExchangeService> service_;
  CompletionPoller poller_;           // of the service's queue, on which this worker dials as well
  std::optional<rpc::Alarm> alarm_;   // starts when everything above is there
  std::optional<LinkProber> prober_;  // the same; none if links are not measured
  PeerDiagnosis diagnosis_;           // the same
};

void PeerLinksImpl::Close() {
  service_->StopAccepting();
  if (prober_.has_value()) prober_->Stop();
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&state_.mutex);
    state_.closed = true;
    for (auto& [identity, peer] : state_.peers.all()) {
      if (peer.link != nullptr) links.push_back(peer.link);
      if (peer.channel != nullptr) peer.channel->Close();
      intake_.mailbox().FailWorker(identity, "this worker is shutting down");
      EndProbes(peer, "this worker is shutting down");
    }
    const auto& greeting = state_.peers.greeting();
    links.insert(links.end(), greeting.begin(), greeting.end());
  }
  for (const auto& link : links) {
    link->Close(WorkerLost(StrCat(options_.self.identity, " is shutting down")));
  }
  alarm_.reset();  // waits for Tick, which calls peers_changed
}

// --- Membership.

void PeerLinksImpl::SetMembership(MembershipView view) {
  std::vector<std::pair<std::shared_ptr<PeerLink>, absl::Status>> ended;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.closed) return;
    const auto leave = [&](Peer& peer,
                           std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
      Lose(peer, reason);
      if (peer.link == nullptr) return;
      ended.emplace_back(peer.link, WorkerLost(StrCat(peer.device.identity, " is gone: ", reason)));
    };
    const auto join = [&](const std::string& identity) {
      intake_.mailbox().FailWorker(identity, "it is not connected yet");
    };
    if (!state_.peers.SetMembership(std::move(view), leave, join)) return;
    Notify();
  }
  for (const auto& [link, status] : ended) link->Close(status);
}

void PeerLinksImpl::Tick() {
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
  // Messages that no receiver asks for, of steps that failed or are yet to begin.
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

void PeerLinksImpl::Lose(Peer& peer, std::string_view reason) {
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
  intake_.mailbox().FailWorker(identity, reason);
  state_.steps.BlameForAll(identity);
}

// --- Steps.

absl::Status PeerLinksImpl::ExpectStep(int64_t sequence, int64_t epoch) {
  absl::MutexLock lock(&state_.mutex);
  SHARDMESH_RETURN_IF_ERROR(intake_.mailbox().ExpectStep(sequence));
  state_.steps.Register(sequence, epoch);
  return absl::OkStatus();
}

void PeerLinksImpl::CloseStep(int64_t sequence) {
  intake_.mailbox().CloseStep(sequence);
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&state_.mutex);
    state_.steps.Close(sequence);
    links = state_.peers.LinksUp();
  }
  for (const std::shared_ptr<PeerLink>& link : links) link->EndStep(sequence);
}

absl::StatusOr<std::unique_ptr<StepLink>> PeerLinksImpl::OpenLink(std::string_view mesh_id,
                                                                  int64_t sequence, int64_t epoch,
                                                                  absl::Time deadline) {
  Mailbox& mailbox = intake_.mailbox();
  absl::MutexLock lock(&state_.mutex);
  const MembershipView& view = state_.peers.view();
  const auto can_decide = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_.mutex) {
    return (view.epoch >= epoch && !state_.peers.IsSharing(mesh_id)) || state_.closed ||
           !mailbox.FailureOf(sequence).ok();
  };
  if (!state_.mutex.AwaitWithDeadline(absl::Condition(&can_decide), deadline) &&
      view.epoch < epoch) {
    return WithReason(absl::DeadlineExceededError(StrCat(
                          "no membership of epoch ", epoch,
                          " came from the coordinator; the last one is of epoch ", view.epoch)),
                      Reason::kDeadline);
  }
  if (state_.closed) return WorkerLost(StrCat(options_.self.identity, " is shutting down"));
  // One that was aborted before it began is opened all the same, where it can be: it fails as one
  // that was aborted later.
  if (view.epoch < epoch) return mailbox.FailureOf(sequence);
  SHARDMESH_ASSIGN_OR_RETURN(const MeshMembers* const mesh, state_.peers.MeshFor(mesh_id, epoch));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PeerWay> ways,
                             state_.peers.WaysTo(*mesh, &state_.steps.BlamedIn(sequence)));
  std::vector<std::string> members;
  for (const MeshDevice& device : mesh->devices) members.push_back(device.identity);
  SHARDMESH_RETURN_IF_ERROR(mailbox.OpenStep(sequence, members));
  state_.steps.Open(sequence, epoch, std::move(members));
  const DeviceId rank = *mesh->RankOf(options_.self.identity);
  return std::make_unique<StepLinkImpl>(PartsFor(&mailbox), sequence, epoch, rank, std::move(ways));
}

void PeerLinksImpl::AbortStep(int64_t sequence, const absl::Status& status,
                              std::string_view blamed) {
  std::vector<std::shared_ptr<PeerLink>> told;
  std::vector<std::shared_ptr<PeerLink>> others;
  {
    absl::MutexLock lock(&state_.mutex);
    Mailbox& mailbox = intake_.mailbox();
    // Nobody is left to tell of a step that is over, but what this worker still had to send goes.
    const bool is_first =
        state_.steps.Abort(sequence, /*has_failed=*/!mailbox.FailureOf(sequence).ok(), blamed);
    for (const auto& [identity, peer] : state_.peers.all()) {
      if (!peer.up) continue;
      (is_first && state_.steps.TakesPart(sequence, identity) ? told : others).push_back(peer.link);
    }
    if (is_first) mailbox.Abort(sequence, status);
  }
  for (const auto& link : told) {
    link->SendAbort(sequence, {.status = status, .blamed_identity = std::string(blamed)});
  }
  for (const auto& link : others) link->DropStep(sequence);
}

void PeerLinksImpl::OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) {
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&state_.mutex);
    const std::string blamed = abort.blamed_identity.empty() ? link.peer() : abort.blamed_identity;
    if (state_.steps.AbortByPeer(sequence, blamed)) {
      intake_.mailbox().Abort(sequence, abort.status);
    } else {
      ++state_.counters.dropped_frames;  // but what a finished step had yet to send goes
    }
    links = state_.peers.LinksUp();
  }
  for (const auto& each : links) each->DropStep(sequence);
}

// --- Probes.

absl::StatusOr<LinkProber::End> PeerLinksImpl::OpenProbe(const LinkProber::Connection& connection,
                                                         int64_t op, bool leads,
                                                         absl::Time deadline) {
  // Both ends open one before either sends anything of it, but for the call.
  auto mailbox = std::make_shared<Mailbox>(intake_.MailboxOptions());
  SHARDMESH_RETURN_IF_ERROR(
      mailbox->OpenStep(kProbeStep, {options_.self.identity, connection.peer}));
  std::vector<PeerWay> ways(2);
  ways[0].identity = options_.self.identity;
  SHARDMESH_ASSIGN_OR_RETURN(ways[1], WayForProbe(connection, mailbox, deadline));
  PeerLink& link = *ways[1].link;
  link.DropStep(kProbeStep);  // what is left of an earlier one
  if (leads) {
    static constexpr char kCall[1] = {};
    SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(kProbeStep, op, kProbeCallRound));
    SHARDMESH_RETURN_IF_ERROR(link.Send(FrameTagOf(tag), /*epoch=*/0, {kCall, nullptr}));
  }
  const bool shares_memory = ways[1].channel != nullptr;
  auto step = std::make_unique<StepLinkImpl>(PartsFor(mailbox.get()), kProbeStep, /*epoch=*/0,
                                             /*rank=*/0, std::move(ways));
  return LinkProber::End{.owner = std::move(mailbox),
                         .link = std::move(step),
                         .peer = 1,
                         .shares_memory = shares_memory};
}

absl::StatusOr<PeerWay> PeerLinksImpl::WayForProbe(const LinkProber::Connection& connection,
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
    return WorkerLost(StrCat(connection.peer, " is not reached any more"));
  }
  peer->probe = mailbox;
  return PeerWay{.identity = connection.peer, .link = peer->link, .channel = peer->channel};
}

void PeerLinksImpl::EndProbes(Peer& peer, std::string_view reason) {
  if (!prober_.has_value()) return;
  prober_->Disconnected(peer.device.identity);
  if (const auto probe = peer.probe.lock(); probe != nullptr) {
    probe->FailWorker(peer.device.identity, reason);
  }
}

// --- Streams.

std::shared_ptr<ExchangeStream::Handler> PeerLinksImpl::Accept(
    std::shared_ptr<ExchangeStream> stream) {
  auto link = std::make_shared<PeerLink>(this, options_.clock, std::nullopt);
  link->Attach(std::move(stream));
  absl::MutexLock lock(&state_.mutex);
  state_.peers.AddGreeting(link);
  Notify();
  return link;
}

absl::StatusOr<rpc::FrameHello> PeerLinksImpl::CheckHello(PeerLink& link,
                                                          const rpc::FrameHello& hello) {
  SHARDMESH_RETURN_IF_ERROR(link.CheckPeer(options_.credentials, hello.identity));
  absl::MutexLock lock(&state_.mutex);
  if (state_.closed) return WorkerLost(StrCat(options_.self.identity, " is shutting down"));
  SHARDMESH_ASSIGN_OR_RETURN(
      const Peer* const peer,
      state_.peers.CheckHello(hello, link.dialled() ? std::optional(link.peer()) : std::nullopt));
  // Of a link that dialled nothing is answered, and its first hello reserved what it gave.
  if (link.dialled()) return rpc::FrameHello();
  MemoryBudget::Reservation credit;
  rpc::FrameHello answer = state_.peers.HelloTo(peer->device, &credit);
  link.KeepReservation(std::move(credit));
  return answer;
}

void PeerLinksImpl::OnUp(const std::shared_ptr<PeerLink>& link) {
  std::shared_ptr<PeerLink> replaced;
  std::set<int64_t> broken_steps;
  bool is_member = false;
  {
    absl::MutexLock lock(&state_.mutex);
    state_.peers.EndGreeting(link);
    Peer* const peer = state_.peers.Find(link->peer());
    // The membership may have changed since the hello was judged.
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
    link->Close(WrongHello("the membership has changed", Reason::kStaleEpoch));
    return;
  }
  if (replaced != nullptr) replaced->Close(WorkerLost("another stream took its place"));
  rpc::LogInfo("peer connected", {{"identity", options_.self.identity}, {"peer", link->peer()}});
  for (const int64_t sequence : broken_steps) {
    link->SendAbort(
        sequence,
        {.status = WorkerLost(StrCat("the stream between ", options_.self.identity, " and ",
                                     link->peer(), " broke during step ", sequence))});
  }
}

void PeerLinksImpl::Join(Peer& peer, const std::shared_ptr<PeerLink>& link) {
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
  intake_.mailbox().RestoreWorker(peer.device.identity);
  Notify();
}

void PeerLinksImpl::OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
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
    peer->up = false;  // also when this worker is closing
    if (link->dialled() && !was_up && absl::IsUnavailable(status) &&
        ReasonOf(status) == Reason::kUnspecified) {
      diagnosis_.Begin(*peer);
    }
    if (state_.peers.Dials(peer->device.identity)) {
      peer->dial_time = options_.clock->Now() + peer->backoff.NextDelay(status);
    }
  }
  if (was_up && !state_.closed) {
    rpc::LogWarning(
        "peer lost",
        {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
  } else if (!state_.closed) {
    rpc::LogInfo(link->dialled() ? "peer not reached" : "stream refused",
                 {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
  }
  Notify();
  state_.peers.EndLink();
}

// --- Shared memory.

void PeerLinksImpl::ShareMemory() {
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
    rpc::LogWarning("no memory is shared with peers",
                    {{"identity", options_.self.identity}, {"error", shm.status()}});
    return;
  }
  shm_ = *std::move(shm);
  absl::MutexLock lock(&state_.mutex);
  state_.peers.SetShmAddress(shm_->address());
}

void PeerLinksImpl::OnShared(const std::string& identity, uint64_t link,
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
  rpc::LogInfo("memory shared", {{"identity", options_.self.identity}, {"peer", identity}});
}

void PeerLinksImpl::OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                                   const absl::Status& why) {
  std::shared_ptr<PeerLink> ended;
  {
    absl::MutexLock lock(&state_.mutex);
    Peer* const peer = state_.peers.Find(identity);
    if (state_.closed || peer == nullptr || peer->shm_link != link) return;
    peer->shm_link = 0;
    peer->shm_deadline = absl::InfinitePast();
    Notify();
    // What was on its way is lost, and so is the stream's promise. And where nothing else is to be
    // used, it is tried again with the next stream.
    if (was_connected || options_.transport == Transport::kShm) ended = peer->link;
  }
  rpc::LogWarning(was_connected ? "shared memory lost" : "no memory shared",
                  {{"identity", options_.self.identity}, {"peer", identity}, {"error", why}});
  if (ended != nullptr)
    ended->Close(WorkerLost(StrCat("it shares no memory: ", ToStd(why.message()))));
}

}  // namespace

std::optional<Transport> TransportFromName(std::string_view name) {
  if (name == "auto") return Transport::kAuto;
  if (name == "stream") return Transport::kStream;
  if (name == "shm") return Transport::kShm;
  return std::nullopt;
}

int64_t PeerLinks::LinkCredit(int64_t link_limit_bytes, int64_t budget_bytes, int64_t peers) {
  const int64_t share_bytes = budget_bytes / kCreditPart / std::max<int64_t>(peers, 1);
  return std::max(std::min(link_limit_bytes, share_bytes), kLeastLinkCredit);
}

std::unique_ptr<PeerLinks> PeerLinks::Create(Options options) {
  return std::make_unique<PeerLinksImpl>(std::move(options));
}

}  // namespace shardmesh::worker
