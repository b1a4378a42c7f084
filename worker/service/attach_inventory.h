// The tiles that this worker holds, as the coordinator hears of them and decides on them.
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

// Bytes of encoded tiles in a message of the inventory. Each message is a sign of life for a
// coordinator that drops silent workers after some seconds. The coordinator may hold one message of
// every worker at once, when all attach after its restart.
inline constexpr int64_t kInventoryMessageBytes = int64_t{128} << 10;

// Sends all tiles of the store and the ids of quarantined arrays, in pages. Waits for the files of
// dropped tiles first.
void SendInventory(ShardStore& store, AttachSink& stream);

// Carries out a verdict on the inventory, except for the arrays to drop. INVALID_ARGUMENT for a
// malformed tile; otherwise errors of ShardStore::Commit.
absl::Status ApplyVerdict(const internal::v1::InventoryVerdict& verdict, ShardStore& store,
                          const Clock& clock);

// Carries out an order about the quarantine. Waits for the disk. `identity`: this worker's. Calls
// `restored` with each array that came back into use.
internal::v1::QuarantineAnswer CarryOut(
    const internal::v1::QuarantineOrder& order, const std::string& identity, ShardStore& store,
    const std::function<void(const std::string& array_id)>& restored);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_INVENTORY_H_
