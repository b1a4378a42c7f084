// Collectives in which every rank of a group exchanges its data with every other directly.
//
// Each function is called by every rank of a group with the same step, op and round, and with
// arguments that fit together; it returns when this rank's part is done. Sends never wait, so ranks
// may come in any order. Costs are per rank, for P ranks and S bytes of operand (of all-gather and
// gather: of what one rank brings; of all-to-all and scatter: of all parts together):
//
//   function              rounds  bytes sent             scratch memory
//   PairwiseReduceScatter 1       S (P-1)/P              (log2 P + 2) blocks of 16 KiB
//   PairwiseAllReduce     2       2 S (P-1)/P            as PairwiseReduceScatter
//   DirectAllReduce       1       S (P-1)                as PairwiseReduceScatter
//   DirectReduce          1       S, the root 0          as PairwiseReduceScatter
//   PairwiseReduce        2       S, the root S (P-1)/P  as PairwiseReduceScatter, and S/P
//   PairwiseAllGather     1       S (P-1)                none
//   PairwiseAllToAll      1       S (P-1)/P              none
//   PairwiseBroadcast     1       root S (P-1), else 0   none
//   PairwiseGather        1       S, the root 0          none
//   PairwiseScatter       1       root S (P-1)/P, else 0 none
//   Permute               1       S                      none
//   PairwiseBarrier       1       P-1                    none
//
// A step costs P-1 messages, which suits groups of up to some tens of ranks. DirectAllReduce has
// the fewest rounds of all, and is for operands so small that rounds are what costs.
//
// Order of combination: with x(p) the operand at place p of the group, the result is T(0, P), where
// T(lo, 1) = x(lo) and T(lo, n) = T(lo, k) + T(lo+k, n-k), k the largest power of two below n. So
// the bits of a result depend on the operands and the group alone: not on the chunk, the message
// size, or what arrives first. Example: five ranks give ((x0+x1) + (x2+x3)) + x4.
//
// Operands are used as they arrive, without a copy of the message; all others copy each byte that
// arrives once, into its place. Nothing may change an operand or a sent result until the link has
// let go of it (OwnedBytes). Errors are those of the link; then `out` is undefined, and the caller
// aborts the step for the other ranks. INVALID_ARGUMENT where arguments do not fit each other.
#ifndef SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
#define SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/collective/call.h"

namespace shardmesh::worker {

// parts[p] is this rank's operand for the rank at place p; all ranks have parts[p] of one size,
// that of the result there. `out` gets T over the ranks' operands for this place, and overlaps no
// operand. There is one part for each place, of whole elements.
absl::Status PairwiseReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                                   absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// Hands `mine` to every other rank, and what each rank brings to `place_fn`, the own included, in
// pieces that are in order for each rank. sizes_bytes[p] is the size of what the rank at place p
// brings.
absl::Status PairwiseAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Hands parts[p] to the rank at place p, and what each rank has for this one to `place_fn`, the own
// part included, as PairwiseAllGather does. sizes_bytes[p] is the size of what the rank at place p
// has for this one.
absl::Status PairwiseAllToAll(const CollectiveCall& call, absl::Span<const OwnedBytes> parts,
                              absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// `out` gets T over the ranks' operands, which have one size. `out` overlaps no operand.
absl::Status PairwiseAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, const OwnedMutableBytes& out);

// The same: each rank gets all operands, and combines them itself.
absl::Status DirectAllReduce(const CollectiveCall& call, const Combiner& combiner,
                             const OwnedBytes& operand, absl::Span<char> out);

// `out` gets, at the place `root`, T over the ranks' operands, which have one size; elsewhere it is
// not looked at. The root combines what all send to it.
absl::Status DirectReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                          const OwnedBytes& operand, absl::Span<char> out);

// The same: each rank combines a part, and sends it to the root.
absl::Status PairwiseReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out);

// `out` gets what the rank at place `root` has in `mine`, of out.size() bytes; other ranks' `mine`
// is not looked at.
absl::Status PairwiseBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               absl::Span<char> out);

// As PairwiseAllGather, but only the rank at place `root` gets anything.
absl::Status PairwiseGather(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// `out` gets the part for this place of what the rank at place `root` has in `parts`; other ranks'
// `parts` is not looked at.
absl::Status PairwiseScatter(const CollectiveCall& call, int64_t root,
                             absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// targets[p] is the place to which the rank at place p hands what is `mine` there, if it hands it
// to any; no place is the target of two. `out` gets what this rank is the target of, or zeros. All
// ranks have `mine` and `out` of one size.
absl::Status Permute(const CollectiveCall& call, absl::Span<const std::optional<int64_t>> targets,
                     const OwnedBytes& mine, absl::Span<char> out);

// Returns when every rank of the group has called it.
absl::Status PairwiseBarrier(const CollectiveCall& call);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
