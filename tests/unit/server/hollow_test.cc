// A coordinator and workers that hold nothing: what goes down their streams, and what the
// coordinator does not take from them.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/session_keeper.h"
#include "client/remote/transfer_calls.h"
#include "gmock/gmock.h"
#include "process/clock.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/link_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/server_lifecycle.h"
#include "server/diagnosis/flight_log.h"
#include "server/service/attach_service.h"
#include "server/service/endpoint_probe.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/steps/sequencer.h"
#include "server/store/local_store.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "tests/testing/proxy.h"
#include "tests/unit/server/define_mesh.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HollowTest : public HollowFixture {
 protected:
  // Watches the catalog from revision 1 on, and expects that a second watch beside the first one is
  // refused with a message that names `flag`. Ends the first one.
  void ExpectOnlyOneWatch(std::string_view flag) {
    const auto stub = v1::CatalogService::NewStub(channel_);
    v1::WatchRequest request;
    request.set_start_revision(1);
    v1::WatchResponse response;
    grpc::ClientContext first_context;
    const auto first = stub->Watch(&first_context, request);
    ASSERT_TRUE(first->Read(&response));
    grpc::ClientContext second_context;
    const auto second = stub->Watch(&second_context, request);
    EXPECT_FALSE(second->Read(&response));
    const absl::Status refused = rpc::FromGrpc(second->Finish());
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
    EXPECT_THAT(refused.ToString(), HasSubstr(std::string(flag)));
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
    first_context.TryCancel();
    while (first->Read(&response)) {
    }
    first->Finish();
  }

  // Bytes of membership that all workers got when one of `count` left.
  int64_t BytesOfOneLoss(int64_t count) {
    StartCoordinator(StrCat("dp=", count));
    StartWorkers(count);
    EXPECT_TRUE(AwaitQuiet("default"));
    const HollowWorkers::Totals before = workers_->totals();
    workers_->Leave(0);
    EXPECT_TRUE(workers_->Await(
        [&](const HollowWorkers::Totals& now) {
          return now.members == count - 1 && now.lowest_epoch == before.lowest_epoch + 1;
        },
        kTimeout));
    const HollowWorkers::Totals after = workers_->totals();
    EXPECT_EQ(after.membership_pages - before.membership_pages, count - 1);
    Stop();
    return after.membership_bytes - before.membership_bytes;
  }
};

TEST_F(HollowTest, BytesOfOneChangeGrowLinearlyWithTheWorkers) {
  const int64_t few = BytesOfOneLoss(64);
  const int64_t many = BytesOfOneLoss(256);
  EXPECT_GT(few, 0);
  EXPECT_LT(many, 5 * few);
  EXPECT_LT(many, 256 * 100) << "a loss is the worker's name and the epoch";
  RecordProperty("bytes_64", std::to_string(few));
  RecordProperty("bytes_256", std::to_string(many));
}

TEST_F(HollowTest, ManyMeshesLoseNoWorkerAndStatusListsThemInPages) {
  StartCoordinator("");
  StartWorkers(2);
  for (int i = 0; i < 1'100; ++i) {
    ASSERT_THAT(CreateMesh(StrCat("mesh-", i), 2), IsOk());
  }
  ASSERT_TRUE(AwaitQuiet("mesh-1099"));
  EXPECT_EQ(workers_->totals().attaches, 2) << workers_->totals().last_end;
  workers_->Leave(1);
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout));
  workers_->Return(1);
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << "a snapshot of all meshes is taken in";

  // One that nobody can have, and one that a record per device would not even fit into memory.
  ASSERT_THAT(CreateMesh("planned", 4'194'304), IsOk());
  ASSERT_THAT(CreateMesh("planned-huge", 2'147'483'648), IsOk());
  v1::GetStatusRequest request;
  request.set_page_size(500);
  int64_t meshes = 0;
  int64_t ranks = 0;
  int64_t workers = 0;
  int pages = 0;
  do {
    const auto page = Status(request);
    ASSERT_THAT(page, IsOk());
    ++pages;
    meshes += page->meshes_size();
    workers += page->workers_size();
    for (const v1::MeshStatus& mesh : page->meshes()) ranks += mesh.ranks_size();
    EXPECT_LE(page->meshes_size() + page->workers_size(), 500);
    EXPECT_EQ(page->mesh_count(), 1'102);
    EXPECT_EQ(page->live_worker_count(), 2);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(meshes, 1'102);
  EXPECT_EQ(ranks, 2'200) << "meshes that nobody serves have none";
  EXPECT_EQ(workers, 2);
  EXPECT_EQ(pages, 3);

  request = {};
  request.set_mesh_id("mesh-7");
  const auto one = Status(request);
  ASSERT_THAT(one, IsOk());
  ASSERT_EQ(one->meshes_size(), 1);
  EXPECT_EQ(one->meshes(0).ranks_size(), 2);

  request.set_page_token("nonsense");
  EXPECT_THAT(Status(request), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  request = {};
  request.set_mesh_id("no-such");
  EXPECT_THAT(Status(request), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(HollowTest, AStepTooLongForTheWorkersIsRefusedAndNoWorkerIsLost) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  // Four literals of 1 MiB, less what the request itself needs: it fits, the step does not.
  v1::ExecuteRequest request;
  request.set_request_id("step");
  request.set_session_id(OpenSession());
  request.set_mesh_id("default");
  request.mutable_program()->set_operand_count(4);
  v1::ProgramOp* op = request.mutable_program()->add_ops();
  op->mutable_matmul()->set_lhs(0);
  op->mutable_matmul()->set_rhs(1);
  request.mutable_program()->add_outputs(4);
  for (int i = 0; i < 4; ++i) {
    v1::Literal* literal = request.add_operands()->mutable_literal();
    literal->set_dtype(v1::DTYPE_F32);
    literal->add_shape(512);
    literal->add_shape(i < 3 ? 512 : 511);
    literal->set_data(std::string(static_cast<size_t>(512 * (i < 3 ? 512 : 511) * 4), '\0'));
  }
  // Within what one message may have.
  while (static_cast<int64_t>(request.ByteSizeLong()) < rpc::kMaxControlMessageBytes - 64) {
    v1::Literal* filler = request.add_operands()->mutable_literal();
    filler->set_dtype(v1::DTYPE_U8);
    const int64_t left =
        rpc::kMaxControlMessageBytes - 64 - static_cast<int64_t>(request.ByteSizeLong());
    if (left < 32) {
      request.mutable_operands()->RemoveLast();
      break;
    }
    const int64_t bytes = left - 24;
    filler->add_shape(bytes);
    filler->set_data(std::string(static_cast<size_t>(bytes), '\0'));
    break;
  }
  request.mutable_program()->set_operand_count(static_cast<uint32_t>(request.operands_size()));
  request.mutable_program()->set_outputs(0, static_cast<uint32_t>(request.operands_size()));
  v1::ExecuteResponse response;
  const absl::Status refused =
      Call<v1::ComputeService>(&v1::ComputeService::Stub::Execute, request, &response);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("4194304"), HasSubstr("its plan")));
  EXPECT_EQ(workers_->totals().attaches, 1) << workers_->totals().last_end;
  EXPECT_EQ(workers_->totals().members, 1);
}

// A wide mesh has more links than a reaction may sum up: the answer comes from the background.
TEST_F(HollowTest, CompileSumsUpTheLinksOfAWideMeshAndLeavesOutThoseOfAWiderOne) {
  StartCoordinator("");
  const auto compile = [&](const std::string& mesh_id) {
    v1::CompileRequest request;
    request.set_mesh_id(mesh_id);
    request.mutable_program()->set_operand_count(1);
    v1::CollectiveOp* const op = request.mutable_program()->add_ops()->mutable_collective();
    op->set_kind(v1::COLLECTIVE_KIND_ALL_REDUCE);
    op->set_algorithm(v1::COLLECTIVE_ALGORITHM_PAIRWISE);
    op->add_axes("x");
    request.mutable_program()->add_outputs(1);
    v1::Literal* const literal = request.add_operands()->mutable_literal();
    literal->set_dtype(v1::DTYPE_F32);
    literal->add_shape(600);
    literal->set_data(std::string(600 * 4, '\0'));
    v1::CompileResponse response;
    EXPECT_THAT(Call<v1::ComputeService>(&v1::ComputeService::Stub::Compile, request, &response),
                IsOk());
    EXPECT_EQ(response.plan_hash().size(), 32u);
    EXPECT_EQ(response.traffic_size(), 1);
    return response;
  };
  for (const int64_t size : {2, 300}) {
    const std::string mesh_id = StrCat("mesh-", size);
    ASSERT_THAT(CreateMesh(mesh_id, size), IsOk());
    const v1::CompileResponse response = compile(mesh_id);
    EXPECT_EQ(response.link_traffic().link_count(), size * (size - 1));
    EXPECT_EQ(response.link_traffic().busiest_links_size(), size == 2 ? 2 : 32);
  }
  ASSERT_THAT(CreateMesh("mesh-600", 600), IsOk());
  EXPECT_FALSE(compile("mesh-600").has_link_traffic());
}

// BeginPut of one tensor by one request, whose call goes on until its transfer has ended.
class HeldPut {
 public:
  HeldPut(const std::shared_ptr<grpc::Channel>& channel, const std::string& session) {
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context_);
    stream_ = v1::ArrayService::NewStub(channel)->BeginPut(&context_);
    v1::BeginPutRequest request;
    v1::BeginPutHeader& header = *request.mutable_header();
    header.set_request_id("put");
    header.set_session_id(session);
    header.set_hold(true);
    stream_->Write(request);
    v1::PutTensor& tensor = *request.mutable_tensors()->add_tensors();
    tensor.set_dtype(v1::DTYPE_U8);
    tensor.add_shape(1);
    tensor.mutable_spec();
    stream_->Write(request);
    stream_->WritesDone();
    v1::BeginPutResponse response;
    if (stream_->Read(&response)) transfer_id_ = response.transfer_id();
  }
  ~HeldPut() {
    if (!is_finished_) Break();
  }

  // Empty where it was refused.
  const std::string& transfer_id() const { return transfer_id_; }
  absl::Status Finish() {
    is_finished_ = true;
    return rpc::FromGrpc(stream_->Finish());
  }
  void Break() {
    context_.TryCancel();
    Finish().IgnoreError();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::BeginPutRequest, v1::BeginPutResponse>> stream_;
  std::string transfer_id_;
  bool is_finished_ = false;
};

TEST_F(HollowTest, ListsOperationsInPagesWithoutIdsOfSessions) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::vector<std::string> sessions = {OpenSession(), OpenSession()};
  HeldPut aborted(channel_, sessions[0]);
  ASSERT_FALSE(aborted.transfer_id().empty()) << aborted.Finish();
  HeldPut closed(channel_, sessions[1]);
  ASSERT_FALSE(closed.transfer_id().empty()) << closed.Finish();
  v1::AbortTransferRequest abort;
  abort.set_transfer_id(aborted.transfer_id());
  abort.set_session_id(sessions[0]);
  rpc::Encode(WithReason(absl::DataLossError("tensor \"w\" is damaged"), Reason::kChecksumMismatch),
              abort.mutable_error());
  v1::AbortTransferResponse abort_response;
  ASSERT_THAT(
      Call<v1::ArrayService>(&v1::ArrayService::Stub::AbortTransfer, abort, &abort_response),
      IsOk());
  v1::CloseSessionRequest close;
  close.set_session_id(sessions[1]);
  v1::CloseSessionResponse close_response;
  ASSERT_THAT(
      Call<v1::SessionService>(&v1::SessionService::Stub::CloseSession, close, &close_response),
      IsOk());

  v1::ListOperationsRequest request;
  request.set_page_size(1);
  const auto list = [&] {
    std::vector<v1::Operation> listed;
    request.clear_page_token();
    do {
      v1::ListOperationsResponse page;
      EXPECT_THAT(
          Call<v1::OperationService>(&v1::OperationService::Stub::ListOperations, request, &page),
          IsOk());
      EXPECT_LE(page.operations_size(), 1);
      listed.insert(listed.end(), page.operations().begin(), page.operations().end());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return listed;
  };
  request.add_states(v1::OPERATION_STATE_CANCELLED);
  request.add_states(v1::OPERATION_STATE_FAILED);
  ASSERT_TRUE(Eventually([&] { return list().size() == 2; }));
  request.clear_states();
  const std::vector<v1::Operation> listed = list();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].operation_id(), aborted.transfer_id());
  EXPECT_EQ(listed[1].operation_id(), closed.transfer_id());
  EXPECT_EQ(listed[0].state(), v1::OPERATION_STATE_FAILED) << "its client gave an error";
  const absl::Status failed = rpc::Decode(listed[0].error());
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_EQ(failed.message(), "tensor \"w\" is damaged");
  EXPECT_EQ(listed[1].state(), v1::OPERATION_STATE_CANCELLED);
  EXPECT_LT(listed[0].number(), listed[1].number());
  EXPECT_NE(listed[0].session_number(), listed[1].session_number());
  EXPECT_THAT(listed[1].error().message(),
              AllOf(HasSubstr(sessions[1].substr(0, 8)), HasSubstr("was closed")));
  for (const v1::Operation& operation : listed) {
    for (const std::string& id : sessions) {
      EXPECT_THAT(operation.SerializeAsString(), ::testing::Not(HasSubstr(id.substr(0, 9))));
    }
  }
  request.add_states(v1::OPERATION_STATE_DONE);
  EXPECT_TRUE(list().empty());
}

TEST_F(HollowTest, APutThatIsBegunAgainIsTheSamePutUntilItEnds) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  HeldPut first(channel_, session);
  ASSERT_FALSE(first.transfer_id().empty()) << first.Finish();
  HeldPut again(channel_, session);
  EXPECT_EQ(again.transfer_id(), first.transfer_id());
  // The connection of the first call breaks late: the put is the other's.
  first.Break();
  HeldPut once_more(channel_, session);
  EXPECT_EQ(once_more.transfer_id(), first.transfer_id());

  v1::AbortTransferRequest abort;
  abort.set_session_id(session);
  abort.set_transfer_id(first.transfer_id());
  v1::AbortTransferResponse aborted;
  ASSERT_THAT(Call<v1::ArrayService>(&v1::ArrayService::Stub::AbortTransfer, abort, &aborted),
              IsOk());
  EXPECT_THAT(again.Finish(), IsOk());
  EXPECT_THAT(once_more.Finish(), IsOk());
  EXPECT_TRUE(Eventually([&] {
    HeldPut late(channel_, session);
    return late.transfer_id().empty() && ReasonOf(late.Finish()) == Reason::kRequestIdReused;
  }));
}

TEST_F(HollowTest, APutWhoseCallBrokeIsBegunAnewByTheSameRequest) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  std::string first_id;
  {
    HeldPut first(channel_, session);
    first_id = first.transfer_id();
    ASSERT_FALSE(first_id.empty()) << first.Finish();
  }
  std::unique_ptr<HeldPut> next;
  EXPECT_TRUE(Eventually([&] {
    next = nullptr;
    next = std::make_unique<HeldPut>(channel_, session);
    return !next->transfer_id().empty() && next->transfer_id() != first_id;
  }));
}

TEST_F(HollowTest, APutWhoseCommitWasAskedForOutlivesItsCall) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  HeldPut put(channel_, session);
  ASSERT_FALSE(put.transfer_id().empty()) << put.Finish();
  const auto commit = [&](const std::string& transfer_id, absl::Duration time) {
    v1::CommitTransferRequest request;
    request.set_request_id("commit");
    request.set_session_id(session);
    request.set_transfer_id(transfer_id);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(time), &context);
    v1::CommitTransferResponse response;
    return rpc::FromGrpc(
        v1::ArrayService::NewStub(channel_)->CommitTransfer(&context, request, &response));
  };
  auto first = std::async(std::launch::async, [&] {
    absl::Status outcome;
    do {
      outcome = commit(put.transfer_id(), absl::Seconds(2));
    } while (ReasonOf(outcome) == Reason::kRequestIdReused);  // by a question below
    return outcome;
  });
  // The coordinator has received the first commit when it refuses the same request id for another
  // transfer.
  EXPECT_TRUE(Eventually(
      [&] { return ReasonOf(commit("another", absl::Seconds(10))) == Reason::kRequestIdReused; }));
  put.Break();
  // Its tile never comes: the put ends with the time of its commit, and not with its call.
  EXPECT_THAT(commit(put.transfer_id(), absl::Seconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(first.get(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(HollowTest, AClientWhoseAnswerIsCutOffHasOnePut) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto proxy, Proxy::Start(coordinator_->address()));
  int waits = 0;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto client,
      client::CoordinatorConnection::Connect(
          proxy->address(), rpc::Credentials::Insecure(), absl::Seconds(10),
          {.await_coordinator = true, .on_wait = [&](const absl::Status&) { ++waits; }}));
  const auto in_time = [] { return client::CallLimit::Within(kTimeout); };
  client::SessionKeeper session(client.get(), absl::Minutes(1), "test");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string session_id, session.Get(in_time()));
  const std::string byte = "b";
  std::vector<client::PutTensor> tensors;
  for (int i = 0; i < 2'000; ++i) {
    tensors.push_back({.name = StrCat("t", i),
                       .view = *TensorView::Create(Dtype::kU8, {1}, byte),
                       .spec = PartitionSpec()});
  }
  // The request has some 60 kB, its answer ten times as many.
  proxy->CutAfter(200'000);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::BegunPut put,
                                 client::BeginPut(*client, session_id, tensors, {},
                                                  /*from_files=*/false, /*claims=*/{}, in_time()));
  EXPECT_GE(waits, 1);
  EXPECT_EQ(put.assignments.size(), tensors.size());
  EXPECT_TRUE(Eventually([&] { return Status()->arrays() == 2'000; })) << Status()->arrays();
  EXPECT_THAT(client::AbortTransfer(*client, session_id, put.transfer_id,
                                    absl::CancelledError("seen"), in_time()),
              IsOk());
  EXPECT_TRUE(Eventually([&] { return Status()->arrays() == 0; })) << Status()->arrays();
}

TEST_F(HollowTest, ASilentWorkersStreamIsEnded) {
  StartCoordinator("tp=2", {}, [](server::CoordinatorOptions* options) {
    options->membership.heartbeat_interval = absl::Milliseconds(100);
    options->membership.lost_after = absl::Seconds(1);
  });
  StartWorkers(2);
  workers_->FallSilent(0);
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return now.attaches == 3 && now.members == 2; },
      kTimeout))
      << "it would attach anew only if its stream was ended";
}

TEST_F(HollowTest, AStreamThatDoesNotBringItsHelloIsEnded) {
  StartCoordinator("", {.hello_timeout = absl::Milliseconds(200)});
  const auto stub = internal::v1::AttachService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  const auto stream = stub->Attach(&context);
  internal::v1::AttachResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_NE(stream->Finish().error_code(), grpc::StatusCode::OK);
  EXPECT_GT(context.deadline(), std::chrono::system_clock::now()) << "ended by the coordinator";
}

TEST_F(HollowTest, AnInventoryThatDoesNotEndIsCut) {
  StartCoordinator("", {.inventory_timeout = absl::Milliseconds(200)});
  Begin({.count = 1, .ends_inventory = false});
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return now.attaches >= 2 && now.members == 0; },
      kTimeout))
      << "it would attach anew only if its stream was ended";
}

TEST_F(HollowTest, AStreamThatIsCutWhileItsHelloIsReadIsNotCheckedAnyMore) {
  // The hello is read at once and taken after its deadline.
  ASSERT_THAT(ArmFailpoints("attach.hello=delay"), IsOk());
  StartCoordinator("", {.hello_timeout = absl::Milliseconds(100)});
  Begin({.count = 1,
         .attach_delay = absl::Hours(1),
         .identify_delay = absl::Milliseconds(kFailpointDelayMilliseconds)});
  ASSERT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return !now.last_end.empty(); }, kTimeout));
  // Waits for the stream's last reaction; answers to a check would come after it.
  coordinator_->Drain(absl::Now() + absl::Seconds(5));
  EXPECT_FALSE(workers_->Await([](const HollowWorkers::Totals& now) { return now.identifies > 0; },
                               absl::Milliseconds(200)))
      << "nothing keeps the stream for the answer";
}

TEST_F(HollowTest, StreamsThatAreCutAsTheirCheckEndsDoEnd) {
  // Each is cut at the moment at which its endpoints were verified.
  StartCoordinator("", {.inventory_timeout = absl::Nanoseconds(1)});
  // The inventories do not end: a worker whose inventory is whole before its time is over stays.
  Begin({.count = 64, .attach_delay = absl::Milliseconds(1), .ends_inventory = false});
  EXPECT_TRUE(workers_->Await([](const HollowWorkers::Totals& now) { return now.attaches > 1'000; },
                              kTimeout));
  // Every stream of theirs has ended, or the coordinator would not.
  Stop();
}

TEST_F(HollowTest, AnInventoryThatTakesLongIsTakenIn) {
  StartCoordinator("tp=1", {}, [](server::CoordinatorOptions* options) {
    options->membership.heartbeat_interval = absl::Milliseconds(100);
    options->membership.lost_after = absl::Milliseconds(1'500);
  });
  // No heartbeat comes through before the last page.
  Begin({.count = 1, .inventory_pages = 8, .page_interval = absl::Milliseconds(300)});
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout));
  EXPECT_EQ(workers_->totals().attaches, 1) << workers_->totals().last_end;
}

TEST_F(HollowTest, AStreamThatIsLostBetweenItsPagesIsEnded) {
  StartCoordinator("", {}, [](server::CoordinatorOptions* options) {
    options->membership.heartbeat_interval = absl::Milliseconds(100);
    options->membership.lost_after = absl::Milliseconds(300);
  });
  Begin({.count = 1, .inventory_pages = 2, .page_interval = absl::Minutes(2)});
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return now.attaches >= 2 && now.members == 0; },
      kTimeout))
      << "it would attach anew only if its stream was ended";
}

TEST_F(HollowTest, ASnapshotHasItsReceiver) {
  constexpr int64_t kCount = 256;
  StartCoordinator(StrCat("dp=", kCount));
  StartWorkers(kCount);
  // Some attach while others are told.
  for (int64_t i = 0; i < kCount; i += 2) workers_->Leave(i);
  ASSERT_TRUE(workers_->AwaitMembers(kCount / 2, kTimeout));
  for (int64_t i = 0; i < kCount; i += 2) workers_->Return(i);
  ASSERT_TRUE(workers_->AwaitMembers(kCount, kTimeout)) << workers_->totals().last_end;
  EXPECT_EQ(workers_->totals().stale_snapshots, 0);
}

TEST_F(HollowTest, AWorkerNeedsHalfAMebibyteOfTheRpcMemory) {
  constexpr int64_t kCount = 64;
  StartCoordinator("", {.rpc_memory_bytes = kCount * (int64_t{512} << 10)});
  Begin({.count = kCount, .inventory_pages = 20, .page_bytes = int64_t{128} << 10});
  ASSERT_TRUE(workers_->AwaitMembers(kCount, kTimeout)) << workers_->totals().last_end;
  // Nobody was cut for want of memory. On a machine that is busy an endpoint may answer too late.
  EXPECT_EQ(workers_->totals().cancelled, 0) << workers_->totals().last_end;
}

// Little memory is enough for one inventory at a time.
constexpr int64_t kMemoryOfOne = int64_t{20} << 20;

TEST_F(HollowTest, InventoriesAreBroughtByTurns) {
  StartCoordinator("", {.rpc_memory_bytes = kMemoryOfOne});
  Begin({.count = 8, .inventory_pages = 3, .page_interval = absl::Milliseconds(20)});
  ASSERT_TRUE(workers_->AwaitMembers(8, kTimeout)) << workers_->totals().last_end;
  EXPECT_EQ(workers_->totals().most_bringing, 1);
}

TEST_F(HollowTest, AnInventoryThatDoesNotEndMakesRoomForTheNext) {
  StartCoordinator(
      "", {.rpc_memory_bytes = kMemoryOfOne, .inventory_timeout = absl::Milliseconds(200)});
  Begin({.count = 3, .attach_delay = absl::Hours(1), .ends_inventory = false});
  EXPECT_TRUE(workers_->Await([](const HollowWorkers::Totals& now) { return now.welcomes == 3; },
                              kTimeout));
  EXPECT_EQ(workers_->totals().members, 0);
}

TEST_F(HollowTest, ACoordinatorEndsWhileWorkersWaitForTheirTurns) {
  StartCoordinator("", {.rpc_memory_bytes = kMemoryOfOne});
  Begin({.count = 50, .attach_delay = absl::Hours(1), .ends_inventory = false});
  EXPECT_TRUE(workers_->Await([](const HollowWorkers::Totals& now) { return now.identifies == 50; },
                              kTimeout));
  EXPECT_EQ(workers_->totals().welcomes, 1);
  const absl::Time start = absl::Now();
  coordinator_->Drain(start + absl::Seconds(30));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

// Goes as `clock` does, which outlives it, and may be put forward while nothing waits for it.
class LeapClock final : public Clock {
 public:
  explicit LeapClock(Clock* clock) : clock_(clock) {}

  void Leap(absl::Duration by) { ahead_ns_ += absl::ToInt64Nanoseconds(by); }
  absl::Time Now() const override { return clock_->Now() + ahead(); }
  TimerId CallAt(absl::Time when, std::function<void()> function) override {
    return clock_->CallAt(when - ahead(), std::move(function));
  }
  bool Cancel(TimerId timer) override { return clock_->Cancel(timer); }

 private:
  absl::Duration ahead() const { return absl::Nanoseconds(ahead_ns_.load()); }

  Clock* const clock_;
  std::atomic<int64_t> ahead_ns_ = 0;
};

// The worker streams of a coordinator without the rest.
class AttachServiceTest : public testing::Test {
 protected:
  explicit AttachServiceTest(
      int64_t max_inventory_bytes = server::WorkerStreamsOptions().max_inventory_bytes) {
    registry_ =
        *server::ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    definition_store_ =
        *server::DefinitionStore::Open(store_.get(), &clock_, &registry_->requests());
    streams_ = std::make_unique<server::WorkerStreams>(
        &membership_, registry_.get(), definition_store_.get(),
        server::WorkerStreamsOptions{
            .cluster_id = "hub",
            .term = 1,
            .token_key = "",
            .build_version = "",
            .ask_endpoint = server::ProbeEndpoints(rpc::Credentials::Insecure()),
            .flight_log = &flight_log_,
            .link_table = &link_table_,
            .clock = &leap_clock_,
            .recovery = &recovery_,
            .joined =
                [this](std::string_view identity, uint64_t) {
                  if (joined_ != nullptr) joined_(identity);
                },
            .max_inventory_bytes = max_inventory_bytes});
    membership_.AddListener(
        [this](const server::MembershipEvent&) { streams_->MembershipChanged(); });
    sequencer_ =
        std::make_unique<server::Sequencer>(&clock_, streams_.get(), server::Sequencer::Options());
    service_ =
        server::MakeAttachService(streams_.get(), sequencer_.get(), rpc::Credentials::Insecure());
    rpc::ServerOptions options;
    options.on_drain = [this] { service_.end_streams(); };
    lifecycle_ = *rpc::ServerLifecycle::Start(
        options, {{"shardmesh.internal.v1.AttachService", service_.service.get()}});
  }
  ~AttachServiceTest() override {
    workers_.reset();
    lifecycle_->Drain(absl::Now() + absl::Seconds(5));
    lifecycle_.reset();
    clock_.Stop();
  }

  // Adds the tile of `rank` to a page of its worker's inventory.
  static void AddTile(const ArrayDescriptor& array, int64_t rank,
                      internal::v1::InventoryPage* page) {
    internal::v1::HeldTile* const held = page->add_tiles();
    held->set_array_id(array.array_id);
    held->set_array_descriptor(rpc::ArrayDescriptorBytes(array));
    rpc::Encode(array.Tiling()->TileOf(rank), held->mutable_tile());
    held->set_crc32c(static_cast<uint32_t>(10 + rank));
    held->set_committed(true);
    held->set_durability(v1::DURABILITY_DISK);
  }
  // The ids of arrays without a name of which every rank has brought its tile.
  std::vector<std::string> Adopted() const {
    std::vector<std::string> ids;
    for (const server::UnnamedArray& array : registry_->ListUnnamed("", 10)) {
      if (array.can_be_named) ids.push_back(array.descriptor.array_id);
    }
    return ids;
  }

  std::function<void(std::string_view)> joined_;  // set before workers attach
  RealClock clock_;
  LeapClock leap_clock_{&clock_};
  const std::unique_ptr<server::Store> store_ = server::CreateMemoryStore();
  std::unique_ptr<server::ArrayRegistry> registry_;
  std::unique_ptr<server::DefinitionStore> definition_store_;
  server::Membership membership_{&clock_};
  server::FlightLog flight_log_;
  server::LinkTable link_table_;
  server::Recovery recovery_{&clock_};
  std::unique_ptr<server::WorkerStreams> streams_;
  std::unique_ptr<server::Sequencer> sequencer_;
  server::StreamingService service_;
  std::unique_ptr<rpc::ServerLifecycle> lifecycle_;
  std::unique_ptr<HollowWorkers> workers_;
};

TEST_F(AttachServiceTest, WorkersAreHeardWhileInventoriesAreTakenIn) {
  // By a heartbeat, which alone can bring this figure: pages count with the last heartbeat's.
  constexpr int64_t kUsedBytes = 4711;
  const auto is_heard = [this](int64_t index) {
    const auto view = membership_.view();
    const server::WorkerStatus* const worker = view->FindWorker(workers_->IdentityOf(index));
    return worker != nullptr && worker->used_bytes() == kUsedBytes;
  };
  const auto has_begun = std::make_shared<absl::Notification>();
  const auto are_heard = std::make_shared<std::atomic<bool>>(false);
  joined_ = [=, this](std::string_view) {
    has_begun->WaitForNotification();
    if (*are_heard) return;
    // The inventory of the first one is being taken in, that of the other waits. Both have sent
    // their last pages, hence these come behind them.
    *are_heard = Eventually([&] { return workers_->totals().inventories == 2; });
    internal::v1::AttachRequest beat;
    beat.mutable_heartbeat()->set_used_bytes(kUsedBytes);
    for (int64_t index = 0; index < 2; ++index) {
      *are_heard = *are_heard && Eventually([&] {
        // Again: the worker's own say 0.
        workers_->Send(index, beat);
        return is_heard(index);
      });
    }
  };
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 2});
  has_begun->Notify();
  ASSERT_TRUE(workers_->AwaitMembers(2, 2 * kTimeout)) << workers_->totals().last_end;
  EXPECT_TRUE(*are_heard);
  EXPECT_EQ(workers_->totals().attaches, 2);
}

class SmallInventoriesTest : public AttachServiceTest {
 protected:
  static constexpr int64_t kMaxBytes = 1 << 20;
  // More than a half of what may wait.
  static constexpr int64_t kTiles =
      kMaxBytes * 6 / 10 / (int64_t{sizeof(server::InventoryTile)} + 128);
  SmallInventoriesTest() : AttachServiceTest(kMaxBytes) {}
};

TEST_F(SmallInventoriesTest, BytesOfInventoriesThatWaitAreBounded) {
  const auto may_go_on = std::make_shared<absl::Notification>();
  joined_ = [=](std::string_view) { may_go_on->WaitForNotification(); };
  constexpr int64_t kWorkers = 8;
  // Beside the one that is being taken in, one goes beyond the limit. Of the others none is kept.
  // Nobody sends anything before all are welcomed, since nobody knows until then how large
  // inventories are.
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(),
                                    .count = kWorkers,
                                    .inventory_tiles = kTiles,
                                    .pages_after_welcomes = kWorkers});
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) {
        return now.last_end.find("inventories of") != std::string::npos;
      },
      kTimeout))
      << workers_->totals().last_end;
  may_go_on->Notify();
  ASSERT_TRUE(workers_->AwaitMembers(kWorkers, kTimeout)) << workers_->totals().last_end;
  // Those that were refused waited for their turns then.
  EXPECT_LE(workers_->totals().attaches, 2 * kWorkers);
}

TEST_F(SmallInventoriesTest, ALargeInventoryIsForgottenAfterAWhile) {
  workers_ = *HollowWorkers::Start(
      {.coordinator = lifecycle_->address(), .count = 1, .inventory_tiles = kTiles});
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout)) << workers_->totals().last_end;
  // Those who come now might have as much.
  const auto soon = *HollowWorkers::Start({.coordinator = lifecycle_->address(),
                                           .count = 3,
                                           .identity_prefix = "soon-",
                                           .inventory_pages = 3,
                                           .page_interval = absl::Milliseconds(20)});
  ASSERT_TRUE(soon->AwaitMembers(3, kTimeout)) << soon->totals().last_end;
  EXPECT_EQ(soon->totals().most_bringing, 1);

  // The coordinator announces a worker before it ends the worker's turn. If the last turn ended
  // only after the first leap, its size is forgotten after the second one.
  bool are_in = false;
  std::string last_end;
  for (int leaps = 0; leaps < 2 && !are_in; ++leaps) {
    leap_clock_.Leap(absl::Seconds(31));
    const auto later = *HollowWorkers::Start({.coordinator = lifecycle_->address(),
                                              .count = 3,
                                              .identity_prefix = "later-",
                                              .pages_after_welcomes = 3});
    are_in = later->AwaitMembers(3, kTimeout / 3);
    last_end = later->totals().last_end;
  }
  EXPECT_TRUE(are_in) << last_end;
}

TEST_F(AttachServiceTest, TilesAreJudgedWhenTheirMeshGetsItsRanks) {
  const std::string id = RandomId();
  const ArrayDescriptor descriptor{.array_id = id,
                                   .dtype = Dtype::kF32,
                                   .shape = {8, 4},
                                   .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                   .mesh_id = "m",
                                   .mesh_revision = 3,
                                   .mesh = *Mesh::Parse("x=2"),
                                   .cut_points = {}};
  ASSERT_THAT(registry_->Stage({.descriptor = descriptor}), IsOk());
  absl::Notification committed;
  registry_->Commit({.arrays = {{.array_id = id,
                                 .durability = server::Durability::kDisk,
                                 .tile_crc32c = {10, 11}}},
                     .moves = {{.name = "w", .array_id = id, .expected_version = std::nullopt}},
                     .request_id = "",
                     .answer = ""},
                    [&](const absl::StatusOr<server::CommitResult>& result) {
                      EXPECT_THAT(result, IsOk());
                      committed.Notify();
                    });
  committed.WaitForNotification();
  const auto state = [&] { return (*registry_->FindArray(id))->state; };
  // As after a restart that lost who serves the mesh.
  for (int64_t rank = 0; rank < 2; ++rank) registry_->TilesLost("m", rank, 0);
  ASSERT_EQ(state(), server::ArrayState::kDegraded);
  ASSERT_THAT(membership_.AddMesh("m", 2, {}), IsOk());
  const auto add_tile = [&](int64_t index, internal::v1::InventoryPage* page) {
    AddTile(descriptor, index, page);
  };
  workers_ = *HollowWorkers::Start(
      {.coordinator = lifecycle_->address(), .count = 1, .add_to_inventory = add_tile});
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout)) << workers_->totals().last_end;
  EXPECT_EQ(state(), server::ArrayState::kDegraded);
  // With the second one the mesh gets its ranks, in the order of the identities.
  const auto second = *HollowWorkers::Start(
      {.coordinator = lifecycle_->address(),
       .count = 1,
       .identity_prefix = "zzz-",
       .add_to_inventory = [&](int64_t, internal::v1::InventoryPage* page) { add_tile(1, page); }});
  EXPECT_TRUE(Eventually([&] { return state() == server::ArrayState::kAvailable; }));
  EXPECT_TRUE(workers_->Await([](const HollowWorkers::Totals& now) { return now.attaches == 2; },
                              kTimeout));
}

// The parts have one place and different values. Only the mesh's revision tells which rank had
// which.
TEST_F(AttachServiceTest, APartialSumOfAnEarlierRevisionOfItsMeshIsNotAdopted) {
  const server::Revision revision =
      server::DefineMesh(definition_store_.get(), "m", *Mesh::Parse("x=2"));
  ASSERT_THAT(membership_.AddMesh("m", 2, {}), IsOk());

  ArrayDescriptor current{.array_id = RandomId(),
                          .dtype = Dtype::kF32,
                          .shape = {8, 4},
                          .spec = PartitionSpec({}, {"x"}),
                          .mesh_id = "m",
                          .mesh_revision = revision,
                          .mesh = *Mesh::Parse("x=2"),
                          .cut_points = {}};
  ArrayDescriptor earlier = current;
  earlier.array_id = RandomId();
  earlier.mesh_revision = revision - 1;
  ArrayDescriptor sharded = earlier;
  sharded.array_id = RandomId();
  sharded.spec = PartitionSpec({SpecEntry::Axis("x")});
  const auto add_tiles = [&](int64_t index, internal::v1::InventoryPage* page) {
    for (const ArrayDescriptor* const each : {&current, &earlier, &sharded}) {
      AddTile(*each, index, page);
    }
  };
  // The mesh has its ranks before anyone brings tiles.
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 2});
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << workers_->totals().last_end;
  const std::vector<std::string> ranks = membership_.view()->FindMesh("m")->identities;
  ASSERT_EQ(ranks, (std::vector<std::string>{workers_->IdentityOf(0), workers_->IdentityOf(1)}));
  workers_ = *HollowWorkers::Start(
      {.coordinator = lifecycle_->address(), .count = 2, .add_to_inventory = add_tiles});
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << workers_->totals().last_end;
  EXPECT_THAT(Adopted(), ::testing::UnorderedElementsAre(current.array_id, sharded.array_id));
}

// As after a repair that lost the ranks: the mesh's own revision is as it was.
TEST_F(AttachServiceTest, APartialSumFromBeforeItsRanksWereGivenAnewIsNotAdopted) {
  const server::Revision revision =
      server::DefineMesh(definition_store_.get(), "m", *Mesh::Parse("x=2"));
  ASSERT_THAT(membership_.AddMesh("m", 2, {}), IsOk());
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 2});
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << workers_->totals().last_end;
  server::Revision assigned = 0;
  absl::Notification written;
  definition_store_->Assign("m", membership_.view()->FindMesh("m")->identities,
                            [&](const auto& mesh) {
                              EXPECT_THAT(mesh.status(), IsOk());
                              if (mesh.ok()) assigned = (*mesh)->assigned->revision;
                              written.Notify();
                            });
  written.WaitForNotification();
  ASSERT_GT(assigned, revision);

  ArrayDescriptor current{.array_id = RandomId(),
                          .dtype = Dtype::kF32,
                          .shape = {8, 4},
                          .spec = PartitionSpec({}, {"x"}),
                          .mesh_id = "m",
                          .mesh_revision = assigned,
                          .mesh = *Mesh::Parse("x=2"),
                          .cut_points = {}};
  ArrayDescriptor earlier = current;
  earlier.array_id = RandomId();
  earlier.mesh_revision = revision;
  ArrayDescriptor sharded = earlier;
  sharded.array_id = RandomId();
  sharded.spec = PartitionSpec({SpecEntry::Axis("x")});
  workers_ = *HollowWorkers::Start(
      {.coordinator = lifecycle_->address(),
       .count = 2,
       .add_to_inventory = [&](int64_t index, internal::v1::InventoryPage* page) {
         for (const ArrayDescriptor* const each : {&current, &earlier, &sharded}) {
           AddTile(*each, index, page);
         }
       }});
  ASSERT_TRUE(workers_->AwaitMembers(2, kTimeout)) << workers_->totals().last_end;
  EXPECT_THAT(Adopted(), ::testing::UnorderedElementsAre(current.array_id, sharded.array_id));
}

// As after a repair that lost the ranks, and the names.
TEST_F(AttachServiceTest, UnknownTilesOfAMeshWithoutRanksAreAdoptedWhenItHasThem) {
  const server::Revision revision =
      server::DefineMesh(definition_store_.get(), "m", *Mesh::Parse("x=2"));
  ASSERT_THAT(membership_.AddMesh("m", 2, {}), IsOk());
  const ArrayDescriptor descriptor{.array_id = RandomId(),
                                   .dtype = Dtype::kF32,
                                   .shape = {8, 4},
                                   .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                   .mesh_id = "m",
                                   .mesh_revision = revision,
                                   .mesh = *Mesh::Parse("x=2"),
                                   .cut_points = {}};
  workers_ =
      *HollowWorkers::Start({.coordinator = lifecycle_->address(),
                             .count = 1,
                             .add_to_inventory = [&](int64_t, internal::v1::InventoryPage* page) {
                               AddTile(descriptor, 0, page);
                             }});
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout)) << workers_->totals().last_end;
  const auto second =
      *HollowWorkers::Start({.coordinator = lifecycle_->address(),
                             .count = 1,
                             .identity_prefix = "zzz-",
                             .add_to_inventory = [&](int64_t, internal::v1::InventoryPage* page) {
                               AddTile(descriptor, 1, page);
                             }});
  EXPECT_TRUE(Eventually([&] { return Adopted() == std::vector{descriptor.array_id}; }));
}

TEST_F(AttachServiceTest, InventoriesThatWaitAreNoHindranceToTheEnd) {
  const auto is_ending = std::make_shared<absl::Notification>();
  const auto joined = std::make_shared<std::atomic<int>>(0);
  joined_ = [=](std::string_view) {
    ++*joined;
    is_ending->WaitForNotification();
  };
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 8});
  // An attach may fail, for example where another program has the address of a worker.
  EXPECT_TRUE(Eventually([&] { return *joined == 1 && workers_->totals().inventories >= 8; }))
      << workers_->totals().last_end;
  service_.end_streams();
  is_ending->Notify();
  const absl::Time begun = absl::Now();
  lifecycle_->Drain(begun + kTimeout);
  EXPECT_LT(absl::Now(), begun + kTimeout) << "every stream has ended by itself";
  EXPECT_EQ(*joined, 1) << "what nobody waits for is not taken in";
}

// The last page may be read before the thread that admitted the stream has let go of it.
TEST_F(AttachServiceTest, AStreamThatEndsWhileItsInventoryIsTakenInIsKeptUntilThen) {
  ASSERT_THAT(ArmFailpoints("attach.admitted=delay,registry.take_inventory=delay:1"), IsOk());
  const auto joined = std::make_shared<std::atomic<int>>(0);
  joined_ = [=](std::string_view) { ++*joined; };
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 1});
  ASSERT_TRUE(Eventually([&] { return workers_->totals().inventories == 1; }));
  // Between the two delays: the first one lets go, the inventory is still being taken in.
  absl::SleepFor(absl::Milliseconds(kFailpointDelayMilliseconds / 5));
  workers_->Leave(0);
  workers_.reset();
  lifecycle_->Drain(absl::Now() + kTimeout);
}

TEST_F(AttachServiceTest, WhoServedAMeshBeforeDropsItsArraysToo) {
  ASSERT_THAT(membership_.AddMesh("m", 2, {"worker-000000", "worker-000001"}), IsOk());
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 4});
  ASSERT_TRUE(workers_->AwaitMembers(4, kTimeout)) << workers_->totals().last_end;
  // An array is released. Before its workers are told, the mesh is made anew with others.
  ASSERT_THAT(membership_.RemoveMesh("m"), IsOk());
  ASSERT_THAT(membership_.AddMesh("m", 2, {"worker-000002", "worker-000003"}), IsOk());
  streams_->Drop("m", {"array"});
  EXPECT_TRUE(
      workers_->Await([](const HollowWorkers::Totals& now) { return now.drops == 4; }, kTimeout))
      << workers_->totals().drops;
}

TEST_F(HollowTest, AnInventoryOfTooManyTilesIsRefused) {
  StartCoordinator("", {.max_inventory_tiles = 3});
  Begin({.count = 1, .inventory_tiles = 4});
  ASSERT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return !now.last_end.empty(); }, kTimeout));
  EXPECT_THAT(workers_->totals().last_end,
              AllOf(HasSubstr("4 tiles"), HasSubstr("the limit is 3")));
}

TEST_F(HollowTest, TextsOfAHelloAreBounded) {
  StartCoordinator("");
  const auto attach = [&](const internal::v1::Hello& hello) {
    const auto stub = internal::v1::AttachService::NewStub(channel_);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    const auto stream = stub->Attach(&context);
    internal::v1::AttachRequest request;
    *request.mutable_hello() = hello;
    stream->Write(request);
    internal::v1::AttachResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return rpc::FromGrpc(stream->Finish());
  };
  internal::v1::Hello good;
  good.set_identity("worker");
  good.set_incarnation(1);
  good.mutable_protocol()->set_min(1);
  good.mutable_protocol()->set_max(1);
  good.add_endpoints()->set_address("127.0.0.1:1");
  good.set_nonce(std::string(16, 'n'));
  internal::v1::Hello hello = good;
  hello.set_boot_id(std::string(129, 'b'));
  EXPECT_THAT(attach(hello).ToString(), HasSubstr("hello.boot_id"));
  hello = good;
  hello.mutable_build()->set_version(std::string(1 << 20, 'v'));
  EXPECT_THAT(attach(hello).ToString(), HasSubstr("hello.build.version"));
  hello = good;
  hello.mutable_endpoints(0)->set_address(std::string(321, 'a'));
  EXPECT_THAT(attach(hello), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  hello = good;
  hello.set_cluster_id(std::string(65, 'c'));
  EXPECT_THAT(attach(hello).ToString(), HasSubstr("hello.cluster_id"));
}

TEST_F(HollowTest, ACallAboutQuarantinesEndsWhenItsWorkerAttachesOverAnotherStream) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  absl::Status ended;
  std::thread caller([&] {
    v1::ListQuarantineResponse response;
    ended = Call<v1::ClusterService>(&v1::ClusterService::Stub::ListQuarantine, {}, &response);
  });
  const auto is_order = [](const internal::v1::AttachResponse& m) {
    return m.has_quarantine_order();
  };
  EXPECT_TRUE(Eventually([&] { return !Heard(0, is_order).empty(); }));
  // The stream before stays: nothing but the second one says that it is of no use any more.
  workers_->AttachAgain(0);
  caller.join();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_TRUE(workers_->AwaitMembers(1, kTimeout));
  EXPECT_TRUE(Eventually([&] { return !workers_->totals().last_end.empty(); }))
      << "the stream before is ended";
}

TEST_F(HollowTest, FailedAttachesAreKeptOfKnownWorkersThatMayBearTheirName) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  const auto attach = [&](const std::string& identity) {
    const auto stub = internal::v1::AttachService::NewStub(channel_);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    const auto stream = stub->Attach(&context);
    internal::v1::AttachRequest request;
    request.mutable_hello()->set_identity(identity);
    stream->Write(request);
    internal::v1::AttachResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return rpc::FromGrpc(stream->Finish());
  };
  EXPECT_THAT(attach(std::string(3 << 20, 'i')),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(attach("a-stranger").ToString(), HasSubstr("hello.incarnation"));
  EXPECT_THAT(attach(workers_->IdentityOf(0)).ToString(), HasSubstr("hello.incarnation"));
  const auto status = Status();
  ASSERT_THAT(status, IsOk());
  ASSERT_EQ(status->workers_size(), 1) << "strangers are not listed";
  EXPECT_EQ(status->workers(0).failed_attaches(), 1);
  EXPECT_THAT(status->workers(0).attach_error(), HasSubstr("hello.incarnation"));
}

TEST_F(HollowTest, TokensToReadEndWithTheLease) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string keeper = OpenSession();
  const std::string array_id = MakeArray(keeper, "default");
  const auto time_of = [&](const std::string& session) {
    const absl::Time asked = absl::Now();
    const auto get = BeginGet(session, array_id);
    EXPECT_THAT(get, IsOk());
    return get.ok() ? *rpc::Decode(get->expire_time()) - asked : absl::ZeroDuration();
  };
  // The coordinator's clock is this one, and a call takes no minute.
  const absl::Duration of_short_lease = time_of(OpenSession(absl::Seconds(90)));
  EXPECT_GT(of_short_lease, absl::Seconds(30));
  EXPECT_LT(of_short_lease, absl::Seconds(90) + absl::Minutes(1));
  const absl::Duration of_long_lease = time_of(keeper);
  EXPECT_GT(of_long_lease, absl::Minutes(4));
  EXPECT_LT(of_long_lease, absl::Minutes(6));
}

TEST_F(HollowTest, WhatIsReleasedIsToldToTheWorkersOfItsMeshAlone) {
  StartCoordinator("");
  StartWorkers(2);
  ASSERT_THAT(CreateMesh("one", 1), IsOk());  // served by the first, as both are there
  ASSERT_THAT(CreateMesh("both", 2), IsOk());
  ASSERT_TRUE(AwaitQuiet("one"));
  ASSERT_TRUE(AwaitQuiet("both"));
  const std::string session = OpenSession();
  const std::string of_one = MakeArray(session, "one");
  const std::string of_both = MakeArray(session, "both");
  const auto drops = [](const std::string& array_id) {
    return [array_id](const internal::v1::AttachResponse& message) {
      const auto& ids = message.drop_arrays().array_ids();
      return std::find(ids.begin(), ids.end(), array_id) != ids.end();
    };
  };
  ASSERT_THAT(Release(session, of_one), IsOk());
  ASSERT_THAT(Release(session, of_both), IsOk());
  // Messages keep their order: what comes later on a stream shows that nothing came before.
  EXPECT_TRUE(Eventually(
      [&] { return !Heard(0, drops(of_both)).empty() && !Heard(1, drops(of_both)).empty(); }));
  EXPECT_EQ(Heard(0, drops(of_one)).size(), 1u);
  EXPECT_EQ(Heard(1, drops(of_one)).size(), 0u);
}

TEST_F(HollowTest, AnArrayThatItsDonorLetGoOfMeanwhileStaysWithWhoKeepsIt) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string donor = OpenSession();
  const std::string other = OpenSession();
  bool was_in_time = false;
  for (int attempt = 0; attempt < 10 && !was_in_time; ++attempt) {
    const std::string array_id = MakeArray(donor, "default");
    AnswerSteps(false);
    v1::ExecuteRequest request = Product(donor, "default", array_id);
    request.mutable_operands(0)->set_donate(true);
    // The step waits a moment between the check of its donor and the gift.
    ASSERT_THAT(ArmFailpoints("compute.give=delay"), IsOk());
    grpc::ClientContext context;
    absl::StatusOr<v1::ExecuteResponse> executed;
    std::thread caller([&] { executed = Execute(request, &context); });
    EXPECT_TRUE(Eventually([] { return !IsArmed("compute.give"); }));
    // On a slow machine the array may be given away before the other session asks for it.
    const bool is_kept = BeginGet(other, array_id).ok();
    EXPECT_THAT(Release(donor, array_id), IsOk());
    const auto is_this_step = [&](const internal::v1::AttachResponse& message) {
      return message.has_run_step() && message.run_step().operands_size() == 2 &&
             message.run_step().operands(0).array_id() == array_id;
    };
    was_in_time = is_kept && Heard(0, is_this_step).empty();
    EXPECT_TRUE(Eventually([&] { return !Heard(0, is_this_step).empty(); }));
    const internal::v1::RunStep step = Heard(0, is_this_step).front().run_step();
    if (was_in_time) {
      EXPECT_FALSE(step.operands(0).donate());
      // It can be pinned on.
      EXPECT_THAT(BeginGet(other, array_id), IsOk());
    }
    AnswerSteps(true);
    ReportDone(0, step, 0);
    caller.join();
    if (was_in_time) {
      EXPECT_THAT(executed, IsOk());
      EXPECT_THAT(BeginGet(other, array_id), IsOk()) << "the other session kept it";
    }
  }
  EXPECT_TRUE(was_in_time);
}

TEST_F(HollowTest, ARepeatedChangeOfAMeshIsAnsweredAsTheFirstOneThoughAnArrayLiesOnIt) {
  StartCoordinator("");
  StartWorkers(1);
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  v1::UpdateEntryRequest update;
  update.set_request_id("update");
  update.set_name("m");
  v1::MeshAxis* const axis = update.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("y");
  axis->set_size(1);
  const auto change = [&](v1::UpdateEntryResponse* response) {
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::UpdateEntry, update, response);
  };
  v1::UpdateEntryResponse first;
  ASSERT_THAT(change(&first), IsOk());
  ASSERT_TRUE(AwaitQuiet("m"));
  const std::string session = OpenSession();
  std::string array_id = MakeArray(session, "m");
  v1::UpdateEntryResponse again;
  EXPECT_THAT(change(&again), IsOk());
  EXPECT_EQ(again.entry().revision(), first.entry().revision());
  update.set_request_id("another update");
  EXPECT_THAT(change(&again), StatusIs(absl::StatusCode::kFailedPrecondition));

  ASSERT_THAT(Release(session, array_id), IsOk());
  v1::DeleteEntryRequest erase;
  erase.set_request_id("delete");
  erase.set_kind(v1::ENTRY_KIND_MESH);
  erase.set_name("m");
  const auto remove = [&](v1::DeleteEntryResponse* response) {
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::DeleteEntry, erase, response);
  };
  v1::DeleteEntryResponse deleted;
  ASSERT_TRUE(Eventually([&] { return remove(&deleted).ok(); }));
  v1::CreateEntryRequest create;
  create.set_request_id("create again");
  create.set_name("m");
  *create.mutable_value() = update.value();
  v1::CreateEntryResponse created;
  ASSERT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, create, &created),
              IsOk());
  ASSERT_TRUE(AwaitQuiet("m"));
  array_id = MakeArray(session, "m");
  v1::DeleteEntryResponse repeated;
  EXPECT_THAT(remove(&repeated), IsOk());
  EXPECT_EQ(repeated.revision(), deleted.revision());
  EXPECT_THAT(BeginGet(session, array_id), IsOk()) << "nothing was deleted again";
  erase.set_request_id("another delete");
  EXPECT_THAT(remove(&repeated), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Their names are so long that 5,000 links of them do not fit on a page.
TEST_F(HollowTest, LinksAreListedInPagesOfTwoMebibytesAtMost) {
  constexpr int64_t kWorkers = 95;
  constexpr int64_t kPairs = kWorkers * (kWorkers - 1) / 2;
  StartCoordinator(StrCat("dp=", kWorkers));
  Begin({.count = kWorkers, .identity_prefix = std::string(240, 'w')});
  ASSERT_TRUE(workers_->AwaitMembers(kWorkers, kTimeout)) << workers_->totals().last_end;
  for (int64_t index = 0; index < kWorkers; ++index) {
    internal::v1::AttachRequest beat;
    for (int64_t peer = index + 1; peer < kWorkers; ++peer) {
      rpc::Encode({.peer = workers_->IdentityOf(peer),
                   .peer_incarnation = workers_->IncarnationOf(peer),
                   .latency = absl::Microseconds(1),
                   .bytes_per_second = 1e9,
                   .measured = absl::Now()},
                  beat.mutable_heartbeat()->mutable_links()->add_links());
    }
    workers_->Send(index, beat);
  }
  std::set<std::string> pairs;
  int64_t links = 0;
  int pages = 0;
  EXPECT_TRUE(Eventually([&] {
    pairs.clear();
    links = pages = 0;
    v1::ListLinksRequest request;
    do {
      v1::ListLinksResponse page;
      EXPECT_THAT(Call<v1::ClusterService>(&v1::ClusterService::Stub::ListLinks, request, &page),
                  IsOk());
      EXPECT_LT(page.ByteSizeLong(), (size_t{2} << 20) + (size_t{64} << 10));
      links += page.links_size();
      for (const v1::WorkerLink& link : page.links()) {
        pairs.insert(StrCat(link.identity(), " ", link.measured().peer_identity()));
      }
      request.set_page_token(page.next_page_token());
      ++pages;
    } while (!request.page_token().empty());
    return links == kPairs;
  })) << links;
  EXPECT_EQ(std::ssize(pairs), kPairs) << "each once";
  EXPECT_EQ(pages, 2) << "cut by its bytes: there are fewer than 5,000";
}

TEST_F(HollowTest, LinksAreListedInPages) {
  constexpr int64_t kWorkers = 12;
  constexpr int64_t kPairs = kWorkers * (kWorkers - 1) / 2;
  StartCoordinator(StrCat("dp=", kWorkers));
  StartWorkers(kWorkers);
  for (int64_t index = 0; index < kWorkers; ++index) {
    internal::v1::AttachRequest beat;
    for (int64_t peer = index + 1; peer < kWorkers; ++peer) {
      rpc::Encode({.peer = workers_->IdentityOf(peer),
                   .peer_incarnation = workers_->IncarnationOf(peer),
                   .latency = absl::Microseconds(1 + index),
                   .bytes_per_second = 1e9,
                   .measured = absl::Now()},
                  beat.mutable_heartbeat()->mutable_links()->add_links());
    }
    workers_->Send(index, beat);
  }
  v1::ListLinksRequest request;
  v1::ListLinksResponse response;
  const auto list = [&] {
    response.Clear();
    return Call<v1::ClusterService>(&v1::ClusterService::Stub::ListLinks, request, &response);
  };
  ASSERT_TRUE(Eventually([&] { return list().ok() && response.links_size() == kPairs; }));
  EXPECT_EQ(response.next_page_token(), "");
  for (const char* mesh_id : {"", "default"}) {
    request.set_mesh_id(mesh_id);
    for (const int page_size : {1, 7, 65, 66}) {
      request.set_page_size(page_size);
      request.clear_page_token();
      std::vector<std::string> pairs;
      int workers = 0;
      do {
        ASSERT_THAT(list(), IsOk());
        EXPECT_LE(response.links_size(), page_size);
        workers += response.workers_size();
        for (const v1::WorkerLink& link : response.links()) {
          pairs.push_back(StrCat(link.identity(), " ", link.measured().peer_identity()));
        }
        request.set_page_token(response.next_page_token());
      } while (!request.page_token().empty());
      EXPECT_EQ(workers, kWorkers);
      EXPECT_EQ(std::ssize(pairs), kPairs);
      std::sort(pairs.begin(), pairs.end());
      EXPECT_EQ(std::unique(pairs.begin(), pairs.end()), pairs.end()) << "each once";
    }
  }
  request.set_page_token("l/x/y");
  EXPECT_THAT(list(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(HollowTest, RanksThatTheStoreRefusedAreWrittenAgain) {
  std::string folder = testing::TempDir() + "/ranks_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  StartCoordinator("tp=2", {},
                   [&](server::CoordinatorOptions* options) { options->data_dir = folder; });
  ASSERT_THAT(ArmFailpoints("store.append=enospc"), IsOk());
  StartWorkers(2);
  EXPECT_TRUE(Eventually([] { return !IsArmed("store.append"); }));
  EXPECT_TRUE(AwaitQuiet("default")) << "a mesh whose ranks are not written is not complete";
  Stop();
  StartCoordinator("", {},
                   [&](server::CoordinatorOptions* options) { options->data_dir = folder; });
  v1::GetEntryRequest request;
  request.set_kind(v1::ENTRY_KIND_MESH);
  request.set_name("default");
  v1::GetEntryResponse response;
  ASSERT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::GetEntry, request, &response),
              IsOk());
  EXPECT_EQ(response.entry().mesh_assignment().workers_size(), 2);
  EXPECT_EQ(response.entry().version(), 1) << "giving ranks makes no version";
}

TEST_F(HollowTest, LimitsOfTheCatalogAreKept) {
  StartCoordinator("", {.max_meshes = 2, .max_definitions = 2, .max_watches = 1});
  ASSERT_THAT(CreateMesh("one", 2), IsOk());
  ASSERT_THAT(CreateMesh("two", 2), IsOk());
  const absl::Status third = CreateMesh("three", 2);
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(third.ToString(), AllOf(HasSubstr("2 meshes"), HasSubstr("--max-meshes")));

  ExpectOnlyOneWatch("--max-watches");
}

TEST_F(HollowTest, WatchesOfOneCallerAreLimited) {
  StartCoordinator("", {.max_watches_per_caller = 1});
  ASSERT_THAT(CreateMesh("one", 2), IsOk());
  ExpectOnlyOneWatch("--max-watches-per-caller");
  const auto stub = v1::CatalogService::NewStub(channel_);
  v1::WatchRequest request;
  request.set_start_revision(1);
  v1::WatchResponse response;
  // The place is free again.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    const auto watch = stub->Watch(&context, request);
    const bool is_told = watch->Read(&response);
    context.TryCancel();
    while (watch->Read(&response)) {
    }
    watch->Finish();
    return is_told;
  }));
}

}  // namespace
}  // namespace shardmesh::test
