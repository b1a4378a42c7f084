// The rows of one product, computed by several products of fewer rows, while an exchange brings the
// rows of the left operand or takes those of the result.
#ifndef SHARDMESH_WORKER_STEP_ROW_PRODUCTS_H_
#define SHARDMESH_WORKER_STEP_ROW_PRODUCTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "worker/collective/collective_call.h"
#include "worker/collective/combiner.h"
#include "worker/collective/link.h"
#include "worker/kernel/matmul.h"
#include "worker/step/kernel_turns.h"
#include "worker/step/weight_cache.h"

namespace shardmesh::worker {

// A product whose right operand and bias are there. Used by one thread.
class RowProducts {
 public:
  // Called after each product, with its operations, the time for which it waited for its turns, and
  // the time that it took besides.
  using Multiplied =
      std::function<void(int64_t flops, absl::Duration waited, absl::Duration elapsed)>;

  // All that `parts` points to outlives the object.
  struct Parts {
    MatmulKernel* kernel = nullptr;
    KernelTurns* turns = nullptr;
    WeightCache* weights = nullptr;  // null: the right operand is never packed
    Clock* clock = nullptr;
    std::function<absl::Status()> abort_check;
    Multiplied multiplied = nullptr;  // may be null
  };
  // `whole` is the spec of the product of all rows, with an lhs that is not transposed.
  struct Operands {
    MatmulSpec whole;
    OwnedBytes rhs = {};
    absl::Span<const char> bias = {};
    PackedTilePtr packed = nullptr;  // takes the place of `rhs` if it is not null
    // Set if the right operand is the tile of an array, whose weights may be packed.
    std::optional<WeightCache::Weight> weight = std::nullopt;
  };

  RowProducts(Parts parts, Operands operands)
      : parts_(std::move(parts)), operands_(std::move(operands)) {}

  // Computes `rows` rows of the result. Has the kernel's turn only in the meantime. Errors are
  // those of MatmulKernel::Run and of the abort check.
  absl::Status Multiply(int64_t rows, absl::Span<const char> lhs, absl::Span<char> out);

  const MatmulSpec& whole() const { return operands_.whole; }
  // The sizes of a row of the left operand and of the result.
  int64_t lhs_row_bytes() const;
  int64_t out_row_bytes() const;

  // The operations so far, and the time that they took, without the time for which the kernel
  // waited for its turns.
  int64_t flops() const { return flops_; }
  absl::Duration elapsed() const { return elapsed_; }

 private:
  const Parts parts_;
  const Operands operands_;
  // Set by the first call of Multiply; null if there are no packed weights.
  std::optional<PackedTilePtr> packed_;
  int64_t flops_ = 0;
  absl::Duration elapsed_ = absl::ZeroDuration();
};

// Gathers the rows of the left operand, and multiplies those of each place once they are there.
// `mine` are this rank's rows, and place_rows[p] is the number of rows of place p. The result has
// the rows of all places in the order of places. Errors are those of GatherRows and of Multiply.
absl::Status GatherAndMultiply(const CollectiveCall& call, RowProducts& products,
                               absl::Span<const int64_t> place_rows, const OwnedBytes& mine,
                               absl::Span<char> out);

// Multiplies the rows for each place, sends them once they are there, and combines the rows that
// all ranks have for this place, as PairwiseReduceScatter does. `lhs` has the rows for all places
// in the order of places. Errors are those of PairwiseReduceScatterAsMade and of Multiply.
absl::Status MultiplyAndScatter(const CollectiveCall& call, const Combiner& combiner,
                                RowProducts& products, absl::Span<const int64_t> place_rows,
                                absl::Span<const char> lhs, absl::Span<char> out);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_ROW_PRODUCTS_H_
