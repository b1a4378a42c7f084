// Serves shardmesh.v1.TileService: tiles between clients and this worker.
#ifndef SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_
#define SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "process/thread_pool.h"
#include "worker/exchange/membership_view.h"
#include "worker/service/tile_gate.h"
#include "worker/store/shard_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::worker {

// Tiles of at least this size get their memory on the work queue: the host may take a second for
// each GiB.
inline constexpr int64_t kLargeTileBytes = int64_t{16} << 20;

struct TileServiceOptions {
  WorkerSelf self;
  std::string nonce;  // of this worker's hello, for Identify
  // All outlive the service.
  ShardStore* store = nullptr;
  TileGate* gate = nullptr;
  ThreadPool* work = nullptr;              // where disks, and memory, are waited for
  ThreadPool* membership_waits = nullptr;  // waits for a membership update here
  Clock* clock = nullptr;
  // A stream without progress for this long is ended: a put with DEADLINE_EXCEEDED (DEADLINE), a
  // get by cancelling it.
  absl::Duration idle_limit = absl::Seconds(60);
  // How long a PutTiles may wait for the membership update that defines its mesh (wall clock).
  absl::Duration membership_wait_limit = absl::Seconds(2);
};

// A put copies its bytes once, from the network's memory into the staged tile. A get sends its
// bytes from the committed tile. A put's stream that breaks or fails drops the current tile; tiles
// before it stay staged until their transfer ends.
//
// Thread-safe. Streams must have ended (the server drained) before the service is destroyed.
std::unique_ptr<grpc::Service> MakeTileService(const TileServiceOptions& options);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_
