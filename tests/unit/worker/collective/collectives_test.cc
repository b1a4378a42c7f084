// The front door of the collectives: which algorithms it takes, and whom a rank hears from.
#include "worker/collective/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "program/collective_choice.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::testing::Each;

constexpr int64_t kElements = 2520;  // which 1 to 10 ranks divide

// Runs a collective as it stands in a plan, on operands of kElements F32 elements.
absl::Status RunPlanned(const CollectiveCall& call, const CollectiveOp& op) {
  const DeviceGroup& group = *call.group;
  const int64_t ranks = group.size();
  const CollectiveChoice choice = {op.algorithm, op.order};
  const Bytes operand = OperandOf(Dtype::kF32, kElements, group.device_at(group.place()));
  const Bytes out = MakeBytes(kElements * 4);
  const int64_t part_bytes = kElements * 4 / ranks;
  const OwnedBytes whole = Owned(operand);
  std::vector<OwnedBytes> parts;
  for (int64_t place = 0; place < ranks; ++place) {
    parts.push_back(PartOf(whole, place * part_bytes, (place + 1) * part_bytes));
  }
  const absl::Span<char> out_part = absl::MakeSpan(*out).subspan(0, Index(part_bytes));
  const std::vector<int64_t> wholes(Index(ranks), SizeOf(whole));
  const std::vector<int64_t> part_sizes(Index(ranks), part_bytes);
  const auto place_fn = [](int64_t, int64_t, absl::Span<const char>) {};
  const Combiner combiner = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, ranks);
  switch (op.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(call, choice, combiner, whole, OwnedMutable(out));
    case CollectiveKind::kAllGather:
      return AllGather(call, choice, whole, wholes, place_fn);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(call, choice, combiner, parts, out_part);
    case CollectiveKind::kAllToAll:
      return AllToAll(call, choice, parts, part_sizes, place_fn);
    case CollectiveKind::kBroadcast:
      return Broadcast(call, choice, op.root, whole, OwnedMutable(out));
    case CollectiveKind::kReduce:
      return Reduce(call, choice, combiner, op.root, whole, absl::MakeSpan(*out));
    case CollectiveKind::kGather:
      return Gather(call, choice, op.root, whole, wholes, place_fn);
    case CollectiveKind::kScatter:
      return Scatter(call, choice, op.root, parts, out_part);
    case CollectiveKind::kPermute: {
      std::vector<std::optional<int64_t>> targets(Index(ranks));
      for (const PermutePair& pair : op.permutation) targets[Index(pair.source)] = pair.target;
      return Permute(call, choice, targets, whole, absl::MakeSpan(*out));
    }
    case CollectiveKind::kBarrier:
      return Barrier(call, choice);
  }
  return absl::InternalError("no kind");
}

TEST(CollectivesTest, SignaturesTellApartWhatDoesNotBelongTogether) {
  const CollectiveOp op{.kind = CollectiveKind::kAllReduce,
                        .axes = {"dp", "tp"},
                        .algorithm = CollectiveAlgorithm::kHalving};
  EXPECT_EQ(SignatureOf(op, 4, "BF16[2,3]", "F32[2,3]"),
            "all-reduce (sum) of BF16[2,3] to F32[2,3] over dp+tp, 4 ranks, by halving");
  // All changes of one field that changes what is exchanged.
  std::vector<CollectiveOp> others(22, op);
  others[1].axes = {"tp", "dp"};
  others[2].reduction = Reduction::kMin;
  others[3].algorithm = CollectiveAlgorithm::kPairwise;
  others[4].order = CollectiveOrder::kFastest;
  others[5] = {.kind = CollectiveKind::kReduce, .axes = op.axes, .root = 1};
  others[6] = {.kind = CollectiveKind::kReduce, .axes = op.axes, .root = 2};
  others[7] = {.kind = CollectiveKind::kPermute, .axes = op.axes, .permutation = {{0, 1}}};
  others[8] = {.kind = CollectiveKind::kPermute, .axes = op.axes, .permutation = {{0, 2}}};
  size_t next = 9;
  for (const CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather, CollectiveKind::kGather,
        CollectiveKind::kScatter, CollectiveKind::kAllToAll}) {
    others[next++] = {.kind = kind, .axes = op.axes, .dimension = 1, .split_dimension = 2};
    others[next++] = {.kind = kind, .axes = op.axes, .dimension = 3, .split_dimension = 2};
  }
  others[next++] = {
      .kind = CollectiveKind::kAllToAll, .axes = op.axes, .dimension = 1, .split_dimension = 0};
  others[next++] = {.kind = CollectiveKind::kGather, .axes = op.axes, .dimension = 1, .root = 1};
  others[next++] = {.kind = CollectiveKind::kScatter, .axes = op.axes, .dimension = 1, .root = 1};
  ASSERT_EQ(next, others.size());
  std::set<std::string> signatures;
  for (const CollectiveOp& other : others) {
    signatures.insert(SignatureOf(other, 4, "F32[2]", "F32[2]"));
  }
  EXPECT_EQ(signatures.size(), others.size());
  // So do the numbers of ranks and, in what goes in and comes out, types, shapes and counts.
  for (const auto& [ranks, in, out] :
       {std::tuple(3, "F32[2]", "F32[2]"), std::tuple(4, "F16[2]", "F32[2]"),
        std::tuple(4, "F32[2]", "F16[2]"), std::tuple(4, "F32[3]", "F32[1+2]"),
        std::tuple(4, "F32[3]", "F32[2+1]")}) {
    EXPECT_TRUE(signatures.insert(SignatureOf(others[9], ranks, in, out)).second) << in << out;
  }
  // Long ones differ by what is not shown.
  CollectiveOp permute = others[7];
  for (int64_t place = 2; place < 1'000; ++place) permute.permutation.push_back({place, place});
  const std::string text = SignatureOf(permute, 1'000, "F32[2]", "F32[2]");
  permute.permutation.back().target = 1'000;
  EXPECT_LE(text.size(), 512u);
  EXPECT_NE(SignatureOf(permute, 1'000, "F32[2]", "F32[2]"), text);
}

TEST(CollectivesTest, RanksHearFromThePlacesThatAreNamedAndNoOthers) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      for (int64_t ranks = 1; ranks <= 9; ++ranks) {
        for (const int64_t root : {int64_t{0}, ranks / 2, ranks - 1}) {
          SCOPED_TRACE(StrCat(CollectiveKindName(kind), " by ", CollectiveAlgorithmName(algorithm),
                              ", ", ranks, " ranks, root ", root));
          const CollectiveOp op = {.kind = kind,
                                   .axes = {"tp"},
                                   .root = root,
                                   .permutation = {{0, root}, {root, 0}},
                                   .algorithm = algorithm,
                                   .order = CollectiveOrder::kFastest};
          InProcessRanks world(ranks);
          ASSERT_THAT(world.OpenStep(1), IsOk());
          std::vector<std::vector<int64_t>> heard(Index(ranks));
          EXPECT_THAT(world.RunOnAll([&](DeviceId rank) {
            const DeviceGroup group = GroupOf(ranks, rank);
            CollectiveCall call = CallOf(world.link(rank), group);
            call.received = [&](DeviceId peer) { heard[Index(rank)].push_back(peer); };
            return RunPlanned(call, op);
          }),
                      Each(IsOk()));
          for (DeviceId rank = 0; rank < ranks; ++rank) {
            std::vector<int64_t>& places = heard[Index(rank)];
            std::sort(places.begin(), places.end());
            places.erase(std::unique(places.begin(), places.end()), places.end());
            EXPECT_EQ(PlacesHeard(op, GroupOf(ranks, rank)), places) << "rank " << rank;
          }
        }
      }
    }
  }
}

TEST(CollectivesTest, AlgorithmsThatDoNotFitAreRefusedBeforeAnythingIsSent) {
  const DeviceGroup group = GroupOf(4, 1);
  const CollectiveCall call = CallOf(nullptr, group);
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AllCollectiveAlgorithms()) {
      for (const CollectiveOrder order :
           {CollectiveOrder::kReproducible, CollectiveOrder::kFastest}) {
        const absl::Status fits = CheckAlgorithm(kind, algorithm, order);
        if (fits.ok()) continue;
        const absl::Status status =
            RunPlanned(call, {.kind = kind, .algorithm = algorithm, .order = order});
        EXPECT_EQ(ReasonOf(status), Reason::kBadField);
        EXPECT_EQ(status.message(), fits.message());
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::worker
