// A mesh as users define and store it: the decoded contents of a catalog's entry or a file.
#ifndef SHARDMESH_SHARDING_MESH_DEFINITION_H_
#define SHARDMESH_SHARDING_MESH_DEFINITION_H_

#include <string>
#include <vector>

#include "sharding/mesh.h"

namespace shardmesh {

// Axes over workers.
struct MeshDefinition {
  Mesh mesh;
  // Identities by rank; empty, or one per device.
  std::vector<std::string> workers;

  friend bool operator==(const MeshDefinition&, const MeshDefinition&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_DEFINITION_H_
