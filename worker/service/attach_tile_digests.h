// Computes digests of this worker's tiles, as the coordinator asks for them.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_TILE_DIGESTS_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_TILE_DIGESTS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "process/thread_pool.h"
#include "sharding/tile.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/service/attach_sink.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Answers the coordinator's orders DigestTiles on threads of its own. Each order takes as long as a
// SHA-256 of its tiles, which have at most 64 MiB, unless a single tile is larger. The coordinator
// bounds the orders that wait. Thread-safe.
class TileDigests {
 public:
  // `store` outlives this object.
  explicit TileDigests(const ShardStore* store) : store_(store) {}
  // Gives up the orders that wait or run, without an answer.
  ~TileDigests() { ForgetAll(); }
  TileDigests(const TileDigests&) = delete;
  TileDigests& operator=(const TileDigests&) = delete;

  // Answers the order on `stream`, later.
  void Take(internal::v1::DigestTiles order, AttachSinkPtr stream);
  // Gives up all orders so far: nobody waits for their answers any more.
  void ForgetAll() { forgotten_.fetch_add(1); }

 private:
  // Returns the SHA-256 of the tile; empty if the worker does not hold it. Nullopt: the order was
  // given up.
  std::optional<std::string> DigestOf(const std::string& array_id, const Tile& tile,
                                      int64_t forgotten) const;

  const ShardStore* const store_;
  std::atomic<int64_t> forgotten_ = 0;  // number of calls of ForgetAll
  // As many threads as one put keeps busy (server/content/content_check.h). Last: its threads use
  // the other members.
  ThreadPool pool_{2};
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_TILE_DIGESTS_H_
