// A stored tile that a step updates.
#ifndef SHARDMESH_WORKER_STORE_STATE_TILE_H_
#define SHARDMESH_WORKER_STORE_STATE_TILE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// One update of a committed tile by a step, from ShardStore::BeginUpdate until Commit or Abort.
// Destruction before either aborts. At most one update of a tile lives at a time.
//
// The update is exclusive if nobody but the store holds the tile. The step then writes the array's
// own bytes, and other finds of the tile wait: see ShardStore::Find. Otherwise the step writes a
// copy, and readers go on with the old bytes.
//
// Used by one thread at a time. Must not outlive the store.
class StateTile {
 public:
  StateTile(const StateTile&) = delete;
  StateTile& operator=(const StateTile&) = delete;
  ~StateTile();

  const TileDescription& description() const { return old_description_; }
  // Returns the tile's bytes, which begin as its present content, for the step to write. Empty
  // after Commit or Abort.
  absl::Span<char> mutable_bytes();
  // Returns the owner of these bytes. An owner that is kept after Commit makes the next update of
  // the tile one of a copy.
  std::shared_ptr<const void> memory() const { return buffer_; }
  // Returns whether mutable_bytes() are the array's own bytes.
  bool is_exclusive() const { return is_exclusive_; }
  // Returns the step that makes the update.
  int64_t step() const { return step_; }

  // Says that the step has run. From now on finds of the tile wait for the end of the update, also
  // if it is not exclusive: whoever learns that the step has committed may come here before the
  // commit does, and must not find the old content. No effect after Commit or Abort.
  void AwaitCommit();
  // Makes mutable_bytes() the tile's content. If `memory` is not null, makes it the tile's memory
  // instead; requires that it has the tile's size. The checksum of the content is computed when it
  // is first asked for. ABORTED if the store has dropped the tile, or put it aside, since the
  // update began. Call it at most once, and not after Abort.
  absl::Status Commit(std::shared_ptr<Buffer> memory = nullptr);
  // Ends the update; the content is that of before. If the update is exclusive, the caller has
  // restored the bytes before the call. No effect after Commit or Abort.
  void Abort();

 private:
  friend class ShardStore;
  StateTile(ShardStore* store, StoredTilePtr old_tile, std::shared_ptr<Buffer> buffer,
            bool is_exclusive, int64_t step, int64_t update);

  ShardStore* const store_;
  const TileDescription old_description_;
  StoredTilePtr old_;               // null once the update has ended
  std::shared_ptr<Buffer> buffer_;  // null once the update has ended
  const bool is_exclusive_;
  const int64_t step_;
  const int64_t update_;  // number of the update in its store
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_STATE_TILE_H_
