// Derives the layout and the sizes of an array from its description.
#include "tensor/array_descriptor.h"

#include "status/status_macros.h"

namespace shardmesh {

absl::StatusOr<shardmesh::Tiling> ArrayDescriptor::Tiling() const {
  return shardmesh::Tiling::Create(mesh, spec, shape, cut_points);
}

absl::StatusOr<int64_t> ArrayDescriptor::SizeBytes() const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  return PackedSizeBytes(dtype, elements);
}

absl::StatusOr<int64_t> ArrayDescriptor::TileSizeBytes(const Tile& tile) const {
  return PackedSizeBytes(dtype, tile.element_count());
}

}  // namespace shardmesh
