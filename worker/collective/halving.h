// All-reduce by recursive halving, then doubling.
//
// Ranks that are 1, then 2, then 4 places apart split the remaining combination between them. The
// results return along the same paths.
//
// The function is called as PairwiseAllReduce, and its results have the same bits: neighbours
// combine first, so a combination at distance d has the canonical tree's nodes of d operands.
//
// The elements are cut into one part for each rank. At each level each part has one holder in every
// block of places (worker/collective/blocks.h). The holder has T over the block for the part. When
// two blocks join, one of the two holders hands the part over to the other.
//
// The last holder is the rank that owns the part. P need not be a power of two. If the owner is not
// in a block, the place congruent to it modulo a power of two holds the part. If the block has no
// such place, the left half's holder holds it. Parts lie in the order of their ranks' bit-reversed
// numbers, so the parts that two ranks exchange are adjacent.
//
// The vector is cut into up to 16 chunks of at least 256 KiB. Each chunk is one round behind the
// chunk before it: while one chunk is combined, the next ones are in transit.
//
// Costs per rank, for P ranks, C chunks and S bytes of operand, with L = ceil(log2 P):
//
// clang-format off
//   rounds on the way   2 L
//   rounds of the call  2 L P C
//   bytes sent          about 2 S (P-1)/P, the first half of it as partial results from the second
//                       level on
//   scratch memory      none; partial results of the operand where they are larger than results
// clang-format on
//
// A rank sends about 2 L messages, where the pairwise exchange sends P-1. Use this algorithm for
// groups so large, or links so slow to start, that the number of messages dominates the cost.
#ifndef SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
#define SHARDMESH_WORKER_COLLECTIVE_HALVING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

absl::Status HalvingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                              const OwnedBytes& operand, const OwnedMutableBytes& out);

// Returns the places that a rank receives from, in either half of the exchange; some more than
// once. A part without elements has no sender.
std::vector<int64_t> HalvingSources(const DeviceGroup& group);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
