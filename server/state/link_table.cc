// LinkTable keeps the last report of each worker.
#include "server/state/link_table.h"

#include <algorithm>
#include <utility>

namespace shardmesh::server {
namespace {

// The lowest plausible figures. Lower figures come from clock errors.
constexpr double kLeastLatencySeconds = 1e-7;
constexpr double kLeastSecondsPerByte = 1e-12;
// The maximum number of meshes with a cached cost. The cache is cleared at this size, because
// removed meshes stay in it.
constexpr size_t kMaxCosts = 256;

// Returns the worker's incarnation; 0 if the worker is not alive.
uint64_t IncarnationOf(const MembershipView& view, std::string_view identity) {
  const WorkerStatus* const worker = view.FindWorker(identity);
  return worker == nullptr || worker->state == WorkerState::kLost ? 0 : worker->info.incarnation;
}

// Returns whether a report about incarnation `told` of a worker is valid while the worker's
// incarnation is `now` (0: the worker is not alive).
bool Holds(uint64_t told, uint64_t now) { return now != 0 && told == now; }

bool IsNow(const MembershipView& view, std::string_view identity, uint64_t incarnation) {
  return Holds(incarnation, IncarnationOf(view, identity));
}

}  // namespace

void LinkTable::Reported(std::string_view identity, uint64_t incarnation,
                         std::vector<MeasuredLink> links) {
  Report report{.incarnation = incarnation, .links = {}};
  for (MeasuredLink& link : links) {
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
  std::set<std::string_view> peers;  // workers that `lower` reports, or that report `lower`
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

void LinkTable::Row::Add(const MeasuredLink& link) {
  ++links;
  if (!link.shares_memory) ++not_shared;
  latency_seconds.Add(absl::ToDoubleSeconds(link.latency));
  seconds_per_byte.Add(1 / link.bytes_per_second);
}

bool LinkTable::Row::Remove(const MeasuredLink& link) {
  --links;
  if (!link.shares_memory) --not_shared;
  const bool knows_latency = latency_seconds.Remove(absl::ToDoubleSeconds(link.latency));
  return seconds_per_byte.Remove(1 / link.bytes_per_second) && knows_latency;
}

LinkTable::Row LinkTable::RowOf(const KnownCost& known, size_t rank, const Report& report) {
  Row row{.change = report.change};
  if (!Holds(report.incarnation, known.incarnations[rank])) return row;
  for (const auto& [peer, link] : report.links) {
    const auto found = known.ranks.find(peer);
    if (found != known.ranks.end() && found->second != rank &&
        Holds(link.peer_incarnation, known.incarnations[found->second])) {
      row.Add(link);
    }
  }
  return row;
}

void LinkTable::TakeEpoch(const MembershipView& view, KnownCost* known) const {
  known->epoch = view.epoch;
  std::vector<std::pair<size_t, uint64_t>> changed;  // changed ranks, with former incarnations
  for (size_t rank = 0; rank < known->identities.size(); ++rank) {
    const uint64_t incarnation = IncarnationOf(view, known->identities[rank]);
    if (known->incarnations[rank] == incarnation) continue;
    changed.emplace_back(rank, std::exchange(known->incarnations[rank], incarnation));
    known->rows[rank].change = 0;
  }
  for (const auto& [rank, before] : changed) {
    const auto tellers = told_by_.find(known->identities[rank]);
    if (tellers == told_by_.end()) continue;
    for (const std::string& teller : tellers->second) {
      const auto found = known->ranks.find(teller);
      if (found == known->ranks.end() || found->second == rank) continue;
      Row& row = known->rows[found->second];
      const Report& report = reports_.find(teller)->second;
      // Update only a row that is up to date. A row of a worker that is not alive has no links; an
      // outdated row is recomputed later.
      if (row.change != report.change ||
          !Holds(report.incarnation, known->incarnations[found->second])) {
        continue;
      }
      const MeasuredLink& link = report.links.find(known->identities[rank])->second;
      const bool counted = Holds(link.peer_incarnation, before);
      const bool counts = Holds(link.peer_incarnation, known->incarnations[rank]);
      if (counts && !counted) row.Add(link);
      if (counted && !counts && !row.Remove(link)) row.change = 0;
    }
  }
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
  const bool is_same = known.identities == mesh->identities;
  if (is_same && known.epoch == view.epoch && known.changes == changes_) return known.cost;
  if (!is_same) {
    known.identities = mesh->identities;
    known.ranks.clear();
    for (size_t rank = 0; rank < known.identities.size(); ++rank) {
      known.ranks.emplace(known.identities[rank], rank);
    }
    known.incarnations.assign(known.identities.size(), 0);
    known.rows.assign(known.identities.size(), {});
  }
  if (!is_same || known.epoch != view.epoch) TakeEpoch(view, &known);
  known.changes = changes_;
  Row all;
  for (size_t rank = 0; rank < known.identities.size(); ++rank) {
    Row& row = known.rows[rank];
    if (const auto report = reports_.find(known.identities[rank]); report == reports_.end()) {
      row = {};
    } else if (report->second.change != row.change) {
      row = RowOf(known, rank, report->second);
    }
    if (row.links == 0) continue;
    all.links += row.links;
    all.not_shared += row.not_shared;
    all.latency_seconds.Add(row.latency_seconds.value());
    all.seconds_per_byte.Add(row.seconds_per_byte.value());
  }
  known.cost = {};
  if (all.links > 0) {
    known.cost.is_measured = true;
    known.cost.latency_seconds = std::max(kLeastLatencySeconds, all.latency_seconds.value());
    known.cost.seconds_per_byte = std::max(kLeastSecondsPerByte, all.seconds_per_byte.value());
    known.cost.shares_memory = all.not_shared == 0;
  }
  return known.cost;
}

}  // namespace shardmesh::server
