// The description of an array and its layout, from which every device can derive its own tile.
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

// A plain value: only Tiling() and SizeBytes() check it.
struct ArrayDescriptor {
  // Unique in the cluster and never used again: 1 to 64 characters of [A-Za-z0-9_-].
  std::string array_id;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // The effective spec: it fits shape and mesh.
  PartitionSpec spec;
  // The id of the mesh, the revision of its definition, and the mesh as that revision defines it.
  std::string mesh_id;
  int64_t mesh_revision = 0;
  Mesh mesh;
  // Cut points as in Tiling::Create; empty for equal parts in every dimension.
  std::vector<CutPoints> cut_points;

  // Returns the layout.
  // Errors: as Tiling::Create.
  absl::StatusOr<shardmesh::Tiling> Tiling() const;
  // Returns the size of the whole tensor, in which each element counts once.
  // Errors: as ElementCount and PackedSizeBytes.
  absl::StatusOr<int64_t> SizeBytes() const;
  // Returns the size of one tile.
  // Errors: as PackedSizeBytes.
  absl::StatusOr<int64_t> TileSizeBytes(const Tile& tile) const;

  friend bool operator==(const ArrayDescriptor&, const ArrayDescriptor&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_ARRAY_DESCRIPTOR_H_
