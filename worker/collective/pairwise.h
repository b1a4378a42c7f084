// Collectives in which every rank of a group exchanges its data with every other directly.
//
// Each function is called by every rank of a group with the same step, op and round, and with
// arguments that fit together; it returns when this rank's part is done. Sends never wait, so ranks
// may come in any order. Costs are per rank, for P ranks and S bytes of operand:
//
//   function              steps  bytes sent           scratch memory
//   PairwiseReduceScatter 1      S (P-1)/P            (log2 P + 2) blocks of 16 KiB
//   PairwiseAllGather     1      S (P-1)              none
//   PairwiseAllReduce     2      2 S (P-1)/P          as PairwiseReduceScatter
//   PairwiseBroadcast     1      root S (P-1), else 0 none
//   PairwiseBarrier       1      P-1                  none
//
// That is the least a rank can send; a step costs P-1 messages, which suits groups of up to some
// tens of ranks.
//
// Order of combination: with x(p) the operand at place p of the group, the result is T(0, P), where
// T(lo, 1) = x(lo) and T(lo, n) = T(lo, k) + T(lo+k, n-k), k the largest power of two below n. So
// the bits of a result depend on the operands and the group alone: not on the chunk, the message
// size, or what arrives first. Example: five ranks give ((x0+x1) + (x2+x3)) + x4.
//
// Operands are used as they arrive, without a copy of the message; all-gather and broadcast copy
// each byte once, into its place. Nothing may change an operand or a sent result until the link has
// let go of it (OwnedBytes). Errors are those of the link; then `out` is undefined, and the caller
// aborts the step for the other ranks.
#ifndef SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
#define SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/device_group.h"
#include "sharding/mesh.h"
#include "worker/collective/combiner.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// This rank's part in one collective.
struct CollectiveCall {
  Link* link = nullptr;                // its rank is the group's device at its place
  const DeviceGroup* group = nullptr;  // seen from this rank
  int64_t step = 0;
  int64_t op = 0;
  // First round to use; a function uses as many as it has steps.
  int64_t round = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // If set: called when all data of one round has come from this rank.
  std::function<void(DeviceId peer)> received;
};

// Memory to write a result to, and its owner, since results are sent on from where they lie.
struct OwnedMutableBytes {
  absl::Span<char> bytes;
  std::shared_ptr<const void> owner;
};

// Where P parts of `count` elements begin and end: P+1 cut points from 0 to `count`, the parts of
// equal size but that the first count % P have one element more. count >= 0, P >= 1.
std::vector<int64_t> EvenCuts(int64_t count, int64_t parts);

// Takes the bytes [offset_bytes, offset_bytes + bytes.size()) of what the rank at `place` brings.
using PlaceFn =
    absl::FunctionRef<void(int64_t place, int64_t offset_bytes, absl::Span<const char> bytes)>;

// parts[p] is this rank's operand for the rank at place p; all ranks have parts[p] of one size,
// that of the result there. `out` gets T over the ranks' operands for this place, and overlaps no
// operand.
// INVALID_ARGUMENT: there is not one part for each place, sizes are not of whole elements, or
// `out` does not fit the own part.
absl::Status PairwiseReduceScatter(const CollectiveCall& call, const Combiner& combiner,
                                   absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// Hands `mine` to every other rank, and what each rank brings to `place_fn`, the own included, in
// pieces that are in order for each rank. sizes_bytes[p] is the size of what the rank at place p
// brings. INVALID_ARGUMENT: there is not one size for each place, or `mine` is not of its size.
absl::Status PairwiseAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                               absl::Span<const int64_t> sizes_bytes, PlaceFn place_fn);

// `out` gets T over the ranks' operands, which have one size. `out` overlaps no operand.
// INVALID_ARGUMENT: sizes are not of whole elements, or `out` does not fit the operand.
absl::Status PairwiseAllReduce(const CollectiveCall& call, const Combiner& combiner,
                               const OwnedBytes& operand, const OwnedMutableBytes& out);

// `out` gets what the rank at place `root` has in `mine`, of out.size() bytes; other ranks' `mine`
// is not looked at. INVALID_ARGUMENT: there is no such place, or the root's `mine` does not fit.
absl::Status PairwiseBroadcast(const CollectiveCall& call, int64_t root, const OwnedBytes& mine,
                               absl::Span<char> out);

// Returns when every rank of the group has called it.
absl::Status PairwiseBarrier(const CollectiveCall& call);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_PAIRWISE_H_
