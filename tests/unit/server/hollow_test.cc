// A coordinator and workers that hold nothing: what goes down their streams, and what the
// coordinator does not take from them.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/coordinator_client.h"
#include "gmock/gmock.h"
#include "rpc/call.h"
#include "rpc/clock.h"
#include "rpc/server_lifecycle.h"
#include "rpc/status.h"
#include "server/attach_service.h"
#include "server/catalogue.h"
#include "server/cluster_state.h"
#include "server/coordinator_server.h"
#include "server/flight_log.h"
#include "server/link_table.h"
#include "server/local_store.h"
#include "server/membership.h"
#include "server/recovery.h"
#include "sharding/reason.h"
#include "sharding/str_cat.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "shardmesh/v1/attach_service.grpc.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "tensor/failpoint.h"
#include "tests/testing/eventually.h"
#include "tests/testing/hollow_workers.h"
#include "tests/testing/proxy.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class HollowTest : public testing::Test {
 protected:
  ~HollowTest() override { Stop(); }

  void Stop() {
    workers_.reset();
    if (coordinator_ != nullptr) coordinator_->Drain(absl::Now() + absl::Seconds(5));
    coordinator_.reset();
  }

  using CoordinatorLimits = server::CoordinatorLimits;

  void StartCoordinator(const std::string& mesh, const CoordinatorLimits& limits = {},
                        const server::MembershipOptions& membership = {}) {
    server::CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "";
    if (!mesh.empty()) options.mesh = *Mesh::Parse(mesh);
    options.limits = limits;
    options.membership = membership;
    auto started = server::CoordinatorServer::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    channel_ = *rpc::CreateChannel(coordinator_->address());
  }
  void Begin(HollowWorkers::Options options) {
    options.coordinator = coordinator_->address();
    auto workers = HollowWorkers::Start(options);
    ASSERT_TRUE(workers.ok()) << workers.status();
    workers_ = *std::move(workers);
  }
  void StartWorkers(int64_t count) {
    Begin({.count = count});
    ASSERT_TRUE(workers_->AwaitMembers(count, kTimeout)) << workers_->totals().last_end;
  }

  template <typename Service, typename Request, typename Response>
  absl::Status Call(grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                    const Request& request, Response* response) {
    const auto stub = Service::NewStub(channel_);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    return rpc::FromGrpc((stub.get()->*method)(&context, request, response));
  }
  std::string OpenSession() {
    v1::OpenSessionRequest open;
    open.set_request_id("open");
    v1::OpenSessionResponse session;
    EXPECT_THAT(Call<v1::SessionService>(&v1::SessionService::Stub::OpenSession, open, &session),
                IsOk());
    return session.session_id();
  }
  absl::Status CreateMesh(const std::string& name, int64_t size) {
    v1::CreateEntryRequest request;
    request.set_request_id("create-" + name);
    request.set_name(name);
    v1::MeshAxis* axis = request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(size);
    v1::CreateEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, request, &response);
  }
  absl::StatusOr<v1::GetStatusResponse> Status(const v1::GetStatusRequest& request = {}) {
    v1::GetStatusResponse response;
    const absl::Status status =
        Call<v1::ClusterService>(&v1::ClusterService::Stub::GetStatus, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  int64_t Epoch() {
    const auto status = Status();
    return status.ok() ? status->epoch() : -1;
  }
  // Every worker has heard of the newest epoch, and the mesh is complete.
  bool AwaitQuiet(const std::string& mesh_id) {
    return Eventually([&] {
      v1::GetStatusRequest request;
      request.set_mesh_id(mesh_id);
      const auto status = Status(request);
      return status.ok() && status->meshes_size() == 1 && status->meshes(0).complete() &&
             workers_->totals().lowest_epoch == status->epoch();
    });
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

  std::unique_ptr<server::CoordinatorServer> coordinator_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<HollowWorkers> workers_;
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
    v1::PutTensor& tensor = *request.add_tensors();
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

TEST_F(HollowTest, AClientWhoseAnswerIsCutOffHasOnePut) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto proxy, Proxy::Start(coordinator_->address()));
  int waits = 0;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto client,
      client::CoordinatorClient::Connect(
          proxy->address(), rpc::Credentials::Insecure(), absl::Seconds(10),
          {.await_coordinator = true, .on_wait = [&](const absl::Status&) { ++waits; }}));
  const auto in_time = [] { return rpc::CallOptions::Within(kTimeout); };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::OpenedSession session,
                                 client->OpenSession(absl::Minutes(1), "test", in_time()));
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
                                 client->BeginPut(session.session_id, tensors, {}, in_time()));
  EXPECT_GE(waits, 1);
  EXPECT_EQ(put.assignments.size(), tensors.size());
  EXPECT_TRUE(Eventually([&] { return Status()->arrays() == 2'000; })) << Status()->arrays();
  EXPECT_THAT(client->AbortTransfer(session.session_id, put.transfer_id, "seen", in_time()),
              IsOk());
  EXPECT_TRUE(Eventually([&] { return Status()->arrays() == 0; })) << Status()->arrays();
}

TEST_F(HollowTest, ASilentWorkersStreamIsEnded) {
  StartCoordinator("tp=2", {},
                   {.heartbeat_interval = absl::Milliseconds(100), .lost_after = absl::Seconds(1)});
  StartWorkers(2);
  workers_->FallSilent(0);
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return now.attaches == 3 && now.members == 2; },
      kTimeout))
      << "it would attach anew only if its stream was ended";
}

TEST_F(HollowTest, AStreamThatDoesNotBringItsHelloIsEnded) {
  StartCoordinator("", {.hello_timeout = absl::Milliseconds(200)});
  const auto stub = v1::AttachService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
  const auto stream = stub->Attach(&context);
  v1::AttachResponse response;
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
  Begin({.count = 64, .attach_delay = absl::Milliseconds(1)});
  EXPECT_TRUE(workers_->Await([](const HollowWorkers::Totals& now) { return now.attaches > 1'000; },
                              kTimeout));
  // Every stream of theirs has ended, or the coordinator would not.
  Stop();
}

TEST_F(HollowTest, AnInventoryThatTakesLongIsTakenIn) {
  StartCoordinator(
      "tp=1", {},
      {.heartbeat_interval = absl::Milliseconds(100), .lost_after = absl::Milliseconds(1'500)});
  // No heartbeat comes through before the last page.
  Begin({.count = 1, .inventory_pages = 8, .page_interval = absl::Milliseconds(300)});
  ASSERT_TRUE(workers_->AwaitMembers(1, kTimeout));
  EXPECT_EQ(workers_->totals().attaches, 1) << workers_->totals().last_end;
}

TEST_F(HollowTest, AStreamThatIsLostBetweenItsPagesIsEnded) {
  StartCoordinator(
      "", {},
      {.heartbeat_interval = absl::Milliseconds(100), .lost_after = absl::Milliseconds(300)});
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

// The hub of a coordinator without the rest.
class HubTest : public testing::Test {
 protected:
  HubTest() {
    catalogue_ = *server::Catalogue::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    publisher_ = *server::StatePublisher::Open(store_.get(), &clock_, &catalogue_->requests());
    hub_ = server::AttachHub::Create(&membership_, catalogue_.get(), publisher_.get(),
                                     {.cluster_id = "hub",
                                      .term = 1,
                                      .token_key = "",
                                      .build_version = "",
                                      .flight_log = &flight_log_,
                                      .link_table = &link_table_,
                                      .clock = &clock_,
                                      .recovery = &recovery_});
    membership_.AddListener([this](const server::MembershipEvent&) { hub_->MembershipChanged(); });
    rpc::ServerOptions options;
    options.on_drain = [this] { hub_->EndStreams(); };
    lifecycle_ =
        *rpc::ServerLifecycle::Start(options, {{"shardmesh.v1.AttachService", hub_->service()}});
  }
  ~HubTest() override {
    workers_.reset();
    lifecycle_->Drain(absl::Now() + absl::Seconds(5));
    lifecycle_.reset();
    clock_.Stop();
  }

  rpc::RealClock clock_;
  const std::unique_ptr<server::Store> store_ = server::CreateMemoryStore();
  std::unique_ptr<server::Catalogue> catalogue_;
  std::unique_ptr<server::StatePublisher> publisher_;
  server::Membership membership_{&clock_};
  server::FlightLog flight_log_;
  server::LinkTable link_table_;
  server::Recovery recovery_{&clock_};
  std::unique_ptr<server::AttachHub> hub_;
  std::unique_ptr<rpc::ServerLifecycle> lifecycle_;
  std::unique_ptr<HollowWorkers> workers_;
};

TEST_F(HubTest, WhoServedAMeshBeforeDropsItsArraysToo) {
  ASSERT_THAT(membership_.AddMesh("m", 2, {"worker-000000", "worker-000001"}), IsOk());
  workers_ = *HollowWorkers::Start({.coordinator = lifecycle_->address(), .count = 4});
  ASSERT_TRUE(workers_->AwaitMembers(4, kTimeout)) << workers_->totals().last_end;
  // An array is released. Before its workers are told, the mesh is made anew with others.
  ASSERT_THAT(membership_.RemoveMesh("m"), IsOk());
  ASSERT_THAT(membership_.AddMesh("m", 2, {"worker-000002", "worker-000003"}), IsOk());
  hub_->Drop("m", {"array"});
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
  const auto attach = [&](const v1::Hello& hello) {
    const auto stub = v1::AttachService::NewStub(channel_);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &context);
    const auto stream = stub->Attach(&context);
    v1::AttachRequest request;
    *request.mutable_hello() = hello;
    stream->Write(request);
    v1::AttachResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return rpc::FromGrpc(stream->Finish());
  };
  v1::Hello good;
  good.set_identity("worker");
  good.set_incarnation(1);
  good.mutable_protocol()->set_min(1);
  good.mutable_protocol()->set_max(1);
  good.add_endpoints()->set_address("127.0.0.1:1");
  good.set_nonce(std::string(16, 'n'));
  v1::Hello hello = good;
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

TEST_F(HollowTest, LimitsOfTheCatalogAreKept) {
  StartCoordinator("", {.max_meshes = 2, .max_definitions = 2, .max_watches = 1});
  ASSERT_THAT(CreateMesh("one", 2), IsOk());
  ASSERT_THAT(CreateMesh("two", 2), IsOk());
  const absl::Status third = CreateMesh("three", 2);
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(third.ToString(), AllOf(HasSubstr("2 meshes"), HasSubstr("--max-meshes")));

  const auto stub = v1::CatalogService::NewStub(channel_);
  v1::WatchRequest request;
  request.set_start_revision(1);
  grpc::ClientContext first_context;
  const auto first = stub->Watch(&first_context, request);
  v1::WatchResponse response;
  ASSERT_TRUE(first->Read(&response));
  grpc::ClientContext second_context;
  const auto second = stub->Watch(&second_context, request);
  EXPECT_FALSE(second->Read(&response));
  EXPECT_THAT(rpc::FromGrpc(second->Finish()),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  first_context.TryCancel();
  while (first->Read(&response)) {
  }
  first->Finish();
}

TEST_F(HollowTest, WatchesOfOneCallerAreLimited) {
  StartCoordinator("", {.max_watches_per_caller = 1});
  ASSERT_THAT(CreateMesh("one", 2), IsOk());
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
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(refused.ToString(), HasSubstr("--max-watches-per-caller"));
  first_context.TryCancel();
  while (first->Read(&response)) {
  }
  first->Finish();
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
