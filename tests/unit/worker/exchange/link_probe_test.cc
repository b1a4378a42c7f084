// Probes between two ranks of one process: figures, refusals, ends.
#include "worker/exchange/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "status/reason.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

OwnedBytes Numbers(const std::vector<int64_t>& numbers) {
  auto owner = std::make_shared<const std::vector<int64_t>>(numbers);
  return {{reinterpret_cast<const char*>(owner->data()), owner->size() * sizeof(int64_t)}, owner};
}

class LinkProbeTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(ranks_.OpenStep(kProbeStep), IsOk()); }

  MemoryBudget budget_{int64_t{1} << 30};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  InProcessRanks ranks_{2};
};

TEST_F(LinkProbeTest, FindsLatencyAndBandwidthAndGivesTheMemoryBack) {
  ProbeFigures figures;
  const auto results = ranks_.RunOnAll([&](DeviceId rank) -> absl::Status {
    absl::StatusOr<ProbeMemory> memory = ProbeMemory::Allocate(*pool_);
    if (!memory.ok()) return memory.status();
    if (rank == 1) return AnswerProbe(*ranks_.link(1), 0, 3, &*memory, Soon());
    absl::StatusOr<ProbeFigures> led = LeadProbe(*ranks_.link(0), 1, 3, *memory, Soon());
    if (led.ok()) figures = *led;
    return led.status();
  });
  EXPECT_THAT(results, testing::Each(IsOk()));
  EXPECT_GT(figures.latency, absl::ZeroDuration());
  EXPECT_LT(figures.latency, absl::Seconds(1));
  EXPECT_GT(figures.bytes_per_second, 1e6);
  EXPECT_EQ(ranks_.mailbox(0).held_bytes(), 0);
  EXPECT_EQ(ranks_.mailbox(1).held_bytes(), 0);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(LinkProbeTest, TakesASixteenthOfWhatIsFree) {
  struct Case {
    int64_t limit_bytes;
    int64_t expected_bytes;  // 0: none
  };
  const std::vector<Case> cases = {
      {int64_t{1} << 30, 4 << 20}, {64 << 20, 2 << 20}, {(64 << 20) - 1, (2 << 20) - (64 << 10)},
      {2 << 20, 64 << 10},         {(2 << 20) - 1, 0},  {0, 0}};
  for (const Case& c : cases) {
    MemoryBudget budget(c.limit_bytes);
    const auto pool = BufferPool::Create(&budget, 0);
    const auto memory = ProbeMemory::Allocate(*pool);
    if (c.expected_bytes > 0) {
      ASSERT_THAT(memory, IsOk()) << c.limit_bytes;
      EXPECT_EQ(memory->size_bytes(), c.expected_bytes) << c.limit_bytes;
      EXPECT_LE(budget.used_bytes(), c.limit_bytes / 16);
    } else {
      EXPECT_THAT(memory, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    }
  }
}

TEST_F(LinkProbeTest, APeerWithoutMemoryIsNamed) {
  auto memory = ProbeMemory::Allocate(*pool_);
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT(AnswerProbe(*ranks_.link(1), 0, 1, nullptr, Soon()), IsOk());
  const auto led = LeadProbe(*ranks_.link(0), 1, 1, *memory, Soon());
  EXPECT_THAT(led, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(led.status().message()), HasSubstr("rank 1 has no memory"));
}

TEST_F(LinkProbeTest, WhoeverHearsNothingGivesUpAtItsDeadline) {
  auto memory = ProbeMemory::Allocate(*pool_);
  ASSERT_THAT(memory, IsOk());
  EXPECT_THAT(LeadProbe(*ranks_.link(0), 1, 1, *memory, absl::Now() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(AnswerProbe(*ranks_.link(1), 0, 2, &*memory, absl::Now() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(LinkProbeTest, RefusesOffersAndTrialsThatMakeNoSense) {
  auto memory = ProbeMemory::Allocate(*pool_);
  ASSERT_THAT(memory, IsOk());
  int64_t op = 1;
  for (const int64_t offer : {int64_t{-1}, int64_t{1}, (int64_t{4} << 20) + 1}) {
    ASSERT_THAT(ranks_.link(1)->Send(0, *Tag::Create(kProbeStep, op, 0), Numbers({offer})), IsOk());
    EXPECT_THAT(LeadProbe(*ranks_.link(0), 1, op, *memory, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << offer;
    ++op;
  }
  const std::vector<std::vector<int64_t>> trials = {
      {-1, 8}, {65, 8}, {1, 0}, {1, -8}, {1, memory->size_bytes() + 1}};
  for (const std::vector<int64_t>& trial : trials) {
    ASSERT_THAT(ranks_.link(0)->Send(1, *Tag::Create(kProbeStep, op, 1), Numbers(trial)), IsOk());
    EXPECT_THAT(AnswerProbe(*ranks_.link(1), 0, op, &*memory, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << trial[0] << " of " << trial[1];
    ++op;
  }
}

TEST_F(LinkProbeTest, AnAbortEndsBothEnds) {
  const auto results = ranks_.RunOnAll([&](DeviceId rank) -> absl::Status {
    absl::StatusOr<ProbeMemory> memory = ProbeMemory::Allocate(*pool_);
    if (!memory.ok()) return memory.status();
    if (rank == 0) {
      return LeadProbe(*ranks_.link(0), 1, 1, *memory, Soon()).status();
    }
    for (DeviceId each = 0; each < 2; ++each) {
      ranks_.mailbox(each).Abort(kProbeStep, absl::UnavailableError("the connection broke"));
    }
    return AnswerProbe(*ranks_.link(1), 0, 1, &*memory, Soon());
  });
  EXPECT_THAT(results, testing::Each(StatusIs(absl::StatusCode::kUnavailable)));
}

}  // namespace
}  // namespace shardmesh::worker
