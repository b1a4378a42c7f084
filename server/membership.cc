// Attaching, losing and draining workers; giving ranks; publishing views.
#include "server/membership.h"

#include <algorithm>
#include <set>
#include <utility>

#include "sharding/mesh.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr size_t kMaxIdentityBytes = 255;

bool IsAlive(const WorkerStatus& worker) { return worker.state != WorkerState::kLost; }

absl::Status BadField(std::string message) {
  return WithReason(absl::InvalidArgumentError(message), Reason::kBadField);
}

absl::Status CheckIdentity(const std::string& identity) {
  if (!identity.empty() && identity.size() <= kMaxIdentityBytes) return absl::OkStatus();
  return BadField(StrCat("a worker's identity has ", identity.size(), " bytes; it must have 1 to ",
                         kMaxIdentityBytes));
}

absl::Status CheckInfo(const WorkerInfo& info) {
  SHARDMESH_RETURN_IF_ERROR(CheckIdentity(info.identity));
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
      Reason::kNotFound);
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

std::optional<int64_t> MeshRanks::RankOf(std::string_view identity) const {
  const auto found = std::find(identities.begin(), identities.end(), identity);
  if (found == identities.end()) return std::nullopt;
  return found - identities.begin();
}

const WorkerStatus* MembershipView::FindWorker(std::string_view identity) const {
  const auto found = workers.find(identity);
  return found == workers.end() ? nullptr : &found->second;
}

const MeshRanks* MembershipView::FindMesh(std::string_view mesh_id) const {
  const auto found = meshes.find(mesh_id);
  return found == meshes.end() ? nullptr : &found->second;
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
    const auto alive = std::count_if(workers.begin(), workers.end(), [](const auto& worker) {
      return server::IsAlive(worker.second);
    });
    return WithReason(absl::FailedPreconditionError(
                          StrCat("mesh \"", mesh_id, "\" needs ", mesh->size, " workers, ", alive,
                                 " are attached; start ", mesh->size - alive, " more")),
                      Reason::kMeshIncomplete);
  }
  std::vector<std::string> missing;
  for (const int64_t rank : MissingRanks(*mesh)) missing.push_back(DescribeRank(*mesh, rank));
  if (missing.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat("mesh \"", mesh_id, "\" has no live worker for ",
                                           StrJoin(missing, ", "), "; start them again")),
      Reason::kMeshIncomplete);
}

std::vector<int64_t> MembershipView::MissingRanks(const MeshRanks& mesh) const {
  std::vector<int64_t> missing;
  for (size_t rank = 0; rank < mesh.identities.size(); ++rank) {
    if (!IsAlive(mesh.identities[rank])) missing.push_back(static_cast<int64_t>(rank));
  }
  return missing;
}

Membership::Membership(rpc::Clock* clock, MembershipOptions options)
    : clock_(clock), options_(options), silence_(clock, [this] { LoseSilent(); }) {
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

absl::StatusOr<uint64_t> Membership::Attach(WorkerInfo info) {
  SHARDMESH_RETURN_IF_ERROR(CheckInfo(info));
  uint64_t attachment = 0;
  {
    const absl::Time now = clock_->Now();
    absl::MutexLock lock(&mutex_);
    WorkerStatus& worker = state_.workers[info.identity];
    const bool known_alive = worker.attachment != 0 && IsAlive(worker);
    const bool same_process = worker.info.incarnation == info.incarnation;
    if (known_alive && !same_process) {
      return WithReason(absl::AlreadyExistsError(StrCat(
                            "identity \"", info.identity, "\" is held by process ", worker.info.pid,
                            " on ", worker.info.host.empty() ? "an unnamed host" : worker.info.host,
                            " (", worker.info.endpoints.front(),
                            "); stop it, or start this worker under another "
                            "identity")),
                        Reason::kIdentityInUse);
    }
    attachment = next_attachment_++;
    MembershipEvent event;
    event.identity = info.identity;
    if (!known_alive) worker.state = WorkerState::kAttached;
    worker.info = std::move(info);
    worker.attachment = attachment;
    worker.attached = now;
    worker.last_heartbeat = now;
    worker.lost_because.clear();
    silence_.SetNoLaterThan(now + options_.lost_after);
    // Also where a new stream takes over: what was on its way on the old one is lost.
    ++state_.epoch;
    Publish(std::move(event));
    if (!known_alive) AssignRanks();
  }
  events_.MakeCalls();
  return attachment;
}

absl::Status Membership::Heartbeat(uint64_t attachment, int64_t used_bytes,
                                   QuarantineCount quarantine) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  WorkerStatus* worker = FindAttachment(attachment);
  if (worker == nullptr) {
    return WithReason(
        absl::AbortedError(StrCat("attachment ", attachment, " has ended; attach again")),
        Reason::kStaleEpoch);
  }
  worker->last_heartbeat = now;
  worker->used_bytes = used_bytes;
  worker->quarantine = quarantine;
  view_ = nullptr;
  return absl::OkStatus();
}

void Membership::Detach(uint64_t attachment, std::string reason) {
  {
    absl::MutexLock lock(&mutex_);
    WorkerStatus* worker = FindAttachment(attachment);
    if (worker == nullptr) return;
    Lose(worker, std::move(reason));
  }
  events_.MakeCalls();
}

absl::Status Membership::Drain(std::string_view identity, bool draining) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = state_.workers.find(identity);
    if (found == state_.workers.end() || !IsAlive(found->second)) {
      return WithReason(
          absl::NotFoundError(StrCat("no live worker has the identity \"", identity, "\"")),
          Reason::kNotFound);
    }
    const WorkerState wanted = draining ? WorkerState::kDraining : WorkerState::kAttached;
    if (found->second.state == wanted) return absl::OkStatus();
    found->second.state = wanted;
    Publish({.kind = MembershipEvent::Kind::kDrainChanged, .identity = std::string(identity)});
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
    if (static_cast<int64_t>(identities.size()) != size) {
      return WithReason(
          absl::InvalidArgumentError(StrCat("mesh \"", mesh_id, "\" has ", size, " ranks and ",
                                            identities.size(), " workers; name one per rank")),
          Reason::kMeshSizeMismatch);
    }
    std::set<std::string_view> distinct;
    for (const std::string& identity : identities) {
      SHARDMESH_RETURN_IF_ERROR(CheckIdentity(identity));
      if (!distinct.insert(identity).second) {
        return BadField(StrCat("mesh \"", mesh_id, "\" names worker \"", identity,
                               "\" for two ranks; a worker serves one rank of a mesh"));
      }
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    if (state_.meshes.count(mesh_id) > 0) {
      return WithReason(absl::AlreadyExistsError(StrCat("mesh \"", mesh_id, "\" is defined")),
                        Reason::kAlreadyExists);
    }
    state_.meshes[mesh_id] = {mesh_id, std::move(identities), size};
    Publish({.kind = MembershipEvent::Kind::kMeshAdded, .mesh_id = mesh_id});
    AssignRanks();
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status Membership::RemoveMesh(std::string_view mesh_id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = state_.meshes.find(mesh_id);
    if (found == state_.meshes.end()) return NoMesh(mesh_id, state_.meshes);
    state_.meshes.erase(found);
    Publish({.kind = MembershipEvent::Kind::kMeshRemoved, .mesh_id = std::string(mesh_id)});
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

void Membership::LoseSilent() {
  const absl::Time now = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    absl::Time next = absl::InfiniteFuture();
    for (auto& [identity, worker] : state_.workers) {
      if (!IsAlive(worker)) continue;
      const absl::Time lost_at = worker.last_heartbeat + options_.lost_after;
      if (lost_at <= now) {
        Lose(&worker, StrCat("no heartbeat for ", rpc::FormatRounded(now - worker.last_heartbeat)));
      } else {
        next = std::min(next, lost_at);
      }
    }
    silence_.SetNoLaterThan(next);
  }
  events_.MakeCalls();
}

void Membership::Lose(WorkerStatus* worker, std::string reason) {
  worker->state = WorkerState::kLost;
  worker->lost_because = std::move(reason);
  worker->lost = clock_->Now();
  ++worker->losses;
  ++state_.epoch;
  Publish({.kind = MembershipEvent::Kind::kLost, .identity = worker->info.identity});
}

WorkerStatus* Membership::FindAttachment(uint64_t attachment) {
  for (auto& [identity, worker] : state_.workers) {
    if (worker.attachment == attachment && IsAlive(worker)) return &worker;
  }
  return nullptr;
}

void Membership::AssignRanks() {
  std::vector<std::string> attached;
  for (const auto& [identity, worker] : state_.workers) {
    if (worker.state == WorkerState::kAttached) attached.push_back(identity);
  }
  for (auto& [mesh_id, mesh] : state_.meshes) {
    if (!mesh.identities.empty() || static_cast<int64_t>(attached.size()) < mesh.size) continue;
    mesh.identities.assign(attached.begin(), attached.begin() + mesh.size);
    Publish({.kind = MembershipEvent::Kind::kRanksAssigned, .mesh_id = mesh_id});
  }
}

void Membership::Publish(MembershipEvent event) {
  view_ = std::make_shared<const MembershipView>(state_);
  event.view = view_;
  events_.Add([listeners = listeners_, event = std::move(event)] {
    for (const Listener& listener : listeners) listener(event);
  });
}

}  // namespace shardmesh::server
