// Tests of sharding/pattern/automaton.h: where RE2 is exact too, the two agree.
#include "sharding/pattern/automaton.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "sharding/pattern/pattern.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::Golden;

TEST(PatternAutomatonTest, AgreesWithRe2OnEveryGoldenPatternAndPlainName) {
  absl::btree_set<std::string> patterns;
  absl::btree_set<std::string> names;
  for (const Golden& golden : test::LoadGoldens("regex_search.jsonl")) {
    patterns.insert(golden.input["pattern"].get<std::string>());
    names.insert(golden.input["name"].get<std::string>());
  }
  for (const std::string& text : patterns) {
    const absl::StatusOr<Pattern> pattern = Pattern::Create(text);
    if (!pattern.ok() || pattern->backtracks()) {
      continue;
    }
    ASSERT_TRUE(pattern->re2_text().has_value()) << text;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternNode root, ParsePattern(text));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternAutomaton automaton,
                                   PatternAutomaton::Create(root));
    for (const std::string& name : names) {
      if (Pattern::IsPlain(name)) {
        EXPECT_THAT(pattern->Search(name), test::IsOkAndHolds(automaton.Search(name)))
            << text << " in " << name;
      }
    }
  }
}

TEST(PatternAutomatonTest, MatchesNothingInWhatIsNotUtf8) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternNode root, ParsePattern(""));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternAutomaton automaton, PatternAutomaton::Create(root));
  EXPECT_TRUE(automaton.Search(""));
  EXPECT_FALSE(automaton.Search("\xFF"));
}

TEST(PatternAutomatonTest, SetsOfTheSameRangesShareTheirExpression) {
  const struct {
    std::string pattern;
    int64_t folded_ranges;
    std::string found;
    std::string missed;
  } kCases[] = {
      {R"(\b)" + std::string(2000, 'k'), 0, std::string(2000, 'k'), std::string(1999, 'k')},
      {R"((?i)\b)" + std::string(2000, 'k'), 1, std::string(2000, 'K'), std::string(1999, 'k')},
      {R"((?i)\b(\u00e9k){500})", 2, "", "\xC3\x89"},
      {R"((?i)\b[a-c][x]k[a-c][^a-c]k)", 3, "BXKCdk", "BXKCak"},
  };
  for (const auto& [pattern, folded_ranges, found, missed] : kCases) {
    SCOPED_TRACE(pattern.substr(0, 40));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternNode root, ParsePattern(pattern));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternAutomaton automaton,
                                   PatternAutomaton::Create(root));
    EXPECT_EQ(automaton.folded_ranges(), folded_ranges);
    EXPECT_TRUE(found.empty() || automaton.Search(found));
    EXPECT_FALSE(automaton.Search(missed));
  }
}

}  // namespace
}  // namespace shardmesh
