// Collectives in log2 P rounds: ranks that are 1, then 2, then 4 places apart exchange what they
// have. For messages so small that the number of rounds and messages is what costs.
//
// Called as those in pairwise.h, with the same bits: neighbours combine first, so that what is
// combined at distance d are the canonical tree's nodes of d operands. P need not be a power of
// two: where the sibling of a full block of d places has only m of them, each of those serves up to
// ceil(d/m) of the full block's, which multiplies its messages in that round. Costs are per rank,
// with L = ceil(log2 P); partial results are larger than operands for F16 and BF16.
//
//   function           rounds  bytes sent                       scratch memory
//   DoublingAllReduce  L       L partial results of the operand L partial results
//   DoublingAllGather  L       what all bring together          what all bring together
//   DoublingBarrier    L       L                                none
//   BinomialReduce     L       one partial result, the root 0   L partial results
#ifndef SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_
#define SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/collective/call.h"

namespace shardmesh::worker {

// As PairwiseAllReduce.
absl::Status DoublingAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, absl::Span<char> out);

// As PairwiseAllGather, but what a rank brings comes in one piece.
absl::Status DoublingAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// As PairwiseBarrier. A rank hears from the one 2^r places before it in round r.
absl::Status DoublingBarrier(const CollectiveCall& call);

// As DirectReduce. Of the two halves of a tree's node, the one without the root, or else the right
// one, sends to a rank of the other.
absl::Status BinomialReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out);

// The places that a rank hears from: of the all-reduce and the all-gather, of the barrier, and of
// the reduce, whose root is a place of the group.
std::vector<int64_t> DoublingSources(const DeviceGroup& group);
std::vector<int64_t> DoublingBarrierSources(const DeviceGroup& group);
std::vector<int64_t> BinomialReduceSources(const DeviceGroup& group, int64_t root);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_DOUBLING_H_
