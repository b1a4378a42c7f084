// Tests of sharding/rules/pattern_rules.h: how the text is read, and what compatibility changes.
#include "sharding/rules/pattern_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

// `pattern:spec` of each rule.
std::string Parsed(std::string_view text) {
  const absl::StatusOr<std::vector<Rule>> rules = ParsePatternRules(text);
  return rules.ok() ? StrJoin(*rules, " ",
                              [](std::string* out, const Rule& rule) {
                                StrAppend(out, rule.pattern, ":", rule.spec.ToString());
                              })
                    : rules.status().ToString();
}

TEST(PatternRulesTest, TellsWhichRuleMatched) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternRules rules,
                                 PatternRules::Create("bias->tp,kernel->fsdp", {}, Mesh()));
  EXPECT_THAT(rules.RuleOf("mlp/kernel"), test::IsOkAndHolds(std::optional<int64_t>(1)));
  EXPECT_THAT(rules.RuleOf("norm"), test::IsOkAndHolds(std::optional<int64_t>()));
  EXPECT_TRUE(absl::IsCancelled(rules.RuleOf("norm", [] { return true; }).status()));
}

TEST(PatternRulesTest, ReadsRulesOutOfTheText) {
  const std::pair<std::string, std::string> kTexts[] = {
      {"attention|mlp->data,hidden->model", "attention:P('data') mlp:P('data') hidden:P('model')"},
      {"kernel->fsdp.tp", "kernel:P('fsdp', 'tp')"},
      {"a->dp..tp", "a:P('dp', None, 'tp')"},
      {"a->None", "a:P('None')"},
      {"a->", "a:P(None)"},
      {"->tp", ":P('tp')"},
      {"a|->tp", "a:P('tp') :P('tp')"},
      {" a -> tp ", " a :P(' tp ')"},
      {"no arrow,a->b,", "a:P('b')"},
      {"", ""},
      {"a-->b", "a-:P('b')"},
      {"(q|k)_proj->tp", "(q:P('tp') k)_proj:P('tp')"},
      {"x{1,2}->tp", "2}:P('tp')"},
  };
  for (const auto& [text, rules] : kTexts) {
    EXPECT_EQ(Parsed(text), rules) << text;
  }
}

TEST(PatternRulesTest, RefusesTwoArrowsAndWhatIsTooLong) {
  const absl::Status arrows = ParsePatternRules("x->y,a->b->c").status();
  EXPECT_THAT(arrows, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(PythonTypeOf(arrows), "ValueError");
  EXPECT_THAT(arrows.ToString(), HasSubstr("'a->b->c' has 2 arrows"));
  const std::string kTooLong[] = {
      std::string(kMaxPatternRulesBytes + 1, 'a'),
      StrCat("a->", std::string(16, '.')),
      StrCat(std::string(10'000, '|'), "->tp"),
  };
  for (const std::string& text : kTooLong) {
    EXPECT_THAT(ParsePatternRules(text).status(), StatusIs(kInvalid, Reason::kLimitExceeded));
  }
}

TEST(PatternRulesTest, TakesTheFirstRuleThatMatchesElseTheDefault) {
  const PartitionSpec rest({SpecEntry::Axis("dp")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternRules rules,
                                 PatternRules::Create("q_proj|k_proj->tp,proj$->sp", rest, Mesh()));
  const std::pair<std::string, std::string> kNames[] = {
      {"attn/k_proj", "P('tp')"}, {"attn/o_proj", "P('sp')"}, {"attn/norm", "P('dp')"}};
  for (const auto& [name, spec] : kNames) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionSpec found, rules.SpecOf(name));
    EXPECT_EQ(found.ToString(), spec) << name;
  }
}

TEST(PatternRulesTest, RefusesAFaultyPatternAtOnceOrExactlyWhenItIsReached) {
  constexpr std::string_view kText = "kernel->tp,(->dp";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2"));
  EXPECT_THAT(PatternRules::Create(kText, {}, mesh).status(),
              StatusIs(kInvalid, Reason::kBadPattern));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternRules rules,
                                 PatternRules::Create(kText, {}, mesh, Compatibility::kExact));
  EXPECT_THAT(rules.SpecOf("kernel"), test::IsOk());
  const absl::Status reached = rules.SpecOf("bias").status();
  EXPECT_THAT(reached, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(PythonTypeOf(reached), "error");
}

TEST(PatternRulesTest, InsistsOnAMeshOnlyWhereTheOriginalDoes) {
  EXPECT_THAT(PatternRules::Create("a->b", {}, Mesh()), test::IsOk());
  const absl::Status status =
      PatternRules::Create("a->b->c", {}, Mesh(), Compatibility::kExact).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");
}

}  // namespace
}  // namespace shardmesh
