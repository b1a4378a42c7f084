// One product, computed by several products of blocks of its result, while an exchange brings the
// parts of an operand or takes those of the result.
#ifndef SHARDMESH_WORKER_STEP_BLOCK_PRODUCTS_H_
#define SHARDMESH_WORKER_STEP_BLOCK_PRODUCTS_H_

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
#include "worker/step/tile_products.h"
#include "worker/step/weight_cache.h"

namespace shardmesh::worker {

// One block of the result: some rows and some columns of one of its matrices.
struct ProductBlock {
  int64_t rows = 0;
  int64_t first_column = 0;  // of the result's tile
  int64_t columns = 0;
  absl::Span<const char> lhs = {};  // [rows, k], or [k, rows] if it is transposed
  // [k, columns], or [columns, k] if it is transposed. nullopt: the only right matrix of the
  // product, whose columns are all of the block.
  std::optional<absl::Span<const char>> rhs = std::nullopt;
};

// Runs the kernel on blocks of a product. Used by one thread.
class BlockProducts {
 public:
  // Called after each block, with its operations, the time for which it waited for its turns, and
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
  // `whole` is the spec of one product of the whole tile.
  struct Operands {
    MatmulSpec whole;
    absl::Span<const char> lhs = {};  // the tile; empty if it is gathered
    OwnedBytes rhs = {};              // likewise
    bool is_one_rhs = true;           // all products have the same right matrix
    absl::Span<const char> bias = {};
    PackedTilePtr packed = nullptr;  // takes the place of `rhs` if it is not null
    // Set if the right operand is one matrix and the tile of an array, whose weights may be packed.
    std::optional<WeightCache::Weight> weight = std::nullopt;
  };

  BlockProducts(Parts parts, Operands operands)
      : parts_(std::move(parts)), operands_(std::move(operands)) {}

  // Computes a block of the result, without gaps between its rows. Has the kernel's turn only in
  // the meantime. Errors are those of MatmulKernel::Run and of the abort check.
  absl::Status Multiply(const ProductBlock& block, absl::Span<char> out);

  const Operands& operands() const { return operands_; }
  const MatmulSpec& whole() const { return operands_.whole; }

  // The operations so far, and the time that they took, without the time for which the kernel
  // waited for its turns.
  int64_t flops() const { return flops_; }
  absl::Duration elapsed() const { return elapsed_; }

 private:
  const Parts parts_;
  const Operands operands_;
  // Set by the first block that has all of the only right matrix; null if there are no packed
  // weights.
  std::optional<PackedTilePtr> packed_;
  int64_t flops_ = 0;
  absl::Duration elapsed_ = absl::ZeroDuration();
};

// Gathers the operand split.side of the products, and multiplies the part of each place, or as many
// of its rows or matrices as have arrived. `mine` is this rank's part, and `out` the tile of the
// result. If the blocks of a place are columns of the result, they are computed in memory of
// call.scratch, and copied. Errors are those of GatherRows and of Multiply.
absl::Status GatherAndMultiply(const CollectiveCall& call, BlockProducts& products,
                               const SplitProduct& split, const OwnedBytes& mine,
                               absl::Span<char> out);

// Multiplies the part of the result for each place, sends it once it is there, and combines the
// parts that all ranks have for this place, as PairwiseReduceScatter does. Requires split.side =
// kOut. Parts, and columns of operands that are apart, are in memory of call.scratch. Errors are
// those of PairwiseReduceScatterAsMade and of Multiply.
absl::Status MultiplyAndScatter(const CollectiveCall& call, const Combiner& combiner,
                                BlockProducts& products, const SplitProduct& split,
                                absl::Span<char> out);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_BLOCK_PRODUCTS_H_
