// Answers of steps: what is kept of them, for whom, and what a repeated request hears.
#include "server/state/step_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(24 * 365 * 50);

v1::ExecuteResponse Sized(size_t bytes, int64_t sequence = 1) {
  v1::ExecuteResponse answer;
  answer.set_sequence(sequence);
  answer.add_outputs()->mutable_literal()->set_data(std::string(bytes, 'x'));
  return answer;
}

class StepMemoryTest : public ::testing::Test {
 protected:
  void Do(const std::string& caller, const std::string& key, size_t bytes, absl::Time now = kNow) {
    ASSERT_THAT(memory_.Begin(caller, key, "f", now), IsOkAndHolds(nullptr));
    memory_.Finish(key, Sized(bytes), now);
  }
  absl::Status Again(const std::string& key, absl::Time now = kNow) {
    return memory_.Begin("", key, "f", now).status();
  }

  StepMemory memory_{
      {.max_bytes = 100'000, .max_bytes_per_caller = 50'000, .max_requests_per_caller = 50}};
};

TEST_F(StepMemoryTest, ARepeatedRequestGetsTheAnswer) {
  ASSERT_THAT(memory_.Begin("ada", "r", "f", kNow), IsOkAndHolds(nullptr));
  const absl::Status runs = Again("r");
  EXPECT_THAT(runs, StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(RetryDelayOf(runs).has_value());
  memory_.Finish("r", Sized(8, 42), kNow);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StepMemory::Answer answer,
                                 memory_.Begin("ada", "r", "f", kNow));
  EXPECT_EQ(answer->sequence(), 42);
  EXPECT_THAT(memory_.Begin("ada", "r", "g", kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(StepMemoryTest, AStepThatFailedMayRunAgain) {
  ASSERT_THAT(memory_.Begin("ada", "r", "f", kNow), IsOkAndHolds(nullptr));
  memory_.Abandon("r");
  EXPECT_THAT(memory_.Begin("ada", "r", "f", kNow), IsOkAndHolds(nullptr));
}

TEST_F(StepMemoryTest, AStepWhoseAnswerWasDroppedIsNotRunAgain) {
  for (int i = 0; i < 8; ++i) {
    Do("ada", StrCat(i), 10'000);
  }
  EXPECT_LE(memory_.size_bytes(), 50'000);
  EXPECT_THAT(Again("0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kRequestIdReused));
  EXPECT_THAT(Again("7"), IsOk());
}

TEST_F(StepMemoryTest, ACallerDropsOnlyItsOwnAnswers) {
  Do("bob", "bob's", 10'000);
  for (int i = 0; i < 50; ++i) {
    Do("ada", StrCat(i), 10'000);
  }
  EXPECT_THAT(Again("bob's"), IsOk());
}

TEST_F(StepMemoryTest, OverTheBoundOfAllTheCallerWithTheMostGivesWay) {
  Do("bob", "bob's", 1'000);
  for (const std::string caller : {"ada", "eve", "kay"}) {
    for (int i = 0; i < 4; ++i) {
      Do(caller, StrCat(caller, i), 10'000);
    }
  }
  EXPECT_LE(memory_.size_bytes(), 100'000);
  EXPECT_THAT(Again("bob's"), IsOk());
}

TEST_F(StepMemoryTest, RequestsAreForgottenByTheirNumberAndAge) {
  for (int i = 0; i < 51; ++i) {
    Do("ada", StrCat(i), 8);
  }
  EXPECT_THAT(memory_.Begin("ada", "0", "g", kNow), IsOkAndHolds(nullptr));
  EXPECT_THAT(Again("1"), IsOk());
  EXPECT_THAT(memory_.Begin("ada", "1", "g", kNow + absl::Minutes(11)), IsOkAndHolds(nullptr));
  EXPECT_EQ(memory_.size_bytes(), 0);
}

}  // namespace
}  // namespace shardmesh::server
