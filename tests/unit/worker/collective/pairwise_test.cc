// Collectives by pairwise exchange: the bits of a plain tree sum, on every rank.
#include "worker/collective/pairwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/collective/ring.h"
#include "worker/collective/tree.h"
#include "worker/step/combiners.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Fault;
using ::shardmesh::test::FaultyLink;
using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TreeTest, SplitsAtTheLargestPowerOfTwoBelow) {
  std::vector<int64_t> splits;
  for (int64_t n = 2; n <= 9; ++n) splits.push_back(TreeSplit(n));
  EXPECT_THAT(splits, ElementsAre(1, 2, 2, 4, 4, 4, 4, 8));
}

TEST(EvenCutsTest, GivesTheFirstPartsOneMore) {
  EXPECT_THAT(EvenCuts(7, 3), ElementsAre(0, 3, 5, 7));
  EXPECT_THAT(EvenCuts(2, 4), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(EvenCuts(0, 2), ElementsAre(0, 0, 0));
}

TEST(PairwiseTest, PartialSumsInF32BecomeBF16AtTheRoot) {
  // 1 + 2^-9 three times: exact sums round once, to 3 + 2^-6 and not to a sum of rounded values.
  const float value = 1.0f + 1.0f / 512;
  constexpr int64_t kRanks = 3;
  std::vector<Bytes> results;
  for (int64_t i = 0; i < kRanks; ++i) results.push_back(MakeBytes(2));
  const Bytes operand = MakeBytes(4);
  std::memcpy(operand->data(), &value, 4);
  InProcessRanks world(kRanks);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    return PairwiseAllReduce(CallOf(world.link(rank), group),
                             *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kBF16, kRanks),
                             Owned(operand), OwnedMutable(results[static_cast<size_t>(rank)]));
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
  for (const Bytes& result : results) {
    uint16_t bits;
    std::memcpy(&bits, result->data(), 2);
    EXPECT_EQ(bits, F32ToBF16(3 * value));
  }
}

TEST(PairwiseTest, BitsDoNotDependOnTheOrderOfArrival) {
  constexpr int64_t kRanks = 5;
  constexpr int64_t kCount = 999;
  std::vector<Bytes> operands, results;
  InProcessRanks world(kRanks, 100);
  std::vector<std::unique_ptr<FaultyLink>> links;
  for (DeviceId rank = 0; rank < kRanks; ++rank) {
    operands.push_back(OperandOf(Dtype::kF32, kCount, rank));
    results.push_back(MakeBytes(kCount * 4));
    links.push_back(std::make_unique<FaultyLink>(world.link(rank), [](DeviceId, const Tag& tag) {
      return tag.round() == 0 ? Fault::kDelay : Fault::kNone;
    }));
  }
  ASSERT_THAT(world.OpenStep(1), IsOk());
  std::thread releaser([&] {
    for (size_t i = links.size(); i-- > 0;) {
      EXPECT_THAT(links[i]->Release(kRanks - 1, absl::Now() + absl::Seconds(60)), IsOk());
    }
  });
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    const auto index = static_cast<size_t>(rank);
    return PairwiseAllReduce(CallOf(links[index].get(), group),
                             *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, kRanks),
                             Owned(operands[index]), OwnedMutable(results[index]));
  });
  releaser.join();
  EXPECT_THAT(outcomes, Each(IsOk()));
  const std::vector<char> expected = PlainReduction(Reduction::kSum, Dtype::kF32, operands, kCount);
  for (const Bytes& result : results) EXPECT_TRUE(*result == expected);
}

TEST(PairwiseTest, ALostMessageIsNamedAtTheDeadline) {
  constexpr int64_t kRanks = 3;
  InProcessRanks world(kRanks);
  FaultyLink faulty(world.link(1), [](DeviceId peer, const Tag&) {
    return peer == 0 ? Fault::kDrop : Fault::kNone;
  });
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    CollectiveCall call = CallOf(rank == 1 ? &faulty : world.link(rank), group);
    if (rank == 0) call.deadline = absl::Now() + absl::Milliseconds(20);
    return PairwiseBarrier(call);
  });
  EXPECT_THAT(outcomes[0], StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(outcomes[0].message()),
              AllOf(HasSubstr("rank 1 (worker-1)"), HasSubstr("step 1, op 4")));
}

TEST(PairwiseTest, ACutConnectionReleasesEveryRankOnceTheStepIsAborted) {
  constexpr int64_t kRanks = 4;
  InProcessRanks world(kRanks);
  FaultyLink faulty(world.link(1), [](DeviceId, const Tag&) { return Fault::kCut; });
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    const absl::Status status =
        PairwiseBarrier(CallOf(rank == 1 ? &faulty : world.link(rank), group));
    if (rank == 1) {
      for (DeviceId peer = 0; peer < kRanks; ++peer) world.mailbox(peer).Abort(1, status);
    }
    return status;
  });
  EXPECT_THAT(outcomes, Each(StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("is cut"));
}

TEST(PairwiseTest, ReportsTheRanksWhoseDataCame) {
  constexpr int64_t kRanks = 3;
  InProcessRanks world(kRanks);
  std::vector<std::vector<DeviceId>> heard(kRanks);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    CollectiveCall call = CallOf(world.link(rank), group);
    call.received = [&heard, rank](DeviceId peer) {
      heard[static_cast<size_t>(rank)].push_back(peer);
    };
    return PairwiseBarrier(call);
  });
  EXPECT_THAT(heard, ElementsAre(ElementsAre(1, 2), ElementsAre(2, 0), ElementsAre(0, 1)));
}

TEST(PairwiseTest, CountsTheBytesOfLongMessagesAsTheyArrive) {
  constexpr int64_t kRanks = 3;
  constexpr int64_t kCount = int64_t{3} << 18;  // 3 MiB of F32
  struct Case {
    const char* name;
    int64_t count;
    int64_t received_bytes;  // by each rank
    int64_t most_at_once;
    std::function<absl::Status(const CollectiveCall&, const OwnedBytes&, const OwnedMutableBytes&)>
        run;
  };
  const auto sum = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, kRanks);
  const auto gather = [](auto all_gather) {
    return
        [all_gather](const CollectiveCall& call, const OwnedBytes& mine, const OwnedMutableBytes&) {
          const std::vector<int64_t> sizes(kRanks, SizeOf(mine));
          return all_gather(call, mine, sizes, [](int64_t, int64_t, absl::Span<const char>) {});
        };
  };
  const auto reduce = [&sum](auto all_reduce) {
    return [&sum, all_reduce](const CollectiveCall& call, const OwnedBytes& mine,
                              const OwnedMutableBytes& out) {
      return all_reduce(call, sum, mine, out);
    };
  };
  for (const Case& each : std::vector<Case>{
           {"pairwise gather", kCount, 2 * 4 * kCount, 1 << 20, gather(&PairwiseAllGather)},
           {"ring gather", kCount, 2 * 4 * kCount, 256 << 10, gather(&RingAllGather)},
           {"pairwise reduce", kCount, 4 * 4 * kCount / 3, 2 << 20, reduce(&PairwiseAllReduce)},
           {"ring reduce", kCount, 4 * 4 * kCount / 3, 256 << 10, reduce(&RingAllReduce)},
           // Short messages are sent too often to be counted.
           {"short", 15, 0, 0, reduce(&PairwiseAllReduce)}}) {
    SCOPED_TRACE(each.name);
    InProcessRanks world(kRanks);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    std::vector<int64_t> received(kRanks);
    std::vector<int64_t> most(kRanks);
    EXPECT_THAT(world.RunOnAll([&](DeviceId rank) {
      const DeviceGroup group = GroupOf(kRanks, rank);
      CollectiveCall call = CallOf(world.link(rank), group);
      call.piece_received = [&, rank](int64_t bytes) {
        received[Index(rank)] += bytes;
        most[Index(rank)] = std::max(most[Index(rank)], bytes);
      };
      return each.run(call, Owned(OperandOf(Dtype::kF32, each.count, rank)),
                      OwnedMutable(MakeBytes(4 * each.count)));
    }),
                Each(IsOk()));
    EXPECT_THAT(received, Each(each.received_bytes));
    EXPECT_THAT(most, Each(testing::Le(each.most_at_once)));
  }
}

TEST(PairwiseTest, RefusesSizesThatDoNotFit) {
  InProcessRanks world(2);
  const DeviceGroup group = GroupOf(2, 0);
  const CollectiveCall call = CallOf(world.link(0), group);
  const Combiner sum = *CombinerFor(Reduction::kSum, Dtype::kF32, Dtype::kF32, 2);
  const Bytes six = MakeBytes(6), eight = MakeBytes(8);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(PairwiseAllReduce(call, sum, Owned(six), OwnedMutable(six)), StatusIs(kInvalid));
  EXPECT_THAT(PairwiseAllReduce(call, sum, Owned(eight), OwnedMutable(six)), StatusIs(kInvalid));
  EXPECT_THAT(PairwiseReduceScatter(call, sum, {Owned(eight)}, absl::MakeSpan(*eight)),
              StatusIs(kInvalid));
  EXPECT_THAT(PairwiseBroadcast(call, 2, Owned(eight), absl::MakeSpan(*eight)), StatusIs(kInvalid));
  EXPECT_THAT(
      PairwiseAllGather(call, Owned(six), {8, 8}, [](int64_t, int64_t, absl::Span<const char>) {}),
      StatusIs(kInvalid));
}

}  // namespace
}  // namespace shardmesh::worker
