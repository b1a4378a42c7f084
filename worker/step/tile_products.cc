// Numbers the matrices of batches.
#include "worker/step/tile_products.h"

#include <algorithm>
#include <cstddef>

#include "status/status_macros.h"

namespace shardmesh::worker {
namespace {

// Returns the extent of an operand's tile along batch dimension `dim` of a result of rank
// `out_rank`; 1 where the operand lacks the dimension.
int64_t BatchExtent(const Shape& operand, size_t out_rank, size_t dim) {
  const size_t missing = out_rank - operand.size();
  return dim < missing ? 1 : operand[dim - missing];
}

bool IsOneMatrix(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end() - 2, [](int64_t extent) { return extent == 1; });
}

}  // namespace

ProductSizes SizesOf(const TileProduct& tiles) {
  const size_t rank = tiles.rhs.size();
  ProductSizes sizes = {.n = tiles.rhs[rank - (tiles.transpose_rhs ? 2 : 1)],
                        .k = tiles.rhs[rank - (tiles.transpose_rhs ? 1 : 2)]};
  sizes.is_one_rhs = IsOneMatrix(tiles.rhs);
  sizes.is_one = sizes.is_one_rhs && (!tiles.transpose_lhs || IsOneMatrix(tiles.lhs));
  if (sizes.is_one) {
    sizes.m = 1;
    for (size_t dim = 0; dim + 1 < tiles.out.size(); ++dim) sizes.m *= tiles.out[dim];
  } else {
    sizes.m = tiles.out[tiles.out.size() - 2];
  }
  return sizes;
}

absl::Status ForEachProduct(
    const TileProduct& tiles,
    absl::FunctionRef<absl::Status(int64_t lhs, int64_t rhs, int64_t out)> run) {
  if (SizesOf(tiles).is_one) return run(0, 0, 0);
  const size_t rank = tiles.out.size();
  int64_t products = 1;
  for (size_t dim = 0; dim + 2 < rank; ++dim) products *= tiles.out[dim];
  for (int64_t out = 0; out < products; ++out) {
    int64_t lhs = 0;
    int64_t rhs = 0;
    int64_t lhs_stride = 1;
    int64_t rhs_stride = 1;
    int64_t rest = out;
    for (size_t dim = rank - 2; dim-- > 0;) {
      const int64_t index = rest % tiles.out[dim];
      rest /= tiles.out[dim];
      const int64_t lhs_extent = BatchExtent(tiles.lhs, rank, dim);
      const int64_t rhs_extent = BatchExtent(tiles.rhs, rank, dim);
      if (lhs_extent != 1) lhs += index * lhs_stride;
      if (rhs_extent != 1) rhs += index * rhs_stride;
      lhs_stride *= lhs_extent;
      rhs_stride *= rhs_extent;
    }
    SHARDMESH_RETURN_IF_ERROR(run(lhs, rhs, out));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
