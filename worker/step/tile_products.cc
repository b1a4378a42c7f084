// Numbers the matrices of batches.
#include "worker/step/tile_products.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "program/value_layout.h"
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

// Returns the dimension of the result that is dimension `dimension` of the tensor `side`.
size_t OutDimension(const TileProduct& tiles, ProductSide side, int64_t dimension) {
  const auto dim = static_cast<size_t>(dimension);
  if (side == ProductSide::kOut) return dim;
  const size_t rank = side == ProductSide::kLhs ? tiles.lhs.size() : tiles.rhs.size();
  const size_t out_rank = tiles.out.size();
  if (dim + 2 < rank) return dim + out_rank - rank;  // a batch dimension
  return side == ProductSide::kLhs ? out_rank - 2 : out_rank - 1;
}

// Returns the product of the extents of dimensions `begin` to `end`.
int64_t ExtentOf(const Shape& shape, size_t begin, size_t end) {
  int64_t extent = 1;
  for (size_t dim = begin; dim < end; ++dim) extent = ProductOf(extent, shape[dim]);
  return extent;
}

// The part of a place in the divided dimension.
struct PlaceExtent {
  int64_t first = 0;
  int64_t extent = 0;
};

PlaceExtent ExtentAt(const SplitProduct& split, int64_t place) {
  PlaceExtent at;
  for (int64_t before = 0; before < place; ++before) {
    AddTo(at.first, split.extents[static_cast<size_t>(before)]);
  }
  at.extent = split.extents[static_cast<size_t>(place)];
  return at;
}

// Returns the extent that a place has along batch dimension `dim`.
int64_t ExtentOfPart(const SplitProduct& split, size_t dim, int64_t place) {
  const bool is_divided = split.kind == SplitKind::kBatch && dim == split.batch_dim;
  return is_divided ? ExtentAt(split, place).extent : split.batch[dim].extent;
}

// Counts the matrices of one tensor, from its last batch dimension to the first.
class MatrixNumber {
 public:
  void Add(int64_t index, int64_t extent) {
    number_ += index * stride_;
    stride_ *= extent;
  }
  int64_t number() const { return number_; }

 private:
  int64_t number_ = 0;
  int64_t stride_ = 1;
};

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

SplitProduct SplitOf(const TileProduct& tiles, ProductSide side, int64_t dimension,
                     std::vector<int64_t> extents) {
  const size_t out_rank = tiles.out.size();
  const size_t rhs_rank = tiles.rhs.size();
  const size_t dim = OutDimension(tiles, side, dimension);
  const bool is_columns = dim + 1 == out_rank;
  SplitProduct split = {.side = side,
                        .kind = is_columns ? SplitKind::kColumns : SplitKind::kRows,
                        .extents = std::move(extents),
                        .n = tiles.out.back(),
                        .k = tiles.rhs[rhs_rank - (tiles.transpose_rhs ? 1 : 2)],
                        .transpose_lhs = tiles.transpose_lhs,
                        .transpose_rhs = tiles.transpose_rhs};
  const bool is_rhs_batch = side == ProductSide::kRhs && !is_columns;
  if (IsOneMatrix(tiles.rhs) && !tiles.transpose_lhs && !is_rhs_batch) {
    split.m = ExtentOf(tiles.out, is_columns ? 0 : dim, out_rank - 1);
    if (is_columns) return split;
    const int64_t inner = ExtentOf(tiles.out, dim + 1, out_rank - 1);
    for (int64_t& extent : split.extents) extent = ProductOf(extent, inner);
    split.batch.push_back({.extent = ExtentOf(tiles.out, 0, dim), .in_lhs = true, .in_rhs = false});
    return split;
  }
  split.m = tiles.out[out_rank - 2];
  if (dim + 2 < out_rank) {
    split.kind = SplitKind::kBatch;
    split.batch_dim = dim;
  }
  for (size_t i = 0; i + 2 < out_rank; ++i) {
    split.batch.push_back({.extent = tiles.out[i],
                           .in_lhs = BatchExtent(tiles.lhs, out_rank, i) == tiles.out[i],
                           .in_rhs = BatchExtent(tiles.rhs, out_rank, i) == tiles.out[i]});
  }
  return split;
}

BlockRange RangeOf(const SplitProduct& split, int64_t place) {
  BlockRange range = {.rows = split.m, .columns = split.n};
  const PlaceExtent part = ExtentAt(split, place);
  if (split.kind == SplitKind::kRows) {
    range.first_row = part.first;
    range.rows = part.extent;
  }
  if (split.kind == SplitKind::kColumns) {
    range.first_column = part.first;
    range.columns = part.extent;
  }
  return range;
}

int64_t PartMatrices(const SplitProduct& split, int64_t place) {
  int64_t matrices = 1;
  for (size_t dim = 0; dim < split.batch.size(); ++dim) {
    const SplitProduct::BatchDim& each = split.batch[dim];
    const bool is_there = split.side == ProductSide::kLhs   ? each.in_lhs
                          : split.side == ProductSide::kRhs ? each.in_rhs
                                                            : true;
    if (is_there) matrices = ProductOf(matrices, ExtentOfPart(split, dim, place));
  }
  return matrices;
}

std::vector<MatrixProduct> MatricesOf(const SplitProduct& split, int64_t place) {
  const BlockRange range = RangeOf(split, place);
  if (range.rows == 0 || range.columns == 0) return {};
  const bool is_batch = split.kind == SplitKind::kBatch;
  const PlaceExtent part = is_batch ? ExtentAt(split, place) : PlaceExtent();
  int64_t count = 1;
  for (size_t dim = 0; dim < split.batch.size(); ++dim) {
    count = ProductOf(count, ExtentOfPart(split, dim, place));
  }
  std::vector<MatrixProduct> matrices;
  matrices.reserve(static_cast<size_t>(count));
  for (int64_t number = 0; number < count; ++number) {
    MatrixNumber lhs, rhs, out;
    int64_t rest = number;
    for (size_t dim = split.batch.size(); dim-- > 0;) {
      const SplitProduct::BatchDim& each = split.batch[dim];
      const bool is_divided = is_batch && dim == split.batch_dim;
      const int64_t extent = ExtentOfPart(split, dim, place);
      const int64_t index = rest % extent;
      rest /= extent;
      // Adds the index in the place's part, or in the whole tile.
      const auto add = [&](ProductSide side, MatrixNumber& to) {
        if (is_divided && split.side != side) {
          to.Add(part.first + index, each.extent);
        } else {
          to.Add(index, extent);
        }
      };
      if (each.in_lhs) add(ProductSide::kLhs, lhs);
      if (each.in_rhs) add(ProductSide::kRhs, rhs);
      add(ProductSide::kOut, out);
    }
    matrices.push_back({lhs.number(), rhs.number(), out.number()});
  }
  return matrices;
}

}  // namespace shardmesh::worker
