// The nodes of the canonical tree (the fixed order of summation, tree.h) as blocks of places. A
// place is a rank's index in its device group. Level l has blocks of 2^l places; the last block of
// a level may have fewer.
#ifndef SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
#define SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// The places [begin, begin + size).
//
// Two neighbouring blocks of level l form one block of level l+1. The left block of the two is
// always full. The right block may have fewer places, or none. T(block) is the combination of a
// block's operands: T of the left half combined with T of the right half. This is the rule of
// TreeSplit (tree.h), applied from the leaves upwards.
struct Block {
  int64_t begin = 0;
  int64_t size = 0;

  bool contains(int64_t place) const { return place >= begin && place < begin + size; }
};

// Returns the number of the lowest level with only one block: ceil(log2 ranks). Requires ranks >=
// 1.
inline int64_t LevelsOf(int64_t ranks) { return std::bit_width(static_cast<uint64_t>(ranks - 1)); }

// Returns the block number `index` of a level. If `index` is beyond the last block, the returned
// block has no places.
inline Block BlockAt(int64_t ranks, int64_t level, int64_t index) {
  const int64_t begin = std::min(index << level, ranks);
  return {begin, std::min(int64_t{1} << level, ranks - begin)};
}

// Two sibling blocks of one level, which together form a block of the next level. `mine` is the
// block that contains the place given to PairOf.
struct BlockPair {
  Block mine;
  Block sibling;  // of size 0 if the block of the next level is only `mine`
  bool is_left;   // true if `mine` is the left block
};

inline BlockPair PairOf(int64_t ranks, int64_t level, int64_t place) {
  const int64_t index = place >> level;
  return {.mine = BlockAt(ranks, level, index),
          .sibling = BlockAt(ranks, level, index ^ 1),
          .is_left = index % 2 == 0};
}

// Returns the form of the data that a rank holds for the block during a reduction. A block of one
// place has the operand of its place; a larger block has a partial result.
inline ElementForm FormOf(const Block& block) {
  return block.size == 1 ? ElementForm::kOperand : ElementForm::kPartial;
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_BLOCKS_H_
