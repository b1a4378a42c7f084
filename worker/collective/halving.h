// All-reduce by halving, then doubling: ranks that are 1, then 2, then 4 places apart split between
// them what is left to combine; then the same ways back with the results.
//
// Called as PairwiseAllReduce, with the same bits: neighbours combine first, so that what is
// combined at distance d are the canonical tree's nodes of d operands.
//
// The elements are cut into one part for each rank. At each level each part has one holder in every
// block of places (worker/collective/blocks.h), who has T over the block for it; when two blocks
// join, one of the two holders hands the part over to the other. The holder at the end is the rank
// whose part it is, which needs no power of two: if that rank is not in a block, the part is held
// by the one at its place modulo a power of two, or by the left half's holder if there is none
// such. Parts lie in the order of their ranks' numbers read backwards in binary, so that what two
// ranks exchange lies together.
//
// The vector goes in up to 16 chunks of at least 256 KiB, each one round behind the one before it:
// while a chunk is combined the next ones are under way.
//
// Costs per rank, for P ranks, C chunks and S bytes of operand, with L = ceil(log2 P):
//   rounds on the way   2 L
//   rounds of the call  2 L P C
//   bytes sent          about 2 S (P-1)/P, the first half of it as partial results from the second
//                       level on
//   scratch memory      none; partial results of the operand where they are larger than results
// P-1 messages a rank of the pairwise exchange become about 2 L: for groups so large, or links so
// slow to start, that the messages themselves cost.
#ifndef SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
#define SHARDMESH_WORKER_COLLECTIVE_HALVING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/call.h"

namespace shardmesh::worker {

absl::Status HalvingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                              const OwnedBytes& operand, const OwnedMutableBytes& out);

// The places that a rank hears from, on the way or on the way back; some more than once. None of a
// part without elements is heard.
std::vector<int64_t> HalvingSources(const DeviceGroup& group);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_HALVING_H_
