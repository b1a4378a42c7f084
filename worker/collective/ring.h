// Collectives in which each rank receives from the place before it and sends to the place after it.
//
// The functions are called like those in pairwise.h. They cut data into chunks of at most 256 KiB,
// which keeps all links busy at the same time. Use them for groups so large that a message to every
// other rank costs more than P rounds do.
//
// Order of combination: the result of place p's part is x(p+1) + x(p+2) + ... + x(p), around the
// ring and evaluated from the left, where x(q) is the operand at place q. The order is the same in
// every run and on every rank, but it is not the canonical order (tree.h). Each part of a vector
// has a different order, so a result's bits depend on the vector's size. Therefore only callers
// that chose kFastest get these functions.
//
// Costs per rank, for P ranks and S bytes of operand. For all-gather, S is the data of one rank.
//
// clang-format off
//   function           rounds   bytes sent                       scratch memory
//   RingReduceScatter  P-1      S (P-1)/P, as partial results    partial results of S (P-2)/P
//   RingAllGather      P-1      S (P-1)                          the data of all ranks together
//   RingAllReduce      2 (P-1)  2 S (P-1)/P                      as RingReduceScatter
// clang-format on
//
// A call uses one round number for each chunk in each of these rounds.
#ifndef SHARDMESH_WORKER_COLLECTIVE_RING_H_
#define SHARDMESH_WORKER_COLLECTIVE_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// Like PairwiseReduceScatter (pairwise.h), except for the order of combination.
absl::Status RingReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                               absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// Like PairwiseAllGather (pairwise.h).
absl::Status RingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                           absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Like PairwiseAllReduce (pairwise.h), except for the order of combination.
absl::Status RingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                           const OwnedBytes& operand, const OwnedMutableBytes& out);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_RING_H_
