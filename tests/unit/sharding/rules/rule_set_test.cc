// Tests of sharding/rules/rule_set.h: the goldens, what is corrected and why, and whole trees.
#include "sharding/rules/rule_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/golden.h"
#include "tests/testing/golden_tree.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::DecodeSpec;
using ::shardmesh::test::DecodeTree;
using ::shardmesh::test::EncodeSpec;
using ::shardmesh::test::ExpectGoldens;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::Json;
using ::shardmesh::test::StatusIs;
using ::shardmesh::test::TreeLeaf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using ::shardmesh::test::kInvalid;

PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }

using Extents = absl::Span<const int64_t>;
constexpr int64_t kOne[] = {1};
constexpr int64_t kEight[] = {8};
constexpr int64_t kEightByEight[] = {8, 8};
constexpr int64_t kThirteenByFive[] = {13, 5};
constexpr int64_t kNegative[] = {-1};

// ("kernel$", P('fsdp', 'tp')), ("bias$", P(None)), ("^scale", P()).
std::vector<Rule> SomeRules() {
  return {{"kernel$", Spec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})},
          {"bias$", Spec({SpecEntry::None()})},
          {"^scale", PartitionSpec()}};
}

// --- Goldens ---

absl::StatusOr<Json> MatchPartitionRules(const Json& input, MatchStrategy strategy) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  options.strict = input.value("strict", true);
  if (input.contains("min_size")) {
    options.min_size = input["min_size"].is_null()
                           ? std::nullopt
                           : std::optional<int64_t>(input["min_size"].get<int64_t>());
  }
  std::vector<Rule> rules;
  for (const Json& rule : input["rules"]) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeSpec(rule[1]));
    rules.push_back({rule[0].get<std::string>(), std::move(spec)});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const RuleSet rule_set, RuleSet::Create(std::move(rules), options));
  const std::vector<TreeLeaf> leaves = DecodeTree(input);
  std::vector<NamedShape> tensors;
  for (const TreeLeaf& leaf : leaves) {
    tensors.push_back(
        {leaf.name, leaf.shape.has_value() ? OptionalShape(*leaf.shape) : std::nullopt});
  }
  MatchTreeOptions tree_options;
  tree_options.strategy = strategy;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RuleMatch> matches,
                             rule_set.MatchTree(tensors, tree_options));
  Json out = Json::array();
  for (size_t i = 0; i < matches.size(); ++i) {
    out.push_back({leaves[i].name, EncodeSpec(matches[i].spec)});
  }
  return out;
}

TEST(RuleSetGoldenTest, MatchesRuleByRuleAsMatchPartitionRulesDoes) {
  ExpectGoldens("match_rules.jsonl", "match_partition_rules", 571, [](const Json& input) {
    return MatchPartitionRules(input, MatchStrategy::kRuleByRule);
  });
}

TEST(RuleSetGoldenTest, MatchesAllRulesAtOnceAsMatchPartitionRulesDoes) {
  ExpectGoldens("match_rules.jsonl", "match_partition_rules", 571, [](const Json& input) {
    return MatchPartitionRules(input, MatchStrategy::kAtOnce);
  });
}

// --- One tensor ---

TEST(RuleSetTest, TakesTheFirstRuleThatMatches) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const RuleSet rules, RuleSet::Create({{"a", Spec({SpecEntry::Axis("tp")})}, {"ab", {}}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch match, rules.Match("xab", kEight));
  EXPECT_EQ(match.rule, 0);
  EXPECT_EQ(match.spec, Spec({SpecEntry::Axis("tp")}));
  EXPECT_THAT(match.corrections, IsEmpty());
}

TEST(RuleSetTest, ReplicatesScalarsWithoutAskingARule) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  for (const OptionalShape shape : {OptionalShape(Extents()), OptionalShape()}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch match, rules.Match("no rule has it", shape));
    EXPECT_EQ(match.rule, std::nullopt);
    EXPECT_EQ(match.spec, PartitionSpec());
  }
}

TEST(RuleSetTest, CutsASpecToTheRankAndSaysWhatWasCut) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch match, rules.Match("kernel", kEight));
  EXPECT_EQ(match.spec, Spec({SpecEntry::Axis("fsdp")}));
  EXPECT_THAT(match.corrections,
              ElementsAre(Correction{1, SpecEntry::Axis("tp"), Reason::kRankTruncated, 1, 2}));
}

TEST(RuleSetTest, ReplicatesWhatIsBelowMinSizeAndSaysSo) {
  RuleSetOptions options;
  options.min_size = 65;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules(), options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch small, rules.Match("kernel", kEightByEight));
  EXPECT_EQ(small.rule, 0);
  EXPECT_EQ(small.spec, PartitionSpec());
  EXPECT_THAT(small.corrections,
              ElementsAre(Correction{-1, SpecEntry::None(), Reason::kBelowMinSize, 64, 65}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch nothing_lost, rules.Match("bias", kEight));
  EXPECT_EQ(nothing_lost.spec, PartitionSpec());
  EXPECT_THAT(nothing_lost.corrections, IsEmpty());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch large, rules.Match("kernel", kThirteenByFive));
  EXPECT_EQ(large.spec, rules.rules()[0].spec);
}

TEST(RuleSetTest, HasADefaultMinSizeForNone) {
  RuleSetOptions options;
  options.min_size = std::nullopt;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules(), options));
  EXPECT_EQ(rules.min_size(), 16384);
}

TEST(RuleSetTest, TakesAnotherDefaultMinSizeForNone) {
  RuleSetOptions options;
  options.min_size = std::nullopt;
  options.default_min_size = 65;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules(), options));
  EXPECT_EQ(rules.min_size(), 65);
  options.min_size = 0;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet given, RuleSet::Create(SomeRules(), options));
  EXPECT_EQ(given.min_size(), 0);
}

TEST(RuleSetTest, NamesAllRulesThatMatch) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  std::vector<Rule> rules = {{"b", {}}, {"a", {}}, {"(", {}}, {"b$", {}}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet deferred, RuleSet::Create(rules, options));
  rules.erase(rules.begin() + 2);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet joined, RuleSet::Create(rules));
  EXPECT_THAT(deferred.MatchingRules("b").matching, ElementsAre(0, 3));
  EXPECT_THAT(joined.MatchingRules("b").matching, ElementsAre(0, 2));
  EXPECT_THAT(joined.MatchingRules("b\n").matching, ElementsAre(0, 2));
  EXPECT_THAT(joined.MatchingRules("ba").matching, ElementsAre(0, 1));
  EXPECT_THAT(joined.MatchingRules("c").matching, IsEmpty());
  EXPECT_THAT(deferred.PatternStatus(0), test::IsOk());
  EXPECT_THAT(deferred.PatternStatus(2), StatusIs(kInvalid, Reason::kBadPattern));
}

TEST(RuleSetTest, IgnoresShapesUnlessStrict) {
  RuleSetOptions options;
  options.strict = false;
  options.min_size = 1000;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules(), options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch match, rules.Match("kernel", Extents()));
  EXPECT_EQ(match.spec, rules.rules()[0].spec);
}

TEST(RuleSetTest, NamesTheTensorAndTheNearestRulesWhereNoneMatches) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  const absl::Status status = rules.Match("mlp/kernel/q", kEight).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnmatchedTensor));
  EXPECT_EQ(PythonTypeOf(status), "ValueError");
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("'mlp/kernel/q'"), HasSubstr("rule 0 'kernel$'"),
                                       Not(HasSubstr("rule 1"))));
}

TEST(RuleSetTest, RefusesAnInvalidShape) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(SomeRules()));
  EXPECT_THAT(rules.Match("kernel", kNegative).status(), StatusIs(kInvalid, Reason::kInvalidShape));
}

TEST(RuleSetTest, MatchesPatternsThatBacktrackByEachStrategy) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const RuleSet rules,
      RuleSet::Create({{"^(?!.*bias).*kernel$", {}}, {"(.)\\1", {}}, {".*", {}}}));
  const std::vector<NamedShape> tensors = {
      {"a/kernel", kEight}, {"bias/kernel", kEight}, {"attn/bias", kEight}};
  for (const MatchStrategy strategy : {MatchStrategy::kRuleByRule, MatchStrategy::kAtOnce}) {
    MatchTreeOptions options;
    options.strategy = strategy;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RuleMatch> matches,
                                   rules.MatchTree(tensors, options));
    EXPECT_EQ(matches[0].rule, 0);
    EXPECT_EQ(matches[1].rule, 2);
    EXPECT_EQ(matches[2].rule, 1);
  }
  EXPECT_THAT(rules.MatchingRules("attn/kernel").matching, ElementsAre(0, 1, 2));
  EXPECT_TRUE(rules.backtracks());
  EXPECT_FALSE(RuleSet::Create({{"kernel$", {}}, {".*", {}}})->backtracks());
}

TEST(RuleSetTest, ASearchThatTakesTooManyStepsNamesItsRule) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules,
                                 RuleSet::Create({{"x", {}}, {"(a+)+(?!a)b", {}}, {"", {}}}));
  const std::string name(40, 'a');
  EXPECT_THAT(rules.Match("x", kEight), test::IsOk());
  const RulesOfName all = rules.MatchingRules(name);
  EXPECT_THAT(all.matching, ElementsAre(2));
  ASSERT_EQ(all.given_up.size(), 1);
  EXPECT_EQ(all.given_up[0].rule, 1);
  EXPECT_THAT(all.given_up[0].status, StatusIs(kInvalid, Reason::kLimitExceeded));
  const absl::Status status = rules.Match(name, kEight).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(status.ToString(), HasSubstr("rule 1: pattern '(a+)+(?!a)b': the search in "));
}

TEST(RuleSetTest, TheSearchesForAllNamesTogetherTakeABoundedNumberOfSteps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules,
                                 RuleSet::Create({{"x", {}}, {"(a+)+(?!a)b", {}}, {"", {}}}));
  const std::string name(10, 'a');  // some ten thousand steps
  const std::vector<NamedShape> tensors(100, NamedShape{name, kEight});
  EXPECT_THAT(rules.MatchTree(tensors), test::IsOk());
  MatchTreeOptions options;
  options.budget = SearchBudget(100'000);
  const absl::Status status = rules.MatchTree(tensors, options).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(status.ToString(), HasSubstr("rule 1: pattern '(a+)+(?!a)b': the search in "));
  EXPECT_THAT(status.ToString(), HasSubstr("take more than 100000 steps"));
}

TEST(RuleSetTest, ChecksForACancellationAfterEachRuleThatBacktracks) {
  std::vector<Rule> patterns(10, Rule{"(?=b)c", {}});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(std::move(patterns)));
  int polls = 0;
  EXPECT_THAT(rules.MatchingRules("a", [&polls] { return ++polls == 5; }).matching, IsEmpty());
  EXPECT_EQ(polls, 5);
}

// --- Faulty patterns ---

TEST(RuleSetTest, RefusesAFaultyPatternWithItsRule) {
  const absl::Status bad = RuleSet::Create({{".*", {}}, {"(", {}}}).status();
  EXPECT_THAT(bad, StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_EQ(PythonTypeOf(bad), "error");
  EXPECT_THAT(bad.ToString(), HasSubstr("rule 1: bad pattern '('"));
  EXPECT_THAT(RuleSet::Create({{"\\N{SPACE}", {}}}).status(),
              StatusIs(kInvalid, Reason::kUnsupportedPattern));
}

TEST(RuleSetTest, CanDeferAFaultyPatternUntilItIsReached) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules,
                                 RuleSet::Create({{"kernel", {}}, {"(", {}}}, options));
  EXPECT_THAT(rules.Match("kernel", kEight), test::IsOk());
  EXPECT_THAT(rules.Match("bias", kEight).status(), StatusIs(kInvalid, Reason::kBadPattern));
}

TEST(RuleSetTest, BoundsTheNumberOfRules) {
  EXPECT_THAT(RuleSet::Create(std::vector<Rule>(RuleSet::kMaxRules + 1, Rule{"a", {}})).status(),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(RuleSetTest, BoundsTheSizeOfAllPatternsTogether) {
  const absl::Status status =
      RuleSet::Create(std::vector<Rule>(1000, Rule{"\\w{100}", {}})).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(status.ToString(), HasSubstr("the limit is 5000000"));
}

// --- Trees ---

// Names of many kinds, among them texts that RE2 and Python read differently.
std::vector<std::string> ManyNames(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    const std::string layer = "layers/" + std::to_string(i % 17);
    names.push_back(i % 11 == 0   ? layer + "/kernel\n"
                    : i % 7 == 0  ? layer + "/\u00e9/bias"
                    : i % 3 == 0  ? layer + "/bias"
                    : i % 13 == 0 ? "scale"
                                  : layer + "/kernel");
  }
  return names;
}

TEST(RuleSetTreeTest, GivesTheSameByEveryStrategy) {
  std::vector<Rule> rules = SomeRules();
  rules.insert(rules.begin(), {"\\b1\\d/.*\\bbias", Spec({SpecEntry::Axis("dp")})});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rule_set, RuleSet::Create(std::move(rules)));
  const std::vector<std::string> names = ManyNames(1000);
  std::vector<NamedShape> tensors;
  std::vector<std::optional<int64_t>> expected;
  for (const std::string& name : names) {
    tensors.push_back({name, kEightByEight});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleMatch match, rule_set.Match(name, kEightByEight));
    expected.push_back(match.rule);
  }
  int64_t reading = 0;
  // Step sizes that make the first (rule by rule) or the second (at once) trial the dearer one.
  for (const int64_t growth : {int64_t{1}, int64_t{-1}}) {
    for (const MatchStrategy strategy :
         {MatchStrategy::kFastest, MatchStrategy::kRuleByRule, MatchStrategy::kAtOnce}) {
      MatchTreeOptions options;
      options.strategy = strategy;
      int64_t step = 100;
      options.cost_reading = [&] { return reading += (step += growth); };
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RuleMatch> matches,
                                     rule_set.MatchTree(tensors, options));
      std::vector<std::optional<int64_t>> found;
      for (const RuleMatch& match : matches) {
        found.push_back(match.rule);
      }
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(RuleSetTreeTest, StopsWhenCancelled) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rule_set, RuleSet::Create({{".*", {}}}));
  const std::vector<NamedShape> tensors(1000, NamedShape{"w", kOne});
  int asked = 0;
  MatchTreeOptions options;
  options.is_cancelled = [&asked] { return ++asked == 3; };
  const absl::Status status = rule_set.MatchTree(tensors, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.ToString(), HasSubstr("of 1000 tensors"));
}

TEST(RuleSetTreeTest, ReturnsTheFirstTensorsError) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rule_set, RuleSet::Create(SomeRules()));
  const std::vector<NamedShape> tensors = {{"kernel", kOne}, {"first", kOne}, {"second", kOne}};
  for (const MatchStrategy strategy : {MatchStrategy::kRuleByRule, MatchStrategy::kAtOnce}) {
    MatchTreeOptions options;
    options.strategy = strategy;
    const absl::Status status = rule_set.MatchTree(tensors, options).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnmatchedTensor));
    EXPECT_THAT(status.ToString(), HasSubstr("'first'"));
  }
}

TEST(RuleSetTreeTest, AnswersTensorsThatNoRuleMatchesWhereThatIsAskedFor) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rule_set, RuleSet::Create(SomeRules()));
  const std::vector<NamedShape> tensors = {{"kernel", kOne}, {"first", kOne}};
  for (const MatchStrategy strategy : {MatchStrategy::kRuleByRule, MatchStrategy::kAtOnce}) {
    MatchTreeOptions options;
    options.strategy = strategy;
    options.keep_unmatched = true;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RuleMatch> matches,
                                   rule_set.MatchTree(tensors, options));
    EXPECT_FALSE(matches[0].unmatched);
    EXPECT_TRUE(matches[1].unmatched);
    EXPECT_EQ(matches[1].rule, std::nullopt);
    EXPECT_EQ(matches[1].spec, PartitionSpec());
  }
}

TEST(RuleSetTreeTest, MatchesRuleByRuleWhereTheRulesCannotBeJoined) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rule_set,
                                 RuleSet::Create({{"a", {}}, {"\\N{SPACE}", {}}}, options));
  MatchTreeOptions tree_options;
  tree_options.strategy = MatchStrategy::kAtOnce;
  const std::vector<NamedShape> good = {{"a", kOne}};
  EXPECT_THAT(rule_set.MatchTree(good, tree_options), test::IsOk());
  const std::vector<NamedShape> bad = {{"b", kOne}};
  EXPECT_THAT(rule_set.MatchTree(bad, tree_options).status(),
              StatusIs(kInvalid, Reason::kUnsupportedPattern));
}

}  // namespace
}  // namespace shardmesh
