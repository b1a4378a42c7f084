// Facts and retry delays of a status.
#include "status/detail.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"

namespace shardmesh {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(DetailTest, FactsComeBackByKey) {
  absl::Status status = WithReason(absl::InvalidArgumentError("bad"), Reason::kBadField);
  status = WithFact(std::move(status), "rank", "3");
  status = WithFact(std::move(status), "axis", "tp");
  EXPECT_THAT(FactsOf(status), ElementsAre(Pair("axis", "tp"), Pair("rank", "3")));
  EXPECT_EQ(FactOf(status, "rank"), "3");
  EXPECT_EQ(FactOf(status, "ran"), std::nullopt);
  EXPECT_EQ(ReasonOf(status), Reason::kBadField);
}

TEST(DetailTest, TheLastValueOfAKeyCounts) {
  EXPECT_EQ(FactOf(WithFact(WithFact(absl::AbortedError(""), "have", "1"), "have", "2"), "have"),
            "2");
}

TEST(DetailTest, ValuesKeepTheirBytes) {
  const std::string value("a\0b/\xff", 5);
  EXPECT_EQ(FactOf(WithFact(absl::AbortedError(""), "value", value), "value"), value);
}

TEST(DetailTest, AContextKeepsFactsAndDelay) {
  const absl::Status status = WithContext(
      WithRetryDelay(WithFact(absl::UnavailableError("later"), "rank", "3"), absl::Seconds(2)),
      "array");
  EXPECT_EQ(FactOf(status, "rank"), "3");
  EXPECT_EQ(RetryDelayOf(status), absl::Seconds(2));
}

TEST(DetailTest, DelaysOfEachSizeComeBack) {
  for (const absl::Duration delay :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Milliseconds(1500), absl::Seconds(3),
        absl::Hours(30), absl::InfiniteDuration()}) {
    EXPECT_EQ(RetryDelayOf(WithRetryDelay(absl::UnavailableError(""), delay)), delay);
  }
  EXPECT_EQ(RetryDelayOf(absl::UnavailableError("")), std::nullopt);
}

TEST(DetailTest, AnOkStatusStaysAsItIs) {
  EXPECT_EQ(WithFact(absl::OkStatus(), "k", "v"), absl::OkStatus());
  EXPECT_EQ(WithRetryDelay(absl::OkStatus(), absl::Seconds(1)), absl::OkStatus());
  EXPECT_THAT(FactsOf(absl::OkStatus()), IsEmpty());
}

}  // namespace
}  // namespace shardmesh
