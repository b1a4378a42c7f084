// Tests of sharding/rules/rule_explanation.h: near misses, the rule, and what became of its spec.
#include "sharding/rules/rule_explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Kind = ExplanationStep::Kind;

std::vector<Rule> SomeRules() {
  const PartitionSpec spec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")});
  return {{"attn/kernel$", spec}, {"norm", {}}, {"mlp.*kernel_q", spec}, {"kernel$", spec}};
}

TEST(RuleExplanationTest, NamesEarlierRulesThatNearlyMatchedThenTheRule) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  constexpr int64_t kShape[] = {8, 8};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleExplanation explanation,
                                 ExplainRules(rules, "mlp/kernel", kShape));
  EXPECT_EQ(explanation.match.rule, 3);
  EXPECT_THAT(explanation.near_misses, ElementsAre(0, 2));
  EXPECT_THAT(explanation.steps,
              ElementsAre(ExplanationStep{Kind::kNearMiss, -1, "mlp/kernel", "attn/kernel$"},
                          ExplanationStep{Kind::kNearMiss, -1, "mlp/kernel", "mlp.*kernel_q"},
                          ExplanationStep{Kind::kRule, -1, "mlp/kernel", "kernel$"}));
}

TEST(RuleExplanationTest, SaysWhatWasCutOffOrNotPartitioned) {
  RuleSetOptions options;
  options.min_size = 5;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules(), options));
  constexpr int64_t kCut[] = {8};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleExplanation cut, ExplainRules(rules, "kernel", kCut));
  EXPECT_EQ(cut.steps.back(),
            (ExplanationStep{Kind::kCorrection, -1, "P('fsdp', 'tp')", "P('fsdp')"}));
  constexpr int64_t kSmall[] = {2, 2};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleExplanation small,
                                 ExplainRules(rules, "kernel", kSmall));
  EXPECT_EQ(small.steps.back(), (ExplanationStep{Kind::kCorrection, -1, "P('fsdp', 'tp')", "P()"}));
}

TEST(RuleExplanationTest, EndsWhenItIsCancelled) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  constexpr int64_t kShape[] = {8, 8};
  EXPECT_TRUE(
      absl::IsCancelled(ExplainRules(rules, "mlp/kernel", kShape, [] { return true; }).status()));
}

TEST(RuleExplanationTest, AnswersForATensorThatNoRuleMatches) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  constexpr int64_t kShape[] = {8, 8};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleExplanation explanation,
                                 ExplainRules(rules, "mlp/kernel/w", kShape));
  EXPECT_TRUE(explanation.match.unmatched);
  EXPECT_THAT(explanation.near_misses, ElementsAre(0, 3, 2));
}

TEST(RuleExplanationTest, HasNoStepsWhereNoRuleIsAsked) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleExplanation explanation,
                                 ExplainRules(rules, "norm", std::nullopt));
  EXPECT_THAT(explanation.steps, IsEmpty());
  EXPECT_FALSE(explanation.match.unmatched);
}

TEST(RuleExplanationTest, HasTheErrorsOfAMatch) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create({{"(", {}}}, options));
  constexpr int64_t kShape[] = {8};
  EXPECT_THAT(ExplainRules(rules, "w", kShape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadPattern));
}

}  // namespace
}  // namespace shardmesh
