// One function for each kind of collective, which calls the function of the chosen algorithm.
//
// Every rank of a group calls the same function, with the same algorithm and order (see
// pairwise.h). The header of each algorithm states its costs.
//
// Errors: INVALID_ARGUMENT in three cases. The kind does not have the algorithm. A reduction around
// a ring has an order other than kFastest. The algorithm is kAuto, which the caller must replace by
// an actual algorithm first (program/collective_choice.h). The message names the algorithms that
// fit. Other errors are those of the algorithms.
#ifndef SHARDMESH_WORKER_COLLECTIVE_COLLECTIVES_H_
#define SHARDMESH_WORKER_COLLECTIVE_COLLECTIVES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "sharding/device_group.h"
#include "worker/collective/collective_call.h"
#include "worker/collective/combiner.h"

namespace shardmesh::worker {

// The algorithm of a collective, and the order in which it combines operands.
struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kPairwise;
  CollectiveOrder order = CollectiveOrder::kReproducible;
};

// Returns the places (indices in the group) from which this rank receives in a collective of a
// plan: each place once, in rising order. With very small operands some parts are empty, and the
// rank may receive from fewer places.
std::vector<int64_t> PlacesHeard(const CollectiveOp& op, const DeviceGroup& group);

// Returns the description of an op for Link::Begin: the same text on every rank that runs the same
// op. Example: `all-reduce (sum) of F32[2,3] to F32[2,3] over tp, 4 ranks, by pairwise`. `in` and
// `out` describe the rank's operand and result. If the text is longer than 512 bytes, the function
// cuts it and appends a checksum.
std::string SignatureOf(const CollectiveOp& op, int64_t ranks, std::string_view in,
                        std::string_view out);

// Returns the text, if it is a signature of at most 512 bytes. Otherwise cuts it and appends a
// checksum.
std::string CutSignature(std::string text);

// Like PairwiseAllReduce (pairwise.h), by the algorithm in `choice`.
absl::Status AllReduce(const CollectiveCall& call, const CollectiveChoice& choice,
                       const Combiner& combiner, const OwnedBytes& operand,
                       const OwnedMutableBytes& out);

// Like PairwiseReduceScatter (pairwise.h), by the algorithm in `choice`.
absl::Status ReduceScatter(const CollectiveCall& call, const CollectiveChoice& choice,
                           const Combiner& combiner, absl::Span<const OwnedBytes> parts,
                           absl::Span<char> out);

// Like PairwiseAllGather (pairwise.h), by the algorithm in `choice`.
absl::Status AllGather(const CollectiveCall& call, const CollectiveChoice& choice,
                       const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                       PlaceFn place_fn);

// Like PairwiseAllToAll (pairwise.h), by the algorithm in `choice`.
absl::Status AllToAll(const CollectiveCall& call, const CollectiveChoice& choice,
                      absl::Span<const OwnedBytes> parts, absl::Span<const int64_t> sizes_bytes,
                      PlaceFn place_fn);

// Like PairwiseBroadcast (pairwise.h), by the algorithm in `choice`.
absl::Status Broadcast(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                       const OwnedBytes& mine, const OwnedMutableBytes& out);

// Like PairwiseReduce (pairwise.h), by the algorithm in `choice`.
absl::Status Reduce(const CollectiveCall& call, const CollectiveChoice& choice,
                    const Combiner& combiner, int64_t root, const OwnedBytes& operand,
                    absl::Span<char> out);

// Like PairwiseGather (pairwise.h), by the algorithm in `choice`.
absl::Status Gather(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                    const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                    PlaceFn place_fn);

// Like PairwiseScatter (pairwise.h), by the algorithm in `choice`.
absl::Status Scatter(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                     absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// Like Permute (pairwise.h), by the algorithm in `choice`.
absl::Status Permute(const CollectiveCall& call, const CollectiveChoice& choice,
                     absl::Span<const std::optional<int64_t>> targets, const OwnedBytes& mine,
                     absl::Span<char> out);

// Like PairwiseBarrier (pairwise.h), by the algorithm in `choice`.
absl::Status Barrier(const CollectiveCall& call, const CollectiveChoice& choice);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COLLECTIVES_H_
