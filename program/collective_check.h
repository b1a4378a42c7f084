// Decides which collectives are possible on which values.
//
//   axes = ExchangeAxes(op, mesh)?
//   CheckCollective(op, axes, value, mesh)?
//   if (SplitsTiles(op.kind)) points = SplitPoints(op, AxesSize(mesh, axes), value, dim, mesh)?
//
// Every refusal is INVALID_ARGUMENT with a reason; messages do not name the op. They ignore
// `op.input`. Pure functions; they require values that Tiling::Create accepts on `mesh`.
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

// Whether a dimension's tiles become one tile: all-gather, gather, all-to-all.
bool JoinsTiles(CollectiveKind kind);
// Whether a tile's parts go to different places: reduce-scatter, scatter, all-to-all.
bool SplitsTiles(CollectiveKind kind);
// The dimension that a kind of SplitsTiles splits.
int64_t SplitDimension(const CollectiveOp& op);

// The axes of the op with more than one device, in its order. Empty: every group is one device.
//
// MISSING_ARGUMENT: the op names no axes. AXIS_NOT_IN_MESH, DUPLICATE_AXIS.
absl::StatusOr<Axes> ExchangeAxes(const CollectiveOp& op, const Mesh& mesh);

// Whether the collective is possible on `value` among the groups along `axes` (ExchangeAxes).
// SplitPoints checks counts, and extents of unequal parts.
//
// UNSUPPORTED_DTYPE, BAD_FIELD (root, permutation, counts, algorithm), MISSING_ARGUMENT (no pairs),
// INVALID_DIMENSION, NOT_DIVISIBLE, SHAPE_MISMATCH (unequal tiles), INVALID_SPEC (the layout).
absl::Status CheckCollective(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                             const Mesh& mesh);

// Where the parts of a dimension begin and end after each was split among `ranks` places.
//
// NOT_DIVISIBLE, SHAPE_MISMATCH (counts that do not add up).
absl::StatusOr<CutPoints> SplitPoints(const CollectiveOp& op, int64_t ranks,
                                      const ValueDescriptor& value, size_t dim, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHECK_H_
