// Sends steps, lists of live workers and orders to drop arrays to members, and cuts streams that
// miss a deadline.
#include "server/attach/worker_streams.h"

#include <algorithm>
#include <utility>

#include "process/log.h"
#include "rpc/codec/status.h"
#include "rpc/contract.h"
#include "server/attach/attach_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"  // QuarantineAnswered is moved
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// For this time after a rank of a mesh moved to another worker, the registry may still release
// arrays whose tiles the earlier worker holds.
constexpr absl::Duration kMovedTime = absl::Minutes(1);
// Maximum number of streams that get a change while the lock is held once. The bound keeps the
// delays of other threads short.
constexpr int kStreamsPerTurn = 64;
// After a change the sending thread pauses for this time, multiplied by the number of members. The
// time is about four times the cost of sending one change to one member. When all workers attach at
// once, most changes are then sent together.
constexpr absl::Duration kPausePerWorker = absl::Microseconds(250);
constexpr size_t kMaxPlansKnown = 1024;

// The status for a stream whose worker may attach again at once.
absl::Status AttachAgain(std::string_view identity, std::string_view why) {
  return WithRetryDelay(WithReason(absl::UnavailableError(ToAbsl(why)), Reason::kNotServing,
                                   {{fact::kIdentity, identity}}),
                        absl::ZeroDuration());
}

}  // namespace

absl::Status CoordinatorStops(std::string_view hint) {
  return WithRetryDelay(
      WithReason(absl::UnavailableError(StrCat("the coordinator is stopping; ", hint)),
                 Reason::kNotServing),
      absl::Seconds(1));
}

WorkerStreams::WorkerStreams(Membership* membership, ArrayRegistry* registry,
                             const DefinitionStore* definition_store, WorkerStreamsOptions options)
    : membership_(membership),
      registry_(registry),
      definition_store_(definition_store),
      options_(std::move(options)),
      judge_(membership, registry, definition_store),
      pages_(options_.term),
      readiness_(membership, definition_store, options_.recovery, options_.clock),
      inventories_(options_.clock,
                   {.streams = options_.max_inventories, .bytes = options_.max_inventory_bytes}),
      teller_([this] { TellOfMembership(); }),
      overdue_(options_.clock, [this] { CutOverdue(); }) {}

WorkerStreams::~WorkerStreams() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  teller_.join();
}

absl::Status WorkerStreams::CheckReady(std::string_view mesh_id) const {
  return stopping_ ? CoordinatorStops("ask again soon") : readiness_.Check(mesh_id);
}

absl::StatusOr<std::vector<RankEndpoint>> WorkerStreams::Endpoints(std::string_view mesh_id) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const MeshRanks* ranks = view->FindMesh(mesh_id);
  if (ranks == nullptr) {
    return WithReason(absl::NotFoundError(StrCat("there is no mesh named \"", mesh_id, "\"")),
                      Reason::kNotFound, {{fact::kKind, "mesh"}, {fact::kName, mesh_id}});
  }
  std::vector<RankEndpoint> endpoints;
  for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
    if (!view->IsAlive(ranks->identities[rank])) continue;
    const WorkerInfo& info = view->FindWorker(ranks->identities[rank])->info;
    endpoints.push_back({.rank = static_cast<int64_t>(rank),
                         .identity = info.identity,
                         .incarnation = info.incarnation,
                         .endpoints = info.endpoints});
  }
  return endpoints;
}

AttachFailures::Failures WorkerStreams::FailedAttachesOf(std::string_view identity) const {
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mutex_);
  return failed_attaches_.Of(identity, now);
}

void WorkerStreams::Drop(const std::string& mesh_id, const std::vector<std::string>& array_ids) {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const MeshRanks* const ranks = view->FindMesh(mesh_id);
  for (const WorkerMessage& message : EncodeDrops(array_ids)) {
    absl::MutexLock lock(&mutex_);
    if (ranks != nullptr && told_view_ != nullptr && told_view_->FindMesh(mesh_id) == ranks &&
        !moved_.contains(mesh_id)) {
      for (const std::string& identity : ranks->identities) {
        if (WorkerStream* stream = StreamOf(identity); stream != nullptr) stream->Send(message);
      }
    } else {  // the mesh is gone or has moved: earlier workers may hold tiles
      for (const auto& [identity, member] : members_) member.stream->Send(message);
    }
    for (WorkerStream* stream : arriving_) stream->Send(message);
  }
}

void WorkerStreams::AskForHeartbeats(const std::set<std::string>& identities) {
  const WorkerMessage clock = EncodeClock(options_.clock->Now());
  absl::MutexLock lock(&mutex_);
  for (const std::string& identity : identities) {
    if (WorkerStream* const stream = StreamOf(identity); stream != nullptr) stream->Send(clock);
  }
}

void WorkerStreams::SendVerdict(const std::string& identity, const InventoryVerdict& verdict) {
  LogVerdict(identity, 0, verdict);
  const std::vector<WorkerMessage> messages = EncodeVerdict(verdict, /*last=*/false);
  absl::MutexLock lock(&mutex_);
  const auto send = [&](WorkerStream* stream) {
    for (const WorkerMessage& message : messages) stream->Send(message);
  };
  if (WorkerStream* stream = StreamOf(identity); stream != nullptr) send(stream);
  for (WorkerStream* stream : arriving_) {
    if (stream->identity() == identity) send(stream);
  }
}

int64_t WorkerStreams::OrderQuarantine(const std::string& identity,
                                       const internal::v1::QuarantineOrder& order,
                                       QuarantineAnswered answered) {
  absl::Status refused;
  {
    // Finds the stream and registers the order under one lock, so the stream cannot end between the
    // two. If the stream ends later, Leave finds this order. If the stream has ended, the order is
    // refused here.
    absl::MutexLock lock(&mutex_);
    if (WorkerStream* const stream = StreamOf(identity); stream == nullptr) {
      refused = NotAttached(identity);
    } else {
      const absl::StatusOr<int64_t> number = orders_.Send(stream, order, &answered);
      if (number.ok()) return *number;
      refused = number.status();
    }
  }
  std::move(answered)(std::move(refused));
  return 0;
}

WorkerStream* WorkerStreams::CurrentStreamOf(const MembershipView& view,
                                             std::string_view identity) const {
  WorkerStream* const stream = StreamOf(identity);
  const WorkerStatus* const worker = view.FindWorker(identity);
  const bool is_current =
      stream != nullptr && worker != nullptr && worker->attachment == stream->attachment();
  return is_current ? stream : nullptr;
}

absl::Status WorkerStreams::FindFiller(const MembershipView& view, std::string_view identity,
                                       WorkerStream** stream) const {
  WorkerStream* const found = CurrentStreamOf(view, identity);
  if (found == nullptr) return NotAttached(identity);
  if (!found->HasFeature(rpc::kFillFeature)) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "worker \"", identity, "\" runs an older build, which does not fill tiles itself")),
        Reason::kNotAvailable, {{fact::kField, "source"}});
  }
  *stream = found;
  return absl::OkStatus();
}

absl::Status WorkerStreams::CheckCanFill(std::string_view identity) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  WorkerStream* stream = nullptr;
  absl::MutexLock lock(&mutex_);
  return FindFiller(*view, identity, &stream);
}

absl::Status WorkerStreams::CheckCanConvert(std::string_view identity) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  WorkerStream* stream = nullptr;
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(FindFiller(*view, identity, &stream));
  if (stream->HasFeature(rpc::kFillConversionsFeature)) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat("worker \"", identity,
                                           "\" runs an older build, which does not transpose or "
                                           "convert tensors of files")),
      Reason::kNotAvailable, {{fact::kField, "converted_source"}});
}

int64_t WorkerStreams::CheckFiles(const std::string& identity, std::string_view files,
                                  FilesChecked checked) {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  FileVerdict refused;
  {
    // One lock for both steps, for the reason given in OrderQuarantine.
    absl::MutexLock lock(&mutex_);
    WorkerStream* stream = nullptr;
    refused.status = FindFiller(*view, identity, &stream);
    if (refused.status.ok()) {
      const absl::StatusOr<int64_t> number = file_checks_.Send(stream, files, &checked);
      if (number.ok()) return *number;
      refused.status = number.status();
    }
  }
  std::move(checked)(refused);
  return 0;
}

int64_t WorkerStreams::DigestTiles(const std::string& identity,
                                   const std::vector<WantedDigest>& tiles, TilesDigested digested) {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  absl::StatusOr<int64_t> number = NotAttached(identity);
  {
    // One lock for both steps, for the reason given in OrderQuarantine.
    absl::MutexLock lock(&mutex_);
    WorkerStream* const stream = CurrentStreamOf(*view, identity);
    if (stream != nullptr && !stream->HasFeature(rpc::kDigestFeature)) {
      number = WithReason(
          absl::FailedPreconditionError(StrCat(
              "worker \"", identity, "\" runs an older build, which computes no digests of tiles")),
          Reason::kNotAvailable, {{fact::kField, "content"}});
    } else if (stream != nullptr) {
      number = digest_orders_.Send(stream, tiles, &digested);
    }
  }
  if (number.ok()) return *number;
  std::move(digested)(number.status());
  return 0;
}

absl::Status WorkerStreams::SendFill(std::string_view identity, std::string_view message) {
  WorkerMessage encoded = EncodeFill(message);
  const std::shared_ptr<const MembershipView> view = membership_->view();
  absl::MutexLock lock(&mutex_);
  WorkerStream* const stream = CurrentStreamOf(*view, identity);
  if (stream == nullptr) return NotAttached(identity);
  stream->Send(std::move(encoded));
  return absl::OkStatus();
}

absl::Status WorkerStreams::SendFillParts(std::string_view identity, std::string_view head,
                                          const std::shared_ptr<const std::string>& tail) {
  const WorkerMessage encoded = EncodeFill(head, tail->size());
  const std::shared_ptr<const MembershipView> view = membership_->view();
  absl::MutexLock lock(&mutex_);
  WorkerStream* const stream = CurrentStreamOf(*view, identity);
  if (stream == nullptr) return NotAttached(identity);
  stream->SendParts(encoded, tail);
  return absl::OkStatus();
}

void WorkerStreams::OrderSave(const std::string& identity, const internal::v1::SaveOrder& order,
                              SaveProgressed progressed, SaveAnswered answered) {
  {
    // As in OrderQuarantine, the stream cannot end between its lookup and the registration.
    absl::MutexLock lock(&mutex_);
    if (WorkerStream* const stream = StreamOf(identity); stream != nullptr) {
      return saves_.Send(stream, order, std::move(progressed), std::move(answered));
    }
  }
  std::move(answered)(NotAttached(identity));
}

void WorkerStreams::MembershipChanged() {
  absl::MutexLock lock(&mutex_);
  changed_ = true;
}

void WorkerStreams::WorkerLost(std::string_view identity, uint64_t attachment) {
  absl::MutexLock lock(&mutex_);
  const absl::Status lost = WithReason(
      absl::UnavailableError("this attachment has ended; attach again"), Reason::kStaleEpoch);
  // The cut stream ignores further messages. Leave removes the stream once it has ended.
  if (const auto found = members_.find(identity);
      found != members_.end() && found->second.stream->attachment() == attachment) {
    found->second.stream->Cut(lost);
  }
  // The worker may not be a member yet: its inventory is still on the way, or the registry is
  // judging the inventory.
  for (const auto& [stream, awaited] : attaching_) {
    if (stream->attachment() == attachment) stream->Cut(lost);
  }
}

std::optional<Participant> WorkerStreams::Start(const WorkRef& work,
                                                const EncodedStepPtr& message) {
  const WorkNumber number{.sequence = work.sequence, .epoch = work.epoch, .term = work.term};
  bool all_know = true;
  {
    absl::MutexLock lock(&mutex_);
    for (const Participant& participant : work.participants) {
      const auto member = members_.find(participant.identity);
      if (member == members_.end()) continue;
      absl::flat_hash_set<std::string>& plans = member->second.plans;
      if (plans.size() >= kMaxPlansKnown) plans.clear();
      all_know &= !plans.insert(message->plan_hash).second;
    }
  }
  // Encodes without the lock, which heartbeats need. A worker that attaches over another stream
  // during the encoding lacks the plan, and asks for it.
  const WorkerMessage start = EncodeStart(number, *message, /*with_plan=*/!all_know);
  const std::shared_ptr<const MembershipView> view = membership_->view();
  std::optional<Participant> missed;
  absl::MutexLock lock(&mutex_);
  started_.emplace(
      work.sequence,
      Started{.number = number, .step = message, .with_plan = all_know ? nullptr : start});
  for (const Participant& participant : work.participants) {
    if (WorkerStream* stream = CurrentStreamOf(*view, participant.identity); stream != nullptr) {
      stream->Send(start);
    } else if (view->IsAlive(participant.identity)) {
      missed = participant;
    }  // else the membership reports its loss
  }
  return missed;
}

void WorkerStreams::Commit(const WorkRef& work) { End(work, absl::OkStatus()); }

void WorkerStreams::Abort(const WorkRef& work, const absl::Status& reason) {
  if (work.transfer_id.empty() && !absl::IsCancelled(reason)) {
    options_.flight_log->StepFailed(
        {.work = work, .failed = options_.clock->Now(), .status = reason});
  }
  End(work, reason);
}

void WorkerStreams::End(const WorkRef& work, const absl::Status& status) {
  const WorkerMessage message = EncodeEnd(work, status);
  absl::MutexLock lock(&mutex_);
  started_.erase(work.sequence);
  for (const Participant& participant : work.participants) {
    if (WorkerStream* stream = StreamOf(participant.identity); stream != nullptr) {
      stream->Send(message);
    }
  }
}

void WorkerStreams::SendPlan(WorkerStream* stream, int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  const auto found = started_.find(sequence);
  if (found == started_.end()) return;
  Started& started = found->second;
  if (started.with_plan == nullptr) {
    started.with_plan = EncodeStart(started.number, *started.step, /*with_plan=*/true);
  }
  stream->Send(started.with_plan);
}

void WorkerStreams::ExpectWithin(WorkerStream* stream, absl::Duration time,
                                 std::string_view phase) {
  const absl::Time deadline = options_.clock->Now() + time;
  {
    absl::MutexLock lock(&mutex_);
    attaching_.insert_or_assign(
        stream, Awaited{.deadline = deadline, .time = time, .phase = std::string(phase)});
  }
  overdue_.SetNoLaterThan(deadline);
}

void WorkerStreams::ExpectNothing(WorkerStream* stream) {
  absl::MutexLock lock(&mutex_);
  attaching_.erase(stream);
}

void WorkerStreams::AwaitInventory(WorkerStream* stream) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = attaching_.find(stream); found != attaching_.end()) {
      found->second.deadline = absl::InfiniteFuture();
    }
  }
  inventories_.TakeIn(stream);
}

void WorkerStreams::Arrive(WorkerStream* stream) {
  absl::MutexLock lock(&mutex_);
  arriving_.insert(stream);
}

WorkerStreams::Unanswered WorkerStreams::TakeUnanswered(const WorkerStream* stream) {
  return {.quarantine = orders_.TakeAllOf(stream),
          .files = file_checks_.TakeAllOf(stream),
          .digests = digest_orders_.TakeAllOf(stream),
          .saves = saves_.TakeAllOf(stream)};
}

void WorkerStreams::Fail(Unanswered unanswered, std::string_view identity) {
  const absl::Status error = NotAttached(identity);
  for (QuarantineAnswered& answered : unanswered.quarantine) std::move(answered)(error);
  for (FilesChecked& checked : unanswered.files) std::move(checked)({.status = error});
  for (TilesDigested& digested : unanswered.digests) std::move(digested)(error);
  for (SaveAnswered& answered : unanswered.saves) std::move(answered)(error);
}

void WorkerStreams::Join(WorkerStream* stream) {
  Unanswered unanswered;
  {
    absl::MutexLock lock(&mutex_);
    arriving_.erase(stream);
    failed_attaches_.Forget(stream->identity());
    attaching_.erase(stream);
    Member& member = members_[stream->identity()];
    if (member.stream != nullptr) {
      // The worker attached again over another stream. Messages that are still in transit on the
      // earlier stream are lost.
      unanswered = TakeUnanswered(member.stream);
      member.stream->Cut(
          WithReason(absl::UnavailableError("the worker has attached over another stream since"),
                     Reason::kStaleEpoch));
    }
    member = Member{.stream = stream};
    readiness_.Joined(stream->identity());
    changed_ = true;
  }
  inventories_.EndTurn(stream);
  Fail(std::move(unanswered), stream->identity());
}

void WorkerStreams::Leave(WorkerStream* stream) {
  Unanswered unanswered;
  {
    absl::MutexLock lock(&mutex_);
    attaching_.erase(stream);
    arriving_.erase(stream);
    if (const auto found = members_.find(stream->identity());
        found != members_.end() && found->second.stream == stream) {
      members_.erase(found);
      readiness_.Left(stream->identity());
    }
    unanswered = TakeUnanswered(stream);
  }
  inventories_.EndTurn(stream);
  Fail(std::move(unanswered), stream->identity());
}

void WorkerStreams::AttachFailed(const std::string& identity, const absl::Status& status) {
  if (membership_->view()->FindWorker(identity) == nullptr) return;
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mutex_);
  failed_attaches_.Note(identity, status, now);
}

void WorkerStreams::CloseDrained(std::string_view identity, const WorkerStream* stream) {
  absl::MutexLock lock(&mutex_);
  if (WorkerStream* const current = StreamOf(identity); current == stream && current != nullptr) {
    current->Close(absl::CancelledError("it left"));
  }
}

void WorkerStreams::AttachAnew(std::string_view identity, const std::string& mesh_id) {
  absl::MutexLock lock(&mutex_);
  // The registry may judge the inventory of a stream between Arrive and Join by the earlier ranks.
  // The worker of such a stream must therefore attach again, like a member. An inventory whose
  // judging has not begun will be judged by the current ranks.
  std::set<WorkerStream*> streams = arriving_;
  std::erase_if(streams, [&](WorkerStream* stream) { return stream->identity() != identity; });
  if (WorkerStream* const member = StreamOf(identity); member != nullptr) streams.insert(member);
  if (streams.empty()) return;
  LogInfo("the ranks of a mesh have moved: a worker must send its inventory again",
          {{"identity", identity}, {"mesh", mesh_id}});
  for (WorkerStream* const stream : streams) {
    stream->Close(
        AttachAgain(identity, StrCat("ranks of mesh \"", mesh_id,
                                     "\" have moved to or from this worker; attach again, so that "
                                     "the coordinator checks its tiles on that mesh")));
  }
}

void WorkerStreams::PeersReported(WorkerStream* stream, int64_t epoch,
                                  const std::vector<std::string>& unreached) {
  absl::MutexLock lock(&mutex_);
  if (StreamOf(stream->identity()) != stream) return;
  readiness_.PeersReported(stream->identity(), epoch, unreached);
  options_.flight_log->PeersReported(stream->identity(), unreached);
}

void WorkerStreams::TilesDropped(std::string_view identity,
                                 const std::vector<std::string>& array_ids) {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  registry_->TilesDropped(array_ids, [&](std::string_view mesh_id) {
    const MeshRanks* ranks = view->FindMesh(mesh_id);
    return ranks == nullptr ? std::nullopt : ranks->RankOf(identity);
  });
}

void WorkerStreams::TileDamaged(std::string_view identity, const std::string& array_id) {
  const std::optional<std::string> mesh_id = registry_->MeshOf(array_id);
  if (!mesh_id.has_value()) return;  // the array was released meanwhile
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const MeshRanks* const ranks = view->FindMesh(*mesh_id);
  if (ranks == nullptr) return;
  if (const auto rank = ranks->RankOf(identity); rank.has_value()) {
    registry_->TileDamaged(array_id, *rank);
    if (options_.damaged) options_.damaged();
  }
}

WorkerStream* WorkerStreams::StreamOf(std::string_view identity) const {
  const auto found = members_.find(identity);
  return found == members_.end() ? nullptr : found->second.stream;
}

// Runs on its own thread, and sends members the list of live workers. Changes that arrive while
// this thread sends or pauses are sent together. When all workers attach at once, a message mostly
// covers hundreds of changes.
void WorkerStreams::TellOfMembership() {
  std::shared_ptr<const MembershipView> before;  // the view that was sent last
  for (;;) {
    {
      const auto is_due = [this]()
                              ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return changed_ || ending_; };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&is_due));
      if (ending_) return;
      changed_ = false;
    }
    const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
    const std::shared_ptr<const MembershipView> view = membership_->view();
    EndUndecided(*view);
    const bool has_change = pages_.Update(view, state);
    std::vector<std::string> moved;  // meshes that other workers served before
    if (before != nullptr) {
      for (const auto& [mesh_id, ranks] : before->meshes) {
        if (!ranks->identities.empty() && view->FindMesh(mesh_id) != ranks.get()) {
          moved.push_back(mesh_id);
        }
      }
    }
    std::optional<std::string> last;  // the last member that TellSome has handled
    while (TellSome(*view, has_change, &last)) {
    }
    const absl::Time now = options_.clock->Now();
    absl::MutexLock lock(&mutex_);
    std::erase_if(moved_, [&](const auto& each) { return each.second + kMovedTime <= now; });
    for (std::string& mesh_id : moved) moved_.insert_or_assign(std::move(mesh_id), now);
    told_view_ = view;
    readiness_.Told(view, state);
    before = view;
    if (has_change) {
      mutex_.AwaitWithTimeout(absl::Condition(&ending_),
                              kPausePerWorker * static_cast<double>(members_.size()));
    }
  }
}

// Closes the streams of workers with unjudged tiles on a mesh that had no ranks before and has
// ranks now. These workers attach again at once and send their inventories again. The end of a
// stream aborts the worker's steps on other meshes.
//
// This happens after a repair that lost the ranks. It also happens after a restore of an older
// snapshot that lacks a mesh: a client defines the mesh again while workers hold its tiles.
void WorkerStreams::EndUndecided(const MembershipView& view) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [identity, member] : members_) {
    const std::string mesh_id = member.stream->TakeDecidable(view);
    if (mesh_id.empty()) continue;
    LogInfo("a mesh has its ranks now: a worker with tiles on it must send its inventory again",
            {{"identity", identity}, {"mesh", mesh_id}});
    member.stream->Close(
        AttachAgain(identity, StrCat("mesh \"", mesh_id,
                                     "\" has its ranks now; attach again, so that the "
                                     "coordinator checks the tiles on it")));
  }
}

// Sends pages to the next kStreamsPerTurn members after `*last`. Returns false if no further
// members follow. Chooses the pages without the lock, which heartbeats and steps need.
bool WorkerStreams::TellSome(const MembershipView& view, bool has_change,
                             std::optional<std::string>* last) {
  struct Told {
    std::string identity;
    uint64_t attachment = 0;
    bool by_change = false;
    std::vector<MembershipPages::Page> pages = {};
  };
  std::vector<Told> turn;
  bool are_there_more = false;
  {
    absl::MutexLock lock(&mutex_);
    auto next = last->has_value() ? members_.upper_bound(**last) : members_.begin();
    for (; next != members_.end() && std::ssize(turn) < kStreamsPerTurn; ++next) {
      *last = next->first;
      const auto& [identity, member] = *next;
      if (member.told && !has_change) continue;
      const uint64_t attachment = member.stream->attachment();
      // A worker's snapshot must include the worker itself. If the worker attached after `view` was
      // made, its Join has set changed_, and the worker gets the next view.
      const WorkerStatus* const worker = view.FindWorker(identity);
      if (!member.told && (worker == nullptr || worker->attachment != attachment)) continue;
      turn.push_back({.identity = identity, .attachment = attachment, .by_change = member.told});
    }
    are_there_more = next != members_.end();
  }
  for (Told& each : turn) {
    each.pages =
        each.by_change ? pages_.ChangeFor(each.identity) : pages_.SnapshotFor(each.identity);
  }
  absl::MutexLock lock(&mutex_);
  for (const Told& each : turn) {
    const auto found = members_.find(each.identity);
    // The worker left or attached again since its pages were chosen. A worker that joined again has
    // set changed_, so the next round covers it.
    if (found == members_.end() || found->second.stream->attachment() != each.attachment) {
      continue;
    }
    for (const MembershipPages::Page& page : each.pages) found->second.stream->Send(page);
    found->second.told = true;
  }
  return are_there_more;
}

void WorkerStreams::CutOverdue() {
  const absl::Time now = options_.clock->Now();
  absl::Time next = absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  for (auto it = attaching_.begin(); it != attaching_.end();) {
    const Awaited& awaited = it->second;
    if (awaited.deadline > now) {
      next = std::min(next, awaited.deadline);
      ++it;
      continue;
    }
    it->first->Cut(WithReason(
        absl::DeadlineExceededError(StrCat("the stream did not deliver its ", awaited.phase,
                                           " within ", FormatRounded(awaited.time))),
        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(awaited.time)}}));
    attaching_.erase(it++);
  }
  overdue_.SetNoLaterThan(next);
}

}  // namespace shardmesh::server
