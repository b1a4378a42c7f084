// PeerLinks: who is connected to whom, which steps are open, and what one means for the other.
#include "worker/exchange/peer_links.h"

#include <grpcpp/channel.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/log.h"
#include "process/thread_pool.h"
#include "rpc/live_work.h"
#include "rpc/stream/frame.h"
#include "rpc/tls/dial.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/exchange/completion_poller.h"
#include "worker/exchange/exchange_service.h"
#include "worker/exchange/exchange_stream.h"
#include "worker/exchange/link_probe.h"
#include "worker/exchange/peer_link.h"
#include "worker/shm/shm_channel.h"
#include "worker/shm/shm_peers.h"

namespace shardmesh::worker {
namespace {

// Steps that peers may begin before this worker does: all that the coordinator can have under way.
// Each costs a map's node; what came for them is bounded by the streams' credit.
constexpr size_t kMaxHeldSteps = rpc::kMaxLiveWork;

// How long a peer on this host may take to share its memory before it counts as reached all the
// same, over its stream.
constexpr absl::Duration kSharingLimit = absl::Seconds(2);

// How often the log repeats that a peer is not reached.
constexpr absl::Duration kLogInterval = absl::Seconds(30);

// How a receiver of shared memory waits: it looks again at once for a while, where every rank has a
// core; then it lets others run between its looks; then it sleeps, and is woken by the sender.
constexpr int kSpins = 50;
constexpr absl::Duration kYielding = absl::Microseconds(500);
// Who yields to a thread that computes is not asked again for some milliseconds. After one yield
// that took so long, waits sleep at once for a while: a sleeper that is woken goes first.
constexpr absl::Duration kLongYield = absl::Microseconds(200);
constexpr absl::Duration kNoYields = absl::Milliseconds(20);
// What comes on another way, and the end of a step, wake it too; so this is for nothing but safety.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

int64_t Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// FNV-1a; never 0.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

rpc::FrameTag FrameTagOf(const Tag& tag) {
  return {.sequence = tag.step(),
          .op = static_cast<uint32_t>(tag.op()),
          .round = static_cast<uint32_t>(tag.round())};
}

absl::Status WorkerLost(std::string_view message) {
  return WithReason(absl::UnavailableError(ToAbsl(message)), Reason::kWorkerLost);
}

absl::Status WrongHello(std::string_view message, Reason reason) {
  return WithReason(absl::FailedPreconditionError(ToAbsl(message)), reason);
}

// A piece of a frame, which the sender has credit for again when it is freed.
struct Received {
  grpc::Slice slice;
  std::shared_ptr<const void> charge;
};

class PeerLinksImpl;

class StepLinkImpl final : public StepLink {
 public:
  // The ways to the worker of a rank; null for the own rank, and where there is no memory shared.
  struct Way {
    std::string identity;
    std::shared_ptr<PeerLink> link;
    std::shared_ptr<ShmChannel> channel;
  };

  // `ways[r]` leads to rank r.
  StepLinkImpl(PeerLinksImpl* owner, Mailbox* mailbox, int64_t sequence, int64_t epoch,
               DeviceId rank, std::vector<Way> ways)
      : owner_(owner),
        mailbox_(*mailbox),
        sequence_(sequence),
        epoch_(epoch),
        rank_(rank),
        ways_(std::move(ways)),
        told_(std::make_unique<Told[]>(ways_.size())) {
    const int64_t sharing = std::count_if(ways_.begin(), ways_.end(),
                                          [](const Way& way) { return way.channel != nullptr; }) +
                            1;
    static const int64_t cores = Cores();
    spins_ = sharing <= cores ? kSpins : 0;
    // What the peers read in the steps before, so that it is known to be nobody's.
    for (const Way& way : ways_) {
      if (way.channel != nullptr) way.channel->Reap();
    }
  }
  ~StepLinkImpl() override;

  DeviceId rank() const override { return rank_; }
  absl::Status Begin(int64_t op, std::string signature) override;
  absl::Status Send(DeviceId peer, const Tag& tag, OwnedBytes message) override;
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline) override;
  absl::Status Check() const override;
  int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  PeerLinksImpl* const owner_;
  Mailbox& mailbox_;
  const int64_t sequence_;
  const int64_t epoch_;
  // What the step failed with, as this worker knows.
  absl::Status CheckFailure() const;
  // Link::Receive where the peer shares its memory: from there, or whatever else came for the tag.
  absl::StatusOr<OwnedBytes> ReceiveShared(const Way& way, DeviceId peer, const Tag& tag,
                                           int64_t message_bytes, absl::Time deadline);

  const DeviceId rank_;
  const std::vector<Way> ways_;
  int spins_ = 0;
  std::atomic<absl::Time> no_yields_until_ = absl::InfinitePast();
  std::atomic<int64_t> sent_bytes_ = 0;
  // Mailbox::changes(), or a larger number, when the step was last seen not to have failed.
  mutable std::atomic<uint64_t> checked_changes_ = ~uint64_t{0};
  std::atomic<uint64_t> signature_hash_ = 0;  // of op_'s

  // What a rank was told.
  struct Told {
    std::atomic<int64_t> op = -1;             // the last op whose signature went there
    std::atomic<bool> is_remembered = false;  // RememberStep was called
  };
  const std::unique_ptr<Told[]> told_;  // by rank
  std::atomic<int64_t> op_ = -1;        // the op that was begun last

  absl::Mutex mutex_;
  std::string signature_ ABSL_GUARDED_BY(mutex_);  // of op_
};

class PeerLinksImpl final : public PeerLinks, public PeerLink::Owner {
 public:
  explicit PeerLinksImpl(Options options)
      : options_(std::move(options)),
        mailbox_(MailboxOptions()),
        service_(ExchangeService::Create(
            [this](std::shared_ptr<ExchangeStream> stream) { return Accept(std::move(stream)); })),
        poller_([this] { return mailbox_.awaited(); }),
        alarm_(std::in_place, options_.clock, [this] { Tick(); }) {
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
      absl::MutexLock lock(&mutex_);
      const auto none_left = [this]()
                                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return live_links_ == 0; };
      mutex_.Await(absl::Condition(&none_left));
    }
    poller_.Stop();
    service_.reset();
  }

  void Customize(grpc::ServerBuilder& builder) override {
    service_->Customize(builder);
    poller_.Start(service_->queue());
  }
  grpc::Service* service() override { return service_->service(); }
  void Start() override { service_->Start(); }

  void Close() override {
    service_->StopAccepting();
    if (prober_.has_value()) prober_->Stop();
    std::vector<std::shared_ptr<PeerLink>> links;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      for (auto& [identity, peer] : peers_) {
        if (peer.link != nullptr) links.push_back(peer.link);
        if (peer.channel != nullptr) peer.channel->Close();
        mailbox_.FailWorker(identity, "this worker is shutting down");
        EndProbes(peer, "this worker is shutting down");
      }
      links.insert(links.end(), greeting_.begin(), greeting_.end());
    }
    for (const auto& link : links) {
      link->Close(WorkerLost(StrCat(options_.self.identity, " is shutting down")));
    }
    alarm_.reset();  // waits for Tick, which calls peers_changed
  }

  void SetClusterId(std::string cluster_id) override {
    absl::MutexLock lock(&mutex_);
    cluster_id_ = std::move(cluster_id);
  }

  void SetMembership(MembershipView view) override;

  MembershipView membership() const override {
    absl::MutexLock lock(&mutex_);
    return view_;
  }

  absl::Status ExpectStep(int64_t sequence, int64_t epoch) override {
    absl::MutexLock lock(&mutex_);
    return Expect(sequence, epoch);
  }
  absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view mesh_id, int64_t sequence,
                                                     int64_t epoch, absl::Time deadline) override;

  void AbortStep(int64_t sequence, const absl::Status& status, std::string_view blamed) override;

  std::string BlamedFor(int64_t sequence) const override {
    absl::MutexLock lock(&mutex_);
    if (const auto step = steps_.find(sequence); step != steps_.end()) return step->second.blamed;
    const auto held = held_steps_.find(sequence);
    return held == held_steps_.end() ? "" : held->second;
  }

  MeasuredLinks measured_links() const override {
    return prober_.has_value() ? prober_->measured() : MeasuredLinks{};
  }

  Counters counters() const override {
    absl::MutexLock lock(&mutex_);
    Counters counters = counters_;
    counters.shared_bytes = shared_bytes_.load(std::memory_order_relaxed);
    counters.sent_bytes = counters.shared_bytes + streamed_bytes_.load(std::memory_order_relaxed);
    counters.received_bytes += received_bytes_.load(std::memory_order_relaxed);
    counters.held_bytes = mailbox_.held_bytes();
    counters.credit_waits = credit_state_.waits.load(std::memory_order_relaxed);
    return counters;
  }

  // For StepLinkImpl.
  CompletionPoller& poller() { return poller_; }
  PeerLink::CreditState& credit_state() override { return credit_state_; }
  // Has the worker send what a receiver waits for, if the stream has no credit left.
  void Demand(const std::string& worker, const Tag& tag, int64_t left_bytes);
  void CountSent(int64_t size_bytes, bool is_shared) {
    (is_shared ? shared_bytes_ : streamed_bytes_).fetch_add(size_bytes, std::memory_order_relaxed);
  }
  void CountReceived(int64_t size_bytes) {
    received_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  }
  // Takes in what came through shared memory and is not what a receiver waits for.
  absl::Status TakeShared(const std::string& identity, const ShmChannel* channel,
                          ShmChannel::Arrived arrived);
  // The peer does not keep to the protocol: its stream, and with it its channel, is ended.
  void Refuse(const std::string& identity, const ShmChannel* channel, const absl::Status& why);
  void CloseStep(int64_t sequence) override {
    mailbox_.CloseStep(sequence);
    std::vector<std::shared_ptr<PeerLink>> links;
    {
      absl::MutexLock lock(&mutex_);
      steps_.erase(sequence);
      for (const auto& [identity, peer] : peers_) {
        if (peer.up) links.push_back(peer.link);
      }
    }
    for (const std::shared_ptr<PeerLink>& link : links) link->EndStep(sequence);
  }

 private:
  struct Peer {
    explicit Peer(const rpc::RetryPolicy& policy) : backoff(policy) {}

    MeshDevice device;               // its identity, incarnation and endpoints
    std::shared_ptr<PeerLink> link;  // dialled or up; null while there is none
    bool up = false;
    // Of a peer on this host: where its memory can be asked for, as its last hello said; which link
    // a channel was asked for, 0 if none was; until when it is waited for; the channel.
    ShmAddress shm_address = {};
    uint64_t shm_link = 0;
    absl::Time shm_deadline = absl::InfinitePast();
    std::shared_ptr<ShmChannel> channel = nullptr;
    // Of the connection that is up, the number, and where messages of a probe under way go.
    uint64_t connection = 0;
    std::weak_ptr<Mailbox> probe = {};
    // Of a peer that this worker dials.
    rpc::Backoff backoff;
    absl::Time dial_time = absl::InfinitePast();
    size_t next_endpoint = 0;
    // Steps of which data was sent over a stream that broke: the peer may miss some.
    std::set<int64_t> broken_steps;
  };
  struct Step {
    int64_t epoch = 0;
    std::vector<std::string> members = {};  // none before it is opened
    bool aborted = false;
    std::string blamed = {};
  };

  Mailbox::Options MailboxOptions() {
    return {.tag_limit_bytes = options_.tag_limit_bytes,
            .credit = [this](const std::string& worker, const Tag& tag,
                             int64_t size_bytes) { Grant(worker, tag, size_bytes); },
            .poll = [this](absl::FunctionRef<bool()> is_done) { poller_.Poll(is_done); },
            .exhausted = &credit_state_.exhausted_links,
            .starved = [this](const std::string& worker, const Tag& tag,
                              int64_t left_bytes) { Demand(worker, tag, left_bytes); },
            .awaited = &awaited_};
  }
  bool Dials(const std::string& identity) const { return options_.self.identity < identity; }
  // `reservation` keeps the memory for the credit that the hello gives.
  rpc::FrameHello HelloTo(const MeshDevice& device, MemoryBudget::Reservation* reservation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return {.identity = options_.self.identity,
            .incarnation = options_.self.incarnation,
            .peer_identity = device.identity,
            .peer_incarnation = device.incarnation,
            .cluster_id = cluster_id_,
            .initial_credit_bytes = options_.tag_limit_bytes,
            .boot_id = options_.self.boot_id,
            .shm_socket = shm_ == nullptr ? "" : shm_->address().socket,
            .shm_token = shm_ == nullptr ? ""
                                         : std::string(shm_->address().token.data(),
                                                       shm_->address().token.size()),
            .link_credit_bytes = ReserveCredit(reservation)};
  }
  // The credit for a stream. Where memory is short it is less; the least is given in any case,
  // since nothing comes over a stream without credit, and is what others give memory up for.
  int64_t ReserveCredit(MemoryBudget::Reservation* reservation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *reservation = MemoryBudget::Reservation();
    if (options_.budget == nullptr) return options_.link_limit_bytes;
    int64_t credit_bytes = LinkCredit(options_.link_limit_bytes, options_.budget->limit_bytes(),
                                      static_cast<int64_t>(peers_.size()));
    for (;; credit_bytes = std::max(credit_bytes / 2, kLeastLinkCredit)) {
      const bool is_least = credit_bytes == kLeastLinkCredit;
      constexpr std::string_view kWhat = "messages of a peer";
      auto reserved = is_least ? options_.budget->Reserve(credit_bytes, kWhat)
                               : options_.budget->TryReserve(credit_bytes, kWhat);
      if (reserved.ok()) *reservation = *std::move(reserved);
      if (reserved.ok() || is_least) return credit_bytes;
    }
  }

  // Whether a member of the mesh is about to share its memory: a step that begins now would not
  // use it on this side, and the other side may.
  bool IsSharing(std::string_view mesh_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const MeshMembers* const mesh = view_.Find(mesh_id);
    if (mesh == nullptr) return false;
    return std::any_of(mesh->devices.begin(), mesh->devices.end(), [&](const MeshDevice& device) {
      const auto peer = peers_.find(device.identity);
      return peer != peers_.end() && IsSharing(peer->second);
    });
  }
  bool IsSharing(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peer.up && peer.shm_link != 0 && peer.channel == nullptr &&
           options_.clock->Now() < peer.shm_deadline;
  }
  void ShareMemory();
  void OnShared(const std::string& identity, uint64_t link, std::shared_ptr<ShmChannel> channel);
  void OnSharingEnded(const std::string& identity, uint64_t link, bool was_connected,
                      const absl::Status& why);
  // Whether steps may count on the peer.
  bool IsReached(const Peer& peer, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peer.up && (peer.channel != nullptr ||
                       (options_.transport != Transport::kShm && peer.shm_deadline <= now));
  }

  // Dials, pings, tells of changes; on the clock's thread.
  void Tick();
  void Dial(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<ExchangeStream::Handler> Accept(std::shared_ptr<ExchangeStream> stream);
  void Grant(const std::string& worker, const Tag& tag, int64_t size_bytes);
  std::shared_ptr<PeerLink> LinkTo(const std::string& worker) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto peer = peers_.find(worker);
    return peer == peers_.end() || !peer->second.up ? nullptr : peer->second.link;
  }
  // See LinkProber::Options::open.
  absl::StatusOr<LinkProber::End> OpenProbe(const LinkProber::Connection& connection, int64_t op,
                                            bool leads, absl::Time deadline);
  static LinkProber::Connection ConnectionOf(const Peer& peer) {
    return {.peer = peer.device.identity,
            .peer_incarnation = peer.device.incarnation,
            .number = peer.connection};
  }
  void EndProbes(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The peer's stream is over: its steps fail.
  void Lose(Peer& peer, std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds out on another thread why a peer that was dialled is not reached, and logs it; one peer
  // at a time.
  void Diagnose(const Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a step that is over or is not of this epoch: nothing waits for it.
  bool IsOver(int64_t sequence, int64_t epoch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts a frame that is dropped.
  void CountDropped(int64_t sequence, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto step = steps_.find(sequence);
    const bool is_stale = step != steps_.end() && step->second.epoch != epoch;
    ++(is_stale ? counters_.stale_frames : counters_.dropped_frames);
  }
  // Counts what ends its stream.
  void CountRefused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::IsDataLoss(why)) {
      ++counters_.corrupt_frames;
    } else if (absl::IsFailedPrecondition(why) || absl::IsUnavailable(why) ||
               absl::IsPermissionDenied(why)) {
      ++counters_.refused_hellos;
    } else {
      ++counters_.malformed_frames;
    }
  }
  // Where a message from a peer goes; null if nobody waits for it. Errors of Hold.
  absl::StatusOr<std::shared_ptr<Mailbox>> MailboxFor(const Peer& sender, const Tag& tag,
                                                      int64_t epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Expect(int64_t sequence, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a step that the mailbox expects.
  void Register(int64_t sequence, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // OK if a step that is not expected yet can be held.
  absl::Status Hold(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has Tick called soon.
  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Once closed, the alarm may be gone.
    if (!closed_) alarm_->SetNoLaterThan(options_.clock->Now());
  }

  // PeerLink::Owner.
  absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link, const rpc::FrameHello& hello) override;
  void OnUp(const std::shared_ptr<PeerLink>& link) override;
  absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                      const std::shared_ptr<const void>& charge) override;
  void OnExhausted(PeerLink& link) override;
  void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) override;
  void OnRefused(const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    CountRefused(why);
  }
  void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
              const absl::Status& status) override;

  const Options options_;

  std::atomic<int64_t> awaited_ = 0;  // messages, by all mailboxes
  PeerLink::CreditState credit_state_;
  Mailbox mailbox_;
  std::atomic<int64_t> streamed_bytes_ = 0;
  std::atomic<int64_t> shared_bytes_ = 0;
  std::atomic<int64_t> received_bytes_ = 0;  // through shared memory, straight to a receiver
  std::unique_ptr<ShmPeers> shm_;            // null if nothing is shared

  // Taken before the mutexes of links, streams and mailbox.
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  MembershipView view_ ABSL_GUARDED_BY(mutex_);
  // By mesh: the epoch in which its workers last changed.
  std::map<std::string, int64_t> changed_epoch_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);  // by identity
  // Accepted, hello not heard yet.
  std::set<std::shared_ptr<PeerLink>> greeting_ ABSL_GUARDED_BY(mutex_);
  int64_t live_links_ ABSL_GUARDED_BY(mutex_) = 0;         // OnDown not yet called
  std::map<int64_t, Step> steps_ ABSL_GUARDED_BY(mutex_);  // expected and open
  // Not expected, but begun by peers or failed before: who is to blame, if they failed.
  std::map<int64_t, std::string> held_steps_ ABSL_GUARDED_BY(mutex_);
  int64_t last_expected_ ABSL_GUARDED_BY(mutex_) = -1;
  uint64_t last_shm_link_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_connection_ ABSL_GUARDED_BY(mutex_) = 0;
  bool diagnosing_ ABSL_GUARDED_BY(mutex_) = false;
  // What the log said last of a peer that is not reached.
  struct Diagnosis {
    std::string found;
    absl::Time logged = absl::InfinitePast();
  };
  std::map<std::string, Diagnosis> told_diagnoses_ ABSL_GUARDED_BY(mutex_);
  Counters counters_ ABSL_GUARDED_BY(mutex_);

  // For the clock's thread.
  std::optional<std::pair<int64_t, std::vector<std::string>>> told_;

  std::unique_ptr<ExchangeService> service_;
  CompletionPoller poller_;           // of the service's queue, on which this worker dials as well
  std::optional<rpc::Alarm> alarm_;   // starts when everything above is there
  std::optional<LinkProber> prober_;  // the same; none if links are not measured
  ThreadPool diagnoses_{1};           // the same
};

// --- A step's link.

StepLinkImpl::~StepLinkImpl() {
  owner_->CloseStep(sequence_);
  for (const Way& way : ways_) {
    if (way.channel != nullptr) way.channel->Reap();
  }
}

absl::Status StepLinkImpl::Begin(int64_t op, std::string signature) {
  if (signature.empty() || static_cast<int64_t>(signature.size()) > rpc::kMaxSignatureBytes) {
    return absl::InvalidArgumentError(StrCat("a signature of ", signature.size(), " bytes (op ", op,
                                             "); it has 1 to ", rpc::kMaxSignatureBytes));
  }
  SHARDMESH_RETURN_IF_ERROR(mailbox_.Begin(sequence_, op, rank_, signature));
  absl::MutexLock lock(&mutex_);
  signature_hash_.store(HashOf(signature), std::memory_order_relaxed);
  signature_ = std::move(signature);
  op_.store(op, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status StepLinkImpl::Send(DeviceId peer, const Tag& tag, OwnedBytes message) {
  if (message.bytes.empty() || peer == rank_ || peer < 0 ||
      peer >= static_cast<DeviceId>(ways_.size())) {
    return absl::InvalidArgumentError(StrCat("rank ", rank_, " cannot send ", message.bytes.size(),
                                             " bytes to rank ", peer, " (", tag.ToString(), ")"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckFailure());
  const auto size_bytes = static_cast<int64_t>(message.bytes.size());
  const auto index = static_cast<size_t>(peer);
  const Way& way = ways_[index];
  Told& told = told_[index];
  std::string signature;
  uint64_t signature_hash = 0;
  if (tag.op() == op_.load(std::memory_order_acquire) &&
      told.op.load(std::memory_order_relaxed) != tag.op() &&
      told.op.exchange(tag.op(), std::memory_order_relaxed) != tag.op()) {
    absl::MutexLock lock(&mutex_);
    signature = signature_;
    signature_hash = signature_hash_.load(std::memory_order_relaxed);
  }
  bool is_shared = false;
  if (way.channel != nullptr) {
    if (!told.is_remembered.load(std::memory_order_relaxed)) {
      told.is_remembered.store(true, std::memory_order_relaxed);
      way.link->RememberStep(sequence_);
    }
    is_shared = way.channel->TrySend(tag, epoch_, signature, signature_hash, message);
  }
  if (!is_shared) {
    if (absl::Status sent =
            way.link->Send(FrameTagOf(tag), epoch_, std::move(message), std::move(signature));
        !sent.ok()) {
      return WithContext(sent, StrCat("rank ", peer, ", ", tag.ToString()));
    }
    // The frame before it may be written by now.
    if (way.link->is_behind()) owner_->poller().PollOnce();
  }
  sent_bytes_.fetch_add(size_bytes, std::memory_order_relaxed);
  owner_->CountSent(size_bytes, is_shared);
  return absl::OkStatus();
}

absl::StatusOr<OwnedBytes> StepLinkImpl::Receive(DeviceId peer, const Tag& tag,
                                                 int64_t message_bytes, absl::Time deadline) {
  if (peer >= 0 && peer < static_cast<DeviceId>(ways_.size())) {
    const Way& way = ways_[static_cast<size_t>(peer)];
    if (way.channel != nullptr) return ReceiveShared(way, peer, tag, message_bytes, deadline);
  }
  return mailbox_.Receive(peer, tag, message_bytes, deadline);
}

absl::StatusOr<OwnedBytes> StepLinkImpl::ReceiveShared(const Way& way, DeviceId peer,
                                                       const Tag& tag, int64_t message_bytes,
                                                       absl::Time deadline) {
  const uint64_t own_hash = signature_hash_.load(std::memory_order_relaxed);
  // In this order: whatever comes after the first line is a change.
  uint32_t seen_changes = mailbox_.changes();
  bool has_looked = seen_changes == checked_changes_.load(std::memory_order_relaxed) &&
                    mailbox_.held_pieces() == 0;
  ShmChannel::Arrived arrived;
  absl::Time yielded_since = absl::InfiniteFuture();
  for (int looks = 0;; ++looks) {
    if (const uint32_t changes = mailbox_.changes(); !has_looked || changes != seen_changes) {
      SHARDMESH_ASSIGN_OR_RETURN(std::optional<OwnedBytes> piece,
                                 mailbox_.TryReceive(peer, tag, message_bytes));
      if (piece.has_value()) return *std::move(piece);
      has_looked = true;
      seen_changes = changes;
    }
    const absl::StatusOr<bool> came = way.channel->TryReceive(own_hash, &arrived);
    if (!came.ok()) {
      owner_->Refuse(way.identity, way.channel.get(), came.status());
      // Which fails the step.
      return mailbox_.Receive(peer, tag, message_bytes, deadline);
    }
    if (*came) {
      const bool is_awaited = arrived.step == sequence_ && arrived.epoch == epoch_ &&
                              arrived.op == tag.op() && arrived.round == tag.round() &&
                              (arrived.signature_hash == 0 || arrived.signature_hash == own_hash) &&
                              static_cast<int64_t>(arrived.message.bytes.size()) == message_bytes;
      if (is_awaited) {
        owner_->CountReceived(message_bytes);
        return std::move(arrived.message);
      }
      if (arrived.signature_hash != 0 && arrived.signature.empty()) {
        absl::MutexLock lock(&mutex_);
        arrived.signature = signature_;
      }
      if (absl::Status taken =
              owner_->TakeShared(way.identity, way.channel.get(), std::move(arrived));
          !taken.ok()) {
        owner_->Refuse(way.identity, way.channel.get(), taken);
      }
      looks = 0;
      if (absl::Now() < deadline) continue;
    }
    if (looks < spins_) {
      Pause();
      continue;
    }
    const absl::Time now = absl::Now();
    if (now >= deadline || way.channel->closed()) {
      return mailbox_.Receive(peer, tag, message_bytes, deadline);
    }
    yielded_since = std::min(yielded_since, now);
    if (now - yielded_since < kYielding &&
        now >= no_yields_until_.load(std::memory_order_relaxed)) {
      sched_yield();
      if (const absl::Time back = absl::Now(); back - now > kLongYield) {
        no_yields_until_.store(back + kNoYields, std::memory_order_relaxed);
      }
    } else {
      // It may be among what shared memory had no room for.
      if (owner_->credit_state().exhausted_links.load(std::memory_order_seq_cst) > 0) {
        owner_->Demand(way.identity, tag, message_bytes);
      }
      mailbox_.Sleep([&](const std::atomic<uint32_t>& changes) {
        way.channel->Sleep(changes, seen_changes, std::min(kLongestSleep, deadline - now));
      });
    }
  }
}

absl::Status StepLinkImpl::Check() const {
  SHARDMESH_RETURN_IF_ERROR(CheckFailure());
  for (size_t rank = 0; rank < ways_.size(); ++rank) {
    const Way& way = ways_[rank];
    if (way.channel == nullptr || !way.channel->peer_closed()) continue;
    return WorkerLost(StrCat("rank ", rank, " (", way.identity,
                             ") took back the memory that it shared, step ", sequence_));
  }
  return absl::OkStatus();
}

absl::Status StepLinkImpl::CheckFailure() const {
  const uint32_t changes = mailbox_.changes();
  if (changes == checked_changes_.load(std::memory_order_relaxed)) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(mailbox_.FailureOf(sequence_));
  checked_changes_.store(changes, std::memory_order_relaxed);
  return absl::OkStatus();
}

// --- Membership.

void PeerLinksImpl::SetMembership(MembershipView view) {
  std::vector<std::pair<std::shared_ptr<PeerLink>, absl::Status>> ended;
  {
    absl::MutexLock lock(&mutex_);
    if (view.epoch < view_.epoch || closed_) return;
    // There may be thousands of meshes, hence no search through all of them for each.
    std::map<std::string_view, const MeshMembers*> meshes_before;
    for (const MeshMembers& mesh : view_.meshes) meshes_before.emplace(mesh.mesh_id, &mesh);
    std::map<std::string, MeshDevice> members;
    for (const MeshMembers& mesh : view.meshes) {
      const auto before = meshes_before.find(mesh.mesh_id);
      if (before == meshes_before.end() || !(*before->second == mesh)) {
        changed_epoch_[mesh.mesh_id] = view.epoch;
      }
      for (const MeshDevice& device : mesh.devices) {
        if (device.identity != options_.self.identity) members[device.identity] = device;
      }
    }
    for (auto it = peers_.begin(); it != peers_.end();) {
      const auto member = members.find(it->first);
      const bool stays =
          member != members.end() && member->second.incarnation == it->second.device.incarnation;
      if (stays) {
        it->second.device = member->second;
        ++it;
        continue;
      }
      const std::string reason =
          member == members.end()
              ? StrCat("it is no member of epoch ", view.epoch, " any more")
              : StrCat("it was started anew (incarnation ", member->second.incarnation, ")");
      Lose(it->second, reason);
      if (it->second.link != nullptr) {
        ended.emplace_back(it->second.link, WorkerLost(StrCat(it->first, " is gone: ", reason)));
      }
      it = peers_.erase(it);
    }
    for (auto& [identity, device] : members) {
      const auto [it, is_new] = peers_.try_emplace(identity, options_.redial);
      if (!is_new) continue;
      it->second.device = device;
      mailbox_.FailWorker(identity, "it is not connected yet");
    }
    view_ = std::move(view);
    Notify();
  }
  for (const auto& [link, status] : ended) link->Close(status);
}

void PeerLinksImpl::Tick() {
  std::vector<std::shared_ptr<PeerLink>> links;
  std::vector<std::pair<std::string, std::shared_ptr<ShmChannel>>> channels;
  std::pair<int64_t, std::vector<std::string>> present;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    const absl::Time now = options_.clock->Now();
    absl::Time next = now + options_.ping_interval / 2;
    present.first = view_.epoch;
    for (auto& [identity, peer] : peers_) {
      if (!IsReached(peer, now)) present.second.push_back(identity);
      if (peer.up && peer.channel == nullptr && now < peer.shm_deadline) {
        next = std::min(next, peer.shm_deadline);
      }
      if (peer.channel != nullptr) channels.emplace_back(identity, peer.channel);
      if (peer.link == nullptr && Dials(identity)) {
        if (peer.dial_time <= now) {
          Dial(peer);
        } else {
          next = std::min(next, peer.dial_time);
        }
      }
      if (peer.link != nullptr) links.push_back(peer.link);
    }
    links.insert(links.end(), greeting_.begin(), greeting_.end());
    if (!peers_.empty() || !links.empty()) alarm_->SetNoLaterThan(next);
  }
  for (const auto& link : links) link->Tick(options_.ping_interval, options_.silence_limit);
  // What no receiver asks for, of steps that failed or are yet to begin.
  for (const auto& [identity, channel] : channels) {
    channel->Reap();
    ShmChannel::Arrived arrived;
    absl::StatusOr<bool> came = true;
    for (size_t notes = 0;
         notes < kRingSlots && (came = channel->TryReceive(0, &arrived)).ok() && *came; ++notes) {
      const absl::Status taken = TakeShared(identity, channel.get(), std::move(arrived));
      if (!taken.ok()) came = taken;
      if (!came.ok()) break;
    }
    if (!came.ok()) Refuse(identity, channel.get(), came.status());
  }
  if (present.first > 0 && present != told_) {
    told_ = present;
    if (options_.peers_changed) options_.peers_changed(present.first, present.second);
  }
}

void PeerLinksImpl::Dial(Peer& peer) {
  const MeshDevice& device = peer.device;
  const auto give_up = [&](const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    rpc::LogWarning("cannot dial peer", {{"peer", device.identity}, {"error", status}});
    peer.dial_time = options_.clock->Now() + peer.backoff.NextDelay(status);
  };
  if (device.endpoints.empty()) {
    give_up(absl::FailedPreconditionError("the membership has no endpoint of it"));
    return;
  }
  const std::string& endpoint = device.endpoints[peer.next_endpoint++ % device.endpoints.size()];
  auto channel = rpc::CreateChannel(
      endpoint, {.credentials = options_.credentials,
                 .peer = rpc::ExpectedPeer::Worker(device.identity),
                 .max_message_bytes = rpc::kMaxFrameBytes,
                 // A connection of its own: bulk data, and no backoff inherited from another dial.
                 .own_connection = true});
  if (!channel.ok()) {
    give_up(channel.status());
    return;
  }
  MemoryBudget::Reservation credit;
  peer.link = std::make_shared<PeerLink>(this, options_.clock, HelloTo(device, &credit));
  peer.link->KeepReservation(std::move(credit));
  ++live_links_;
  const std::shared_ptr<ExchangeStream> stream = DialExchange(*channel, service_->queue());
  peer.link->Attach(stream);
  stream->Open(peer.link);
}

void PeerLinksImpl::Diagnose(const Peer& peer) {
  const std::vector<std::string>& endpoints = peer.device.endpoints;
  if (closed_ || endpoints.empty() || std::exchange(diagnosing_, true)) return;
  const std::string endpoint = endpoints[(peer.next_endpoint - 1) % endpoints.size()];
  diagnoses_.Push([this, endpoint, identity = peer.device.identity] {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
    }
    const std::string found = rpc::DiagnoseConnection(endpoint, options_.credentials,
                                                      rpc::ExpectedPeer::Worker(identity));
    absl::MutexLock lock(&mutex_);
    diagnosing_ = false;
    const absl::Time now = options_.clock->Now();
    Diagnosis& told = told_diagnoses_[identity];
    if (found.empty() || (told.found == found && now - told.logged < kLogInterval)) return;
    told = {found, now};
    rpc::LogWarning("cannot reach peer", {{"identity", options_.self.identity},
                                          {"peer", identity},
                                          {"address", endpoint},
                                          {"error", found}});
  });
}

std::shared_ptr<ExchangeStream::Handler> PeerLinksImpl::Accept(
    std::shared_ptr<ExchangeStream> stream) {
  auto link = std::make_shared<PeerLink>(this, options_.clock, std::nullopt);
  link->Attach(std::move(stream));
  absl::MutexLock lock(&mutex_);
  ++live_links_;
  greeting_.insert(link);
  Notify();
  return link;
}

// --- Steps.

absl::StatusOr<std::unique_ptr<StepLink>> PeerLinksImpl::OpenLink(std::string_view mesh_id,
                                                                  int64_t sequence, int64_t epoch,
                                                                  absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto can_decide = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (view_.epoch >= epoch && !IsSharing(mesh_id)) || closed_ ||
           !mailbox_.FailureOf(sequence).ok();
  };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&can_decide), deadline) && view_.epoch < epoch) {
    return WithReason(absl::DeadlineExceededError(StrCat(
                          "no membership of epoch ", epoch,
                          " came from the coordinator; the last one is of epoch ", view_.epoch)),
                      Reason::kDeadline);
  }
  if (closed_) return WorkerLost(StrCat(options_.self.identity, " is shutting down"));
  // One that was aborted before it began is opened all the same, where it can be: it fails as one
  // that was aborted later.
  if (view_.epoch < epoch) return mailbox_.FailureOf(sequence);
  const MeshMembers* mesh = view_.Find(mesh_id);
  const std::optional<DeviceId> rank =
      mesh == nullptr ? std::nullopt : mesh->RankOf(options_.self.identity);
  if (!rank.has_value()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(options_.self.identity, " serves no rank of mesh \"",
                                             mesh_id, "\" in epoch ", view_.epoch)),
        Reason::kNotFound);
  }
  if (const int64_t changed = changed_epoch_[std::string(mesh_id)]; changed > epoch) {
    return WithReason(
        absl::AbortedError(StrCat("the workers of mesh \"", mesh_id, "\" changed in epoch ",
                                  changed, ", the step is of epoch ", epoch, "; run it again")),
        Reason::kStaleEpoch);
  }
  if (!mesh->complete()) {
    return WithReason(absl::FailedPreconditionError(
                          StrCat("mesh \"", mesh_id, "\" has workers for ", mesh->devices.size(),
                                 " of its ", mesh->mesh.size(), " ranks")),
                      Reason::kMeshIncomplete);
  }
  const auto expected = steps_.find(sequence);
  std::string& blamed = expected == steps_.end() ? held_steps_[sequence] : expected->second.blamed;
  std::vector<std::string> members;
  std::vector<StepLinkImpl::Way> ways;
  for (const MeshDevice& device : mesh->devices) {
    members.push_back(device.identity);
    StepLinkImpl::Way& way = ways.emplace_back();
    way.identity = device.identity;
    const auto peer = peers_.find(device.identity);
    if (peer == peers_.end()) continue;
    way.link = peer->second.link;
    way.channel = peer->second.channel;
    if (!peer->second.up && blamed.empty()) blamed = peer->first;
    if (peer->second.up && way.channel == nullptr && options_.transport == Transport::kShm) {
      blamed = device.identity;
      return WorkerLost(StrCat("rank ", device.rank, " (", device.identity,
                               ") shares no memory with ", options_.self.identity,
                               ", which is to use nothing else (--transport shm)"));
    }
  }
  SHARDMESH_RETURN_IF_ERROR(mailbox_.OpenStep(sequence, members));
  if (expected == steps_.end()) Register(sequence, epoch);
  steps_[sequence].members = std::move(members);
  return std::make_unique<StepLinkImpl>(this, &mailbox_, sequence, epoch, *rank, std::move(ways));
}

absl::Status PeerLinksImpl::Expect(int64_t sequence, int64_t epoch) {
  SHARDMESH_RETURN_IF_ERROR(mailbox_.ExpectStep(sequence));
  Register(sequence, epoch);
  return absl::OkStatus();
}

void PeerLinksImpl::Register(int64_t sequence, int64_t epoch) {
  last_expected_ = sequence;
  Step& step = steps_[sequence];
  step.epoch = epoch;
  if (const auto held = held_steps_.find(sequence); held != held_steps_.end()) {
    step.blamed = std::move(held->second);
  }
  held_steps_.erase(held_steps_.begin(), held_steps_.upper_bound(sequence));
}

absl::StatusOr<LinkProber::End> PeerLinksImpl::OpenProbe(const LinkProber::Connection& connection,
                                                         int64_t op, bool leads,
                                                         absl::Time deadline) {
  // Both ends open one before either sends anything of it, but for the call.
  auto mailbox = std::make_shared<Mailbox>(MailboxOptions());
  SHARDMESH_RETURN_IF_ERROR(
      mailbox->OpenStep(kProbeStep, {options_.self.identity, connection.peer}));
  std::vector<StepLinkImpl::Way> ways(2);
  ways[0].identity = options_.self.identity;
  {
    absl::MutexLock lock(&mutex_);
    const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> Peer* {
      const auto found = peers_.find(connection.peer);
      const bool is_up = !closed_ && found != peers_.end() && found->second.up &&
                         found->second.connection == connection.number;
      return is_up ? &found->second : nullptr;
    };
    const auto is_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const Peer* const peer = find();
      return peer == nullptr || !IsSharing(*peer);
    };
    mutex_.AwaitWithDeadline(absl::Condition(&is_settled), deadline);
    Peer* const peer = find();
    if (peer == nullptr || !IsReached(*peer, options_.clock->Now())) {
      return WorkerLost(StrCat(connection.peer, " is not reached any more"));
    }
    peer->probe = mailbox;
    ways[1] = {.identity = connection.peer, .link = peer->link, .channel = peer->channel};
  }
  PeerLink& link = *ways[1].link;
  link.DropStep(kProbeStep);  // what is left of an earlier one
  if (leads) {
    static constexpr char kCall[1] = {};
    SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(kProbeStep, op, kProbeCallRound));
    SHARDMESH_RETURN_IF_ERROR(link.Send(FrameTagOf(tag), /*epoch=*/0, {kCall, nullptr}));
  }
  const bool shares_memory = ways[1].channel != nullptr;
  auto step = std::make_unique<StepLinkImpl>(this, mailbox.get(), kProbeStep, /*epoch=*/0,
                                             /*rank=*/0, std::move(ways));
  return LinkProber::End{.owner = std::move(mailbox),
                         .link = std::move(step),
                         .peer = 1,
                         .shares_memory = shares_memory};
}

void PeerLinksImpl::EndProbes(Peer& peer, std::string_view reason) {
  if (!prober_.has_value()) return;
  prober_->Disconnected(peer.device.identity);
  if (const auto probe = peer.probe.lock(); probe != nullptr) {
    probe->FailWorker(peer.device.identity, reason);
  }
}

void PeerLinksImpl::AbortStep(int64_t sequence, const absl::Status& status,
                              std::string_view blamed) {
  std::vector<std::shared_ptr<PeerLink>> told;
  std::vector<std::shared_ptr<PeerLink>> others;
  {
    absl::MutexLock lock(&mutex_);
    const auto step = steps_.find(sequence);
    // Then there is nobody left to tell, but what this worker still had to send is to go.
    const bool is_over = step == steps_.end()
                             ? sequence <= last_expected_ || !mailbox_.FailureOf(sequence).ok()
                             : step->second.aborted;
    if (step != steps_.end() && !is_over) {
      step->second.aborted = true;
      if (step->second.blamed.empty()) step->second.blamed = std::string(blamed);
    }
    for (const auto& [identity, peer] : peers_) {
      if (!peer.up) continue;
      const bool takes_part = step == steps_.end() || step->second.members.empty() ||
                              std::find(step->second.members.begin(), step->second.members.end(),
                                        identity) != step->second.members.end();
      (takes_part && !is_over ? told : others).push_back(peer.link);
    }
    if (!is_over) mailbox_.Abort(sequence, status);
  }
  for (const auto& link : told) {
    link->SendAbort(sequence, {.status = status, .blamed_identity = std::string(blamed)});
  }
  for (const auto& link : others) link->DropStep(sequence);
}

void PeerLinksImpl::Grant(const std::string& worker, const Tag& tag, int64_t size_bytes) {
  const std::shared_ptr<PeerLink> link = LinkTo(worker);
  if (link == nullptr) return;
  // A sender that has used up its credit has the whole limit under way: lots of a quarter of it
  // come back before that.
  link->Grant(FrameTagOf(tag), size_bytes, std::max<int64_t>(1, options_.tag_limit_bytes / 4));
}

void PeerLinksImpl::Demand(const std::string& worker, const Tag& tag, int64_t left_bytes) {
  const std::shared_ptr<PeerLink> link = LinkTo(worker);
  if (link != nullptr) link->Demand(FrameTagOf(tag), left_bytes);
}

void PeerLinksImpl::OnExhausted(PeerLink& link) {
  const std::string worker = link.peer();
  std::shared_ptr<Mailbox> probe;
  {
    absl::MutexLock lock(&mutex_);
    const auto peer = peers_.find(worker);
    if (peer == peers_.end() || peer->second.link.get() != &link) return;
    probe = peer->second.probe.lock();
  }
  for (const Mailbox* mailbox :
       {static_cast<const Mailbox*>(&mailbox_), static_cast<const Mailbox*>(probe.get())}) {
    if (mailbox == nullptr) continue;
    for (const Mailbox::Wait& wait : mailbox->WaitsFor(worker)) {
      link.Demand(FrameTagOf(wait.tag), wait.left_bytes);
    }
  }
  // Receivers of shared memory, some of whose messages come over the stream, look for themselves.
  mailbox_.WakeSleepers();
  if (probe != nullptr) probe->WakeSleepers();
}

bool PeerLinksImpl::IsOver(int64_t sequence, int64_t epoch) const {
  if (sequence > last_expected_) return false;
  const auto step = steps_.find(sequence);
  return step == steps_.end() || step->second.epoch != epoch;
}

absl::StatusOr<std::shared_ptr<Mailbox>> PeerLinksImpl::MailboxFor(const Peer& sender,
                                                                   const Tag& tag, int64_t epoch) {
  if (tag.step() == kProbeStep) return sender.probe.lock();
  if (IsOver(tag.step(), epoch)) return nullptr;
  SHARDMESH_RETURN_IF_ERROR(Hold(tag.step()));
  return std::shared_ptr<Mailbox>(std::shared_ptr<void>(), &mailbox_);  // this object owns it
}

absl::Status PeerLinksImpl::Hold(int64_t sequence) {
  if (sequence <= last_expected_ || held_steps_.contains(sequence)) return absl::OkStatus();
  if (held_steps_.size() >= kMaxHeldSteps) {
    return WithReason(absl::ResourceExhaustedError(
                          StrCat("step ", sequence, " is one too many: ", held_steps_.size(),
                                 " steps wait for this worker to begin them")),
                      Reason::kLimitExceeded);
  }
  held_steps_.try_emplace(sequence);
  return absl::OkStatus();
}

// --- What streams bring.

absl::StatusOr<rpc::FrameHello> PeerLinksImpl::CheckHello(PeerLink& link,
                                                          const rpc::FrameHello& hello) {
  const std::string& own = options_.self.identity;
  SHARDMESH_RETURN_IF_ERROR(link.CheckPeer(options_.credentials, hello.identity));
  absl::MutexLock lock(&mutex_);
  if (closed_) return WorkerLost(StrCat(own, " is shutting down"));
  if (hello.peer_identity != own) {
    return WrongHello(StrCat("the hello is for ", hello.peer_identity, "; this is ", own),
                      Reason::kEndpointUnverified);
  }
  if (hello.peer_incarnation != 0 && hello.peer_incarnation != options_.self.incarnation) {
    return WrongHello(StrCat("the hello is for incarnation ", hello.peer_incarnation, " of ", own,
                             "; this is ", options_.self.incarnation),
                      Reason::kEndpointUnverified);
  }
  if (!cluster_id_.empty() && hello.cluster_id != cluster_id_) {
    return WrongHello(StrCat(hello.identity, " is of cluster \"", hello.cluster_id, "\", ", own,
                             " of \"", cluster_id_, "\""),
                      Reason::kClusterMismatch);
  }
  if (link.dialled() ? hello.identity != link.peer() : !(hello.identity < own)) {
    return WrongHello(
        link.dialled()
            ? StrCat(hello.identity, " answered where ", link.peer(), " was dialled")
            : StrCat(hello.identity, " dialled ", own, "; the lower identity has to dial"),
        Reason::kEndpointUnverified);
  }
  const auto peer = peers_.find(hello.identity);
  if (peer == peers_.end() || peer->second.device.incarnation != hello.incarnation) {
    return WrongHello(StrCat(hello.identity, " (incarnation ", hello.incarnation,
                             ") is not a member of epoch ", view_.epoch, " as ", own, " knows it"),
                      Reason::kStaleEpoch);
  }
  ShmAddress& shm = peer->second.shm_address;
  shm = {};
  if (shm_ != nullptr && !hello.boot_id.empty() && hello.boot_id == options_.self.boot_id &&
      hello.shm_token.size() == shm.token.size()) {
    shm.socket = hello.shm_socket;
    std::memcpy(shm.token.data(), hello.shm_token.data(), shm.token.size());
  }
  // Of a link that dialled nothing is answered, and its first hello reserved what it gave.
  if (link.dialled()) return rpc::FrameHello();
  MemoryBudget::Reservation credit;
  rpc::FrameHello answer = HelloTo(peer->second.device, &credit);
  link.KeepReservation(std::move(credit));
  return answer;
}

void PeerLinksImpl::OnUp(const std::shared_ptr<PeerLink>& link) {
  std::shared_ptr<PeerLink> replaced;
  std::set<int64_t> broken_steps;
  bool is_member = false;
  {
    absl::MutexLock lock(&mutex_);
    greeting_.erase(link);
    const auto found = peers_.find(link->peer());
    // The membership may have changed since the hello was judged.
    is_member =
        !closed_ && found != peers_.end() && (!link->dialled() || found->second.link == link);
    if (is_member) {
      Peer& peer = found->second;
      if (peer.link != link && peer.link != nullptr) {
        Lose(peer, "it opened another stream");
        replaced = std::move(peer.link);
      }
      peer.link = link;
      peer.up = true;
      peer.connection = ++last_connection_;
      if (prober_.has_value() && link->dialled()) prober_->Connected(ConnectionOf(peer));
      if (!peer.shm_address.empty()) {
        peer.shm_link = ++last_shm_link_;
        peer.shm_deadline = options_.clock->Now() + kSharingLimit;
        shm_->Expect(found->first, peer.shm_link, peer.shm_address, link->dialled());
      }
      peer.backoff.Reset();
      broken_steps.swap(peer.broken_steps);
      mailbox_.RestoreWorker(found->first);
      Notify();
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

absl::Status PeerLinksImpl::OnData(PeerLink& link, const rpc::Frame& frame,
                                   const std::shared_ptr<const void>& charge) {
  const rpc::FrameHeader& header = frame.header;
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag,
                             Tag::Create(header.tag.sequence, header.tag.op, header.tag.round));
  const std::string peer = link.peer();
  std::shared_ptr<Mailbox> mailbox;
  {
    absl::MutexLock lock(&mutex_);
    const auto sender = peers_.find(peer);
    const bool is_current =
        sender != peers_.end() && sender->second.up && sender->second.link.get() == &link;
    if (is_current && tag.step() == kProbeStep && tag.round() == kProbeCallRound &&
        prober_.has_value()) {
      prober_->Called(ConnectionOf(sender->second), tag.op());
      return absl::OkStatus();
    }
    if (is_current) {
      SHARDMESH_ASSIGN_OR_RETURN(mailbox, MailboxFor(sender->second, tag, header.epoch));
    }
    if (mailbox == nullptr) {
      CountDropped(tag.step(), header.epoch);
      return absl::OkStatus();
    }
    counters_.received_bytes += frame.payload_bytes();
  }
  int64_t offset_bytes = header.offset_bytes;
  std::string signature = header.signature;
  for (const grpc::Slice& slice : frame.payload) {
    auto owner = std::make_shared<const Received>(Received{slice, charge});
    const absl::Span<const char> bytes(reinterpret_cast<const char*>(owner->slice.begin()),
                                       owner->slice.size());
    SHARDMESH_RETURN_IF_ERROR(mailbox->Deliver(peer, tag,
                                               {.offset_bytes = offset_bytes,
                                                .message_bytes = header.message_bytes,
                                                .content = {bytes, std::move(owner)},
                                                .signature = std::exchange(signature, {})}));
    offset_bytes += static_cast<int64_t>(bytes.size());
  }
  return absl::OkStatus();
}

// --- What shared memory brings.

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
}

void PeerLinksImpl::OnShared(const std::string& identity, uint64_t link,
                             std::shared_ptr<ShmChannel> channel) {
  {
    absl::MutexLock lock(&mutex_);
    const auto peer = peers_.find(identity);
    if (!closed_ && peer != peers_.end() && peer->second.up && peer->second.shm_link == link) {
      peer->second.channel = std::move(channel);
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
    absl::MutexLock lock(&mutex_);
    const auto peer = peers_.find(identity);
    if (closed_ || peer == peers_.end() || peer->second.shm_link != link) return;
    peer->second.shm_link = 0;
    peer->second.shm_deadline = absl::InfinitePast();
    Notify();
    // What was on its way is lost, and so is the stream's promise. And where nothing else is to be
    // used, it is tried again with the next stream.
    if (was_connected || options_.transport == Transport::kShm) ended = peer->second.link;
  }
  rpc::LogWarning(was_connected ? "shared memory lost" : "no memory shared",
                  {{"identity", options_.self.identity}, {"peer", identity}, {"error", why}});
  if (ended != nullptr)
    ended->Close(WorkerLost(StrCat("it shares no memory: ", ToStd(why.message()))));
}

absl::Status PeerLinksImpl::TakeShared(const std::string& identity, const ShmChannel* channel,
                                       ShmChannel::Arrived arrived) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tag tag, Tag::Create(arrived.step, arrived.op, arrived.round));
  const auto size_bytes = static_cast<int64_t>(arrived.message.bytes.size());
  std::shared_ptr<Mailbox> mailbox;
  {
    absl::MutexLock lock(&mutex_);
    const auto sender = peers_.find(identity);
    if (sender != peers_.end() && sender->second.channel.get() == channel) {
      SHARDMESH_ASSIGN_OR_RETURN(mailbox, MailboxFor(sender->second, tag, arrived.epoch));
    }
    if (mailbox == nullptr) {
      CountDropped(tag.step(), arrived.epoch);
      return absl::OkStatus();
    }
    counters_.received_bytes += size_bytes;
  }
  return mailbox->Deliver(identity, tag,
                          {.message_bytes = size_bytes,
                           .content = std::move(arrived.message),
                           .signature = std::move(arrived.signature),
                           .is_lent = true});
}

void PeerLinksImpl::Refuse(const std::string& identity, const ShmChannel* channel,
                           const absl::Status& why) {
  std::shared_ptr<PeerLink> link;
  {
    absl::MutexLock lock(&mutex_);
    const auto peer = peers_.find(identity);
    if (peer == peers_.end() || peer->second.channel.get() != channel) return;
    link = peer->second.link;
    CountRefused(why);
  }
  rpc::LogWarning("shared memory refused",
                  {{"identity", options_.self.identity}, {"peer", identity}, {"error", why}});
  if (link != nullptr) link->Close(why);
}

// --- The ends of steps and streams.

void PeerLinksImpl::OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) {
  std::vector<std::shared_ptr<PeerLink>> links;
  {
    absl::MutexLock lock(&mutex_);
    const auto step = steps_.find(sequence);
    if (step == steps_.end() && (sequence <= last_expected_ || !Hold(sequence).ok())) {
      ++counters_.dropped_frames;  // but what a finished step had yet to send goes
    } else {
      // Who aborts a step tells all its members, so this worker need not.
      if (step != steps_.end()) step->second.aborted = true;
      std::string& blamed = step == steps_.end() ? held_steps_[sequence] : step->second.blamed;
      if (blamed.empty()) {
        blamed = abort.blamed_identity.empty() ? link.peer() : abort.blamed_identity;
      }
      mailbox_.Abort(sequence, abort.status);
    }
    for (const auto& [identity, peer] : peers_) {
      if (peer.up) links.push_back(peer.link);
    }
  }
  for (const auto& each : links) each->DropStep(sequence);
}

void PeerLinksImpl::Lose(Peer& peer, std::string_view reason) {
  const std::string& identity = peer.device.identity;
  if (peer.up) {
    ++counters_.broken_streams;
    for (const int64_t sequence : peer.link->recent_steps()) {
      if (sequence != kProbeStep) peer.broken_steps.insert(sequence);
    }
  }
  EndProbes(peer, reason);
  peer.up = false;
  if (std::exchange(peer.shm_link, 0) != 0) shm_->Forget(identity);
  if (peer.channel != nullptr) std::exchange(peer.channel, nullptr)->Close();
  mailbox_.FailWorker(identity, reason);
  for (auto& [sequence, step] : steps_) {
    if (step.blamed.empty() &&
        std::find(step.members.begin(), step.members.end(), identity) != step.members.end()) {
      step.blamed = identity;
    }
  }
}

void PeerLinksImpl::OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
                           const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    greeting_.erase(link);
    const auto found = peers_.find(link->peer());
    if (found != peers_.end() && found->second.link == link) {
      Peer& peer = found->second;
      if (!closed_) {
        Lose(peer,
             StrCat(was_up ? "its stream to " : "there is no stream to ", options_.self.identity,
                    was_up ? " broke: " : ": ", ToStd(status.message())));
      }
      peer.link = nullptr;
      peer.up = false;  // also when this worker is closing
      if (link->dialled() && !was_up && absl::IsUnavailable(status) &&
          ReasonOf(status) == Reason::kUnspecified) {
        Diagnose(peer);
      }
      if (Dials(found->first)) {
        peer.dial_time = options_.clock->Now() + peer.backoff.NextDelay(status);
      }
    }
    if (was_up && !closed_) {
      rpc::LogWarning(
          "peer lost",
          {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
    } else if (!closed_) {
      rpc::LogInfo(
          link->dialled() ? "peer not reached" : "stream refused",
          {{"identity", options_.self.identity}, {"peer", link->peer()}, {"error", status}});
    }
    Notify();
    --live_links_;
  }
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
