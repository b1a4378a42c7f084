// Which spare worker gets the ranks of a lost worker, and when: without gRPC, with a fake clock.
#include "server/repair/lost_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// The auxiliary mesh of the mesh "m".
constexpr char kCopies[] = "m.replicas-0123456789ab";

struct Host {
  std::string name = {};  // empty: a host of its own
  bool durable = false;
  int64_t capacity_bytes = 1 << 20;
};

class LostRanksTest : public testing::Test {
 protected:
  LostRanksTest() {
    members_.AddListener([this](const MembershipEvent&) {
      if (lost_ranks_ != nullptr) lost_ranks_->MembershipChanged();
    });
  }

  // The destructor of LostRanks waits for the replacement that runs.
  ~LostRanksTest() override {
    if (done_.has_value()) std::move (*done_)(absl::OkStatus());
  }

  // Starts the coordinator's part, after the definition of the meshes.
  void Start(absl::Duration after) {
    lost_ranks_ = std::make_unique<LostRanks>(
        LostRanksParts{.clock = &clock_,
                       .membership = &members_,
                       .recovery = &recovery_,
                       .is_ready = [this](std::string_view id) { return !joining_.contains(id); },
                       .replace =
                           [this](const std::string& identity, const std::string& replacement,
                                  LostRanksParts::Done done) {
                             asked_.emplace_back(identity, replacement);
                             done_.emplace(std::move(done));
                           }},
        LostRanks::Options{.after = after});
  }
  uint64_t Attach(const std::string& identity, const Host& host = {}) {
    const auto attachment = members_.Attach({.identity = identity,
                                             .incarnation = ++incarnations_,
                                             .build_version = "1",
                                             .endpoints = {"10.0.0.1:1"},
                                             .host = host.name,
                                             .capacity_bytes = host.capacity_bytes,
                                             .durable = host.durable});
    EXPECT_THAT(attachment, IsOk());
    return attachment.ok() ? *attachment : 0;
  }
  void Define(const std::string& mesh_id, const std::vector<std::string>& workers) {
    ASSERT_THAT(members_.AddMesh(mesh_id, std::ssize(workers), workers), IsOk());
  }
  // Moves the ranks of the last replacement that was asked for, in this mesh.
  void Move(const std::string& mesh_id) {
    std::vector<std::string> workers = members_.view()->FindMesh(mesh_id)->identities;
    std::replace(workers.begin(), workers.end(), asked_.back().first, asked_.back().second);
    ASSERT_THAT(members_.SetRanks(mesh_id, workers), IsOk());
  }
  // Ends the replacement that runs.
  void End(const absl::Status& status = absl::OkStatus()) {
    ASSERT_TRUE(done_.has_value());
    LostRanksParts::Done done = *std::move(done_);
    done_.reset();
    std::move(done)(status);
    clock_.Advance(absl::ZeroDuration());
  }

  test::FakeClock clock_;
  Recovery recovery_{&clock_, absl::Seconds(60)};
  // Workers of this test send no heartbeats.
  Membership members_{&clock_, {.lost_after = absl::Hours(24)}};
  uint64_t incarnations_ = 0;
  std::set<std::string, std::less<>> joining_;              // attached, and not ready
  std::vector<std::pair<std::string, std::string>> asked_;  // lost workers and their spares
  std::optional<LostRanksParts::Done> done_;                // of the replacement that runs
  std::unique_ptr<LostRanks> lost_ranks_;
};

TEST_F(LostRanksTest, ASpareGetsTheRanksOfAWorkerThatStaysLost) {
  Attach("a");
  const uint64_t b = Attach("b");
  Attach("spare");
  Define("m", {"a", "b"});
  Start(absl::Seconds(30));
  clock_.Advance(absl::Seconds(45));
  EXPECT_THAT(asked_, IsEmpty()) << "no worker is lost";
  members_.Detach(b, "it is gone");
  clock_.Advance(absl::Seconds(29));
  EXPECT_THAT(asked_, IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare")));
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(asked_.size(), 1u) << "it runs already";
  EXPECT_EQ(lost_ranks_->totals().replaced, 0);
  Move("m");
  End();
  EXPECT_EQ(lost_ranks_->totals().replaced, 1);
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(asked_.size(), 1u) << "the lost worker serves no rank any more";
}

TEST_F(LostRanksTest, AWorkerThatComesBackInTimeKeepsItsRanks) {
  const uint64_t a = Attach("a");
  Attach("spare");
  Define("m", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(20));
  const uint64_t again = Attach("a");
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(asked_, IsEmpty());
  members_.Detach(again, "it is gone");
  clock_.Advance(absl::Seconds(29));
  EXPECT_THAT(asked_, IsEmpty()) << "each loss counts from its own time";
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare")));
}

TEST_F(LostRanksTest, AWorkerThatIsExpectedBackKeepsItsRanks) {
  const uint64_t a = Attach("a");
  Attach("spare");
  Define("m", {"a"});
  Start(absl::Seconds(10));
  recovery_.Lost("a");
  members_.Detach(a, "it left");
  clock_.Advance(absl::Seconds(59));
  EXPECT_THAT(asked_, IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare")));
}

TEST_F(LostRanksTest, AfterAStartOfTheCoordinatorWorkersHaveTimeToAttach) {
  Attach("spare");
  Define("m", {"a", "b"});
  recovery_.Begin({"a", "b"});
  Start(absl::Seconds(90));
  Attach("a");
  clock_.Advance(absl::Seconds(89));
  EXPECT_THAT(asked_, IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare")));
}

TEST_F(LostRanksTest, TimeInWhichThisProcessWasStoppedDoesNotCount) {
  const uint64_t a = Attach("a");
  Attach("spare");
  Define("m", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(20));
  clock_.Pause(absl::Seconds(100));
  clock_.Advance(absl::ZeroDuration());
  EXPECT_THAT(asked_, IsEmpty()) << "it could not attach meanwhile";
  clock_.Advance(absl::Seconds(29));
  EXPECT_THAT(asked_, IsEmpty());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare")));
}

TEST_F(LostRanksTest, OneWorkerIsReplacedAtATimeTheFirstThatWasLostFirst) {
  const uint64_t a = Attach("a");
  const uint64_t b = Attach("b");
  Attach("spare-0");
  Attach("spare-1");
  Define("m", {"a", "b"});
  Start(absl::Seconds(30));
  members_.Detach(b, "it is gone");
  clock_.Advance(absl::Seconds(1));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare-0")));
  Move("m");
  End();
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare-0"), Pair("a", "spare-1")));
}

TEST_F(LostRanksTest, ALostWorkerWaitsForASpare) {
  const uint64_t a = Attach("a");
  Attach("other");
  const uint64_t lost = Attach("lost");
  Attach("draining");
  Attach("joining");
  ASSERT_THAT(members_.Drain("draining", true), IsOk());
  joining_.insert("joining");
  Define("m", {"a"});
  Define("n", {"other"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  members_.Detach(lost, "it is gone");
  clock_.Advance(absl::Seconds(40));
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_EQ(lost_ranks_->totals().without_spare, 1);
  EXPECT_TRUE(lost_ranks_->LacksSpare("a"));
  EXPECT_FALSE(lost_ranks_->LacksSpare("lost")) << "it serves no rank";
  joining_.clear();
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "joining")));
  EXPECT_EQ(lost_ranks_->totals().without_spare, 0);
}

TEST_F(LostRanksTest, ALostWorkerThatComesBackWaitsForNoSpareAnyMore) {
  const uint64_t a = Attach("a");
  Define("m", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(lost_ranks_->totals().without_spare, 1);
  Attach("a");
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(lost_ranks_->totals().without_spare, 0);
}

TEST_F(LostRanksTest, AWorkerWithTilesOnDiskIsReplacedByAWorkerThatKeepsThemSoToo) {
  const uint64_t a = Attach("a", {.durable = true});
  Attach("in-memory");
  Define("m", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_EQ(lost_ranks_->totals().without_spare, 1);
  Attach("on-disk", {.durable = true});
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "on-disk")));
}

// A tile of b is also on a, which serves the same rank of the auxiliary mesh.
TEST_F(LostRanksTest, ASpareOnAnotherHostThanTheOtherCopiesComesFirst) {
  Attach("a", {.name = "host-a"});
  const uint64_t b = Attach("b", {.name = "host-b"});
  const uint64_t c = Attach("c", {.name = "host-c"});
  Define("m", {"a", "b", "c"});
  Define(kCopies, {"c", "a", "b"});
  Attach("spare-0", {.name = "host-a"});
  Attach("spare-1", {.name = "host-c"});
  const uint64_t best = Attach("spare-2", {.name = "host-b"});
  Start(absl::Seconds(30));
  members_.Detach(b, "it is gone");
  clock_.Advance(absl::Seconds(30));
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare-2")));
  // If no spare is on another host, the first one gets the ranks nevertheless.
  members_.Detach(best, "it is gone, too");
  members_.Detach(c, "it is gone, too");
  End(absl::NotFoundError("no live worker"));
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(asked_, ElementsAre(Pair("b", "spare-2"), Pair("b", "spare-0")));
}

TEST_F(LostRanksTest, ASpareWithTheMemoryOfTheLostWorkerComesFirst) {
  const uint64_t a = Attach("a", {.capacity_bytes = 1000});
  Attach("spare-0", {.capacity_bytes = 999});
  Attach("spare-1", {.durable = true, .capacity_bytes = 500});
  Attach("spare-2", {.capacity_bytes = 1000});
  Define("m", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(30));
  // A worker that keeps tiles on disk comes before one with more memory.
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare-1")));
  ASSERT_THAT(members_.Drain("spare-1", true), IsOk());
  End(absl::FailedPreconditionError("it drains"));
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare-1"), Pair("a", "spare-2")));
}

TEST_F(LostRanksTest, AReplacementThatFailedMidwayGoesOnWithTheSameWorker) {
  const uint64_t a = Attach("a");
  Attach("spare-1");
  Define("m", {"a"});
  Define("n", {"a"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  clock_.Advance(absl::Seconds(30));
  ASSERT_THAT(asked_, ElementsAre(Pair("a", "spare-1")));
  Move("m");
  Attach("spare-0");
  End(absl::AbortedError("the ranks of mesh \"n\" were changed meanwhile"));
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(asked_.size(), 1u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare-1"), Pair("a", "spare-1")));
  Move("n");
  End();
  EXPECT_EQ(lost_ranks_->totals().replaced, 1);
}

TEST_F(LostRanksTest, AWorkerThatCannotBeReplacedDelaysNoOther) {
  const uint64_t a = Attach("a");
  const uint64_t b = Attach("b");
  Attach("spare");
  Define("m", {"a"});
  Define("n", {"b"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  members_.Detach(b, "it is gone");
  clock_.Advance(absl::Seconds(30));
  ASSERT_THAT(asked_, ElementsAre(Pair("a", "spare")));
  End(absl::FailedPreconditionError("the definition of mesh \"m\" names its workers"));
  EXPECT_THAT(asked_, ElementsAre(Pair("a", "spare"), Pair("b", "spare")));
  Move("n");
  End();
  // The spare serves a rank now. The first try moved nothing, so it does not get the other rank.
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(asked_.size(), 2u);
  EXPECT_EQ(lost_ranks_->totals().without_spare, 1);
}

TEST_F(LostRanksTest, AStopWaitsForTheReplacementThatRuns) {
  const uint64_t a = Attach("a");
  const uint64_t b = Attach("b");
  Attach("spare-0");
  Attach("spare-1");
  Define("m", {"a", "b"});
  Start(absl::Seconds(30));
  members_.Detach(a, "it is gone");
  members_.Detach(b, "it is gone");
  clock_.Advance(absl::Seconds(30));
  ASSERT_EQ(asked_.size(), 1u);
  std::thread stop([this] { lost_ranks_->Stop(); });
  Move("m");
  std::move (*done_)(absl::OkStatus());
  done_.reset();
  stop.join();
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(asked_.size(), 1u) << "none begins after the stop";
}

}  // namespace
}  // namespace shardmesh::server
