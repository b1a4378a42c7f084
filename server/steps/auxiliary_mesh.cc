// Rotates the workers of a mesh, in the order of their hosts.
#include "server/steps/auxiliary_mesh.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kReplicaMeshMark = ".replicas-";
constexpr size_t kReplicaUidCharacters = 12;

bool AreEqual(absl::Span<const std::string> hosts) {
  return std::all_of(hosts.begin(), hosts.end(),
                     [&](const std::string& host) { return host == hosts.front(); });
}

}  // namespace

std::string ReplicaMeshName(const Definition& mesh) {
  return StrCat(mesh.name, kReplicaMeshMark, mesh.uid.substr(0, kReplicaUidCharacters));
}

std::string_view ReplicatedMeshOf(std::string_view name) {
  const size_t mark = name.rfind(kReplicaMeshMark);
  if (mark == std::string_view::npos ||
      name.size() != mark + kReplicaMeshMark.size() + kReplicaUidCharacters ||
      name.find_first_not_of("0123456789abcdef", mark + kReplicaMeshMark.size()) !=
          std::string_view::npos) {
    return {};
  }
  return name.substr(0, mark);
}

std::vector<std::string> HostsOf(const MembershipView& view,
                                 absl::Span<const std::string> identities) {
  std::vector<std::string> hosts;
  hosts.reserve(identities.size());
  for (const std::string& identity : identities) {
    const WorkerStatus* const worker = view.FindWorker(identity);
    const bool is_known = worker != nullptr && !worker->info.host.empty();
    hosts.push_back(is_known ? worker->info.host : StrCat("worker ", identity));
  }
  return hosts;
}

std::vector<std::string> ReplicaWorkers(absl::Span<const std::string> identities,
                                        absl::Span<const std::string> hosts) {
  const size_t count = identities.size();
  std::vector<size_t> by_host(count);
  std::iota(by_host.begin(), by_host.end(), 0);
  std::stable_sort(by_host.begin(), by_host.end(),
                   [&](size_t a, size_t b) { return hosts[a] < hosts[b]; });
  // A rotation by the size of the largest host leaves every other host, and the largest one too if
  // it has at most half of the workers. If it has more, only as many stay on it as must.
  size_t step = 1;
  size_t run = 0;
  for (size_t i = 0; i < count; ++i) {
    run = i > 0 && hosts[by_host[i]] == hosts[by_host[i - 1]] ? run + 1 : 1;
    step = std::max(step, run);
  }
  if (step == count) step = 1;  // one host: any other worker
  std::vector<std::string> workers(count);
  for (size_t i = 0; i < count; ++i) {
    workers[by_host[i]] = identities[by_host[(i + step) % count]];
  }
  return workers;
}

bool AreDisplaced(absl::Span<const std::string> identities,
                  absl::Span<const std::string> replicas) {
  if (identities.size() != replicas.size()) return false;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    if (identities[rank] == replicas[rank]) return false;
  }
  return std::is_permutation(identities.begin(), identities.end(), replicas.begin());
}

bool IsReplicatedBySpec(const Tiling& tiling, absl::Span<const std::string> hosts) {
  if (tiling.replica_count() < 2) return false;
  if (AreEqual(hosts)) return true;
  for (int64_t tile = 0; tile < tiling.DistinctTileCount(); ++tile) {
    const std::vector<DeviceId> holders = tiling.ReplicaGroup(tile).devices;
    const std::string& first = hosts[static_cast<size_t>(holders.front())];
    if (std::all_of(holders.begin(), holders.end(),
                    [&](DeviceId holder) { return hosts[static_cast<size_t>(holder)] == first; })) {
      return false;
    }
  }
  return true;
}

}  // namespace shardmesh::server
