// BlockProducts: runs the kernel on the parts that are there.
#include "worker/step/block_products.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "program/fuse/fuse_exchanges.h"
#include "program/product_layout.h"
#include "program/value_layout.h"
#include "status/status_macros.h"
#include "tensor/dtype.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/row_gather.h"
#include "worker/kernel/streamed_product.h"

namespace shardmesh::worker {
namespace {

// ScatteredProduct multiplies columns of weights that the plain form may read packed.
static_assert(kFewestRowsOfScatteredColumns > kMostStreamedRows,
              "the loops for few rows add in another order than oneDNN");

int64_t ElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

// Returns matrix `number` of a tile, whose matrices have `size_bytes` each.
absl::Span<const char> MatrixOf(absl::Span<const char> tile, int64_t number, int64_t size_bytes) {
  return tile.subspan(Index(number * size_bytes), Index(size_bytes));
}

// Returns `count` elements of `dtype` in memory of call.scratch. Keeps the memory in `*kept` for
// the next call, which may need fewer elements.
absl::StatusOr<absl::Span<char>> KeptScratch(const CollectiveCall& call, int64_t elements,
                                             Dtype dtype, OwnedMutableBytes* kept) {
  const size_t size_bytes = Index(elements * ElementBytes(dtype));
  if (kept->bytes.size() < size_bytes) {
    *kept = OwnedMutableBytes();
    SHARDMESH_ASSIGN_OR_RETURN(*kept, Scratch(call, static_cast<int64_t>(size_bytes)));
  }
  return kept->bytes.first(size_bytes);
}

// Copies `columns` columns of a matrix of `lines` lines, from column `first` on. The lines of the
// matrix have `pitch` elements; those of `to` follow one another.
void CopyColumns(const char* matrix, int64_t lines, int64_t pitch, int64_t first, int64_t columns,
                 int64_t element_bytes, char* to) {
  const size_t line_bytes = Index(columns * element_bytes);
  for (int64_t line = 0; line < lines; ++line) {
    std::memcpy(to + Index(line) * line_bytes, matrix + (line * pitch + first) * element_bytes,
                line_bytes);
  }
}

// Gathers an operand, and multiplies its parts as they arrive. A line is what arrives on its own: a
// row of the left operand, a column of a transposed right one, or else a whole matrix. The
// arguments of the constructor outlive the object.
class GatheredProduct {
 public:
  GatheredProduct(const CollectiveCall& call, BlockProducts& products, const SplitProduct& split,
                  const OwnedBytes& mine, absl::Span<char> out)
      : call_(call),
        products_(products),
        split_(split),
        mine_(mine),
        out_(out),
        is_lhs_(split.side == ProductSide::kLhs),
        has_lines_(is_lhs_ ? !split.transpose_lhs : split.transpose_rhs) {
    for (int64_t place = 0; place < call.group->size(); ++place) AddPlace(place);
  }

  absl::Status Run() {
    // A part without elements is not sent, and every rank has it.
    if (split_.k == 0) return MultiplyNothing();
    std::vector<int64_t> lines, line_bytes;
    int64_t all_lines = 0;
    for (const Place& place : places_) {
      lines.push_back(place.lines);
      line_bytes.push_back(std::max<int64_t>(place.line_bytes, 1));
      AddTo(all_lines, place.lines);
    }
    // Where there are no lines, nothing limits the size of one.
    if (all_lines == 0) return absl::OkStatus();
    RowGather gather = {.mine = mine_,
                        .rows = lines,
                        .row_bytes = line_bytes,
                        .rows_at_once = has_lines_ ? RowsAtOnce(line_bytes.front()) : 1,
                        .alignment_bytes = ElementBytes(GatheredType())};
    if (!has_lines_) gather.work_on_mine = [this] { return MultiplySomeOfMine(); };
    return GatherRows(call_, gather,
                      [this](int64_t place, int64_t first_line, absl::Span<const char> bytes) {
                        return Take(places_[Index(place)], first_line, bytes);
                      });
  }

 private:
  // A part of the gathered operand, and its products, by the number of the matrix in the part.
  struct Place {
    BlockRange range;
    std::vector<MatrixProduct> products = {};
    int64_t lines_of_matrix = 1;
    int64_t lines = 0;
    int64_t line_bytes = 0;
  };

  Dtype GatheredType() const {
    return is_lhs_ ? products_.whole().lhs_dtype : products_.whole().rhs_dtype;
  }
  int64_t Gathered(const MatrixProduct& product) const {
    return is_lhs_ ? product.lhs : product.rhs;
  }

  void AddPlace(int64_t number) {
    Place place = {.range = RangeOf(split_, number), .products = MatricesOf(split_, number)};
    std::stable_sort(place.products.begin(), place.products.end(),
                     [this](const MatrixProduct& a, const MatrixProduct& b) {
                       return Gathered(a) < Gathered(b);
                     });
    const int64_t extent = is_lhs_ ? place.range.rows : place.range.columns;
    const int64_t column_bytes = ProductOf(split_.k, ElementBytes(GatheredType()));
    const int64_t matrices = extent == 0 ? 0 : PartMatrices(split_, number);
    place.lines_of_matrix = has_lines_ ? extent : 1;
    place.lines = ProductOf(matrices, place.lines_of_matrix);
    place.line_bytes = has_lines_ ? column_bytes : ProductOf(column_bytes, extent);
    places_.push_back(std::move(place));
  }

  // Multiplies the lines of a part that are in `bytes`.
  absl::Status Take(const Place& place, int64_t first_line, absl::Span<const char> bytes) {
    while (!bytes.empty()) {
      const int64_t matrix = first_line / place.lines_of_matrix;
      const int64_t line = first_line % place.lines_of_matrix;
      const int64_t lines = std::min(static_cast<int64_t>(bytes.size()) / place.line_bytes,
                                     place.lines_of_matrix - line);
      const absl::Span<const char> taken = bytes.first(Index(lines * place.line_bytes));
      SHARDMESH_RETURN_IF_ERROR(MultiplyLines(place, matrix, line, lines, taken));
      bytes.remove_prefix(taken.size());
      first_line += lines;
    }
    return absl::OkStatus();
  }

  // Multiplies `lines` lines of a matrix, or the whole matrix, by all matrices that it belongs to.
  absl::Status MultiplyLines(const Place& place, int64_t matrix, int64_t line, int64_t lines,
                             absl::Span<const char> gathered) {
    BlockRange range = place.range;
    if (has_lines_ && is_lhs_) {
      range.first_row += line;
      range.rows = lines;
    } else if (has_lines_) {
      range.first_column += line;
      range.columns = lines;
    }
    auto product = std::lower_bound(
        place.products.begin(), place.products.end(), matrix,
        [this](const MatrixProduct& each, int64_t number) { return Gathered(each) < number; });
    for (; product != place.products.end() && Gathered(*product) == matrix; ++product) {
      SHARDMESH_RETURN_IF_ERROR(MultiplyBlock(*product, range, gathered));
    }
    return absl::OkStatus();
  }

  // Multiplies the next matrix of this rank's part, or some rows of the left operand by it. Returns
  // false if all is done.
  absl::StatusOr<bool> MultiplySomeOfMine() {
    const Place& place = places_[Index(call_.group->place())];
    if (own_product_ == place.products.size()) return false;
    const MatrixProduct& product = place.products[own_product_];
    BlockRange range = place.range;
    // The rows of a transposed left operand are apart.
    if (!split_.transpose_lhs) {
      const int64_t row_bytes = split_.k * ElementBytes(products_.whole().lhs_dtype);
      range.first_row += own_row_;
      range.rows = std::min(RowsAtOnce(row_bytes), place.range.rows - own_row_);
    }
    own_row_ += range.rows;
    if (own_row_ == place.range.rows) {
      own_row_ = 0;
      ++own_product_;
    }
    SHARDMESH_RETURN_IF_ERROR(
        MultiplyBlock(product, range, MatrixOf(mine_.bytes, Gathered(product), place.line_bytes)));
    return true;
  }

  absl::Status MultiplyNothing() {
    for (const Place& place : places_) {
      for (const MatrixProduct& product : place.products) {
        SHARDMESH_RETURN_IF_ERROR(MultiplyBlock(product, place.range, {}));
      }
    }
    return absl::OkStatus();
  }

  // Computes a block of one of the result's matrices. `gathered` has the block's rows of the left
  // operand, or its columns of the right one.
  absl::Status MultiplyBlock(const MatrixProduct& product, const BlockRange& range,
                             absl::Span<const char> gathered) {
    const BlockProducts::Operands& operands = products_.operands();
    ProductBlock block = {
        .rows = range.rows, .first_column = range.first_column, .columns = range.columns};
    if (is_lhs_) {
      block.lhs = gathered;
      if (!operands.is_one_rhs) {
        block.rhs = MatrixOf(operands.rhs.bytes, product.rhs,
                             split_.k * split_.n * ElementBytes(operands.whole.rhs_dtype));
      }
    } else {
      const int64_t row_bytes = split_.k * ElementBytes(operands.whole.lhs_dtype);
      const absl::Span<const char> matrix =
          MatrixOf(operands.lhs, product.lhs, split_.m * row_bytes);
      block.lhs = split_.transpose_lhs ? matrix
                                       : matrix.subspan(Index(range.first_row * row_bytes),
                                                        Index(range.rows * row_bytes));
      block.rhs = gathered;
    }
    const int64_t element_bytes = ElementBytes(operands.whole.out_dtype);
    const int64_t first_row = product.out * split_.m + range.first_row;
    char* const out = out_.data() + (first_row * split_.n + range.first_column) * element_bytes;
    const int64_t row_bytes = range.columns * element_bytes;
    if (range.columns == split_.n || range.rows == 1) {
      return products_.Multiply(block, absl::MakeSpan(out, Index(range.rows * row_bytes)));
    }
    SHARDMESH_ASSIGN_OR_RETURN(
        const absl::Span<char> columns,
        KeptScratch(call_, range.rows * range.columns, operands.whole.out_dtype, &columns_));
    SHARDMESH_RETURN_IF_ERROR(products_.Multiply(block, columns));
    for (int64_t row = 0; row < range.rows; ++row) {
      std::memcpy(out + row * split_.n * element_bytes, columns.data() + row * row_bytes,
                  Index(row_bytes));
    }
    return absl::OkStatus();
  }

  const CollectiveCall& call_;
  BlockProducts& products_;
  const SplitProduct& split_;
  const OwnedBytes& mine_;
  const absl::Span<char> out_;
  const bool is_lhs_;
  const bool has_lines_;
  std::vector<Place> places_;
  OwnedMutableBytes columns_;  // a block whose columns are not all of the result's
  // What is left of this rank's part: MultiplySomeOfMine.
  size_t own_product_ = 0;
  int64_t own_row_ = 0;
};

// Computes the parts of a product that is scattered. The arguments of the constructor outlive the
// object.
class ScatteredProduct {
 public:
  ScatteredProduct(const CollectiveCall& call, BlockProducts& products, const SplitProduct& split)
      : call_(call), products_(products), split_(split) {}

  // Returns all elements for another place; for this rank's own place, the next ones.
  absl::StatusOr<OwnedBytes> Make(int64_t place) {
    if (!range_.has_value() || place != place_) {
      place_ = place;
      range_ = RangeOf(split_, place);
      matrices_ = MatricesOf(split_, place);
      rhs_columns_of_ = std::nullopt;
      next_matrix_ = 0;
      next_row_ = 0;
    }
    return place == call_.group->place() ? MakeNextRows() : MakeWhole();
  }

 private:
  int64_t PartRowBytes() const {
    return range_->columns * ElementBytes(products_.whole().out_dtype);
  }

  absl::StatusOr<OwnedBytes> MakeWhole() {
    // Where there are no elements, nothing limits the extents.
    if (matrices_.empty()) return OwnedBytes();
    const int64_t matrix_bytes = range_->rows * PartRowBytes();
    SHARDMESH_ASSIGN_OR_RETURN(const OwnedMutableBytes part,
                               Scratch(call_, std::ssize(matrices_) * matrix_bytes));
    for (const MatrixProduct& matrix : matrices_) {
      SHARDMESH_RETURN_IF_ERROR(
          MultiplyRows(matrix, 0, range_->rows,
                       part.bytes.subspan(Index(matrix.out * matrix_bytes), Index(matrix_bytes))));
    }
    return OwnedBytes{part.bytes, part.owner};
  }

  absl::StatusOr<OwnedBytes> MakeNextRows() {
    const int64_t most =
        split_.transpose_lhs ? range_->rows : std::min(RowsAtOnce(PartRowBytes()), range_->rows);
    const int64_t rows = std::min(most, range_->rows - next_row_);
    // The rows of the call before are combined by now, so their memory can take the next ones.
    if (own_rows_.bytes.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(own_rows_, Scratch(call_, most * PartRowBytes()));
    }
    const OwnedMutableBytes part = PartOf(own_rows_, 0, rows * PartRowBytes());
    SHARDMESH_RETURN_IF_ERROR(MultiplyRows(matrices_[next_matrix_], next_row_, rows, part.bytes));
    next_row_ += rows;
    if (next_row_ == range_->rows) {
      next_row_ = 0;
      ++next_matrix_;
    }
    return OwnedBytes{part.bytes, part.owner};
  }

  // Computes rows of a matrix of the part.
  absl::Status MultiplyRows(const MatrixProduct& matrix, int64_t first_row, int64_t rows,
                            absl::Span<char> out) {
    ProductBlock block = {
        .rows = rows, .first_column = range_->first_column, .columns = range_->columns};
    SHARDMESH_ASSIGN_OR_RETURN(block.lhs,
                               RowsOfLhs(matrix.lhs, range_->first_row + first_row, rows));
    SHARDMESH_ASSIGN_OR_RETURN(block.rhs, ColumnsOfRhs(matrix.rhs));
    return products_.Multiply(block, out);
  }

  absl::StatusOr<absl::Span<const char>> RowsOfLhs(int64_t number, int64_t first, int64_t rows) {
    const Dtype dtype = products_.whole().lhs_dtype;
    const int64_t row_bytes = split_.k * ElementBytes(dtype);
    const absl::Span<const char> matrix =
        MatrixOf(products_.operands().lhs, number, split_.m * row_bytes);
    if (rows == split_.m) return matrix;
    if (!split_.transpose_lhs) {
      return matrix.subspan(Index(first * row_bytes), Index(rows * row_bytes));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> copy,
                               KeptScratch(call_, split_.k * rows, dtype, &lhs_rows_));
    CopyColumns(matrix.data(), split_.k, split_.m, first, rows, ElementBytes(dtype), copy.data());
    return copy;
  }

  // Returns the part's columns of a right matrix; nullopt for all columns of the only one.
  absl::StatusOr<std::optional<absl::Span<const char>>> ColumnsOfRhs(int64_t number) {
    using Columns = std::optional<absl::Span<const char>>;
    const BlockProducts::Operands& operands = products_.operands();
    const int64_t columns = range_->columns;
    const int64_t first = range_->first_column;
    if (columns == split_.n && operands.is_one_rhs) return Columns();
    const Dtype dtype = operands.whole.rhs_dtype;
    const int64_t bytes = ElementBytes(dtype);
    const int64_t column_bytes = split_.k * bytes;
    if (operands.packed == nullptr) {
      const absl::Span<const char> matrix =
          MatrixOf(operands.rhs.bytes, number, split_.n * column_bytes);
      if (columns == split_.n) return Columns(matrix);
      if (split_.transpose_rhs) {
        return Columns(matrix.subspan(Index(first * column_bytes), Index(columns * column_bytes)));
      }
    }
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<char> copy,
                               KeptScratch(call_, split_.k * columns, dtype, &rhs_columns_));
    if (std::exchange(rhs_columns_of_, number) == number) return Columns(copy);
    if (operands.packed == nullptr) {
      const absl::Span<const char> matrix =
          MatrixOf(operands.rhs.bytes, number, split_.n * column_bytes);
      CopyColumns(matrix.data(), split_.k, split_.n, first, columns, bytes, copy.data());
      return Columns(copy);
    }
    const PackedWeights& packed = operands.packed->weights();
    if (split_.transpose_rhs) {
      packed.Unpack(first * column_bytes, copy);
      return Columns(copy);
    }
    for (int64_t line = 0; line < split_.k; ++line) {
      packed.Unpack((line * split_.n + first) * bytes,
                    copy.subspan(Index(line * columns * bytes), Index(columns * bytes)));
    }
    return Columns(copy);
  }

  const CollectiveCall& call_;
  BlockProducts& products_;
  const SplitProduct& split_;
  // The part that is made.
  int64_t place_ = 0;
  std::optional<BlockRange> range_;
  std::vector<MatrixProduct> matrices_;
  size_t next_matrix_ = 0;  // the next rows, of this rank's own part
  int64_t next_row_ = 0;
  OwnedMutableBytes own_rows_;
  OwnedMutableBytes lhs_rows_;             // rows of a transposed left operand
  OwnedMutableBytes rhs_columns_;          // columns of a right matrix
  std::optional<int64_t> rhs_columns_of_;  // the number of that matrix
};

}  // namespace

absl::Status BlockProducts::Multiply(const ProductBlock& block, absl::Span<char> out) {
  if (block.rows == 0 || block.columns == 0) return absl::OkStatus();
  KernelTurns::Turn turn(parts_.turns, parts_.abort_check);
  const absl::Time started = parts_.clock->Now();
  SHARDMESH_RETURN_IF_ERROR(turn.Take());
  const auto pause = [&turn] { return turn.PauseForOthers(); };
  const bool is_whole_rhs = !block.rhs.has_value();
  if (is_whole_rhs && !packed_.has_value()) {
    packed_.emplace(operands_.packed);
    if (*packed_ == nullptr && parts_.weights != nullptr && operands_.weight.has_value()) {
      // The spec of the whole, so that the weights are packed as for the product of the whole.
      SHARDMESH_ASSIGN_OR_RETURN(*packed_, parts_.weights->Find(*operands_.weight, whole(), pause));
    }
  }
  MatmulSpec spec = whole();
  spec.m = block.rows;
  spec.n = block.columns;
  MatmulOperands operands = {.lhs = block.lhs,
                             .rhs = operands_.rhs.bytes,
                             .bias = {},
                             .out = out,
                             .packed = nullptr,
                             .scales = {},
                             .rows_of_whole = whole().m};
  if (is_whole_rhs) {
    operands.packed = *packed_ != nullptr ? &(*packed_)->weights() : nullptr;
  } else {
    operands.rhs = *block.rhs;
  }
  if (spec.has_bias) {
    const int64_t bias_bytes = ElementBytes(spec.bias_dtype);
    operands.bias = operands_.bias.subspan(Index(block.first_column * bias_bytes),
                                           Index(block.columns * bias_bytes));
  }
  const absl::Status done = parts_.kernel->Run(spec, operands, pause);
  const int64_t flops = 2 * spec.m * spec.n * spec.k;
  const absl::Duration elapsed = parts_.clock->Now() - started - turn.waited();
  flops_ += flops;
  elapsed_ += elapsed;
  if (parts_.multiplied) parts_.multiplied(flops, turn.waited(), elapsed);
  return done;
}

absl::Status GatherAndMultiply(const CollectiveCall& call, BlockProducts& products,
                               const SplitProduct& split, const OwnedBytes& mine,
                               absl::Span<char> out) {
  return GatheredProduct(call, products, split, mine, out).Run();
}

absl::Status MultiplyAndScatter(const CollectiveCall& call, const Combiner& combiner,
                                BlockProducts& products, const SplitProduct& split,
                                absl::Span<char> out) {
  ScatteredProduct scattered(call, products, split);
  return PairwiseReduceScatterAsMade(
      call, combiner, [&](int64_t place) { return scattered.Make(place); }, out);
}

}  // namespace shardmesh::worker
