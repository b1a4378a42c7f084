// Checks whether a collective is possible on a value of a plan.
//
//   axes = ExchangeAxes(op, mesh)?
//   CheckCollective(op, axes, value, mesh)?
//   if (SplitsTiles(op.kind)) points = SplitPoints(op, AxesSize(mesh, axes), value, dim, mesh)?
//
// Every error is INVALID_ARGUMENT with a reason; its message does not name the op. The functions
// are pure and ignore `op.input`. They require values that Tiling::Create accepts on `mesh`.
#ifndef SHARDMESH_PROGRAM_COLLECTIVE_CHECK_H_
#define SHARDMESH_PROGRAM_COLLECTIVE_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Returns whether the kind uses CollectiveOp::dimension: all-gather, reduce-scatter, all-to-all,
// gather and scatter do.
bool HasDimension(CollectiveKind kind);
// Returns whether the kind uses CollectiveOp::root: broadcast, reduce, gather and scatter do.
bool HasRoot(CollectiveKind kind);
// Returns whether workers can reduce elements of the type: floating-point types of 16 bits or more,
// I8, U8, I32 and I64.
bool HasArithmetic(Dtype dtype);

// Returns whether the kind joins a group's tiles along a dimension: all-gather, gather and
// all-to-all do.
bool JoinsTiles(CollectiveKind kind);
// Returns whether the kind splits a tile into one part for each place in the group: reduce-scatter,
// scatter and all-to-all do.
bool SplitsTiles(CollectiveKind kind);
// Returns the dimension that the op splits. Requires SplitsTiles(op.kind).
int64_t SplitDimension(const CollectiveOp& op);

// Returns those axes of the op whose size is above 1, in the op's order. If the list is empty,
// every group consists of one device.
//
// Errors: MISSING_ARGUMENT if the op names no axes; AXIS_NOT_IN_MESH if the mesh lacks one of them;
// DUPLICATE_AXIS if the op names an axis twice.
absl::StatusOr<Axes> ExchangeAxes(const CollectiveOp& op, const Mesh& mesh);

// Returns OK if the collective is possible on `value` in the groups along `axes`, which are the
// result of ExchangeAxes. SplitPoints checks the sum of counts, and whether unequal parts can be
// split; this function does not.
//
// Errors:
// - UNSUPPORTED_DTYPE: the type has no arithmetic for the reduction; or elements share bytes, and
//   the collective would cut a byte or has unequal tiles.
// - BAD_FIELD: the root, permutation, counts or algorithm does not fit the op's kind, its
//   CollectiveOrder or the size of the group.
// - MISSING_ARGUMENT: a permute has no pairs.
// - INVALID_DIMENSION: the value has no such dimension, or an all-to-all joins and splits the same
//   dimension.
// - NOT_DIVISIBLE: equal parts of a tile are not possible.
// - SHAPE_MISMATCH: the tiles of a group are unequal, and the kind needs tiles of one shape; or a
//   joined dimension is too large.
// - INVALID_SPEC: the layout does not allow the collective. The product, minimum or maximum is of
//   partial sums; or a permute is along an axis of replicas; or `axes` are not the minor axes of
//   the dimension to join.
absl::Status CheckCollective(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                             const Mesh& mesh);

// Returns the cut points of dimension `dim` after the op has split each part of this dimension
// among `ranks` places.
//
// Errors: NOT_DIVISIBLE if the op has no counts and `ranks` does not divide a part; SHAPE_MISMATCH
// if the counts do not add up to the extent of a part.
absl::StatusOr<CutPoints> SplitPoints(const CollectiveOp& op, int64_t ranks,
                                      const ValueDescriptor& value, size_t dim, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHECK_H_
