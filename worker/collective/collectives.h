// One function for each kind of collective: it takes the algorithm, and calls the function for it.
//
// Called as the functions of pairwise.h, by every rank of a group with the same algorithm and
// order; the headers of the algorithms say what each costs. INVALID_ARGUMENT, naming those that
// fit, for an algorithm that the kind does not have, for a reduction around a ring unless the order
// is kFastest, and for kAuto, which is to be chosen before (program/collective_choice.h). Other
// errors are the algorithms'.
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
#include "worker/collective/call.h"
#include "worker/collective/combiner.h"

namespace shardmesh::worker {

// The algorithm of a collective, and the order in which it adds.
struct CollectiveChoice {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kPairwise;
  CollectiveOrder order = CollectiveOrder::kReproducible;
};

// The places that a rank hears from in a collective of a plan, each once, rising; if operands are
// so small that parts of them are empty, it may hear from fewer.
std::vector<int64_t> PlacesHeard(const CollectiveOp& op, const DeviceGroup& group);

// What a rank does as an op, for Link::Begin: the same text on every rank that does the same, such
// as `all-reduce (sum) of F32[2,3] to F32[2,3] over tp, 4 ranks, by pairwise`. `in` and `out` say
// what the rank has, and what it gets. Of a text over 512 bytes the beginning, and a checksum.
std::string SignatureOf(const CollectiveOp& op, int64_t ranks, std::string_view in,
                        std::string_view out);

// As PairwiseAllReduce.
absl::Status AllReduce(const CollectiveCall& call, const CollectiveChoice& choice,
                       const Combiner& combiner, const OwnedBytes& operand,
                       const OwnedMutableBytes& out);

// As PairwiseReduceScatter.
absl::Status ReduceScatter(const CollectiveCall& call, const CollectiveChoice& choice,
                           const Combiner& combiner, absl::Span<const OwnedBytes> parts,
                           absl::Span<char> out);

// As PairwiseAllGather.
absl::Status AllGather(const CollectiveCall& call, const CollectiveChoice& choice,
                       const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                       PlaceFn place_fn);

// As PairwiseAllToAll.
absl::Status AllToAll(const CollectiveCall& call, const CollectiveChoice& choice,
                      absl::Span<const OwnedBytes> parts, absl::Span<const int64_t> sizes_bytes,
                      PlaceFn place_fn);

// As PairwiseBroadcast.
absl::Status Broadcast(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                       const OwnedBytes& mine, const OwnedMutableBytes& out);

// As PairwiseReduce.
absl::Status Reduce(const CollectiveCall& call, const CollectiveChoice& choice,
                    const Combiner& combiner, int64_t root, const OwnedBytes& operand,
                    absl::Span<char> out);

// As PairwiseGather.
absl::Status Gather(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                    const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                    PlaceFn place_fn);

// As PairwiseScatter.
absl::Status Scatter(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                     absl::Span<const OwnedBytes> parts, absl::Span<char> out);

// As Permute of pairwise.h.
absl::Status Permute(const CollectiveCall& call, const CollectiveChoice& choice,
                     absl::Span<const std::optional<int64_t>> targets, const OwnedBytes& mine,
                     absl::Span<char> out);

// As PairwiseBarrier.
absl::Status Barrier(const CollectiveCall& call, const CollectiveChoice& choice);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COLLECTIVES_H_
