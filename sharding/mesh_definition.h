// A mesh as users define and store it: the decoded contents of a catalog entry or a file.
#ifndef SHARDMESH_SHARDING_MESH_DEFINITION_H_
#define SHARDMESH_SHARDING_MESH_DEFINITION_H_

#include <string>
#include <vector>

#include "sharding/mesh.h"

namespace shardmesh {

// A mesh with the workers that serve its ranks.
struct MeshDefinition {
  Mesh mesh;
  // Identity of the worker of each rank: one per device, or empty if the definition names none.
  std::vector<std::string> workers;

  friend bool operator==(const MeshDefinition&, const MeshDefinition&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_DEFINITION_H_
