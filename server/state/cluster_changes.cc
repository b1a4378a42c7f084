// Sends changes to watchers.
#include "server/state/cluster_changes.h"

#include <utility>

namespace shardmesh::server {
namespace {

size_t TextBytes(const WorkerChange& change) {
  return change.identity.size() + change.reason.size();
}
size_t TextBytes(const ArrayChange& change) {
  return change.array_id.size() + change.mesh_id.size();
}
size_t TextBytes(const NameChange& change) { return change.name.size() + change.array_id.size(); }

}  // namespace

size_t ClusterChange::SizeBytes() const {
  return sizeof(ClusterChange) +
         std::visit([](const auto& change) { return TextBytes(change); }, value);
}

ClusterChanges::Watch::Watch(ClusterChanges* changes, Callback callback)
    : changes_(changes), callback_(std::move(callback)) {
  absl::MutexLock lock(&changes_->mutex_);
  changes_->watches_.insert(this);
  changes_->is_watched_.store(true, std::memory_order_release);
}

ClusterChanges::Watch::~Watch() {
  absl::MutexLock lock(&changes_->mutex_);
  changes_->watches_.erase(this);
  changes_->is_watched_.store(!changes_->watches_.empty(), std::memory_order_release);
}

void ClusterChanges::Add(ClusterChange::Value value) {
  absl::MutexLock lock(&mutex_);
  if (watches_.empty()) return;
  const auto change = std::make_shared<const ClusterChange>(
      ClusterChange{.time = clock_->Now(), .value = std::move(value)});
  for (const Watch* watch : watches_) watch->callback_(change);
}

std::unique_ptr<ClusterChanges::Watch> ClusterChanges::Begin(Callback callback) {
  return std::make_unique<Watch>(this, std::move(callback));
}

}  // namespace shardmesh::server
