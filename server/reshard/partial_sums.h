// The layout in which the partial sums of an array are added up before it leaves its mesh.
#ifndef SHARDMESH_SERVER_RESHARD_PARTIAL_SUMS_H_
#define SHARDMESH_SERVER_RESHARD_PARTIAL_SUMS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "server/state/array_registry.h"
#include "sharding/spec.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// Returns whether the tiles of the array are partial sums along some axes.
bool HasPartialSums(const ArrayDescriptor& array);

// Returns the spec without its unreduced axes.
PartitionSpec WithoutUnreduced(const PartitionSpec& spec);

// Returns the array in the layout that it would have without partial sums. The effective spec loses
// its unreduced axes, and the axes that the requested spec lacks: a resize has scattered the sums
// of the array over these (RequestedOfSums). Other arrays stay as they are.
ArrayDefinition WithoutSums(const ArrayDefinition& array);

// Returns the requested spec of the sums of an array with partial sums: the axes that the array
// itself asks for. WithoutSums finds the axes of the sums by it. nullopt: the sums have no other.
std::optional<PartitionSpec> RequestedOfSums(const ArrayDefinition& partial,
                                             const PartitionSpec& sums);

// Returns the description of the sums of an array that has partial sums, on its own mesh. Each
// unreduced axis partitions the first dimension that it divides, beside the axes that partition it
// already: a reduce-scatter moves and keeps less than an all-reduce does. An axis that divides no
// dimension partitions none. Dimensions with cut points stay as they are. The id, which is that of
// `partial`, says nothing about the sums.
//
// INVALID_ARGUMENT (UNSUPPORTED_DTYPE): workers cannot add elements of the type.
// Example: mesh x=2,y=2, P('x', unreduced={'y'}), shape (4, 6) gives P(('x', 'y'), None).
absl::StatusOr<ArrayDescriptor> SumsOf(const ArrayDescriptor& partial);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_PARTIAL_SUMS_H_
