// Collectives in which every rank of a group exchanges data with every other rank directly.
//
// Every rank of a group calls the function with the same step, op and round, and with matching
// arguments. The call returns when this rank's part is done. Sends never wait, so ranks may call in
// any order.
//
// Costs are per rank, for P ranks and S bytes of operand. For all-gather and gather, S is the data
// of one rank. For all-to-all and scatter, S is all parts together.
//
// clang-format off
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
// clang-format on
//
// A round costs P-1 messages, which suits groups of up to some tens of ranks. DirectAllReduce has
// the fewest rounds: use it for operands so small that rounds dominate the cost.
//
// Order of combination: x(p) is the operand of the rank at place p; a place is a rank's index in
// the group. The result is T(0, P), where T(lo, 1) = x(lo) and T(lo, n) = T(lo, k) + T(lo+k, n-k),
// with k the largest power of two below n. The bits of a result depend only on the operands and the
// group: not on the chunk, the message size, or the order of arrival. Example: five ranks give
// ((x0+x1) + (x2+x3)) + x4.
//
// Reductions use operands as they arrive, without a copy of the message. All other functions copy
// each arriving byte once, to its destination. Operands, and results that a function sends, must
// not change until the link has released them (OwnedBytes).
//
// Errors are those of the link and of CollectiveCall::scratch, and INVALID_ARGUMENT if the
// arguments do not fit each other. After an error `out` is undefined, and the caller aborts the
// step for the other ranks.
#ifndef SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
#define SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// For each place, combines the operands that all ranks have for this place. parts[p] is this rank's
// operand for place p; it has as many elements as the result of the rank at p. `parts` has one part
// for each place. `out` gets T over the operands for this rank's place; `out` may not overlap an
// operand.
absl::Status PairwiseReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                                   absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// Like PairwiseReduceScatter, but makes the parts one by one and sends each at once. For each other
// place, the function calls make_part(place) once, for the place after this rank's first, then in
// the order of places. It returns this rank's operand for that place. At last the function calls
// make_part with this rank's own place until it has all elements of `out`: each call returns the
// next elements of this rank's own operand, at least one. These elements are combined at once and
// then no longer needed, so that messages of peers are read while this rank makes the next ones.
// The function ends with the first error of make_part, and returns it.
absl::Status PairwiseReduceScatterAsMade(
    const CollectiveCall& call, const Combiner& combiner,
    absl::FunctionRef<absl::StatusOr<OwnedBytes>(int64_t place)> make_part, absl::Span<char> out);

// Sends `mine` to every other rank. Passes the data of each rank, this one included, to `place_fn`,
// in pieces that are in order for each rank. sizes_bytes[p] is the size of the data of the rank at
// place p.
absl::Status PairwiseAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Sends parts[p] to the rank at place p. Passes the parts for this rank, its own part included, to
// `place_fn` as PairwiseAllGather does. sizes_bytes[p] is the size of the part that the rank at
// place p sends to this rank.
absl::Status PairwiseAllToAll(const CollectiveCall& call, absl::Span<const OwnedBytes> parts,
                              absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Combines one operand of each rank; all operands have the same size. On every rank, `out` gets T
// over the ranks' operands. `out` may not overlap an operand.
absl::Status PairwiseAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, const OwnedMutableBytes& out);

// Like PairwiseAllReduce, but each rank receives all operands and combines them itself.
absl::Status DirectAllReduce(const CollectiveCall& call, const Combiner& combiner,
                             const OwnedBytes& operand, absl::Span<char> out);

// Combines one operand of each rank; all operands have the same size. Every rank sends its operand
// to the rank at place `root`, whose `out` gets T over the ranks' operands. On other ranks `out` is
// ignored.
absl::Status DirectReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                          const OwnedBytes& operand, absl::Span<char> out);

// Like DirectReduce, but each rank combines one part of all operands, and sends the result of this
// part to the root.
absl::Status PairwiseReduce(const CollectiveCall& call, const Combiner& combiner, int64_t root,
                            const OwnedBytes& operand, absl::Span<char> out);

// Copies `mine` of the rank at place `root` to `out` on every rank. `mine` and `out` have the same
// size. Ranks other than the root ignore `mine`.
absl::Status PairwiseBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               absl::Span<char> out);

// Like PairwiseAllGather, but only the rank at place `root` receives data.
absl::Status PairwiseGather(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                            absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// Copies parts[p] of the rank at place `root` to `out` on the rank at place p. Ranks other than the
// root ignore `parts`.
absl::Status PairwiseScatter(const CollectiveCall& call, int64_t root,
                             absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// targets[p] is the place to which the rank at place p sends its `mine`; nullopt if that rank sends
// nothing. At most one rank sends to each place. `out` gets the data sent to this rank, or zeros if
// no rank sends to it. On all ranks `mine` and `out` have the same size.
absl::Status Permute(const CollectiveCall& call, absl::Span<const std::optional<int64_t>> targets,
                     const OwnedBytes& mine, absl::Span<char> out);

// Returns when every rank of the group has called PairwiseBarrier.
absl::Status PairwiseBarrier(const CollectiveCall& call);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
