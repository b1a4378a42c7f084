// TileUpdate: ends an update in the store, or restores the bytes first.
#include "worker/step/tile_update.h"

#include <utility>

#include "absl/time/time.h"
#include "process/steady_deadline.h"

namespace shardmesh::worker {
namespace {

// The longest time that an update waits for those to whom the step has lent the bytes, before it
// restores them. Messages that are on their way are sent within this time, and the others are
// dropped with the step.
constexpr absl::Duration kUndoWait = absl::Seconds(1);

}  // namespace

TileUpdate::TileUpdate(StateTilePtr tile)
    : tile_(std::move(tile)),
      block_(
          std::make_shared<StepBlock>(OwnedMutableBytes{tile_->mutable_bytes(), tile_->memory()})) {
}

TileUpdate::~TileUpdate() {
  if (!undo_log_.empty()) AwaitReaders();
  undo_log_.Undo();
  block_ = nullptr;
  tile_->Abort();
}

void TileUpdate::AwaitReaders() const {
  const SteadyDeadline deadline = SteadyDeadline::After(kUndoWait);
  while (block_->HasOwners() && !deadline.is_over()) block_->Wait(deadline.left());
}

absl::Status TileUpdate::Commit() {
  undo_log_.Clear();
  // Its hold of the memory would keep the next step from an update in place.
  block_ = nullptr;
  return tile_->Commit(std::move(replacement_));
}

}  // namespace shardmesh::worker
