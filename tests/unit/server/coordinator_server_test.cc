// The coordinator over real gRPC: what its services answer, and refuse, without any worker.
#include "server/coordinator_server.h"

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/store/sqlite_database.h"
#include "server/store/store_file.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using test::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

class CoordinatorServerTest : public testing::Test {
 protected:
  CoordinatorServerTest() {
    CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address = "127.0.0.1:0";
    options.mesh = *Mesh::Parse("fsdp=2,tp=2");
    server_ = *CoordinatorServer::Start(std::move(options));
    channel_ = *rpc::CreateChannel(server_->address());
  }
  ~CoordinatorServerTest() override { server_->Drain(absl::Now() + absl::Seconds(5)); }

  // Calls `method` of a stub; the status as the client library sees it.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(const std::unique_ptr<Stub>& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    return rpc::FromGrpc((stub.get()->*method)(&context, request, response));
  }

  std::string OpenSession() {
    const auto stub = v1::SessionService::NewStub(channel_);
    v1::OpenSessionRequest request;
    request.set_request_id("open");
    v1::OpenSessionResponse response;
    EXPECT_TRUE(Call(stub, &v1::SessionService::Stub::OpenSession, request, &response).ok());
    return response.session_id();
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(CoordinatorServerTest, ResolvesAgainstTheDefaultMesh) {
  const auto stub = v1::ResolveService::NewStub(channel_);
  v1::ResolveSpecRequest request;
  request.add_axes()->set_name("__BATCH__");
  request.add_axes()->set_name("__EMBED__");
  request.mutable_shape()->add_sizes(32);
  request.mutable_shape()->add_sizes(384);
  request.set_explain(true);
  request.mutable_mesh()->set_name("default");
  v1::ResolveSpecResponse response;
  const absl::Status status =
      Call(stub, &v1::ResolveService::Stub::ResolveSpec, request, &response);
  ASSERT_TRUE(status.ok()) << status;
  // dp is not in the mesh, so the batch's (fsdp, dp) goes as a whole.
  EXPECT_EQ(response.effective().dimensions(0).constant(), v1::AXIS_CONSTANT_NONE);
  EXPECT_EQ(response.effective().dimensions(1).name(), "tp");
  ASSERT_EQ(response.corrections_size(), 1);
  EXPECT_EQ(response.corrections(0).reason(), v1::REASON_AXIS_NOT_IN_MESH);
  EXPECT_GT(response.explanation_size(), 0);
  EXPECT_THAT(response.shard_shape(), testing::ElementsAre(32, 192));

  request.set_policy(v1::CORRECTION_POLICY_STRICT);
  EXPECT_THAT(Call(stub, &v1::ResolveService::Stub::ResolveSpec, request, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
}

TEST_F(CoordinatorServerTest, NamesTheAxisThatItDoesNotKnow) {
  const auto stub = v1::ResolveService::NewStub(channel_);
  v1::ResolveSpecRequest request;
  request.add_axes()->set_name("__HAED__");
  v1::ResolveSpecResponse response;
  const absl::Status status =
      Call(stub, &v1::ResolveService::Stub::ResolveSpec, request, &response);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownAxis));
  EXPECT_THAT(std::string(status.message()), HasSubstr("__HEAD__"));
}

TEST_F(CoordinatorServerTest, RefusesASpecThatStillUsesAnAxisTwice) {
  const auto stub = v1::ResolveService::NewStub(channel_);
  v1::CorrectSpecRequest request;
  request.mutable_mesh()->set_name("default");
  request.mutable_spec()->add_dimensions()->set_name("tp");
  request.mutable_spec()->add_dimensions()->set_name("tp");
  request.mutable_shape()->add_sizes(8);
  request.mutable_shape()->add_sizes(8);
  v1::CorrectSpecResponse response;
  EXPECT_THAT(Call(stub, &v1::ResolveService::Stub::CorrectSpec, request, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kDuplicateAxis));
}

TEST_F(CoordinatorServerTest, ResolvesATreeInPieces) {
  const auto stub = v1::LayoutService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  const auto stream = stub->ResolveTree(&context);
  v1::ResolveTreeRequest request;
  v1::Rule* rule = request.mutable_header()->mutable_rule_set()->mutable_value()->add_rules();
  rule->set_pattern("kernel$");
  rule->mutable_spec()->add_dimensions()->set_name("fsdp");
  request.mutable_header()->mutable_mesh()->set_name("default");
  ASSERT_TRUE(stream->Write(request));
  int placements = 0;
  v1::ResolveTreeResponse response;
  for (int piece = 0; piece < 3; ++piece) {
    request.Clear();
    for (int i = 0; i < 10; ++i) {
      v1::TreeTensors* tensors = request.mutable_tensors();
      const std::string name =
          "layer" + std::to_string(piece) + "." + std::to_string(i) + ".kernel";
      tensors->mutable_names()->append(name);
      tensors->add_name_sizes(static_cast<uint32_t>(name.size()));
      tensors->add_ranks(1);
      tensors->add_sizes(16);
      tensors->add_dtypes(v1::DTYPE_F32);
    }
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.specs_size(), piece == 0 ? 1 : 0) << "a spec is sent once";
    placements += response.placements().spec_indexes_size();
  }
  stream->WritesDone();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(placements, 30);
  EXPECT_EQ(response.report().tensors(), 30);
  EXPECT_EQ(response.report().most_device_bytes(), 30 * 32);
}

TEST_F(CoordinatorServerTest, KeepsDefinitionsThatRequestsName) {
  const auto catalog = v1::CatalogService::NewStub(channel_);
  v1::CreateEntryRequest create;
  create.set_request_id("create");
  create.set_name("wide");
  v1::MeshAxis* axis = create.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("tp");
  axis->set_size(64);
  v1::CreateEntryResponse created;
  ASSERT_TRUE(Call(catalog, &v1::CatalogService::Stub::CreateEntry, create, &created).ok());

  const auto resolve = v1::LayoutService::NewStub(channel_);
  v1::DescribeTilingRequest describe;
  describe.mutable_mesh()->set_name("wide");
  describe.mutable_spec()->add_dimensions()->set_name("tp");
  describe.mutable_shape()->add_sizes(128);
  describe.add_devices(63);
  v1::DescribeTilingResponse tiling;
  const absl::Status status =
      Call(resolve, &v1::LayoutService::Stub::DescribeTiling, describe, &tiling);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(tiling.tiles(0).tile().ranges(0).start(), 126);

  describe.mutable_mesh()->set_name("wyde");
  EXPECT_THAT(Call(resolve, &v1::LayoutService::Stub::DescribeTiling, describe, &tiling),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(CoordinatorServerTest, RefusesAPutOntoAMeshWithoutWorkers) {
  const std::string session = OpenSession();
  const auto stub = v1::ArrayService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  const auto stream = stub->BeginPut(&context);
  v1::BeginPutRequest request;
  request.mutable_header()->set_request_id("put");
  request.mutable_header()->set_session_id(session);
  stream->Write(request);
  stream->WritesDone();
  v1::BeginPutResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_THAT(rpc::FromGrpc(stream->Finish()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
}

TEST_F(CoordinatorServerTest, ARequestIdOpensOneSessionAndIsRefusedForAnother) {
  const auto stub = v1::SessionService::NewStub(channel_);
  v1::OpenSessionRequest request;
  request.set_request_id("open");
  request.set_client_name("ada");
  v1::OpenSessionResponse first;
  v1::OpenSessionResponse again;
  ASSERT_TRUE(Call(stub, &v1::SessionService::Stub::OpenSession, request, &first).ok());
  ASSERT_TRUE(Call(stub, &v1::SessionService::Stub::OpenSession, request, &again).ok());
  EXPECT_EQ(again.session_id(), first.session_id());
  request.set_client_name("bob");
  EXPECT_THAT(Call(stub, &v1::SessionService::Stub::OpenSession, request, &again),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(CoordinatorServerTest, ASessionTakesOverSoManyArraysAtOnce) {
  const auto stub = v1::SessionService::NewStub(channel_);
  v1::RenewSessionRequest request;
  request.set_session_id(OpenSession());
  for (int i = 0; i < 10'000; ++i) request.add_held_array_ids(StrCat("array-", i));
  v1::RenewSessionResponse response;
  EXPECT_THAT(Call(stub, &v1::SessionService::Stub::RenewSession, request, &response), IsOk());
  v1::ListSessionsResponse page;
  ASSERT_THAT(Call(stub, &v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest(), &page),
              IsOk());
  EXPECT_EQ(page.sessions(0).pinned_arrays(), 10'000);
  request.add_held_array_ids("one-more");
  EXPECT_THAT(Call(stub, &v1::SessionService::Stub::RenewSession, request, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  request.clear_held_array_ids();
  request.add_held_array_ids("");
  EXPECT_THAT(Call(stub, &v1::SessionService::Stub::RenewSession, request, &response),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(CoordinatorServerTest, ListsOpenSessionsInPagesWithoutTheirIds) {
  const auto stub = v1::SessionService::NewStub(channel_);
  std::vector<std::string> ids;
  for (const char* const name : {"ada", "bob", "eve"}) {
    v1::OpenSessionRequest request;
    request.set_request_id(name);
    request.set_client_name(name);
    v1::OpenSessionResponse opened;
    ASSERT_THAT(Call(stub, &v1::SessionService::Stub::OpenSession, request, &opened), IsOk());
    ids.push_back(opened.session_id());
  }
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  v1::ListSessionsResponse page;
  ASSERT_THAT(Call(stub, &v1::SessionService::Stub::ListSessions, request, &page), IsOk());
  ASSERT_EQ(page.sessions_size(), 2);
  EXPECT_EQ(page.sessions(0).client_name(), "ada");
  EXPECT_EQ(page.sessions(0).number(), 1);
  EXPECT_EQ(page.sessions(0).id_prefix(), ids[0].substr(0, 8));
  EXPECT_THAT(page.sessions(0).caller(), HasSubstr("127.0.0.1"));
  EXPECT_THAT(rpc::Decode(page.sessions(0).expire_time()),
              IsOkAndHolds(*rpc::Decode(page.sessions(0).renew_time()) + absl::Seconds(30)));
  EXPECT_EQ(page.sessions(1).client_name(), "bob");
  EXPECT_FALSE(page.next_page_token().empty());
  for (const std::string& id : ids) {
    EXPECT_THAT(page.SerializeAsString(), Not(HasSubstr(id.substr(0, 9))));
  }
  request.set_page_token(page.next_page_token());
  ASSERT_THAT(Call(stub, &v1::SessionService::Stub::ListSessions, request, &page), IsOk());
  ASSERT_EQ(page.sessions_size(), 1);
  EXPECT_EQ(page.sessions(0).client_name(), "eve");
  EXPECT_EQ(page.next_page_token(), "");

  for (const char* const token : {"0", "-1", "none", "1x", "99999999999999999999"}) {
    request.set_page_token(token);
    EXPECT_THAT(Call(stub, &v1::SessionService::Stub::ListSessions, request, &page),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << token;
  }
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_THAT(Call(stub, &v1::SessionService::Stub::ListSessions, request, &page),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(CoordinatorServerTest, ListsOperationsInPages) {
  const auto stub = v1::OperationService::NewStub(channel_);
  v1::ListOperationsRequest request;
  v1::ListOperationsResponse page;
  ASSERT_THAT(Call(stub, &v1::OperationService::Stub::ListOperations, request, &page), IsOk());
  EXPECT_EQ(page.operations_size(), 0);
  EXPECT_EQ(page.next_page_token(), "");
  request.set_page_token("0");
  EXPECT_THAT(Call(stub, &v1::OperationService::Stub::ListOperations, request, &page),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_THAT(Call(stub, &v1::OperationService::Stub::ListOperations, request, &page),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  request.set_page_size(1);
  request.add_states(v1::OPERATION_STATE_DONE);
  ASSERT_THAT(Call(stub, &v1::OperationService::Stub::ListOperations, request, &page), IsOk());
  for (const int state : {0, 99}) {
    request.set_states(0, static_cast<v1::OperationState>(state));
    EXPECT_THAT(Call(stub, &v1::OperationService::Stub::ListOperations, request, &page),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << state;
  }
}

TEST_F(CoordinatorServerTest, TakesATtlOfASessionBetweenASecondAndAnHour) {
  const auto stub = v1::SessionService::NewStub(channel_);
  const auto open = [&](std::optional<absl::Duration> ttl) -> absl::StatusOr<absl::Duration> {
    v1::OpenSessionRequest request;
    request.set_request_id(ttl.has_value() ? absl::FormatDuration(*ttl) : "none");
    if (ttl.has_value()) rpc::Encode(*ttl, request.mutable_ttl());
    v1::OpenSessionResponse response;
    const absl::Status status =
        Call(stub, &v1::SessionService::Stub::OpenSession, request, &response);
    if (!status.ok()) return status;
    return rpc::Decode(response.ttl());
  };
  EXPECT_THAT(open(std::nullopt), IsOkAndHolds(absl::Seconds(30)));
  EXPECT_THAT(open(absl::Seconds(1)), IsOkAndHolds(absl::Seconds(1)));
  EXPECT_THAT(open(absl::Hours(1)), IsOkAndHolds(absl::Hours(1)));
  for (const absl::Duration ttl : {absl::ZeroDuration(), absl::Milliseconds(999),
                                   absl::Hours(1) + absl::Milliseconds(1), absl::Hours(24)}) {
    EXPECT_THAT(open(ttl), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
  v1::OpenSessionRequest malformed;
  malformed.set_request_id("malformed");
  malformed.mutable_ttl()->set_nanos(-2'000'000'000);
  v1::OpenSessionResponse response;
  const auto violations = rpc::FieldViolationsOf(
      Call(stub, &v1::SessionService::Stub::OpenSession, malformed, &response));
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations.front().field, "ttl.nanos");
}

TEST_F(CoordinatorServerTest, BoundsThePutsThatACallerBegins) {
  CoordinatorOptions options;
  options.listen_address = "127.0.0.1:0";
  options.http_address = "";
  options.max_put_streams_per_caller = 1;
  auto server = CoordinatorServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::ArrayService::NewStub(*rpc::CreateChannel((*server)->address()));
  // What a put ends with that sends nothing: it is refused for its number, or for what it lacks.
  const auto put_nothing = [&] {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    const auto stream = stub->BeginPut(&context);
    stream->WritesDone();
    return rpc::FromGrpc(stream->Finish());
  };
  EXPECT_THAT(put_nothing(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(20)), &context);
    const auto open = stub->BeginPut(&context);
    absl::Status refused = put_nothing();
    while (!absl::IsResourceExhausted(refused) && absl::Now() < deadline) {
      refused = put_nothing();
    }
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
    context.TryCancel();
    open->Finish();
  }
  absl::Status admitted = put_nothing();
  while (!absl::IsInvalidArgument(admitted) && absl::Now() < deadline) {
    admitted = put_nothing();
  }
  EXPECT_THAT(admitted, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(CoordinatorServerTest, RefusesAPutOntoAVersionOfAMesh) {
  const auto stub = v1::ArrayService::NewStub(channel_);
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
  const auto stream = stub->BeginPut(&context);
  v1::BeginPutRequest request;
  request.mutable_header()->set_request_id("put");
  request.mutable_header()->set_session_id(OpenSession());
  request.mutable_header()->mutable_mesh()->set_name("default@1");
  stream->Write(request);
  stream->WritesDone();
  v1::BeginPutResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const absl::Status status = rpc::FromGrpc(stream->Finish());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("'default@1' names a version; arrays lie on a mesh as it is now, "
                                 "write default"));
}

TEST_F(CoordinatorServerTest, RefusesAStepOnAnArrayThatThereIsNot) {
  v1::MatmulRequest request;
  request.set_request_id("step");
  request.set_session_id(OpenSession());
  request.mutable_lhs()->mutable_array()->set_name("a");
  request.mutable_rhs()->mutable_array()->set_name("b");
  v1::MatmulResponse response;
  const auto stub = v1::ComputeService::NewStub(channel_);
  EXPECT_THAT(Call(stub, &v1::ComputeService::Stub::Matmul, request, &response),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(CoordinatorServerTest, TellsWhatItIsAndHowItIsDoing) {
  const auto stub = v1::ClusterService::NewStub(channel_);
  v1::GetVersionResponse version;
  ASSERT_TRUE(
      Call(stub, &v1::ClusterService::Stub::GetVersion, v1::GetVersionRequest(), &version).ok());
  EXPECT_FALSE(version.build().version().empty());
  v1::GetStatusResponse status;
  ASSERT_TRUE(
      Call(stub, &v1::ClusterService::Stub::GetStatus, v1::GetStatusRequest(), &status).ok());
  EXPECT_EQ(status.cluster_id(), version.cluster_id());
  ASSERT_EQ(status.meshes_size(), 1);
  EXPECT_EQ(status.meshes(0).rank_count(), 4);
  EXPECT_EQ(status.meshes(0).ranks_size(), 0) << "no worker is given to them";
  EXPECT_FALSE(status.meshes(0).complete());
}

TEST_F(CoordinatorServerTest, SaysThatNothingIsWrongAndRefusesBadQuestionsAboutIt) {
  const auto stub = v1::ClusterService::NewStub(channel_);
  v1::DiagnoseResponse diagnosis;
  ASSERT_TRUE(
      Call(stub, &v1::ClusterService::Stub::Diagnose, v1::DiagnoseRequest(), &diagnosis).ok());
  EXPECT_TRUE(diagnosis.healthy()) << diagnosis.verdict();
  EXPECT_THAT(diagnosis.verdict(), HasSubstr("nothing is stuck"));
  v1::DiagnoseRequest of_no_step;
  of_no_step.set_sequence(-1);
  EXPECT_THAT(Call(stub, &v1::ClusterService::Stub::Diagnose, of_no_step, &diagnosis),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));

  const auto list = [&](const std::string& identity, int64_t sequence, int32_t max_records) {
    v1::ListFlightRecordsRequest request;
    request.set_identity(identity);
    if (sequence != 0) request.set_sequence(sequence);
    request.set_max_records(max_records);
    v1::ListFlightRecordsResponse response;
    return Call(stub, &v1::ClusterService::Stub::ListFlightRecords, request, &response);
  };
  EXPECT_TRUE(list("", 0, 0).ok());
  EXPECT_THAT(list("", -1, 0), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(list("", 0, -1), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(list("", 0, 1025), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(list("nobody", 0, 0), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));

  v1::ListLinksRequest links;
  v1::ListLinksResponse listed;
  EXPECT_THAT(Call(stub, &v1::ClusterService::Stub::ListLinks, links, &listed),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete))
      << "no worker is attached";
  links.set_mesh_id("default");
  EXPECT_THAT(Call(stub, &v1::ClusterService::Stub::ListLinks, links, &listed),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  links.set_mesh_id("other");
  EXPECT_THAT(Call(stub, &v1::ClusterService::Stub::ListLinks, links, &listed),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(CoordinatorServerTest, SaysThatAPortIsInUse) {
  CoordinatorOptions options;
  options.listen_address = server_->address();
  options.http_address = "";
  const auto second = CoordinatorServer::Start(std::move(options));
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(server_->port())));
}

TEST(CoordinatorServerStartTest, RefusesPlaintextBeyondThisHost) {
  CoordinatorOptions options;
  options.listen_address = "0.0.0.0:0";
  options.http_address = "";
  EXPECT_THAT(CoordinatorServer::Start(std::move(options)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Returns the options of a coordinator with the mesh fsdp=2,tp=2 and its state in `folder`.
CoordinatorOptions OptionsOf(const std::string& folder) {
  CoordinatorOptions options;
  options.listen_address = "127.0.0.1:0";
  options.http_address = "";
  options.data_dir = folder;
  options.mesh = *Mesh::Parse("fsdp=2,tp=2");
  return options;
}

TEST(CoordinatorServerStartTest, RefusesAnotherMeshThanItsStateHas) {
  CoordinatorOptions options = OptionsOf(testing::TempDir() + "/coordinator_other_mesh");
  ASSERT_TRUE(CoordinatorServer::Start(options).ok());
  options.mesh = *Mesh::Parse("fsdp=4");
  const auto other = CoordinatorServer::Start(options);
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("fsdp=2,tp=2"));
}

TEST(CoordinatorServerStartTest, SaysWhichRecordsItLeftOut) {
  const std::string folder = testing::TempDir() + "/coordinator_unreadable";
  std::filesystem::remove_all(folder);
  CoordinatorOptions options = OptionsOf(folder);
  ASSERT_TRUE(CoordinatorServer::Start(options).ok());
  {
    Database database(DatabasePath(folder));
    ASSERT_TRUE(database.Open().ok());
    ASSERT_TRUE(database.Execute("UPDATE event SET crc = crc + 1 WHERE key = 'mesh/default'").ok());
  }
  options.mesh.reset();
  const auto server = CoordinatorServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel = *rpc::CreateChannel((*server)->address());
  const auto cluster = v1::ClusterService::NewStub(channel);
  v1::GetStatusResponse status;
  grpc::ClientContext of_status;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &of_status);
  ASSERT_TRUE(cluster->GetStatus(&of_status, {}, &status).ok());
  EXPECT_EQ(status.unreadable_records(), 1);
  EXPECT_THAT(status.unreadable_keys(), testing::ElementsAre("mesh/default"));
  v1::DiagnoseResponse diagnosis;
  grpc::ClientContext of_diagnosis;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &of_diagnosis);
  ASSERT_TRUE(cluster->Diagnose(&of_diagnosis, {}, &diagnosis).ok());
  EXPECT_FALSE(diagnosis.healthy());
  ASSERT_EQ(diagnosis.findings_size(), 1);
  EXPECT_EQ(diagnosis.findings(0).kind(), v1::FINDING_KIND_UNREADABLE);
  EXPECT_THAT(diagnosis.verdict(), HasSubstr("\"mesh/default\""));
  v1::GetEntryRequest get;
  get.set_kind(v1::ENTRY_KIND_MESH);
  get.set_name("default");
  v1::GetEntryResponse got;
  grpc::ClientContext of_get;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &of_get);
  EXPECT_THAT(rpc::FromGrpc(v1::CatalogService::NewStub(channel)->GetEntry(&of_get, get, &got)),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
}

}  // namespace
}  // namespace shardmesh::server
