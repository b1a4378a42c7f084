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

// From this size on, the memory of a tile is made ready on the work queue: the host may take a
// second for each GiB.
inline constexpr int64_t kLargeTileBytes = int64_t{16} << 20;

struct TileServiceOptions {
  WorkerSelf self;
  std::string nonce;  // of this worker's hello, for Identify
  // All outlive the service.
  ShardStore* store = nullptr;
  TileGate* gate = nullptr;
  ThreadPool* work = nullptr;              // where disks, and memory, are waited for
  ThreadPool* membership_waits = nullptr;  // waits for a membership update here
  rpc::Clock* clock = nullptr;
  // A stream on which nothing moves for so long is ended: a put with DEADLINE_EXCEEDED (DEADLINE),
  // a get by cancelling it.
  absl::Duration idle_limit = absl::Seconds(60);
  // How much sooner than the coordinator's word of its mesh a tile may come, of the machine's
  // clock.
  absl::Duration membership_wait_limit = absl::Seconds(2);
};

// The bytes of a put are copied once, from where the network left them into the staged tile; those
// of a get are sent from the committed tile. A stream of a put that breaks, or that fails, drops
// the tile under way; tiles before it stay staged until their transfer ends.
//
// Thread-safe. Streams must have ended (the server drained) before it is destroyed.
std::unique_ptr<grpc::Service> MakeTileService(const TileServiceOptions& options);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_
