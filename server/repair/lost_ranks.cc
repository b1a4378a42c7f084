// LostRanks: an alarm that looks for lost workers and chooses a spare worker for one of them.
#include "server/repair/lost_ranks.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "process/log.h"
#include "server/steps/auxiliary_mesh.h"
#include "status/reason.h"

namespace shardmesh::server {
namespace {

// A longer gap between two readings of the clock is a pause of this process.
constexpr absl::Duration kLongestGap = absl::Seconds(2);

// Returns the hosts of the workers that have the other copies of the worker's tiles: in auxiliary
// meshes, the workers of the same ranks.
std::vector<std::string> HostsOfOtherCopies(const MembershipView& view, std::string_view identity) {
  std::vector<std::string> holders;
  for (const auto& [name, copies] : view.meshes) {
    const std::string_view replicated = ReplicatedMeshOf(name);
    const MeshRanks* const mesh = replicated.empty() ? nullptr : view.FindMesh(replicated);
    if (mesh == nullptr || mesh->identities.size() != copies->identities.size()) continue;
    if (const auto rank = mesh->RankOf(identity); rank.has_value()) {
      holders.push_back(copies->identities[static_cast<size_t>(*rank)]);
    }
    if (const auto rank = copies->RankOf(identity); rank.has_value()) {
      holders.push_back(mesh->identities[static_cast<size_t>(*rank)]);
    }
  }
  return HostsOf(view, holders);
}

// Returns the spare that replaces the worker best; null: none can. See LostRanks for the order.
const WorkerStatus* ChooseSpare(const MembershipView& view, std::string_view identity,
                                const std::vector<const WorkerStatus*>& spares) {
  const WorkerStatus* const lost = view.FindWorker(identity);  // null: not known since the start
  const std::vector<std::string> hosts = HostsOfOtherCopies(view, identity);
  const auto order = [&](const WorkerStatus* spare) {
    const std::string host = HostsOf(view, {spare->info.identity}).front();
    return std::tuple(std::find(hosts.begin(), hosts.end(), host) != hosts.end(),
                      !spare->info.durable,
                      lost != nullptr && spare->info.capacity_bytes < lost->info.capacity_bytes,
                      std::string_view(spare->info.identity));
  };
  const WorkerStatus* best = nullptr;
  for (const WorkerStatus* const spare : spares) {
    if (lost != nullptr && lost->info.durable && !spare->info.durable) continue;
    if (best == nullptr || order(spare) < order(best)) best = spare;
  }
  return best;
}

}  // namespace

LostRanks::LostRanks(LostRanksParts parts, Options options)
    : parts_(std::move(parts)),
      options_(options),
      started_(parts_.clock->Now()),
      pauses_(parts_.clock, kLongestGap, "lost workers"),
      alarm_(parts_.clock, [this] { Look(); }) {
  MembershipChanged();
}

void LostRanks::MembershipChanged() { alarm_.SetNoLaterThan(parts_.clock->Now() + options_.after); }

void LostRanks::Stop() {
  absl::MutexLock lock(&mutex_);
  is_stopped_ = true;
  const auto is_idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !is_running_; };
  mutex_.Await(absl::Condition(&is_idle));
}

bool LostRanks::LacksSpare(std::string_view identity) const {
  absl::MutexLock lock(&mutex_);
  return without_spare_.contains(identity);
}

LostRanks::Totals LostRanks::totals() const {
  absl::MutexLock lock(&mutex_);
  return {.replaced = replaced_, .without_spare = std::ssize(without_spare_)};
}

void LostRanks::Look() {
  const absl::Time now = parts_.clock->Now();
  std::optional<Choice> choice;
  {
    absl::MutexLock lock(&mutex_);
    if (is_stopped_ || is_running_) return;  // Ended looks again
    choice = Choose(now);
    is_running_ = choice.has_value();
  }
  if (!choice.has_value()) return;
  LogWarning("a spare worker gets the ranks of a worker that stayed lost",
             {{"identity", choice->identity},
              {"replacement", choice->replacement},
              {"lost_for", now - choice->since}});
  parts_.replace(choice->identity, choice->replacement,
                 [this, choice = *choice](const absl::Status& status) { Ended(choice, status); });
}

// Returns the replacement that begins now, and sets the time of the next look.
std::optional<LostRanks::Choice> LostRanks::Choose(absl::Time now) {
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const absl::Time counts_from = std::max(started_, pauses_.RunsSince(now));
  std::set<std::string_view> serving;
  for (const auto& [mesh_id, mesh] : view->meshes) {
    serving.insert(mesh->identities.begin(), mesh->identities.end());
  }
  std::vector<const WorkerStatus*> spares;
  for (const auto& [identity, worker] : view->workers) {
    if (worker->state == WorkerState::kAttached && !serving.contains(identity) &&
        parts_.is_ready(identity)) {
      spares.push_back(worker.get());
    }
  }
  std::erase_if(refused_, [&](const auto& each) {
    return !serving.contains(each.first) || view->IsAlive(each.first);
  });
  absl::Time next_look = absl::InfiniteFuture();
  std::set<std::string, std::less<>> without_spare;
  std::optional<Choice> first;
  for (const std::string_view identity : serving) {
    if (view->IsAlive(identity)) continue;
    const WorkerStatus* const worker = view->FindWorker(identity);
    const absl::Time since = worker == nullptr ? counts_from : std::max(worker->lost, counts_from);
    const auto refused = refused_.find(identity);
    const absl::Time due =
        std::max(since + options_.after,
                 refused == refused_.end() ? absl::InfinitePast() : refused->second.next_try);
    next_look = std::min(next_look, due > now ? due : now + options_.look_again);
    if (due > now || parts_.recovery->ComesBack(identity)) continue;
    const WorkerStatus* spare = nullptr;
    if (refused != refused_.end()) {
      spare = view->FindWorker(refused->second.replacement);
      if (spare != nullptr && spare->state != WorkerState::kAttached) spare = nullptr;
    }
    if (spare == nullptr) spare = ChooseSpare(*view, identity, spares);
    if (spare == nullptr) {
      if (!without_spare_.contains(identity)) {
        LogWarning(spares.empty()
                       ? "a worker stays lost, and there is no spare worker for its ranks"
                       : "a worker stays lost, and no spare worker keeps tiles on disk as it does",
                   {{"identity", identity}, {"lost_for", now - since}});
      }
      without_spare.emplace(identity);
    } else if (!first.has_value() || since < first->since) {
      first = Choice{
          .identity = std::string(identity), .replacement = spare->info.identity, .since = since};
    }
  }
  without_spare_ = std::move(without_spare);
  alarm_.SetNoLaterThan(next_look);
  return first;
}

void LostRanks::Ended(const Choice& choice, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  is_running_ = false;
  const absl::Time now = parts_.clock->Now();
  if (status.ok()) {
    ++replaced_;
    refused_.erase(choice.identity);
  } else {
    Refusal& refusal = refused_[choice.identity];
    const std::string why(status.message());
    if (refusal.why != why) {
      LogWarning(
          "a worker that stayed lost could not be replaced, will retry",
          {{"identity", choice.identity}, {"replacement", choice.replacement}, {"error", status}});
    }
    // If some ranks have moved, the rest goes to the same worker, unless it got a rank of the same
    // mesh otherwise.
    const bool takes_rest = !parts_.membership->RanksOf(choice.replacement).empty() &&
                            ReasonOf(status) != Reason::kWorkerServesRank;
    refusal = {.replacement = takes_rest ? choice.replacement : std::string(),
               .why = why,
               .next_try = now + options_.retry};
  }
  alarm_.SetNoLaterThan(now);
}

}  // namespace shardmesh::server
