// Draining, forgetting and replacing workers over gRPC, with workers that hold nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerCallsTest : public HollowFixture {
 protected:
  // Workers, and then the mesh "default", whose ranks they get by the order of their identities.
  void Start(int64_t workers, int64_t ranks) {
    StartCoordinator("");
    StartWorkers(workers);
    ASSERT_THAT(CreateMesh("default", ranks), IsOk());
    ASSERT_TRUE(AwaitQuiet("default"));
  }
  std::string Worker(int64_t index) const { return workers_->IdentityOf(index); }

  absl::StatusOr<v1::DrainWorkerResponse> Drain(const std::string& identity, bool resume = false,
                                                bool validate_only = false) {
    v1::DrainWorkerRequest request;
    request.set_identity(identity);
    request.set_resume(resume);
    request.set_validate_only(validate_only);
    v1::DrainWorkerResponse response;
    const absl::Status status =
        Call<v1::ClusterService>(&v1::ClusterService::Stub::DrainWorker, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  absl::Status Forget(const std::string& identity, bool validate_only = false) {
    v1::ForgetWorkerRequest request;
    request.set_identity(identity);
    request.set_validate_only(validate_only);
    v1::ForgetWorkerResponse response;
    return Call<v1::ClusterService>(&v1::ClusterService::Stub::ForgetWorker, request, &response);
  }
  absl::StatusOr<v1::ReplaceWorkerResponse> Replace(const std::string& identity,
                                                    const std::string& replacement,
                                                    bool validate_only = false) {
    v1::ReplaceWorkerRequest request;
    request.set_identity(identity);
    request.set_replacement(replacement);
    request.set_validate_only(validate_only);
    v1::ReplaceWorkerResponse response;
    const absl::Status status =
        Call<v1::ClusterService>(&v1::ClusterService::Stub::ReplaceWorker, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  // Identities by rank.
  std::vector<std::string> RanksOf(const std::string& mesh_id) {
    v1::GetStatusRequest request;
    request.set_mesh_id(mesh_id);
    const auto status = Status(request);
    std::vector<std::string> identities;
    for (const v1::RankStatus& rank : status->meshes(0).ranks()) {
      identities.push_back(rank.identity());
    }
    return identities;
  }
  v1::WorkerState StateOf(const std::string& identity) {
    const auto status = Status();
    for (const v1::WorkerStatus& worker : status->workers()) {
      if (worker.identity() == identity) return worker.state();
    }
    return v1::WORKER_STATE_UNSPECIFIED;
  }
  bool AwaitState(const std::string& identity, v1::WorkerState state) {
    return Eventually([&] { return StateOf(identity) == state; });
  }
};

TEST_F(WorkerCallsTest, ADrainedWorkerGetsNoWorkUntilItIsResumed) {
  ASSERT_NO_FATAL_FAILURE(Start(3, 2));
  const auto drained = Drain(Worker(1));
  ASSERT_THAT(drained, IsOk());
  EXPECT_EQ(drained->rank_count(), 1);
  ASSERT_EQ(drained->ranks_size(), 1);
  EXPECT_EQ(drained->ranks(0).mesh_id(), "default");
  EXPECT_EQ(drained->ranks(0).rank(), 1);
  EXPECT_EQ(drained->work(), 0);
  EXPECT_EQ(drained->arrays(), 0);
  EXPECT_EQ(StateOf(Worker(1)), v1::WORKER_STATE_DRAINING);

  v1::ExecuteResponse executed;
  const absl::Status refused = Call<v1::ComputeService>(
      &v1::ComputeService::Stub::Execute, Product(OpenSession(), "default"), &executed);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is drained by an operator"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(StrCat("`shardmesh admin worker drain ", Worker(1), " --resume` takes")));

  // New meshes do without it.
  ASSERT_THAT(CreateMesh("m", 2), IsOk());
  EXPECT_TRUE(AwaitQuiet("m"));
  EXPECT_THAT(RanksOf("m"), ElementsAre(Worker(0), Worker(2)));
  ASSERT_THAT(CreateMesh("big", 3), IsOk());
  EXPECT_THAT(RanksOf("big"), ElementsAre());
  const absl::Status too_big = Call<v1::ComputeService>(&v1::ComputeService::Stub::Execute,
                                                        Product(OpenSession(), "big"), &executed);
  EXPECT_THAT(too_big, CarriesFacts(Reason::kMeshIncomplete,
                                    {{fact::kMesh, "big"}, {fact::kHave, 2}, {fact::kNeed, 3}}));
  EXPECT_THAT(std::string(too_big.message()),
              AllOf(HasSubstr("start 1 more"), HasSubstr(StrCat(Worker(1), " --resume`"))));

  // The same process over another stream drains as before.
  workers_->AttachAgain(1);
  EXPECT_TRUE(Eventually([this] { return workers_->totals().attaches == 4; }));
  EXPECT_EQ(StateOf(Worker(1)), v1::WORKER_STATE_DRAINING);

  ASSERT_THAT(Drain(Worker(1), /*resume=*/true), IsOk());
  EXPECT_TRUE(AwaitState(Worker(1), v1::WORKER_STATE_READY));
  EXPECT_TRUE(AwaitQuiet("default"));
  EXPECT_TRUE(AwaitQuiet("big")) << "it is there for a mesh that waited for workers";
  ASSERT_THAT(Drain(Worker(1), /*resume=*/true), IsOk()) << "once more";
}

TEST_F(WorkerCallsTest, AnIdentityThatNoWorkerCanHaveIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 1));
  for (const std::string& identity : {std::string("a\nb"), std::string()}) {
    for (const absl::Status& refused :
         {Drain(identity).status(), Forget(identity), Replace(identity, Worker(0)).status(),
          Replace(Worker(0), identity).status()}) {
      EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    }
  }
  EXPECT_THAT(Drain(std::string(256, 'x')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST_F(WorkerCallsTest, AWorkerWithoutAPortForItsPeersShowsNone) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 1));
  const auto status = Status();
  ASSERT_THAT(status, IsOk());
  ASSERT_EQ(status->workers_size(), 1);
  EXPECT_FALSE(status->workers(0).has_exchange_port());
}

TEST_F(WorkerCallsTest, AWatcherHearsThatAWorkerStillDrainsWhenItAttachesAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 1));
  const auto stub = v1::ClusterService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  v1::WatchClusterRequest request;
  request.add_subjects(v1::CLUSTER_SUBJECT_WORKERS);
  const auto stream = stub->WatchCluster(&context, request);
  v1::WatchClusterResponse change;
  ASSERT_TRUE(stream->Read(&change));
  ASSERT_TRUE(change.has_started());
  ASSERT_THAT(Drain(Worker(0)), IsOk());
  workers_->AttachAgain(0);
  for (const v1::WorkerChangeKind kind :
       {v1::WORKER_CHANGE_KIND_DRAINING, v1::WORKER_CHANGE_KIND_ATTACHED,
        v1::WORKER_CHANGE_KIND_DRAINING}) {
    ASSERT_TRUE(stream->Read(&change));
    EXPECT_EQ(change.worker().kind(), kind);
  }
  context.TryCancel();
  static_cast<void>(stream->Finish());
}

TEST_F(WorkerCallsTest, ADrainEndsWithTheProcessOfTheWorker) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 1));
  ASSERT_THAT(Drain(Worker(0)), IsOk());
  workers_->Leave(0);
  ASSERT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Drain(Worker(0)).status(),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, Worker(0)}}));
  workers_->Return(0);
  EXPECT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_READY));
  EXPECT_THAT(Drain("").status(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(WorkerCallsTest, ForgetsOnlyALostWorkerWithoutRanks) {
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  EXPECT_THAT(Forget(Worker(0)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Forget(Worker(0)),
              CarriesFacts(Reason::kWorkerServesRank, {{fact::kIdentity, Worker(0)},
                                                       {fact::kMesh, "default"},
                                                       {fact::kRank, 0},
                                                       {fact::kHave, 1}}));
  EXPECT_THAT(Forget(Worker(1)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Forget(Worker(1)),
              CarriesFacts(Reason::kWorkerAttached, {{fact::kIdentity, Worker(1)}}));
  workers_->Leave(1);
  ASSERT_TRUE(AwaitState(Worker(1), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Forget(Worker(1)), IsOk());
  EXPECT_EQ(StateOf(Worker(1)), v1::WORKER_STATE_UNSPECIFIED);
  EXPECT_THAT(Forget(Worker(1)),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, Worker(1)}}));
  EXPECT_THAT(Forget(""), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  workers_->Return(1);
  EXPECT_TRUE(AwaitState(Worker(1), v1::WORKER_STATE_READY)) << "it may come back";
}

TEST_F(WorkerCallsTest, GivesAllRanksOfALostWorkerToAnother) {
  ASSERT_NO_FATAL_FAILURE(Start(3, 2));
  ASSERT_THAT(CreateMesh("one", 1), IsOk());
  ASSERT_TRUE(AwaitQuiet("one"));
  ASSERT_THAT(RanksOf("one"), ElementsAre(Worker(0)));
  workers_->Leave(0);
  ASSERT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_LOST));

  const auto replaced = Replace(Worker(0), Worker(2));
  ASSERT_THAT(replaced, IsOk());
  EXPECT_EQ(replaced->rank_count(), 2);
  ASSERT_EQ(replaced->ranks_size(), 2);
  EXPECT_EQ(replaced->ranks(0).mesh_id(), "default");
  EXPECT_EQ(replaced->ranks(0).rank(), 0);
  EXPECT_EQ(replaced->ranks(1).mesh_id(), "one");
  EXPECT_TRUE(AwaitQuiet("default"));
  EXPECT_TRUE(AwaitQuiet("one"));
  EXPECT_THAT(RanksOf("default"), ElementsAre(Worker(2), Worker(1)));
  EXPECT_THAT(RanksOf("one"), ElementsAre(Worker(2)));

  // Its ranks have moved, hence the worker attaches again.
  absl::StatusOr<v1::ReplaceWorkerResponse> again;
  EXPECT_TRUE(Eventually([&] {
    again = Replace(Worker(0), Worker(2));
    return ReasonOf(again.status()) != Reason::kRecovering;
  }));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->rank_count(), 0) << "it has none any more";
  workers_->Return(0);
  EXPECT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_READY));
  EXPECT_TRUE(AwaitQuiet("default"));
  EXPECT_THAT(RanksOf("default"), ElementsAre(Worker(2), Worker(1))) << "it is a spare one now";
}

TEST_F(WorkerCallsTest, ReplacesNoWorkerThatIsThereAndByNoneThatCannotServe) {
  ASSERT_NO_FATAL_FAILURE(Start(4, 2));
  EXPECT_THAT(Replace(Worker(0), Worker(2)).status(),
              CarriesFacts(Reason::kWorkerAttached, {{fact::kIdentity, Worker(0)}}));
  EXPECT_THAT(Replace("nobody", Worker(2)).status(),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, "nobody"}}));
  workers_->Leave(0);
  ASSERT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Replace(Worker(0), "nobody").status(),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, "nobody"}}));
  EXPECT_THAT(Replace(Worker(0), Worker(1)).status(),
              CarriesFacts(Reason::kWorkerServesRank, {{fact::kIdentity, Worker(1)},
                                                       {fact::kMesh, "default"},
                                                       {fact::kRank, 1},
                                                       {fact::kHave, 1}}));
  ASSERT_THAT(Drain(Worker(2)), IsOk());
  EXPECT_THAT(Replace(Worker(0), Worker(2)).status(),
              CarriesFacts(Reason::kNotServing, {{fact::kIdentity, Worker(2)}}));
  workers_->Leave(3);
  ASSERT_TRUE(AwaitState(Worker(3), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Replace(Worker(0), Worker(3)).status(),
              CarriesFacts(Reason::kRecovering, {{fact::kIdentity, Worker(3)}}));
  EXPECT_THAT(Replace(Worker(0), Worker(0)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Replace("", Worker(2)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Replace(Worker(0), "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(RanksOf("default"), ElementsAre(Worker(0), Worker(1)));
}

TEST_F(WorkerCallsTest, AMeshWhoseDefinitionNamesItsWorkersIsRefusedAndNoRankMoves) {
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  v1::CreateEntryRequest request;
  request.set_request_id("named");
  request.set_name("named");
  v1::MeshDefinition* const mesh = request.mutable_value()->mutable_mesh();
  mesh->mutable_mesh()->add_axes()->set_name("x");
  mesh->mutable_mesh()->mutable_axes(0)->set_size(1);
  mesh->add_workers(Worker(0));
  v1::CreateEntryResponse response;
  ASSERT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, request, &response),
              IsOk());
  ASSERT_TRUE(AwaitQuiet("named"));
  workers_->Leave(0);
  ASSERT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_LOST));
  const absl::Status refused = Replace(Worker(0), Worker(1)).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused, CarriesFacts(Reason::kRanksDefined,
                                    {{fact::kMesh, "named"}, {fact::kIdentity, Worker(0)}}));
  EXPECT_THAT(RanksOf("default"), ElementsAre(Worker(0))) << "the other mesh stays too";
}

TEST_F(WorkerCallsTest, ValidatesADrainAndDrainsNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(1, 1));
  const auto checked = Drain(Worker(0), /*resume=*/false, /*validate_only=*/true);
  ASSERT_THAT(checked, IsOk());
  EXPECT_EQ(StateOf(Worker(0)), v1::WORKER_STATE_READY);
  const auto drained = Drain(Worker(0));
  ASSERT_THAT(drained, IsOk());
  EXPECT_EQ(checked->rank_count(), 1);
  EXPECT_EQ(checked->SerializeAsString(), drained->SerializeAsString());
  EXPECT_THAT(Drain(Worker(0), /*resume=*/true, /*validate_only=*/true), IsOk());
  EXPECT_EQ(StateOf(Worker(0)), v1::WORKER_STATE_DRAINING);
  EXPECT_THAT(Drain("nobody", /*resume=*/false, /*validate_only=*/true).status(),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, "nobody"}}));
  EXPECT_THAT(Drain("", /*resume=*/false, /*validate_only=*/true).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(WorkerCallsTest, ValidatesAForgettingAndForgetsNobody) {
  ASSERT_NO_FATAL_FAILURE(Start(2, 1));
  EXPECT_THAT(Forget(Worker(0), /*validate_only=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kWorkerServesRank));
  EXPECT_THAT(Forget(Worker(1), /*validate_only=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kWorkerAttached));
  EXPECT_THAT(Forget("nobody", /*validate_only=*/true),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  workers_->Leave(1);
  ASSERT_TRUE(AwaitState(Worker(1), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Forget(Worker(1), /*validate_only=*/true), IsOk());
  EXPECT_EQ(StateOf(Worker(1)), v1::WORKER_STATE_LOST);
}

TEST_F(WorkerCallsTest, ValidatesAReplacementAndMovesNoRank) {
  ASSERT_NO_FATAL_FAILURE(Start(3, 2));
  EXPECT_THAT(Replace(Worker(0), Worker(2), /*validate_only=*/true).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kWorkerAttached));
  workers_->Leave(0);
  ASSERT_TRUE(AwaitState(Worker(0), v1::WORKER_STATE_LOST));
  EXPECT_THAT(Replace(Worker(0), Worker(1), /*validate_only=*/true).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kWorkerServesRank));
  const auto checked = Replace(Worker(0), Worker(2), /*validate_only=*/true);
  ASSERT_THAT(checked, IsOk());
  EXPECT_EQ(checked->rank_count(), 1);
  EXPECT_THAT(RanksOf("default"), ElementsAre(Worker(0), Worker(1)));
  const auto replaced = Replace(Worker(0), Worker(2));
  ASSERT_THAT(replaced, IsOk());
  EXPECT_EQ(checked->SerializeAsString(), replaced->SerializeAsString());
}

}  // namespace
}  // namespace shardmesh::test
