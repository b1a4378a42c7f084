// Keeps what a step overwrites in place, so that it can be restored.
#ifndef SHARDMESH_WORKER_STEP_UNDO_LOG_H_
#define SHARDMESH_WORKER_STEP_UNDO_LOG_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {

// A part of a memory.
struct ByteRegion {
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;

  friend bool operator==(const ByteRegion&, const ByteRegion&) = default;
};

// Returns the sum of the sizes.
int64_t TotalBytes(absl::Span<const ByteRegion> regions);

// Returns the regions of `tile`, the result of an UpdateRowsOp, which the op overwrites if it runs
// in place. `positions` is the op's input of this name. The regions rise and do not touch. Returns
// the whole tile if its rows are not whole bytes. Requires tiles that fit the op.
std::vector<ByteRegion> RegionsOfUpdate(const OpOutput& tile, const OpInput& positions);

// Used by one thread at a time.
class UndoLog {
 public:
  UndoLog() = default;
  UndoLog(const UndoLog&) = delete;
  UndoLog& operator=(const UndoLog&) = delete;

  // Copies the regions of `memory` to `copy`, and keeps both until Undo or Clear. Requires regions
  // within `memory`, and a copy of at least TotalBytes(regions) bytes. The caller keeps `memory`
  // valid.
  void Keep(absl::Span<char> memory, std::vector<ByteRegion> regions, Buffer copy);

  // Restores all that was kept, the last first. The log is empty then.
  void Undo();
  // Forgets all that was kept.
  void Clear() { entries_.clear(); }

  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    absl::Span<char> memory;
    std::vector<ByteRegion> regions;
    Buffer copy;
  };

  std::vector<Entry> entries_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_UNDO_LOG_H_
