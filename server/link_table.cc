// LinkTable: the last report of each worker.
#include "server/link_table.h"

#include <algorithm>
#include <utility>

namespace shardmesh::server {
namespace {

// The finest figures that are believed: shorter ones are errors of a clock.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastSecondsPerByte = 1e-12;
// Meshes whose costs are known at a time: those that are removed leave theirs behind.
constexpr size_t kMaxCosts = 256;

bool IsNow(const MembershipView& view, std::string_view identity, uint64_t incarnation) {
  const WorkerStatus* const worker = view.FindWorker(identity);
  return worker != nullptr && worker->state != WorkerState::kLost &&
         worker->info.incarnation == incarnation;
}

}  // namespace

void LinkTable::Reported(std::string_view identity, uint64_t incarnation,
                         std::vector<rpc::MeasuredLink> links) {
  Report report{.incarnation = incarnation, .links = {}};
  for (rpc::MeasuredLink& link : links) {
    std::string peer = link.peer;
    report.links.insert_or_assign(std::move(peer), std::move(link));
  }
  absl::MutexLock lock(&mutex_);
  report.change = ++changes_;
  Report& known = reports_[std::string(identity)];
  for (const auto& [peer, link] : known.links) {
    if (!report.links.contains(peer)) Forget(peer, identity);
  }
  for (const auto& [peer, link] : report.links) {
    if (!known.links.contains(peer)) told_by_[peer].emplace(identity);
  }
  known = std::move(report);
}

void LinkTable::Forget(std::string_view peer, std::string_view identity) {
  const auto tellers = told_by_.find(peer);
  if (const auto teller = tellers->second.find(identity); teller != tellers->second.end()) {
    tellers->second.erase(teller);
  }
  if (tellers->second.empty()) told_by_.erase(tellers);
}

void LinkTable::Lost(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  const auto found = reports_.find(identity);
  if (found == reports_.end()) return;
  for (const auto& [peer, link] : found->second.links) Forget(peer, identity);
  reports_.erase(found);
  ++changes_;
}

std::vector<WorkerLink> LinkTable::LinksOf(
    const MembershipView& view, const std::string& lower,
    const std::set<std::string, std::less<>>& identities) const {
  std::vector<WorkerLink> links;
  absl::MutexLock lock(&mutex_);
  const auto counts = [&](const auto& report, std::string_view identity, std::string_view peer) {
    if (report == reports_.end()) return false;
    const auto link = report->second.links.find(peer);
    return link != report->second.links.end() &&
           IsNow(view, identity, report->second.incarnation) &&
           IsNow(view, peer, link->second.peer_incarnation);
  };
  const auto own = reports_.find(lower);
  std::set<std::string_view> peers;  // of the links that either of the two told of
  if (own != reports_.end()) {
    for (auto each = own->second.links.upper_bound(lower); each != own->second.links.end();
         ++each) {
      peers.insert(each->first);
    }
  }
  if (const auto tellers = told_by_.find(lower); tellers != told_by_.end()) {
    peers.insert(tellers->second.upper_bound(lower), tellers->second.end());
  }
  for (const std::string_view peer : peers) {
    if (!identities.contains(peer)) continue;
    if (counts(own, lower, peer)) {
      links.push_back({lower, own->second.links.find(peer)->second});
    } else if (const auto other = reports_.find(peer); counts(other, peer, lower)) {
      links.push_back({std::string(peer), other->second.links.find(lower)->second});
    }
  }
  return links;
}

LinkTable::Row LinkTable::RowOf(const MembershipView& view, const MeshRanks& mesh,
                                const std::string& identity, const Report& report) const {
  Row row{.change = report.change};
  if (!IsNow(view, identity, report.incarnation)) return row;
  for (const auto& [peer, link] : report.links) {
    if (peer == identity || !mesh.RankOf(peer).has_value() ||
        !IsNow(view, peer, link.peer_incarnation)) {
      continue;
    }
    row.has_links = true;
    row.shares_memory = row.shares_memory && link.shares_memory;
    row.latency_seconds = std::max(row.latency_seconds, absl::ToDoubleSeconds(link.latency));
    row.seconds_per_byte = std::max(row.seconds_per_byte, 1 / link.bytes_per_second);
  }
  return row;
}

LinkCost LinkTable::CostOf(const MembershipView& view, std::string_view mesh_id) const {
  const MeshRanks* const mesh = view.FindMesh(mesh_id);
  if (mesh == nullptr) return {};
  absl::MutexLock lock(&mutex_);
  auto found = costs_.find(mesh_id);
  if (found == costs_.end()) {
    if (costs_.size() >= kMaxCosts) costs_.clear();
    found = costs_.emplace(std::string(mesh_id), KnownCost{.epoch = -1}).first;
  }
  KnownCost& known = found->second;
  const bool is_same = known.epoch == view.epoch && known.identities == mesh->identities;
  if (is_same && known.changes == changes_) return known.cost;
  if (!is_same) {
    known.epoch = view.epoch;
    known.identities = mesh->identities;
    known.rows.assign(known.identities.size(), {});
  }
  known.changes = changes_;
  Row worst;
  for (size_t rank = 0; rank < known.identities.size(); ++rank) {
    const std::string& identity = known.identities[rank];
    Row& row = known.rows[rank];
    if (const auto report = reports_.find(identity); report == reports_.end()) {
      row = {};
    } else if (report->second.change != row.change) {
      row = RowOf(view, *mesh, identity, report->second);
    }
    if (!row.has_links) continue;
    worst.has_links = true;
    worst.shares_memory = worst.shares_memory && row.shares_memory;
    worst.latency_seconds = std::max(worst.latency_seconds, row.latency_seconds);
    worst.seconds_per_byte = std::max(worst.seconds_per_byte, row.seconds_per_byte);
  }
  known.cost = {};
  if (worst.has_links) {
    known.cost.latency_seconds = std::max(kLeastLatencySeconds, worst.latency_seconds);
    known.cost.seconds_per_byte = std::max(kLeastSecondsPerByte, worst.seconds_per_byte);
    known.cost.shares_memory = worst.shares_memory;
  }
  return known.cost;
}

}  // namespace shardmesh::server
