// A program outside the project that uses the installed library: counts the devices of a mesh.
#include <cstdint>
#include <iostream>

#include "sharding/mesh.h"

int main() {
  const auto mesh = shardmesh::Mesh::Parse("fsdp=2,tp=2");
  if (!mesh.ok()) {
    std::cerr << mesh.status() << "\n";
    return 1;
  }
  std::cout << mesh->size() << " devices on " << mesh->axis_count() << " axes\n";
  return mesh->size() == 4 ? 0 : 1;
}
