// Rules that take long to compile: they are compiled off gRPC's threads, which go on answering.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_streams.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/busy_callers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;

void AddRules(int count, const std::string& pattern, v1::RuleSetSelector* to) {
  for (int i = 0; i < count; ++i) {
    to->mutable_value()->add_rules()->set_pattern(pattern);
  }
}

void AddOrdinaryRules(v1::RuleSetSelector* to) {
  AddRules(20, R"(model\.layers\.\d+\.mlp\.down_proj$)", to);
}

// Some seconds' work in a few hundred bytes.
void AddLongRules(v1::RuleSetSelector* to) { AddRules(60, R"(\w{100}\b)", to); }

TEST(CompilesLongTest, OrdinaryPatternsAreQuickAndThoseOfManyInstructionsAreNot) {
  EXPECT_FALSE(CompilesLong(R"(^(?:model\.)?layers\.(\d+)\.self_attn\.(q|k|v)_proj\.weight$)"));
  EXPECT_FALSE(CompilesLong(R"(\w+/kernel)"));
  EXPECT_FALSE(CompilesLong("layer_[0-9]{1,3}/"));
  EXPECT_TRUE(CompilesLong(R"(\w{100})"));
  EXPECT_TRUE(CompilesLong(R"(((\w?){30}){30})"));
  EXPECT_TRUE(CompilesLong(std::string(4096, '.')));

  v1::RuleSetSelector rules;
  EXPECT_FALSE(CompilesLong(rules));
  rules.set_name("stored");  // compiled already
  EXPECT_FALSE(CompilesLong(rules));
  rules.Clear();
  AddOrdinaryRules(&rules);
  EXPECT_FALSE(CompilesLong(rules));
  AddRules(1'000, "kernel", &rules);
  EXPECT_TRUE(CompilesLong(rules));
}

// Of each call, an ordinary header and one of many instructions.
template <typename Request, typename Call>
void ExpectHeadersTakeLong(const Call& call,
                           const std::function<v1::RuleSetSelector*(Request*)>& rules_of) {
  Request ordinary;
  AddOrdinaryRules(rules_of(&ordinary));
  EXPECT_FALSE(call->TakesLong(ordinary)) << ordinary.GetTypeName();
  Request large;
  AddLongRules(rules_of(&large));
  EXPECT_TRUE(call->TakesLong(large)) << large.GetTypeName();
  Request tensors;
  tensors.mutable_tensors();
  EXPECT_FALSE(call->TakesLong(tensors)) << tensors.GetTypeName();
}

TEST(CompilesLongTest, EveryStreamTellsWhichHeadersTakeLong) {
  const auto state = std::make_shared<const Definitions>();
  const CorrectionCounter counter(nullptr);
  ExpectHeadersTakeLong<v1::ResolveTreeRequest>(
      MakeResolveTreeCall(state, counter),
      [](auto* request) { return request->mutable_header()->mutable_rule_set(); });
  ExpectHeadersTakeLong<v1::LintRulesRequest>(MakeLintRulesCall(state, nullptr), [](auto* request) {
    return request->mutable_header()->mutable_rule_set();
  });
  ExpectHeadersTakeLong<v1::SearchMeshesRequest>(MakeSearchMeshesCall(state), [](auto* request) {
    return request->mutable_header()->mutable_rule_set();
  });
  ExpectHeadersTakeLong<v1::DiffLayoutsRequest>(MakeDiffLayoutsCall(state), [](auto* request) {
    return request->mutable_header()->mutable_a()->mutable_rule_set();
  });
  ExpectHeadersTakeLong<v1::DiffLayoutsRequest>(MakeDiffLayoutsCall(state), [](auto* request) {
    return request->mutable_header()->mutable_b()->mutable_rule_set();
  });
}

using LongRulesTest = BusyCallersTest;

TEST_F(LongRulesTest, CompilingThoseOfAStreamHoldsUpNobodyElse) {
  ExpectOthersAreAnswered([this](grpc::ClientContext* context) {
    const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(context);
    v1::ResolveTreeRequest request;
    AddLongRules(request.mutable_header()->mutable_rule_set());
    request.mutable_header()->set_match_only(true);
    stream->Write(request);
    stream->WritesDone();
    v1::ResolveTreeResponse response;
    stream->Read(&response);
    stream->Finish();
  });
  ExpectOthersAreAnswered([this](grpc::ClientContext* context) {
    v1::LintRulesResponse response;
    const auto stream = stub<v1::RuleService::Stub>().LintRules(context, &response);
    v1::LintRulesRequest request;
    AddLongRules(request.mutable_header()->mutable_rule_set());
    stream->Write(request);
    stream->WritesDone();
    stream->Finish();
  });
}

TEST_F(LongRulesTest, CompilingThoseOfAQuestionHoldsUpNobodyElse) {
  ExpectOthersAreAnswered([this](grpc::ClientContext* context) {
    v1::ExplainTensorRequest request;
    request.set_name("kernel");
    request.mutable_shape()->add_sizes(8);
    request.mutable_mesh()->set_name("default");
    AddLongRules(request.mutable_rule_set());
    v1::ExplainTensorResponse response;
    stub<v1::ResolveService::Stub>().ExplainTensor(context, request, &response);
  });
}

TEST_F(LongRulesTest, TheAnswerIsThatOfOtherRulesAlsoTheSecondTime) {
  v1::ExplainTensorRequest request;
  request.set_name("kernel");
  request.mutable_shape()->add_sizes(8);
  request.mutable_mesh()->set_name("default");
  AddRules(2, R"(\w{60}\b)", request.mutable_rule_set());
  AddRules(1, "kernel", request.mutable_rule_set());
  ASSERT_TRUE(CompilesLong(request.rule_set()));
  for (int i = 0; i < 3; ++i) {
    v1::ExplainTensorResponse response;
    EXPECT_THAT(Ask(&v1::ResolveService::Stub::ExplainTensor, request, &response), IsOk());
    EXPECT_EQ(response.rule_index(), 2);
  }
  request.mutable_rule_set()->mutable_value()->mutable_rules(1)->set_pattern("(");
  v1::ExplainTensorResponse response;
  const absl::Status status = Ask(&v1::ResolveService::Stub::ExplainTensor, request, &response);
  EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPattern));
  EXPECT_EQ(FieldOf(status), "rule_set.value.rules");

  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(absl::Seconds(60)), &context);
  const auto stream = stub<v1::LayoutService::Stub>().ResolveTree(&context);
  v1::ResolveTreeRequest tree;
  AddRules(2, R"(\w{60}\b)", tree.mutable_header()->mutable_rule_set());
  AddRules(1, "kernel", tree.mutable_header()->mutable_rule_set());
  tree.mutable_header()->mutable_mesh()->set_name("default");
  ASSERT_TRUE(stream->Write(tree));
  tree.Clear();
  tree.mutable_tensors()->set_names("kernel");
  tree.mutable_tensors()->add_name_sizes(6);
  tree.mutable_tensors()->add_ranks(1);
  tree.mutable_tensors()->add_sizes(8);
  ASSERT_TRUE(stream->Write(tree));
  stream->WritesDone();
  v1::ResolveTreeResponse piece;
  ASSERT_TRUE(stream->Read(&piece));
  EXPECT_THAT(piece.placements().rules(), testing::ElementsAre(3));
  ASSERT_TRUE(stream->Read(&piece));
  EXPECT_EQ(piece.report().tensors(), 1);
  EXPECT_THAT(rpc::FromGrpc(stream->Finish()), IsOk());
}

}  // namespace
}  // namespace shardmesh::server
