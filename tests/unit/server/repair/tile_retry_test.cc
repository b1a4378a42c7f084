// The pauses, time limits and texts of copies that are tried again.
#include "server/repair/tile_retry.h"

#include <gtest/gtest.h>

#include "status/reason.h"

namespace shardmesh::server {
namespace {

TEST(TileRetryTest, WaitsTwiceAsLongAfterEachFailureUpToALimit) {
  const auto wait = [](int rounds) {
    return RetryWait(rounds, absl::Seconds(5), absl::Seconds(60));
  };
  EXPECT_EQ(wait(1), absl::Seconds(5));
  EXPECT_EQ(wait(2), absl::Seconds(10));
  EXPECT_EQ(wait(4), absl::Seconds(40));
  EXPECT_EQ(wait(5), absl::Seconds(60));
  EXPECT_EQ(wait(1'000'000), absl::Seconds(60));
}

TEST(TileRetryTest, ALargerTileMayTakeLonger) {
  EXPECT_EQ(CopyTimeout(0), absl::Minutes(5));
  EXPECT_EQ(CopyTimeout(int64_t{4} << 30), absl::Minutes(5) + absl::Seconds(1024));
}

TEST(TileRetryTest, AFailureInWordsHasItsReason) {
  EXPECT_EQ(FailureInWords(absl::InternalError("no disk")), "no disk");
  EXPECT_EQ(FailureInWords(WithReason(absl::UnavailableError("gone"), Reason::kWorkerLost)),
            "gone (WORKER_LOST)");
}

}  // namespace
}  // namespace shardmesh::server
