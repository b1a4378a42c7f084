// The inventory (the list of tiles that this worker holds): its encoding for the coordinator, and
// the coordinator's verdict (its decision about each tile).
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_INVENTORY_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_INVENTORY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "process/clock.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/service/attach_sink.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Size limit for the encoded tiles in one inventory message. The coordinator drops workers that are
// silent for some seconds; frequent small messages prevent such silence. Small messages also limit
// memory: when all workers attach after a restart, the coordinator may hold one message of each
// worker at once.
inline constexpr int64_t kInventoryMessageBytes = int64_t{128} << 10;

// Sends all tiles of the store and the ids of quarantined arrays, in pages. First waits until the
// files of dropped tiles are gone.
void SendInventory(ShardStore& store, AttachSink& stream);

// Applies the coordinator's verdict on the inventory, but does not drop the arrays that the verdict
// lists for dropping. INVALID_ARGUMENT for a malformed tile. Errors of ShardStore::Commit, except
// NOT_FOUND.
absl::Status ApplyVerdict(const internal::v1::InventoryVerdict& verdict, ShardStore& store,
                          const Clock& clock);

// Carries out the coordinator's order about the quarantine, and returns the answer. The quarantine
// has tiles that the coordinator's registry does not list as tiles of this worker. Waits for the
// disk. `identity` is the identity of this worker. Calls `restored` with the id of each array that
// this call has restored. Skips arrays that are not in quarantine. Stops at the first other error,
// which the answer carries.
internal::v1::QuarantineAnswer CarryOut(
    const internal::v1::QuarantineOrder& order, const std::string& identity, ShardStore& store,
    const std::function<void(const std::string& array_id)>& restored);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_INVENTORY_H_
