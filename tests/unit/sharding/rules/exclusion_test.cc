// Tests of sharding/rules/exclusion.h: that rewritten rules mean the same, and what is refused.
#include "sharding/rules/exclusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sharding/pattern/pattern.h"
#include "status/python_repr.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

// A pattern `^(?!BODY)...REST`, in parts; one without bodies is just `rest`.
struct Parts {
  std::vector<std::string> bodies;
  std::string rest;

  std::string text() const {
    if (bodies.empty()) {
      return rest;
    }
    std::string out = "^";
    for (const std::string& body : bodies) {
      StrAppend(&out, "(?!", body, ")");
    }
    return out + rest;
  }
};

// Whether the whole is found in a name, by the meaning of a look-ahead, from patterns without one.
class Reference {
 public:
  explicit Reference(const Parts& parts)
      : rest_(Pattern::Create(parts.bodies.empty() ? parts.rest : StrCat("^(?:", parts.rest, ")"))
                  .value()) {
    for (const std::string& body : parts.bodies) {
      bodies_.push_back(Pattern::Create(StrCat("^(?:", body, ")")).value());
    }
  }
  bool Search(std::string_view name) const {
    return rest_.Search(name).value() &&
           std::none_of(bodies_.begin(), bodies_.end(),
                        [name](const Pattern& b) { return b.Search(name).value(); });
  }

 private:
  Pattern rest_;
  std::vector<Pattern> bodies_;
};

PartitionSpec SpecOf(size_t rule) { return PartitionSpec({SpecEntry::Axis(StrCat("axis", rule))}); }

std::vector<Rule> RulesOf(const std::vector<Parts>& parts) {
  std::vector<Rule> rules;
  for (size_t i = 0; i < parts.size(); ++i) {
    rules.push_back({parts[i].text(), SpecOf(i)});
  }
  return rules;
}

// Names made of pieces that the patterns below speak of, with parts of them and newlines.
std::vector<std::string> ManyNames(int count) {
  constexpr std::string_view kPieces[] = {
      "bias", "norm", "kernel", "mlp", "attn",   "/",      "_",  "0", "12",   "bia", "bbias", "ker",
      "ne",   "n",    "b",      "as",  "\u00e9", "\u0663", "\n", "x", "lora", "el",  "."};
  std::mt19937 random(7);
  std::vector<std::string> names = {"", "\n", "bias\n", "kernel\n", "kernel\n\n"};
  while (static_cast<int>(names.size()) < count) {
    std::string name;
    for (auto pieces = random() % 7; pieces > 0; --pieces) {
      name += kPieces[random() % std::size(kPieces)];
    }
    names.push_back(std::move(name));
  }
  return names;
}

const std::vector<Parts> kRuleLists[] = {
    {{{".*bias"}, ""}, {{}, ".*"}},
    {{{".*bias"}, ".*kernel$"}, {{}, ".*"}},
    {{{".*bias"}, ".*kernel$"}},
    {{{".*bias"}, ".*kernel$"}, {{}, "kernel"}},
    {{{".*bias"}, ""}},
    {{{".*bias"}, ".*"}, {{}, "kernel"}, {{}, "norm"}},
    {{{".*(bias|norm)"}, ".*kernel"}, {{}, "mlp"}},
    {{{".*(?:bias|norm|lora)"}, ".*"}, {{}, "mlp"}},
    {{{".*bias", ".*norm"}, ".*kernel"}, {{}, ".*"}},
    {{{".*bias", ".*norm"}, ".*kernel"}},
    {{{".*(bias|norm)$"}, ".*"}, {{}, "bias$"}},
    {{{".*\\d"}, ".*kernel"}, {{}, "x"}},
    {{{".*\\w"}, ""}},
    {{{".*[^\\W\\d]"}, ""}},
    {{{"mlp|attn"}, ".*kernel"}, {{}, ".*"}},
    {{{"mlp|attn"}, ".*kernel"}},
    {{{".*bias\\Z"}, "mlp"}},
    {{{".*b{2}ias"}, "(?:mlp|attn)/\\d+"}},
    {{{".*bias"}, ".*kernel"}, {{".*norm"}, ".*mlp"}, {{}, ".*"}},
    {{{}, "lora"}, {{".*lora"}, ".*x"}, {{".*norm"}, ""}, {{}, "bias"}},
    {{{".*\u00e9"}, ".*n"}},
    {{{""}, ".*"}, {{}, "mlp"}},
    {{{".*n$"}, ".*n$"}, {{}, "n"}},
};

TEST(ExclusionTest, GivesEveryNameTheSameSpec) {
  const std::vector<std::string> names = ManyNames(3000);
  for (const std::vector<Parts>& parts : kRuleLists) {
    const absl::StatusOr<RewrittenRules> rewritten = RewriteExclusions(RulesOf(parts));
    ASSERT_TRUE(rewritten.ok()) << parts.front().text() << ": " << rewritten.status();
    EXPECT_TRUE(rewritten->changed);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create(rewritten->rules));
    const std::vector<Reference> references(parts.begin(), parts.end());
    for (const std::string& name : names) {
      size_t first = 0;
      while (first < parts.size() && !references[first].Search(name)) {
        ++first;
      }
      const std::vector<int64_t> matching = rules.MatchingRules(name).matching;
      if (first == parts.size()) {
        EXPECT_TRUE(matching.empty()) << parts.front().text() << " in " << PythonRepr(name);
      } else {
        ASSERT_FALSE(matching.empty()) << parts.front().text() << " in " << PythonRepr(name);
        EXPECT_EQ(rewritten->rules[matching.front()].spec, SpecOf(first))
            << parts.front().text() << " in " << PythonRepr(name);
      }
    }
    for (size_t i = 0; i < rewritten->rules.size(); ++i) {
      EXPECT_EQ(rewritten->rules[i].spec, SpecOf(rewritten->origins[i]));
    }
  }
}

std::vector<std::string> PatternsOf(const RewrittenRules& rules) {
  std::vector<std::string> patterns;
  for (const Rule& rule : rules.rules) {
    patterns.push_back(rule.pattern);
  }
  return patterns;
}

TEST(ExclusionTest, PutsTheExcludedNamesBeforeTheRuleWhereTheNextTakesAll) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const RewrittenRules rules,
      RewriteExclusions(RulesOf({{{}, "embed"}, {{".*bias", "a|b"}, ".*kernel$"}, {{}, ".*"}})));
  EXPECT_THAT(PatternsOf(rules),
              testing::ElementsAre("embed", "^.*bias", "^(?:a|b)", "^.*kernel$", ".*"));
  EXPECT_THAT(rules.origins, testing::ElementsAre(0, 2, 2, 1, 2));
}

TEST(ExclusionTest, SpellsOutWhatIsLeftElsewhere) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RewrittenRules rules,
                                 RewriteExclusions(RulesOf({{{"a"}, "\\w"}})));
  EXPECT_THAT(PatternsOf(rules), testing::ElementsAre("^[^\\Wa]"));
}

TEST(ExclusionTest, KeepsRulesWithoutExclusions) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RewrittenRules rules,
                                 RewriteExclusions(RulesOf({{{}, "\\bkernel"}, {{}, ".*"}})));
  EXPECT_FALSE(rules.changed);
  EXPECT_THAT(PatternsOf(rules), testing::ElementsAre("\\bkernel", ".*"));
}

TEST(ExclusionTest, DropsARuleThatIsLeftWithoutNames) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RewrittenRules rules,
                                 RewriteExclusions(RulesOf({{{".*"}, "x"}, {{}, "y"}})));
  EXPECT_THAT(PatternsOf(rules), testing::ElementsAre("y"));
}

TEST(ExclusionTest, ReadsFlagsAndTheOtherAnchor) {
  const std::vector<Rule> rules = {{"(?ai)\\A(?!.*BIAS)", {}}, {"x", {}}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RewrittenRules rewritten, RewriteExclusions(rules));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet set, RuleSet::Create(rewritten.rules));
  EXPECT_TRUE(set.MatchingRules("a/Bias").matching.empty());
  EXPECT_EQ(set.MatchingRules("bia").matching.size(), 1);
}

TEST(ExclusionTest, RefusesWhatItCannotRewriteWithTheRule) {
  struct Refusal {
    std::string pattern;
    Reason reason;
    std::string message;
  };
  const Refusal kRefusals[] = {
      {"model(?!.*bias)", Reason::kUnsupportedPattern, "rule 1: pattern 'model(?!.*bias)'"},
      {"^(?=.*bias)", Reason::kUnsupportedPattern, "look-ahead (?=...)"},
      {"^(?!.*bias)a|b", Reason::kUnsupportedPattern, "look-ahead (?!...)"},
      {"^(?!.*bias)a(?!b)", Reason::kUnsupportedPattern, "look-ahead (?!...)"},
      {"^(?!(?!a)b)", Reason::kUnsupportedPattern, "look-ahead (?!...)"},
      {"^(?!.*bias)(a)\\1", Reason::kUnsupportedPattern, "\\1"},
      {"^(?!.*\\bbias)", Reason::kUnsupportedPattern, "a word boundary"},
      {"^(?!a$\\n)", Reason::kUnsupportedPattern, "$ elsewhere than at the end"},
      {"(?i)^(?!.*bias)", Reason::kUnsupportedPattern, "case that is ignored beyond ASCII"},
      {"^(?!.*\\d\u00e9)", Reason::kUnsupportedPattern, "a class such as \\d"},
      {"^(?!.*[ab].{12})", Reason::kLimitExceeded, "too long"},
      {"^(?!.*bias", Reason::kBadPattern, "missing )"},
  };
  for (const Refusal& refusal : kRefusals) {
    const absl::Status status = RewriteExclusions({{{"a", {}}, {refusal.pattern, {}}}}).status();
    EXPECT_THAT(status, StatusIs(kInvalid, refusal.reason)) << refusal.pattern;
    EXPECT_THAT(status.ToString(), HasSubstr("rule 1"));
    EXPECT_THAT(status.ToString(), HasSubstr(refusal.message));
  }
}

TEST(ExclusionTest, RefusesMoreRulesThanThereMayBe) {
  std::string exclusions = "^";
  for (int i = 0; i < 500; ++i) {
    exclusions += "(?!a)";
  }
  std::vector<Rule> rules;
  for (int i = 0; i < 21; ++i) {
    rules.push_back({exclusions, {}});
    rules.push_back({".*", {}});
  }
  EXPECT_THAT(RewriteExclusions(rules),
              test::StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh
