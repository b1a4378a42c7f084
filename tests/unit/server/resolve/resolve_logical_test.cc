// Answers about flax's logical names over real gRPC.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/resolve_service_fixture.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;

using test::kInvalid;
using Request = v1::ResolveLogicalAxesRequest;
using Response = v1::ResolveLogicalAxesResponse;

void AddRule(const std::string& name, const std::string& axis, v1::LogicalRulesSelector* to) {
  v1::LogicalRule* const rule = to->mutable_value()->add_rules();
  rule->set_name(name);
  rule->mutable_value()->set_name(axis);
}

class ResolveLogicalTest : public ResolveServiceTest {
 protected:
  absl::Status Resolve(const Request& request) {
    return Ask(&v1::RuleService::Stub::ResolveLogicalAxes, request, &response_);
  }
  Response response_;
};

TEST_F(ResolveLogicalTest, ResolvesBySpmdAndByLinen) {
  Request request;
  for (const char* name : {"batch", "length", "heads", "features"}) {
    request.add_names()->set_name(name);
  }
  AddRule("batch", "x", request.mutable_rules());
  AddRule("features", "x", request.mutable_rules());
  AddRule("heads", "y", request.mutable_rules());
  AddRule("batch", "z", request.mutable_rules());
  ASSERT_THAT(Resolve(request), IsOk());
  ASSERT_EQ(response_.values_size(), 4);
  EXPECT_EQ(response_.values(0).name(), "z");
  EXPECT_EQ(response_.spec().dimensions(1).name(), "length");
  EXPECT_EQ(response_.action(), Response::ACTION_UNSPECIFIED);

  request.set_flavor(Request::FLAVOR_LINEN);
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_EQ(response_.values_size(), 0);
  EXPECT_EQ(response_.spec().dimensions(0).name(), "x");
  EXPECT_EQ(response_.spec().dimensions(3).constant(), v1::AXIS_CONSTANT_NONE);

  request.set_fallback(Request::FALLBACK_NO_CONSTRAINT);
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_FALSE(response_.has_spec());
  request.set_fallback(Request::FALLBACK_RAISE_ERROR);
  EXPECT_THAT(Resolve(request), StatusIs(kInvalid, Reason::kUnknownAxis));

  request.clear_rules();
  request.clear_fallback();
  request.set_constrain(true);
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_FALSE(response_.has_spec()) << "without rules the array stays as it is";
}

TEST_F(ResolveLogicalTest, TellsWhatBecomesOfAnArray) {
  Request request;
  request.add_names()->set_name("embed");
  AddRule("embed", "tp", request.mutable_rules());
  request.mutable_mesh()->set_name("default");
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_EQ(response_.action(), Response::ACTION_CONSTRAIN);
  EXPECT_EQ(response_.spec().dimensions(0).name(), "tp");
  EXPECT_EQ(response_.values_size(), 1);

  request.mutable_mesh()->mutable_value();
  EXPECT_THAT(Resolve(request), StatusIs(kInvalid, Reason::kNoMesh));
  request.clear_names();
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_EQ(response_.action(), Response::ACTION_NONE);
  EXPECT_FALSE(response_.has_spec());
}

TEST_F(ResolveLogicalTest, ReturnsValuesThatMakeNoSpec) {
  Request request;
  request.add_names()->set_name("embed");
  v1::LogicalRule* const rule = request.mutable_rules()->mutable_value()->add_rules();
  rule->set_name("embed");
  rule->mutable_value()->mutable_tuple()->add_values()->mutable_tuple()->add_values()->set_name(
      "x");
  EXPECT_THAT(Resolve(request), StatusIs(kInvalid, Reason::kInvalidSpec));
  request.set_values_only(true);
  ASSERT_THAT(Resolve(request), IsOk());
  EXPECT_EQ(response_.values(0).tuple().values(0).tuple().values(0).name(), "x");
  EXPECT_FALSE(response_.has_spec());
}

TEST_F(ResolveLogicalTest, RefusesWhatTheFlavorDoesNotKnow) {
  struct Case {
    void (*set)(Request*);
    const char* field;
  };
  const Case kCases[] = {
      {[](Request* r) { r->set_fallback(Request::FALLBACK_RAISE_ERROR); }, "fallback"},
      {[](Request* r) { r->set_constrain(true); }, "constrain"},
      {[](Request* r) {
         r->mutable_mesh();
         r->set_values_only(true);
       },
       "values_only"},
      {[](Request* r) { r->set_flavor(static_cast<Request::Flavor>(9)); }, "flavor"},
      {[](Request* r) {
         r->set_flavor(Request::FLAVOR_LINEN);
         r->set_fallback(static_cast<Request::Fallback>(9));
       },
       "fallback"},
      {[](Request* r) {
         r->set_flavor(Request::FLAVOR_LINEN);
         r->mutable_mesh();
       },
       "mesh"},
      {[](Request* r) {
         r->set_flavor(Request::FLAVOR_LINEN);
         r->mutable_context_rules();
       },
       "context_rules"},
      {[](Request* r) {
         r->set_flavor(Request::FLAVOR_LINEN);
         r->set_values_only(true);
       },
       "values_only"},
      {[](Request* r) { r->add_names(); }, "names[1].kind"},
      {[](Request* r) {
         for (int i = 0; i < 16; ++i) {
           r->add_names()->set_name("a");
         }
       },
       "names"},
      {[](Request* r) { AddRule(std::string(256, 'a'), "x", r->mutable_rules()); },
       "rules.value.rules[0].name"},
      {[](Request* r) {
         for (int i = 0; i <= 4096; ++i) {
           AddRule("a", "x", r->mutable_context_rules());
         }
       },
       "context_rules.value.rules"},
  };
  for (const Case& c : kCases) {
    Request request;
    request.add_names()->set_name("embed");
    c.set(&request);
    const absl::Status status = Resolve(request);
    EXPECT_EQ(status.code(), kInvalid) << status;
    EXPECT_EQ(FieldOf(status), c.field);
  }
  Request request;
  request.mutable_rules()->set_name("none_such");
  EXPECT_THAT(Resolve(request), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(ResolveLogicalTest, JoinsListsThatDoNotDisagree) {
  v1::ComposeLogicalRulesRequest request;
  v1::ComposeLogicalRulesResponse response;
  AddRule("a", "x", request.mutable_first());
  AddRule("b", "y", request.mutable_second());
  ASSERT_THAT(Ask(&v1::RuleService::Stub::ComposeLogicalRules, request, &response), IsOk());
  EXPECT_EQ(response.rules().rules_size(), 2);
  AddRule("a", "z", request.mutable_second());
  EXPECT_THAT(Ask(&v1::RuleService::Stub::ComposeLogicalRules, request, &response),
              StatusIs(kInvalid, Reason::kInvalidAxisValue));
}

}  // namespace
}  // namespace shardmesh::server
