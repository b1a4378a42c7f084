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

std::vector<BatchLoop> BatchLoopsOf(const TileProduct& tiles) {
  const size_t rank = tiles.out.size();
  std::vector<BatchLoop> batch(rank - 2);
  int64_t lhs_stride = 1;
  int64_t rhs_stride = 1;
  for (size_t dim = rank - 2; dim-- > 0;) {
    const int64_t lhs_extent = BatchExtent(tiles.lhs, rank, dim);
    const int64_t rhs_extent = BatchExtent(tiles.rhs, rank, dim);
    batch[dim] = {.extent = tiles.out[dim],
                  .lhs_stride = lhs_extent == 1 ? 0 : lhs_stride,
                  .rhs_stride = rhs_extent == 1 ? 0 : rhs_stride};
    lhs_stride *= lhs_extent;
    rhs_stride *= rhs_extent;
  }
  return batch;
}

}  // namespace

ProductLoops LoopsOf(const TileProduct& tiles) {
  const size_t rank = tiles.rhs.size();
  ProductLoops loops = {.n = tiles.rhs[rank - (tiles.transpose_rhs ? 2 : 1)],
                        .k = tiles.rhs[rank - (tiles.transpose_rhs ? 1 : 2)]};
  loops.is_one_rhs = IsOneMatrix(tiles.rhs);
  // A tile without elements takes no memory, so nothing limits the other extents of its shape.
  if (std::find(tiles.out.begin(), tiles.out.end(), 0) != tiles.out.end()) {
    loops.m = tiles.out.size() < 2 ? 1 : tiles.out[tiles.out.size() - 2];
    loops.products = 0;
    return loops;
  }
  if (loops.is_one_rhs && (!tiles.transpose_lhs || IsOneMatrix(tiles.lhs))) {
    loops.m = 1;
    for (size_t dim = 0; dim + 1 < tiles.out.size(); ++dim) loops.m *= tiles.out[dim];
    return loops;
  }
  loops.m = tiles.out[tiles.out.size() - 2];
  loops.batch = BatchLoopsOf(tiles);
  for (const BatchLoop& loop : loops.batch) loops.products *= loop.extent;
  return loops;
}

absl::Status ForEachProduct(
    const ProductLoops& loops,
    absl::FunctionRef<absl::Status(int64_t lhs, int64_t rhs, int64_t out)> run) {
  for (int64_t out = 0; out < loops.products; ++out) {
    int64_t lhs = 0;
    int64_t rhs = 0;
    int64_t rest = out;
    for (auto loop = loops.batch.rbegin(); loop != loops.batch.rend(); ++loop) {
      const int64_t index = rest % loop->extent;
      rest /= loop->extent;
      lhs += index * loop->lhs_stride;
      rhs += index * loop->rhs_stride;
    }
    SHARDMESH_RETURN_IF_ERROR(run(lhs, rhs, out));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
