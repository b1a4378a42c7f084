// Leases: opening, renewing, expiring, and what an ended session lets go.
#include "server/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SessionTest : public ::testing::Test {
 protected:
  std::string OpenFor(absl::Duration ttl) {
    const absl::StatusOr<Session> session = table_.Open("test", ttl);
    EXPECT_THAT(session, IsOk());
    return session->id;
  }

  test::FakeClock clock_;
  std::vector<EndedSession> ended_;
  SessionTable table_{
      &clock_, [this](const EndedSession& ended) { ended_.push_back(ended); }, {.max_sessions = 3}};
};

TEST_F(SessionTest, ExpiresWhenItsTtlHasPassedAndLetsGoOfEverything) {
  const std::string id = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.PinArray(id, "b"), IsOkAndHolds(true));
  EXPECT_THAT(table_.PinArray(id, "a"), IsOkAndHolds(true));
  EXPECT_THAT(table_.PinArray(id, "a"), IsOkAndHolds(false));
  EXPECT_THAT(table_.AddTransfer(id, "t"), IsOk());
  clock_.Advance(absl::Milliseconds(9999));
  EXPECT_THAT(ended_, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_THAT(ended_, SizeIs(1));
  EXPECT_EQ(ended_[0].id, id);
  EXPECT_EQ(ended_[0].end, SessionEnd::kExpired);
  EXPECT_THAT(ended_[0].arrays, ElementsAre("a", "b"));
  EXPECT_THAT(ended_[0].transfers, ElementsAre("t"));
  EXPECT_THAT(table_.Renew(id), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
}

TEST_F(SessionTest, LivesAsLongAsItIsRenewed) {
  const std::string id = OpenFor(absl::Seconds(10));
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(9));
    EXPECT_THAT(table_.Renew(id), IsOk());
  }
  clock_.Advance(absl::Seconds(10));
  EXPECT_THAT(ended_, SizeIs(1));
}

TEST_F(SessionTest, EndsOnceWhenClosed) {
  const std::string id = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.Close(id), IsOk());
  EXPECT_THAT(table_.Close(id), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  clock_.Advance(absl::Minutes(1));
  ASSERT_THAT(ended_, SizeIs(1));
  EXPECT_EQ(ended_[0].end, SessionEnd::kClosed);
}

TEST_F(SessionTest, MovesAnOddTtlIntoTheRange) {
  EXPECT_EQ(table_.Open("", absl::ZeroDuration())->ttl, absl::Seconds(30));
  EXPECT_EQ(table_.Open("", absl::Nanoseconds(1))->ttl, absl::Seconds(1));
  EXPECT_EQ(table_.Open("", absl::InfiniteDuration())->ttl, absl::Hours(24));
}

TEST_F(SessionTest, BoundsTheNumberOfSessions) {
  for (int i = 0; i < 3; ++i) OpenFor(absl::Seconds(10));
  EXPECT_EQ(table_.size(), 3);
  EXPECT_THAT(table_.Open("", absl::Seconds(1)),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(table_.size(), 0);
  EXPECT_THAT(table_.Open("", absl::Seconds(1)), IsOk());
}

TEST_F(SessionTest, KeepsTransfersApart) {
  const std::string mine = OpenFor(absl::Seconds(10));
  const std::string other = OpenFor(absl::Seconds(10));
  ASSERT_THAT(table_.AddTransfer(mine, "t"), IsOk());
  EXPECT_THAT(table_.CheckTransfer(mine, "t"), IsOk());
  EXPECT_EQ(table_.CheckTransfer(other, "t").code(), absl::StatusCode::kPermissionDenied);
  table_.RemoveTransfer(mine, "t");
  EXPECT_EQ(table_.CheckTransfer(mine, "t").code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace shardmesh::server
