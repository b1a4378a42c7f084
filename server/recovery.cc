// Recovery: a set of identities that only shrinks.
#include "server/recovery.h"

#include <utility>

#include "rpc/log.h"

namespace shardmesh::server {

Recovery::Recovery(const rpc::Clock* clock) : clock_(clock), since_(clock->Now()) {}

void Recovery::Begin(std::set<std::string, std::less<>> identities) {
  absl::MutexLock lock(&mutex_);
  awaited_ = std::move(identities);
}

void Recovery::Heard(std::string_view identity) {
  absl::MutexLock lock(&mutex_);
  const auto found = awaited_.find(identity);
  if (found == awaited_.end()) return;
  awaited_.erase(found);
  EndIfComplete();
}

void Recovery::MeshesChanged(const MembershipView& view) {
  absl::MutexLock lock(&mutex_);
  const size_t gone = std::erase_if(awaited_, [&](const std::string& identity) {
    for (const auto& [mesh_id, ranks] : view.meshes) {
      if (ranks.RankOf(identity).has_value()) return false;
    }
    return true;
  });
  if (gone > 0) EndIfComplete();
}

void Recovery::EndIfComplete() {
  if (!awaited_.empty()) return;
  const absl::Time now = clock_->Now();
  const absl::Duration time = now - std::exchange(since_, now);
  rpc::LogInfo("recovered: the workers of all ranks have attached", {{"time", time}});
}

int64_t Recovery::awaited() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(awaited_.size());
}

absl::Time Recovery::since() const {
  absl::MutexLock lock(&mutex_);
  return since_;
}

}  // namespace shardmesh::server
