// PeerLinks: opens, closes and aborts steps, and constructs the parts of PeerLinks.
#include "worker/exchange/peer_links.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/exchange/exchange_state.h"
#include "worker/exchange/link_probe.h"
#include "worker/exchange/message_intake.h"
#include "worker/exchange/peer_link.h"
#include "worker/exchange/peer_streams.h"
#include "worker/exchange/peer_table.h"
#include "worker/exchange/step_link.h"
#include "worker/exchange/step_table.h"

namespace shardmesh::worker {
namespace {

// Locks: state_.mutex guards the tables, and is acquired before every other mutex. Calls to a
// PeerLink about the abort or the end of a step are made without holding state_.mutex.
class PeerLinksImpl final : public PeerLinks {
 public:
  explicit PeerLinksImpl(Options options)
      : options_(std::move(options)),
        intake_(
            options_, &state_,
            {.poll = [this](absl::FunctionRef<bool()> is_done) { streams_.poller().Poll(is_done); },
             .probe_called = [this](const Peer& peer,
                                    int64_t op) { return streams_.CallProber(peer, op); }}),
        state_(options_),
        streams_(
            options_, &state_, &intake_,
            [this](const LinkProber::Connection& connection, int64_t op, bool leads,
                   absl::Time deadline) { return OpenProbe(connection, op, leads, deadline); }) {}

  // Methods for the server.
  void Customize(grpc::ServerBuilder& builder) override { streams_.Customize(builder); }
  grpc::Service* service() override { return streams_.service().service(); }
  void Start() override { streams_.service().Start(); }
  void Close() override { streams_.Close(); }

  // Membership.
  void SetClusterId(std::string cluster_id) override {
    absl::MutexLock lock(&state_.mutex);
    state_.peers.SetClusterId(std::move(cluster_id));
  }
  void SetMembership(MembershipView view) override { streams_.SetMembership(std::move(view)); }
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

  MeasuredLinks measured_links() const override { return streams_.measured_links(); }
  Counters counters() const override { return intake_.counters(); }

 private:
  StepLinkImpl::Parts PartsFor(Mailbox* mailbox) {
    return {.intake = &intake_,
            .poller = &streams_.poller(),
            .mailbox = mailbox,
            .close = [this](int64_t sequence) { CloseStep(sequence); }};
  }

  // See LinkProber::Options::open.
  absl::StatusOr<LinkProber::End> OpenProbe(const LinkProber::Connection& connection, int64_t op,
                                            bool leads, absl::Time deadline);

  // C++ destroys members from the last to the first. The destructor of streams_ waits for all code
  // that uses the other members.
  const Options options_;
  MessageIntake intake_;
  ExchangeState state_;
  PeerStreams streams_;
};

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
                      Reason::kDeadline, {{fact::kStep, sequence}});
  }
  if (state_.closed) {
    return WorkerLost(StrCat(options_.self.identity, " is shutting down"), options_.self.identity);
  }
  // If a step was aborted before it began, OpenLink still opens the step where possible. The step
  // then fails in the same way as a step that is aborted later.
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
    // If the step has ended or was aborted before, peers need no abort. This worker then only drops
    // the step's unsent messages.
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

absl::StatusOr<LinkProber::End> PeerLinksImpl::OpenProbe(const LinkProber::Connection& connection,
                                                         int64_t op, bool leads,
                                                         absl::Time deadline) {
  // Both ends open a mailbox before either end sends a probe message. The only exception is the
  // message that requests the probe.
  auto mailbox = std::make_shared<Mailbox>(intake_.MailboxOptions());
  SHARDMESH_RETURN_IF_ERROR(
      mailbox->OpenStep(kProbeStep, {options_.self.identity, connection.peer}));
  std::vector<PeerWay> ways(2);
  ways[0].identity = options_.self.identity;
  SHARDMESH_ASSIGN_OR_RETURN(ways[1], streams_.WayForProbe(connection, mailbox, deadline));
  PeerLink& link = *ways[1].link;
  link.DropStep(kProbeStep);  // drop unsent messages of an earlier probe
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
