// Answers about the cluster, without a server: pages, bounds, and what is refused.
#include "server/calls/cluster_calls.h"

#include "status/reason.h"
#include "tests/unit/server/calls_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ClusterCallsTest : public CallsFixture {
 protected:
  ClusterCallsTest() : CallsFixture({"a", "b", "c"}) {}

  ClusterCalls Calls() {
    return ClusterCalls(Parts(), {.cluster_id = "cluster",
                                  .build_version = "1",
                                  .is_draining = [this] { return is_draining_; },
                                  .recovery = &recovery_,
                                  .flight_log = &flight_log_,
                                  .step_watch = &step_watch_,
                                  .hub = streams_.get(),
                                  .live = [this] { return sequencer_->Live(); }});
  }

  bool is_draining_ = false;
  StepWatch step_watch_{&clock_, &members_, &flight_log_};
};

TEST_F(ClusterCallsTest, PagesOfTheStatusAddUp) {
  v1::GetStatusRequest request;
  request.set_page_size(1);
  std::vector<std::string> meshes;
  std::vector<std::string> workers;
  int pages = 0;
  do {
    v1::GetStatusResponse page;
    ASSERT_THAT(Calls().GetStatus(request, &page), IsOk());
    EXPECT_EQ(page.worker_count(), 3);
    for (const v1::MeshStatus& mesh : page.meshes()) meshes.push_back(mesh.mesh_id());
    for (const v1::WorkerStatus& worker : page.workers()) workers.push_back(worker.identity());
    request.set_page_token(page.next_page_token());
    ASSERT_LT(++pages, 10);
  } while (!request.page_token().empty());
  EXPECT_THAT(meshes, ElementsAre("m"));
  EXPECT_THAT(workers, ElementsAre("a", "b", "c"));
}

TEST_F(ClusterCallsTest, TheStatusOfAMeshHasItsWorkersOnly) {
  v1::GetStatusRequest request;
  request.set_mesh_id("m");
  v1::GetStatusResponse status;
  ASSERT_THAT(Calls().GetStatus(request, &status), IsOk());
  EXPECT_EQ(status.workers_size(), 2);
  EXPECT_FALSE(status.meshes(0).complete()) << "its workers have not met";
  EXPECT_EQ(status.workers(0).state(), v1::WORKER_STATE_JOINING);
  EXPECT_EQ(status.state(), v1::COORDINATOR_STATE_SERVING);
  is_draining_ = true;
  status.Clear();
  ASSERT_THAT(Calls().GetStatus(request, &status), IsOk());
  EXPECT_EQ(status.state(), v1::COORDINATOR_STATE_DRAINING);
  request.set_mesh_id("n");
  EXPECT_THAT(Calls().GetStatus(request, &status), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClusterCallsTest, OnlyALostWorkerIsSaidToLackASpare) {
  const ClusterCalls calls(Parts(), {.cluster_id = "cluster",
                                     .build_version = "1",
                                     .is_draining = [] { return false; },
                                     .recovery = &recovery_,
                                     .flight_log = &flight_log_,
                                     .step_watch = &step_watch_,
                                     .hub = streams_.get(),
                                     .live = [this] { return sequencer_->Live(); },
                                     .lacks_spare = [](std::string_view) { return true; }});
  members_.Detach(members_.view()->FindWorker("c")->attachment, "it ended");
  v1::GetStatusResponse status;
  ASSERT_THAT(calls.GetStatus(v1::GetStatusRequest(), &status), IsOk());
  ASSERT_EQ(status.workers_size(), 3);
  EXPECT_EQ(status.workers(0).lost_reason(), "") << "it is attached";
  EXPECT_EQ(status.workers(2).lost_reason(), "there is no spare worker for its ranks; it ended");
}

TEST_F(ClusterCallsTest, RefusesTokensAndSizesOfNoPage) {
  const auto bad = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField);
  v1::GetStatusResponse status;
  v1::ListLinksResponse links;
  for (const char* token : {"x", "m/", "m/-1/mesh", "m/one/mesh"}) {
    v1::GetStatusRequest request;
    request.set_page_token(token);
    EXPECT_THAT(Calls().GetStatus(request, &status), bad) << token;
  }
  for (const char* token : {"x", "w/-1", "l/1", "l/one/a"}) {
    v1::ListLinksRequest request;
    request.set_page_token(token);
    EXPECT_THAT(Calls().ListLinks(request, &links), bad) << token;
  }
  v1::GetStatusRequest request;
  request.set_page_size(10'001);
  EXPECT_THAT(Calls().GetStatus(request, &status), bad);
}

TEST_F(ClusterCallsTest, ListsTheWorkersOfLinksInPages) {
  v1::ListLinksRequest request;
  request.set_mesh_id("m");
  v1::ListLinksResponse links;
  ASSERT_THAT(Calls().ListLinks(request, &links), IsOk());
  ASSERT_EQ(links.workers_size(), 2);
  EXPECT_EQ(links.workers(1).identity(), "b");
  EXPECT_EQ(links.workers(1).rank(), 1);
  EXPECT_THAT(links.links(), IsEmpty());
}

TEST_F(ClusterCallsTest, KnowsTheFlightsOfKnownWorkersOnly) {
  flight_log_.Attached("a", 1);
  v1::ListFlightRecordsRequest request;
  v1::ListFlightRecordsResponse flights;
  ASSERT_THAT(Calls().ListFlightRecords(request, &flights), IsOk());
  ASSERT_EQ(flights.workers_size(), 1);
  EXPECT_EQ(flights.workers(0).identity(), "a");
  request.set_identity("nobody");
  EXPECT_THAT(Calls().ListFlightRecords(request, &flights),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  request.set_sequence(-1);
  EXPECT_THAT(Calls().ListFlightRecords(request, &flights),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(ClusterCallsTest, ALostWorkerOfAMeshIsAFinding) {
  v1::DiagnoseResponse healthy;
  ASSERT_THAT(Calls().Diagnose({}, &healthy), IsOk());
  EXPECT_TRUE(healthy.healthy()) << healthy.verdict();
  members_.Detach(attachments_[0], "killed");
  v1::DiagnoseResponse ill;
  ASSERT_THAT(Calls().Diagnose({}, &ill), IsOk());
  EXPECT_FALSE(ill.healthy());
  ASSERT_GE(ill.findings_size(), 1);
  EXPECT_EQ(ill.findings(0).kind(), v1::FINDING_KIND_WORKER);
}

}  // namespace
}  // namespace shardmesh::server
