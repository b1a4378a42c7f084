// The matrix products that a LocalMatmul computes on a device's tiles, and the parts of them that
// belong to the places of a group.
#ifndef SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
#define SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "program/product_layout.h"
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

// The dimension of a product that a group divides among its places.
enum class SplitKind { kRows, kColumns, kBatch };

// The products of a tile, divided among the places of a group along one dimension. Each place has a
// part of the rows or of the columns of each matrix, or some of the matrices. The matrices of a
// tensor follow each other in row-major order of the batch dimensions that the tensor has.
//
// Where the right tile is one matrix and the left tile is not transposed, all dimensions of the
// left tile but the last one are rows. Rows of one place that are apart are batches of rows then:
// `batch` has the dimensions before the one that is divided, as one.
struct SplitProduct {
  struct BatchDim {
    int64_t extent = 0;
    // Whether the tensor has the dimension. If not, all indices have the same matrix.
    bool in_lhs = true;
    bool in_rhs = true;
  };

  // The tensor whose parts are exchanged: the part of each place is contiguous in memory of its
  // own, and the other two tensors are whole tiles.
  ProductSide side = ProductSide::kLhs;
  SplitKind kind = SplitKind::kRows;
  size_t batch_dim = 0;               // for kBatch: the index in `batch` of the divided dimension
  std::vector<int64_t> extents = {};  // of each place's part, in the divided dimension
  std::vector<BatchDim> batch = {};
  // The sizes of one matrix product of the tile.
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
};

// Returns how the places divide the tile along dimension `dimension` of the tensor `side`, in parts
// of `extents`, one for each place. Requires tiles that CheckPlan accepts, and a dimension of the
// result, not the contracted one.
SplitProduct SplitOf(const TileProduct& tiles, ProductSide side, int64_t dimension,
                     std::vector<int64_t> extents);

// The rows and columns of each matrix of the result that are a place's.
struct BlockRange {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
};
BlockRange RangeOf(const SplitProduct& split, int64_t place);

// Returns the number of matrices in the part of a place of the tensor split.side.
int64_t PartMatrices(const SplitProduct& split, int64_t place);

// The numbers of the matrices of one product: in the part of a place for split.side, in the tiles
// for the other two tensors.
struct MatrixProduct {
  int64_t lhs = 0;
  int64_t rhs = 0;
  int64_t out = 0;

  friend bool operator==(const MatrixProduct&, const MatrixProduct&) = default;
};

// Returns the products of a place, in the order of the result's matrices. Empty if they have no
// rows or no columns.
std::vector<MatrixProduct> MatricesOf(const SplitProduct& split, int64_t place);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_TILE_PRODUCTS_H_
