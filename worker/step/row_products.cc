// RowProducts: runs the kernel on the rows that are there.
#include "worker/step/row_products.h"

#include <algorithm>
#include <numeric>

#include "program/fuse_exchanges.h"
#include "status/status_macros.h"
#include "tensor/dtype.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/row_gather.h"

namespace shardmesh::worker {
namespace {

int64_t ElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

// Returns the first row of each place, and at last the number of all rows.
std::vector<int64_t> FirstRows(absl::Span<const int64_t> place_rows) {
  std::vector<int64_t> first_rows(place_rows.size() + 1, 0);
  std::partial_sum(place_rows.begin(), place_rows.end(), first_rows.begin() + 1);
  return first_rows;
}

template <typename T>
absl::Span<T> Rows(absl::Span<T> matrix, int64_t first_row, int64_t rows, int64_t row_bytes) {
  return matrix.subspan(Index(first_row * row_bytes), Index(rows * row_bytes));
}

}  // namespace

int64_t RowProducts::lhs_row_bytes() const { return whole().k * ElementBytes(whole().lhs_dtype); }
int64_t RowProducts::out_row_bytes() const { return whole().n * ElementBytes(whole().out_dtype); }

absl::Status RowProducts::Multiply(int64_t rows, absl::Span<const char> lhs, absl::Span<char> out) {
  if (rows == 0 || whole().n == 0) return absl::OkStatus();
  KernelTurns::Turn turn(parts_.turns, parts_.abort_check);
  const absl::Time started = parts_.clock->Now();
  SHARDMESH_RETURN_IF_ERROR(turn.Take());
  const auto pause = [&turn] { return turn.PauseForOthers(); };
  if (!packed_.has_value()) {
    packed_.emplace(operands_.packed);
    if (*packed_ == nullptr && parts_.weights != nullptr && operands_.weight.has_value()) {
      // The spec of all rows, so that the weights are packed as for the product of all rows.
      SHARDMESH_ASSIGN_OR_RETURN(*packed_, parts_.weights->Find(*operands_.weight, whole(), pause));
    }
  }
  MatmulSpec spec = whole();
  spec.m = rows;
  const absl::Status done =
      parts_.kernel->Run(spec,
                         {.lhs = lhs,
                          .rhs = operands_.rhs.bytes,
                          .bias = operands_.bias,
                          .out = out,
                          .packed = *packed_ != nullptr ? &(*packed_)->weights() : nullptr,
                          .scales = {},
                          .rows_of_whole = whole().m},
                         pause);
  const int64_t flops = 2 * spec.m * spec.n * spec.k;
  const absl::Duration elapsed = parts_.clock->Now() - started - turn.waited();
  flops_ += flops;
  elapsed_ += elapsed;
  if (parts_.multiplied) parts_.multiplied(flops, turn.waited(), elapsed);
  return done;
}

absl::Status GatherAndMultiply(const CollectiveCall& call, RowProducts& products,
                               absl::Span<const int64_t> place_rows, const OwnedBytes& mine,
                               absl::Span<char> out) {
  const std::vector<int64_t> first_rows = FirstRows(place_rows);
  // Where there are no rows, nothing limits the size of a row.
  if (first_rows.back() == 0) return absl::OkStatus();
  const int64_t lhs_row_bytes = products.lhs_row_bytes();
  // Rows of no elements are not sent, and every rank has them.
  if (lhs_row_bytes == 0) return products.Multiply(first_rows.back(), {}, out);
  const auto take = [&](int64_t place, int64_t first_row, absl::Span<const char> lhs) {
    const int64_t rows = static_cast<int64_t>(lhs.size()) / lhs_row_bytes;
    return products.Multiply(
        rows, lhs, Rows(out, first_rows[Index(place)] + first_row, rows, products.out_row_bytes()));
  };
  return GatherRows(call,
                    {.mine = mine,
                     .rows = place_rows,
                     .row_bytes = lhs_row_bytes,
                     .rows_at_once = RowsAtOnce(lhs_row_bytes),
                     .alignment_bytes = ElementBytes(products.whole().lhs_dtype)},
                    take);
}

absl::Status MultiplyAndScatter(const CollectiveCall& call, const Combiner& combiner,
                                RowProducts& products, absl::Span<const int64_t> place_rows,
                                absl::Span<const char> lhs, absl::Span<char> out) {
  const std::vector<int64_t> first_rows = FirstRows(place_rows);
  if (first_rows.back() == 0) return absl::OkStatus();  // as in GatherAndMultiply
  const int64_t out_row_bytes = products.out_row_bytes();
  const int64_t own_place = call.group->place();
  int64_t own_row = 0;
  OwnedMutableBytes own_part;
  const auto make_part = [&](int64_t place) -> absl::StatusOr<OwnedBytes> {
    const int64_t first_row = first_rows[Index(place)] + (place == own_place ? own_row : 0);
    int64_t rows = first_rows[Index(place) + 1] - first_row;
    OwnedMutableBytes part;
    if (place == own_place) {
      // The rows of the call before are combined by now, so their memory can take the next ones.
      rows = std::min(rows, RowsAtOnce(out_row_bytes));
      own_row += rows;
      if (own_part.bytes.empty()) {
        SHARDMESH_ASSIGN_OR_RETURN(own_part, Scratch(call, rows * out_row_bytes));
      }
      part = PartOf(own_part, 0, rows * out_row_bytes);
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(part, Scratch(call, rows * out_row_bytes));
    }
    SHARDMESH_RETURN_IF_ERROR(
        products.Multiply(rows, Rows(lhs, first_row, rows, products.lhs_row_bytes()), part.bytes));
    return OwnedBytes{part.bytes, part.owner};
  };
  return PairwiseReduceScatterAsMade(call, combiner, make_part, out);
}

}  // namespace shardmesh::worker
