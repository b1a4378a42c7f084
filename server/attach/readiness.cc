// Compares a mesh's current state with the state that its workers have received and reported.
#include "server/attach/readiness.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum number of ranks of a mesh, and maximum number of unreached peers of one rank, that an
// error names.
constexpr size_t kMostRanksNamed = 16;
// No rank is named after this many bytes. A message is cut at 1,024 bytes, and ends with its
// advice.
constexpr size_t kMostRanksBytes = 512;
// Workers normally connect to each other within this time after an attach or a lost connection.
constexpr absl::Duration kTimeToMeet = absl::Seconds(5);
// A worker is silent if its last heartbeat is this number of intervals older than the newest
// heartbeat of the mesh.
constexpr double kSilentAfter = 1.5;

absl::Status NotReady(std::string_view mesh_id, std::string_view why, Facts facts) {
  return WithRetryDelay(WithFacts(WithReason(absl::FailedPreconditionError(StrCat(
                                                 "the mesh \"", mesh_id, "\" is not ready: ", why)),
                                             Reason::kMeshIncomplete, {{fact::kMesh, mesh_id}}),
                                  facts),
                        absl::Milliseconds(200));
}

}  // namespace

Readiness::Readiness(const Membership* membership, const DefinitionStore* definition_store,
                     const Recovery* recovery, const Clock* clock)
    : membership_(membership),
      definition_store_(definition_store),
      recovery_(recovery),
      clock_(clock) {}

void Readiness::Joined(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  reports_.insert_or_assign(std::string(identity), PeersReport());
}

void Readiness::Left(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = reports_.find(identity); found != reports_.end()) reports_.erase(found);
}

void Readiness::PeersReported(std::string_view identity, int64_t epoch,
                              const std::vector<std::string>& unreached) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  const auto found = reports_.find(identity);
  if (found == reports_.end()) return;
  PeersReport report{.epoch = epoch};
  for (const std::string& peer : unreached) {
    const auto before = found->second.unreached.find(peer);
    report.unreached.emplace(peer, before == found->second.unreached.end() ? now : before->second);
  }
  found->second = std::move(report);
}

void Readiness::Told(std::shared_ptr<const MembershipView> view,
                     std::shared_ptr<const Definitions> state) {
  absl::MutexLock lock(&mutex_);
  told_view_.swap(view);
  told_state_.swap(state);
}

bool Readiness::IsReady(std::string_view identity) const {
  const int64_t epoch = membership_->view()->epoch;
  absl::MutexLock lock(&mutex_);
  const auto found = reports_.find(identity);
  return found != reports_.end() && found->second.epoch == epoch && found->second.unreached.empty();
}

absl::Status Readiness::Check(std::string_view mesh_id) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const MeshRanks* ranks = view->FindMesh(mesh_id);
  if (const absl::Status complete = view->CheckComplete(mesh_id); !complete.ok()) {
    return ranks == nullptr ? complete : Incomplete(*view, *ranks, complete);
  }
  // Assigning ranks writes them to the definition, which is then published again. Before that
  // publication, the published definition lacks the new ranks.
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition, state->Find(DefinitionKind::kMesh, mesh_id));
  if (WorkersOf(*definition) != ranks->identities) {
    return Recovering(
        StrCat("the mesh \"", mesh_id, "\" is not ready: its ranks are being assigned; try again"));
  }
  std::vector<std::string> missing;
  std::vector<std::string> missing_ranks;
  std::vector<std::string> missing_identities;
  std::string held;  // the worker that an operator must resume
  bool is_passing = true;
  size_t size_bytes = 0;
  const std::set<std::string_view> silent = FindSilent(*view, *ranks);
  absl::MutexLock lock(&mutex_);
  if (const auto told = told_state_ == nullptr
                            ? absl::StatusOr<std::shared_ptr<const Definition>>(nullptr)
                            : told_state_->Find(DefinitionKind::kMesh, mesh_id);
      !told.ok() || *told != definition || told_view_->FindMesh(mesh_id) != ranks) {
    return Recovering(StrCat("the mesh \"", mesh_id,
                             "\" is not ready: its workers are being notified; try again"));
  }
  std::set<std::string_view> missed;
  std::vector<std::string> unmet;  // by rank
  for (const std::string& identity : ranks->identities) {
    unmet.push_back(FindUnmet(identity, *ranks, view->epoch, silent, &missed));
  }
  for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
    const std::string& identity = ranks->identities[rank];
    const WorkerStatus& worker = *view->FindWorker(identity);
    const bool is_draining = worker.state == WorkerState::kDraining;
    const std::string why = worker.is_held ? "is drained by an operator"
                            : is_draining  ? "is draining"
                            : missed.contains(identity)
                                ? StrCat("has sent no heartbeat for ",
                                         FormatRounded(clock_->Now() - worker.last_heartbeat()),
                                         ", and its peers do not reach it")
                                : unmet[rank];
    if (why.empty()) continue;
    // A live worker without a report has not finished attaching: it becomes a member soon, or its
    // stream is cut as late.
    is_passing =
        is_passing && (is_draining ? worker.info.durable && !worker.is_held
                                   : !reports_.contains(identity) || MayMeetSoon(*view, *ranks));
    if (worker.is_held) held = held.empty() || held == identity ? identity : "WORKER";
    if (missing.size() == kMostRanksNamed || size_bytes >= kMostRanksBytes) {
      missing.push_back("and others");
      break;
    }
    missing_ranks.push_back(StrCat(rank));
    missing_identities.push_back(identity);
    missing.push_back(StrCat("rank ", rank, " (worker \"", identity, "\" ", why, ")"));
    size_bytes += missing.back().size();
  }
  if (missing.empty()) return absl::OkStatus();
  std::string why = StrJoin(missing, ", ");
  if (!held.empty()) {
    StrAppend(&why, "; `shardmesh admin worker drain ", held,
              " --resume` takes it into use again; once its process has ended, `shardmesh admin "
              "worker replace` gives its ranks to another worker");
  }
  const std::string identities = StrJoin(missing_identities, ",");
  return is_passing
             ? Recovering(
                   StrCat("the mesh \"", mesh_id, "\" is not ready yet: ", why, "; try again"),
                   {{fact::kIdentity, identities}})
             : NotReady(
                   mesh_id, why,
                   {{fact::kRank, StrJoin(missing_ranks, ",")}, {fact::kIdentity, identities}});
}

// Returns `incomplete`, or RECOVERING if the workers of all missing ranks are expected back.
absl::Status Readiness::Incomplete(const MembershipView& view, const MeshRanks& ranks,
                                   const absl::Status& incomplete) const {
  const std::vector<int64_t> missing = view.MissingRanks(ranks);
  std::vector<std::string> names;
  std::vector<std::string> identities;
  for (const int64_t rank : missing) {
    const std::string& identity = ranks.identities[static_cast<size_t>(rank)];
    if (!recovery_->ComesBack(identity)) return incomplete;
    if (names.size() == kMostRanksNamed) continue;
    names.push_back(view.DescribeRank(ranks, rank));
    identities.push_back(identity);
  }
  if (missing.empty()) return incomplete;
  if (missing.size() > names.size()) {
    names.push_back(StrCat(missing.size() - names.size(), " more"));
  }
  return Recovering(StrCat("mesh \"", ranks.mesh_id, "\" waits for ", StrJoin(names, ", "),
                           " to come back, ", recovery_->WaitAdvice()),
                    {{fact::kIdentity, StrJoin(identities, ",")}});
}

std::set<std::string_view> Readiness::FindSilent(const MembershipView& view,
                                                 const MeshRanks& mesh) const {
  absl::Time newest = absl::InfinitePast();
  for (const std::string& identity : mesh.identities) {
    newest = std::max(newest, view.FindWorker(identity)->last_heartbeat());
  }
  const absl::Time due = newest - kSilentAfter * membership_->options().heartbeat_interval;
  std::set<std::string_view> silent;
  for (const std::string& identity : mesh.identities) {
    if (view.FindWorker(identity)->last_heartbeat() < due) silent.insert(identity);
  }
  return silent;
}

// Ignores peers that serve no rank of `mesh`: a step of this mesh does not need them.
std::string Readiness::FindUnmet(std::string_view identity, const MeshRanks& mesh, int64_t epoch,
                                 const std::set<std::string_view>& silent,
                                 std::set<std::string_view>* missed) const {
  const auto found = reports_.find(identity);
  if (found == reports_.end() || found->second.epoch != epoch) {
    return "has not reached its peers yet";
  }
  const bool is_silent = silent.contains(identity);
  std::vector<std::string> apart;
  for (const auto& [peer, since] : found->second.unreached) {
    if (!mesh.RankOf(peer).has_value()) continue;
    if (const auto at_fault = silent.find(peer); !is_silent && at_fault != silent.end()) {
      missed->insert(*at_fault);
      continue;
    }
    if (apart.size() < kMostRanksNamed) {
      apart.push_back(StrCat("\"", peer, "\""));
    } else if (apart.size() == kMostRanksNamed) {
      apart.push_back("others");
    }
  }
  return apart.empty() ? "" : StrCat("does not reach ", StrJoin(apart, ", "));
}

// Whether a worker of the mesh attached, or lost its connection to a peer, in the last kTimeToMeet.
// If a worker's process pauses, its peers report lost connections before any other sign of the
// pause.
bool Readiness::MayMeetSoon(const MembershipView& view, const MeshRanks& ranks) const {
  const absl::Time lately = clock_->Now() - kTimeToMeet;
  for (const std::string& identity : ranks.identities) {
    const WorkerStatus* const worker = view.FindWorker(identity);
    if (worker != nullptr && worker->attached > lately) return true;
    const auto member = reports_.find(identity);
    if (member == reports_.end()) continue;
    for (const auto& [peer, since] : member->second.unreached) {
      if (since > lately && ranks.RankOf(peer).has_value()) return true;
    }
  }
  return false;
}

}  // namespace shardmesh::server
