// The auxiliary mesh on which the second copies of tiles lie, and the workers that serve it.
#ifndef SHARDMESH_SERVER_STEPS_REPLICA_MESH_H_
#define SHARDMESH_SERVER_STEPS_REPLICA_MESH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "sharding/tile.h"

namespace shardmesh::server {

// The greatest number of replicas that can be wanted of an array.
inline constexpr int64_t kMaxReplicas = 2;

// The maximum length of the name of a mesh in bytes.
inline constexpr size_t kMaxMeshName = 255;

// Returns the name of the auxiliary mesh of `mesh`: NAME.replicas-ID. It depends on the name and
// the uid alone, so a coordinator that starts again finds the mesh.
std::string ReplicaMeshName(const Definition& mesh);
// Returns the name of the mesh for which `name` is the auxiliary mesh; empty if it is none.
std::string_view ReplicatedMeshOf(std::string_view name);

// Returns the host of each worker, by rank. Workers that were never attached, or did not say on
// which host they run, count as one host each.
std::vector<std::string> HostsOf(const MembershipView& view,
                                 absl::Span<const std::string> identities);

// Returns the workers of the auxiliary mesh, by rank: a permutation of `identities`, the workers of
// the mesh. Each rank has another worker than in the mesh, and one on another host where that is
// possible. That is possible for all ranks unless one host has more than half of the workers; then
// as few ranks as possible have both workers on that host. `hosts`: of each worker. Requires at
// least two workers.
std::vector<std::string> ReplicaWorkers(absl::Span<const std::string> identities,
                                        absl::Span<const std::string> hosts);

// Returns whether `replicas` are the same workers as `identities`, each at another rank.
bool AreDisplaced(absl::Span<const std::string> identities, absl::Span<const std::string> replicas);

// Returns whether each tile is on at least two hosts by the array's spec alone, or on two workers
// if all workers are on one host. `hosts`: of the worker of each rank.
bool IsReplicatedBySpec(const Tiling& tiling, absl::Span<const std::string> hosts);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_REPLICA_MESH_H_
