// The time that calls of one function have together.
#include "client/models/time_limit.h"

#include <gtest/gtest.h>

#include <optional>

#include "absl/time/time.h"

namespace shardmesh::client {
namespace {

TEST(TimeLimitTest, EachCallHasTheTimeThatIsLeft) {
  const CallOptions options = {.timeout = absl::Hours(1), .traceparent = "00-1-2-01"};
  const TimeLimit limit(options);
  const CallOptions first = limit.Next();
  const CallOptions second = limit.Next();
  ASSERT_TRUE(first.timeout.has_value() && second.timeout.has_value());
  EXPECT_LE(*first.timeout, absl::Hours(1));
  EXPECT_LE(*second.timeout, *first.timeout);
  EXPECT_EQ(second.traceparent, "00-1-2-01");
}

TEST(TimeLimitTest, NoTimeIsLeftAfterTheEnd) {
  const CallOptions options = {.timeout = absl::ZeroDuration()};
  EXPECT_EQ(TimeLimit(options).Next().timeout, absl::ZeroDuration());
}

TEST(TimeLimitTest, WithoutATimeLimitCallsHaveNone) {
  const CallOptions options;
  EXPECT_EQ(TimeLimit(options).Next().timeout, std::nullopt);
}

}  // namespace
}  // namespace shardmesh::client
