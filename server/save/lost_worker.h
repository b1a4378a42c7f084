// The advice of a save that ended because a worker was lost.
#ifndef SHARDMESH_SERVER_SAVE_LOST_WORKER_H_
#define SHARDMESH_SERVER_SAVE_LOST_WORKER_H_

#include <string>
#include <string_view>

#include "server/save/save_plan.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"

namespace shardmesh::server {

// Says when the save can be repeated after the loss of a worker, by the places that the tiles have
// beside the worker's memory: other workers, its disk, and the files and checkpoints of the arrays.
// Names some of the tensors whose tiles are in none of these. Takes the worker for lost, also if
// `membership` does not know that yet. `stripped`: the prefix that the names of the arrays have
// before those in the checkpoint. `has_repairs`: lost tiles are read again from files. The text
// begins in lower case and has no full stop.
std::string AdviceOnLostWorker(const SavePlan& plan, std::string_view stripped,
                               const std::string& identity, const ArrayRegistry& registry,
                               const MembershipView& membership, const Recovery& recovery,
                               bool has_repairs);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SAVE_LOST_WORKER_H_
