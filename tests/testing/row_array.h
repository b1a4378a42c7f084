// RowArray: the descriptor of a small array that two devices share by rows.
#ifndef SHARDMESH_TESTS_TESTING_ROW_ARRAY_H_
#define SHARDMESH_TESTS_TESTING_ROW_ARRAY_H_

#include <cstdint>
#include <string>

#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "tensor/array_descriptor.h"
#include "tensor/dtype.h"

namespace shardmesh::test {

// Returns an array of four elements on the mesh `m` (x=2), at the mesh's revision 2.
inline ArrayDescriptor RowArray(const std::string& id) {
  return {.array_id = id,
          .dtype = Dtype::kF32,
          .shape = {4},
          .spec = PartitionSpec({SpecEntry::Axis("x")}),
          .mesh_id = "m",
          .mesh_revision = 2,
          .mesh = *Mesh::Parse("x=2"),
          .cut_points = {}};
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_ROW_ARRAY_H_
