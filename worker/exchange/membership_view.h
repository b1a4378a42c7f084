// A worker's view of its cluster: its own identity, and which worker serves which rank of each
// mesh.
#ifndef SHARDMESH_WORKER_EXCHANGE_MEMBERSHIP_VIEW_H_
#define SHARDMESH_WORKER_EXCHANGE_MEMBERSHIP_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/mesh.h"

namespace shardmesh::worker {

// This worker process, as its peers know it.
struct WorkerSelf {
  std::string identity;      // the same after each restart; compared bytewise
  uint64_t incarnation = 0;  // a new number at each process start, not 0
  std::string boot_id;       // id of the host's present boot; empty if not known
};

// A device of a mesh and the worker that serves it.
struct MeshDevice {
  DeviceId rank = 0;
  std::string identity;
  uint64_t incarnation = 0;
  // Addresses of the worker's ExchangeService, best first.
  std::vector<std::string> endpoints;

  friend bool operator==(const MeshDevice&, const MeshDevice&) = default;
};

// A mesh and its devices in rising order of rank. Ranks without a live worker are missing.
struct MeshMembers {
  std::string mesh_id;
  int64_t revision = 0;
  Mesh mesh;
  std::vector<MeshDevice> devices;

  bool complete() const { return static_cast<int64_t>(devices.size()) == mesh.size(); }
  // Returns the lowest rank that the worker serves; nullopt if it serves none.
  std::optional<DeviceId> RankOf(std::string_view identity) const {
    for (const MeshDevice& device : devices) {
      if (device.identity == identity) return device.rank;
    }
    return std::nullopt;
  }

  friend bool operator==(const MeshMembers&, const MeshMembers&) = default;
};

// The live workers, as the coordinator's last membership update lists them. A plain value. The
// epoch (the version of the membership) and the term (the number of the coordinator's start) never
// fall from one view to the next.
struct MembershipView {
  int64_t epoch = 0;
  int64_t term = 0;
  std::vector<MeshMembers> meshes;  // only the meshes of which this worker serves a rank

  // Returns null if this worker does not serve the mesh.
  const MeshMembers* Find(std::string_view mesh_id) const {
    for (const MeshMembers& mesh : meshes) {
      if (mesh.mesh_id == mesh_id) return &mesh;
    }
    return nullptr;
  }

  friend bool operator==(const MembershipView&, const MembershipView&) = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_MEMBERSHIP_VIEW_H_
