// Tests of sharding/pattern_automaton.h: where RE2 is exact too, the two agree.
#include "sharding/pattern_automaton.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "sharding/pattern.h"
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
    if (!pattern.ok()) {
      continue;
    }
    ASSERT_TRUE(pattern->re2_text().has_value()) << text;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternNode root, ParsePattern(text));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternAutomaton automaton,
                                   PatternAutomaton::Create(root));
    for (const std::string& name : names) {
      if (Pattern::IsPlain(name)) {
        EXPECT_EQ(automaton.Search(name), pattern->Search(name)) << text << " in " << name;
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

}  // namespace
}  // namespace shardmesh
