// The matrix products that a LocalMatmul computes on a device's tiles.
#ifndef SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
#define SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_

#include <cstdint>
#include <vector>

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

// One batch dimension of the result's tile. The matrices of a tile follow each other in row-major
// order of the batch dimensions.
struct BatchLoop {
  int64_t extent = 0;
  // How many matrices lie from one index of the dimension to the next in an operand's tile. 0 if
  // the tile has the extent 1 there: all indices have the same matrix.
  int64_t lhs_stride = 0;
  int64_t rhs_stride = 0;

  friend bool operator==(const BatchLoop&, const BatchLoop&) = default;
};

// The products of a tile, and the sizes of each. Where the right tile is one matrix and the left
// tile is not transposed, there is one product, and all rows of the left tile are rows of its left
// matrix.
struct ProductLoops {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool is_one_rhs = true;  // all products have the same right matrix
  int64_t products = 1;    // 0 if the result's tile has no elements
  // Major first; empty if one product is that of the whole tile.
  std::vector<BatchLoop> batch = {};
};

// Requires tiles that CheckPlan accepts.
ProductLoops LoopsOf(const TileProduct& tiles);

// Calls run(lhs, rhs, out) for each matrix product, with the number of the matrix in each tile.
// Ends with the first error, and returns it.
absl::Status ForEachProduct(
    const ProductLoops& loops,
    absl::FunctionRef<absl::Status(int64_t lhs, int64_t rhs, int64_t out)> run);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
