// The table of reasons and retries, and the rule of the client library.
#include "status/retry.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

#include "status/detail.h"

namespace shardmesh {
namespace {

constexpr absl::StatusCode kUnavailable = absl::StatusCode::kUnavailable;

absl::Status Of(absl::StatusCode code, Reason reason) {
  return WithReason(absl::Status(code, "m"), reason);
}

TEST(RetryTest, TheTableHasARowForEachReasonAfterWhichARetryMayHelp) {
  const std::map<Reason, RetryRule> expected = {
      {Reason::kRecovering, {absl::Milliseconds(200), SelfRetry::kUntilDeadline}},
      {Reason::kNotServing, {absl::Seconds(1), SelfRetry::kFewTimes}},
      {Reason::kOverloaded, {absl::Seconds(1), SelfRetry::kFewTimes}},
      {Reason::kWorkerLost, {absl::Seconds(1), SelfRetry::kNo}},
      {Reason::kMeshIncomplete, {absl::Seconds(1), SelfRetry::kNo}},
      {Reason::kStepAborted, {absl::Seconds(1), SelfRetry::kNo}},
      {Reason::kStaleEpoch, {absl::Milliseconds(100), SelfRetry::kNo}},
  };
  for (int i = 0; i <= static_cast<int>(Reason::kLast); ++i) {
    const auto reason = static_cast<Reason>(i);
    const auto found = expected.find(reason);
    EXPECT_TRUE(RetryRuleOf(reason) == (found == expected.end() ? RetryRule() : found->second))
        << ReasonName(reason);
  }
}

TEST(RetryTest, AnErrorHasItsOwnDelayOrThatOfItsReason) {
  const absl::Status lost = Of(kUnavailable, Reason::kWorkerLost);
  EXPECT_EQ(RetryInfoOf(lost), absl::Seconds(1));
  EXPECT_EQ(RetryInfoOf(WithRetryDelay(lost, absl::Minutes(1))), absl::Minutes(1));
  EXPECT_EQ(RetryInfoOf(WithoutRetry(lost)), std::nullopt);
  EXPECT_EQ(RetryInfoOf(WithoutRetry(WithRetryDelay(lost, absl::Minutes(1)))), std::nullopt);
  EXPECT_EQ(RetryInfoOf(Of(absl::StatusCode::kNotFound, Reason::kNotFound)), std::nullopt);
  EXPECT_EQ(RetryInfoOf(absl::UnavailableError("m")), std::nullopt);
  EXPECT_EQ(RetryInfoOf(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(WithoutRetry(absl::OkStatus()), absl::OkStatus());
}

TEST(RetryTest, TheClientRetriesUntilTheDeadlineWhatPassesByItself) {
  EXPECT_EQ(SelfRetryOf(Of(kUnavailable, Reason::kRecovering)), SelfRetry::kUntilDeadline);
  // The first request of an id still runs; another call restores the array.
  EXPECT_EQ(SelfRetryOf(WithRetryDelay(absl::AbortedError("m"), absl::Seconds(1))),
            SelfRetry::kUntilDeadline);
  EXPECT_EQ(SelfRetryOf(WithRetryDelay(Of(absl::StatusCode::kAborted, Reason::kAlreadyExists),
                                       absl::Seconds(1))),
            SelfRetry::kUntilDeadline);
}

TEST(RetryTest, TheClientRetriesAFewTimesWhatMayLast) {
  for (const absl::Status& error :
       {absl::UnavailableError("the connection failed"), Of(kUnavailable, Reason::kNotServing),
        WithRetryDelay(Of(kUnavailable, Reason::kNotServing), absl::Seconds(9)),
        Of(absl::StatusCode::kResourceExhausted, Reason::kOverloaded)}) {
    EXPECT_EQ(SelfRetryOf(error), SelfRetry::kFewTimes) << error;
  }
}

TEST(RetryTest, TheClientReturnsAnErrorThatWantsAnAction) {
  const std::vector<absl::Status> errors = {
      absl::OkStatus(),
      absl::AbortedError("without a delay"),
      Of(kUnavailable, Reason::kWorkerLost),
      Of(kUnavailable, Reason::kStepAborted),
      Of(absl::StatusCode::kAborted, Reason::kStaleEpoch),
      Of(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete),
      Of(absl::StatusCode::kAborted, Reason::kVersionMismatch),
      Of(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit),
      // A worker that drains, as the argument of a call.
      Of(absl::StatusCode::kFailedPrecondition, Reason::kNotServing),
  };
  for (const absl::Status& error : errors) {
    EXPECT_EQ(SelfRetryOf(error), SelfRetry::kNo) << error;
    // RetryInfo alone is no reason to repeat a call.
    if (!error.ok() && ReasonOf(error) != Reason::kUnspecified &&
        RetryRuleOf(ReasonOf(error)).delay.has_value()) {
      EXPECT_EQ(SelfRetryOf(WithRetryDelay(error, absl::ZeroDuration())), SelfRetry::kNo) << error;
    }
  }
}

}  // namespace
}  // namespace shardmesh
