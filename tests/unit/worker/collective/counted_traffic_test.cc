// Bytes that the algorithms send over each link, counted, equal those that plans are forecast to
// send. Counted are the bytes given to Link::Send: the contents of messages. Headers of frames,
// signatures and acknowledgements are not among them. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/collective_check.h"
#include "program/collective_choice.h"
#include "program/collective_traffic.h"
#include "status/str_cat.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "tests/unit/worker/collective/counting_link.h"
#include "worker/collective/collectives.h"
#include "worker/step/combiners.h"

// The most ranks. Builds with sanitizers, which are slow, set a smaller number.
#ifndef SHARDMESH_COUNTED_RANKS
#define SHARDMESH_COUNTED_RANKS 8
#endif

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::testing::Each;

int64_t SumOfExtents(const GroupTiles& tiles) {
  int64_t sum = 0;
  for (const int64_t extent : tiles.split_extents) sum += extent;
  return sum;
}

// This rank's part in a collective on such tiles, of which all elements are zeros.
absl::Status RunOnTiles(const CollectiveCall& call, const CollectiveOp& op,
                        const GroupTiles& tiles) {
  const DeviceGroup& group = *call.group;
  const Dtype dtype = tiles.operand_dtype;
  const int64_t size = BitsPerElement(dtype) / 8;
  const auto bytes_of = [&](int64_t place) { return tiles.elements[Index(place)] * size; };
  const auto part_bytes = [&](int64_t place, int64_t part) {
    return bytes_of(place) / SumOfExtents(tiles) * tiles.split_extents[Index(part)];
  };
  const Bytes operand = MakeBytes(bytes_of(group.place()));
  const OwnedBytes mine = Owned(operand);
  std::vector<int64_t> sizes_bytes;  // of the data that each place brings for this one
  std::vector<OwnedBytes> parts;     // of this rank's operand
  int64_t out_bytes = SizeOf(mine);
  if (SplitsTiles(op.kind)) {
    int64_t begin = 0;
    for (int64_t place = 0; place < group.size(); ++place) {
      const int64_t end = begin + part_bytes(group.place(), place);
      parts.push_back(PartOf(mine, begin, end));
      sizes_bytes.push_back(part_bytes(place, group.place()));
      begin = end;
    }
    out_bytes = SizeOf(parts[Index(group.place())]);
  } else {
    for (int64_t place = 0; place < group.size(); ++place) sizes_bytes.push_back(bytes_of(place));
  }
  const Bytes out = MakeBytes(out_bytes);
  const auto place_fn = [](int64_t, int64_t, absl::Span<const char>) {};
  const CollectiveChoice choice = {op.algorithm, op.order};
  const Combiner combiner = *CombinerFor(Reduction::kSum, dtype, dtype, group.size());
  switch (op.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(call, choice, combiner, mine, OwnedMutable(out));
    case CollectiveKind::kAllGather:
      return AllGather(call, choice, mine, sizes_bytes, place_fn);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter(call, choice, combiner, parts, absl::MakeSpan(*out));
    case CollectiveKind::kAllToAll:
      return AllToAll(call, choice, parts, sizes_bytes, place_fn);
    case CollectiveKind::kBroadcast:
      return Broadcast(call, choice, op.root, mine, OwnedMutable(out));
    case CollectiveKind::kReduce:
      return Reduce(call, choice, combiner, op.root, mine, absl::MakeSpan(*out));
    case CollectiveKind::kGather:
      return Gather(call, choice, op.root, mine, sizes_bytes, place_fn);
    case CollectiveKind::kScatter:
      return Scatter(call, choice, op.root, parts, absl::MakeSpan(*out));
    case CollectiveKind::kPermute: {
      std::vector<std::optional<int64_t>> targets(Index(group.size()));
      for (const PermutePair& pair : op.permutation) targets[Index(pair.source)] = pair.target;
      return Permute(call, choice, targets, mine, absl::MakeSpan(*out));
    }
    case CollectiveKind::kBarrier:
      return Barrier(call, choice);
  }
  return absl::InternalError("no kind");
}

// Runs the collective, and compares the bytes of each pair of ranks.
void ExpectForecast(const CollectiveOp& op, const GroupTiles& tiles) {
  const auto ranks = static_cast<int64_t>(tiles.elements.size());
  SCOPED_TRACE(StrCat(CollectiveKindName(op.kind), " by ", CollectiveAlgorithmName(op.algorithm),
                      " of ", DtypeName(tiles.operand_dtype), ", root ", op.root, ", elements ",
                      StrJoin(tiles.elements, ","), ", parts ", StrJoin(tiles.split_extents, ",")));
  InProcessRanks world(ranks);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  std::vector<std::vector<int64_t>> counted(Index(ranks));
  EXPECT_THAT(world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(ranks, rank);
    CountingLink link(world.link(rank), ranks);
    const absl::Status done = RunOnTiles(CallOf(&link, group), op, tiles);
    counted[Index(rank)] = link.sent_bytes();
    return done;
  }),
              Each(IsOk()));
  PlaceTraffic forecast(ranks);
  AddCollectiveTraffic(op, tiles, &forecast);
  for (int64_t sender = 0; sender < ranks; ++sender) {
    for (int64_t receiver = 0; receiver < ranks; ++receiver) {
      EXPECT_EQ(forecast.BytesBetween(sender, receiver), counted[Index(sender)][Index(receiver)])
          << "from " << sender << " to " << receiver;
    }
  }
}

// Tiles for a kind: none, few, odd numbers, and several chunks of every algorithm. Parts and tiles
// that may differ do so too.
std::vector<GroupTiles> TilesToTry(CollectiveKind kind, Dtype dtype, int64_t ranks) {
  const GroupTiles none = {.operand_dtype = dtype,
                           .result_dtype = dtype,
                           .elements = std::vector<int64_t>(Index(ranks)),
                           .split_extents = std::vector<int64_t>(Index(ranks), 3)};
  std::vector<GroupTiles> all;
  if (SplitsTiles(kind)) {
    for (const bool is_even : {true, false}) {
      GroupTiles tiles = none;
      for (int64_t place = 0; place < ranks && !is_even; ++place) {
        tiles.split_extents[Index(place)] = 1 + place * place % 5;
      }
      for (const int64_t rows : {0, 1, 7}) {
        tiles.elements.assign(Index(ranks), rows * SumOfExtents(tiles));
        all.push_back(tiles);
      }
      if (kind != CollectiveKind::kAllToAll) continue;
      for (int64_t place = 0; place < ranks; ++place) {
        tiles.elements[Index(place)] = place * SumOfExtents(tiles);
      }
      all.push_back(tiles);
    }
    return all;
  }
  const int64_t several_chunks = (int64_t{1} << 20) / (BitsPerElement(dtype) / 8) + 3;
  for (const int64_t elements :
       {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{1021}, several_chunks}) {
    const bool has_chunks = kind == CollectiveKind::kAllReduce ||
                            kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
    if (elements == several_chunks && !has_chunks) continue;
    GroupTiles tiles = none;
    tiles.elements.assign(Index(ranks), elements);
    all.push_back(tiles);
  }
  if (JoinsTiles(kind)) {
    GroupTiles tiles = none;
    for (int64_t place = 0; place < ranks; ++place) {
      tiles.elements[Index(place)] = place * 5 % 4;  // 0 at some
    }
    all.push_back(tiles);
  }
  return all;
}

class CountedTraffic : public ::testing::TestWithParam<int64_t> {};

TEST_P(CountedTraffic, IsTheForecastOfEachPairByEveryAlgorithm) {
  const int64_t ranks = GetParam();
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      CollectiveOp op = {
          .kind = kind, .axes = {"tp"}, .algorithm = algorithm, .order = CollectiveOrder::kFastest};
      if (kind == CollectiveKind::kPermute) {
        // Place 1 sends nothing; with one or two ranks, place 0 sends to itself.
        for (int64_t place = 0; place < ranks; ++place) {
          if (place != 1) op.permutation.push_back({place, (place + 2) % ranks});
        }
      }
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI8}) {
        for (const GroupTiles& tiles : TilesToTry(kind, dtype, ranks)) {
          for (op.root = 0; op.root < (HasRoot(kind) ? ranks : 1); ++op.root) {
            ExpectForecast(op, tiles);
            if (tiles.elements.front() > 2000) break;  // one root is enough for large tiles
          }
          op.root = 0;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CountedTraffic,
                         ::testing::Range<int64_t>(1, SHARDMESH_COUNTED_RANKS + 1),
                         [](const auto& tested) { return StrCat(tested.param, "Ranks"); });

}  // namespace
}  // namespace shardmesh::worker
