// Leases: opening, renewing, expiring, and what an ended session lets go.
#include "server/state/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const rpc::Caller kCaller = {.name = "host:10.0.0.1", .is_proven = false};

class SessionTest : public ::testing::Test {
 protected:
  std::string OpenFor(absl::Duration ttl) {
    const absl::StatusOr<Session> session = table_.Open(kCaller, "test", ttl);
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
  EXPECT_THAT(table_.Renew(id), test::CarriesFacts(Reason::kSessionGone, {{fact::kName, id}}));
}

TEST_F(SessionTest, ListsOpenSessionsByTheOrderOfTheirOpening) {
  EXPECT_THAT(table_.List(0, 10), IsEmpty());
  const absl::Time start = clock_.Now();
  const std::string first = OpenFor(absl::Seconds(10));
  clock_.Advance(absl::Seconds(2));
  const std::string second = OpenFor(absl::Minutes(1));
  EXPECT_THAT(table_.PinArray(second, "a"), IsOkAndHolds(true));
  EXPECT_THAT(table_.PinArray(second, "b"), IsOkAndHolds(true));
  EXPECT_THAT(table_.AddTransfer(second, "t"), IsOk());
  for (int i = 0; i < 3; ++i) EXPECT_THAT(table_.BeginStep(second), IsOk());
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(table_.Renew(first), IsOk());

  std::vector<SessionInfo> listed = table_.List(0, 10);
  ASSERT_THAT(listed, SizeIs(2));
  EXPECT_EQ(listed[0].number, 1);
  EXPECT_EQ(listed[0].id_prefix, first.substr(0, 8));
  EXPECT_EQ(listed[0].caller, kCaller.name);
  EXPECT_EQ(listed[0].client, "test");
  EXPECT_EQ(listed[0].opened, start);
  EXPECT_EQ(listed[0].renewed, start + absl::Seconds(5));
  EXPECT_EQ(listed[0].expires, start + absl::Seconds(15));
  EXPECT_EQ(listed[0].pinned_arrays, 0);
  EXPECT_EQ(listed[1].number, 2);
  EXPECT_EQ(listed[1].id_prefix, second.substr(0, 8));
  EXPECT_EQ(listed[1].opened, start + absl::Seconds(2));
  EXPECT_EQ(listed[1].renewed, listed[1].opened) << "never renewed";
  EXPECT_EQ(listed[1].expires, start + absl::Seconds(62));
  EXPECT_EQ(listed[1].pinned_arrays, 2);
  EXPECT_EQ(listed[1].transfers, 1);
  EXPECT_EQ(listed[1].steps, 3);

  EXPECT_THAT(table_.List(0, 1), ElementsAre(Field(&SessionInfo::number, 1)));
  EXPECT_THAT(table_.List(1, 1), ElementsAre(Field(&SessionInfo::number, 2)));
  EXPECT_THAT(table_.List(2, 1), IsEmpty());

  clock_.Advance(absl::Seconds(10));
  const std::string third = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.List(0, 10),
              ElementsAre(Field(&SessionInfo::number, 2), Field(&SessionInfo::number, 3)))
      << "the first has expired";
  EXPECT_THAT(table_.Close(second), IsOk());
  EXPECT_THAT(table_.List(1, 10), ElementsAre(Field(&SessionInfo::number, 3)))
      << "a page goes on behind a session that was closed meanwhile";
}

TEST_F(SessionTest, NamesTheSessionsThatPinAnArray) {
  const std::string first = OpenFor(absl::Seconds(10));
  OpenFor(absl::Seconds(10));
  const std::string third = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.ListHolders("a", 10), IsEmpty());
  EXPECT_THAT(table_.PinArray(third, "a"), IsOkAndHolds(true));
  EXPECT_THAT(table_.PinArray(first, "a"), IsOkAndHolds(true));
  const std::vector<SessionInfo> holders = table_.ListHolders("a", 10);
  EXPECT_THAT(holders, ElementsAre(Field(&SessionInfo::number, 1), Field(&SessionInfo::number, 3)));
  EXPECT_THAT(table_.ListHolders("a", 1), SizeIs(1));
  EXPECT_EQ(DescribeSessions(holders),
            "session 1 of host:10.0.0.1 (client \"test\"), "
            "session 3 of host:10.0.0.1 (client \"test\")");
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

TEST_F(SessionTest, APauseOfThisProcessEndsNoSession) {
  const std::string renewed = OpenFor(absl::Seconds(10));
  const std::string silent = OpenFor(absl::Seconds(10));
  clock_.Pause(absl::Minutes(1));
  clock_.Advance(absl::ZeroDuration());
  EXPECT_THAT(ended_, IsEmpty()) << "what renews them may wait in the sockets";
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(table_.Renew(renewed), IsOk());
  clock_.Advance(absl::Seconds(9));
  ASSERT_THAT(ended_, SizeIs(1));
  EXPECT_EQ(ended_[0].id, silent);
}

TEST_F(SessionTest, EndsOnceWhenClosed) {
  const std::string id = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.Close(id), IsOk());
  EXPECT_THAT(table_.Close(id), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  clock_.Advance(absl::Minutes(1));
  ASSERT_THAT(ended_, SizeIs(1));
  EXPECT_EQ(ended_[0].end, SessionEnd::kClosed);
}

TEST_F(SessionTest, TakesATtlOfTheContractsRangeAndNoOther) {
  for (const absl::Duration ttl : {absl::Seconds(1), absl::Seconds(30), absl::Hours(1)}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Session session, table_.Open(kCaller, "", ttl));
    EXPECT_EQ(session.ttl, ttl);
  }
  for (const absl::Duration ttl :
       {-absl::Seconds(1), absl::ZeroDuration(), absl::Milliseconds(999),
        absl::Hours(1) + absl::Nanoseconds(1), absl::Hours(24), absl::InfiniteDuration()}) {
    const absl::Status refused = table_.Open(kCaller, "", ttl).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField)) << ttl;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("it must be 1s to 1h"));
  }
  EXPECT_EQ(table_.size(), 3);
}

TEST_F(SessionTest, BoundsTheNumberOfSessions) {
  for (int i = 0; i < 3; ++i) OpenFor(absl::Seconds(10));
  EXPECT_EQ(table_.size(), 3);
  const absl::Status refused = table_.Open(kCaller, "", absl::Seconds(1)).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(table_.size(), 0);
  EXPECT_THAT(table_.Open(kCaller, "", absl::Seconds(1)), IsOk());
}

TEST_F(SessionTest, BoundsTheSessionsOfOneCallerAlone) {
  SessionTable table(&clock_, [](const EndedSession&) {}, {.max_sessions_per_caller = 2});
  const rpc::Caller ada = {.name = "spiffe://shardmesh/client/ada", .is_proven = true};
  const rpc::Caller bob = {.name = "spiffe://shardmesh/client/bob", .is_proven = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Session first, table.Open(ada, "", absl::Seconds(10)));
  ASSERT_THAT(table.Open(ada, "", absl::Seconds(10)), IsOk());
  const absl::Status refused = table.Open(ada, "", absl::Seconds(10)).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_THAT(refused.message(), HasSubstr("client/ada has 2 sessions open, and may have 2"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(table.Open(bob, "", absl::Seconds(10)), IsOk());
  ASSERT_THAT(table.Close(first.id), IsOk());
  EXPECT_THAT(table.Open(ada, "", absl::Seconds(10)), IsOk());
}

TEST_F(SessionTest, BelongsToTheProvenNameThatOpenedIt) {
  const rpc::Caller ada = {.name = "spiffe://shardmesh/client/ada", .is_proven = true};
  const rpc::Caller bob = {.name = "spiffe://shardmesh/client/bob", .is_proven = true};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Session of_ada, table_.Open(ada, "", absl::Seconds(10)));
  EXPECT_THAT(table_.Check(of_ada.id, ada), IsOk());
  EXPECT_THAT(table_.Check(of_ada.id, bob),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(table_.Check("nobody's", bob),
              StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  // Without certificates the id is all that a client has to show, from wherever it calls.
  const std::string of_host = OpenFor(absl::Seconds(10));
  EXPECT_THAT(table_.Check(of_host, {.name = "host:10.0.0.2", .is_proven = false}), IsOk());
}

TEST_F(SessionTest, BoundsTheWorkOfOneSession) {
  SessionTable table(&clock_, [](const EndedSession&) {}, {.max_work_per_session = 2});
  const std::string busy = table.Open(kCaller, "", absl::Seconds(10))->id;
  const std::string other = table.Open(kCaller, "", absl::Seconds(10))->id;
  ASSERT_THAT(table.AddTransfer(busy, "t"), IsOk());
  ASSERT_THAT(table.BeginStep(busy), IsOk());
  const absl::Status refused = table.BeginStep(busy);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(table.AddTransfer(busy, "u"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_THAT(table.BeginStep(other), IsOk());
  table.EndStep(busy);
  EXPECT_THAT(table.AddTransfer(busy, "u"), IsOk());
  table.RemoveTransfer(busy, "t");
  EXPECT_THAT(table.BeginStep(busy), IsOk());
}

}  // namespace
}  // namespace shardmesh::server
