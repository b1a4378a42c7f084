// The facade against a small cluster in the same process.
#include "client/mesh_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/str_cat.h"
#include "tensor/npy.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/small_cluster.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using test::HeldCall;
using test::SmallCoordinator;
using test::SmallWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MeshClientTest : public ::testing::Test {
 protected:
  MeshClientTest() {
    std::vector<SmallWorker*> workers;
    for (auto& worker : workers_) {
      worker = std::make_unique<SmallWorker>();
      workers.push_back(worker.get());
    }
    coordinator_ = std::make_unique<SmallCoordinator>(*Mesh::Parse("tp=2"), workers);
    client_ = *MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Seconds(60)});
  }

  // A tensor of 16 MiB, by columns.
  PutTensor Large(const std::string& name) {
    bytes_.resize(size_t{16} << 20, 'b');
    return {.name = name,
            .view = *TensorView::Create(Dtype::kU8, {4096, 4096}, bytes_),
            .spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})};
  }

  // Puts a tensor of U8, all of it on each worker, whose elements are all `fill`.
  void PutFilled(const std::string& name, const Shape& shape, char fill) {
    const std::string bytes(static_cast<size_t>(shape[0] * shape[1]), fill);
    const PutTensor tensor{.name = name,
                           .view = *TensorView::Create(Dtype::kU8, shape, bytes),
                           .spec = PartitionSpec()};
    ASSERT_THAT(client_->arrays().PutTensors({tensor}), IsOk());
  }

  std::string bytes_;
  std::unique_ptr<SmallWorker> workers_[2];
  std::unique_ptr<SmallCoordinator> coordinator_;
  std::unique_ptr<MeshClient> client_;
};

TEST_F(MeshClientTest, NamesACoordinatorThatIsNotThereWithinThreeSeconds) {
  const std::string address = coordinator_->address();
  client_.reset();
  coordinator_.reset();
  const absl::Time start = absl::Now();
  const auto client = MeshClient::Connect(address);
  EXPECT_THAT(client, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(client.status().ToString(), HasSubstr(address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(3.5));
}

TEST_F(MeshClientTest, RefusesWhatIsNoAddress) {
  EXPECT_THAT(MeshClient::Connect("nowhere"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(MeshClientTest, LoadsACheckpointAndGathersItsTensors) {
  const std::string path = ::testing::TempDir() + "/mesh_client_test.safetensors";
  const std::string data(2 * 6 * 4 + 3 * 8, 'q');
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {2, 6}}, {"i", Dtype::kI64, {3}}}, {}));
    ASSERT_THAT(writer.Append(data), IsOk());
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult loaded, client_->arrays().LoadCheckpoint(path));
  EXPECT_EQ(loaded.arrays.size(), 2u);
  EXPECT_EQ(loaded.revision, 42);
  EXPECT_EQ(loaded.durability, Durability::kMemory);
  EXPECT_EQ(loaded.sent_bytes, static_cast<int64_t>(2 * data.size()));  // both hold everything

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0].name, "i");
  EXPECT_EQ(arrays[1].name, "w");

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor tensor,
                                 client_->arrays().Gather(ArraySelector::ByName("w")));
  EXPECT_EQ(tensor.array().descriptor.shape, (Shape{2, 6}));
  EXPECT_EQ(std::string(tensor.view().bytes().data(), tensor.view().bytes().size()),
            data.substr(0, 2 * 6 * 4));

  const std::string npy = ::testing::TempDir() + "/mesh_client_test.npy";
  ASSERT_THAT(client_->arrays().GatherToNpy(ArraySelector::ByName("i"), npy), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(npy));
  EXPECT_EQ(file.View().dtype(), Dtype::kI64);
}

TEST_F(MeshClientTest, KeepsTheServersErrorsWhole) {
  const auto tensor = client_->arrays().Gather(ArraySelector::ByName("nope"));
  EXPECT_THAT(tensor, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(tensor.status().message(), "no array is named 'nope'");
}

TEST_F(MeshClientTest, AsksAgainWhileTheCoordinatorDoesNotServe) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::UnavailableError("starting"), Reason::kNotServing));
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, AsksAgainWhenACallIsEndedWithoutAnAnswer) {
  // As gRPC does with a call that reaches a server while that one stops.
  coordinator_->FailNextGetVersion(absl::CancelledError("CANCELLED"));
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, AsksOnceWhenWhatItAskedForWasCancelled) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::CancelledError("by another client"), Reason::kCancelled));
  EXPECT_THAT(client_->cluster().GetVersion(),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

TEST_F(MeshClientTest, AsksOnceWhenAWorkerIsLost) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::UnavailableError("rank 1"), Reason::kWorkerLost));
  EXPECT_THAT(client_->cluster().GetVersion(),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(MeshClientTest, AsksOnceWhereSomebodyMustActWhateverTheRetryDelay) {
  constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  for (const auto& [code, reason] :
       {std::pair(kUnavailable, Reason::kWorkerLost), std::pair(kUnavailable, Reason::kStepAborted),
        std::pair(absl::StatusCode::kAborted, Reason::kStaleEpoch),
        std::pair(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete)}) {
    const int before = coordinator_->version_calls();
    coordinator_->FailNextGetVersion(
        WithRetryDelay(WithReason(absl::Status(code, "m"), reason), absl::Milliseconds(1)));
    const absl::Status answer = client_->cluster().GetVersion().status();
    EXPECT_THAT(answer, StatusIs(code, reason));
    EXPECT_EQ(RetryDelayOf(answer), absl::Milliseconds(1));
    EXPECT_EQ(coordinator_->version_calls() - before, 1) << ReasonName(reason);
  }
}

TEST_F(MeshClientTest, AsksAFewTimesWhereTheStateMayLast) {
  for (const absl::Status& error :
       {WithReason(absl::UnavailableError("draining"), Reason::kNotServing),
        WithReason(absl::ResourceExhaustedError("behind"), Reason::kOverloaded)}) {
    const absl::Status soon = WithRetryDelay(error, absl::Milliseconds(1));
    const int before = coordinator_->version_calls();
    coordinator_->FailGetVersions(soon, 1000);
    EXPECT_THAT(client_->cluster().GetVersion(), StatusIs(error.code(), ReasonOf(error)));
    EXPECT_EQ(coordinator_->version_calls() - before, kFewAttempts) << error;
    coordinator_->FailGetVersions(soon, kFewAttempts - 1);
    EXPECT_THAT(client_->cluster().GetVersion(), IsOk()) << error;
  }
}

TEST_F(MeshClientTest, AsksUntilTheDeadlineWhereTheStatePassesByItself) {
  const absl::Status recovering = WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Milliseconds(1));
  const int before = coordinator_->version_calls();
  coordinator_->FailGetVersions(recovering, kFewAttempts + 2);
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(30)}), IsOk());
  EXPECT_EQ(coordinator_->version_calls() - before, kFewAttempts + 3);
}

TEST_F(MeshClientTest, AClientThatAwaitsTheCoordinatorAsksUntilTheDeadlineWhileItDoesNotServe) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_, MeshClient::Connect(coordinator_->address(), {.await_coordinator = true}));
  coordinator_->FailGetVersions(
      WithRetryDelay(WithReason(absl::UnavailableError("draining"), Reason::kNotServing),
                     absl::Milliseconds(1)),
      kFewAttempts + 2);
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(30)}), IsOk());
}

TEST_F(MeshClientTest, ACallMayHaveATimeLimitOfItsOwn) {
  const absl::Status late =
      client_->cluster().GetVersion({.timeout = absl::Nanoseconds(1)}).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr(coordinator_->address()));
  coordinator_->FailNextGetVersion(WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Seconds(20)));
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(2)}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering))
      << "the next attempt would come too late";
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk()) << "the limit was that of one call";
}

TEST_F(MeshClientTest, ACancelledCallEndsAtOnce) {
  Cancellation cancellation;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_, MeshClient::Connect(coordinator_->address(), {.on_wait = [&](const absl::Status&) {
                                     cancellation.Cancel();
                                   }}));
  coordinator_->FailNextGetVersion(WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Seconds(20)));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->cluster().GetVersion({.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "it waited for the next attempt";
  EXPECT_THAT(client_->cluster().GetVersion({.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled))
      << "a cancellation is permanent";
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, ACancelledPutEndsAndIsAborted) {
  workers_[1]->StallPuts();
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(workers_[1]->AwaitStalledPut());
    cancellation.Cancel();
  });
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  canceller.join();
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a")),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MeshClientTest, APutThatIsCancelledWhileTheCoordinatorJudgesItIsAborted) {
  workers_[1]->FailPutsAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->Hold(HeldCall::kCommit);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kCommit));
    cancellation.Cancel();
  });
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5)) << "it waited for the verdict";
  canceller.join();
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
}

TEST_F(MeshClientTest, ACancelledGatherLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    cancellation.Cancel();
    coordinator_->LetGo(HeldCall::kBeginGet);
  });
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr,
                                       {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  canceller.join();
  EXPECT_TRUE(coordinator_->AwaitAnsweredGets(1));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, AGatherWhoseTimeIsOverLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  constexpr absl::Duration kTimeout = absl::Milliseconds(500);
  std::thread late([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    absl::SleepFor(kTimeout);  // the gather's time is over then
    coordinator_->LetGo(HeldCall::kBeginGet);
  });
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr, {.timeout = kTimeout}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  late.join();
  EXPECT_TRUE(coordinator_->AwaitAnsweredGets(1));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, ACancelledGatherDoesNotWaitForACoordinatorThatHangs) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    cancellation.Cancel();
  });
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr,
                                       {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  canceller.join();
}

TEST_F(MeshClientTest, AGatherLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a")), IsOk());
  EXPECT_EQ(coordinator_->answered_gets(), 1);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, ASliceIsOfTheArrayThatTheNameMeansThen) {
  PutFilled("tall", {8, 6}, 't');
  PutFilled("flat", {2, 6}, 'f');
  const std::vector<std::pair<std::string, Shape>> others = {{"tall", {8, 6}}, {"flat", {2, 6}}};
  for (const auto& [other, shape] : others) {
    PutFilled("a", {4, 6}, 'a');
    // Between the question for the shape and the beginning of the get.
    coordinator_->BeforeNextGet([this, to = other] { coordinator_->MoveName("a", to); });
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const GatheredTensor tensor,
        client_->arrays().Gather(ArraySelector::ByName("a"), ArraySlice(2)));
    EXPECT_EQ(tensor.part(), Tile::Whole(shape));
    EXPECT_EQ(tensor.view().bytes()[0], other[0]);
    EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  }
}

TEST_F(MeshClientTest, AllCallsOfATransferHaveItsTraceContext) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  ASSERT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.traceparent = trace}), IsOk());
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr, {.traceparent = trace}),
              IsOk());
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::ResourceExhaustedError("too much"), Reason::kMemoryLimit));
  EXPECT_FALSE(client_->arrays().PutTensors({Large("b")}, {}, {.traceparent = trace}).ok());
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  workers_[0]->FailNextPutAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->FailTransfers(WithReason(absl::UnavailableError("lost"), Reason::kWorkerLost));
  EXPECT_THAT(client_->arrays().PutTensors({Large("b")}, {}, {.traceparent = trace}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost))
      << "by the coordinator's verdict";
  EXPECT_THAT(coordinator_->traces(), ElementsAre(trace));
  EXPECT_THAT(workers_[0]->traces(), ElementsAre(trace));
  EXPECT_THAT(workers_[1]->traces(), ElementsAre(trace));
}

TEST_F(MeshClientTest, RefusesATensorWithSeveralLayouts) {
  PutTensor tensor = Large("a");
  tensor.preset = "activations";
  const auto put = client_->arrays().PutTensors({tensor});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(put.status().message(), HasSubstr("give one of spec, axes and preset"));
}

TEST_F(MeshClientTest, WatchesEndAtTheirTimeLimit) {
  const auto watch = [&](absl::Duration until, const CallOptions& options) {
    return client_->catalog().Watch(
        {}, std::nullopt, absl::Now() + until, [](const CatalogChanges&) { return true; }, options);
  };
  const absl::Duration soon = absl::Milliseconds(100);
  const absl::Duration late = absl::Seconds(60);
  EXPECT_THAT(watch(late, {.timeout = soon}), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(watch(soon, {.timeout = late}), IsOk());
  EXPECT_THAT(watch(soon, {}), IsOk());
  EXPECT_THAT(client_->cluster().WatchChanges({}, [](const ClusterChange&) { return true; },
                                              {.timeout = soon}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(MeshClientTest, LeavesOutChangesOfAKindThatItDoesNotKnow) {
  std::vector<v1::WatchClusterResponse> changes(3);
  changes[0].mutable_array()->set_kind(static_cast<v1::ArrayChangeKind>(77));
  changes[1].mutable_name()->set_kind(static_cast<v1::NameChangeKind>(77));
  changes[2].mutable_array()->set_kind(v1::ARRAY_CHANGE_KIND_CREATED);
  changes[2].mutable_array()->set_array_id("known");
  coordinator_->ReportChanges(changes);
  std::vector<std::string> reported;
  EXPECT_THAT(
      client_->cluster().WatchChanges(
          {},
          [&](const ClusterChange& change) {
            const auto* const array = std::get_if<ArrayChange>(&change.event);
            reported.push_back(array == nullptr ? StrCat(change.event.index()) : array->array_id);
            return array == nullptr;
          },
          {.timeout = absl::Seconds(30)}),
      IsOk());
  EXPECT_THAT(reported, ElementsAre("0", "known"));
}

TEST_F(MeshClientTest, ForgetsAWorkerOnceThoughTheAnswerWasLost) {
  coordinator_->LoseNextAnswerToForget(absl::UnavailableError("the connection broke"));
  EXPECT_THAT(client_->cluster().ForgetWorker("lost"), IsOk());
  EXPECT_THAT(client_->cluster().ForgetWorker("lost"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MeshClientTest, AMalformedResultOfABatchIsAnErrorOfItsQuestion) {
  v1::BatchResolveSpecsResponse response;
  response.add_results()->mutable_response();
  response.add_results();
  response.add_results()->mutable_error();  // OK
  coordinator_->AnswerBatchesWith(response);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto answers, client_->layouts().BatchResolveSpecs(
                                                         std::vector<ResolveSpecQuestion>(3)));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_THAT(answers[1], StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(answers[2], StatusIs(absl::StatusCode::kInternal));
}

TEST_F(MeshClientTest, ACallThatWaitsForAnothersSessionKeepsItsOwnLimits) {
  coordinator_->Hold(HeldCall::kOpenSession);
  std::thread opener([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kOpenSession));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.timeout = absl::Milliseconds(100)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  Cancellation cancellation;
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(100));  // the call waits by then, on most machines
    cancellation.Cancel();
  });
  EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  canceller.join();
  std::thread waiter([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  coordinator_->LetGo(HeldCall::kOpenSession);
  opener.join();
  waiter.join();
  EXPECT_EQ(coordinator_->opened_sessions(), 1);
}

TEST_F(MeshClientTest, AnotherCallOpensTheSessionWhenTheFirstOneIsCancelled) {
  coordinator_->Hold(HeldCall::kOpenSession);
  Cancellation cancellation;
  std::thread opener([&] {
    EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.cancellation = &cancellation}),
                StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  });
  EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kOpenSession));
  std::thread waiter([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  cancellation.Cancel();
  opener.join();
  coordinator_->LetGo(HeldCall::kOpenSession);
  waiter.join();
}

TEST_F(MeshClientTest, OpensOneSessionRenewsItAndClosesIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Milliseconds(60)}));
  EXPECT_EQ(coordinator_->opened_sessions(), 0);
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_EQ(coordinator_->opened_sessions(), 1);
  EXPECT_TRUE(coordinator_->AwaitRenewals(3));
  client_.reset();
  EXPECT_EQ(coordinator_->open_sessions(), 0);
}

TEST_F(MeshClientTest, OpensAnotherSessionWhenItsOwnIsGone) {
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  coordinator_->ForgetSessions();
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_EQ(coordinator_->opened_sessions(), 2);
}

TEST_F(MeshClientTest, AsksForOnePutByOneRequest) {
  coordinator_->FailNextPuts(
      {absl::UnavailableError("the stream was cut"), absl::CancelledError("CANCELLED")});
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  const std::vector<std::string> first = coordinator_->put_request_ids();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1], first[0]);
  EXPECT_EQ(first[2], first[0]);
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_NE(coordinator_->put_request_ids().back(), first[0]) << "another put";
}

TEST_F(MeshClientTest, BeginsAnewWhereAPutEndedBeforeItsAnswerCame) {
  coordinator_->FailNextPuts(
      {absl::UnavailableError("the stream was cut"),
       WithReason(absl::FailedPreconditionError("has ended"), Reason::kRequestIdReused)});
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  const std::vector<std::string> ids = coordinator_->put_request_ids();
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
}

TEST_F(MeshClientTest, AWorkerLostWhilePuttingIsTheCoordinatorsToName) {
  workers_[1]->FailPutsAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->FailTransfers(
      WithReason(absl::UnavailableError("worker w-1 of rank 1 is lost"), Reason::kWorkerLost));
  const auto put = client_->arrays().PutTensors({Large("a")});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(put.status().message(), "worker w-1 of rank 1 is lost");
}

TEST_F(MeshClientTest, StopsSendingToAWorkerThatTakesNothingOnceTheTransferFailed) {
  workers_[1]->StallPuts();
  std::thread failer([this] {
    EXPECT_TRUE(workers_[1]->AwaitStalledPut());
    coordinator_->FailTransfers(
        WithReason(absl::UnavailableError("worker w-1 is lost"), Reason::kWorkerLost));
  });
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  failer.join();
}

TEST_F(MeshClientTest, AbortsATransferThatAWorkerRefuses) {
  workers_[0]->FailPutsAfter(
      1, WithReason(absl::ResourceExhaustedError("too much"), Reason::kMemoryLimit));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  EXPECT_TRUE(arrays.empty());
}

// As gRPC ends a call when the other side's memory for calls is used up.
absl::Status ShortOfCallMemory() {
  return absl::ResourceExhaustedError("Received RST_STREAM with error code 11");
}

TEST_F(MeshClientTest, PutsAgainWhenAWorkerIsShortOfMemoryForCalls) {
  workers_[0]->FailNextPutAfter(1, ShortOfCallMemory());
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
}

TEST_F(MeshClientTest, PutsOnceWhenTheCommitIsNotAnswered) {
  coordinator_->LoseAnswersToCommits(ShortOfCallMemory());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.transfer_timeout = absl::Seconds(2)}));
  const auto put = client_->arrays().PutTensors({Large("a")});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(put.status().message(), HasSubstr("may be committed"));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  EXPECT_EQ(arrays.size(), 1u) << "it was committed all the same";
}

TEST_F(MeshClientTest, PutsOnceWhenTheAbortIsNotAnswered) {
  workers_[0]->FailNextPutAfter(1, ShortOfCallMemory());
  coordinator_->RefuseAborts(absl::FailedPreconditionError("it is being committed"));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u);
}

TEST_F(MeshClientTest, ResolvesATreeOfManyMessages) {
  std::vector<TreeTensor> tensors;
  for (int i = 0; i < 50'000; ++i) {
    tensors.push_back({.name = StrCat("model.layers.", i, ".self_attention.query.weight"),
                       .shape = {1024, 1024},
                       .dtype = Dtype::kBF16});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TreeAnswer answer,
                                 client_->layouts().ResolveTree({.match_only = true}, tensors));
  EXPECT_EQ(answer.placements.size(), tensors.size());
  ASSERT_EQ(answer.specs.size(), 1u);
  EXPECT_EQ(answer.specs[0].requested, PartitionSpec({SpecEntry::Axis("tp")}));
  EXPECT_EQ(answer.placements[0].rule_index, std::nullopt);
  EXPECT_EQ(answer.placements[8].rule_index, 0);
  EXPECT_EQ(answer.report.layout.tensors, 50'000);
  EXPECT_EQ(answer.revision, 5);
}

TEST_F(MeshClientTest, DoesNotSendATreeThatIsTooLargeToBeKept) {
  StoredTree tree;
  for (int i = 0; i < 200'000; ++i) {  // over 4 MiB, which no message may have
    tree.tensors.push_back({.name = StrCat("model.layers.", i, ".query"), .shape = {8}});
  }
  const absl::Status status = client_->catalog().CreateEntry("large", tree).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(status.ToString(), HasSubstr("give a tree as large as this with each question"));
}

}  // namespace
}  // namespace shardmesh::client
