// Fuzzes the reading of meshes as users write them, `dp=2,tp=4`: printed, a mesh reads as itself,
// and its devices and coordinates are each other's inverse.
#include <string_view>

#include "sharding/mesh.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(input);
  const absl::StatusOr<Mesh> inferred = Mesh::Parse(input, {.device_count = 24});
  Require(!inferred.ok() || inferred->size() == 24);
  if (!mesh.ok()) {
    Require(mesh.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const absl::StatusOr<Mesh> again = Mesh::Parse(mesh->ToString());
  Require(again.ok() && *again == *mesh);
  for (const DeviceId device : {DeviceId{0}, mesh->size() / 2, mesh->size() - 1}) {
    Require(mesh->DeviceAt(mesh->CoordinatesOf(device)) == device);
  }
}

}  // namespace shardmesh::fuzz
