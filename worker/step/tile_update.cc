// TileUpdate: ends an update in the store, or restores the bytes first.
#include "worker/step/tile_update.h"

#include <utility>

namespace shardmesh::worker {

TileUpdate::TileUpdate(StateTilePtr tile)
    : tile_(std::move(tile)),
      block_(
          std::make_shared<StepBlock>(OwnedMutableBytes{tile_->mutable_bytes(), tile_->memory()})) {
}

TileUpdate::~TileUpdate() {
  undo_log_.Undo();
  block_ = nullptr;
  tile_->Abort();
}

absl::Status TileUpdate::Commit() {
  undo_log_.Clear();
  // Its hold of the memory would keep the next step from an update in place.
  block_ = nullptr;
  return tile_->Commit(std::move(replacement_));
}

}  // namespace shardmesh::worker
