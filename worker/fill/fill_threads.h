// Fills tiles on threads of its own: from files below read roots, and from other workers.
#ifndef SHARDMESH_WORKER_FILL_FILL_THREADS_H_
#define SHARDMESH_WORKER_FILL_FILL_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "process/roots/read_root.h"
#include "rpc/tls/credentials.h"
#include "worker/service/tile_filler.h"
#include "worker/service/tile_gate.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

struct FillOptions {
  std::string identity;  // of this worker, for errors
  // These objects outlive the filler.
  ShardStore* store = nullptr;
  TileGate* gate = nullptr;
  const ReadRoots* roots = nullptr;
  rpc::Credentials credentials = rpc::Credentials::Insecure();  // for other workers
  // See TileServiceOptions::free_memory.
  std::function<bool(const absl::Status& refused, int64_t size_bytes)> free_memory = nullptr;
  // Threads that read. Two keep a disk or a peer busy while one computes checksums.
  int threads = 2;
  // How long a tile waits at most for the membership update that defines its mesh.
  absl::Duration membership_wait_limit = absl::Seconds(2);
  // How long a question about files may take, with the time that it waits for its turn. Less than
  // the coordinator waits for the answer (server/steps/file_check.h).
  absl::Duration check_limit = absl::Seconds(25);
  // A worker from which nothing comes for so long counts as lost.
  absl::Duration idle_limit = absl::Seconds(30);
};

// Tiles of different transfers take turns. The orders that wait are those of the coordinator's
// messages: tiles of transfers that have begun. Each thread takes at most 5 MiB beyond the tiles,
// 8 MiB where they convert tensors or where arrays are other views of saved tensors. Bytes from
// other workers that are not yet in their tiles take at most 64 MiB, with all that gRPC holds of
// them, for up to six threads: a thread reads from a few workers at a time (PeerReader).
std::unique_ptr<TileFiller> MakeTileFiller(FillOptions options);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_FILL_THREADS_H_
