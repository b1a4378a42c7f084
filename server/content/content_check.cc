// Asks workers for digests, a bounded number of bytes at a time, and compares the answers.
#include "server/content/content_check.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "process/log.h"

namespace shardmesh::server {

std::shared_ptr<ContentCheck> ContentCheck::Start(DigestTransport* transport,
                                                  const MeshEndpoints& endpoints, Clock* clock,
                                                  const std::vector<ClaimedArray>& claims,
                                                  Done done, absl::Duration idle_limit) {
  const std::shared_ptr<ContentCheck> check(
      new ContentCheck(transport, clock, claims, std::move(done), idle_limit));
  check->Plan(endpoints);
  check->Ask();
  return check;
}

void ContentCheck::Plan(const MeshEndpoints& endpoints) {
  struct MeshWorkers {
    std::vector<RankEndpoint> workers;
    size_t number = 0;
  };
  std::map<std::string_view, MeshWorkers> meshes;
  for (const ClaimedArray& claimed : *claims_) {
    const std::string& mesh_id = claimed.array->array().definition.descriptor.mesh_id;
    const auto [mesh, is_new] = meshes.try_emplace(mesh_id);
    if (!is_new) continue;
    mesh->second.number = meshes.size() - 1;
    if (auto found = endpoints.Endpoints(mesh_id); found.ok()) {
      mesh->second.workers = *std::move(found);
    }
  }
  absl::MutexLock lock(&mutex_);
  claims_by_mesh_.resize(meshes.size());
  for (const auto& [mesh_id, mesh] : meshes) {
    for (const RankEndpoint& worker : mesh.workers) {
      queues_[worker.identity].places.push_back({.mesh = mesh.number, .rank = worker.rank});
    }
  }
  for (size_t i = 0; i < claims_->size(); ++i) {
    const ClaimedArray& claimed = (*claims_)[i];
    const ArrayDescriptor& array = claimed.array->array().definition.descriptor;
    const MeshWorkers& mesh = meshes.find(array.mesh_id)->second;
    tilings_.push_back(array.Tiling());
    is_true_.push_back(tilings_[i].ok() && std::ssize(mesh.workers) == tilings_[i]->mesh().size() &&
                       std::ssize(claimed.tile_sha256) == tilings_[i]->DistinctTileCount());
    if (is_true_[i]) claims_by_mesh_[mesh.number].push_back(i);
  }
}

void ContentCheck::Ask() {
  deadline_ = std::make_unique<Alarm>(clock_, [weak = weak_from_this()] {
    if (const std::shared_ptr<ContentCheck> check = weak.lock(); check != nullptr) {
      check->TimeIsOver();
    }
  });
  size_t lanes = 0;
  std::optional<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [identity, queue] : queues_) {
      for (int i = 0; i < kOrders; ++i) lanes_.push_back({.identity = identity});
    }
    lanes = lanes_.size();
    for (Lane& lane : lanes_) FillLane(lane);
    idle_since_ = clock_->Now();
    if (lanes == 0) ended = End();
  }
  if (lanes == 0) return Finish(std::move(ended));
  deadline_->SetNoLaterThan(clock_->Now() + idle_limit_);
  for (size_t lane = 0; lane < lanes; ++lane) AskNext(lane);
}

std::optional<ContentCheck::ClaimedTile> ContentCheck::NextOf(Queue& queue) const {
  for (; queue.place < queue.places.size(); ++queue.place, queue.next = 0) {
    const Queue::Place& place = queue.places[queue.place];
    const std::vector<size_t>& claims = claims_by_mesh_[place.mesh];
    for (; queue.next < claims.size(); ++queue.next) {
      const size_t claim = claims[queue.next];
      if (!is_true_[claim]) continue;
      const Tiling& tiling = *tilings_[claim];
      const int64_t number = tiling.TileNumberOf(place.rank);
      if ((*claims_)[claim].tile_sha256[static_cast<size_t>(number)].empty()) continue;
      ClaimedTile tile{.claim = claim, .tile = tiling.TileOf(place.rank), .number = number};
      // The array has a size, and so have its tiles.
      tile.size_bytes =
          (*claims_)[claim].array->array().definition.descriptor.TileSizeBytes(tile.tile).value_or(
              kMaxBytes);
      return tile;
    }
  }
  return std::nullopt;
}

void ContentCheck::FillLane(Lane& lane) {
  Queue& queue = queues_.find(lane.identity)->second;
  ++lane.questions;
  lane.number = 0;
  lane.tiles.clear();
  int64_t bytes = 0;
  while (lane.tiles.size() < kMaxTiles) {
    std::optional<ClaimedTile> tile = NextOf(queue);
    if (!tile.has_value()) return;
    bytes += tile->size_bytes;
    if (bytes > kMaxBytes && !lane.tiles.empty()) return;  // it is the first of the next question
    lane.tiles.push_back(*std::move(tile));
    ++queue.next;
  }
}

void ContentCheck::AskNext(size_t lane) {
  std::string identity;
  std::vector<WantedDigest> wanted;
  int64_t question = 0;
  {
    std::optional<Ended> ended;
    absl::ReleasableMutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    if (lanes_[lane].tiles.empty()) {
      const bool is_waiting = std::any_of(lanes_.begin(), lanes_.end(),
                                          [](const Lane& each) { return !each.tiles.empty(); });
      if (!is_waiting) ended = End();
      lock.Release();
      return Finish(std::move(ended));
    }
    identity = lanes_[lane].identity;
    question = lanes_[lane].questions;
    for (const ClaimedTile& tile : lanes_[lane].tiles) {
      const Array& array = (*claims_)[tile.claim].array->array();
      wanted.push_back({.array_id = array.definition.descriptor.array_id, .tile = tile.tile});
    }
  }
  const int64_t number = transport_->DigestTiles(
      identity, wanted,
      [check = shared_from_this(), lane](const absl::StatusOr<DigestTransport::Digests>& digests) {
        check->Answered(lane, digests);
      });
  bool is_forgotten = false;
  {
    absl::MutexLock lock(&mutex_);
    is_forgotten = done_ == nullptr;
    // The answer may have come, and with it the lane's next question.
    if (!is_forgotten && lanes_[lane].questions == question) lanes_[lane].number = number;
  }
  if (is_forgotten) transport_->ForgetDigests(number);
}

void ContentCheck::Answered(size_t lane, const absl::StatusOr<DigestTransport::Digests>& digests) {
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    Lane& answered = lanes_[lane];
    if (digests.ok() && digests->size() == answered.tiles.size()) {
      for (size_t i = 0; i < digests->size(); ++i) {
        const ClaimedTile& tile = answered.tiles[i];
        const std::vector<std::string>& claimed = (*claims_)[tile.claim].tile_sha256;
        if ((*digests)[i] != claimed[static_cast<size_t>(tile.number)]) {
          is_true_[tile.claim] = false;
        }
      }
    } else {
      LogInfo("a worker does not say whether it has the content of a put",
              {{"identity", answered.identity},
               {"error", digests.ok() ? absl::InternalError("it left out tiles of the question")
                                      : digests.status()}});
      Refuse(answered.tiles);
      RefuseRest(queues_.find(answered.identity)->second);
    }
    FillLane(answered);
    idle_since_ = clock_->Now();
  }
  AskNext(lane);
}

void ContentCheck::Refuse(const std::vector<ClaimedTile>& tiles) {
  for (const ClaimedTile& tile : tiles) is_true_[tile.claim] = false;
}

void ContentCheck::RefuseRest(Queue& queue) {
  while (const std::optional<ClaimedTile> tile = NextOf(queue)) is_true_[tile->claim] = false;
}

void ContentCheck::TimeIsOver() {
  std::optional<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    const absl::Time due = idle_since_ + idle_limit_;
    if (clock_->Now() < due) return deadline_->SetNoLaterThan(due);
    LogWarning("workers have not compared the content of a put in time; its client sends it");
    ended = End();
  }
  Finish(std::move(ended));
}

void ContentCheck::Cancel() {
  std::optional<Ended> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended = End();
  }
  Finish(std::move(ended));
}

std::optional<ContentCheck::Ended> ContentCheck::End() {
  if (done_ == nullptr) return std::nullopt;
  for (auto& [identity, queue] : queues_) RefuseRest(queue);
  Ended ended{.done = std::exchange(done_, nullptr), .is_true = {}, .unanswered = {}};
  for (const Lane& lane : lanes_) {
    Refuse(lane.tiles);
    if (lane.number != 0) ended.unanswered.push_back(lane.number);
  }
  ended.is_true = std::move(is_true_);
  return ended;
}

void ContentCheck::Finish(std::optional<Ended> ended) {
  if (!ended.has_value()) return;
  for (const int64_t number : ended->unanswered) transport_->ForgetDigests(number);
  std::move(ended->done)(std::move(ended->is_true));
}

}  // namespace shardmesh::server
