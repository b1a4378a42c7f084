// What is said of a put that a signal interrupted.
#include "client/cli/interruption.h"

#include "gtest/gtest.h"
#include "status/reason.h"

namespace shardmesh::client {
namespace {

TEST(InterruptionTest, OnlyAPutThatIsKnownToBeUndoneIsSaidToBe) {
  EXPECT_TRUE(IsNothingDone(absl::CancelledError("cancelled")));
  EXPECT_TRUE(IsNothingDone(absl::ResourceExhaustedError("no memory")));
  EXPECT_TRUE(IsNothingDone(
      WithReason(absl::FailedPreconditionError("a rank is away"), Reason::kMeshIncomplete)));
  // No answer came.
  EXPECT_FALSE(IsNothingDone(absl::UnavailableError("away")));
  EXPECT_FALSE(IsNothingDone(absl::DeadlineExceededError("late")));
  // The answer to a repeated commit, of which the first one did it.
  EXPECT_FALSE(IsNothingDone(
      WithReason(absl::FailedPreconditionError("no longer remembered"), Reason::kRequestIdReused)));
  EXPECT_FALSE(IsNothingDone(WithReason(absl::NotFoundError("gone since"), Reason::kNotFound)));
}

}  // namespace
}  // namespace shardmesh::client
