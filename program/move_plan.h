// The move of a value from one layout to another on one mesh, by the regions of a reshard plan: its
// check, its costs, and the sizes of its messages.
#ifndef SHARDMESH_PROGRAM_MOVE_PLAN_H_
#define SHARDMESH_PROGRAM_MOVE_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "program/collective_choice.h"
#include "program/step_plan.h"
#include "program/value_layout.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Returns the plan by which `from` becomes `to`. Both values lie on `mesh`, and have layouts that
// Tiling::Create accepts there.
//
// Errors are INVALID_ARGUMENT: SHAPE_MISMATCH if the two differ in shape, in element type or in
// their unreduced axes; LIMIT_EXCEEDED if ReshardPlan::Create refuses layouts with so many
// elements.
absl::StatusOr<ReshardPlan> MovePlan(const Mesh& mesh, const ValueDescriptor& from,
                                     const ValueDescriptor& to);

// Returns the bytes that all devices together receive. A region is packed densely, and each one of
// elements of less than a byte is padded to whole bytes. If a plan has more than kMaxSubByteRegions
// regions of such elements, their padding is left out. `totals`: of the plan.
// Errors: as PackedSizeBytes.
absl::StatusOr<int64_t> MoveBytes(const ReshardPlan& plan, Dtype dtype,
                                  const ReshardTotals& totals);
inline constexpr int64_t kMaxSubByteRegions = int64_t{1} << 20;

// Returns whether every device already holds all of its new tile.
bool MovesNothing(const ReshardPlan& plan);

// Returns the mesh axes along which the plan moves data, in the mesh's order: those of the plan's
// steps, or all axes of more than one device if no steps describe the plan.
Axes MoveAxes(const ReshardPlan& plan);

// Returns the cost of the move for the device with the most work. Numbers beyond 64 bits are
// capped.
CollectiveCost CostOfMove(const ReshardPlan& plan, Dtype dtype);

// A region travels in messages of MovePieceBytes each; the last one may be shorter. A region that
// is not one run of whole bytes of the sender's tile is copied piece by piece. For one move, a
// device has copies of at most MoveWindowBytes that wait until the receivers have read them: 16
// MiB, or one piece for each device of the mesh if that is more. One piece for each device is at
// most 32 MiB on meshes of up to 2,048 devices.
int64_t MovePieceBytes(int64_t devices);
int64_t MoveWindowBytes(int64_t devices);

// The memory that arrays which move may take on a device beyond their old and new tiles: the
// default, and the range of the coordinator's flag --move-memory. On meshes of up to 2,048 devices,
// the least value is enough for one move.
inline constexpr int64_t kMoveMemoryBytes = int64_t{64} << 20;
inline constexpr int64_t kLeastMoveMemoryBytes = int64_t{32} << 20;
inline constexpr int64_t kMostMoveMemoryBytes = int64_t{16} << 30;

// Returns how many moves may run on a device at the same time so that the copies of all of them
// have at most `memory_bytes`, and at least 1. With kMoveMemoryBytes, these are 4 on meshes of up
// to 16 devices, at least 2 on meshes of up to 2,048, and 1, whose copies have more, on meshes of
// more than 4,096 devices.
int64_t MovesAtOnce(int64_t devices, int64_t memory_bytes = kMoveMemoryBytes);

// Returns an upper bound on the copies that any one device has at the same time in a move: at most
// MoveWindowBytes. 0 if each region is one run of its sender's tile, and elements have whole bytes.
// `totals`: of the plan.
int64_t MoveCopiesBytes(const ReshardPlan& plan, Dtype dtype, const ReshardTotals& totals);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_MOVE_PLAN_H_
