// Collectives in which each rank hears from the place before it and tells the place after it.
//
// Called as those in pairwise.h. What is on its way is cut into chunks of at most 256 KiB, so that
// all links are busy at once. For groups so large that a message to every other rank costs more
// than P rounds do.
//
// Order of combination: the part of place p is x(p+1) + x(p+2) + ... + x(p), from the left. It is
// the same in every run and on every rank, but it is not the canonical one: it differs between the
// parts of one vector, and hence with its size. For those who chose the fastest order.
//
// Costs per rank, for P ranks and S bytes of operand (of all-gather: of what one rank brings):
//   function           rounds   bytes sent                       scratch memory
//   RingReduceScatter  P-1      S (P-1)/P, as partial results    partial results of S (P-2)/P
//   RingAllGather      P-1      S (P-1)                          what all bring together
//   RingAllReduce      2 (P-1)  2 S (P-1)/P                      as RingReduceScatter
// A call uses a round for each round and chunk.
#ifndef SHARDMESH_WORKER_COLLECTIVE_RING_H_
#define SHARDMESH_WORKER_COLLECTIVE_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/collective/call.h"

namespace shardmesh::worker {

// As PairwiseReduceScatter but for the order of combination.
absl::Status RingReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                               absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// As PairwiseAllGather.
absl::Status RingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                           absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// As PairwiseAllReduce but for the order of combination.
absl::Status RingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                           const OwnedBytes& operand, const OwnedMutableBytes& out);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_RING_H_
