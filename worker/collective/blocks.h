// The nodes of the canonical tree as blocks of places: level l has blocks of 2^l places, and the
// last block of a level may have fewer.
#ifndef SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
#define SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// Places [begin, begin + size).
//
// A block of level l+1 joins a block of level l, always full, with its right neighbour. The right
// neighbour may have fewer places, or none. T over a block combines T over its left half with T
// over its right half. This is the rule of TreeSplit, read from the leaves up.
struct Block {
  int64_t begin = 0;
  int64_t size = 0;

  bool contains(int64_t place) const { return place >= begin && place < begin + size; }
};

// Returns the levels until one block has all `ranks` places: ceil(log2 ranks). Requires ranks >= 1.
inline int64_t LevelsOf(int64_t ranks) { return std::bit_width(static_cast<uint64_t>(ranks - 1)); }

// Returns the block number `index` of a level. Beyond the last block, the result has no places.
inline Block BlockAt(int64_t ranks, int64_t level, int64_t index) {
  const int64_t begin = std::min(index << level, ranks);
  return {begin, std::min(int64_t{1} << level, ranks - begin)};
}

// Two sibling blocks of a level, which the next level joins, as seen by one of their places.
struct BlockPair {
  Block mine;
  Block sibling;  // of size 0 where the block of the next level consists of `mine` only
  bool is_left;   // `mine` is the left block
};

inline BlockPair PairOf(int64_t ranks, int64_t level, int64_t place) {
  const int64_t index = place >> level;
  return {.mine = BlockAt(ranks, level, index),
          .sibling = BlockAt(ranks, level, index ^ 1),
          .is_left = index % 2 == 0};
}

// Returns the form of a rank's data in a reduction over the block: its operand, or a partial
// result.
inline ElementForm FormOf(const Block& block) {
  return block.size == 1 ? ElementForm::kOperand : ElementForm::kPartial;
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
