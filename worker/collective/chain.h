// Broadcasts in which ranks forward the data that they receive.
//
// The functions are called like PairwiseBroadcast (pairwise.h). A place is a rank's index in its
// group. Costs per rank, for P ranks, S bytes and C chunks of at most 256 KiB:
//
// clang-format off
//   function           rounds until the end   bytes sent           scratch memory
//   BinomialBroadcast  ceil(log2 P)           up to S log2 P       none
//   ChainBroadcast     P - 2 + C              S, the last rank 0   none
// clang-format on
//
// A call uses one round number for each chunk. The binomial tree reaches all ranks in the fewest
// rounds: use it for small messages. In the chain, no rank sends the data twice: use it for large
// messages.
#ifndef SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_
#define SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// Broadcasts along a binomial tree. The distance of a rank is counted from the root around the
// group. A rank at distance d receives from the rank whose distance is d with its lowest set bit
// cleared.
absl::Status BinomialBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               const OwnedMutableBytes& out);

// Broadcasts along a chain that begins at the root: every other rank receives from the place before
// its own.
absl::Status ChainBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            const OwnedMutableBytes& out);

// Returns the place from which this rank receives in BinomialBroadcast; an empty list for the root.
// Requires that `root` is a place of the group.
std::vector<int64_t> BinomialBroadcastSources(const DeviceGroup& group, int64_t root);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_
