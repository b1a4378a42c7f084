// The auxiliary meshes of a mesh: that on which the second copies of tiles lie, with its workers,
// and that on which arrays lie while the mesh gets another shape.
#ifndef SHARDMESH_SERVER_STEPS_AUXILIARY_MESH_H_
#define SHARDMESH_SERVER_STEPS_AUXILIARY_MESH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "sharding/tile.h"
#include "status/str_cat.h"

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

inline constexpr std::string_view kResizeMeshMark = ".resize-";
inline constexpr size_t kResizeUidCharacters = 12;
// Maximum length of the name of a mesh that can be resized.
inline constexpr size_t kMaxResizedName = 255 - kResizeMeshMark.size() - kResizeUidCharacters;

// Returns the name of the auxiliary mesh of `mesh`. It depends on the name and the uid alone, so a
// coordinator that starts again finds the mesh.
inline std::string ResizeMeshName(const Definition& mesh) {
  return StrCat(mesh.name, kResizeMeshMark, mesh.uid.substr(0, kResizeUidCharacters));
}

// Returns the name of the mesh for which `name` is the auxiliary mesh; empty if it is none.
inline std::string_view ResizedMeshOf(std::string_view name) {
  const size_t mark = name.rfind(kResizeMeshMark);
  const bool is_resize_mesh =
      mark != std::string_view::npos &&
      name.size() == mark + kResizeMeshMark.size() + kResizeUidCharacters &&
      name.find_first_not_of("0123456789abcdef", mark + kResizeMeshMark.size()) ==
          std::string_view::npos;
  return is_resize_mesh ? name.substr(0, mark) : std::string_view();
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_AUXILIARY_MESH_H_
