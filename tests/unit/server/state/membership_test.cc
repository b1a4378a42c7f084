// Who is alive, who serves which rank, and what the epoch counts.
#include "server/state/membership.h"
#include "status/fact_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "rpc/codec/status.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() {
    members_.AddListener([this](const MembershipEvent& event) {
      static constexpr const char* kKinds[] = {"attached", "lost",  "drain",        "mesh added",
                                               "assigned", "moved", "mesh removed", "forgotten"};
      events_.push_back(StrCat(event.epoch, " ", kKinds[static_cast<int>(event.kind)], " ",
                               event.identity, event.mesh_id));
    });
  }
  absl::StatusOr<uint64_t> Attach(const std::string& identity, uint64_t incarnation = 1) {
    return members_.Attach({.identity = identity,
                            .incarnation = incarnation,
                            .build_version = "1",
                            .endpoints = {"127.0.0.1:1"},
                            .pid = 42,
                            .host = "host"});
  }

  test::FakeClock clock_;
  std::vector<std::string> events_;
  Membership members_{&clock_};
};

TEST_F(MembershipTest, CountsEachChangeOfWhoIsAliveInTheEpoch) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  ASSERT_THAT(Attach("b"), IsOk());
  members_.Detach(a, "its stream broke");
  members_.Detach(a, "again");
  ASSERT_THAT(Attach("a", 2), IsOk());
  EXPECT_THAT(events_, ElementsAre("1 attached a", "2 attached b", "3 lost a", "4 attached a"));
  EXPECT_EQ(members_.view()->epoch, 4);
}

TEST_F(MembershipTest, LosesAWorkerWhoseHeartbeatsStop) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t b, Attach("b"));
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    ASSERT_THAT(members_.Heartbeat(a, 7), IsOk());
    if (i < 2) {
      ASSERT_THAT(members_.Heartbeat(b, 7), IsOk());
    }
  }
  EXPECT_TRUE(members_.view()->IsAlive("a"));
  EXPECT_FALSE(members_.view()->IsAlive("b"));
  EXPECT_EQ(members_.view()->FindWorker("a")->used_bytes(), 7);
  EXPECT_THAT(members_.view()->FindWorker("b")->lost_because, HasSubstr("no heartbeat for 5s"));
  EXPECT_THAT(members_.Heartbeat(b, 0), StatusIs(absl::StatusCode::kAborted, Reason::kStaleEpoch));
}

TEST_F(MembershipTest, APauseOfThisProcessIsNoSilenceOfTheWorkers) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t b, Attach("b"));
  clock_.Advance(absl::Milliseconds(900));
  clock_.Pause(absl::Minutes(1));  // SIGSTOP, and SIGCONT
  clock_.Advance(absl::ZeroDuration());
  EXPECT_TRUE(members_.view()->IsAlive("a")) << "its heartbeats wait in the socket";
  EXPECT_THAT(members_.Heartbeat(a, 7), IsOk());
  // From there on silence counts as ever.
  clock_.Advance(absl::Seconds(4));
  EXPECT_TRUE(members_.view()->IsAlive("b"));
  ASSERT_THAT(members_.Heartbeat(a, 7), IsOk());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(members_.view()->IsAlive("a"));
  EXPECT_FALSE(members_.view()->IsAlive("b"));
  EXPECT_THAT(members_.Heartbeat(b, 0), StatusIs(absl::StatusCode::kAborted, Reason::kStaleEpoch));
  // One pause after the other keeps nobody alive who is silent between them.
  clock_.Pause(absl::Minutes(1));
  clock_.Advance(absl::Seconds(3));
  clock_.Pause(absl::Milliseconds(900));
  clock_.Advance(absl::Milliseconds(1'100));
  EXPECT_FALSE(members_.view()->IsAlive("a")) << "a short one does not count";
}

TEST_F(MembershipTest, RefusesASecondClaimantUntilTheFirstIsLost) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t first, Attach("a", 1));
  const absl::StatusOr<uint64_t> second = Attach("a", 2);
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kIdentityInUse));
  EXPECT_THAT(second, test::CarriesFacts(Reason::kIdentityInUse, {{fact::kIdentity, "a"}}));
  EXPECT_THAT(second.status().ToString(),
              AllOf(HasSubstr("process 42"), HasSubstr("host"), HasSubstr("127.0.0.1:1")));
  members_.Detach(first, "gone");
  EXPECT_THAT(Attach("a", 2), IsOk());
}

TEST_F(MembershipTest, ANewStreamOfTheSameProcessTakesOver) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t old, Attach("a", 1));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t fresh, Attach("a", 1));
  members_.Detach(old, "the old stream ends late");
  EXPECT_TRUE(members_.view()->IsAlive("a"));
  EXPECT_EQ(members_.view()->epoch, 2) << "what was on its way on the old stream is lost";
  EXPECT_THAT(members_.Heartbeat(fresh, 0), IsOk());
}

TEST_F(MembershipTest, RefusesMalformedWorkers) {
  EXPECT_EQ(Attach("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Attach("a", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(members_.view()->workers.empty());
}

TEST_F(MembershipTest, GivesRanksInTheOrderOfIdentitiesOnceThereAreEnough) {
  ASSERT_THAT(members_.AddMesh("m", 2, {}), IsOk());
  ASSERT_THAT(Attach("b"), IsOk());
  EXPECT_THAT(members_.view()->CheckComplete("m"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  ASSERT_THAT(Attach("a"), IsOk());
  ASSERT_THAT(Attach("c"), IsOk());
  EXPECT_THAT(members_.view()->FindMesh("m")->identities, ElementsAre("a", "b"));
  EXPECT_THAT(members_.view()->CheckComplete("m"), IsOk());
  EXPECT_EQ(members_.view()->FindMesh("m")->RankOf("c"), std::nullopt);
}

TEST_F(MembershipTest, AWorkerThatComesBackTakesItsRankAgain) {
  ASSERT_THAT(members_.AddMesh("m", 2, {}), IsOk());
  ASSERT_THAT(Attach("a"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t b, Attach("b"));
  members_.Detach(b, "killed");
  ASSERT_THAT(Attach("c"), IsOk());
  const absl::Status incomplete = members_.view()->CheckComplete("m");
  EXPECT_THAT(incomplete, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(incomplete.ToString(), HasSubstr("rank 1 (b: killed)"));
  ASSERT_THAT(Attach("b", 2), IsOk());
  EXPECT_EQ(members_.view()->FindMesh("m")->RankOf("b"), 1);
  EXPECT_THAT(members_.view()->CheckComplete("m"), IsOk());
}

TEST_F(MembershipTest, RefusesMeshesThatDoNotAddUp) {
  EXPECT_THAT(members_.AddMesh("m", 2, {"a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMeshSizeMismatch));
  EXPECT_THAT(members_.AddMesh("m", 2, {"a", "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(members_.AddMesh("m", 0, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(members_.AddMesh("m", 1, {"a"}), IsOk());
  EXPECT_THAT(members_.AddMesh("m", 1, {"a"}),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(
      members_.AddMesh("m", 1, {"a"}),
      test::CarriesFacts(Reason::kAlreadyExists, {{fact::kKind, "mesh"}, {fact::kName, "m"}}));
  EXPECT_THAT(
      members_.view()->CheckComplete("mm"),
      test::CarriesFacts(Reason::kNotFound,
                         {{fact::kKind, "mesh"}, {fact::kName, "mm"}, {fact::kNearest, "m"}}));
  EXPECT_THAT(members_.view()->CheckComplete("m"),
              test::CarriesFacts(Reason::kMeshIncomplete, {{fact::kMesh, "m"},
                                                           {fact::kRank, 0},
                                                           {fact::kIdentity, "a"},
                                                           {fact::kHave, 0},
                                                           {fact::kNeed, 1}}));
  EXPECT_THAT(members_.RemoveMesh("m"), IsOk());
  EXPECT_THAT(members_.RemoveMesh("m"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MembershipTest, DrainingWorkersAreAliveButGetNoRank) {
  ASSERT_THAT(Attach("a"), IsOk());
  ASSERT_THAT(members_.Drain("a", true), IsOk());
  ASSERT_THAT(Attach("b"), IsOk());
  ASSERT_THAT(members_.AddMesh("m", 1, {}), IsOk());
  EXPECT_THAT(members_.view()->FindMesh("m")->identities, ElementsAre("b"));
  EXPECT_TRUE(members_.view()->IsAlive("a"));
  EXPECT_EQ(members_.view()->epoch, 2);
  const absl::Status unknown = members_.Drain("z", true);
  EXPECT_THAT(unknown, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(unknown.message(),
            "no live worker has the identity \"z\"; `shardmesh status` lists the workers");
}

TEST_F(MembershipTest, ADrainHoldsForTheProcessOfTheWorkerAndALeavingOneIsNotResumed) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  const auto state_of_a = [&] { return members_.view()->FindWorker("a")->state; };
  ASSERT_THAT(members_.Drain("a", true), IsOk());
  ASSERT_THAT(members_.Drain("a", true), IsOk());
  EXPECT_EQ(events_.back(), "1 drain a");
  EXPECT_THAT(events_, testing::SizeIs(2)) << "the second drain changed nothing";
  members_.Detach(a, "its stream broke");
  ASSERT_THAT(Attach("a"), IsOk());
  EXPECT_EQ(state_of_a(), WorkerState::kDraining) << "the same process";
  ASSERT_THAT(members_.Leave("a"), IsOk());
  EXPECT_THAT(members_.Drain("a", false),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotServing));
  EXPECT_THAT(members_.Drain("a", false),
              test::CarriesFacts(Reason::kNotServing, {{fact::kIdentity, "a"}}));
  EXPECT_EQ(state_of_a(), WorkerState::kDraining);
  members_.Detach(members_.view()->FindWorker("a")->attachment, "it left");
  EXPECT_THAT(members_.Leave("a"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(Attach("a", 2), IsOk());
  EXPECT_EQ(state_of_a(), WorkerState::kAttached) << "another process";
}

TEST_F(MembershipTest, AWorkerThatIsResumedGetsTheRanksThatWaitedForIt) {
  ASSERT_THAT(Attach("a"), IsOk());
  ASSERT_THAT(members_.Drain("a", true), IsOk());
  ASSERT_THAT(members_.AddMesh("m", 1, {}), IsOk());
  EXPECT_THAT(members_.view()->FindMesh("m")->identities, testing::IsEmpty());
  ASSERT_THAT(members_.Drain("a", false), IsOk());
  EXPECT_THAT(members_.view()->FindMesh("m")->identities, ElementsAre("a"));
}

TEST_F(MembershipTest, ForgetsALostWorkerAtOnceUnlessItServesARank) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t b, Attach("b"));
  ASSERT_THAT(members_.AddMesh("m", 1, {"a"}), IsOk());
  EXPECT_THAT(members_.Forget("b"),
              test::CarriesFacts(Reason::kWorkerAttached, {{fact::kIdentity, "b"}}));
  members_.Detach(a, "killed");
  members_.Detach(b, "killed");
  EXPECT_THAT(
      members_.Forget("a"),
      test::CarriesFacts(
          Reason::kWorkerServesRank,
          {{fact::kIdentity, "a"}, {fact::kMesh, "m"}, {fact::kRank, 0}, {fact::kHave, 1}}));
  ASSERT_THAT(members_.Forget("b"), IsOk());
  EXPECT_EQ(events_.back(), "4 forgotten b");
  EXPECT_EQ(members_.view()->FindWorker("b"), nullptr);
  EXPECT_THAT(members_.Forget("b"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MembershipTest, RanksMoveToOtherWorkers) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  ASSERT_THAT(Attach("b"), IsOk());
  ASSERT_THAT(Attach("c"), IsOk());
  ASSERT_THAT(members_.AddMesh("m", 2, {"a", "b"}), IsOk());
  members_.Detach(a, "killed");
  ASSERT_THAT(members_.SetRanks("m", {"c", "b"}), IsOk());
  EXPECT_EQ(events_.back(), "4 moved m");
  EXPECT_THAT(members_.view()->FindMesh("m")->identities, ElementsAre("c", "b"));
  EXPECT_THAT(members_.RanksOf("a"), testing::IsEmpty());
  EXPECT_THAT(members_.RanksOf("b"), testing::SizeIs(1));
  EXPECT_THAT(members_.RanksOf("c"), testing::SizeIs(1));
  EXPECT_THAT(members_.view()->CheckComplete("m"), IsOk());
  EXPECT_THAT(members_.SetRanks("m", {"c"}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMeshSizeMismatch));
  EXPECT_THAT(members_.SetRanks("m", {"c", "c"}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(members_.SetRanks("n", {"c", "b"}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(members_.AddMesh("waits", 9, {}), IsOk());
  const std::vector<std::string> nine = {"1", "2", "3", "4", "5", "6", "7", "8", "9"};
  EXPECT_THAT(members_.SetRanks("waits", nine), StatusIs(absl::StatusCode::kFailedPrecondition))
      << "it has no ranks to move";
  clock_.Advance(members_.options().forget_after + absl::Seconds(1));
  EXPECT_EQ(members_.view()->FindWorker("a"), nullptr) << "it serves no rank any more";
}

TEST_F(MembershipTest, HeartbeatsMakeNoNewView) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t a, Attach("a"));
  const std::shared_ptr<const MembershipView> view = members_.view();
  ASSERT_THAT(members_.Heartbeat(a, 5), IsOk());
  EXPECT_EQ(members_.view(), view);
  EXPECT_EQ(view->FindWorker("a")->used_bytes(), 5) << "all views share it";
}

TEST_F(MembershipTest, ForgetsLostWorkersThatServeNoRank) {
  ASSERT_THAT(members_.AddMesh("m", 1, {"ranked"}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t ranked, Attach("ranked"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t guest, Attach("guest"));
  members_.Detach(ranked, "killed");
  members_.Detach(guest, "killed");
  clock_.Advance(members_.options().forget_after - absl::Seconds(1));
  EXPECT_THAT(members_.view()->workers, testing::SizeIs(2));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(members_.view()->FindWorker("guest"), nullptr);
  EXPECT_NE(members_.view()->FindWorker("ranked"), nullptr) << "its tiles are awaited";
  EXPECT_EQ(events_.back(), "4 forgotten guest");
  ASSERT_THAT(members_.RemoveMesh("m"), IsOk());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(members_.view()->FindWorker("ranked"), nullptr);
}

TEST_F(MembershipTest, KnowsTheRanksOfEachWorker) {
  const auto ranks_of = [&](const std::string& identity) {
    std::vector<std::string> ranks;
    for (const auto& [mesh_id, rank] : members_.RanksOf(identity)) {
      ranks.push_back(StrCat(mesh_id, ":", rank));
    }
    return ranks;
  };
  ASSERT_THAT(members_.AddMesh("m", 2, {"b", "a"}), IsOk());
  ASSERT_THAT(members_.AddMesh("n", 1, {}), IsOk());
  EXPECT_THAT(ranks_of("a"), ElementsAre("m:1"));
  ASSERT_THAT(Attach("a"), IsOk());
  EXPECT_THAT(ranks_of("a"), ElementsAre("m:1", "n:0"));
  ASSERT_THAT(members_.RemoveMesh("m"), IsOk());
  EXPECT_THAT(ranks_of("a"), ElementsAre("n:0"));
  EXPECT_THAT(ranks_of("b"), testing::IsEmpty());
}

TEST_F(MembershipTest, AnErrorNamesTheFirstOfManyMissingRanks) {
  std::vector<std::string> identities;
  for (int i = 0; i < 1'000; ++i) identities.push_back(StrCat("worker-", i));
  ASSERT_THAT(members_.AddMesh("wide", 1'000, identities), IsOk());
  const absl::Status incomplete = members_.view()->CheckComplete("wide");
  EXPECT_THAT(incomplete.ToString(),
              AllOf(HasSubstr("rank 0 (worker-0: not attached since"), HasSubstr("991 more")));
  EXPECT_THAT(rpc::WireMessage(incomplete), testing::EndsWith("`shardmesh admin worker replace`)"));
}

}  // namespace
}  // namespace shardmesh::server
