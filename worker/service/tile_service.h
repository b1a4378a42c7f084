// Serves shardmesh.v1.TileService, with which clients put tiles to this worker and get tiles from
// it.
#ifndef SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_
#define SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "process/thread_pool.h"
#include "worker/exchange/membership_view.h"
#include "worker/service/handover_inbox.h"
#include "worker/service/tile_gate.h"
#include "worker/store/shard_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::worker {

// Tiles of at least this size are opened on the work queue, because the host may take a second to
// provide each GiB of memory.
inline constexpr int64_t kLargeTileBytes = int64_t{16} << 20;

struct TileServiceOptions {
  WorkerSelf self;
  std::string nonce;  // the random bytes in this worker's hello, which Identify returns
  // These objects outlive the service.
  ShardStore* store = nullptr;
  TileGate* gate = nullptr;
  HandoverInbox* inbox = nullptr;  // null: tiles come as streams only
  ThreadPool* work = nullptr;      // for work that waits for disks or memory
  // Called on a thread of `work` if there is no memory for a tile of `size_bytes`, or for the next
  // `size_bytes` of it (BytesToFreeFor). `refused` is the error (MEMORY_LIMIT). May block. Returns
  // whether memory may have become free, so that the tile is opened once more, or the piece
  // appended once more. Null: the put fails at once.
  std::function<bool(const absl::Status& refused, int64_t size_bytes)> free_memory = nullptr;
  ThreadPool* membership_waits = nullptr;  // for puts that wait for a membership update
  Clock* clock = nullptr;
  // The service ends a stream that makes no progress for this long: a put with DEADLINE_EXCEEDED
  // (DEADLINE), a get by cancelling it.
  absl::Duration idle_limit = absl::Seconds(60);
  // How long a PutTiles call waits at most for the membership update that defines the mesh of its
  // tile (wall clock).
  absl::Duration membership_wait_limit = absl::Seconds(2);
};

// A put copies its bytes once, from gRPC's memory into the staged tile. A client on this host may
// hand over sealed memory instead, which becomes the tile's. A get sends its bytes
// directly from the committed tile. If a put's stream breaks or fails, the tile that is being
// received is dropped. Complete tiles that came earlier on this stream stay staged until their
// transfer ends.
//
// Thread-safe. Before the service is destroyed, all streams must have ended (the server is
// drained).
std::unique_ptr<grpc::Service> MakeTileService(const TileServiceOptions& options);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_SERVICE_H_
