// The form of a tile's bytes that a store can hold in place of the bytes themselves.
#ifndef SHARDMESH_WORKER_STORE_TILE_FORM_H_
#define SHARDMESH_WORKER_STORE_TILE_FORM_H_

#include <cstdint>

#include "absl/types/span.h"

namespace shardmesh::worker {

// A tile's bytes in another order, such as the weights of a product as its kernel reads them.
// Immutable and thread-safe.
class TileForm {
 public:
  virtual ~TileForm() = default;

  // Returns the memory of the form, which it has reserved in the budget of the store's pool.
  virtual int64_t memory_bytes() const = 0;
  // Copies the tile's bytes from `offset_bytes` on to `out`. Requires that offset and size are
  // multiples of the size of an element, and that the range lies within the tile.
  virtual void Read(int64_t offset_bytes, absl::Span<char> out) const = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_TILE_FORM_H_
