// Collectives in log2 P rounds: ranks that are 1, then 2, then 4 places apart exchange their data.
//
// Use them for messages so small that the number of rounds and messages dominates the cost.
//
// The functions are called like those in pairwise.h, and their results have the same bits.
// Neighbours combine first, so the operands of a combination at distance d are nodes of the
// canonical tree (tree.h) over d operands each.
//
// P need not be a power of two. A full block of d places may have a sibling block of only m < d
// places. Each of those m places then sends to up to ceil(d/m) places of the full block, one
// message to each place.
//
// Costs are per rank, for P ranks, with L = ceil(log2 P). Partial results of F16 and BF16 are
// larger than operands.
//
// clang-format off
//   function           rounds  bytes sent                       scratch memory
//   DoublingAllReduce  L       L partial results of the operand L partial results
//   DoublingAllGather  L       the data of all ranks together   the data of all ranks together
//   DoublingBarrier    L       L                                none
//   BinomialReduce     L       one partial result, the root 0   L partial results
// clang-format on
#ifndef SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_
#define SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// Like PairwiseAllReduce (pairwise.h).
absl::Status DoublingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, absl::Span<char> out);

// Like PairwiseAllGather, but passes the data of each rank to `place_fn` in one piece.
absl::Status DoublingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Like PairwiseBarrier. In round r a rank receives from the rank 2^r places before it.
absl::Status DoublingBarrier(const CollectiveCall& call);

// Like DirectReduce (pairwise.h), but the operands are combined on the way. At each node of the
// tree, one rank of one half sends the combined operands of that half to one rank of the other
// half. The sending half is the half without the root, or the right half if neither half has the
// root.
absl::Status BinomialReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out);

// Each function returns the places from which this rank receives: DoublingSources in
// DoublingAllReduce and in DoublingAllGather, DoublingBarrierSources in DoublingBarrier,
// BinomialReduceSources in BinomialReduce. `root` must be a place of the group.
std::vector<int64_t> DoublingSources(const DeviceGroup& group);
std::vector<int64_t> DoublingBarrierSources(const DeviceGroup& group);
std::vector<int64_t> BinomialReduceSources(const DeviceGroup& group, int64_t root);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_
