// Attaches, drains and loses workers, assigns ranks, and publishes views.
#include "server/state/membership.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "rpc/codec/field_check.h"
#include "sharding/mesh.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// The maximum number of ranks that one error names.
constexpr size_t kMostRanksNamed = 16;
// No rank is named after this many bytes. A message is cut at 1,024 bytes, and ends with its
// advice.
constexpr size_t kMostRanksBytes = 512;
// A pause of this process up to this length is ignored: the workers' silence still counts.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

bool IsAlive(const WorkerStatus& worker) { return worker.state != WorkerState::kLost; }

// Returns OK if the worker may be used again after a drain.
absl::Status CheckResume(const WorkerStatus& worker) {
  if (!worker.is_leaving) return absl::OkStatus();
  const std::string& identity = worker.info.identity;
  return WithReason(
      absl::FailedPreconditionError(
          StrCat("worker \"", identity, "\" is leaving: its process is ending; start another one")),
      Reason::kNotServing, {{fact::kIdentity, identity}});
}

WorkerState StateOfLive(const WorkerStatus& worker) {
  return worker.is_leaving || worker.is_held ? WorkerState::kDraining : WorkerState::kAttached;
}

absl::Status BadField(std::string message) {
  return WithReason(absl::InvalidArgumentError(message), Reason::kBadField);
}

absl::Status CheckInfo(const WorkerInfo& info) {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(info.identity, "identity"));
  if (info.incarnation == 0) {
    return BadField(StrCat("worker \"", info.identity,
                           "\" has incarnation 0; it must draw another at each start"));
  }
  if (info.endpoints.empty()) {
    return BadField(StrCat("worker \"", info.identity,
                           "\" advertises no endpoint; its peers and clients need one"));
  }
  if (info.capacity_bytes < 0) {
    return BadField(StrCat("worker \"", info.identity, "\" has a capacity of ", info.capacity_bytes,
                           " bytes; it cannot be negative"));
  }
  return absl::OkStatus();
}

template <typename Meshes>
absl::Status NoMesh(std::string_view mesh_id, const Meshes& meshes) {
  constexpr size_t kMostNamed = 5;
  const std::vector<std::string> neighbours = NeighboursOf(mesh_id, meshes);
  const std::vector<std::string_view> known(neighbours.begin(), neighbours.end());
  std::vector<std::string> names;
  for (const auto& [name, mesh] : meshes) {
    if (names.size() == kMostNamed) {
      names.push_back("...");
      break;
    }
    names.push_back(StrCat("\"", name, "\""));
  }
  return WithReason(
      absl::NotFoundError(StrCat("no mesh \"", mesh_id, "\"; ",
                                 names.empty() ? std::string("there is none yet, define one")
                                               : StrCat("there is ", StrJoin(names, ", ")))),
      Reason::kNotFound,
      {{fact::kKind, "mesh"},
       {fact::kName, mesh_id},
       {fact::kNearest, NearestName(mesh_id, known).value_or("")}});
}

// Checks that each rank has one worker and no worker has two ranks.
absl::Status CheckIdentities(std::string_view mesh_id, int64_t size,
                             const std::vector<std::string>& identities) {
  if (static_cast<int64_t>(identities.size()) != size) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("mesh \"", mesh_id, "\" has ", size, " ranks and ",
                                          identities.size(), " workers; name one per rank")),
        Reason::kMeshSizeMismatch,
        {{fact::kHave, identities.size()}, {fact::kNeed, size}, {fact::kMesh, mesh_id}});
  }
  std::set<std::string_view> distinct;
  for (const std::string& identity : identities) {
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckIdentity(identity, "workers"));
    if (!distinct.insert(identity).second) {
      return BadField(StrCat("mesh \"", mesh_id, "\" names worker \"", identity,
                             "\" for two ranks; a worker serves one rank of a mesh"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kAttached:
      return "ATTACHED";
    case WorkerState::kDraining:
      return "DRAINING";
    case WorkerState::kLost:
      return "LOST";
  }
  return "UNKNOWN";
}

MeshRanks::MeshRanks(std::string id, std::vector<std::string> by_rank, int64_t rank_count)
    : mesh_id(std::move(id)), identities(std::move(by_rank)), size(rank_count) {
  by_identity_.resize(identities.size());
  std::iota(by_identity_.begin(), by_identity_.end(), 0U);
  std::sort(by_identity_.begin(), by_identity_.end(),
            [this](uint32_t a, uint32_t b) { return identities[a] < identities[b]; });
}

std::optional<int64_t> MeshRanks::RankOf(std::string_view identity) const {
  const auto found = std::lower_bound(
      by_identity_.begin(), by_identity_.end(), identity,
      [this](uint32_t rank, std::string_view wanted) { return identities[rank] < wanted; });
  if (found == by_identity_.end() || identities[*found] != identity) return std::nullopt;
  return *found;
}

const WorkerStatus* MembershipView::FindWorker(std::string_view identity) const {
  const auto found = workers.find(identity);
  return found == workers.end() ? nullptr : found->second.get();
}

const MeshRanks* MembershipView::FindMesh(std::string_view mesh_id) const {
  const auto found = meshes.find(mesh_id);
  return found == meshes.end() ? nullptr : found->second.get();
}

bool MembershipView::IsAlive(std::string_view identity) const {
  const WorkerStatus* worker = FindWorker(identity);
  return worker != nullptr && server::IsAlive(*worker);
}

std::string MembershipView::DescribeRank(const MeshRanks& mesh, int64_t rank) const {
  const std::string& identity = mesh.identities[static_cast<size_t>(rank)];
  const WorkerStatus* worker = FindWorker(identity);
  const std::string why = worker == nullptr ? ": not attached since the coordinator started"
                          : server::IsAlive(*worker) ? ""
                                                     : StrCat(": ", worker->lost_because);
  return StrCat("rank ", rank, " (", identity, why, ")");
}

absl::Status MembershipView::CheckComplete(std::string_view mesh_id) const {
  const MeshRanks* mesh = FindMesh(mesh_id);
  if (mesh == nullptr) return NoMesh(mesh_id, meshes);
  if (mesh->identities.empty()) {
    // Draining workers get no ranks.
    std::vector<std::string> held;
    int64_t have = 0;
    for (const auto& [identity, worker] : workers) {
      have += worker->state == WorkerState::kAttached ? 1 : 0;
      if (server::IsAlive(*worker) && worker->is_held) held.push_back(identity);
    }
    std::string advice = StrCat("start ", mesh->size - have, " more");
    if (!held.empty()) {
      StrAppend(&advice, ", or take drained ones into use again: `shardmesh admin worker drain ",
                held.front(), " --resume`");
    }
    return WithReason(absl::FailedPreconditionError(
                          StrCat("mesh \"", mesh_id, "\" needs ", mesh->size, " workers, ", have,
                                 " are attached and not drained; ", advice)),
                      Reason::kMeshIncomplete,
                      {{fact::kMesh, mesh_id}, {fact::kHave, have}, {fact::kNeed, mesh->size}});
  }
  // Name only the first missing ranks, so that the error fits an answer.
  std::vector<std::string> missing;
  std::vector<std::string> ranks;
  std::vector<std::string> identities;
  int64_t more = 0;
  size_t size_bytes = 0;
  for (const int64_t rank : MissingRanks(*mesh)) {
    if (missing.size() < kMostRanksNamed && size_bytes < kMostRanksBytes) {
      missing.push_back(DescribeRank(*mesh, rank));
      size_bytes += missing.back().size();
      ranks.push_back(StrCat(rank));
      identities.push_back(mesh->identities[static_cast<size_t>(rank)]);
    } else {
      ++more;
    }
  }
  if (missing.empty()) return absl::OkStatus();
  const int64_t have = mesh->size - more - std::ssize(missing);
  if (more > 0) missing.push_back(StrCat(more, " more"));
  return WithReason(absl::FailedPreconditionError(StrCat(
                        "mesh \"", mesh_id, "\" has no live worker for ", StrJoin(missing, ", "),
                        "; start them again, or give their ranks to other "
                        "workers (`shardmesh admin worker replace`)")),
                    Reason::kMeshIncomplete,
                    {{fact::kMesh, mesh_id},
                     {fact::kRank, StrJoin(ranks, ",")},
                     {fact::kIdentity, StrJoin(identities, ",")},
                     {fact::kHave, have},
                     {fact::kNeed, mesh->size}});
}

std::vector<int64_t> MembershipView::MissingRanks(const MeshRanks& mesh) const {
  std::vector<int64_t> missing;
  for (size_t rank = 0; rank < mesh.identities.size(); ++rank) {
    if (!IsAlive(mesh.identities[rank])) missing.push_back(static_cast<int64_t>(rank));
  }
  return missing;
}

Membership::Membership(Clock* clock, MembershipOptions options)
    : clock_(clock),
      options_(options),
      // Ignore only pauses up to half of lost_after. The last heartbeat may be one heartbeat
      // interval old when the process is stopped. After an ignored pause, there is still enough
      // time for the next heartbeat.
      pauses_(clock, std::min(kLongestPause, options.lost_after / 2), "workers"),
      silence_(clock, [this] { LoseSilent(); }) {
  state_.epoch = options.first_epoch;
}

void Membership::AddListener(Listener listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.push_back(std::move(listener));
}

std::shared_ptr<const MembershipView> Membership::view() const {
  absl::MutexLock lock(&mutex_);
  if (view_ == nullptr) view_ = std::make_shared<const MembershipView>(state_);
  return view_;
}

std::vector<ServedRank> Membership::RanksOf(std::string_view identity) const {
  std::vector<ServedRank> ranks;
  absl::MutexLock lock(&mutex_);
  const auto found = ranks_of_.find(ToAbsl(identity));
  if (found == ranks_of_.end()) return ranks;
  ranks.reserve(found->second.size());
  for (const auto& [mesh_id, rank] : found->second) ranks.push_back({mesh_id, rank});
  return ranks;
}

absl::StatusOr<uint64_t> Membership::Attach(WorkerInfo info) {
  SHARDMESH_RETURN_IF_ERROR(CheckInfo(info));
  uint64_t attachment = 0;
  {
    const absl::Time now = clock_->Now();
    absl::MutexLock lock(&mutex_);
    const WorkerStatus* const known = state_.FindWorker(info.identity);
    const bool known_alive = known != nullptr && IsAlive(*known);
    if (known_alive && known->info.incarnation != info.incarnation) {
      return WithReason(absl::AlreadyExistsError(StrCat(
                            "identity \"", info.identity, "\" is held by process ", known->info.pid,
                            " on ", known->info.host.empty() ? "an unnamed host" : known->info.host,
                            " (", known->info.endpoints.front(),
                            "); stop it, or start this worker under another "
                            "identity")),
                        Reason::kIdentityInUse, {{fact::kIdentity, info.identity}});
    }
    attachment = next_attachment_++;
    WorkerStatus worker;
    if (known != nullptr) worker.losses = known->losses;
    if (known != nullptr && known->info.incarnation == info.incarnation) {
      worker.is_held = known->is_held;
    }
    if (known_alive) {
      worker.is_leaving = known->is_leaving;
      attachments_.erase(known->attachment);
    }
    worker.state = StateOfLive(worker);
    worker.info = std::move(info);
    worker.attachment = attachment;
    worker.attached = now;
    worker.vitals->Beat(now);
    const std::string identity = worker.info.identity;
    attachments_.emplace(attachment, Attachment{identity, worker.vitals});
    silence_.SetNoLaterThan(now + options_.lost_after);
    // Raise the epoch even if a new stream replaces an older stream: messages in transit on the
    // older stream are lost.
    ++state_.epoch;
    Replace(std::move(worker));
    Publish({.kind = MembershipEvent::Kind::kAttached, .identity = identity});
    if (!known_alive) AssignRanks();
  }
  events_.MakeCalls();
  return attachment;
}

absl::Status Membership::Heartbeat(uint64_t attachment, int64_t used_bytes,
                                   QuarantineCount quarantine) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) {
    return WithReason(
        absl::AbortedError(StrCat("attachment ", attachment, " has ended; attach again")),
        Reason::kStaleEpoch);
  }
  found->second.vitals->Beat(now);
  found->second.vitals->SetUsedBytes(used_bytes);
  found->second.vitals->SetQuarantine(quarantine);
  return absl::OkStatus();
}

void Membership::Detach(uint64_t attachment, std::string reason) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = attachments_.find(attachment);
    if (found == attachments_.end()) return;
    Lose(*state_.FindWorker(found->second.identity), std::move(reason));
  }
  events_.MakeCalls();
}

absl::StatusOr<const WorkerStatus*> Membership::FindLive(std::string_view identity) const {
  const WorkerStatus* const worker = state_.FindWorker(identity);
  if (worker != nullptr && IsAlive(*worker)) return worker;
  return WithReason(absl::NotFoundError(StrCat("no live worker has the identity \"", identity,
                                               "\"; `shardmesh status` lists the workers")),
                    Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, identity}});
}

absl::Status Membership::SetDraining(std::string_view identity,
                                     const std::function<absl::Status(WorkerStatus*)>& change) {
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(const WorkerStatus* const known, FindLive(identity));
    WorkerStatus worker = *known;
    SHARDMESH_RETURN_IF_ERROR(change(&worker));
    worker.state = StateOfLive(worker);
    const bool has_changed = worker.state != known->state;
    Replace(std::move(worker));
    if (has_changed) {
      Publish({.kind = MembershipEvent::Kind::kDrainChanged, .identity = std::string(identity)});
      AssignRanks();
    }
    view_ = nullptr;
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Membership::Drain(std::string_view identity, bool draining) {
  return SetDraining(identity, [draining](WorkerStatus* worker) -> absl::Status {
    if (!draining) {
      SHARDMESH_RETURN_IF_ERROR(CheckResume(*worker));
    }
    worker->is_held = draining;
    return absl::OkStatus();
  });
}

absl::Status Membership::CheckDrain(std::string_view identity, bool draining) const {
  absl::MutexLock lock(&mutex_);
  SHARDMESH_ASSIGN_OR_RETURN(const WorkerStatus* const worker, FindLive(identity));
  return draining ? absl::OkStatus() : CheckResume(*worker);
}

absl::Status Membership::Leave(std::string_view identity) {
  return SetDraining(identity, [](WorkerStatus* worker) {
    worker->is_leaving = true;
    return absl::OkStatus();
  });
}

absl::Status Membership::CheckLost(std::string_view identity) const {
  if (const auto ranks = ranks_of_.find(ToAbsl(identity)); ranks != ranks_of_.end()) {
    const auto& [mesh_id, rank] = *ranks->second.begin();
    const size_t others = ranks->second.size() - 1;
    return WithReason(absl::FailedPreconditionError(
                          StrCat("worker \"", identity, "\" serves rank ", rank, " of mesh \"",
                                 mesh_id, "\"", others > 0 ? StrCat(" and ", others, " more") : "",
                                 "; give its ranks to another worker first, or change the meshes")),
                      Reason::kWorkerServesRank,
                      {{fact::kIdentity, identity},
                       {fact::kMesh, mesh_id},
                       {fact::kRank, rank},
                       {fact::kHave, ranks->second.size()}});
  }
  const WorkerStatus* const worker = state_.FindWorker(identity);
  if (worker == nullptr) {
    return WithReason(absl::NotFoundError(StrCat("no worker has the identity \"", identity,
                                                 "\"; `shardmesh status` lists the workers")),
                      Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, identity}});
  }
  if (!IsAlive(*worker)) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat("worker \"", identity, "\" is attached; stop it first")),
      Reason::kWorkerAttached, {{fact::kIdentity, identity}});
}

absl::Status Membership::CheckForget(std::string_view identity) const {
  absl::MutexLock lock(&mutex_);
  return CheckLost(identity);
}

absl::Status Membership::Forget(std::string_view identity) {
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckLost(identity));
    const auto found = state_.workers.find(identity);
    const std::shared_ptr<const WorkerStatus> worker = found->second;
    state_.workers.erase(found);
    Publish({.kind = MembershipEvent::Kind::kForgotten,
             .identity = worker->info.identity,
             .worker = worker});
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Membership::AddMesh(std::string mesh_id, int64_t size,
                                 std::vector<std::string> identities) {
  if (size < 1 || size > kMaxMeshDevices) {
    return BadField(
        StrCat("mesh \"", mesh_id, "\" has ", size, " ranks; it must have 1 to ", kMaxMeshDevices));
  }
  if (!identities.empty()) {
    SHARDMESH_RETURN_IF_ERROR(CheckIdentities(mesh_id, size, identities));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (state_.meshes.count(mesh_id) > 0) {
      return WithReason(absl::AlreadyExistsError(StrCat("mesh \"", mesh_id, "\" is defined")),
                        Reason::kAlreadyExists, {{fact::kKind, "mesh"}, {fact::kName, mesh_id}});
    }
    SetMesh(mesh_id, std::move(identities), size);
    Publish({.kind = MembershipEvent::Kind::kMeshAdded, .mesh_id = mesh_id});
    AssignRanks();
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Membership::SetRanks(std::string_view mesh_id, std::vector<std::string> identities) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = state_.meshes.find(mesh_id);
    if (found == state_.meshes.end()) return NoMesh(mesh_id, state_.meshes);
    const std::shared_ptr<const MeshRanks> former = found->second;
    SHARDMESH_RETURN_IF_ERROR(CheckIdentities(mesh_id, former->size, identities));
    if (former->identities.empty()) {
      return absl::FailedPreconditionError(
          StrCat("the ranks of mesh \"", mesh_id, "\" are not given yet"));
    }
    TakeRanks(*former);
    SetMesh(former->mesh_id, std::move(identities), former->size);
    Publish({.kind = MembershipEvent::Kind::kRanksMoved,
             .mesh_id = former->mesh_id,
             .mesh = state_.meshes.find(mesh_id)->second,
             .former = former});
    ForgetLater(*former);
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Membership::RemoveMesh(std::string_view mesh_id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = state_.meshes.find(mesh_id);
    if (found == state_.meshes.end()) return NoMesh(mesh_id, state_.meshes);
    const std::shared_ptr<const MeshRanks> mesh = found->second;
    TakeRanks(*mesh);
    ForgetLater(*mesh);
    state_.meshes.erase(found);
    Publish({.kind = MembershipEvent::Kind::kMeshRemoved, .mesh_id = std::string(mesh_id)});
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

void Membership::TakeRanks(const MeshRanks& mesh) {
  unassigned_.erase({mesh.size, mesh.mesh_id});
  for (const std::string& identity : mesh.identities) {
    const auto ranks = ranks_of_.find(identity);
    ranks->second.erase(mesh.mesh_id);
    if (ranks->second.empty()) ranks_of_.erase(ranks);
  }
}

void Membership::ForgetLater(const MeshRanks& mesh) {
  for (const std::string& identity : mesh.identities) {
    const WorkerStatus* const worker = state_.FindWorker(identity);
    if (worker != nullptr) silence_.SetNoLaterThan(ForgetTime(*worker));
  }
}

void Membership::LoseSilent() {
  const absl::Time now = clock_->Now();
  // Heartbeats that arrived during a pause of this process are read only after the pause, so do not
  // count the pause as silence.
  const absl::Time runs_since = pauses_.RunsSince(now);
  {
    absl::MutexLock lock(&mutex_);
    absl::Time next = absl::InfiniteFuture();
    std::vector<std::shared_ptr<const WorkerStatus>> silent;
    std::vector<std::shared_ptr<const WorkerStatus>> forgotten;
    for (const auto& [identity, worker] : state_.workers) {
      const bool is_alive = IsAlive(*worker);
      const absl::Time due =
          is_alive ? std::max(worker->last_heartbeat(), runs_since) + options_.lost_after
                   : ForgetTime(*worker);
      if (due > now) {
        next = std::min(next, due);
      } else {
        (is_alive ? silent : forgotten).push_back(worker);
      }
    }
    for (const auto& worker : silent) {
      Lose(*worker, StrCat("no heartbeat for ", FormatRounded(now - worker->last_heartbeat())));
    }
    for (const auto& worker : forgotten) {
      state_.workers.erase(worker->info.identity);
      Publish({.kind = MembershipEvent::Kind::kForgotten,
               .identity = worker->info.identity,
               .worker = worker});
    }
    silence_.SetNoLaterThan(next);
  }
  events_.MakeCalls();
}

void Membership::Replace(WorkerStatus worker) {
  std::shared_ptr<const WorkerStatus>& place = state_.workers[worker.info.identity];
  const auto count = [this](const WorkerStatus& each, int64_t by) {
    mutex_.AssertHeld();
    if (IsAlive(each)) state_.alive += by;
    if (each.state == WorkerState::kAttached) attached_ += by;
  };
  if (place != nullptr) count(*place, -1);
  count(worker, 1);
  place = std::make_shared<const WorkerStatus>(std::move(worker));
}

void Membership::Lose(WorkerStatus worker, std::string reason) {
  attachments_.erase(worker.attachment);
  worker.state = WorkerState::kLost;
  worker.is_leaving = false;
  worker.lost_because = std::move(reason);
  worker.lost = clock_->Now();
  ++worker.losses;
  silence_.SetNoLaterThan(ForgetTime(worker));
  ++state_.epoch;
  const std::string identity = worker.info.identity;
  Replace(std::move(worker));
  Publish({.kind = MembershipEvent::Kind::kLost, .identity = identity});
}

absl::Time Membership::ForgetTime(const WorkerStatus& worker) const {
  return IsAlive(worker) || ranks_of_.contains(worker.info.identity)
             ? absl::InfiniteFuture()
             : worker.lost + options_.forget_after;
}

void Membership::SetMesh(std::string mesh_id, std::vector<std::string> identities, int64_t size) {
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    ranks_of_[identities[rank]].emplace(mesh_id, static_cast<int64_t>(rank));
  }
  if (identities.empty()) {
    unassigned_.emplace(size, mesh_id);
  } else {
    unassigned_.erase({size, mesh_id});
  }
  std::shared_ptr<const MeshRanks>& place = state_.meshes[mesh_id];
  place = std::make_shared<const MeshRanks>(std::move(mesh_id), std::move(identities), size);
}

void Membership::AssignRanks() {
  if (unassigned_.empty() || attached_ < unassigned_.begin()->first) return;
  std::vector<std::string> attached;
  for (const auto& [identity, worker] : state_.workers) {
    if (worker->state == WorkerState::kAttached) attached.push_back(identity);
  }
  while (!unassigned_.empty() && attached_ >= unassigned_.begin()->first) {
    const auto [size, mesh_id] = *unassigned_.begin();
    SetMesh(mesh_id, {attached.begin(), attached.begin() + size}, size);
    Publish({.kind = MembershipEvent::Kind::kRanksAssigned,
             .mesh_id = mesh_id,
             .mesh = state_.meshes.find(mesh_id)->second});
  }
}

void Membership::Publish(MembershipEvent event) {
  view_ = nullptr;
  event.epoch = state_.epoch;
  if (event.worker == nullptr && !event.identity.empty()) {
    event.worker = state_.workers.find(event.identity)->second;
  }
  events_.Add([listeners = listeners_, event = std::move(event)] {
    for (const Listener& listener : listeners) listener(event);
  });
}

}  // namespace shardmesh::server
