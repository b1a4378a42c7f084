// Collectives by pairwise exchange: the bits of a plain tree sum, on every rank.
#include "worker/collective/pairwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tensor/float_convert.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "worker/collective/tree.h"
#include "worker/combiners.h"

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

using Bytes = std::shared_ptr<std::vector<char>>;

Bytes MakeBytes(int64_t size) {
  return std::make_shared<std::vector<char>>(static_cast<size_t>(size));
}
OwnedBytes Owned(const Bytes& bytes) { return {absl::MakeConstSpan(*bytes), bytes}; }
OwnedMutableBytes OwnedMutable(const Bytes& bytes) { return {absl::MakeSpan(*bytes), bytes}; }

// The group of all ranks of a mesh of one axis.
DeviceGroup GroupOf(int64_t ranks, DeviceId rank) {
  const std::vector<std::string> axes = {"tp"};
  return *DeviceGroup::Create(*Mesh::Create({{"tp", ranks}}), axes, rank);
}

CollectiveCall CallOf(Link* link, const DeviceGroup& group) {
  CollectiveCall call;
  call.link = link;
  call.group = &group;
  call.step = 1;
  call.op = 4;
  call.deadline = absl::Now() + absl::Seconds(60);
  return call;
}

// An element as bits that say something in every type; varied signs and magnitudes, so that the
// order of a sum shows.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

Bytes OperandOf(Dtype dtype, int64_t count, DeviceId rank) {
  const int64_t size = BitsPerElement(dtype) / 8;
  Bytes bytes = MakeBytes(count * size);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(static_cast<uint64_t>(i * 131 + rank + 1));
    const double value = (static_cast<double>(bits % 20011) - 10005) / (1 << (bits >> 60));
    char* at = bytes->data() + i * size;
    if (dtype == Dtype::kF32) {
      const auto typed = static_cast<float>(value);
      std::memcpy(at, &typed, 4);
    } else if (dtype == Dtype::kF64) {
      std::memcpy(at, &value, 8);
    } else if (dtype == Dtype::kF16 || dtype == Dtype::kBF16) {
      const auto small = static_cast<float>(value / 16);
      const uint16_t typed = dtype == Dtype::kF16 ? F32ToF16(small) : F32ToBF16(small);
      std::memcpy(at, &typed, 2);
    } else {
      std::memcpy(at, &bits, static_cast<size_t>(size));
    }
  }
  return bytes;
}

// The plain sum: an element at a time, the tree as it is written down.
template <typename T, typename Load>
T TreeSum(const std::vector<Bytes>& operands, size_t lo, size_t n, const Load& load) {
  if (n == 1) return load(*operands[lo]);
  size_t k = 1;
  while (2 * k < n) k *= 2;
  return static_cast<T>(TreeSum<T>(operands, lo, k, load) +
                        TreeSum<T>(operands, lo + k, n - k, load));
}

template <typename T>
void PlainSum(const std::vector<Bytes>& operands, int64_t count, std::vector<char>& out) {
  for (int64_t i = 0; i < count; ++i) {
    const T sum = TreeSum<T>(operands, 0, operands.size(), [i](const std::vector<char>& operand) {
      T value;
      std::memcpy(&value, operand.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      return value;
    });
    std::memcpy(out.data() + i * static_cast<int64_t>(sizeof(T)), &sum, sizeof(T));
  }
}

void PlainHalfSum(Dtype dtype, const std::vector<Bytes>& operands, int64_t count,
                  std::vector<char>& out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto sum =
        TreeSum<float>(operands, 0, operands.size(), [i, dtype](const std::vector<char>& operand) {
          uint16_t bits;
          std::memcpy(&bits, operand.data() + 2 * i, 2);
          return dtype == Dtype::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
        });
    const uint16_t rounded = dtype == Dtype::kF16 ? F32ToF16(sum) : F32ToBF16(sum);
    std::memcpy(out.data() + 2 * i, &rounded, 2);
  }
}

std::vector<char> PlainSumOf(Dtype dtype, const std::vector<Bytes>& operands, int64_t count) {
  std::vector<char> out(static_cast<size_t>(count * BitsPerElement(dtype) / 8));
  switch (dtype) {
    case Dtype::kF32:
      PlainSum<float>(operands, count, out);
      break;
    case Dtype::kF64:
      PlainSum<double>(operands, count, out);
      break;
    case Dtype::kI8:
    case Dtype::kU8:
      PlainSum<uint8_t>(operands, count, out);
      break;
    case Dtype::kI32:
      PlainSum<uint32_t>(operands, count, out);
      break;
    case Dtype::kI64:
      PlainSum<uint64_t>(operands, count, out);
      break;
    default:
      PlainHalfSum(dtype, operands, count, out);
  }
  return out;
}

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

class PairwiseSweep : public ::testing::TestWithParam<std::tuple<int64_t, Dtype>> {
 protected:
  static constexpr int64_t kCounts[] = {0, 1, 2, 7, 1021, 4095, 4096, 4097};
};

TEST_P(PairwiseSweep, AllReduceGivesTheBitsOfThePlainTreeSum) {
  const auto [ranks, dtype] = GetParam();
  for (const int64_t count : kCounts) {
    // Pieces of 1001 bytes end within elements.
    for (const int64_t piece_bytes : {int64_t{1} << 20, int64_t{1001}}) {
      SCOPED_TRACE(StrCat(count, " elements in pieces of ", piece_bytes));
      std::vector<Bytes> operands, results;
      for (DeviceId rank = 0; rank < ranks; ++rank) {
        operands.push_back(OperandOf(dtype, count, rank));
        results.push_back(MakeBytes(count * BitsPerElement(dtype) / 8));
      }
      InProcessRanks world(ranks, piece_bytes);
      ASSERT_THAT(world.OpenStep(1), IsOk());
      const auto outcomes = world.RunOnAll([&, dtype = dtype, ranks = ranks](DeviceId rank) {
        const DeviceGroup group = GroupOf(ranks, rank);
        const auto index = static_cast<size_t>(rank);
        const auto combiner = CombinerFor(Reduction::kSum, dtype, dtype, ranks);
        if (!combiner.ok()) return combiner.status();
        return PairwiseAllReduce(CallOf(world.link(rank), group), *combiner, Owned(operands[index]),
                                 OwnedMutable(results[index]));
      });
      EXPECT_THAT(outcomes, Each(IsOk()));
      const std::vector<char> expected = PlainSumOf(dtype, operands, count);
      for (const Bytes& result : results) EXPECT_TRUE(*result == expected);
    }
  }
}

TEST_P(PairwiseSweep, ReduceScatterOfUnevenPartsGivesTheBitsOfThePlainTreeSum) {
  const auto [ranks, dtype] = GetParam();
  const int64_t size = BitsPerElement(dtype) / 8;
  for (const int64_t count : kCounts) {
    SCOPED_TRACE(StrCat(count, " elements"));
    // Place p has p+1 shares; what is left over goes to the last.
    std::vector<int64_t> cuts = {0};
    for (int64_t place = 1; place < ranks; ++place) {
      cuts.push_back(count * place * (place + 1) / (ranks * (ranks + 1)));
    }
    cuts.push_back(count);

    std::vector<Bytes> operands, results;
    for (DeviceId rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<size_t>(rank);
      operands.push_back(OperandOf(dtype, count, rank));
      results.push_back(MakeBytes((cuts[index + 1] - cuts[index]) * size));
    }
    InProcessRanks world(ranks);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    const auto outcomes = world.RunOnAll([&, dtype = dtype, ranks = ranks](DeviceId rank) {
      const DeviceGroup group = GroupOf(ranks, rank);
      const auto index = static_cast<size_t>(rank);
      std::vector<OwnedBytes> parts;
      for (size_t place = 0; place + 1 < cuts.size(); ++place) {
        parts.push_back(
            {Owned(operands[index])
                 .bytes.subspan(static_cast<size_t>(cuts[place] * size),
                                static_cast<size_t>((cuts[place + 1] - cuts[place]) * size)),
             operands[index]});
      }
      return PairwiseReduceScatter(CallOf(world.link(rank), group),
                                   *CombinerFor(Reduction::kSum, dtype, dtype, ranks), parts,
                                   absl::MakeSpan(*results[index]));
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
    std::vector<char> together;
    for (const Bytes& result : results) {
      together.insert(together.end(), result->begin(), result->end());
    }
    EXPECT_TRUE(together == PlainSumOf(dtype, operands, count));
  }
}

INSTANTIATE_TEST_SUITE_P(RanksAndTypes, PairwiseSweep,
                         ::testing::Combine(::testing::Range<int64_t>(1, 10),
                                            ::testing::Values(Dtype::kF32, Dtype::kF64, Dtype::kF16,
                                                              Dtype::kBF16, Dtype::kI8, Dtype::kU8,
                                                              Dtype::kI32, Dtype::kI64)),
                         [](const auto& tested) {
                           return StrCat(std::get<0>(tested.param), "Ranks",
                                         DtypeName(std::get<1>(tested.param)));
                         });

TEST(PairwiseTest, AllGatherJoinsUnevenPartsOnEveryRank) {
  constexpr int64_t kRanks = 5;
  const std::vector<int64_t> sizes = {3, 0, 4097, 1, 10};
  std::vector<Bytes> parts;
  std::vector<char> expected;
  std::vector<size_t> begins;
  for (DeviceId rank = 0; rank < kRanks; ++rank) {
    begins.push_back(expected.size());
    parts.push_back(OperandOf(Dtype::kU8, sizes[static_cast<size_t>(rank)], rank));
    expected.insert(expected.end(), parts.back()->begin(), parts.back()->end());
  }
  std::vector<std::vector<char>> results(kRanks, std::vector<char>(expected.size()));
  InProcessRanks world(kRanks, 100);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    auto& result = results[static_cast<size_t>(rank)];
    return PairwiseAllGather(
        CallOf(world.link(rank), group), Owned(parts[static_cast<size_t>(rank)]), sizes,
        [&](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
          std::memcpy(result.data() + begins[static_cast<size_t>(place)] + offset_bytes,
                      bytes.data(), bytes.size());
        });
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
  EXPECT_THAT(results, Each(expected));
}

TEST(PairwiseTest, BroadcastGivesEveryRankTheRootsBytes) {
  constexpr int64_t kRanks = 4;
  const Bytes sent = OperandOf(Dtype::kU8, 1000, 2);
  std::vector<std::vector<char>> results(kRanks, std::vector<char>(1000));
  InProcessRanks world(kRanks, 64);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    return PairwiseBroadcast(CallOf(world.link(rank), group), 2,
                             rank == 2 ? Owned(sent) : OwnedBytes(),
                             absl::MakeSpan(results[static_cast<size_t>(rank)]));
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
  EXPECT_THAT(results, Each(*sent));
}

TEST(PairwiseTest, NoRankLeavesABarrierBeforeAllHaveEntered) {
  constexpr int64_t kRanks = 6;
  std::atomic<int> entered = 0;
  InProcessRanks world(kRanks);
  ASSERT_THAT(world.OpenStep(1), IsOk());
  const auto outcomes = world.RunOnAll([&](DeviceId rank) {
    const DeviceGroup group = GroupOf(kRanks, rank);
    ++entered;
    const absl::Status status = PairwiseBarrier(CallOf(world.link(rank), group));
    EXPECT_EQ(entered, kRanks);
    return status;
  });
  EXPECT_THAT(outcomes, Each(IsOk()));
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
  const std::vector<char> expected = PlainSumOf(Dtype::kF32, operands, kCount);
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
