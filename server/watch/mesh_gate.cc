// MeshGate: what waits, by the revision that it waits for.
#include "server/watch/mesh_gate.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace shardmesh::server {

void MeshGate::After(Revision revision, absl::AnyInvocable<void() &&> then) {
  {
    absl::MutexLock lock(&mutex_);
    if (revision > applied_) {
      waiting_.emplace(revision, std::move(then));
      return;
    }
  }
  std::move(then)();
}

void MeshGate::Applied(Revision revision) {
  std::vector<absl::AnyInvocable<void() &&>> ready;
  {
    absl::MutexLock lock(&mutex_);
    applied_ = std::max(applied_, revision);
    const auto end = waiting_.upper_bound(applied_);
    for (auto it = waiting_.begin(); it != end; ++it) ready.push_back(std::move(it->second));
    waiting_.erase(waiting_.begin(), end);
  }
  for (auto& then : ready) std::move(then)();
}

DefinitionStore::Callback AfterMembership(MeshGate* gate, DefinitionStore::Callback callback) {
  if (gate == nullptr) return callback;
  return [gate, callback = std::move(callback)](
             absl::StatusOr<std::shared_ptr<const Definition>> changed) mutable {
    const Revision revision = changed.ok() ? (*changed)->revision : 0;
    gate->After(revision, [callback = std::move(callback), changed = std::move(changed)]() mutable {
      std::move(callback)(std::move(changed));
    });
  };
}

}  // namespace shardmesh::server
