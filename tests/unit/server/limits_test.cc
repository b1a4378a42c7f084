// Every limit of docs/limits.md that a caller can meet: just below it, at it and just above it.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "program/program.h"
#include "rpc/call.h"
#include "rpc/stream/message_bytes.h"
#include "server/diagnosis/flight_log.h"
#include "shardmesh/v1/admin_service.grpc.pb.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "tensor/literal.h"
#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LimitsTest : public HollowFixture {
 protected:
  // Sends these bytes to any method, as the only message, and awaits the end.
  absl::Status Ask(const std::string& path, const grpc::ByteBuffer& message,
                   absl::Duration timeout) {
    using Bytes = grpc::ByteBuffer;
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(timeout), &context);
    const grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING,
                                           channel_);
    const std::unique_ptr<grpc::ClientReaderWriter<Bytes, Bytes>> stream(
        grpc::internal::ClientReaderWriterFactory<Bytes, Bytes>::Create(channel_.get(), method,
                                                                        &context));
    stream->Write(message);
    stream->WritesDone();
    Bytes answer;
    while (stream->Read(&answer)) {
    }
    return rpc::FromGrpc(stream->Finish());
  }

  absl::Status GetVersion(absl::Duration timeout = kTimeout) {
    const auto stub = v1::ClusterService::NewStub(channel_);
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(timeout), &context);
    v1::GetVersionResponse response;
    return rpc::FromGrpc(stub->GetVersion(&context, {}, &response));
  }
};

// A message of so many bytes, which every method can parse: a field that none knows.
grpc::ByteBuffer MessageOf(int64_t size_bytes) {
  constexpr int kNumber = 15'000;
  constexpr int64_t kFramingBytes = 3 + 4;
  google::protobuf::Empty message;
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      kNumber, std::string(static_cast<size_t>(size_bytes - kFramingBytes), 'x'));
  return rpc::SerializeMessage(message);
}

TEST_F(LimitsTest, EveryCallTakesMessagesUpToTheLimitAndNoWorkerIsLostForLongerOnes) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  channel_ = grpc::CreateChannel(coordinator_->address(), grpc::InsecureChannelCredentials());
  const auto is_too_long = [](const absl::Status& status) {
    return absl::IsResourceExhausted(status) &&
           status.message().find("larger than max") != absl::string_view::npos;
  };
  ASSERT_EQ(MessageOf(rpc::kMaxControlMessageBytes).Length(),
            static_cast<size_t>(rpc::kMaxControlMessageBytes));
  int methods = 0;
  for (const char* name :
       {"v1.AdminService", "v1.ArrayService", "internal.v1.AttachService", "v1.CatalogService",
        "v1.ClusterService", "v1.ComputeService", "v1.OperationService", "v1.ResolveService",
        "v1.LayoutService", "v1.RuleService", "v1.MeshService", "v1.ReshardService",
        "compat.v1.CompatService", "v1.SessionService"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
        StrCat("shardmesh.", name));
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service->method(i);
      const std::string path = StrCat("/", service->full_name(), "/", method.name());
      SCOPED_TRACE(path);
      ++methods;
      // A watch would go on for ever, and these workers answer nothing about their quarantine.
      const bool goes_on =
          method.server_streaming() || method.name().find("Quarantine") != std::string::npos;
      const absl::Duration timeout = goes_on ? absl::Milliseconds(500) : kTimeout;
      for (const int64_t below : {int64_t{1}, int64_t{0}}) {
        const absl::Status taken =
            Ask(path, MessageOf(rpc::kMaxControlMessageBytes - below), timeout);
        EXPECT_FALSE(is_too_long(taken)) << taken;
        EXPECT_FALSE(absl::IsUnavailable(taken)) << taken;
      }
      const absl::Status refused = Ask(path, MessageOf(rpc::kMaxControlMessageBytes + 1), kTimeout);
      EXPECT_FALSE(refused.ok());
      if (method.client_streaming()) continue;  // it may say first that no message came
      EXPECT_TRUE(is_too_long(refused)) << refused;
      EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("4194305"), HasSubstr("4194304")));
    }
  }
  EXPECT_GE(methods, 60);
  EXPECT_THAT(GetVersion(), IsOk());
  EXPECT_EQ(workers_->totals().attaches, 1) << workers_->totals().last_end;
}

// A limit of one field: `ask` makes the call with so much of it.
struct FieldLimit {
  const char* what;
  int64_t limit;
  std::function<absl::Status(int64_t)> ask;
  absl::StatusCode at;  // with as much as may be; kOk or what another check says
  Reason above;
};

TEST_F(LimitsTest, EachFieldHasItsLimitAndTheErrorSaysHaveAndNeed) {
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  const auto text = [](int64_t size) { return std::string(static_cast<size_t>(size), 'x'); };
  const auto page = [](int64_t size) { return static_cast<int32_t>(size); };
  using absl::StatusCode;
  using Array = v1::ArrayService;
  using Cluster = v1::ClusterService;
  using Session = v1::SessionService;
  const std::vector<FieldLimit> limits = {
      {"GetStatus.page_size", 10'000,
       [&](int64_t size) {
         v1::GetStatusRequest request;
         request.set_page_size(page(size));
         return Status(request).status();
       },
       StatusCode::kOk, Reason::kBadField},
      {"ListLinks.page_size", 10'000,
       [&](int64_t size) {
         v1::ListLinksRequest request;
         request.set_page_size(page(size));
         v1::ListLinksResponse response;
         return Call<Cluster>(&Cluster::Stub::ListLinks, request, &response);
       },
       StatusCode::kOk, Reason::kBadField},
      {"ListFlightRecords.max_records", static_cast<int64_t>(server::FlightLog::kMaxRecords),
       [&](int64_t size) {
         v1::ListFlightRecordsRequest request;
         request.set_max_records(page(size));
         v1::ListFlightRecordsResponse response;
         return Call<Cluster>(&Cluster::Stub::ListFlightRecords, request, &response);
       },
       StatusCode::kOk, Reason::kBadField},
      {"DropQuarantined.array_ids", 1'000,
       [&](int64_t size) {
         // Of a worker that does not answer: what is over the limit is refused before it is asked.
         v1::DropQuarantinedRequest request;
         for (int64_t i = 0; i < size; ++i) request.add_array_ids(std::string(65, 'a'));
         v1::DropQuarantinedResponse response;
         return Call<Cluster>(&Cluster::Stub::DropQuarantined, request, &response);
       },
       StatusCode::kInvalidArgument, Reason::kBadField},
      {"ReleaseArrays.array_ids", 10'000,
       [&](int64_t size) {
         v1::ReleaseArraysRequest request;
         request.set_session_id(session);
         for (int64_t i = 0; i < size; ++i) request.add_array_ids("a");
         v1::ReleaseArraysResponse response;
         return Call<Array>(&Array::Stub::ReleaseArrays, request, &response);
       },
       StatusCode::kOk, Reason::kLimitExceeded},
      {"DeleteName.name", 1'024,
       [&](int64_t size) {
         v1::DeleteNameRequest request;
         request.set_request_id("delete");
         request.set_name(text(size));
         v1::DeleteNameResponse response;
         return Call<Array>(&Array::Stub::DeleteName, request, &response);
       },
       StatusCode::kNotFound, Reason::kLimitExceeded},
      {"DeleteName.request_id", 64,
       [&](int64_t size) {
         v1::DeleteNameRequest request;
         request.set_request_id(text(size));
         request.set_name("name");
         v1::DeleteNameResponse response;
         return Call<Array>(&Array::Stub::DeleteName, request, &response);
       },
       StatusCode::kNotFound, Reason::kLimitExceeded},
      {"OpenSession.client_name", 255,
       [&](int64_t size) {
         v1::OpenSessionRequest request;
         request.set_request_id(StrCat("name-", size));
         request.set_client_name(text(size));
         v1::OpenSessionResponse response;
         return Call<Session>(&Session::Stub::OpenSession, request, &response);
       },
       StatusCode::kOk, Reason::kBadField},
      {"RenewSession.held_array_ids", 10'000,
       [&](int64_t size) {
         v1::RenewSessionRequest request;
         request.set_session_id(session);
         for (int64_t i = 0; i < size; ++i) request.add_held_array_ids("a");
         v1::RenewSessionResponse response;
         return Call<Session>(&Session::Stub::RenewSession, request, &response);
       },
       StatusCode::kOk, Reason::kLimitExceeded},
      {"Execute.operands.literal.data", kMaxLiteralBytes,
       [&](int64_t size) {
         v1::ExecuteRequest request = Product(session, "default");
         v1::Literal* const literal = request.mutable_operands(0)->mutable_literal();
         literal->set_dtype(v1::DTYPE_U8);
         literal->clear_shape();
         literal->add_shape(size);
         literal->set_data(text(size));
         return Execute(request).status();  // a product of bytes is none
       },
       StatusCode::kInvalidArgument, Reason::kLimitExceeded},
      {"Execute.program.ops", kMaxProgramSize,
       [&](int64_t size) {
         v1::ExecuteRequest request = Product(session, "default");
         while (request.program().ops_size() < size) {
           *request.mutable_program()->add_ops() = request.program().ops(0);
         }
         return Execute(request).status();
       },
       StatusCode::kOk, Reason::kLimitExceeded},
      {"Execute.program.outputs", kMaxProgramSize,
       [&](int64_t size) {
         v1::ExecuteRequest request = Product(session, "default");
         request.mutable_program()->clear_outputs();
         for (uint32_t i = 0; i < size; ++i) {
           // The result of an op of its own each, as far as there may be ops.
           const uint32_t op = std::min(i, kMaxProgramSize - 1);
           if (op >= static_cast<uint32_t>(request.program().ops_size())) {
             *request.mutable_program()->add_ops() = request.program().ops(0);
           }
           request.mutable_program()->add_outputs(2 + op);
         }
         return Execute(request).status();
       },
       StatusCode::kOk, Reason::kLimitExceeded},
      // Last: the workers are told of the meshes.
      {"CreateEntry.name", 255, [&](int64_t size) { return CreateMesh(text(size), 1); },
       StatusCode::kOk, Reason::kLimitExceeded},
  };
  for (const FieldLimit& limit : limits) {
    SCOPED_TRACE(limit.what);
    for (const int64_t size : {limit.limit - 1, limit.limit}) {
      const absl::Status taken = limit.ask(size);
      EXPECT_EQ(taken.code(), limit.at) << size << ": " << taken;
      EXPECT_NE(ReasonOf(taken), Reason::kLimitExceeded) << size << ": " << taken;
    }
    const absl::Status refused = limit.ask(limit.limit + 1);
    EXPECT_THAT(refused, StatusIs(StatusCode::kInvalidArgument, limit.above));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(StrCat(limit.limit + 1)), HasSubstr(StrCat(limit.limit))));
  }
}

TEST_F(LimitsTest, ListsComeInPagesOfAThousandAtMost) {
  constexpr int kItems = 1'003;
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  v1::ExecuteRequest request = Product(OpenSession(), "default");
  request.mutable_program()->clear_outputs();
  for (uint32_t i = 0; i < kItems; ++i) {
    if (i > 0) *request.mutable_program()->add_ops() = request.program().ops(0);
    request.mutable_program()->add_outputs(2 + i);
    request.mutable_output()->add_names(StrCat("name-", 1'000 + i));
  }
  ASSERT_THAT(Execute(request), IsOk());
  for (int i = 1; i < kItems; ++i) ASSERT_THAT(CreateMesh(StrCat("mesh-", i), 2), IsOk());

  const auto arrays = [&](int32_t page_size, std::string* token) -> absl::StatusOr<int64_t> {
    v1::ListArraysRequest list;
    list.set_page_size(page_size);
    list.set_page_token(*token);
    v1::ListArraysResponse response;
    const absl::Status status =
        Call<v1::ArrayService>(&v1::ArrayService::Stub::ListArrays, list, &response);
    if (!status.ok()) return status;
    *token = response.next_page_token();
    return response.arrays_size();
  };
  const auto entries = [&](int32_t page_size, std::string* token) -> absl::StatusOr<int64_t> {
    v1::ListEntriesRequest list;
    list.set_kind(v1::ENTRY_KIND_MESH);
    list.set_page_size(page_size);
    list.set_page_token(*token);
    v1::ListEntriesResponse response;
    const absl::Status status =
        Call<v1::CatalogService>(&v1::CatalogService::Stub::ListEntries, list, &response);
    if (!status.ok()) return status;
    *token = response.next_page_token();
    return response.entries_size();
  };
  using List = std::function<absl::StatusOr<int64_t>(int32_t, std::string*)>;
  for (const List& list : {List(arrays), List(entries)}) {
    std::string token;
    EXPECT_THAT(list(0, &token), IsOkAndHolds(100));
    EXPECT_THAT(list(5'000, &token), IsOkAndHolds(kItems - 100));
    EXPECT_EQ(token, "");
    for (const int32_t page_size : {999, 1'000, 1'001}) {
      EXPECT_THAT(list(page_size, &token), IsOkAndHolds(std::min(page_size, 1'000)));
      EXPECT_THAT(list(page_size, &token), IsOkAndHolds(kItems - std::min(page_size, 1'000)));
      EXPECT_EQ(token, "");
    }
    EXPECT_THAT(list(-1, &token), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
}

// Meshes with so many and such long axes that what lies on them takes kilobytes in each answer.
TEST_F(LimitsTest, ListsComeInPagesOfTwoMebibytesAtMost) {
  constexpr int kMeshes = 700;
  constexpr uint32_t kArraysEach = 150;
  constexpr int kSteps = 4;
  StartCoordinator("");
  StartWorkers(1);
  for (int i = 0; i < kMeshes; ++i) {
    v1::CreateEntryRequest request;
    request.set_request_id(StrCat("mesh-", i));
    request.set_name(StrCat("mesh-", i));
    for (int axis = 0; axis < 16; ++axis) {
      v1::MeshAxis* const added =
          request.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
      added->set_name(StrCat("x", axis, std::string(250, 'x')));
      added->set_size(i == 0 || axis > 0 ? 1 : 2);  // the worker serves the first alone
    }
    ASSERT_THAT(CreateEntry(request), IsOk());
  }
  ASSERT_TRUE(AwaitQuiet("mesh-0"));
  const std::string session = OpenSession();
  for (int step = 0; step < kSteps; ++step) {
    v1::ExecuteRequest request = Product(session, "mesh-0");
    request.mutable_program()->clear_outputs();
    for (uint32_t i = 0; i < kArraysEach; ++i) {
      if (i > 0) *request.mutable_program()->add_ops() = request.program().ops(0);
      request.mutable_program()->add_outputs(2 + i);
      request.mutable_output()->add_names(StrCat("array-", step, "-", i));
    }
    ASSERT_THAT(Execute(request), IsOk());
  }

  // Neither has as much as one message, and a page is left for what is most on it.
  const auto expect_pages = [](const std::vector<int64_t>& bytes, int64_t full_bytes) {
    ASSERT_GE(bytes.size(), 2u);
    for (const int64_t each : bytes) EXPECT_LT(each, full_bytes + (int64_t{64} << 10));
    for (size_t i = 0; i + 1 < bytes.size(); ++i) EXPECT_GT(bytes[i], full_bytes);
  };
  std::set<std::string> names;
  std::vector<int64_t> bytes;
  v1::ListArraysRequest list;
  list.set_page_size(1'000);
  int64_t revision = 0;
  do {
    v1::ListArraysResponse page;
    ASSERT_THAT(Call<v1::ArrayService>(&v1::ArrayService::Stub::ListArrays, list, &page), IsOk());
    for (const v1::Array& array : page.arrays()) names.insert(array.name());
    bytes.push_back(static_cast<int64_t>(page.ByteSizeLong()));
    revision = page.revision();
    list.set_page_token(page.next_page_token());
  } while (!list.page_token().empty());
  expect_pages(bytes, int64_t{1} << 20);
  EXPECT_EQ(names.size(), kArraysEach * kSteps);
  EXPECT_GE(revision, kMeshes + kSteps) << "that of the store, not of the definitions alone";

  names.clear();
  bytes.clear();
  v1::GetStatusRequest request;
  do {
    const auto page = Status(request);
    ASSERT_THAT(page, IsOk());
    for (const v1::MeshStatus& mesh : page->meshes()) names.insert(mesh.mesh_id());
    bytes.push_back(static_cast<int64_t>(page->ByteSizeLong()));
    EXPECT_GE(page->revision(), kMeshes + kSteps);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  expect_pages(bytes, int64_t{2} << 20);
  EXPECT_EQ(names.size(), static_cast<size_t>(kMeshes));
}

// The step fits into a message, its answer with the names does not.
TEST_F(LimitsTest, AnAnswerOfManyResultsWithLongNamesIsRefusedBeforeTheStepRuns) {
  constexpr int64_t kResults = 900;
  StartCoordinator("");
  StartWorkers(1);
  v1::CreateEntryRequest mesh;
  mesh.set_request_id("mesh");
  mesh.set_name("m");
  for (int axis = 0; axis < 16; ++axis) {
    v1::MeshAxis* const added = mesh.mutable_value()->mutable_mesh()->mutable_mesh()->add_axes();
    added->set_name(StrCat(100 + axis, std::string(240, 'x')));
    added->set_size(1);
  }
  v1::CreateEntryResponse created;
  ASSERT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, mesh, &created),
              IsOk());
  ASSERT_TRUE(AwaitQuiet("m"));
  const std::string session = OpenSession();
  // With names of so many bytes together.
  const auto run = [&](int64_t names_bytes) {
    v1::ExecuteRequest request = Product(session, "m");
    request.mutable_program()->clear_outputs();
    for (int64_t i = 0; i < kResults; ++i) {
      if (i > 0) *request.mutable_program()->add_ops() = request.program().ops(0);
      request.mutable_program()->add_outputs(static_cast<uint32_t>(2 + i));
      const int64_t bytes = names_bytes / kResults + (i < names_bytes % kResults ? 1 : 0);
      request.mutable_output()->add_names(
          StrCat(1'000 + i, std::string(static_cast<size_t>(bytes - 4), 'n')));
    }
    return Execute(request);
  };
  // Bytes of the answer, as the error says.
  const auto need = [](const absl::Status& refused) {
    const std::string text(refused.message());
    const std::string before = "may have ";
    const size_t at = text.find(before);
    return at == std::string::npos ? 0 : std::stoll(text.substr(at + before.size()));
  };
  constexpr int64_t kLongNames = kResults * 1'000;
  const absl::Status refused = run(kLongNames).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  const int64_t fits = kLongNames - (need(refused) - rpc::kMaxControlMessageBytes);
  ASSERT_GT(fits, kResults * 10) << refused;
  const absl::Status one_more = run(fits + 1).status();
  EXPECT_THAT(one_more, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(one_more.message()),
              AllOf(HasSubstr("4194305 bytes"), HasSubstr("900 results"), HasSubstr("4194304")));
  const auto is_step = [](const internal::v1::AttachResponse& message) {
    return message.has_run_step();
  };
  EXPECT_THAT(Heard(0, is_step), testing::IsEmpty()) << "nothing ran";
  const auto largest = run(fits);
  ASSERT_THAT(largest, IsOk());
  EXPECT_EQ(largest->outputs_size(), kResults);
  EXPECT_EQ(largest->outputs(899).array().name().size(),
            static_cast<size_t>(fits / kResults + (899 < fits % kResults ? 1 : 0)));
  EXPECT_LE(static_cast<int64_t>(largest->ByteSizeLong()), rpc::kMaxControlMessageBytes);
}

// Of ranks that nobody serves there is a finding each.
TEST_F(LimitsTest, ADiagnosisOfManyRanksFitsIntoAMessage) {
  constexpr int kRanks = 3'900;
  StartCoordinator("");
  for (const char* mesh : {"one", "two"}) {
    v1::CreateEntryRequest request;
    request.set_request_id(mesh);
    request.set_name(mesh);
    v1::MeshDefinition& definition = *request.mutable_value()->mutable_mesh();
    v1::MeshAxis* const axis = definition.mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(kRanks);
    for (int i = 0; i < kRanks; ++i) {
      definition.add_workers(StrCat(mesh, "-", std::string(240, 'w'), "-", i));
    }
    ASSERT_THAT(CreateEntry(request), IsOk());
  }
  // The ranks of a mesh are known a moment after its definition.
  v1::DiagnoseResponse response;
  const std::string others = StrCat("and ", 2 * kRanks - 1, " findings more");
  EXPECT_TRUE(Eventually([&] {
    EXPECT_THAT(Call<v1::ClusterService>(&v1::ClusterService::Stub::Diagnose, v1::DiagnoseRequest(),
                                         &response),
                IsOk());
    return response.verdict().find(others) != std::string::npos;
  })) << response.verdict().substr(0, 300);
  EXPECT_FALSE(response.healthy());
  EXPECT_GT(response.findings_size(), 1'000);
  EXPECT_LT(response.ByteSizeLong(), static_cast<size_t>(rpc::kMaxControlMessageBytes));
}

TEST_F(LimitsTest, DefinitionsOfAllKindsAreLimitedTogether) {
  StartCoordinator("", {.max_meshes = 10, .max_definitions = 2});
  ASSERT_THAT(CreateMesh("one", 2), IsOk());
  ASSERT_THAT(CreateMesh("two", 2), IsOk());
  const absl::Status third = CreateMesh("three", 2);
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(third.ToString(), AllOf(HasSubstr("2 definitions"), HasSubstr("limit is 2"),
                                      HasSubstr("--max-definitions")));
  v1::DeleteEntryRequest request;
  request.set_request_id("delete");
  request.set_kind(v1::ENTRY_KIND_MESH);
  request.set_name("one");
  v1::DeleteEntryResponse response;
  ASSERT_THAT(Call<v1::CatalogService>(&v1::CatalogService::Stub::DeleteEntry, request, &response),
              IsOk());
  EXPECT_THAT(CreateMesh("four", 2), IsOk());
}

TEST_F(LimitsTest, StepsUnderWayAreLimited) {
  StartCoordinator("tp=1", {.max_live_work = 2});
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  const std::string session = OpenSession();
  AnswerSteps(false);
  std::vector<std::thread> callers;
  const auto is_step = [](const internal::v1::AttachResponse& message) {
    return message.has_run_step();
  };
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back(
        [this, &session] { EXPECT_THAT(Execute(Product(session, "default")), IsOk()); });
  }
  EXPECT_TRUE(Eventually([&] { return Heard(0, is_step).size() == 2; }));
  const absl::Status third = Execute(Product(session, "default")).status();
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_THAT(third.ToString(), AllOf(HasSubstr("2 steps and transfers"), HasSubstr("limit is 2")));
  EXPECT_TRUE(RetryDelayOf(third).has_value());
  AnswerSteps(true);
  for (const internal::v1::AttachResponse& message : Heard(0, is_step))
    ReportDone(0, message.run_step(), 0);
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(Execute(Product(session, "default")), IsOk());
}

TEST_F(LimitsTest, CallsBeyondThoseOfAConnectionWaitUntilOneHasEnded) {
  StartCoordinator("", {.max_connection_calls = 2});
  ASSERT_THAT(CreateMesh("m", 1), IsOk());
  const auto stub = v1::CatalogService::NewStub(channel_);
  v1::WatchRequest request;
  request.set_start_revision(1);
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader;
  };
  std::vector<Watch> watches(2);
  v1::WatchResponse told;
  for (Watch& watch : watches) {
    watch.reader = stub->Watch(&watch.context, request);
    ASSERT_TRUE(watch.reader->Read(&told));
  }
  EXPECT_THAT(GetVersion(absl::Milliseconds(300)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  absl::Status waited = absl::UnknownError("it has not ended");
  std::thread caller([&] { waited = GetVersion(); });
  watches.front().context.TryCancel();
  caller.join();
  EXPECT_THAT(waited, IsOk());
  watches.back().context.TryCancel();
  for (Watch& watch : watches) {
    while (watch.reader->Read(&told)) {
    }
    watch.reader->Finish();
  }
}

TEST_F(LimitsTest, CallersBeyondTheMemoryForCallsHarmNobodyForLong) {
  StartCoordinator("tp=1", {.rpc_memory_bytes = int64_t{32} << 20});
  StartWorkers(1);
  // Each call brings nearly 4 MiB: 64 MiB at a time, and 384 in all.
  constexpr int kConnections = 16;
  constexpr int kCallsEach = 6;
  std::vector<std::thread> callers;
  std::atomic<int> answered = 0;
  for (int i = 0; i < kConnections; ++i) {
    callers.emplace_back([&] {
      const auto channel = *rpc::CreateChannel(coordinator_->address(), {.own_connection = true});
      for (int j = 0; j < kCallsEach; ++j) {
        const auto stub = v1::SessionService::NewStub(channel);
        grpc::ClientContext context;
        rpc::Apply(rpc::CallOptions::Within(absl::Seconds(20)), &context);
        v1::OpenSessionRequest request;
        request.set_client_name(std::string((size_t{4} << 20) - 64, 'x'));
        v1::OpenSessionResponse response;
        const absl::Status status = rpc::FromGrpc(stub->OpenSession(&context, request, &response));
        answered += absl::IsInvalidArgument(status) ? 1 : 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(answered.load(), 0);
  // Who was refused a connection is taken in again.
  EXPECT_TRUE(Eventually([&] { return GetVersion(absl::Seconds(5)).ok(); }));
  EXPECT_TRUE(workers_->AwaitMembers(1, kTimeout)) << workers_->totals().last_end;
}

TEST_F(LimitsTest, AWorkerThatDoesNotReadIsCutWhenTooMuchWaitsForIt) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  StartCoordinator("tp=1");
  StartWorkers(1);
  ASSERT_TRUE(AwaitQuiet("default"));
  AnswerSteps(false);
  // A step of nearly 4 MiB, which its worker asks for again and again.
  v1::ExecuteRequest request = Product(OpenSession(), "default");
  constexpr int64_t kLiteralBytes = 1000 * 1000;
  for (int i = 0; i < 4; ++i) {
    v1::Literal* const literal = request.add_operands()->mutable_literal();
    literal->set_dtype(v1::DTYPE_U8);
    literal->add_shape(kLiteralBytes);
    literal->set_data(std::string(static_cast<size_t>(kLiteralBytes), '\0'));
  }
  request.mutable_program()->set_operand_count(6);
  request.mutable_program()->set_outputs(0, 6);
  absl::Status ended;
  std::thread caller([&] { ended = Execute(request).status(); });
  const auto is_step = [](const internal::v1::AttachResponse& message) {
    return message.has_run_step();
  };
  EXPECT_TRUE(Eventually([&] { return !Heard(0, is_step).empty(); }));
  const auto steps = Heard(0, is_step);
  workers_->StopReading(0);
  internal::v1::AttachRequest need;
  need.mutable_step_report()->set_outcome(internal::v1::StepReport::OUTCOME_NEED_PLAN);
  if (!steps.empty()) need.mutable_step_report()->set_sequence(steps[0].run_step().sequence());
  const auto lost_reason = [this] {
    const auto status = Status();
    return status.ok() && status->workers_size() == 1 ? status->workers(0).lost_reason() : "";
  };
  for (int64_t i = 0; i * 4 * kLiteralBytes < kMostBytes - (int64_t{16} << 20); ++i) {
    workers_->Send(0, need);
  }
  // These are within the limit, as long as heartbeats come.
  EXPECT_FALSE(Eventually([&] { return lost_reason() != ""; }, absl::Milliseconds(300)));
  for (int i = 0; i < 30; ++i) workers_->Send(0, need);
  EXPECT_TRUE(Eventually([&] { return lost_reason() != ""; }));
  EXPECT_THAT(lost_reason(), AllOf(HasSubstr("reads too slowly"), HasSubstr(StrCat(kMostBytes))));
  workers_->ReadOn(0);
  caller.join();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_TRUE(workers_->Await(
      [](const HollowWorkers::Totals& now) { return now.attaches == 2 && now.members == 1; },
      kTimeout))
      << workers_->totals().last_end;
}

TEST_F(LimitsTest, OrdersAboutQuarantinesAreLimitedAndGoWithTheirClients) {
  constexpr int kMost = 1'000;
  StartCoordinator("tp=1");
  StartWorkers(1);  // which does not answer them
  struct Asked {
    grpc::ClientContext context;
    v1::ListQuarantineRequest request;
    v1::ListQuarantineResponse response;
  };
  const auto stub = v1::ClusterService::NewStub(channel_);
  std::vector<Asked> asked(kMost);
  std::atomic<int> ended = 0;
  const auto ask = [&](Asked& one) {
    rpc::Apply(rpc::CallOptions::Within(kTimeout), &one.context);
    stub->async()->ListQuarantine(&one.context, &one.request, &one.response,
                                  [&ended](const grpc::Status&) { ++ended; });
  };
  const auto is_order = [](const internal::v1::AttachResponse& m) {
    return m.has_quarantine_order();
  };
  const auto orders = [&] { return std::ssize(Heard(0, is_order)); };
  for (Asked& one : asked) ask(one);
  EXPECT_TRUE(Eventually([&] { return orders() == kMost; })) << orders();
  v1::ListQuarantineResponse response;
  const auto list = [&](grpc::ClientContext* context) {
    return Call<v1::ClusterService>(&v1::ClusterService::Stub::ListQuarantine, {}, &response,
                                    context);
  };
  const absl::Status refused = list(nullptr);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_THAT(refused.ToString(), HasSubstr("1000 questions"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  // Clients that leave make room.
  for (Asked& one : asked) one.context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return ended == kMost; }));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    std::thread gone([&] {
      Eventually([&] { return orders() > kMost; }, absl::Seconds(1));
      context.TryCancel();
    });
    const absl::Status status = list(&context);
    gone.join();
    return absl::IsCancelled(status) && orders() > kMost;
  }));
}

}  // namespace
}  // namespace shardmesh::test
