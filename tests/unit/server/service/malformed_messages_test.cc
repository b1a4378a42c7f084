// Messages that do not parse, over real gRPC: alone, and in the middle of streams.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardmesh/v1/array_service.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::HasSubstr;

using test::kInvalid;

class MalformedMessagesTest : public ResolveServiceTest {
 protected:
  // Sends these bytes as messages of one call, and hears it out.
  absl::Status Send(const std::string& method, const std::vector<std::string>& messages) {
    grpc::GenericStub generic(channel());
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    grpc::CompletionQueue queue;
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto call = generic.PrepareCall(&context, method, &queue);
    call->StartCall(nullptr);
    bool open = done();
    for (const std::string& message : messages) {
      const grpc::Slice slice(message);
      if (open) {
        call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
        open = done();
      }
    }
    if (open) {
      call->WritesDone(nullptr);
      done();
    }
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (done());
    grpc::Status status;
    call->Finish(&status, nullptr);
    done();
    return rpc::FromGrpc(status);
  }
};

// A header and one tensor for each name, as a call of ResolveTree.
std::vector<std::string> TreeOf(const std::vector<std::string>& names) {
  v1::ResolveTreeRequest header;
  header.mutable_header()->mutable_rule_set()->mutable_value()->add_rules()->set_pattern(".*");
  header.mutable_header()->mutable_mesh()->set_name("default");
  std::vector<std::string> messages = {header.SerializeAsString()};
  for (const std::string& name : names) {
    v1::ResolveTreeRequest piece;
    piece.mutable_tensors()->set_names(name);
    piece.mutable_tensors()->add_name_sizes(static_cast<uint32_t>(name.size()));
    piece.mutable_tensors()->add_ranks(0);
    messages.push_back(piece.SerializeAsString());
  }
  return messages;
}

TEST_F(MalformedMessagesTest, AreNotTheEndOfATree) {
  const std::string method = "/shardmesh.v1.LayoutService/ResolveTree";
  EXPECT_THAT(Send(method, TreeOf({"x", "y", "z"})), IsOk());

  std::vector<std::string> garbage = TreeOf({"x", "y", "z"});
  garbage.insert(garbage.begin() + 3, "\xff\xff\xff");
  absl::Status refused = Send(method, garbage);
  EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("message 4 of the stream"));
  EXPECT_EQ(FieldOf(refused), "message");

  refused = Send(method, TreeOf({"x", "\xff", "z"}));
  EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("message 3 of the stream"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not UTF-8"));
  EXPECT_EQ(FieldOf(refused), "tensors.names");
}

TEST_F(MalformedMessagesTest, AreRefusedByEveryStreamOfRequests) {
  for (const std::string method :
       {"v1.LayoutService/ResolveTree", "v1.LayoutService/AnalyzeLayout",
        "v1.RuleService/LintRules", "v1.LayoutService/DiffLayouts", "v1.LayoutService/SearchMeshes",
        "compat.v1.CompatService/AnalyzeShardingStrategy", "v1.ArrayService/BeginPut",
        "v1.OperationService/ReportGet", "v1.ComputeService/ExecuteStream",
        "internal.v1.AttachService/Attach"}) {
    SCOPED_TRACE(method);
    const absl::Status refused = Send("/shardmesh." + method, {"\xff\xff\xff"});
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kBadField));
    EXPECT_EQ(FieldOf(refused), "message");
  }
}

TEST_F(MalformedMessagesTest, AreRefusedByEveryCallOfOneRequest) {
  int calls = 0;
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name :
       {"v1.ResolveService", "v1.LayoutService", "v1.RuleService", "v1.MeshService",
        "v1.ReshardService", "compat.v1.CompatService", "v1.CatalogService", "v1.ClusterService",
        "v1.SessionService", "v1.ArrayService", "v1.ComputeService", "v1.OperationService"}) {
    const auto* service = pool->FindServiceByName(std::string("shardmesh.") + name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      if (method.client_streaming()) {
        continue;
      }
      SCOPED_TRACE(method.full_name());
      const absl::Status refused =
          Send("/" + service->full_name() + "/" + method.name(), {"\xff\xff\xff"});
      EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kBadField));
      EXPECT_THAT(std::string(refused.message()), HasSubstr(method.input_type()->full_name()));
      EXPECT_EQ(FieldOf(refused), "message");
      ++calls;
    }
  }
  EXPECT_GT(calls, 40);
}

TEST_F(MalformedMessagesTest, AnUnknownCallStaysUnknown) {
  EXPECT_THAT(Send("/shardmesh.v1.ResolveService/Guess", {"\xff"}),
              StatusIs(absl::StatusCode::kUnimplemented));
}

TEST_F(MalformedMessagesTest, NearAxesAreSuggestedInErrorsAndCorrections) {
  v1::DescribeTilingRequest tiling;
  tiling.mutable_mesh()->set_name("default");
  tiling.mutable_spec()->add_dimensions()->set_name("fspd");
  tiling.mutable_shape()->add_sizes(4);
  v1::DescribeTilingResponse tiles;
  const absl::Status refused = Ask(&v1::LayoutService::Stub::DescribeTiling, tiling, &tiles);
  EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("did you mean \"fsdp\"?"));
  EXPECT_EQ(FieldOf(refused), "spec");

  v1::CorrectSpecRequest correct;
  *correct.mutable_spec() = tiling.spec();
  *correct.mutable_shape() = tiling.shape();
  *correct.mutable_mesh() = tiling.mesh();
  v1::CorrectSpecResponse corrected;
  EXPECT_THAT(Ask(&v1::ResolveService::Stub::CorrectSpec, correct, &corrected), IsOk());
  ASSERT_EQ(corrected.corrections_size(), 1);
  EXPECT_THAT(corrected.corrections(0).message(), HasSubstr("did you mean \"fsdp\"?"));
  correct.set_policy(v1::CORRECTION_POLICY_STRICT);
  const absl::Status strict = Ask(&v1::ResolveService::Stub::CorrectSpec, correct, &corrected);
  EXPECT_THAT(strict, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_THAT(std::string(strict.message()), HasSubstr("did you mean \"fsdp\"?"));
}

TEST_F(MalformedMessagesTest, FieldsOfALinearLayerAreNamed) {
  struct Case {
    int64_t in;
    int64_t out;
    std::string rule;
    std::string field;
  };
  for (const Case& c : {Case{-4, 8, "", "in_features"}, Case{0, 8, "fan_in", "in_features"},
                        Case{4, -8, "", "out_features"}, Case{4, 8, "fan_on", "rule"}}) {
    compat::v1::DescribeLinearLayerRequest request;
    request.set_in_features(c.in);
    request.add_out_features(c.out);
    if (!c.rule.empty()) {
      request.set_rule(c.rule);
    }
    compat::v1::DescribeLinearLayerResponse response;
    const absl::Status refused =
        Ask(&compat::v1::CompatService::Stub::DescribeLinearLayer, request, &response);
    EXPECT_THAT(refused, StatusIs(kInvalid));
    EXPECT_EQ(FieldOf(refused), c.field);
  }
}

TEST_F(MalformedMessagesTest, LogicalNamesAreNamedInErrors) {
  v1::ResolveLogicalAxesRequest request;
  request.set_flavor(v1::ResolveLogicalAxesRequest::FLAVOR_LINEN);
  request.add_names()->set_name("batch");
  request.add_names()->set_name("batch");
  v1::ResolveLogicalAxesResponse response;
  const absl::Status refused = Ask(&v1::RuleService::Stub::ResolveLogicalAxes, request, &response);
  EXPECT_THAT(refused, StatusIs(kInvalid));
  EXPECT_EQ(FieldOf(refused), "names");
}

}  // namespace
}  // namespace shardmesh::server
