// The update of one tile of state by one step, from the step's begin to its commit.
#ifndef SHARDMESH_WORKER_STEP_TILE_UPDATE_H_
#define SHARDMESH_WORKER_STEP_TILE_UPDATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "worker/step/step_block.h"
#include "worker/step/undo_log.h"
#include "worker/store/state_tile.h"

namespace shardmesh::worker {

// Holds the tile for its step. The step has two ways to give the tile its new elements:
// - It overwrites rows of the tile's memory, which block() hands out. Before each op it keeps the
//   old rows in undo_log(), if needs_undo() is true.
// - It makes the elements in other memory, and passes this to Replace.
// Destruction before Commit undoes the update: the tile has the elements that it had before the
// step. If the step has lent the memory to messages, first waits a while for their end: a peer
// takes bytes that change under it for damage, and ends its stream. Abort the step in the links
// before.
//
// Used by one thread at a time.
class TileUpdate {
 public:
  // Requires a tile whose update has not ended.
  explicit TileUpdate(StateTilePtr tile);
  ~TileUpdate();
  TileUpdate(const TileUpdate&) = delete;
  TileUpdate& operator=(const TileUpdate&) = delete;

  const TileDescription& description() const { return tile_->description(); }
  // Returns the tile's memory as one part, from offset 0 to the tile's size.
  const std::shared_ptr<StepBlock>& block() const { return block_; }
  // Whether the memory is that of the array. If not, it is a copy, which the store drops if the
  // step fails.
  bool needs_undo() const { return tile_->is_exclusive(); }
  UndoLog& undo_log() { return undo_log_; }

  // Makes `memory`, which has the tile's size, the tile's memory at the commit. It replaces
  // everything that was written in place.
  void Replace(std::shared_ptr<Buffer> memory) { replacement_ = std::move(memory); }

  // Call it when the step has run: see StateTile::AwaitCommit.
  void AwaitCommit() { tile_->AwaitCommit(); }
  // Ends the update: readers get the new elements. ABORTED if the store has dropped the array
  // meanwhile. Call it at most once.
  absl::Status Commit();

 private:
  // Waits until nobody but this object has an owner of block().
  void AwaitReaders() const;

  const StateTilePtr tile_;
  std::shared_ptr<StepBlock> block_;  // null after Commit
  UndoLog undo_log_;
  std::shared_ptr<Buffer> replacement_;
};

using TileUpdates = std::vector<std::unique_ptr<TileUpdate>>;

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_TILE_UPDATE_H_
