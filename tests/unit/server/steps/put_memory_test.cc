// Puts by request: repeated ones, those of other contents, those that ended.
#include "server/steps/put_memory.h"
#include "status/fact_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

class PutMemoryTest : public ::testing::Test {
 protected:
  static std::shared_ptr<BegunPut> Put(const std::string& transfer_id) {
    auto put = std::make_shared<BegunPut>();
    put->transfer_id = transfer_id;
    return put;
  }

  test::FakeClock clock_;
  PutMemory memory_{&clock_};
};

TEST_F(PutMemoryTest, ARepeatedRequestGetsThePutThatLives) {
  EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  EXPECT_THAT(memory_.Find("r", "f"), StatusIs(absl::StatusCode::kAborted));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(put));
  EXPECT_THAT(memory_.Find("s", "f"), IsOkAndHolds(nullptr));
}

TEST_F(PutMemoryTest, TheSameIdWithOtherTensorsIsRefused) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  EXPECT_THAT(memory_.Find("r", "g"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  EXPECT_THAT(memory_.Find("r", "g"),
              test::CarriesFacts(Reason::kRequestIdReused, {{fact::kValue, "r"}}));
}

TEST_F(PutMemoryTest, ARefusedPutIsForgottenAtOnce) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  memory_.Began("r", nullptr);
  EXPECT_THAT(memory_.Find("r", "g"), IsOkAndHolds(nullptr));
}

TEST_F(PutMemoryTest, OfAPutThatEndedNothingIsKeptButThatItWas) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  std::shared_ptr<BegunPut> put = Put("t");
  const std::weak_ptr<BegunPut> kept = put;
  memory_.Began("r", put);
  memory_.Delivered("r", false);
  put.reset();  // as the transfer does when it ends
  EXPECT_TRUE(kept.expired());
  EXPECT_THAT(memory_.Find("r", "f"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kRequestIdReused));
  clock_.Advance(PutMemory::kRememberFor);
  EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
}

TEST_F(PutMemoryTest, AnAnswerThatNobodyGotAbortsThePut) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  EXPECT_TRUE(memory_.NotDelivered("r"));
  EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
}

TEST_F(PutMemoryTest, AnAnswerThatFailsLateLeavesThePutToTheRequestThatHasIt) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(put));
  EXPECT_FALSE(memory_.NotDelivered("r"));  // the first: the second is being sent it
  memory_.Delivered("r", false);
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(put));
  EXPECT_FALSE(memory_.NotDelivered("r"));  // a third, after the second has it
}

TEST_F(PutMemoryTest, APutGoesWithTheLastCallThatHoldsIt) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  memory_.Delivered("r", true);
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(put));
  EXPECT_FALSE(memory_.Release("r"));  // the second is being sent it
  memory_.Delivered("r", true);
  EXPECT_TRUE(memory_.Release("r"));
  EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
}

TEST_F(PutMemoryTest, PutsThatLiveAreNotForgottenForTheirAge) {
  ASSERT_THAT(memory_.Find("r", "f"), IsOkAndHolds(nullptr));
  const BegunPutPtr put = Put("t");
  memory_.Began("r", put);
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(PutMemory::kRememberFor);
    EXPECT_THAT(memory_.Find("r", "f"), IsOkAndHolds(put));
  }
}

}  // namespace
}  // namespace shardmesh::server
