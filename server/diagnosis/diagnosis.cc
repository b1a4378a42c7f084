// Follows the wait-for graph of a step's ranks to the ranks that hold up the other ranks.
#include "server/diagnosis/diagnosis.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "process/clock.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The state of a rank with respect to one step.
enum class Position {
  kDone,       // the rank has reported that its part is done
  kLost,       // the rank's worker is not attached
  kSilent,     // the worker's heartbeats have ceased, or it does not answer
  kElsewhere,  // the rank runs another step
  kIdle,       // the rank has not begun the step
  kStarting,   // the rank has not reached the step's first instruction
  kEnding,     // the rank is past the last instruction
  kWorks,      // the rank runs an instruction that needs no other rank
  kWaits,      // the rank is in an instruction that needs data of other ranks
};

constexpr absl::Duration kSilenceOfAll = absl::Seconds(2);
// Maximum number of ranks, or of texts about ranks, that one sentence lists.
constexpr size_t kShown = 8;

std::string NameOf(const ObservedRank& rank) {
  return rank.rank < 0 ? rank.identity : StrCat("rank ", rank.rank, " (", rank.identity, ")");
}

std::string InstructionText(const FlightRecord& record) {
  return DescribeInstruction(record.op, record.what);
}

std::string TimeOfDay(absl::Time time) {
  return absl::FormatTime("%H:%M:%S UTC", time, absl::UTCTimeZone());
}

// Finds workers whose heartbeats have ceased. If the heartbeats of all workers are slightly late,
// this host or the network is slow. In that case the workers' last reports still hold.
class Silence {
 public:
  Silence(absl::Span<const ObservedRank> ranks, const DiagnosisOptions& options)
      : now_(options.now), limit_(1.5 * options.heartbeat_interval) {
    std::vector<absl::Time> heard;
    for (const ObservedRank& rank : ranks) {
      if (rank.lost_because.empty()) heard.push_back(rank.last_heartbeat);
    }
    std::sort(heard.begin(), heard.end(), std::greater<>());
    // With three or more workers, the newest heartbeat may be the first of a late round of
    // heartbeats. Compare each worker with the second newest heartbeat.
    if (!heard.empty()) others_ = heard[heard.size() > 2 ? 1 : 0];
    is_alone_ = heard.size() == 1;
  }

  bool IsOf(const ObservedRank& rank) const {
    if (!rank.lost_because.empty()) return false;
    const absl::Duration silent_for = now_ - rank.last_heartbeat;
    return others_ - rank.last_heartbeat > limit_ ||
           silent_for > (is_alone_ ? limit_ : std::max(limit_, kSilenceOfAll));
  }

 private:
  const absl::Time now_;
  const absl::Duration limit_;
  absl::Time others_ = absl::InfinitePast();
  bool is_alone_ = false;
};

std::string SilentText(const ObservedRank& rank, const DiagnosisOptions& options) {
  return StrCat("has sent no heartbeat for ", FormatRounded(options.now - rank.last_heartbeat));
}

std::string MuteText(const ObservedRank& rank, const DiagnosisOptions& options) {
  return StrCat("does not answer (its last heartbeat came ",
                FormatRounded(options.now - rank.last_heartbeat), " ago)");
}

std::string LostText(const ObservedRank& rank) {
  if (rank.lost == absl::InfinitePast()) return StrCat("is not there: ", rank.lost_because);
  return StrCat("is lost since ", TimeOfDay(rank.lost), " (", rank.lost_because, ")");
}

// Returns the instruction of the step that the rank runs now; null if none is known.
const FlightRecord* InstructionOf(const ObservedRank& rank, int64_t sequence) {
  const bool runs_it = rank.progress.has_value() && rank.progress->step == sequence;
  return runs_it && rank.progress->instruction.has_value() ? &*rank.progress->instruction : nullptr;
}

// Returns the ranks whose data an instruction waits for: the rank in `waits_for` if it is set, or
// else all ranks whose data has not come.
std::vector<int64_t> TargetsOf(const FlightRecord& instruction) {
  if (instruction.waits_for.has_value()) return {*instruction.waits_for};
  std::vector<int64_t> missing;
  for (const FlightRecord::Peer& peer : instruction.peers) {
    if (peer.data_came == absl::InfiniteFuture()) missing.push_back(peer.rank);
  }
  return missing;
}

// Joins the first kShown texts and says how many more texts there are: a step may have thousands of
// ranks.
std::string JoinFirst(absl::Span<const std::string> texts, std::string_view separator) {
  if (texts.size() <= kShown) return StrJoin(texts, separator);
  return StrCat(StrJoin(texts.first(kShown), separator), separator, texts.size() - kShown, " more");
}

std::string DescribeCulprits(absl::Span<const Culprit> culprits) {
  std::vector<std::string> names;
  for (const Culprit& culprit : culprits) {
    names.push_back(
        StrCat("rank ", culprit.rank, " (", culprit.identity, "), which ", culprit.reason));
  }
  return JoinFirst(names, "; and for ");
}

class StepDiagnosis {
 public:
  StepDiagnosis(const ObservedStep& step, const DiagnosisOptions& options)
      : step_(step), options_(options), silence_(step.ranks, options) {
    for (const ObservedRank& rank : step.ranks) ranks_[rank.rank] = &rank;
  }

  std::optional<Finding> Run() {
    for (const auto& [rank, observed] : ranks_) {
      if (PositionOf(*observed) == Position::kWaits) waiting_.push_back(rank);
    }
    Finding finding = waiting_.empty() ? WithoutWaiting() : WithWaiting();
    if (finding.culprits.empty()) return std::nullopt;
    finding.sequence = step_.sequence;
    finding.op = step_.op;
    finding.mesh_id = step_.mesh_id;
    finding.waiting = waiting_;
    finding.summary = StrCat("step ", step_.sequence, " (", step_.op, ") is ",
                             finding.kind == FindingKind::kDeadlock ? "deadlocked" : "stuck", ": ",
                             finding.explanation);
    return finding;
  }

 private:
  Position PositionOf(const ObservedRank& rank) const {
    if (rank.is_done) return Position::kDone;
    if (!rank.lost_because.empty()) return Position::kLost;
    if (rank.is_mute || silence_.IsOf(rank)) return Position::kSilent;
    if (rank.progress.has_value() && rank.progress->step != step_.sequence) {
      return Position::kElsewhere;
    }
    const FlightRecord* instruction = InstructionOf(rank, step_.sequence);
    if (instruction == nullptr) {
      if (!rank.ended.empty()) return Position::kEnding;
      return rank.progress.has_value() ? Position::kStarting : Position::kIdle;
    }
    return TargetsOf(*instruction).empty() ? Position::kWorks : Position::kWaits;
  }

  std::string Since(absl::Time started) const {
    return StrCat(", for ", FormatRounded(options_.now - started));
  }

  // Returns what the rank does while other ranks wait for it in instruction `op`. -1: no rank is
  // known to wait.
  std::string ReasonOf(const ObservedRank& rank, int64_t op) const {
    const FlightRecord* instruction = InstructionOf(rank, step_.sequence);
    switch (PositionOf(rank)) {
      case Position::kDone:
        return "has done its part, but its data does not come";
      case Position::kLost:
        return LostText(rank);
      case Position::kSilent:
        return StrCat(silence_.IsOf(rank) ? SilentText(rank, options_) : MuteText(rank, options_),
                      instruction == nullptr
                          ? std::string()
                          : StrCat(", and was in ", InstructionText(*instruction), " then"));
      case Position::kElsewhere: {
        const StepProgress& other = *rank.progress;
        return StrCat("is still in step ", other.step,
                      other.instruction.has_value()
                          ? StrCat(", ", InstructionText(*other.instruction))
                          : std::string(),
                      Since(other.started));
      }
      case Position::kIdle:
        return "has not begun the step";
      case Position::kStarting:
        return "has begun the step, but none of its instructions";
      case Position::kEnding:
        return "has ended its last instruction, but reports nothing";
      case Position::kWorks:
        return StrCat(instruction->op < op ? "has not entered it: it is still in " : "is still in ",
                      InstructionText(*instruction), Since(instruction->started));
      case Position::kWaits:
        break;
    }
    return StrCat("waits for ", DescribeRanks(TargetsOf(*instruction)), " in ",
                  InstructionText(*instruction), " (instruction ", instruction->op, ")");
  }

  Culprit CulpritOf(const ObservedRank& rank, int64_t op = -1) const {
    return {.rank = rank.rank, .identity = rank.identity, .reason = ReasonOf(rank, op)};
  }

  // Describes a step in which no rank is known to wait. Every rank that has not done its part is at
  // fault.
  Finding WithoutWaiting() const {
    Finding finding{.since = step_.started, .is_blocked = false};
    std::vector<std::string> texts;
    bool is_known = false;
    for (const auto& [rank, observed] : ranks_) {
      const Position position = PositionOf(*observed);
      if (position == Position::kDone) continue;
      // If all ranks seem idle, the step is too young for a diagnosis.
      is_known |= position != Position::kIdle;
      finding.is_blocked |= position == Position::kLost || position == Position::kSilent ||
                            position == Position::kElsewhere || position == Position::kIdle;
      finding.culprits.push_back(CulpritOf(*observed));
      texts.push_back(StrCat(NameOf(*observed), " ", finding.culprits.back().reason));
    }
    if (!is_known) finding.culprits.clear();
    finding.explanation = JoinFirst(texts, "; ");
    return finding;
  }

  Finding WithWaiting() {
    // Follow the waiting ranks to the ranks that they wait for and that do not wait themselves.
    std::set<int64_t> seen(waiting_.begin(), waiting_.end());
    std::set<int64_t> ends;
    std::map<int64_t, int64_t> votes;
    for (const int64_t rank : waiting_) {
      for (const int64_t target : TargetsOf(*InstructionOf(*ranks_.at(rank), step_.sequence))) {
        ++votes[target];
        if (ranks_.count(target) > 0 && seen.insert(target).second) ends.insert(target);
      }
    }
    Finding finding;
    Describe(MostCommonInstruction(), &finding);
    std::vector<const ObservedRank*> guilty;
    std::vector<const ObservedRank*> past;
    for (const int64_t end : ends) {
      const Position position = PositionOf(*ranks_.at(end));
      const bool is_past = position == Position::kDone || position == Position::kEnding;
      (is_past ? past : guilty).push_back(ranks_.at(end));
    }
    if (!guilty.empty()) {
      finding.kind = FindingKind::kStuck;
      for (const ObservedRank* rank : guilty) {
        finding.culprits.push_back(CulpritOf(*rank, *finding.instruction));
      }
      finding.explanation =
          StrCat(WaitingText(finding), " for ", DescribeCulprits(finding.culprits));
    } else if (!past.empty()) {
      finding.kind = FindingKind::kCutOff;
      for (const ObservedRank* rank : past) finding.culprits.push_back(CulpritOf(*rank));
      finding.explanation =
          StrCat(WaitingText(finding), " for ", DescribeCulprits(finding.culprits));
    } else {
      DescribeCircle(votes, &finding);
    }
    return finding;
  }

  // The instruction in which most ranks wait; of several such instructions, the first.
  const FlightRecord& MostCommonInstruction() const {
    std::map<int64_t, std::vector<const FlightRecord*>> by_op;
    for (const int64_t rank : waiting_) {
      const FlightRecord* instruction = InstructionOf(*ranks_.at(rank), step_.sequence);
      by_op[instruction->op].push_back(instruction);
    }
    const auto most = std::max_element(
        by_op.begin(), by_op.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    return *most->second.front();
  }

  void Describe(const FlightRecord& instruction, Finding* finding) const {
    finding->instruction = instruction.op;
    finding->label = instruction.what;
    finding->since = absl::InfiniteFuture();
    for (const int64_t rank : waiting_) {
      finding->since =
          std::min(finding->since, InstructionOf(*ranks_.at(rank), step_.sequence)->started);
    }
  }

  std::string WaitingText(const Finding& finding) const {
    return StrCat(DescribeRanks(waiting_), waiting_.size() == 1 ? " waits in " : " wait in ",
                  DescribeInstruction(*finding.instruction, finding.label));
  }

  // Finds a cycle of ranks that wait for each other. A cycle exists: every rank that other ranks
  // wait for waits itself.
  std::vector<int64_t> FindCircle() const {
    std::vector<int64_t> path;
    std::set<int64_t> passed;
    int64_t rank = waiting_.front();
    while (passed.insert(rank).second) {
      path.push_back(rank);
      const auto found = ranks_.find(rank);
      if (found == ranks_.end()) return {};
      const std::vector<int64_t> targets =
          TargetsOf(*InstructionOf(*found->second, step_.sequence));
      rank = targets.front();
      // `rank` serves another mesh, so its state is not known here.
      if (ranks_.count(rank) == 0) return {};
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    return path;
  }

  // Whether `target` takes part in the op of `instruction`, in which another rank waits. True if
  // `target` runs the same op under the same label, has run it, or has not yet reached it.
  bool DoesTheSame(const FlightRecord& instruction, const ObservedRank& target) const {
    const auto is_same = [&](const FlightRecord& other) {
      return other.op == instruction.op && other.what == instruction.what;
    };
    const FlightRecord& running = *InstructionOf(target, step_.sequence);
    if (running.op == instruction.op) return is_same(running);
    // If `target` has not reached the op, it may still run the same op.
    return running.op < instruction.op ||
           std::any_of(target.ended.begin(), target.ended.end(), is_same);
  }

  void DescribeCircle(const std::map<int64_t, int64_t>& votes, Finding* finding) const {
    const std::vector<int64_t> circle = FindCircle();
    bool is_same = true;
    for (const int64_t rank : circle) {
      const FlightRecord& instruction = *InstructionOf(*ranks_.at(rank), step_.sequence);
      is_same &= DoesTheSame(instruction, *ranks_.at(TargetsOf(instruction).front()));
    }
    if (!is_same) {
      finding->kind = FindingKind::kDeadlock;
      std::vector<std::string> texts;
      for (const int64_t rank : circle) {
        finding->culprits.push_back(CulpritOf(*ranks_.at(rank)));
        texts.push_back(StrCat(NameOf(*ranks_.at(rank)), " ", finding->culprits.back().reason));
      }
      finding->explanation = StrCat(JoinFirst(texts, ", "), ": they do not run the same program");
      return;
    }
    finding->kind = FindingKind::kCutOff;
    for (const int64_t rank : CutOff(circle, votes)) {
      finding->culprits.push_back(CulpritOf(*ranks_.at(rank)));
    }
    if (finding->culprits.empty()) return;
    std::vector<std::string> names;
    for (const Culprit& culprit : finding->culprits) {
      names.push_back(NameOf(*ranks_.at(culprit.rank)));
    }
    finding->explanation =
        StrCat(WaitingText(*finding), " for each other: data does not get through ",
               names.size() == 1 ? "to or from " : "among ", JoinFirst(names, ", "));
  }

  // Returns the ranks whose connections seem broken: those that occur most often in reports of
  // unreachable peers, as reporter or as peer. Without such reports, returns the one rank for which
  // all other waiting ranks wait. If no rank is such, returns all ranks of the cycle.
  std::vector<int64_t> CutOff(const std::vector<int64_t>& circle,
                              const std::map<int64_t, int64_t>& votes) const {
    std::map<std::string_view, int64_t> rank_of;
    for (const auto& [rank, observed] : ranks_) rank_of[observed->identity] = rank;
    std::map<int64_t, int64_t> broken;
    for (const auto& [rank, observed] : ranks_) {
      for (const std::string& peer : observed->unreached) {
        const auto other = rank_of.find(peer);
        if (other == rank_of.end()) continue;
        ++broken[rank];
        ++broken[other->second];
      }
    }
    const auto by_votes = [](const auto& a, const auto& b) { return a.second < b.second; };
    if (!broken.empty()) {
      const int64_t most = std::max_element(broken.begin(), broken.end(), by_votes)->second;
      std::vector<int64_t> worst;
      for (const auto& [rank, count] : broken) {
        if (count == most) worst.push_back(rank);
      }
      return worst;
    }
    const auto most = std::max_element(votes.begin(), votes.end(), by_votes);
    const auto others = static_cast<int64_t>(waiting_.size()) - 1;
    if (others > 1 && most->second == others && ranks_.count(most->first) > 0) {
      return {most->first};
    }
    std::vector<int64_t> sorted = circle;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  const ObservedStep& step_;
  const DiagnosisOptions& options_;
  const Silence silence_;
  std::map<int64_t, const ObservedRank*> ranks_;
  std::vector<int64_t> waiting_;  // rising
};

}  // namespace

std::string DescribeInstruction(int64_t instruction, std::string_view label) {
  return label.empty() ? StrCat("instruction ", instruction) : StrCat("\"", label, "\"");
}

std::string DescribeRanks(absl::Span<const int64_t> ranks) {
  if (ranks.size() == 1) return StrCat("rank ", ranks.front());
  if (ranks.size() > kShown) {
    return StrCat("ranks ", StrJoin(ranks.first(kShown), ", "), " and ", ranks.size() - kShown,
                  " more");
  }
  return StrCat("ranks ", StrJoin(ranks.first(ranks.size() - 1), ", "), " and ", ranks.back());
}

std::optional<Finding> DiagnoseStep(const ObservedStep& step, const DiagnosisOptions& options) {
  return StepDiagnosis(step, options).Run();
}

std::vector<Finding> DiagnoseWorkers(absl::Span<const ObservedRank> ranks,
                                     const std::string& mesh_id, const DiagnosisOptions& options) {
  const Silence silence(ranks, options);
  std::vector<Finding> findings;
  const auto add = [&](const ObservedRank& rank, std::string reason, absl::Time since) {
    Finding& finding = findings.emplace_back();
    finding.kind = FindingKind::kWorker;
    finding.mesh_id = mesh_id;
    finding.explanation = StrCat(NameOf(rank), " of mesh \"", mesh_id, "\" ", reason);
    finding.summary = finding.explanation;
    finding.culprits = {
        {.rank = rank.rank, .identity = rank.identity, .reason = std::move(reason)}};
    finding.since = since;
  };
  std::map<std::string_view, const ObservedRank*> heard;  // by identity
  for (const ObservedRank& rank : ranks) {
    if (rank.lost_because.empty() && !silence.IsOf(rank)) heard[rank.identity] = &rank;
  }
  // For each rank: the ranks that it does not reach, or that do not reach it.
  std::map<const ObservedRank*, std::set<const ObservedRank*>> apart;
  for (const ObservedRank& rank : ranks) {
    if (!rank.lost_because.empty()) {
      add(rank, LostText(rank), rank.lost);
      continue;
    }
    if (silence.IsOf(rank)) {
      add(rank, SilentText(rank, options), rank.last_heartbeat);
      continue;
    }
    for (const std::string& peer : rank.unreached) {
      const auto other = heard.find(peer);
      if (other == heard.end()) continue;
      apart[&rank].insert(other->second);
      apart[other->second].insert(&rank);
    }
  }
  while (!apart.empty()) {
    // Names the rank with the most broken connections first, because that rank is most likely the
    // cause.
    const auto most =
        std::max_element(apart.begin(), apart.end(), [](const auto& a, const auto& b) {
          return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                                    : a.first->rank > b.first->rank;
        });
    const ObservedRank* const rank = most->first;
    std::vector<int64_t> others;
    for (const ObservedRank* other : most->second) others.push_back(other->rank);
    std::sort(others.begin(), others.end());
    add(*rank, StrCat("and ", DescribeRanks(others), " do not reach each other"), options.now);
    apart.erase(most);
    for (auto it = apart.begin(); it != apart.end();) {
      it->second.erase(rank);
      it = it->second.empty() ? apart.erase(it) : std::next(it);
    }
  }
  return findings;
}

}  // namespace shardmesh::server
