// RequestIndex: repeated requests, their answers, and the order in which these are forgotten.
#include "server/state/request_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::IsNull;
using ::testing::NotNull;

constexpr absl::Duration kRememberFor = absl::Minutes(10);

class RequestIndexTest : public ::testing::Test {
 protected:
  using Index = RequestIndex<std::string>;

  // The first request with this key, which is to be the first, and its answer.
  void Answer(const std::string& caller, const std::string& key, int64_t bytes = 1) {
    const auto begun = index_.Begin(caller, key, "f");
    ASSERT_THAT(begun, IsOk());
    ASSERT_THAT(*begun, IsNull()) << key << " is known";
    ASSERT_THAT(index_.Finish(key, StrCat("answer to ", key), clock_.Now() + kRememberFor, bytes),
                NotNull());
  }
  // As the memories do before each request.
  void ForgetExpired() {
    while (index_.next_expiry() <= clock_.Now()) index_.ForgetOldest();
  }
  std::string Find(std::string_view key) const {
    const Index::Request* const found = index_.Find(key);
    return found == nullptr ? "nothing" : found->answer;
  }

  test::FakeClock clock_;
  Index index_{{.reused = "$0 was used", .running = "$0 runs", .python_type = "ValueError"}};
};

TEST_F(RequestIndexTest, ARepeatedRequestGetsTheFirstAnswer) {
  Answer("ada", "r");
  const auto again = index_.Begin("ada", "r", "f");
  ASSERT_THAT(again, IsOk());
  ASSERT_THAT(*again, NotNull());
  EXPECT_EQ((*again)->answer, "answer to r");
  EXPECT_EQ((*again)->caller, "ada");
  EXPECT_EQ((*again)->expires, clock_.Now() + kRememberFor);
}

TEST_F(RequestIndexTest, ARequestWhoseFirstStillRunsIsToTryAgain) {
  const std::string key = RequestKey("ada", "Move", "r");
  ASSERT_THAT(index_.Begin("ada", key, "f"), IsOk());
  EXPECT_EQ(Find(key), "nothing");
  EXPECT_THAT(index_.FindRunning(key), NotNull());
  const absl::Status runs = index_.Begin("ada", key, "f").status();
  EXPECT_THAT(runs, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(runs.message(), "r runs");
  EXPECT_EQ(RetryDelayOf(runs), absl::Milliseconds(100));
  ASSERT_THAT(index_.Finish(key, "done", clock_.Now() + kRememberFor, 1), NotNull());
  EXPECT_THAT(index_.FindRunning(key), IsNull());
  EXPECT_EQ(Find(key), "done");
}

TEST_F(RequestIndexTest, TheSameIdWithOtherContentIsRefusedWhetherTheFirstRunsOrIsDone) {
  const std::string key = RequestKey("ada", "Move", "a/b");
  ASSERT_THAT(index_.Begin("ada", key, "f"), IsOk());
  const auto expect_refused = [&] {
    const absl::Status reused = index_.Begin("ada", key, "g").status();
    EXPECT_THAT(reused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
    EXPECT_THAT(reused, CarriesFacts(Reason::kRequestIdReused, {{fact::kValue, "a/b"}}));
    EXPECT_EQ(reused.message(), "a/b was used");
    EXPECT_EQ(PythonTypeOf(reused), "ValueError");
  };
  expect_refused();
  index_.Finish(key, "done", clock_.Now() + kRememberFor, 1);
  expect_refused();
  EXPECT_EQ(Find(key), "done");
}

TEST_F(RequestIndexTest, ARequestThatFailedIsForgottenAndTheNextIsTheFirstAgain) {
  ASSERT_THAT(index_.Begin("ada", "r", "f"), IsOk());
  index_.Forget("r");
  index_.Forget("never begun");
  EXPECT_THAT(index_.Finish("r", "late", clock_.Now(), 1), IsNull());
  EXPECT_EQ(index_.size(), 0);
  Answer("ada", "r");
  EXPECT_THAT(index_.Finish("r", "twice", clock_.Now(), 1), IsNull());
  EXPECT_EQ(Find("r"), "answer to r");
}

TEST_F(RequestIndexTest, AnswersExpireByTheClockAndRequestsThatRunDoNot) {
  ASSERT_THAT(index_.Begin("ada", "runs", "f"), IsOk());
  EXPECT_EQ(index_.next_expiry(), absl::InfiniteFuture());
  Answer("ada", "a");
  clock_.Advance(absl::Minutes(1));
  Answer("bob", "b");
  clock_.Advance(absl::Minutes(9) - absl::Nanoseconds(1));
  ForgetExpired();
  EXPECT_EQ(Find("a"), "answer to a");
  clock_.Advance(absl::Nanoseconds(1));
  ForgetExpired();
  EXPECT_EQ(Find("a"), "nothing");
  EXPECT_EQ(Find("b"), "answer to b");
  clock_.Advance(absl::Hours(1));
  ForgetExpired();
  EXPECT_EQ(index_.answers(), 0);
  EXPECT_THAT(index_.Begin("ada", "runs", "f"), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(RequestIndexTest, ForgetsTheOldestOfAllOrOfACaller) {
  // Finished at one time, and not in the order of their keys.
  Answer("bob", "9");
  Answer("ada", "5");
  Answer("ada", "1");
  Answer("bob", "2");
  EXPECT_EQ(index_.ForgetOldestOf("ada"), "5");
  EXPECT_EQ(index_.ForgetOldest(), "9");
  EXPECT_EQ(index_.ForgetOldest(), "1");
  EXPECT_EQ(index_.ForgetOldestOf("bob"), "2");
  EXPECT_EQ(index_.size(), 0);
}

TEST_F(RequestIndexTest, TheAnswerThatExpiresFirstIsTheOldestWhicheverWasFinishedFirst) {
  ASSERT_THAT(index_.Begin("ada", "a", "f"), IsOk());
  ASSERT_THAT(index_.Begin("ada", "b", "f"), IsOk());
  index_.Finish("b", "", clock_.Now() + absl::Minutes(2), 1);
  index_.Finish("a", "", clock_.Now() + absl::Minutes(1), 1);
  EXPECT_EQ(index_.ForgetOldest(), "a");
}

TEST_F(RequestIndexTest, CountsAnswersAndBytesOfEachCallerAndOfAll) {
  Answer("ada", "a", 10);
  Answer("ada", "b", 20);
  Answer("bob", "c", 25);
  ASSERT_THAT(index_.Begin("ada", "runs", "f"), IsOk());
  EXPECT_EQ(index_.size(), 4);
  EXPECT_EQ(index_.answers(), 3);
  EXPECT_EQ(index_.bytes(), 55);
  EXPECT_EQ(index_.UsageOf("ada").answers, 2);
  EXPECT_EQ(index_.UsageOf("ada").bytes, 30);
  EXPECT_EQ(index_.UsageOf("eve").answers, 0);
  EXPECT_EQ(index_.HeaviestCaller(), "ada");
  index_.Forget("a");
  EXPECT_EQ(index_.UsageOf("ada").bytes, 20);
  EXPECT_EQ(index_.HeaviestCaller(), "bob");
  index_.Forget("b");
  index_.Forget("c");
  EXPECT_EQ(index_.bytes(), 0);
  EXPECT_EQ(index_.UsageOf("bob").answers, 0);
}

TEST_F(RequestIndexTest, ADroppedAnswerHasNoBytesAndItsRequestStaysKnown) {
  Answer("ada", "a", 10);
  Answer("ada", "b", 20);
  EXPECT_TRUE(index_.DropOldestOf("ada"));
  EXPECT_EQ(index_.bytes(), 20);
  EXPECT_EQ(index_.UsageOf("ada").answers, 2);
  EXPECT_EQ(Find("a"), "");
  EXPECT_EQ(Find("b"), "answer to b");
  EXPECT_THAT(index_.Begin("ada", "a", "g"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  EXPECT_TRUE(index_.DropOldestOf("ada"));
  EXPECT_FALSE(index_.DropOldestOf("ada"));
  EXPECT_FALSE(index_.DropOldestOf("eve"));
  Answer("ada", "c", 30);
  EXPECT_EQ(index_.ForgetOldestOf("ada"), "a");
  EXPECT_EQ(index_.ForgetOldest(), "b");
  EXPECT_EQ(index_.bytes(), 30);
}

TEST_F(RequestIndexTest, AnswersThatLiveStayAndOthersGoWhenTheyExpireOrAreTooMany) {
  for (int i = 0; i < 8; ++i) Answer("", StrCat(i));
  const auto is_even = [](const std::string& answer) { return (answer.back() - '0') % 2 == 0; };
  const auto forget = [&](int64_t most) {
    for (int i = 0; i < 8; ++i) {
      index_.ForgetEnded(clock_.Now(), most, clock_.Now() + kRememberFor, is_even);
    }
  };
  forget(8);
  EXPECT_EQ(index_.size(), 8);
  forget(6);
  EXPECT_EQ(index_.size(), 6);
  EXPECT_EQ(Find("1"), "nothing");
  EXPECT_EQ(Find("3"), "nothing");
  clock_.Advance(kRememberFor);
  forget(8);
  EXPECT_EQ(index_.size(), 4);
  EXPECT_EQ(Find("6"), "answer to 6");
  EXPECT_EQ(index_.next_expiry(), clock_.Now() + kRememberFor);
}

TEST_F(RequestIndexTest, OneCallOfForgetEndedLooksAtAFewAnswersOnly) {
  for (int i = 0; i < 100; ++i) Answer("", StrCat(i));
  clock_.Advance(kRememberFor);
  int looks = 0;
  index_.ForgetEnded(clock_.Now(), 100, clock_.Now() + kRememberFor, [&](const std::string&) {
    ++looks;
    return false;
  });
  EXPECT_GE(looks, 2);
  EXPECT_LE(looks, 10);
  EXPECT_EQ(index_.size(), 100 - looks);
}

}  // namespace
}  // namespace shardmesh::server
