// LinkTable: the last report of each worker.
#include "server/link_table.h"

#include <algorithm>
#include <set>
#include <utility>

namespace shardmesh::server {
namespace {

// The finest figures that are believed: shorter ones are errors of a clock.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastSecondsPerByte = 1e-12;
// Meshes whose costs are known at a time: those that are removed leave theirs behind.
constexpr size_t kMaxCosts = 256;

}  // namespace

void LinkTable::Reported(std::string_view identity, uint64_t incarnation,
                         std::vector<rpc::MeasuredLink> links) {
  Report report{.incarnation = incarnation, .links = {}};
  for (rpc::MeasuredLink& link : links) {
    std::string peer = link.peer;
    report.links.insert_or_assign(std::move(peer), std::move(link));
  }
  absl::MutexLock lock(&mutex_);
  reports_.insert_or_assign(std::string(identity), std::move(report));
  ++changes_;
}

void LinkTable::Lost(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  const auto found = reports_.find(identity);
  if (found == reports_.end()) return;
  reports_.erase(found);
  ++changes_;
}

std::vector<WorkerLink> LinkTable::Between(const MembershipView& view,
                                           const std::vector<std::string>& identities) const {
  absl::MutexLock lock(&mutex_);
  return BetweenLocked(view, identities);
}

std::vector<WorkerLink> LinkTable::BetweenLocked(const MembershipView& view,
                                                 const std::vector<std::string>& identities) const {
  const auto is_now = [&](std::string_view identity, uint64_t incarnation) {
    return view.IsAlive(identity) && view.FindWorker(identity)->info.incarnation == incarnation;
  };
  const std::set<std::string, std::less<>> asked(identities.begin(), identities.end());
  std::map<std::pair<std::string, std::string>, WorkerLink> pairs;
  for (const std::string& identity : asked) {
    const auto report = reports_.find(identity);
    if (report == reports_.end() || !is_now(identity, report->second.incarnation)) continue;
    for (const auto& [peer, link] : report->second.links) {
      if (peer == identity || !asked.contains(peer) || !is_now(peer, link.peer_incarnation)) {
        continue;
      }
      pairs.try_emplace(std::minmax(identity, peer), WorkerLink{identity, link});
    }
  }
  std::vector<WorkerLink> links;
  for (auto& [pair, link] : pairs) links.push_back(std::move(link));
  return links;
}

LinkCost LinkTable::CostOf(const MembershipView& view, std::string_view mesh_id) const {
  const MeshRanks* const mesh = view.FindMesh(mesh_id);
  if (mesh == nullptr) return {};
  absl::MutexLock lock(&mutex_);
  const auto known = costs_.find(mesh_id);
  if (known != costs_.end() && known->second.epoch == view.epoch &&
      known->second.changes == changes_ && known->second.identities == mesh->identities) {
    return known->second.cost;
  }
  LinkCost cost;
  const std::vector<WorkerLink> links = BetweenLocked(view, mesh->identities);
  if (!links.empty()) {
    cost.latency_seconds = kLeastLatencySeconds;
    cost.seconds_per_byte = kLeastSecondsPerByte;
    cost.shares_memory = true;
    for (const WorkerLink& link : links) {
      cost.latency_seconds =
          std::max(cost.latency_seconds, absl::ToDoubleSeconds(link.measured.latency));
      cost.shares_memory = cost.shares_memory && link.measured.shares_memory;
      cost.seconds_per_byte = std::max(cost.seconds_per_byte, 1 / link.measured.bytes_per_second);
    }
  }
  if (known == costs_.end() && costs_.size() >= kMaxCosts) costs_.clear();
  costs_.insert_or_assign(
      std::string(mesh_id),
      KnownCost{
          .epoch = view.epoch, .changes = changes_, .identities = mesh->identities, .cost = cost});
  return cost;
}

}  // namespace shardmesh::server
