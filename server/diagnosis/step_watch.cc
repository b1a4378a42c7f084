// StepWatch: combines the membership's and the heartbeats' facts about each rank.
#include "server/diagnosis/step_watch.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of records of a step that are read for a rank. The last records suffice: a rank
// that waits for this rank is in an instruction that this rank runs or ended recently.
constexpr size_t kRecordsOfStep = 16;
// Maximum number of running steps that are examined, oldest first. A worker starts its steps in the
// order of their numbers, so the oldest steps are the stuck ones.
constexpr int64_t kMaxStepsJudged = 64;
// Maximum number of workers that an error about a late call names.
constexpr size_t kMostLateNamed = 4;
// A heartbeat is overdue after this number of heartbeat intervals.
constexpr double kOverdueAfter = 1.25;
// Ask no longer counts after this time: regular heartbeats say more.
constexpr absl::Duration kAnsweredWithin = absl::Seconds(2);

// Returns the workers that may be late.
std::set<std::string> SuspectsOf(const OperationWorkers& workers) {
  if (workers.waiting_for.empty()) return workers.taking_part;
  std::set<std::string> suspects = workers.waiting_for;
  suspects.insert(workers.sources.begin(), workers.sources.end());
  return suspects;
}

// Returns the workers that may be late, now or when the call ends: until then, the operation may
// come to wait for other workers that take part.
std::set<std::string> SuspectsToCome(const OperationWorkers& workers) {
  std::set<std::string> suspects = SuspectsOf(workers);
  suspects.insert(workers.taking_part.begin(), workers.taking_part.end());
  return suspects;
}

std::string Name(const Participant& participant) {
  return StrCat("rank ", participant.rank, " (", participant.identity, ")");
}

// Returns the participants to blame. If two participants do not reach each other, either may be at
// fault, so the reporter of the failure is added. The reporter is not added if a blamed worker was
// lost, or attached again after the failure. The reporter is also not added if the heartbeats of a
// blamed worker have ceased while those of the reporter go on.
std::vector<Participant> BlamedFor(const FailedStep& step, const MembershipView& view,
                                   absl::Duration heartbeat_interval) {
  std::vector<Participant> blamed = step.work.blamed;
  if (ReasonOf(step.status) != Reason::kWorkerLost || !step.work.blamed_by.has_value()) {
    return blamed;
  }
  const WorkerStatus* const reporter = view.FindWorker(step.work.blamed_by->identity);
  const bool is_gone = std::any_of(blamed.begin(), blamed.end(), [&](const Participant& each) {
    const WorkerStatus* worker = view.FindWorker(each.identity);
    return worker == nullptr || worker->state == WorkerState::kLost ||
           worker->attached > step.failed ||
           (reporter != nullptr &&
            reporter->last_heartbeat() - worker->last_heartbeat() > 1.5 * heartbeat_interval);
  });
  if (!is_gone) blamed.push_back(*step.work.blamed_by);
  return blamed;
}

Finding FindingOf(const FailedStep& step, const MembershipView& view,
                  const DiagnosisOptions& options) {
  const absl::Time now = options.now;
  Finding finding{.kind = FindingKind::kFailed,
                  .explanation = std::string(step.status.message()),
                  .sequence = step.work.sequence,
                  .op = step.work.op,
                  .mesh_id = step.work.mesh_id,
                  .since = step.failed};
  std::vector<std::string> names;
  for (const Participant& blamed : BlamedFor(step, view, options.heartbeat_interval)) {
    finding.culprits.push_back({.rank = blamed.rank,
                                .identity = blamed.identity,
                                .reason = StrCat("made step ", step.work.sequence, " fail")});
    names.push_back(Name(blamed));
  }
  finding.summary =
      StrCat("a step failed ", FormatRounded(now - step.failed), " ago",
             names.empty() ? std::string() : StrCat(" because of ", StrJoin(names, ", ")), ": ",
             finding.explanation);
  return finding;
}

// Returns a finding on the tiles in the quarantines of attached workers, as of their last
// heartbeats.
std::optional<Finding> FindQuarantined(const MembershipView& view, absl::Time now) {
  constexpr size_t kNamed = 8;
  int64_t arrays = 0;
  std::vector<std::string> names;
  for (const auto& [identity, worker] : view.workers) {
    if (worker->quarantine().arrays == 0 || !view.IsAlive(identity)) continue;
    arrays += worker->quarantine().arrays;
    names.push_back(identity);
  }
  if (names.empty()) return std::nullopt;
  const size_t more = names.size() - std::min(names.size(), kNamed);
  names.resize(names.size() - more);
  Finding finding{.kind = FindingKind::kQuarantined, .since = now};
  finding.explanation = StrCat("parts of ", arrays, arrays == 1 ? " array are" : " arrays are",
                               " in quarantine, on ", StrJoin(names, ", "),
                               more > 0 ? StrCat(" and ", more, " workers more") : std::string(),
                               "; `shardmesh admin quarantine list` says why");
  finding.summary = finding.explanation;
  return finding;
}

}  // namespace

std::string StepWatch::JoinReasons(const std::vector<LateWorker>& late) {
  std::vector<std::string> reasons;
  for (const LateWorker& each : absl::MakeConstSpan(late).subspan(0, kMostLateNamed)) {
    reasons.push_back(each.why);
  }
  const size_t more = late.size() - reasons.size();
  return StrCat(StrJoin(reasons, "; "), more > 0 ? StrCat("; and ", more, " more") : "");
}

DiagnosisOptions StepWatch::OptionsNow() const {
  return {.now = clock_->Now(), .heartbeat_interval = membership_->options().heartbeat_interval};
}

ObservedRank StepWatch::Observe(const MembershipView& view, int64_t rank,
                                const std::string& identity, int64_t sequence) const {
  ObservedRank observed{.rank = rank, .identity = identity};
  const WorkerStatus* worker = view.FindWorker(identity);
  if (worker == nullptr) {
    observed.lost_because = "it has not attached since the coordinator started";
    return observed;
  }
  if (worker->state == WorkerState::kLost) {
    observed.lost_because = worker->lost_because;
    observed.lost = worker->lost;
  }
  observed.last_heartbeat = worker->last_heartbeat();
  if (std::optional<WorkerFlight> flight =
          log_->Find(identity, sequence, sequence == 0 ? 0 : kRecordsOfStep);
      flight.has_value() && flight->incarnation == worker->info.incarnation) {
    observed.unreached = std::move(flight->unreached);
    observed.progress = std::move(flight->progress);
    observed.ended = std::move(flight->records);
  }
  return observed;
}

ObservedStep StepWatch::Observe(const WorkRef& work,
                                const std::vector<Participant>& waiting_for) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  ObservedStep step{
      .sequence = work.sequence, .op = work.op, .mesh_id = work.mesh_id, .started = work.started};
  std::set<int64_t> waiting;
  for (const Participant& participant : waiting_for) waiting.insert(participant.rank);
  for (const Participant& participant : work.participants) {
    step.ranks.push_back(Observe(*view, participant.rank, participant.identity, work.sequence));
    step.ranks.back().is_done = waiting.count(participant.rank) == 0;
  }
  // If none answers, this host or the network may be slow.
  const absl::Time now = clock_->Now();
  bool has_answer = false;
  std::vector<ObservedRank*> mute;
  for (ObservedRank& rank : step.ranks) {
    const Answer answer = AnswerOf(rank.identity, view->FindWorker(rank.identity), now);
    has_answer |= answer == Answer::kGiven;
    if (answer == Answer::kMissing) mute.push_back(&rank);
  }
  for (ObservedRank* const rank : mute) rank->is_mute = has_answer;
  return step;
}

StepExplanation StepWatch::ExplainTransfer(const WorkRef& work,
                                           const std::vector<Participant>& waiting_for) const {
  OperationWorkers workers;
  // While the client may still send tiles, it is not known whether a worker is late.
  std::set<std::string>& suspects = work.commit_asked ? workers.waiting_for : workers.taking_part;
  for (const Participant& each : waiting_for) suspects.insert(each.identity);
  if (work.sources != nullptr) {
    workers.sources.insert(work.sources->begin(), work.sources->end());
  }
  const std::vector<LateWorker> late = FindLate(workers);
  StepExplanation explanation{.text = JoinReasons(late)};
  std::set<std::string_view> named;
  for (const LateWorker& each : late) {
    named.insert(each.identity);
    if (explanation.late.size() < kMostLateNamed) explanation.late.push_back(each.identity);
  }
  std::copy_if(waiting_for.begin(), waiting_for.end(), std::back_inserter(explanation.blamed),
               [&named](const Participant& each) { return named.contains(each.identity); });
  return explanation;
}

StepExplanation StepWatch::Explain(const WorkRef& work,
                                   const std::vector<Participant>& waiting_for) const {
  if (!work.transfer_id.empty()) return ExplainTransfer(work, waiting_for);
  const std::optional<Finding> finding = DiagnoseStep(Observe(work, waiting_for), OptionsNow());
  if (!finding.has_value()) return {};
  StepExplanation explanation{.text = finding->explanation};
  if (!finding->waiting.empty()) {
    explanation.waiting = StrCat(DescribeRanks(finding->waiting), " waited in ",
                                 DescribeInstruction(*finding->instruction, finding->label));
  }
  for (const Culprit& culprit : finding->culprits) {
    explanation.blamed.push_back({.rank = culprit.rank, .identity = culprit.identity});
  }
  return explanation;
}

namespace {

std::string Describe(const UnreadableRecords& unreadable) {
  // Maximum number of keys that the sentence names.
  constexpr size_t kNamed = 3;
  std::string keys;
  for (size_t i = 0; i < std::min(kNamed, unreadable.keys.size()); ++i) {
    StrAppend(&keys, i == 0 ? ", such as \"" : ", \"", unreadable.keys[i], "\"");
  }
  return StrCat(unreadable.count, unreadable.count == 1 ? " record" : " records",
                " of the coordinator's state cannot be read", keys,
                "; stop it, look at its folder with `shardmesh admin check FOLDER`, and give them "
                "up with --set-aside or restore a snapshot");
}

}  // namespace

std::vector<Finding> StepWatch::FindWorkers(const MembershipView& view,
                                            const DiagnosisOptions& options,
                                            const std::set<std::string>* wanted) const {
  const auto is_wanted = [wanted](const std::string& identity) {
    return wanted == nullptr || wanted->contains(identity);
  };
  std::vector<Finding> findings;
  std::set<std::string> told;  // a worker that serves several meshes is named once
  for (const auto& [mesh_id, mesh] : view.meshes) {
    if (std::none_of(mesh->identities.begin(), mesh->identities.end(), is_wanted)) continue;
    std::vector<ObservedRank> ranks;
    for (size_t rank = 0; rank < mesh->identities.size(); ++rank) {
      ranks.push_back(Observe(view, static_cast<int64_t>(rank), mesh->identities[rank], 0));
    }
    for (Finding& finding : DiagnoseWorkers(ranks, mesh_id, options)) {
      const std::string& identity = finding.culprits.front().identity;
      if (is_wanted(identity) && told.insert(identity).second) {
        findings.push_back(std::move(finding));
      }
    }
  }
  return findings;
}

void StepWatch::Ask(const OperationWorkers& workers) const {
  if (ask_ == nullptr) return;
  const std::shared_ptr<const MembershipView> view = membership_->view();
  std::set<std::string> asked;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    std::erase_if(asked_,
                  [now](const auto& each) { return each.second.last < now - kAnsweredWithin; });
    for (const std::string& identity : SuspectsToCome(workers)) {
      const WorkerStatus* const worker = view->FindWorker(identity);
      if (worker == nullptr || !worker->info.answers_clock) continue;
      Questions& questions = asked_[identity];
      if (now - questions.last < kAskInterval) continue;
      questions = {.last = now, .before = questions.last};
      asked.insert(identity);
    }
  }
  if (!asked.empty()) ask_(asked);
}

StepWatch::Questions StepWatch::QuestionsTo(const std::string& identity) const {
  absl::MutexLock lock(&mutex_);
  const auto found = asked_.find(identity);
  const bool counts =
      found != asked_.end() && found->second.last >= clock_->Now() - kAnsweredWithin;
  return counts ? found->second : Questions();
}

StepWatch::Answer StepWatch::AnswerOf(const std::string& identity, const WorkerStatus* worker,
                                      absl::Time now) const {
  if (worker == nullptr || !worker->info.answers_clock) return Answer::kNone;
  const Questions questions = QuestionsTo(identity);
  // Another call may have asked just now. Then the answer to the question before counts.
  const bool is_fresh = now - questions.last < kTimeToAnswer;
  const absl::Time asked =
      is_fresh && questions.before != absl::InfinitePast() ? questions.before : questions.last;
  if (asked == absl::InfinitePast()) return Answer::kNone;
  if (worker->last_heartbeat() >= asked) return Answer::kGiven;
  return now - asked >= kTimeToAnswer ? Answer::kMissing : Answer::kNone;
}

std::vector<StepWatch::LateWorker> StepWatch::FindLate(const OperationWorkers& workers) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const DiagnosisOptions options = OptionsNow();
  const std::set<std::string> suspects = SuspectsOf(workers);
  std::vector<LateWorker> late;
  for (const Finding& finding : FindWorkers(*view, options, &suspects)) {
    late.push_back({.identity = finding.culprits.front().identity, .why = finding.summary});
  }
  struct Heard {
    std::string identity;
    bool is_source;             // and not waited for itself
    absl::Time last_heartbeat;  // InfinitePast: the worker is not attached
    bool has_answered;
    bool is_mute;  // has not answered, although it had the time
  };
  std::vector<Heard> heard;
  for (const std::string& identity : suspects) {
    const WorkerStatus* const worker = view->FindWorker(identity);
    const absl::Time last_heartbeat =
        worker == nullptr ? absl::InfinitePast() : worker->last_heartbeat();
    const Answer answer = AnswerOf(identity, worker, options.now);
    heard.push_back({.identity = identity,
                     .is_source = !workers.waiting_for.contains(identity),
                     .last_heartbeat = last_heartbeat,
                     .has_answered = answer == Answer::kGiven,
                     .is_mute = answer == Answer::kMissing});
  }
  // If none answers, this host or the network may be slow.
  const auto answers = [&](const std::string& identity) {
    return AnswerOf(identity, view->FindWorker(identity), options.now) == Answer::kGiven;
  };
  const std::set<std::string> all = SuspectsToCome(workers);
  const auto is_mute = [](const Heard& each) { return each.is_mute; };
  const bool names_mute = std::any_of(heard.begin(), heard.end(), is_mute) &&
                          std::any_of(all.begin(), all.end(), answers);
  if (names_mute) {
    // A worker that answers is not at fault if it does not reach one that does not answer.
    std::erase_if(late, [&](const LateWorker& each) { return answers(each.identity); });
    std::set<std::string_view> named;
    for (const LateWorker& each : late) named.insert(each.identity);
    std::erase_if(
        heard, [&](const Heard& each) { return !each.is_mute || named.contains(each.identity); });
  } else {
    if (!late.empty() || workers.waiting_for.empty()) return late;
    std::erase_if(heard, [](const Heard& each) { return each.is_source && each.has_answered; });
  }
  const absl::Time due = options.now - kOverdueAfter * options.heartbeat_interval;
  const auto is_overdue = [due](const Heard& each) { return each.last_heartbeat < due; };
  if (!names_mute && std::any_of(heard.begin(), heard.end(), is_overdue)) {
    std::erase_if(heard, [&](const Heard& each) { return each.is_source && !is_overdue(each); });
  }
  const auto rank_of = [&](const Heard& each) {
    return std::tuple(!is_overdue(each), each.has_answered, each.is_source, each.last_heartbeat);
  };
  std::stable_sort(heard.begin(), heard.end(), [&](const Heard& one, const Heard& other) {
    return rank_of(one) < rank_of(other);
  });
  for (Heard& each : heard) {
    const std::string last =
        each.last_heartbeat == absl::InfinitePast()
            ? std::string()
            : StrCat(" (its last heartbeat came ", FormatRounded(options.now - each.last_heartbeat),
                     " ago)");
    late.push_back({.identity = each.identity,
                    .why = StrCat("worker \"", each.identity, "\" ",
                                  names_mute          ? "does not answer"
                                  : each.is_source    ? "takes part"
                                  : each.has_answered ? "has not done its part yet"
                                                      : "has not answered yet",
                                  last)});
  }
  return late;
}

absl::Status StepWatch::ExplainLate(std::string_view what, const OperationWorkers& workers) const {
  std::vector<std::string> identities;
  const std::vector<LateWorker> late = FindLate(workers);
  for (const LateWorker& each : absl::MakeConstSpan(late).subspan(0, kMostLateNamed)) {
    identities.push_back(each.identity);
  }
  const std::string why = JoinReasons(late);
  return WithReason(
      absl::DeadlineExceededError(StrCat(what, " has not ended within the time of the call",
                                         why.empty() ? "; give it more time" : StrCat(": ", why))),
      Reason::kDeadline, {{fact::kIdentity, StrJoin(identities, ",")}});
}

StepWatch::Verdict StepWatch::Diagnose(int64_t sequence,
                                       const std::vector<Sequencer::LiveWork>& live,
                                       int64_t degraded_arrays,
                                       const UnreadableRecords& unreadable) const {
  const DiagnosisOptions options = OptionsNow();
  Verdict verdict;
  int64_t running = 0;
  for (const Sequencer::LiveWork& each : live) {
    const bool is_step = each.work.transfer_id.empty() && each.work.sequence != 0;
    if (!is_step || (sequence != 0 && each.work.sequence != sequence)) continue;
    if (++running > kMaxStepsJudged) continue;
    std::optional<Finding> finding = DiagnoseStep(Observe(each.work, each.waiting_for), options);
    if (finding.has_value() && finding->is_blocked && options.now - finding->since >= kStuckAfter) {
      verdict.findings.push_back(*std::move(finding));
    }
  }
  const std::shared_ptr<const MembershipView> view = membership_->view();
  for (const FailedStep& step : log_->Failed()) {
    if (sequence != 0 ? step.work.sequence == sequence
                      : options.now - step.failed <= kFailedWithin) {
      verdict.findings.push_back(FindingOf(step, *view, options));
    }
  }
  if (sequence == 0) {
    for (Finding& finding : FindWorkers(*view, options)) {
      verdict.findings.push_back(std::move(finding));
    }
    if (degraded_arrays > 0) {
      Finding finding{.kind = FindingKind::kDegraded, .since = options.now};
      finding.explanation =
          StrCat(degraded_arrays, degraded_arrays == 1 ? " array lacks" : " arrays lack",
                 " tiles; `shardmesh ls` names the ranks that are missing");
      finding.summary = finding.explanation;
      verdict.findings.push_back(std::move(finding));
    }
    if (std::optional<Finding> aside = FindQuarantined(*view, options.now); aside.has_value()) {
      verdict.findings.push_back(*std::move(aside));
    }
    if (unreadable.count > 0) {
      Finding finding{.kind = FindingKind::kUnreadable, .since = options.now};
      finding.explanation = Describe(unreadable);
      finding.summary = finding.explanation;
      verdict.findings.push_back(std::move(finding));
    }
  }

  if (!verdict.findings.empty()) {
    const size_t more = verdict.findings.size() - 1;
    verdict.sentence = verdict.findings.front().summary;
    if (more > 0) {
      verdict.sentence += StrCat("; and ", more, more == 1 ? " finding more" : " findings more");
    }
  } else if (sequence != 0) {
    verdict.sentence =
        StrCat("step ", sequence,
               running > 0 ? " runs, and nothing is stuck"
                           : " does not run, and is not among those that failed last");
  } else {
    verdict.sentence =
        StrCat("nothing is stuck and nothing failed in the last ",
               absl::ToInt64Minutes(kFailedWithin), " minutes; ",
               running == 0 ? std::string("no step runs now")
                            : StrCat(running, running == 1 ? " step runs now" : " steps run now"));
  }
  return verdict;
}

}  // namespace shardmesh::server
