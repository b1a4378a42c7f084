// The exchange of a move: each rank sends regions of its old tile, and receives the regions that
// its new tile lacks.
//
// For R rounds, where R is the number of pieces of the largest region: each rank sends its next
// piece of each region that it still sends, then receives the next piece of each region that it
// still receives. It sends up to four rounds ahead. Each byte of a new tile that the rank lacks is
// sent once, so the bytes on the wire are those of the reshard plan, the least possible.
//
// A region that is one run of the old tile is sent from there. Any other region is copied piece by
// piece. Received bytes are copied into the new tile as they arrive. A rank has copies of at most
// `window_bytes` that wait until their receivers have read them; it waits before it would exceed
// this limit.
//
// No deadlock is possible, whatever the order in which the ranks arrive. Before a rank receives in
// a round, it has sent all its pieces of this round, and waits for room if it must. Consider a rank
// in the lowest round of all. If it waits for room, other ranks have yet to read copies of earlier
// rounds, because the copies of one round fit into the window. These ranks are past those rounds,
// so they have read the copies. If it waits for a piece, the sender is in the same round and waits
// for room at most, or is past the round and has sent the piece.
#ifndef SHARDMESH_WORKER_COLLECTIVE_REGION_MOVE_H_
#define SHARDMESH_WORKER_COLLECTIVE_REGION_MOVE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "tensor/dtype.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// This rank's part in a move.
struct RegionMove {
  // Between two layouts on one mesh, whose devices are the ranks. Regions begin and end at whole
  // bytes of each tile (MovePlan in program/move_plan.h).
  const ReshardPlan* plan = nullptr;
  Dtype dtype = Dtype::kF32;
  OwnedBytes from;      // this rank's tile of plan->from()
  absl::Span<char> to;  // this rank's tile of plan->to(); does not overlap `from`
  // A message has at most `piece_bytes`, which is at least 1 and the same on every rank.
  // `window_bytes` is at least one piece for each region that the rank sends.
  int64_t piece_bytes = int64_t{1} << 20;
  int64_t window_bytes = int64_t{64} << 20;
};

// Returns the ranks from which this rank receives, each once, in the order in which it waits for
// them. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED) for more than ReshardPlan::kDefaultMaxRegions.
absl::StatusOr<std::vector<DeviceId>> MoveSources(const ReshardPlan& plan, DeviceId rank);

// Returns the description of a move for Link::Begin: the same text on every rank of the move.
// `value` describes the tensor, like `F32[8,16]`. If the text is longer than 512 bytes, the
// function cuts it and appends a checksum.
std::string MoveSignature(const ReshardPlan& plan, std::string_view value);

// Runs the move. `call.group` has all devices of the mesh, in their order. Uses as many rounds as
// the largest region has pieces. Calls `call.piece_received` after each piece, and `call.received`
// when a region is complete.
//
// Errors: INVALID_ARGUMENT if the sizes of `from` and `to` are not those of the tiles; errors of
// the link, of call.scratch and of call.check; DEADLINE_EXCEEDED if the receivers have not read
// copies by call.deadline. The caller must not use `to` after an error.
absl::Status RunRegionMove(const CollectiveCall& call, const RegionMove& move);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_REGION_MOVE_H_
