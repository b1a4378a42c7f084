// Calls the function for a collective's kind and algorithm.
#include "worker/collective/collectives.h"

#include <algorithm>
#include <numeric>

#include "process/crc32c.h"
#include "program/collective_choice.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/collective/chain.h"
#include "worker/collective/doubling.h"
#include "worker/collective/halving.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/ring.h"

namespace shardmesh::worker {
namespace {

using Algorithm = CollectiveAlgorithm;

std::vector<int64_t> Sources(const CollectiveOp& op, const DeviceGroup& group) {
  using Kind = CollectiveKind;
  const bool is_root = group.place() == op.root;
  const int64_t before = (group.place() - 1 + group.size()) % group.size();
  switch (op.algorithm) {
    case Algorithm::kDoubling:
      return op.kind == Kind::kBarrier ? DoublingBarrierSources(group) : DoublingSources(group);
    case Algorithm::kHalving:
      return HalvingSources(group);
    case Algorithm::kRing:
      return {before};
    case Algorithm::kBinomial:
      return op.kind == Kind::kReduce ? BinomialReduceSources(group, op.root)
                                      : BinomialBroadcastSources(group, op.root);
    case Algorithm::kChain:
      if (is_root) return {};
      return {before};
    case Algorithm::kAuto:
    case Algorithm::kPairwise:
    case Algorithm::kDirect:
      break;
  }
  if (op.kind == Kind::kPermute) {
    for (const PermutePair& pair : op.permutation) {
      if (pair.target == group.place()) return {pair.source};
    }
    return {};
  }
  if (op.kind == Kind::kBroadcast || op.kind == Kind::kScatter) return {op.root};
  const bool is_at_root =
      op.kind == Kind::kGather || (op.kind == Kind::kReduce && op.algorithm == Algorithm::kDirect);
  if (is_at_root && !is_root) return {};
  std::vector<int64_t> all(Index(group.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::string_view NameOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kMean:
      return "mean";
  }
  return "";
}

// Returns the arguments of a collective other than its operand, as text.
std::string DetailsOf(const CollectiveOp& op) {
  switch (op.kind) {
    case CollectiveKind::kAllReduce:
      return StrCat(" (", NameOf(op.reduction), ")");
    case CollectiveKind::kReduceScatter:
      return StrCat(" (", NameOf(op.reduction), ") along dimension ", op.dimension);
    case CollectiveKind::kReduce:
      return StrCat(" (", NameOf(op.reduction), ") to place ", op.root);
    case CollectiveKind::kAllGather:
      return StrCat(" along dimension ", op.dimension);
    case CollectiveKind::kAllToAll:
      return StrCat(" from dimension ", op.dimension, " to ", op.split_dimension);
    case CollectiveKind::kBroadcast:
      return StrCat(" from place ", op.root);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return StrCat(" along dimension ", op.dimension, ", root ", op.root);
    case CollectiveKind::kPermute:
      return StrCat(" ",
                    StrJoin(op.permutation, ",", [](std::string* out, const PermutePair& pair) {
                      StrAppend(out, pair.source, ":", pair.target);
                    }));
    case CollectiveKind::kBarrier:
      return "";
  }
  return "";
}

absl::Status Check(CollectiveKind kind, const CollectiveChoice& choice) {
  return CheckAlgorithm(kind, choice.algorithm, choice.order);
}

}  // namespace

std::vector<int64_t> PlacesHeard(const CollectiveOp& op, const DeviceGroup& group) {
  std::vector<int64_t> places = Sources(op, group);
  std::erase(places, group.place());
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

std::string SignatureOf(const CollectiveOp& op, int64_t ranks, std::string_view in,
                        std::string_view out) {
  return CutSignature(StrCat(CollectiveKindName(op.kind), DetailsOf(op), " of ", in, " to ", out,
                             " over ", StrJoin(op.axes, "+"), ", ", ranks, " ranks, by ",
                             CollectiveAlgorithmName(op.algorithm),
                             op.order == CollectiveOrder::kFastest ? " in any order" : ""));
}

std::string CutSignature(std::string text) {
  constexpr size_t kMaxBytes = 512;
  if (text.size() > kMaxBytes) {
    const uint32_t checksum = Crc32c(text);
    text.resize(kMaxBytes - 16);
    StrAppend(&text, "... #", checksum);
  }
  return text;
}

absl::Status AllReduce(const CollectiveCall& call, const CollectiveChoice& choice,
                       const Combiner& combiner, const OwnedBytes& operand,
                       const OwnedMutableBytes& out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kAllReduce, choice));
  switch (choice.algorithm) {
    case Algorithm::kDirect:
      return DirectAllReduce(call, combiner, operand, out.bytes);
    case Algorithm::kDoubling:
      return DoublingAllReduce(call, combiner, operand, out.bytes);
    case Algorithm::kHalving:
      return HalvingAllReduce(call, combiner, operand, out);
    case Algorithm::kRing:
      return RingAllReduce(call, combiner, operand, out);
    default:
      return PairwiseAllReduce(call, combiner, operand, out);
  }
}

absl::Status ReduceScatter(const CollectiveCall& call, const CollectiveChoice& choice,
                           const Combiner& combiner, absl::Span<const OwnedBytes> parts,
                           absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kReduceScatter, choice));
  return choice.algorithm == Algorithm::kRing ? RingReduceScatter(call, combiner, parts, out)
                                              : PairwiseReduceScatter(call, combiner, parts, out);
}

absl::Status AllGather(const CollectiveCall& call, const CollectiveChoice& choice,
                       const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                       PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kAllGather, choice));
  switch (choice.algorithm) {
    case Algorithm::kDoubling:
      return DoublingAllGather(call, mine, sizes_bytes, place_fn);
    case Algorithm::kRing:
      return RingAllGather(call, mine, sizes_bytes, place_fn);
    default:
      return PairwiseAllGather(call, mine, sizes_bytes, place_fn);
  }
}

absl::Status AllToAll(const CollectiveCall& call, const CollectiveChoice& choice,
                      absl::Span<const OwnedBytes> parts, absl::Span<const int64_t> sizes_bytes,
                      PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kAllToAll, choice));
  return PairwiseAllToAll(call, parts, sizes_bytes, place_fn);
}

absl::Status Broadcast(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                       const OwnedBytes& mine, const OwnedMutableBytes& out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kBroadcast, choice));
  switch (choice.algorithm) {
    case Algorithm::kBinomial:
      return BinomialBroadcast(call, root, mine, out);
    case Algorithm::kChain:
      return ChainBroadcast(call, root, mine, out);
    default:
      return PairwiseBroadcast(call, root, mine, out.bytes);
  }
}

absl::Status Reduce(const CollectiveCall& call, const CollectiveChoice& choice,
                    const Combiner& combiner, int64_t root, const OwnedBytes& operand,
                    absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kReduce, choice));
  switch (choice.algorithm) {
    case Algorithm::kDirect:
      return DirectReduce(call, combiner, root, operand, out);
    case Algorithm::kBinomial:
      return BinomialReduce(call, combiner, root, operand, out);
    default:
      return PairwiseReduce(call, combiner, root, operand, out);
  }
}

absl::Status Gather(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                    const OwnedBytes& mine, absl::Span<const int64_t> sizes_bytes,
                    PlaceFn place_fn) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kGather, choice));
  return PairwiseGather(call, root, mine, sizes_bytes, place_fn);
}

absl::Status Scatter(const CollectiveCall& call, const CollectiveChoice& choice, int64_t root,
                     absl::Span<const OwnedBytes> parts, absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kScatter, choice));
  return PairwiseScatter(call, root, parts, out);
}

absl::Status Permute(const CollectiveCall& call, const CollectiveChoice& choice,
                     absl::Span<const std::optional<int64_t>> targets, const OwnedBytes& mine,
                     absl::Span<char> out) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kPermute, choice));
  return Permute(call, targets, mine, out);
}

absl::Status Barrier(const CollectiveCall& call, const CollectiveChoice& choice) {
  SHARDMESH_RETURN_IF_ERROR(Check(CollectiveKind::kBarrier, choice));
  return choice.algorithm == Algorithm::kDoubling ? DoublingBarrier(call) : PairwiseBarrier(call);
}

}  // namespace shardmesh::worker
