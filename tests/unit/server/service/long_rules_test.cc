// Rules that take long to compile or to search: gRPC's threads leave them to others, and go on
// answering.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/codec/put_codec.h"
#include "server/resolve/layout_streams.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/rule_streams.h"
#include "server/resolve/tree_streams.h"
#include "server/state/definitions.h"
#include "server/store/local_store.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "tests/testing/fake_clock.h"
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
  EXPECT_FALSE(CompilesLong(rules.value()));
  AddOrdinaryRules(&rules);
  EXPECT_FALSE(CompilesLong(rules.value()));
  AddRules(1'000, "kernel", &rules);
  EXPECT_TRUE(CompilesLong(rules.value()));
}

// Definitions with the rule sets "plain" and "ahead", of which the second has one look-ahead.
class SearchesLongTest : public testing::Test {
 protected:
  SearchesLongTest() {
    for (const auto& [name, pattern] : {std::pair{"plain", "kernel$"}, {"ahead", "^(?!a)"}}) {
      store::v1::Definition record;
      record.set_version(1);
      record.mutable_update_time()->set_seconds(1);
      record.mutable_value()->mutable_rule_set()->add_rules()->set_pattern(pattern);
      record.mutable_value()->mutable_rule_set()->add_rules()->set_pattern("b");
      Transaction transaction;
      transaction.puts.push_back(
          {.key = std::string("rule_set/") + name, .value = record.SerializeAsString()});
      EXPECT_THAT(CommitAndWait(*store_, std::move(transaction)), IsOk());
    }
    requests_ = *RequestMemory::Open(store_.get(), &clock_);
    definition_store_ = *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  }

  static v1::RuleSetSelector Named(const std::string& name) {
    v1::RuleSetSelector rules;
    rules.set_name(name);
    return rules;
  }

  // The header of a call with rules that do not backtrack is short, and so are its tensors. Both
  // are long if a rule backtracks.
  template <typename Request, typename Call>
  void ExpectTensorsTakeLong(const std::function<Call()>& make,
                             const std::function<v1::RuleSetSelector*(Request*)>& rules_of,
                             Request request, bool are_searched_at_once = true) {
    for (const bool backtracks : {false, true}) {
      *rules_of(&request) = Named(backtracks ? "ahead" : "plain");
      const Call call = make();
      EXPECT_EQ(call->TakesLong(request), backtracks) << request.GetTypeName();
      bool is_tensors = false;
      auto response = ResponseOf(*call);
      ASSERT_THAT(call->Take(
                      request, [] { return false; }, &response, &is_tensors),
                  IsOk());
      Request tensors;
      tensors.mutable_tensors();
      EXPECT_EQ(call->TakesLong(tensors), backtracks && are_searched_at_once)
          << request.GetTypeName();
    }
  }

  std::shared_ptr<const Definitions> state() const { return definition_store_->shared_state(); }

  test::FakeClock clock_;
  std::unique_ptr<server::Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  std::unique_ptr<RequestMemory> requests_;
  std::unique_ptr<DefinitionStore> definition_store_;

 private:
  template <typename Request, typename Response>
  static Response ResponseOf(const TreeCall<Request, Response>&) {
    return Response();
  }
};

TEST_F(SearchesLongTest, RulesThatBacktrackDo) {
  EXPECT_FALSE(SearchesLong(R"(\w+(a|b)*?\.(?:c)(?P<d>e)(?i:f)$)"));
  EXPECT_TRUE(SearchesLong("^(?!a)"));
  EXPECT_TRUE(SearchesLong(R"(\w{100})")) << "compiles long";
  EXPECT_TRUE(SearchesLong("a->tp,(?!b)c->dp"));

  EXPECT_FALSE(SearchesLong(*state(), v1::RuleSetSelector()));
  EXPECT_FALSE(SearchesLong(*state(), Named("plain")));
  EXPECT_FALSE(SearchesLong(*state(), Named("nosuch")));
  EXPECT_TRUE(SearchesLong(*state(), Named("ahead")));
  v1::RuleSetSelector rules;
  AddOrdinaryRules(&rules);
  EXPECT_FALSE(SearchesLong(*state(), rules));
  AddRules(1, R"((.)\1)", &rules);
  EXPECT_TRUE(SearchesLong(*state(), rules));
}

TEST_F(SearchesLongTest, TheHeaderAndTheTensorsOfEveryStreamWithRulesThatBacktrackTakeLong) {
  const CorrectionCounter counter(nullptr);
  v1::ResolveTreeRequest tree;
  tree.mutable_header()->set_match_only(true);
  ExpectTensorsTakeLong<v1::ResolveTreeRequest, decltype(MakeResolveTreeCall(state(), counter))>(
      [&] { return MakeResolveTreeCall(state(), counter); },
      [](auto* request) { return request->mutable_header()->mutable_rule_set(); }, tree);
  v1::SearchMeshesRequest search;
  search.mutable_header()->set_devices(4);
  search.mutable_header()->add_axes()->set_name("tp");
  ExpectTensorsTakeLong<v1::SearchMeshesRequest, decltype(MakeSearchMeshesCall(state()))>(
      [&] { return MakeSearchMeshesCall(state()); },
      [](auto* request) { return request->mutable_header()->mutable_rule_set(); }, search);
  v1::DiffLayoutsRequest diff;
  for (v1::LayoutChoice* choice :
       {diff.mutable_header()->mutable_a(), diff.mutable_header()->mutable_b()}) {
    choice->mutable_rule_set()->set_name("plain");
    auto* axis = choice->mutable_mesh()->mutable_value()->add_axes();
    axis->set_name("tp");
    axis->set_size(2);
  }
  ExpectTensorsTakeLong<v1::DiffLayoutsRequest, decltype(MakeDiffLayoutsCall(state()))>(
      [&] { return MakeDiffLayoutsCall(state()); },
      [](auto* request) { return request->mutable_header()->mutable_a()->mutable_rule_set(); },
      diff);
  ExpectTensorsTakeLong<v1::DiffLayoutsRequest, decltype(MakeDiffLayoutsCall(state()))>(
      [&] { return MakeDiffLayoutsCall(state()); },
      [](auto* request) { return request->mutable_header()->mutable_b()->mutable_rule_set(); },
      diff);
  // The lint searches when the tensors have ended, in the background.
  ExpectTensorsTakeLong<v1::LintRulesRequest, decltype(MakeLintRulesCall(state(), nullptr))>(
      [&] { return MakeLintRulesCall(state(), nullptr); },
      [](auto* request) { return request->mutable_header()->mutable_rule_set(); },
      v1::LintRulesRequest(), /*are_searched_at_once=*/false);
}

TEST_F(SearchesLongTest, TheHeaderOfAPutWithRulesThatBacktrackTakesLong) {
  PutPlanParts parts;
  parts.definition_store = definition_store_.get();
  const PutRequests requests(parts);
  v1::BeginPutRequest request;
  *request.mutable_header()->mutable_rule_set() = Named("plain");
  EXPECT_FALSE(requests.TakesLong(request));
  *request.mutable_header()->mutable_rule_set() = Named("ahead");
  EXPECT_TRUE(requests.TakesLong(request));
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
  ASSERT_TRUE(CompilesLong(request.rule_set().value()));
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
