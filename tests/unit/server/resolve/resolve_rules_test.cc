// Answers about rules over real gRPC: what comes back, and what is refused, by its field.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using test::kInvalid;

class ResolveRulesTest : public ResolveServiceTest {
 protected:
  absl::Status Parse(const compat::v1::ParsePatternRulesRequest& request) {
    return Ask(&compat::v1::CompatService::Stub::ParsePatternRules, request, &parsed_);
  }
  absl::Status Check(const v1::CheckPatternRequest& request) {
    return Ask(&v1::RuleService::Stub::CheckPattern, request, &checked_);
  }
  absl::Status Rewrite(const v1::RewriteRulesRequest& request) {
    return Ask(&v1::RuleService::Stub::RewriteRules, request, &rewritten_);
  }

  compat::v1::ParsePatternRulesResponse parsed_;
  v1::CheckPatternResponse checked_;
  v1::RewriteRulesResponse rewritten_;
};

TEST_F(ResolveRulesTest, ReadsRulesInOneLineAndMatchesAName) {
  compat::v1::ParsePatternRulesRequest request;
  request.set_text("attn|mlp->fsdp.tp,norm->");
  ASSERT_THAT(Parse(request), IsOk());
  ASSERT_EQ(parsed_.rules_size(), 3);
  EXPECT_EQ(parsed_.rules(1).pattern(), "mlp");
  EXPECT_EQ(parsed_.rules(1).spec().dimensions(1).name(), "tp");
  EXPECT_FALSE(parsed_.has_spec()) << "no name was asked for";

  request.set_name("layer.mlp.kernel");
  ASSERT_THAT(Parse(request), IsOk());
  ASSERT_TRUE(parsed_.has_rule_index());
  EXPECT_EQ(parsed_.rule_index(), 1);
  EXPECT_EQ(parsed_.spec().dimensions(0).name(), "fsdp");

  request.set_name("bias");
  request.mutable_default_spec()->add_dimensions()->set_name("sp");
  ASSERT_THAT(Parse(request), IsOk());
  EXPECT_FALSE(parsed_.has_rule_index());
  EXPECT_EQ(parsed_.spec().dimensions(0).name(), "sp");
}

TEST_F(ResolveRulesTest, ABadPatternCountsWhereItIsReachedIfExact) {
  compat::v1::ParsePatternRulesRequest request;
  request.set_text("a->tp,(->tp");
  request.set_name("a");
  absl::Status status = Parse(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(FieldOf(status), "text");

  request.set_compatibility(v1::COMPATIBILITY_EXACT);
  EXPECT_THAT(Parse(request), IsOk()) << "without a mesh none is asked for";
  request.set_name("b");
  status = Parse(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(PythonTypeOf(status), "error");

  request.mutable_mesh()->mutable_value();
  status = Parse(request);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");
  EXPECT_EQ(FieldOf(status), "mesh");
}

TEST_F(ResolveRulesTest, RefusesTextsThatComeToTooMuch) {
  compat::v1::ParsePatternRulesRequest request;
  request.set_text(std::string((64 << 10) + 1, 'a'));
  absl::Status status = Parse(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "text");

  // Nine thousand patterns of one byte share a spec of four thousand.
  std::string text = "a";
  for (int i = 0; i < 9'000; ++i) {
    text += "|a";
  }
  text += "->" + std::string(255, 'x');
  for (int i = 1; i < 16; ++i) {
    text += "." + std::string(255, 'x');
  }
  request.set_text(text);
  EXPECT_THAT(Parse(request), StatusIs(kInvalid, Reason::kLimitExceeded));

  request.set_text("a->tp");
  request.set_name(std::string(1025, 'a'));
  status = Parse(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "name");

  request.set_name("a");
  request.mutable_default_spec()->add_dimensions();
  EXPECT_EQ(FieldOf(Parse(request)), "default_spec.dimensions[0].kind");
}

TEST_F(ResolveRulesTest, TellsHowAPatternIsMatched) {
  v1::CheckPatternRequest request;
  request.set_pattern(R"(\d+$)");
  for (const char* name : {"layer.12", "layer", "", "12\n"}) {
    request.add_names(name);
  }
  ASSERT_THAT(Check(request), IsOk());
  EXPECT_THAT(checked_.found(), ElementsAre(true, false, false, true));
  EXPECT_FALSE(checked_.re2_pattern().empty());

  request.set_pattern(R"((?<!\.)\d+)");
  ASSERT_THAT(Check(request), IsOk());
  EXPECT_THAT(checked_.found(), ElementsAre(true, false, false, true));
  EXPECT_TRUE(checked_.re2_pattern().empty());

  request.set_pattern(R"(\N{SPACE})");
  absl::Status status = Check(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedPattern));
  EXPECT_EQ(FieldOf(status), "pattern");
  request.set_pattern("(a+)+(?!a)b");
  request.add_names(std::string(40, 'a'));
  status = Check(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "pattern");
  request.mutable_names()->RemoveLast();
  request.set_pattern("(");
  EXPECT_THAT(Check(request), StatusIs(kInvalid, Reason::kBadPattern));
  request.set_pattern(std::string(4097, 'a'));
  EXPECT_THAT(Check(request), StatusIs(kInvalid, Reason::kLimitExceeded));

  request.set_pattern("a");
  request.add_names(std::string(1025, 'a'));
  status = Check(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "names[4]");
  request.clear_names();
  for (int i = 0; i <= 10'000; ++i) {
    request.add_names("a");
  }
  status = Check(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(status), "names");
}

v1::RuleSet Exclusion() {
  v1::RuleSet rules;
  v1::Rule* const excluding = rules.add_rules();
  excluding->set_pattern("^(?!.*bias).*kernel$");
  excluding->mutable_spec()->add_dimensions()->set_name("tp");
  rules.add_rules()->set_pattern(".*");
  return rules;
}

TEST_F(ResolveRulesTest, RewritesRulesWithoutExclusions) {
  v1::RewriteRulesRequest request;
  *request.mutable_rule_set() = Exclusion();
  request.mutable_rule_set()->set_separator("/");
  request.mutable_rule_set()->set_use_min_sharding_size(true);
  ASSERT_THAT(Rewrite(request), IsOk());
  EXPECT_TRUE(rewritten_.changed());
  ASSERT_EQ(rewritten_.rule_set().rules_size(), 3);
  EXPECT_EQ(rewritten_.rule_set().rules(0).pattern(), "^.*bias");
  EXPECT_THAT(rewritten_.origins(), ElementsAre(1, 0, 1));
  EXPECT_EQ(rewritten_.rule_set().separator(), "/");
  EXPECT_TRUE(rewritten_.rule_set().use_min_sharding_size());
  EXPECT_FALSE(rewritten_.rule_set().has_min_size());

  *request.mutable_rule_set() = rewritten_.rule_set();
  ASSERT_THAT(Rewrite(request), IsOk());
  EXPECT_FALSE(rewritten_.changed());

  request.mutable_rule_set()->mutable_rules(1)->set_pattern("a(?=b)");
  const absl::Status status = Rewrite(request);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedPattern));
  EXPECT_EQ(FieldOf(status), "rule_set.rules");
  EXPECT_THAT(std::string(status.message()), HasSubstr("rule 1"));
}

TEST_F(ResolveRulesTest, TakesExclusionsOnUpload) {
  const auto catalog = v1::CatalogService::NewStub(channel());
  v1::CreateEntryRequest request;
  request.set_request_id("create");
  request.set_name("excluding");
  *request.mutable_value()->mutable_rule_set() = Exclusion();
  const auto create = [&] {
    grpc::ClientContext context;
    rpc::Apply(rpc::CallOptions::Within(absl::Seconds(10)), &context);
    v1::CreateEntryResponse response;
    return rpc::FromGrpc(catalog->CreateEntry(&context, request, &response));
  };
  EXPECT_THAT(create(), IsOk());
  request.set_request_id("create again");
  request.set_name("unsupported");
  request.mutable_value()->mutable_rule_set()->mutable_rules(0)->set_pattern(R"(\N{SPACE})");
  EXPECT_THAT(create(), StatusIs(kInvalid, Reason::kUnsupportedPattern));
}

}  // namespace
}  // namespace shardmesh::server
