// Which algorithms collectives have, what they cost, and which one is chosen.
#include "program/collective_choice.h"

#include <limits>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"

namespace shardmesh {
namespace {

using Algorithm = CollectiveAlgorithm;
using Kind = CollectiveKind;
using ::testing::HasSubstr;

constexpr auto kReproducible = CollectiveOrder::kReproducible;
constexpr auto kFastest = CollectiveOrder::kFastest;

Algorithm Choose(Kind kind, int64_t ranks, int64_t bytes, CollectiveOrder order = kReproducible,
                 const LinkCost& link = {}) {
  return ChooseAlgorithm(kind, {.ranks = ranks, .bytes = bytes, .partial_bytes = bytes}, order,
                         link);
}

TEST(CollectiveNamesTest, NameEachKindAndAlgorithmOnce) {
  std::set<std::string_view> names;
  for (const Kind kind : AllCollectiveKinds()) names.insert(CollectiveKindName(kind));
  EXPECT_EQ(names.size(), 10u);
  EXPECT_EQ(CollectiveKindName(Kind::kReduceScatter), "reduce-scatter");
  EXPECT_EQ(CollectiveKindName(Kind::kBarrier), "barrier");
  names.clear();
  for (const Algorithm algorithm : AllCollectiveAlgorithms()) {
    names.insert(CollectiveAlgorithmName(algorithm));
  }
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(CollectiveAlgorithmName(Algorithm::kAuto), "auto");
  EXPECT_EQ(CollectiveAlgorithmName(Algorithm::kChain), "chain");
}

TEST(CollectiveChoiceTest, SmallReductionsGoInFewRounds) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    EXPECT_EQ(Choose(Kind::kAllReduce, ranks, 8), Algorithm::kDirect) << ranks;
    EXPECT_EQ(Choose(Kind::kAllReduce, ranks, 1024), Algorithm::kDirect) << ranks;
    EXPECT_EQ(Choose(Kind::kReduce, ranks, 8), Algorithm::kDirect) << ranks;
  }
  for (const int64_t ranks : {16, 64, 1000}) {
    EXPECT_EQ(Choose(Kind::kAllReduce, ranks, 8), Algorithm::kDoubling) << ranks;
    EXPECT_EQ(Choose(Kind::kAllGather, ranks, 8), Algorithm::kDoubling) << ranks;
    EXPECT_EQ(Choose(Kind::kBarrier, ranks, 0), Algorithm::kDoubling) << ranks;
    EXPECT_EQ(Choose(Kind::kReduce, ranks, 8), Algorithm::kBinomial) << ranks;
    EXPECT_EQ(Choose(Kind::kBroadcast, ranks, 8), Algorithm::kBinomial) << ranks;
  }
}

TEST(CollectiveChoiceTest, LargeReductionsOfFewRanksGoPairwise) {
  for (const int64_t ranks : {3, 4, 8}) {
    for (const CollectiveOrder order : {kReproducible, kFastest}) {
      EXPECT_EQ(Choose(Kind::kAllReduce, ranks, 16 << 20, order), Algorithm::kPairwise) << ranks;
      EXPECT_EQ(Choose(Kind::kReduceScatter, ranks, 16 << 20, order), Algorithm::kPairwise)
          << ranks;
    }
    EXPECT_EQ(Choose(Kind::kReduce, ranks, 16 << 20), Algorithm::kPairwise) << ranks;
    EXPECT_EQ(Choose(Kind::kBroadcast, ranks, 16 << 20), Algorithm::kChain) << ranks;
  }
}

TEST(CollectiveChoiceTest, LargeReductionsOfManyRanksGoAroundARingWhereTheOrderAllows) {
  EXPECT_EQ(Choose(Kind::kAllReduce, 64, 64 << 20, kFastest), Algorithm::kRing);
  EXPECT_EQ(Choose(Kind::kReduceScatter, 64, 64 << 20, kFastest), Algorithm::kRing);
  EXPECT_EQ(Choose(Kind::kAllGather, 64, 64 << 20), Algorithm::kRing) << "which sums nothing";
  EXPECT_EQ(Choose(Kind::kReduceScatter, 64, 64 << 20), Algorithm::kPairwise);
  EXPECT_EQ(Choose(Kind::kAllReduce, 64, 64 << 20), Algorithm::kHalving);
  EXPECT_EQ(Choose(Kind::kAllReduce, 64, 1 << 20, kFastest), Algorithm::kHalving)
      << "where rounds cost more than the crowd";
}

TEST(CollectiveChoiceTest, FollowsTheLink) {
  EXPECT_EQ(Choose(Kind::kAllReduce, 4, 256 << 10), Algorithm::kPairwise);
  const LinkCost far = {.latency_seconds = 50e-3};
  EXPECT_EQ(Choose(Kind::kAllReduce, 4, 256 << 10, kReproducible, far), Algorithm::kDirect);
}

TEST(CollectiveChoiceTest, LinksAreAlikeUnlessAFigureDiffersByHalf) {
  const LinkCost link;
  EXPECT_TRUE(AreAlike(link, link));
  for (double LinkCost::*const figure : {&LinkCost::latency_seconds, &LinkCost::seconds_per_byte,
                                         &LinkCost::seconds_per_byte_combined}) {
    for (const auto& [factor, alike] :
         {std::pair{1.4, true}, {1 / 1.4, true}, {1.6, false}, {1 / 1.6, false}}) {
      LinkCost other = link;
      other.*figure *= factor;
      EXPECT_EQ(AreAlike(link, other), alike) << factor;
      EXPECT_EQ(AreAlike(other, link), alike) << factor;
    }
  }
}

TEST(CollectiveChoiceTest, WhereMemoryIsSharedTheRootOfABroadcastSendsToAllAtOnce) {
  LinkCost link;
  EXPECT_EQ(Choose(Kind::kBroadcast, 4, 16 << 20, kReproducible, link), Algorithm::kChain);
  link.shares_memory = true;
  EXPECT_FALSE(AreAlike(link, LinkCost()));
  for (const int64_t bytes : {8, 64 << 10, 1 << 20, 16 << 20}) {
    EXPECT_EQ(Choose(Kind::kBroadcast, 4, bytes, kReproducible, link), Algorithm::kPairwise);
  }
}

TEST(CollectiveChoiceTest, NeverChoosesWhatDoesNotFit) {
  for (const Kind kind : AllCollectiveKinds()) {
    for (const CollectiveOrder order : {kReproducible, kFastest}) {
      for (const int64_t ranks : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{1} << 31}) {
        for (const int64_t bytes :
             {int64_t{0}, int64_t{1}, int64_t{1} << 30, std::numeric_limits<int64_t>::max()}) {
          const Algorithm chosen = Choose(kind, ranks, bytes, order);
          EXPECT_TRUE(CheckAlgorithm(kind, chosen, order).ok());
          EXPECT_GE(CostOf(kind, chosen, {ranks, bytes, bytes}).sent_bytes, 0);
        }
      }
    }
  }
}

TEST(CollectiveChoiceTest, CostsAreThoseOfTheTable) {
  const CollectiveLoad load = {.ranks = 5, .bytes = 1000, .partial_bytes = 2000};
  const auto cost = [&](Kind kind, Algorithm algorithm) { return CostOf(kind, algorithm, load); };
  EXPECT_EQ(cost(Kind::kAllReduce, Algorithm::kPairwise),
            (CollectiveCost{2, 8, 4, 1600, 1600, 800, 1600}));
  EXPECT_EQ(cost(Kind::kAllReduce, Algorithm::kDirect),
            (CollectiveCost{1, 4, 4, 4000, 4000, 4000, 4000}));
  EXPECT_EQ(cost(Kind::kAllReduce, Algorithm::kDoubling),
            (CollectiveCost{3, 3, 2, 6000, 6000, 3000, 6000}));
  EXPECT_EQ(cost(Kind::kAllReduce, Algorithm::kHalving),
            (CollectiveCost{6, 6, 2, 1900, 1900, 800, 1900}));
  EXPECT_EQ(cost(Kind::kAllReduce, Algorithm::kRing),
            (CollectiveCost{8, 8, 1, 2400, 2400, 800, 2400}));
  EXPECT_EQ(cost(Kind::kReduceScatter, Algorithm::kRing),
            (CollectiveCost{4, 4, 1, 1600, 1600, 800, 1600}));
  EXPECT_EQ(cost(Kind::kAllGather, Algorithm::kDoubling),
            (CollectiveCost{3, 3, 2, 4000, 4000, 0, 4000}));
  EXPECT_EQ(cost(Kind::kBroadcast, Algorithm::kPairwise),
            (CollectiveCost{1, 4, 1, 4000, 4000, 0, 1000}));
  EXPECT_EQ(cost(Kind::kBroadcast, Algorithm::kChain),
            (CollectiveCost{4, 4, 1, 1000, 4000, 0, 4000}));
  EXPECT_EQ(cost(Kind::kReduce, Algorithm::kPairwise),
            (CollectiveCost{2, 8, 4, 1000, 1600, 800, 1600}));
  EXPECT_EQ(cost(Kind::kReduce, Algorithm::kBinomial),
            (CollectiveCost{3, 3, 2, 2000, 6000, 3000, 6000}));
  EXPECT_EQ(cost(Kind::kGather, Algorithm::kPairwise),
            (CollectiveCost{1, 4, 4, 1000, 4000, 0, 4000}));
  EXPECT_EQ(cost(Kind::kScatter, Algorithm::kPairwise),
            (CollectiveCost{1, 4, 1, 800, 800, 0, 200}));
  EXPECT_EQ(CostOf(Kind::kAllReduce, Algorithm::kRing, {.ranks = 1, .bytes = 1000}),
            CollectiveCost());
}

TEST(CollectiveChoiceTest, ARefusedAlgorithmNamesThoseThatFit) {
  for (const Kind kind : AllCollectiveKinds()) {
    const absl::Status status = CheckAlgorithm(kind, Algorithm::kAuto, kReproducible);
    EXPECT_EQ(ReasonOf(status), Reason::kBadField);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("is not chosen yet; those that fit: pairw"));
    for (const Algorithm algorithm : AlgorithmsOf(kind)) {
      EXPECT_TRUE(CheckAlgorithm(kind, algorithm, kFastest).ok());
      EXPECT_EQ(CheckAlgorithm(kind, algorithm, kReproducible).ok(),
                algorithm != Algorithm::kRing || !IsReduction(kind));
    }
  }
  EXPECT_THAT(
      std::string(CheckAlgorithm(Kind::kBroadcast, Algorithm::kHalving, kFastest).message()),
      HasSubstr("broadcast has no algorithm \"halving\"; those that fit: pairwise, binomial, "
                "chain"));
}

TEST(CollectiveChoiceTest, APreferredAlgorithmIsChosenWhereTheOrderAllowsIt) {
  const auto preferred = ParsePreferredAlgorithms("all-reduce=ring,broadcast=chain,");
  ASSERT_TRUE(preferred.ok()) << preferred.status();
  const CollectiveLoad load = {.ranks = 4, .bytes = 8, .partial_bytes = 8};
  const auto chosen = [&](Kind kind, CollectiveOrder order) {
    return ChooseAlgorithm(kind, load, order, {}, *preferred);
  };
  EXPECT_EQ(chosen(Kind::kAllReduce, kFastest), Algorithm::kRing);
  EXPECT_EQ(chosen(Kind::kAllReduce, kReproducible),
            ChooseAlgorithm(Kind::kAllReduce, load, kReproducible));
  EXPECT_EQ(chosen(Kind::kBroadcast, kReproducible), Algorithm::kChain);
  EXPECT_EQ(chosen(Kind::kReduce, kReproducible),
            ChooseAlgorithm(Kind::kReduce, load, kReproducible));
  for (const auto& [text, why] :
       {std::pair("all-reduce", "\"all-reduce\" is not KIND=ALGORITHM"),
        std::pair("all-reduce=ring=x", "\"all-reduce=ring=x\" is not KIND=ALGORITHM"),
        std::pair("allreduce=ring", "no collective \"allreduce\"; there are all-reduce, "),
        std::pair("scatter=ring", "scatter has no algorithm \"ring\"; there are pairwise"),
        std::pair("reduce=auto", "reduce has no algorithm \"auto\"; there are pairwise, direct"),
        std::pair("reduce=direct,reduce=direct", "reduce is given twice")}) {
    const absl::Status refused = ParsePreferredAlgorithms(text).status();
    EXPECT_EQ(ReasonOf(refused), Reason::kBadField) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
  EXPECT_TRUE(ParsePreferredAlgorithms("")->empty());
}

}  // namespace
}  // namespace shardmesh
