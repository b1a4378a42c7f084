// TreeSplit and TreeCombiner: the canonical order of combination.
#include "worker/collective/tree.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace shardmesh::worker {
namespace {

// Returns enough scratch slots for Evaluate: one for each branch to the right on the longest path
// down the tree, and one for the root.
size_t SlotsFor(int64_t operands) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(operands))) + 1;
}

}  // namespace

int64_t TreeSplit(int64_t n) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
}

TreeCombiner::TreeCombiner(const Combiner& combiner, int64_t operands, int64_t count)
    : combiner_(combiner),
      operand_count_(operands),
      block_elements_(std::clamp<int64_t>(count, 1, kBlockBytes / combiner.partial_bytes)),
      slot_bytes_(static_cast<size_t>(block_elements_ * combiner.partial_bytes + 63) / 64 * 64),
      large_(SlotsFor(operands) * slot_bytes_ <= small_.size()
                 ? nullptr
                 : std::make_unique_for_overwrite<char[]>(SlotsFor(operands) * slot_bytes_)),
      slots_(large_ == nullptr ? small_.data() : large_.get()) {}

void TreeCombiner::Combine(absl::Span<const char* const> operands, int64_t count, char* results) {
  char* target = combiner_.finish ? Slot(0) : results;
  const char* root = Evaluate(operands, 0, operand_count_, count, 0, target);
  if (combiner_.finish) {
    combiner_.finish(root, count, results);
  } else if (root != results) {
    std::memcpy(results, root, static_cast<size_t>(count * combiner_.result_bytes));
  }
}

const char* TreeCombiner::Evaluate(absl::Span<const char* const> operands, int64_t lo, int64_t n,
                                   int64_t count, size_t slot, char* target) {
  if (n == 1) {
    const char* operand = operands[static_cast<size_t>(lo)];
    if (!combiner_.widen) return operand;
    combiner_.widen(operand, count, target);
    return target;
  }
  // Only the root's target may be the memory of an operand, and the root is computed last. Nodes
  // below the root write to slots. The left result stays in its slot while the right subtree uses
  // the slots above that slot.
  const int64_t k = TreeSplit(n);
  const char* left = Evaluate(operands, lo, k, count, slot, Slot(slot));
  const char* right = Evaluate(operands, lo + k, n - k, count, slot + 1, Slot(slot + 1));
  combiner_.combine(left, right, count, target);
  return target;
}

}  // namespace shardmesh::worker
