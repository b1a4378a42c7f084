// All-reduce by recursive halving, then doubling.
//
// First, ranks that are 1, then 2, then 4 places apart exchange parts of the vector. Each rank
// combines only the parts that it keeps. Then the results return along the same paths.
//
// The function is called like PairwiseAllReduce, and its results have the same bits. Neighbours
// combine first, so the operands of a combination at distance d are nodes of the canonical tree
// (tree.h) over d operands each.
//
// The vector is cut into one part for each rank. At each level, one rank in every block of places
// (worker/collective/blocks.h) is the holder of a part: it has the combined operands of the block
// for this part. When two blocks join, one of their two holders sends the part to the other holder.
//
// At the last level, the holder of a part is the rank that owns it. P need not be a power of two.
// In a block of level l without the owner, the holder is the place congruent to the owner modulo
// 2^l. If the block has no such place, the holder is that of the block's left half. Parts lie in
// the order of their owners' bit-reversed numbers, so the parts that two ranks exchange are
// adjacent.
//
// The vector is cut into up to 16 chunks of at least 256 KiB. Each chunk is one round behind the
// chunk before it: while one chunk is combined, the next ones are in transit.
//
// Costs per rank, for P ranks, C chunks and S bytes of operand, with L = ceil(log2 P):
//
// clang-format off
//   rounds until the end  2 L for one chunk
//   round numbers used    2 L P C
//   bytes sent            about 2 S (P-1)/P; from the second level on, the first half of this are
//                         partial results
//   scratch memory        none; partial results of the operand if they are larger than results
// clang-format on
//
// A rank sends about 2 L messages for each chunk; in the pairwise exchange it sends P-1. Use this
// algorithm if groups are so large, or the latency of links so high, that the number of messages
// dominates the cost.
#ifndef SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
#define SHARDMESH_WORKER_COLLECTIVE_HALVING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

absl::Status HalvingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                              const OwnedBytes& operand, const OwnedMutableBytes& out);

// Returns the places from which this rank receives while operands are combined and while results
// return. A place may occur more than once. No rank sends a part without elements, so a rank may
// receive from fewer places.
std::vector<int64_t> HalvingSources(const DeviceGroup& group);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
