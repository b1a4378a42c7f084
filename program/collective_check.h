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

// Whether the kind has a `dimension`: all-gather, reduce-scatter, all-to-all, gather, scatter.
bool HasDimension(CollectiveKind kind);
// Whether the kind has a `root`: broadcast, reduce, gather, scatter.
bool HasRoot(CollectiveKind kind);
// Whether elements of the type can be added.
bool HasArithmetic(Dtype dtype);

// Whether the kind joins the group's tiles along a dimension: all-gather, gather, all-to-all.
bool JoinsTiles(CollectiveKind kind);
// Whether the kind splits a tile into one part for each place: reduce-scatter, scatter, all-to-all.
bool SplitsTiles(CollectiveKind kind);
// The dimension that the op splits. Requires SplitsTiles(op.kind).
int64_t SplitDimension(const CollectiveOp& op);

// Returns the op's axes of more than one device, in the op's order. If none remains, every group is
// one device.
//
// Errors: MISSING_ARGUMENT if the op names no axes; AXIS_NOT_IN_MESH; DUPLICATE_AXIS.
absl::StatusOr<Axes> ExchangeAxes(const CollectiveOp& op, const Mesh& mesh);

// Returns OK if the collective is possible on `value` among the groups along `axes` (ExchangeAxes).
// Does not check the sum of counts, or the extents of unequal parts: SplitPoints does.
//
// Errors: UNSUPPORTED_DTYPE, BAD_FIELD (root, permutation, counts, algorithm), MISSING_ARGUMENT (no
// pairs), INVALID_DIMENSION, NOT_DIVISIBLE, SHAPE_MISMATCH (unequal tiles), INVALID_SPEC (the
// layout).
absl::Status CheckCollective(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                             const Mesh& mesh);

// Returns the cut points of a dimension after each of its parts was split among `ranks` places.
//
// Errors: NOT_DIVISIBLE, SHAPE_MISMATCH (counts that do not add up).
absl::StatusOr<CutPoints> SplitPoints(const CollectiveOp& op, int64_t ranks,
                                      const ValueDescriptor& value, size_t dim, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHECK_H_
