// The canonical order in which a group's operands are combined: a binary tree that depends only on
// the number of operands.
#ifndef SHARDMESH_WORKER_COLLECTIVE_TREE_H_
#define SHARDMESH_WORKER_COLLECTIVE_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "worker/collective/combiner.h"

namespace shardmesh::worker {

// Returns how many of n operands belong to the left half of their tree: the largest power of two
// below n. Requires n >= 2.
int64_t TreeSplit(int64_t n);

// Evaluates T, the combination of operands in canonical order, one block of elements at a time.
// T(lo, 1) = x(lo), and T(lo, n) = T(lo, k) + T(lo+k, n-k) with k = TreeSplit(n), where x(i) is
// operand i. Needs one scratch block for each level of the tree, and one more. Used by one thread.
class TreeCombiner {
 public:
  // Size of a block in bytes of partial results. It is small enough that one block of every level
  // fits into a core's nearest caches.
  static constexpr int64_t kBlockBytes = 16384;

  // `operands` is the number of operands, at least 1. `count` is the number of elements of each
  // operand, at least 0. The combiner outlives this object.
  TreeCombiner(const Combiner& combiner, int64_t operands, int64_t count);
  TreeCombiner(const TreeCombiner&) = delete;
  TreeCombiner& operator=(const TreeCombiner&) = delete;

  // Returns the most elements of a block: at least 1024, or the `count` of the constructor if that
  // is less.
  int64_t block_elements() const { return block_elements_; }

  // Combines operands[p][0, count) over all p into `results`. Requires 0 <= count <=
  // block_elements(). `results` may be the memory of one operand if the elements of both have the
  // same size.
  void Combine(absl::Span<const char* const> operands, int64_t count, char* results);

 private:
  // Computes the partial results of T(lo, n) and returns their address: the operand itself if n is
  // 1 and the operand needs no conversion, `target` in all other cases. Uses the slots from number
  // `slot` on as scratch.
  const char* Evaluate(absl::Span<const char* const> operands, int64_t lo, int64_t n, int64_t count,
                       size_t slot, char* target);
  char* Slot(size_t slot) { return slots_ + slot * slot_bytes_; }

  const Combiner& combiner_;
  const int64_t operand_count_;
  const int64_t block_elements_;
  const size_t slot_bytes_;
  // Holds the slots if they are small, to avoid a heap allocation.
  std::array<char, 512> small_;
  const std::unique_ptr<char[]> large_;
  char* const slots_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_TREE_H_
