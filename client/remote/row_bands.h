// Cuts a tile into bands of bounded size that are consecutive in row-major order.
#ifndef SHARDMESH_CLIENT_REMOTE_ROW_BANDS_H_
#define SHARDMESH_CLIENT_REMOTE_ROW_BANDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// The bands of a tile, in row-major order of their elements: written one after the other, they are
// the tile. A band has at most `max_bytes`, but at least one index of the last dimension. Of a
// type of less than 8 bits, each band but the last begins and ends at whole bytes of the tile: it
// has at least eight indexes of the last dimension, or eight whole rows if a row ends within a
// byte.
//
// Example: bands of rows [0,6) x [0,8) of F32 with at most 64 bytes are [0,2)x[0,8), [2,4)x[0,8)
// and [4,6)x[0,8). With at most 16 bytes: [0,1)x[0,4), [0,1)x[4,8), [1,2)x[0,4), ...
// Not thread-safe.
class RowBands {
 public:
  RowBands(Dtype dtype, Tile tile, int64_t max_bytes);

  // Returns the next band; nullopt after the last. A tile without elements has no band; the tile of
  // a scalar is one band.
  std::optional<Tile> Next();

 private:
  const Tile tile_;
  bool is_over_ = false;
  // The dimension that bands cut. Bands have one index of each dimension before it, and all indexes
  // of those after it.
  size_t cut_ = 0;
  int64_t indexes_ = 1;  // of the dimension that is cut, in one band
  Tile band_;            // the next one
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_ROW_BANDS_H_
