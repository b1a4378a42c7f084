// Admits steps and transfers, takes the reports on them, and ends each step and transfer exactly
// once.
#include "server/steps/sequencer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "process/failpoint.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Erases by a key of another type, as erase of C++23 can.
template <typename Container>
void EraseKey(Container& container, std::string_view key) {
  if (const auto found = container.find(key); found != container.end()) container.erase(found);
}

// Maximum number of steps that one call explains, because the explanations run under the lock.
constexpr int64_t kMaxExplanations = 16;

std::string Name(const Participant& participant) {
  return StrCat("rank ", participant.rank, " (", participant.identity, ")");
}

std::string Name(const WorkRef& ref) {
  if (!ref.transfer_id.empty()) return StrCat("transfer ", ref.transfer_id, " (", ref.op, ")");
  return ref.sequence == 0 ? StrCat("a waiting step (", ref.op, ")")
                           : StrCat("step ", ref.sequence, " (", ref.op, ")");
}

// Adds the step and op that an error concerns. A transfer has no sequence number before its commit.
absl::Status WithWork(absl::Status error, const WorkRef& ref) {
  return WithFacts(std::move(error),
                   {{fact::kStep, ref.sequence == 0 ? std::string() : StrCat(ref.sequence)},
                    {fact::kOp, ref.op}});
}

// Maximum number of participants that an error names.
constexpr size_t kMostNamed = 16;

// Names the participants: `rank 1 (worker-1), rank 2 (worker-2)`.
std::string DescribeParticipants(absl::Span<const Participant> participants) {
  std::string text = StrJoin(participants.subspan(0, kMostNamed), ", ",
                             [](std::string* out, const Participant& each) { *out += Name(each); });
  if (participants.size() > kMostNamed) {
    StrAppend(&text, " and ", participants.size() - kMostNamed, " more");
  }
  return text;
}

// Says for which participants late work waited. An explanation that blames some of them leaves out
// the others.
std::string DescribeAwaited(absl::Span<const Participant> awaited,
                            const StepExplanation& explanation) {
  if (awaited.empty()) return "waited for the client";
  return StrCat("waited for ",
                DescribeParticipants(explanation.blamed.empty() ? awaited : explanation.blamed),
                explanation.text.empty() ? std::string() : StrCat("; ", explanation.text));
}

// Adds the participants of a step to an error, as facts.
absl::Status WithParticipants(absl::Status error, absl::Span<const Participant> participants) {
  participants = participants.subspan(0, kMostNamed);
  return WithFacts(
      std::move(error),
      {{fact::kRank,
        StrJoin(participants, ",",
                [](std::string* out, const Participant& each) { StrAppend(out, each.rank); })},
       {fact::kIdentity, StrJoin(participants, ",", [](std::string* out, const Participant& each) {
          *out += each.identity;
        })}});
}

// Adds to an error, as facts, the participants for which late work waited, or those of them that
// the explanation blames. The identities are those of the late workers, if these are known.
absl::Status WithLate(absl::Status error, absl::Span<const Participant> awaited,
                      const StepExplanation& explanation) {
  error =
      WithParticipants(std::move(error), explanation.blamed.empty() ? awaited : explanation.blamed);
  return WithFacts(std::move(error), {{fact::kIdentity, StrJoin(explanation.late, ",")}});
}

// Returns one rank's error in the form that all other ranks get: its code and reason, with rank,
// identity and op. If this rank reports the failure of another rank, the text names this rank as
// the reporter.
absl::Status Attribute(const absl::Status& error, const WorkRef& ref,
                       const Participant& participant) {
  absl::Status named(
      error.code(),
      ref.blamed_by.has_value()
          ? StrCat(Name(ref), " failed: ", error.message(), ", as ", Name(participant), " reports")
          : StrCat(Name(participant), " failed ", Name(ref), ": ", error.message()));
  error.ForEachPayload([&named](absl::string_view type, const absl::Cord& payload) {
    named.SetPayload(type, payload);
  });
  const Reason reason = ReasonOf(error);
  if (MayHave(reason, fact::kStep)) {
    named = WithWork(std::move(named), ref);
  }
  // A rank may report that another rank is at fault; in that case the facts name that other rank.
  const std::vector<Participant> at_fault =
      ref.blamed.empty() ? std::vector<Participant>{participant} : ref.blamed;
  if (MayHave(reason, fact::kRank) && !FactOf(error, fact::kRank).has_value()) {
    named = WithParticipants(std::move(named), at_fault);
  }
  return named;
}

}  // namespace

struct Sequencer::Work {
  StepTicket ticket = 0;
  std::shared_ptr<StepChain> chain = nullptr;  // StepRequest::chain
  WorkRef ref;
  State state = State::kWaiting;
  std::vector<std::string> reads;
  std::vector<std::string> writes;
  EncodedStepPtr message;
  absl::Duration timeout;
  absl::Duration total_timeout = absl::InfiniteDuration();
  bool has_asked = false;  // Options::ask was called
  CommitHook commit;
  std::function<void(std::string_view identity, int64_t bytes)> received;  // constant
  WorkCallback callback;
  std::vector<RankResult> ranks;  // in the order of ref.participants
  std::vector<bool> done;         // in the same order
  int64_t not_done = 0;           // how many participants are not done
  // For each participant, in the same order: maps an array id to its index in RankResult::tiles.
  std::vector<absl::flat_hash_map<std::string, size_t>> tile_index;

  std::vector<Participant> WaitingFor() const {
    std::vector<Participant> waiting;
    for (size_t i = 0; i < done.size(); ++i) {
      if (!done[i]) waiting.push_back(ref.participants[i]);
    }
    return waiting;
  }

  // Returns the participants that late work waited for. While the client may still send tiles,
  // these are only those that the explanation blames.
  std::vector<Participant> Late(const StepExplanation& explanation) const {
    return ref.commit_asked ? WaitingFor() : explanation.blamed;
  }

  WorkOutcome Outcome(absl::Status status) const {
    return {std::move(status), ref.sequence, ranks, ref.epoch, ref.started};
  }
};

Sequencer::Sequencer(Clock* clock, StepTransport* transport, Options options)
    : clock_(clock),
      transport_(transport),
      options_(std::move(options)),
      last_sequence_(options_.last_sequence),
      deadline_(clock, [this] { HandleDeadlines(); }) {}

Sequencer::~Sequencer() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    closing_ = true;
    AbortLive(absl::StatusCode::kCancelled, Reason::kCancelled,
              "was cancelled: the coordinator is stopping");
  }
  events_.MakeCalls();
  auto decided = [this] {
    mutex_.AssertReaderHeld();
    return deciding_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&decided));
}

absl::StatusOr<Sequencer::StepTicket> Sequencer::Submit(StepRequest request,
                                                        WorkCallback callback) {
  StepTicket ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckParticipants(request.op, request.participants, request.timeout));
    // A caller may submit a step before it hears that an earlier one has failed.
    if (request.chain != nullptr && !request.chain->failure_.ok()) return request.chain->failure_;
    auto work = std::make_shared<Work>();
    work->chain = std::move(request.chain);
    work->ref.op = std::move(request.op);
    work->ref.mesh_id = std::move(request.mesh_id);
    work->ref.operation_id = std::move(request.operation_id);
    work->ref.participants = std::move(request.participants);
    work->reads = std::move(request.reads);
    work->writes = std::move(request.writes);
    work->message = std::move(request.message);
    work->timeout = request.timeout;
    work->total_timeout = request.total_timeout;
    work->ref.deadline = clock_->Now() + request.total_timeout;
    work->commit = std::move(request.commit);
    work->received = std::move(request.received);
    work->callback = std::move(callback);
    SetAlarmFor(*work);
    ticket = Add(std::move(work));
    AdmitWaiting();
  }
  events_.MakeCalls();
  return ticket;
}

absl::Status Sequencer::BeginTransfer(TransferRequest request, WorkCallback callback) {
  SHARDMESH_PASSES("sequencer.begin_transfer");
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(CheckParticipants(request.op, request.participants, request.timeout));
  if (transfers_.contains(request.transfer_id)) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("transfer \"", request.transfer_id, "\" is under way")),
        Reason::kAlreadyExists, {{fact::kKind, "transfer"}, {fact::kName, request.transfer_id}});
  }
  auto work = std::make_shared<Work>();
  work->ref.transfer_id = std::move(request.transfer_id);
  work->ref.operation_id =
      request.operation_id.empty() ? work->ref.transfer_id : std::move(request.operation_id);
  work->ref.sources = std::move(request.sources);
  work->ref.op = std::move(request.op);
  work->ref.mesh_id = std::move(request.mesh_id);
  work->ref.participants = std::move(request.participants);
  work->timeout = request.timeout;
  work->commit = std::move(request.commit);
  work->callback = std::move(callback);
  work->ref.commit_asked = false;
  transfers_[work->ref.transfer_id] = work;
  Run(work.get());
  Add(std::move(work));
  return absl::OkStatus();
}

void Sequencer::Cancel(StepTicket ticket) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = live_.find(ticket);
    if (found == live_.end() || found->second->state == State::kCommitting) return;
    const WorkPtr work = found->second;
    End(work, WithWork(WithReason(absl::CancelledError(StrCat(Name(work->ref), " was cancelled")),
                                  Reason::kCancelled),
                       work->ref));
    AdmitWaiting();
  }
  events_.MakeCalls();
}

absl::Status Sequencer::CommitTransfer(std::string_view transfer_id) {
  SHARDMESH_PASSES("sequencer.commit_transfer");
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(const WorkPtr work, FindTransfer(transfer_id));
    work->ref.commit_asked = true;
    CommitIfDone(work);
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Sequencer::AbortTransfer(std::string_view transfer_id, absl::Status reason) {
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(const WorkPtr work, FindTransfer(transfer_id));
    if (work->state == State::kCommitting) {
      return absl::FailedPreconditionError(
          StrCat(Name(work->ref), " is committing and cannot be aborted any more"));
    }
    if (MayHave(ReasonOf(reason), fact::kStep)) reason = WithWork(std::move(reason), work->ref);
    if (ReasonOf(reason) == Reason::kDeadline) {
      int64_t explanations_left = 1;
      const StepExplanation explanation = Explain(*work, &explanations_left);
      const std::vector<Participant> waiting = work->Late(explanation);
      if (!waiting.empty()) reason = WithContext(reason, DescribeAwaited(waiting, explanation));
      reason = WithLate(std::move(reason), waiting, explanation);
    }
    End(work, std::move(reason));
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Sequencer::ReportStep(int64_t sequence, int64_t epoch, int64_t term,
                                   RankReport report) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckTerm(term));
    const auto found = steps_.find(sequence);
    if (found == steps_.end()) {
      return WithReason(
          absl::NotFoundError(StrCat("step ", sequence, " has ended or never existed")),
          Reason::kNotFound, {{fact::kKind, "step"}, {fact::kName, sequence}});
    }
    if (found->second->ref.epoch != epoch) {
      return WithReason(
          absl::AbortedError(StrCat("a report on step ", sequence, " of epoch ",
                                    found->second->ref.epoch, " bears epoch ", epoch)),
          Reason::kStaleEpoch, {{fact::kHave, epoch}, {fact::kNeed, found->second->ref.epoch}});
    }
    status = Report(WorkPtr(found->second), std::move(report));
    AdmitWaiting();
  }
  events_.MakeCalls();
  return status;
}

void Sequencer::StepReceived(int64_t sequence, std::string_view identity, int64_t bytes) {
  WorkPtr work;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = steps_.find(sequence);
    if (found == steps_.end() || found->second->state != State::kRunning) return;
    work = found->second;
  }
  if (!work->received) return;
  // Without the lock: there may be thousands of participants, whose heartbeats all come here. The
  // participants of work are constant.
  const std::vector<Participant>& participants = work->ref.participants;
  const bool takes_part =
      std::any_of(participants.begin(), participants.end(),
                  [&](const Participant& each) { return each.identity == identity; });
  if (takes_part) work->received(identity, bytes);
}

absl::Status Sequencer::ReportTransfer(std::string_view transfer_id, int64_t term,
                                       RankReport report) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckTerm(term));
    SHARDMESH_ASSIGN_OR_RETURN(const WorkPtr work, FindTransfer(transfer_id));
    status = Report(work, std::move(report));
  }
  events_.MakeCalls();
  return status;
}

void Sequencer::WorkerAttached(std::string_view identity, int64_t epoch) {
  {
    absl::MutexLock lock(&mutex_);
    epoch_ = epoch;
    EraseKey(leaving_, identity);
    if (!alive_.emplace(identity).second) FailIfInvolved(identity, "started anew");
  }
  events_.MakeCalls();
}

void Sequencer::WorkerLost(std::string_view identity, int64_t epoch, std::string_view reason) {
  {
    absl::MutexLock lock(&mutex_);
    epoch_ = epoch;
    EraseKey(leaving_, identity);
    EraseKey(alive_, identity);
    FailIfInvolved(identity, StrCat("was lost (", reason, ")"));
  }
  events_.MakeCalls();
}

void Sequencer::WorkerLeaves(std::string_view identity, absl::AnyInvocable<void() &&> idle) {
  {
    absl::MutexLock lock(&mutex_);
    if (alive_.count(identity) > 0) {
      leaving_.insert_or_assign(std::string(identity), std::move(idle));
      TellDrained();
    } else {
      events_.Add(std::move(idle));
    }
  }
  events_.MakeCalls();
}

void Sequencer::TellDrained() {
  for (auto& [identity, idle] : leaving_) {
    if (idle == nullptr) continue;
    const bool is_needed = std::any_of(live_.begin(), live_.end(), [&](const auto& entry) {
      const std::vector<Participant>& participants = entry.second->ref.participants;
      return std::any_of(participants.begin(), participants.end(),
                         [&](const Participant& one) { return one.identity == identity; });
    });
    if (!is_needed) events_.Add(std::exchange(idle, nullptr));
  }
}

int64_t Sequencer::Drain(absl::Time deadline) {
  int64_t aborted = 0;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    auto nothing_is_live = [this] {
      mutex_.AssertReaderHeld();
      return live_.empty();
    };
    if (mutex_.AwaitWithDeadline(absl::Condition(&nothing_is_live), deadline)) {
      return 0;
    }
    closing_ = true;
    aborted = AbortLive(absl::StatusCode::kUnavailable, Reason::kNotServing,
                        "was aborted: the coordinator is stopping, and its grace has ended; ask "
                        "again when it is back");
  }
  events_.MakeCalls();
  return aborted;
}

int64_t Sequencer::AbortLive(absl::StatusCode code, Reason reason, std::string_view why) {
  int64_t aborted = 0;
  const std::map<StepTicket, WorkPtr> live = live_;
  for (const auto& [ticket, work] : live) {
    if (work->state == State::kCommitting) continue;
    absl::Status status = WithReason(absl::Status(code, StrCat(Name(work->ref), " ", why)), reason);
    if (MayHave(reason, fact::kStep)) status = WithWork(std::move(status), work->ref);
    End(work, std::move(status));
    ++aborted;
  }
  return aborted;
}

std::vector<Sequencer::LiveWork> Sequencer::Live() const {
  std::vector<LiveWork> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [ticket, work] : live_) {
    all.push_back({work->ref,
                   work->state == State::kWaiting   ? "WAITING"
                   : work->state == State::kRunning ? "RUNNING"
                                                    : "COMMITTING",
                   work->WaitingFor()});
  }
  return all;
}

OperationWorkers Sequencer::WorkersOf(std::string_view operation_id) const {
  if (operation_id.empty()) return {};
  return WorkersOfAll({std::string(operation_id)});
}

OperationWorkers Sequencer::WorkersOfAll(
    const std::set<std::string, std::less<>>& operation_ids) const {
  OperationWorkers workers;
  if (operation_ids.empty()) return workers;
  absl::MutexLock lock(&mutex_);
  for (const auto& [ticket, work] : live_) {
    if (!operation_ids.contains(work->ref.operation_id)) continue;
    for (const Participant& one : work->ref.participants) workers.taking_part.insert(one.identity);
    const std::vector<Participant> awaited = work->WaitingFor();
    if (awaited.empty()) continue;
    const IdentitiesPtr& sources = work->ref.sources;
    if (sources != nullptr) workers.taking_part.insert(sources->begin(), sources->end());
    const bool is_asked = work->ref.commit_asked && work->state != State::kWaiting;
    if (!is_asked) continue;
    for (const Participant& each : awaited) workers.waiting_for.insert(each.identity);
    if (sources != nullptr) workers.sources.insert(sources->begin(), sources->end());
  }
  return workers;
}

Sequencer::LiveCounts Sequencer::CountSteps() const { return Count(/*transfers=*/false); }

Sequencer::LiveCounts Sequencer::CountTransfers() const { return Count(/*transfers=*/true); }

Sequencer::LiveCounts Sequencer::Count(bool transfers) const {
  LiveCounts counts;
  absl::MutexLock lock(&mutex_);
  for (const auto& [ticket, work] : live_) {
    if (work->ref.transfer_id.empty() == transfers) continue;
    switch (work->state) {
      case State::kWaiting:
        ++counts.waiting;
        break;
      case State::kRunning:
        ++counts.running;
        break;
      case State::kCommitting:
        ++counts.committing;
        break;
    }
  }
  return counts;
}

int64_t Sequencer::last_sequence() const {
  absl::MutexLock lock(&mutex_);
  return last_sequence_;
}

absl::Status Sequencer::CheckParticipants(std::string_view op,
                                          const std::vector<Participant>& participants,
                                          absl::Duration timeout) const {
  const auto bad = [](std::string message) {
    return WithReason(absl::InvalidArgumentError(message), Reason::kBadField);
  };
  if (draining_) {
    return WithReason(
        absl::UnavailableError(StrCat(
            "the coordinator is stopping and takes in nothing new; ask for ", op, " again soon")),
        Reason::kNotServing);
  }
  if (participants.empty()) return bad(StrCat(op, " has no participants"));
  if (timeout <= absl::ZeroDuration()) {
    return bad(
        StrCat(op, " has a timeout of ", absl::FormatDuration(timeout), "; it must be above 0"));
  }
  absl::flat_hash_set<int64_t> ranks;
  for (const Participant& participant : participants) {
    if (!ranks.insert(participant.rank).second) {
      return bad(StrCat(op, " has rank ", participant.rank, " twice"));
    }
    if (alive_.count(participant.identity) == 0) {
      return WithReason(absl::UnavailableError(StrCat(op, " needs ", Name(participant),
                                                      ", which is not attached; start it, and "
                                                      "retry")),
                        Reason::kWorkerLost,
                        {{fact::kRank, participant.rank},
                         {fact::kIdentity, participant.identity},
                         {fact::kOp, op}});
    }
    if (leaving_.count(participant.identity) > 0) {
      return WithReason(
          absl::UnavailableError(StrCat(op, " needs ", Name(participant),
                                        ", which is stopping; retry when it is back")),
          Reason::kWorkerLost,
          {{fact::kRank, participant.rank},
           {fact::kIdentity, participant.identity},
           {fact::kOp, op}});
    }
  }
  if (static_cast<int64_t>(live_.size()) >= options_.max_live) {
    return WithRetryDelay(
        WithReason(absl::ResourceExhaustedError(
                       StrCat(live_.size(), " steps and transfers are live, the limit is ",
                              options_.max_live, "; retry when some have ended")),
                   Reason::kOverloaded,
                   {{fact::kHave, live_.size()}, {fact::kLimit, options_.max_live}}),
        absl::Milliseconds(100));
  }
  return absl::OkStatus();
}

absl::Status Sequencer::CheckTerm(int64_t term) const {
  if (term == options_.term) return absl::OkStatus();
  return WithReason(absl::AbortedError(StrCat("the report is of term ", term,
                                              ", this coordinator's is ", options_.term)),
                    Reason::kStaleTerm, {{fact::kHave, term}, {fact::kNeed, options_.term}});
}

absl::StatusOr<Sequencer::WorkPtr> Sequencer::FindTransfer(std::string_view transfer_id) const {
  const auto found = transfers_.find(ToAbsl(transfer_id));
  if (found != transfers_.end()) return found->second;
  return WithReason(
      absl::NotFoundError(StrCat("transfer \"", transfer_id, "\" has ended or never existed")),
      Reason::kNotFound, {{fact::kKind, "transfer"}, {fact::kName, transfer_id}});
}

Sequencer::StepTicket Sequencer::Add(WorkPtr work) {
  work->ticket = next_ticket_++;
  work->ref.term = options_.term;
  work->done.resize(work->ref.participants.size());
  work->tile_index.resize(work->done.size());
  work->not_done = std::ssize(work->done);
  for (const Participant& participant : work->ref.participants) {
    work->ranks.push_back({.participant = participant});
  }
  const StepTicket ticket = work->ticket;
  for (const std::string& id : work->reads) operands_[id].users.insert(ticket);
  for (const std::string& id : work->writes) {
    Operand& operand = operands_[id];
    operand.users.insert(ticket);
    operand.writers.insert(ticket);
  }
  if (work->state == State::kWaiting) admissible_.insert(ticket);
  live_.emplace(ticket, std::move(work));
  return ticket;
}

void Sequencer::RemoveOperands(const Work& work) {
  const auto remove = [&](const std::string& id) {
    const auto found = operands_.find(id);
    // Already removed: a step may both read and write the array.
    if (found == operands_.end()) return;
    Operand& operand = found->second;
    operand.users.erase(work.ticket);
    if (operand.users.empty()) {
      operands_.erase(found);
    } else if (operand.writers.erase(work.ticket) == 0) {
      // A reader ended. Of the remaining users, at most the first one was waiting for this reader.
      admissible_.insert(*operand.users.begin());
    } else {
      // A writer ended. The users after this writer may run, up to and including the next writer.
      // Users after the next writer still wait for it.
      for (auto user = operand.users.upper_bound(work.ticket); user != operand.users.end();
           ++user) {
        admissible_.insert(*user);
        if (operand.writers.contains(*user)) break;
      }
    }
  };
  for (const std::string& id : work.writes) remove(id);
  for (const std::string& id : work.reads) remove(id);
}

bool Sequencer::MayRun(const Work& work) const {
  return std::all_of(work.writes.begin(), work.writes.end(),
                     [&](const std::string& id) {
                       mutex_.AssertReaderHeld();
                       return *operands_.at(id).users.begin() == work.ticket;
                     }) &&
         std::all_of(work.reads.begin(), work.reads.end(), [&](const std::string& id) {
           mutex_.AssertReaderHeld();
           const std::set<StepTicket>& writers = operands_.at(id).writers;
           return writers.empty() || *writers.begin() >= work.ticket;
         });
}

void Sequencer::Run(Work* work) {
  SHARDMESH_PASSES("sequencer.run");
  work->state = State::kRunning;
  work->ref.epoch = epoch_;
  work->ref.started = clock_->Now();
  work->ref.deadline = std::min(work->ref.deadline, work->ref.started + work->timeout);
  SetAlarmFor(*work);
}

const Sequencer::Work* Sequencer::FindBlocker(const Work& step) const {
  const Work* blocker = &step;
  while (blocker->state == State::kWaiting) {
    StepTicket first = blocker->ticket;
    for (const std::string& id : blocker->writes) {
      first = std::min(first, *operands_.at(id).users.begin());
    }
    for (const std::string& id : blocker->reads) {
      const std::set<StepTicket>& writers = operands_.at(id).writers;
      if (!writers.empty()) first = std::min(first, *writers.begin());
    }
    if (first == blocker->ticket) return nullptr;
    blocker = live_.at(first).get();
  }
  return blocker;
}

absl::Time Sequencer::AskTimeOf(const Work& work) const {
  const bool is_step = work.ref.transfer_id.empty();
  if (!options_.ask || !is_step || work.has_asked) return absl::InfiniteFuture();
  const absl::Duration time = std::min(work.timeout, work.total_timeout);
  return work.ref.deadline - std::min(options_.ask_before, time / 2);
}

void Sequencer::SetAlarmFor(const Work& work) {
  deadline_.SetNoLaterThan(std::min(work.ref.deadline, AskTimeOf(work)));
}

void Sequencer::AdmitWaiting() {
  if (closing_) return;
  // Tries the steps in order of arrival. A step that still waits also holds up later steps that
  // share an operand with it.
  const std::set<StepTicket> candidates = std::exchange(admissible_, {});
  for (const StepTicket ticket : candidates) {
    const auto found = live_.find(ticket);
    if (found == live_.end()) continue;
    const WorkPtr& work = found->second;
    if (work->state != State::kWaiting || !MayRun(*work)) continue;
    Run(work.get());
    work->ref.sequence = ++last_sequence_;
    steps_.emplace(work->ref.sequence, work);
    events_.Add(
        [this, work, ref = work->ref, message = work->message] { Start(work, ref, message); });
  }
}

void Sequencer::Start(const WorkPtr& work, const WorkRef& ref, const EncodedStepPtr& message) {
  const std::optional<Participant> missed = transport_->Start(ref, message);
  if (!missed.has_value()) return;
  absl::MutexLock lock(&mutex_);
  if (!live_.contains(work->ticket) || work->state == State::kCommitting) return;
  FailFor(work, *missed, "is attaching again", "");
  AdmitWaiting();
}

absl::Status Sequencer::Report(const WorkPtr& work, RankReport report) {
  const std::vector<Participant>& participants = work->ref.participants;
  const auto is_reporter = [&](size_t i) {
    return participants[i].rank == report.rank && participants[i].identity == report.identity;
  };
  // Tries the index of the reported rank first: in most work the participant at index i serves rank
  // i.
  auto place = static_cast<size_t>(std::max<int64_t>(report.rank, 0));
  if (place >= participants.size() || !is_reporter(place)) {
    place = 0;
    while (place < participants.size() && !is_reporter(place)) ++place;
  }
  if (place == participants.size()) {
    return absl::PermissionDeniedError(StrCat("worker \"", report.identity,
                                              "\" does not serve rank ", report.rank, " of ",
                                              Name(work->ref)));
  }
  if (work->state != State::kRunning || work->done[place]) return absl::OkStatus();
  if (!report.status.ok()) {
    // If ranks run different collectives, the error does not say which rank is wrong.
    if (ReasonOf(report.status) != Reason::kCollectiveMismatch) {
      const std::string& blamed =
          report.blamed_identity.empty() ? report.identity : report.blamed_identity;
      for (const Participant& participant : participants) {
        if (participant.identity == blamed) work->ref.blamed.push_back(participant);
      }
      if (blamed != report.identity) work->ref.blamed_by = participants[place];
    }
    End(work, Attribute(report.status, work->ref, participants[place]));
    return absl::OkStatus();
  }
  RankResult& result = work->ranks[place];
  for (StagedTileReport& tile : report.tiles) {
    const auto [known, is_new] =
        work->tile_index[place].try_emplace(tile.array_id, result.tiles.size());
    if (is_new) {
      result.tiles.push_back(std::move(tile));
    } else {
      // The tile was staged again: the last report counts.
      result.tiles[known->second] = std::move(tile);
    }
  }
  result.detail = std::move(report.detail);
  const int64_t expected = participants[place].expected_tiles;
  work->done[place] =
      report.done || (expected > 0 && static_cast<int64_t>(result.tiles.size()) >= expected);
  if (work->done[place]) --work->not_done;
  CommitIfDone(work);
  return absl::OkStatus();
}

void Sequencer::CommitIfDone(const WorkPtr& work) {
  if (work->state != State::kRunning || !work->ref.commit_asked || work->not_done > 0) return;
  work->state = State::kCommitting;
  if (work->ref.sequence == 0) work->ref.sequence = ++last_sequence_;
  if (work->commit == nullptr) {
    End(work, absl::OkStatus());
    return;
  }
  ++deciding_;
  events_.Add([this, work, hook = std::move(work->commit),
               outcome = work->Outcome(absl::OkStatus())]() mutable {
    std::move(hook)(outcome,
                    [this, work](absl::Status status) { Decide(work, std::move(status)); });
  });
}

void Sequencer::Decide(const WorkPtr& work, absl::Status status) {
  SHARDMESH_PASSES("sequencer.decide");
  {
    absl::MutexLock lock(&mutex_);
    End(work, std::move(status));
    AdmitWaiting();
  }
  events_.MakeCalls();
  absl::MutexLock lock(&mutex_);
  --deciding_;
}

void Sequencer::FailChain(const Work& failed, const absl::Status& status) {
  failed.chain->failure_ =
      WithReason(absl::AbortedError(
                     StrCat("the step was not run because ", Name(failed.ref),
                            ", an earlier step of its stream, failed: ", ToStd(status.message()))),
                 Reason::kCancelled);
  std::vector<WorkPtr> later;
  for (auto each = live_.upper_bound(failed.ticket); each != live_.end(); ++each) {
    const WorkPtr& work = each->second;
    if (work->chain == failed.chain && work->state != State::kCommitting) later.push_back(work);
  }
  for (const WorkPtr& work : later) {
    work->chain = nullptr;
    End(work, WithReason(absl::AbortedError(StrCat(
                             Name(work->ref), " was given up because ", Name(failed.ref),
                             ", an earlier step of its stream, failed: ", ToStd(status.message()))),
                         Reason::kCancelled));
  }
}

void Sequencer::End(const WorkPtr& work, absl::Status status) {
  SHARDMESH_PASSES("sequencer.end");
  // Work may end with an earlier step of its chain, while a caller goes through all live work.
  if (live_.erase(work->ticket) == 0) return;
  // Before the waiting steps that the end of this one lets run.
  if (!status.ok() && work->chain != nullptr) FailChain(*work, status);
  RemoveOperands(*work);
  if (work->ref.transfer_id.empty()) {
    steps_.erase(work->ref.sequence);
  } else {
    transfers_.erase(work->ref.transfer_id);
  }
  const bool told_to_start = work->state != State::kWaiting;
  events_.Add([transport = transport_, told_to_start, ref = work->ref,
               callback = std::move(work->callback),
               outcome = work->Outcome(std::move(status))]() mutable {
    if (outcome.status.ok()) {
      transport->Commit(ref);
    } else if (told_to_start) {
      transport->Abort(ref, outcome.status);
    }
    std::move(callback)(outcome);
  });
  TellDrained();
}

void Sequencer::FailIfInvolved(std::string_view identity, std::string_view what) {
  int64_t explanations_left = kMaxExplanations;
  const std::map<StepTicket, WorkPtr> live = live_;
  for (const auto& [ticket, work] : live) {
    if (work->state == State::kCommitting) continue;
    for (const Participant& participant : work->ref.participants) {
      if (participant.identity != identity) continue;
      // Only ranks of steps wait in instructions.
      const bool is_step = work->ref.transfer_id.empty();
      FailFor(work, participant, what,
              is_step ? Explain(*work, &explanations_left).waiting : std::string());
      break;
    }
  }
  AdmitWaiting();
}

void Sequencer::FailFor(const WorkPtr& work, const Participant& participant, std::string_view what,
                        std::string_view waiting) {
  work->ref.blamed = {participant};
  End(work, WithReason(absl::UnavailableError(
                           StrCat(Name(participant), " ", what, " during ", Name(work->ref),
                                  waiting.empty() ? std::string() : StrCat(", while ", waiting),
                                  "; retry when it is back")),
                       Reason::kWorkerLost,
                       {{fact::kRank, participant.rank},
                        {fact::kIdentity, participant.identity},
                        {fact::kStep,
                         work->ref.sequence == 0 ? std::string() : StrCat(work->ref.sequence)},
                        {fact::kOp, work->ref.op}}));
}

StepExplanation Sequencer::Explain(const Work& work, int64_t* left) const {
  const bool is_waiting_step = work.ref.sequence == 0 && work.ref.transfer_id.empty();
  if (!options_.explain || is_waiting_step || *left == 0) return {};
  --*left;
  return options_.explain(work.ref, work.WaitingFor());
}

absl::Status Sequencer::OverdueError(Work& work, int64_t* left) const {
  // `timeout` counts only from the admission, so `total_timeout` alone ends a step that waits.
  const bool is_total =
      work.state == State::kWaiting || work.ref.deadline < work.ref.started + work.timeout;
  const absl::Duration limit = is_total ? work.total_timeout : work.timeout;
  const auto overdue = [limit](std::string message) {
    return WithReason(absl::DeadlineExceededError(std::move(message)), Reason::kDeadline,
                      {{fact::kLimit, absl::ToDoubleSeconds(limit)}});
  };
  if (work.state == State::kWaiting) {
    const Work* const blocker = FindBlocker(work);
    std::string text = StrCat(Name(work.ref), " did not begin within ", FormatRounded(limit));
    if (blocker == nullptr) return WithWork(overdue(std::move(text)), work.ref);
    StrAppend(&text, ": it waits for ", Name(blocker->ref));
    if (blocker->state == State::kCommitting) {
      return WithWork(overdue(StrCat(text, ", which is being committed")), work.ref);
    }
    const StepExplanation explanation = Explain(*blocker, left);
    const std::vector<Participant> awaited = blocker->Late(explanation);
    if (!explanation.text.empty()) {
      StrAppend(&text, ", in which ", explanation.text);
    } else if (!awaited.empty()) {
      StrAppend(&text, ", which waits for ", DescribeParticipants(awaited));
    }
    return WithLate(WithWork(overdue(std::move(text)), work.ref), awaited, explanation);
  }
  const StepExplanation explanation = Explain(work, left);
  const std::vector<Participant> awaited = work.Late(explanation);
  const bool explains_step = work.ref.transfer_id.empty() && !explanation.text.empty();
  if (explains_step) work.ref.blamed = explanation.blamed;
  return WithLate(
      WithWork(overdue(StrCat(Name(work.ref), " did not end within ", FormatRounded(limit),
                              explains_step ? StrCat(": ", explanation.text)
                                            : StrCat("; ", DescribeAwaited(awaited, explanation)))),
               work.ref),
      awaited, explanation);
}

void Sequencer::HandleDeadlines() {
  int64_t explanations_left = kMaxExplanations;
  std::set<std::string> asked;
  {
    const absl::Time now = clock_->Now();
    absl::MutexLock lock(&mutex_);
    absl::Time next = absl::InfiniteFuture();
    // Explains all before any ends: an overdue step may wait for another one.
    std::vector<std::pair<WorkPtr, absl::Status>> overdue;
    for (const auto& [ticket, work] : live_) {
      if (work->state == State::kCommitting) continue;
      if (work->ref.deadline <= now) {
        overdue.emplace_back(work, OverdueError(*work, &explanations_left));
        continue;
      }
      if (AskTimeOf(*work) <= now) {
        work->has_asked = true;
        const Work* const awaited = FindBlocker(*work);
        const bool is_running = awaited != nullptr && awaited->state == State::kRunning;
        for (const Participant& each :
             is_running ? awaited->WaitingFor() : std::vector<Participant>()) {
          asked.insert(each.identity);
        }
      }
      next = std::min({next, work->ref.deadline, AskTimeOf(*work)});
    }
    for (auto& [work, error] : overdue) End(work, std::move(error));
    deadline_.SetNoLaterThan(next);
    AdmitWaiting();
  }
  if (!asked.empty()) options_.ask(asked);
  events_.MakeCalls();
}

}  // namespace shardmesh::server
