// Questions that name a version: decoding one that was replaced can take long, and is no work for
// gRPC's threads.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/plan_streams.h"
#include "server/resolve_answers.h"
#include "server/rule_streams.h"
#include "server/tree_streams.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;

TEST(NamesVersionTest, RulesOfAVersionMayHaveToBeCompiled) {
  v1::RuleSetSelector rules;
  rules.set_name("stored");
  EXPECT_FALSE(CompilesLong(rules));
  rules.set_name("stored@3");
  EXPECT_TRUE(CompilesLong(rules));
}

// Of a call that takes a stored tree, a header that names it and one that names a version of it.
template <typename Request, typename Call>
void ExpectVersionsTakeLong(const Call& call) {
  Request request;
  request.mutable_header()->set_stored_tree("t");
  EXPECT_FALSE(call->TakesLong(request)) << request.GetTypeName();
  request.mutable_header()->set_stored_tree("t@1");
  EXPECT_TRUE(call->TakesLong(request)) << request.GetTypeName();
}

TEST(NamesVersionTest, EveryStreamTakesVersionsOfTreesForLong) {
  const auto state = std::make_shared<const ClusterState>();
  const CorrectionCounter counter(nullptr);
  ExpectVersionsTakeLong<v1::ResolveTreeRequest>(MakeResolveTreeCall(state, counter));
  ExpectVersionsTakeLong<v1::AnalyzeLayoutRequest>(MakeAnalyzeLayoutCall(state));
  ExpectVersionsTakeLong<v1::SearchMeshesRequest>(MakeSearchMeshesCall(state));
  ExpectVersionsTakeLong<v1::DiffLayoutsRequest>(MakeDiffLayoutsCall(state));
}

class OlderVersionsTest : public ResolveServiceTest {
 protected:
  // Stores rules of one pattern under a name, each time as its next version.
  void Store(const std::string& name, const std::string& pattern) {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
    v1::EntryValue value;
    value.mutable_rule_set()->add_rules()->set_pattern(pattern);
    value.mutable_rule_set()->add_rules();
    if (versions_++ == 0) {
      v1::CreateEntryRequest request;
      request.set_request_id("create");
      request.set_name(name);
      *request.mutable_value() = value;
      v1::CreateEntryResponse response;
      ASSERT_THAT(rpc::FromGrpc(catalog_->CreateEntry(&context, request, &response)), IsOk());
    } else {
      v1::UpdateEntryRequest request;
      request.set_request_id("update" + std::to_string(versions_));
      request.set_name(name);
      *request.mutable_value() = value;
      v1::UpdateEntryResponse response;
      ASSERT_THAT(rpc::FromGrpc(catalog_->UpdateEntry(&context, request, &response)), IsOk());
    }
  }

  std::unique_ptr<v1::CatalogService::Stub> catalog_ = v1::CatalogService::NewStub(channel());
  int versions_ = 0;
};

TEST_F(OlderVersionsTest, AreWhatQuestionsAndGetsOfThemAnswer) {
  Store("r", "bias");
  Store("r", "kernel");
  for (const auto& [name, rule] : {std::pair("r@1", 2u), {"r@2", 1u}, {"r", 1u}, {"r@1", 2u}}) {
    v1::ExplainTensorRequest request;
    request.set_name("kernel");
    request.mutable_shape()->add_sizes(8);
    request.mutable_rule_set()->set_name(name);
    v1::ExplainTensorResponse response;
    EXPECT_THAT(Ask(&Stub::ExplainTensor, request, &response), IsOk());
    EXPECT_EQ(response.rule(), rule) << name;

    v1::GetEntryRequest get;
    get.set_kind(v1::ENTRY_KIND_RULE_SET);
    get.set_name(name);
    v1::GetEntryResponse got;
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    EXPECT_THAT(rpc::FromGrpc(catalog_->GetEntry(&context, get, &got)), IsOk());
    EXPECT_EQ(got.entry().value().rule_set().rules(0).pattern(), rule == 1 ? "kernel" : "bias");
  }
}

}  // namespace
}  // namespace shardmesh::server
