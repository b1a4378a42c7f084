// The canonical tree's nodes as blocks of places: level l has blocks of 2^l places, of which the
// last one may have fewer.
#ifndef SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
#define SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "worker/collective/call.h"

namespace shardmesh::worker {

// Places [begin, begin + size). A block of level l+1 is one of level l, always full, joined with
// the one to its right, which may have fewer places, or none. T over a block is T over its left
// half combined with T over its right half: that is what TreeSplit says, read from the leaves.
struct Block {
  int64_t begin = 0;
  int64_t size = 0;

  bool contains(int64_t place) const { return place >= begin && place < begin + size; }
};

// Levels until one block has all of `ranks` >= 1 places: ceil(log2 ranks).
inline int64_t LevelsOf(int64_t ranks) { return std::bit_width(static_cast<uint64_t>(ranks - 1)); }

// Number `index` of a level; without places beyond the last one.
inline Block BlockAt(int64_t ranks, int64_t level, int64_t index) {
  const int64_t begin = std::min(index << level, ranks);
  return {begin, std::min(int64_t{1} << level, ranks - begin)};
}

// Two blocks of a level which make one of the next, as one of their places sees them.
struct BlockPair {
  Block mine;
  Block sibling;  // of size 0 where the next block is `mine` alone
  bool is_left;   // `mine` is
};

inline BlockPair PairOf(int64_t ranks, int64_t level, int64_t place) {
  const int64_t index = place >> level;
  return {.mine = BlockAt(ranks, level, index),
          .sibling = BlockAt(ranks, level, index ^ 1),
          .is_left = index % 2 == 0};
}

// What a rank of a block has of a reduction over the block: its own operand, or a partial result.
inline ElementForm FormOf(const Block& block) {
  return block.size == 1 ? ElementForm::kOperand : ElementForm::kPartial;
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
