// The error about ranks with too little memory: which ranks it names, and the memory that fits.
#include "server/reshard/short_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Each rank has 100 of 1,000 bytes left.
std::vector<ReshardMemoryNeed> Needing(const std::vector<int64_t>& need_bytes) {
  std::vector<ReshardMemoryNeed> memory;
  for (size_t rank = 0; rank < need_bytes.size(); ++rank) {
    memory.push_back({.mesh_id = "m",
                      .rank = static_cast<int64_t>(rank),
                      .identity = StrCat("w", rank),
                      .have_bytes = 100,
                      .capacity_bytes = 1'000,
                      .need_bytes = need_bytes[rank]});
  }
  return memory;
}

TEST(ShortRanksTest, NamesEachRankThatHasLessThanItNeeds) {
  const std::vector<ReshardMemoryNeed> short_ranks = ShortRanks(Needing({101, 100, 0, 250}));
  ASSERT_THAT(short_ranks, SizeIs(2));
  const absl::Status error = TooLittleMemory(short_ranks, "the reshard", "--plan-only", "do less");
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(
      error.message(),
      "the reshard lacks memory on 2 ranks (--plan-only lists them), and nothing was moved; do "
      "less\n"
      "  rank 0 of the mesh \"m\" (worker \"w0\") has 100 B of 1000 B left, and needs 101 B\n"
      "  rank 3 of the mesh \"m\" (worker \"w3\") has 100 B of 1000 B left, and needs 250 B");
  EXPECT_EQ(FactOf(error, fact::kHave), "100");
  EXPECT_EQ(FactOf(error, fact::kNeed), "101");
  EXPECT_EQ(FactOf(error, fact::kRank), "0,3");
  EXPECT_EQ(FactOf(error, fact::kIdentity), "w0,w3");
  EXPECT_THAT(ShortRanks(Needing({0, 100})), SizeIs(0));
}

TEST(ShortRanksTest, SaysWhatHoldsAllMemory) {
  std::vector<ReshardMemoryNeed> memory = Needing({101, 0});
  for (ReshardMemoryNeed& each : memory) each.have_bytes = 0;
  const std::vector<ReshardMemoryNeed> short_ranks = ShortRanks(memory);
  ASSERT_THAT(short_ranks, SizeIs(1)) << "nothing fits into nothing";
  EXPECT_THAT(TooLittleMemory(short_ranks, "the reshard", "--plan-only", "do less").message(),
              HasSubstr("do less (arrays that readers still hold count, even if they have left "
                        "memory: retry when the readers have ended)\n  rank 0 of the mesh \"m\" "
                        "(worker \"w0\") has 0 B of 1000 B left, and needs 101 B"));
}

TEST(ShortRanksTest, NamesSixteenRanksAndCountsTheOthers) {
  const auto message_for = [](size_t ranks) {
    const std::vector<ReshardMemoryNeed> memory = Needing(std::vector<int64_t>(ranks, 200));
    return std::string(TooLittleMemory(ShortRanks(memory), "it", "--plan-only", "x").message());
  };
  EXPECT_THAT(message_for(16), HasSubstr("rank 15 of"));
  EXPECT_THAT(message_for(16), Not(HasSubstr(" more")));
  EXPECT_THAT(message_for(17), HasSubstr("\n  and 1 more"));
  EXPECT_THAT(message_for(1'000), Not(HasSubstr("rank 16 of")));
  EXPECT_THAT(message_for(1'000), HasSubstr("lacks memory on 1000 ranks"));
  EXPECT_THAT(message_for(1'000), HasSubstr("\n  and 984 more"));
}

TEST(ShortRanksTest, KeepsTheAdviceInAMessageThatIsCut) {
  const std::vector<ReshardMemoryNeed> memory = Needing(std::vector<int64_t>(16, 200));
  const absl::Status error = TooLittleMemory(ShortRanks(memory), "it", "--plan-only", "do less");
  ASSERT_GT(error.message().size(), rpc::kMaxStatusMessageBytes);
  EXPECT_THAT(rpc::WireMessage(error), HasSubstr("do less"));
}

TEST(ShortRanksTest, TheFlagIsEnoughForEachRankAndForTheMessagesOfPeers) {
  constexpr int64_t kMebi = int64_t{1} << 20;
  ReshardMemoryNeed rank{.have_bytes = 0, .capacity_bytes = 8 * kMebi, .need_bytes = 7 * kMebi};
  // The messages of peers may take an eighth of the 8 MiB more. The flag is in whole MiB.
  EXPECT_EQ(MemoryFlagFor({rank}), "--memory 17MiB");
  ReshardMemoryNeed larger = rank;
  larger.capacity_bytes = 32 * kMebi;
  larger.need_bytes = 1;
  EXPECT_EQ(MemoryFlagFor({rank, larger}), "--memory 33MiB");
  rank.need_bytes = std::numeric_limits<int64_t>::max();
  rank.have_bytes = -5;
  EXPECT_EQ(MemoryFlagFor({rank}), "--memory 8796093022207MiB");
}

}  // namespace
}  // namespace shardmesh::server
