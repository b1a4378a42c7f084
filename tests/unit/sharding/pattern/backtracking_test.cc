// Tests of sharding/pattern/backtracking.h: Python's answers, with the groups; limits; threads.
#include "sharding/pattern/backtracking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sharding/pattern/lower_case.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/place_matcher.h"
#include "status/fact_keys.h"
#include "status/utf8.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::Golden;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::Json;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using Groups = std::optional<std::vector<std::optional<TextRange>>>;

absl::StatusOr<Groups> Find(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<BacktrackingProgram> program = BacktrackingProgram::Create(pattern);
  return program.ok() ? program->Find(text) : program.status();
}

// Returns the number of bytes of the first characters of a text.
int64_t BytesOf(const std::string& text, int64_t characters) {
  size_t bytes = 0;
  for (; characters > 0; --characters) {
    do {
      ++bytes;
    } while (bytes < text.size() && (text[bytes] & 0xC0) == 0x80);
  }
  return static_cast<int64_t>(bytes);
}

TEST(BacktrackingGoldenTest, FindsTheGroupsThatPythonFinds) {
  const Json recorded = test::LoadGoldenDocument("regex_groups.json");
  int64_t found = 0;
  for (const Golden& golden : test::LoadGoldens("regex_backtracking.jsonl")) {
    const auto text = golden.input["name"].get<std::string>();
    Groups expected;
    if (*golden.expect == Json(true)) {
      ++found;
      expected.emplace();
      for (const Json& range : recorded.at(golden.id)) {
        expected->push_back(range.is_null()
                                ? std::nullopt
                                : std::optional(TextRange{BytesOf(text, range[0].get<int64_t>()),
                                                          BytesOf(text, range[1].get<int64_t>())}));
      }
    }
    const absl::StatusOr<Groups> groups = Find(golden.input["pattern"].get<std::string>(), text);
    ASSERT_TRUE(groups.ok()) << golden.id << ": " << groups.status();
    EXPECT_TRUE(*groups == expected) << golden.id << " " << golden.input;
  }
  EXPECT_EQ(found, static_cast<int64_t>(recorded.size()));
  EXPECT_GT(found, 1'000);
}

TEST(BacktrackingGoldenTest, AgreesWithRe2WhereNothingNeedsBacktracking) {
  for (const Golden& golden : test::LoadGoldens("regex_search.jsonl")) {
    const auto text = golden.input["pattern"].get<std::string>();
    const absl::StatusOr<Pattern> pattern = Pattern::Create(text);
    if (!pattern.ok() || pattern->backtracks()) {
      continue;
    }
    const auto name = golden.input["name"].get<std::string>();
    const absl::StatusOr<Groups> groups = Find(text, name);
    ASSERT_TRUE(groups.ok()) << groups.status();
    EXPECT_THAT(pattern->Search(name), IsOkAndHolds(groups->has_value())) << text << " in " << name;
  }
}

// Each line is Python's answer.
TEST(BacktrackingTest, SearchesAsPythonDoes) {
  const struct {
    std::string pattern;
    std::string text;
    bool found;
  } kSearches[] = {
      // Look-around.
      {"(?=.*kernel)model", "model/kernel", true},
      {"^(?!.*bias).*kernel$", "a/bias/kernel", false},
      {"(?<=q_)proj", "q_proj", true},
      {"(?<!q_)proj", "q_proj", false},
      {"(?<=^)b", "b", true},
      {"(?<=ab)", "a", false},
      {"(?<!ab)", "a", true},
      {"(?=(a+))a*b\\1", "baaabac", true},
      {"(?=(a+))a++\\1b", "baaab", false},
      {"(?!(a))\\1", "b", false},
      {"(?<=(a))b\\1", "aba", true},
      {"(?<=\u00e9)x", "\u00e9x", true},
      {"(?<=\\b)a$", "a\n", true},
      // Back-references.
      {"(?P<n>a|b)(?P=n)", "abba", true},
      {"(a)?\\1b", "b", false},
      {"(a|)\\1b", "b", true},
      {"(?i)(k)\\1", "k\u212a", true},
      {"(?i)(\u017f)\\1", "\u017fs", false},
      {"(?ai)(k)\\1", "kK", true},
      {"(?ai)(\u00e9)\\1", "\u00e9\u00c9", false},
      {"(?:(a)|b)*\\1", "aba", true},
      {"(?i:(a))\\1", "aA", false},
      // Conditionals.
      {"^(a)?(?(1)b|c)$", "ab", true},
      {"^(a)?(?(1)b|c)$", "c", true},
      {"^(a)?(?(1)b|c)$", "ac", false},
      {"^(?P<q>\")?x(?(q)\")$", "\"x", false},
      {"^(?(1)a|b)(c)?$", "bc", true},
      // Atomic groups and possessive repeats.
      {"(?>a+)a", "aaa", false},
      {"(?>a|ab)c", "abc", false},
      {"a++b", "aab", true},
      {"a?+a", "a", false},
      {"(?:a|ab){2}+", "aba", false},
      {"(?>(?:a|ab){2})", "aba", true},
      {"(?>a*?)b", "ab", true},
      // Repeats of nothing end.
      {"(?:a?)*+b", "aab", true},
      {"(?:(?=a)|b)*?c", "bc", true},
      {"(?=(?:|a)+)b", "b", true},
  };
  for (const auto& search : kSearches) {
    const absl::StatusOr<Groups> groups = Find(search.pattern, search.text);
    ASSERT_TRUE(groups.ok()) << groups.status();
    EXPECT_EQ(groups->has_value(), search.found) << search.pattern << " in " << search.text;
  }
}

TEST(BacktrackingTest, ForgetsTheGroupsOfAnAlternativeThatFailed) {
  // Python 3.11 raises SystemError.
  const Groups expected = {{TextRange{0, 2}, TextRange{0, 1}}};
  EXPECT_THAT(Find("(?:(a)|b|)++", "ab"), IsOkAndHolds(expected));
}

TEST(BacktrackingTest, MatchesNothingInWhatIsNotUtf8) {
  EXPECT_THAT(Find("(?=)", "\xFF"), IsOkAndHolds(Groups()));
}

TEST(BacktrackingTest, NamesThePatternAndTheTextOfASearchThatTakesTooManySteps) {
  for (const char* pattern : {"(a+)+(?!a)b", "(?=(?:a*)*b)", "(a|a)*(?<=b)", "(?:a?){20}a{20}+b"}) {
    const absl::Status status = Find(pattern, std::string(300, 'a')).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded)) << pattern;
    EXPECT_THAT(std::string(status.message()), HasSubstr(pattern));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + std::string(120, 'a') + "'..."));
    EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1000000 steps"));
  }
  EXPECT_THAT(Find("(?=(?:(?:(?:){1000}){1000}){1000})", "").status(),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(BacktrackingTest, AdvisesToAnchorOnlyAPatternThatIsNotAnchored) {
  for (const auto& [pattern, is_anchored] :
       {std::pair{"(a+)+(?!a)b", false}, {"^(a+)+(?!a)b", true}, {R"(\A(a+)+(?!a)b)", true}}) {
    const std::string message(Find(pattern, std::string(40, 'a')).status().message());
    EXPECT_EQ(message.find("begin the pattern with ^, or make repeats") == std::string::npos,
              is_anchored)
        << message;
    EXPECT_THAT(message, HasSubstr("make repeats within repeats possessive"));
  }
}

TEST(BacktrackingTest, ManySearchesTogetherKeepToTheirBudget) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BacktrackingProgram program,
                                 BacktrackingProgram::Create("(a+)+(?!a)b"));
  SearchBudget budget(100'000);
  const std::string quick(3, 'a');
  const std::string slow(10, 'a');  // some ten thousand steps
  for (int i = 0; i < 1'000; ++i) {
    EXPECT_THAT(program.Find(quick, &budget), IsOkAndHolds(Groups()));
  }
  EXPECT_EQ(budget.StepsOfNext(), 101'000) << "quick searches do not count";
  int searches = 0;
  absl::Status status;
  while (status.ok() && searches < 1'000) {
    status = program.Find(slow, &budget).status();
    ++searches;
  }
  EXPECT_GT(searches, 2);
  EXPECT_LT(searches, 101);
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("pattern '(a+)+(?!a)b': the search in 'aaaaaaaaaa' and those before it "
                        "take more than 100000 steps"));
  EXPECT_THAT(program.Find(slow), IsOkAndHolds(Groups()));
  EXPECT_THAT(program.Find(quick, &budget), IsOkAndHolds(Groups()));
}

TEST(BacktrackingTest, CountsEachCharacterBeyondAsciiThatItLooksUp) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BacktrackingProgram program,
                                 BacktrackingProgram::Create("[^x]*y(?!z)"));
  const auto steps = [&program](const std::string& character) {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text += character;
    }
    SearchBudget budget;
    EXPECT_THAT(program.Find(text, &budget), IsOkAndHolds(Groups()));
    return SearchBudget::kMaxSteps + 2 * SearchBudget::kFreeSteps - budget.StepsOfNext();
  };
  EXPECT_LT(steps("a"), 20'000);
  EXPECT_GT(steps("\u00e9"), 90'000) << "each character twice from each start";
}

TEST(PlaceMatcherTest, KeepsEqualSetsOnce) {
  CharacterSet a;
  a.ranges = {{'a', 'a'}};
  CharacterSet not_a = a;
  not_a.negated = true;
  PlaceMatcher matcher;
  EXPECT_EQ(matcher.Add(a), 0);
  EXPECT_EQ(matcher.Add(not_a), 1);
  EXPECT_EQ(matcher.Add(a), 0);
  EXPECT_EQ(matcher.Add(not_a), 1);
  CharacterSet b;
  b.ranges = {{'b', 'b'}};
  EXPECT_EQ(matcher.Add(b), 2);
}

TEST(BacktrackingTest, LooksUpCharactersInManyRanges) {
  std::string set = "[";
  for (int i = 0; i < 300; ++i) {  // U+4E00-U+4E01, U+4E04-U+4E05, ...
    AppendUtf8(static_cast<char32_t>(0x4E00 + 4 * i), set);
    set += '-';
    AppendUtf8(static_cast<char32_t>(0x4E01 + 4 * i), set);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BacktrackingProgram program,
                                 BacktrackingProgram::Create("^(?=" + set + "])"));
  for (int i = -4; i < 1'204; ++i) {
    std::string text;
    AppendUtf8(static_cast<char32_t>(0x4E00 + i), text);
    const bool is_inside = i >= 0 && i < 1'200 && i % 4 < 2;
    EXPECT_THAT(program.Find(text), IsOkAndHolds(is_inside ? Groups({TextRange{0, 0}}) : Groups()))
        << i;
  }
}

TEST(BacktrackingTest, TakesFewStepsOnANameOfTheLargestSize) {
  const std::string name(1024, 'x');
  for (const char* pattern : {"(?!.*bias).*kernel", "(?=.*kernel)model", "^(.)\\1+$(?<=y)"}) {
    EXPECT_THAT(Find(pattern, name), IsOkAndHolds(Groups())) << pattern;
  }
}

TEST(BacktrackingTest, NeitherLongTextsNorDeepPatternsTakeStack) {
  const std::string text(100'000, 'a');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Groups groups, Find("^(?:(a)|b)*(?=c|$)", text));
  ASSERT_TRUE(groups.has_value());
  EXPECT_EQ(groups->front(), (TextRange{0, 100'000}));
  std::string deep;
  for (int64_t i = 0; i < Pattern::kMaxDepth; ++i) {
    deep += "(?=";
  }
  deep += "a" + std::string(static_cast<size_t>(Pattern::kMaxDepth), ')');
  EXPECT_THAT(Find(deep, "a"), IsOkAndHolds(Groups({TextRange{0, 0}})));
}

TEST(BacktrackingTest, ManyThreadsShareAProgram) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BacktrackingProgram program,
                                 BacktrackingProgram::Create("(?i)^(\\w+)/(?!\u00e9x)\\1\\b"));
  std::vector<std::thread> threads;
  std::vector<int> found(4);
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&program, &count = found[i]] {
      for (int k = 0; k < 500; ++k) {
        count += program.Find("\u00e9a/\u00c9A")->has_value() ? 1 : 0;
        count += program.Find("\u00e9x/\u00c9X")->has_value() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(found, testing::Each(500));
}

TEST(LowerCaseTest, IsPythons) {
  EXPECT_EQ(LowerCase('Q', false), U'q');
  EXPECT_EQ(LowerCase('[', false), U'[');
  EXPECT_EQ(LowerCase(U'\u00C9', false), U'\u00E9');
  EXPECT_EQ(LowerCase(U'\u00C9', true), U'\u00C9');
  EXPECT_EQ(LowerCase(U'\u00D7', false), U'\u00D7');
  EXPECT_EQ(LowerCase(U'\u0130', false), U'i');
  EXPECT_EQ(LowerCase(U'\u0100', false), U'\u0101');
  EXPECT_EQ(LowerCase(U'\u0101', false), U'\u0101');
  EXPECT_EQ(LowerCase(U'\u212A', false), U'k');
  EXPECT_EQ(LowerCase(U'\u1E9E', false), U'\u00DF');
  EXPECT_EQ(LowerCase(U'\U0001E921', false), U'\U0001E943');
  EXPECT_EQ(LowerCase(U'\U0010FFFF', false), U'\U0010FFFF');
}

}  // namespace
}  // namespace shardmesh
