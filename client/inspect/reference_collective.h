// Collectives computed plainly in F64 on the tiles of all devices, with bounds for the errors that
// workers may make.
//
// Exchanges of tiles are exact, and so are minima, maxima, and sums and products of integers. For
// others, F16 and BF16 are computed in F32 and rounded once, and the bounds are those of
// reference_ops.h.
#ifndef SHARDMESH_CLIENT_INSPECT_REFERENCE_COLLECTIVE_H_
#define SHARDMESH_CLIENT_INSPECT_REFERENCE_COLLECTIVE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/inspect/bounded_tensor.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::client {

// A tensor as it lies on the devices of a mesh: its layout, and its partial sums, by PartialSumOf.
// A tensor whose layout has no unreduced axes has one, its elements.
struct LaidOutTensor {
  Mesh mesh;
  ValueDescriptor layout;
  std::vector<BoundedTensorPtr> sums;
};

// Returns an array as PartialSumCount and PartialSumOf take it, with this layout on the mesh.
ArrayDescriptor DescriptorOf(const Mesh& mesh, const ValueDescriptor& layout);

// Returns the result of the collective, whose input is `input`. Its layout is the one that the
// planner gives it. `op.input` is ignored. INVALID_ARGUMENT: the collective is not possible, as
// PlanProgram says.
absl::StatusOr<LaidOutTensor> ReferenceCollective(const CollectiveOp& op,
                                                  const LaidOutTensor& input);

// Checks that the recomputation of a collective of such a tensor is within kMaxReferenceElements
// and kMaxReferenceWork. INVALID_ARGUMENT (LIMIT_EXCEEDED) says which limit it exceeds, and errors
// of ReferenceCollective.
absl::Status CheckCollectiveSize(const CollectiveOp& op, const Mesh& mesh,
                                 const ValueDescriptor& input);

// Returns the value of partial sums that workers add up, in whichever order. Requires at least one.
BoundedTensorPtr SumOf(absl::Span<const BoundedTensorPtr> sums);

// Returns the value of partial sums that workers have computed. A bound is for the roundings of the
// partial sums to their type. Requires at least one.
BoundedTensorPtr RoundedSumOf(absl::Span<const BoundedTensorPtr> sums);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_INSPECT_REFERENCE_COLLECTIVE_H_
