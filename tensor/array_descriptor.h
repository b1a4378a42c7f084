// What an array is and how it lies: enough for every device to derive its own tile.
#ifndef SHARDMESH_TENSOR_ARRAY_DESCRIPTOR_H_
#define SHARDMESH_TENSOR_ARRAY_DESCRIPTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {

// A plain value: nothing is checked until Tiling() or SizeBytes() is asked for.
struct ArrayDescriptor {
  // Unique in the cluster and never used again: 1 to 64 characters of [A-Za-z0-9_-].
  std::string array_id;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // The effective spec: it fits shape and mesh.
  PartitionSpec spec;
  // The mesh, the revision of its definition, and the axes of that definition.
  std::string mesh_id;
  int64_t mesh_revision = 0;
  Mesh mesh;
  // Empty: equal parts everywhere; else as in Tiling::Create.
  std::vector<CutPoints> cut_points;

  // How it lies. Errors: as Tiling::Create.
  absl::StatusOr<shardmesh::Tiling> Tiling() const;
  // Bytes of the whole tensor, each element once. Errors: as ElementCount and PackedSizeBytes.
  absl::StatusOr<int64_t> SizeBytes() const;
  // Bytes of one tile of it. Errors: as PackedSizeBytes.
  absl::StatusOr<int64_t> TileSizeBytes(const Tile& tile) const;

  friend bool operator==(const ArrayDescriptor&, const ArrayDescriptor&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ARRAY_DESCRIPTOR_H_
