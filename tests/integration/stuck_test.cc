// Ranks that die, stop or come late in the middle of a collective: who it is, is said to the
// client, on the other ranks and by `shardmesh doctor`, in time; and the next collective is right.
#include <signal.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/integration/collective_cluster.h"
#include "tests/integration/opposite_orders.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Kind = client::ClusterFinding::Kind;

// Of a broken stream, and beyond a deadline.
constexpr absl::Duration kNamedWithin = absl::Seconds(2);

// By how data goes between the workers.
class StuckTest : public CollectiveCluster, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.coordinator_flags = {}, .worker_flags = {StrCat("--transport=", GetParam())}}));
  }

  std::map<std::string, int64_t> Pids() {
    std::map<std::string, int64_t> pids;
    const absl::StatusOr<client::ClusterStatus> status = client().GetStatus();
    for (const client::WorkerStatus& worker : status->workers) pids[worker.identity] = worker.pid;
    return pids;
  }
};

INSTANTIATE_TEST_SUITE_P(Over, StuckTest, ::testing::Values("stream", "shm"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(StuckTest, ARankThatIsKilledInACollectiveIsNamedEverywhere) {
  std::map<std::string, int64_t> before = Pids();
  // Stopped, so that the others surely wait when it is killed.
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  auto sum = SumWithin(absl::Seconds(60));
  const client::ClusterFinding stuck = AwaitBlame("worker-1", Kind::kStuck);
  EXPECT_THAT(stuck.waiting_ranks, ElementsAre(0, 2, 3)) << stuck.summary;
  EXPECT_THAT(stuck.summary, AllOf(HasSubstr(StrCat("step ", stuck.step)), HasSubstr("rank 1"),
                                   HasSubstr("all-reduce"), HasSubstr("no heartbeat")));
  const absl::Time killed = absl::Now();
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  const auto result = sum.get();
  EXPECT_LT(absl::Now() - killed, kNamedWithin);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("worker-1"), HasSubstr(StrCat("step ", stuck.step)),
                    HasSubstr("all-reduce over fsdp,tp")));
  AwaitBlame("worker-1", Kind::kFailed);
  ExpectNamedByTheOthers("worker-1", stuck.step);
  ExpectDoctorNames("worker-1");
  EXPECT_THAT(client().ListFlightRecords({.identity = "worker-1"}), IsOk())
      << "what it told survives it";

  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ASSERT_NO_FATAL_FAILURE(PutMatrix());
  ExpectSumSoon();
  std::map<std::string, int64_t> after = Pids();
  before.erase("worker-1");
  after.erase("worker-1");
  EXPECT_EQ(after, before) << "the others were not started again";
}

TEST_P(StuckTest, AStoppedRankIsNamedAtTheDeadlineAndGoesOnAfterwards) {
  ExpectSumSoon();
  ASSERT_THAT(cluster_->Signal("worker-3", SIGSTOP), IsOk());
  // Before its streams count as broken.
  constexpr absl::Duration kTimeout = absl::Milliseconds(2500);
  const absl::Time begun = absl::Now();
  const auto result = SumWithin(kTimeout).get();
  EXPECT_LT(absl::Now() - begun, kTimeout + kNamedWithin);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  const client::ClusterFinding failed = AwaitBlame("worker-3", Kind::kFailed);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr(StrCat("step ", failed.step)),
                    HasSubstr("ranks 0, 1 and 2 wait in instruction 0"),
                    HasSubstr("for rank 3 (worker-3)")));
  ExpectNamedByTheOthers("worker-3", failed.step);
  ExpectDoctorNames("worker-3");

  ASSERT_THAT(cluster_->Signal("worker-3", SIGCONT), IsOk());
  ExpectSumSoon();
}

TEST_P(StuckTest, ARankThatIsLateIsWaitedFor) {
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  auto sum = SumWithin(absl::Seconds(60));
  AwaitBlame("worker-2", Kind::kStuck);
  ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  const auto result = sum.get();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(ElementsOf(*result), Expected());
  // And with it the finding goes.
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<client::Diagnosis> diagnosis = client().Diagnose();
    return diagnosis.ok() && diagnosis->healthy;
  }));
  const CommandResult doctor = cluster_->Run({"doctor"});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr("nothing is stuck"));
}

TEST_P(StuckTest, DoctorShowsWhatEachRankDidLast) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult result, client().Collective(Sum()));
  // Heartbeats bring the records.
  std::vector<client::WorkerFlight> flights;
  ASSERT_TRUE(Eventually([&] {
    auto listed = client().ListFlightRecords({.step = result.sequence});
    if (listed.ok()) flights = *std::move(listed);
    return flights.size() == 4 && std::none_of(flights.begin(), flights.end(),
                                               [](const auto& f) { return f.records.empty(); });
  }));
  for (const client::WorkerFlight& flight : flights) {
    const rpc::FlightRecord& record = flight.records.front();
    EXPECT_EQ(record.what, "op 0 (collective): all-reduce over fsdp,tp");
    EXPECT_THAT(record.outcome, IsOk());
    EXPECT_LE(record.started, record.ended);
    EXPECT_EQ(record.peers.size(), 3u);
    for (const rpc::FlightRecord::Peer& peer : record.peers) {
      EXPECT_LE(peer.data_came, record.ended) << "of rank " << peer.rank;
    }
  }

  const CommandResult json =
      cluster_->Run({"doctor", "--worker=worker-2", "--records=1", "--output=json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json document = nlohmann::json::parse(json.out);
  EXPECT_EQ(document["healthy"], true);
  ASSERT_EQ(document["workers"].size(), 1u);
  EXPECT_EQ(document["workers"][0]["identity"], "worker-2");
  ASSERT_EQ(document["workers"][0]["records"].size(), 1u);
  EXPECT_EQ(document["workers"][0]["records"][0]["step"], result.sequence);
  const CommandResult table = cluster_->Run({"doctor", StrCat("--step=", result.sequence)});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("all-reduce over fsdp,tp"), HasSubstr("worker-3")));
  const CommandResult unknown = cluster_->Run({"doctor", "--worker=worker-9"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("worker-9"), HasSubstr("NOT_FOUND")));
}

TEST_P(StuckTest, ClientsThatUseGroupsInOppositeOrdersNeverDeadlock) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t done,
                                 RunInOppositeOrders(cluster_->address(), absl::Seconds(3)));
  EXPECT_GT(done, 10);
}

}  // namespace
}  // namespace shardmesh::test
