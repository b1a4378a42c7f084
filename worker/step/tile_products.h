// The matrix products that a LocalMatmul computes on a device's tiles.
#ifndef SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
#define SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sharding/shape.h"

namespace shardmesh::worker {

// The shapes of the tiles of a LocalMatmul.
struct TileProduct {
  Shape lhs;
  Shape rhs;
  Shape out;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
};

// The sizes of each matrix product. Where the right tile is one matrix and the left tile is not
// transposed, there is one product, and all rows of the left tile are rows of its left matrix.
struct ProductSizes {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool is_one = true;      // one product for the whole tile
  bool is_one_rhs = true;  // all products have the same right matrix
};

// Requires tiles that CheckPlan accepts.
ProductSizes SizesOf(const TileProduct& tiles);

// Calls run(lhs, rhs, out) for each matrix product, with the number of the matrix in each tile:
// matrices follow each other in row-major order of the batch dimensions. Along a batch dimension
// where an operand's tile has the extent 1, all products use the same matrix of it. Ends with the
// first error, and returns it.
absl::Status ForEachProduct(
    const TileProduct& tiles,
    absl::FunctionRef<absl::Status(int64_t lhs, int64_t rhs, int64_t out)> run);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
