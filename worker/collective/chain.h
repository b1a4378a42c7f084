// Broadcasts in which ranks pass on what they get.
//
// Called as PairwiseBroadcast. Costs per rank, for P ranks, S bytes and C chunks of at most 256
// KiB:
//   function           rounds on the way   bytes sent          scratch memory
//   BinomialBroadcast  ceil(log2 P)        up to S log2 P      none
//   ChainBroadcast     P - 2 + C           S, the last one 0   none
// A call uses a round for each chunk. The binomial tree reaches all soonest, for small messages;
// in the chain nobody sends twice, for large ones.
#ifndef SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_
#define SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collective/call.h"

namespace shardmesh::worker {

// The place d behind the root (around the group) hears from the one whose d lacks its lowest bit.
absl::Status BinomialBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               const OwnedMutableBytes& out);

// Every place hears from the one before it, beginning with the root.
absl::Status ChainBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            const OwnedMutableBytes& out);

// The place that a rank of the binomial tree hears from, none of the root, a place of the group.
std::vector<int64_t> BinomialBroadcastSources(const DeviceGroup& group, int64_t root);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_CHAIN_H_
