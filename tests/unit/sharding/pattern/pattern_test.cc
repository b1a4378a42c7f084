// Tests of sharding/pattern/pattern.h: the goldens, the corners of Python's dialect, and the
// bounds.
#include "sharding/pattern/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_set.h"
#include "sharding/pattern/syntax.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::Golden;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::LoadGoldens;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

// --- Goldens ---

// They have \N{...}.
const absl::btree_set<std::string> kUnsupportedGoldens = {
    "regex_search/dialect/0357",
    "regex_search/dialect/0359",
};

// What the other lines answer is the conformance runner's to compare.
TEST(PatternGoldenTest, RefusesTheseAndNoOthersAsUnsupported) {
  absl::btree_set<std::string> unsupported;
  for (const Golden& golden : LoadGoldens("regex_search.jsonl")) {
    const auto text = golden.input["pattern"].get<std::string>();
    if (ReasonOf(Pattern::Create(text).status()) == Reason::kUnsupportedPattern) {
      unsupported.insert(golden.id);
    }
  }
  EXPECT_EQ(unsupported, kUnsupportedGoldens);
}

// --- The dialect ---

struct Search {
  std::string pattern;
  std::string text;
  bool found;
};

// Every line is the answer of Python 3.11.
const Search kSearches[] = {
    // `$` and its kin around newlines.
    {"b$", "b\n", true},
    {"b$", "b\nc", false},
    {"b$\\n", "b\n", true},
    {"$^", "\n", true},
    {"$\\b", "x\n", true},
    {"b\\Z", "b\n", false},
    {"(?m)b$", "b\nc", true},
    {"(?m)\\n^$", "a\n", true},
    {"(?m:^)c(?-m:$)", "b\nc\n", true},
    {"b.c", "b\nc", false},
    {"(?s)b.c", "b\nc", true},
    {"[^a]", "\n", true},
    // Word boundaries are Unicode's; in an empty text \B fails.
    {"\\bt", "\u00e9t", false},
    {"(?a)\\bt", "\u00e9t", true},
    {"\\Bt", "\u00e9t", true},
    {"\\B", "", false},
    {"\\b", "", false},
    {"(?a)\\B", "", false},
    {"(?ai)\\B", "k\u00b2s", false},
    // Classes are Unicode's.
    {"^\\w+$", "\u00e9t\u00e9_\u0663\u00b2", true},
    {"(?a)^\\w+$", "\u00e9", false},
    {"^\\d$", "\u0663", true},
    {"^\\d$", "\u00b2", false},
    {"^\\s+$", " \t\x1c\x1f\u0085\u00a0\u2028\u3000", true},
    {"\\S", "\x1c", false},
    {"(?a)\\s", "\x1c", false},
    {"^[^\\W\\d_]+$", "\u00e9a", true},
    {"[^\\W\\d_]", "\u0663_1\u2028", false},
    {"[^\\W\\d]", "_", true},
    {"[^\\W_]", "1", true},
    {"[^\\Wa-f]", "abc\u2028", false},
    {"[^\\Wa-f]", "abg", true},
    {"[^\\D5]", "5x", false},
    {"[\\W\\d]", "ab\u0663", true},
    {"[\\Wx]", "ab-", true},
    {"[\\W\\w]", "\n", true},
    {"[^\\W\\w]", "a-", false},
    // Case.
    {"(?i)KERNEL", "kernel", true},
    {"(?i)k", "\u212a", true},
    {"(?ai)k", "\u212a", false},
    {"(?ai)s|\\n", "\u017f", false},
    {"[Ss]|x", "\u017f", false},
    {"(?i)\u0131", "\u0130", true},
    {"(?i)[^ -~]", "\u0130", false},
    {"(?i)\u0390", "\u1fd3", true},
    {"(?i)\ufb05", "\ufb06", true},
    {"(?i)[^\\wk]", "\u0345", true},
    {"(?i:a)B", "AB", true},
    {"(?i:a)B", "Ab", false},
    {"(?i)a(?-i:B)", "Ab", false},
    // Repeats.
    {"^a{,2}$", "aa", true},
    {"^a{,2}$", "aaa", false},
    {"^a{,}$", "aaa", true},
    {"a{x}", "a{x}", true},
    {"a{}", "a{}", true},
    {"a{1", "a{1", true},
    {"{", "{", true},
    {"^(a|)*b$", "aab", true},
    {"^(?:\\b|a)*c$", "aac", true},
    {"^(?:a{0,3}){2}$", "aaaaaa", true},
    {"^a{2,3}?$", "aaa", true},
    {"^(?:x{0})$", "", true},
    {"a(?#c)*", "aaa", true},
    // Escapes.
    {"\\101\\x41\\u0041\\U00000041", "AAAA", true},
    {"^\\0$", std::string(1, '\0'), true},
    {"^\\07$", "\a", true},
    {"[\\b\\7]", "\b", true},
    {"\\a\\f\\v\\r", "\a\f\v\r", true},
    {"\\ud800", "a", false},
    {"\\\u00e9\\/\\-", "\u00e9/-", true},
    // Sets.
    {"[]x]", "]", true},
    {"[^]x]", "]x", false},
    {"[a-]", "-", true},
    {"[\\d-]", "-", true},
    {"[[:alpha:]]", "a]", true},
    {"[[:alpha:]]", "b", false},
    {"[a&&b]", "&", true},
    {"[.*$]", "$", true},
    // Groups and verbose mode.
    {"(?P<layer>\\d+)/(?P<\u00e9>k)", "12/k", true},
    {"(?x) k e r # comment\n n e l", "kernel", true},
    {"(?x)a\\ b[ ]c", "a b c", true},
    {"(?x:a b)c d", "abc d", true},
    {"(?x)a(?-x: b)", "a b", true},
    {"(?x)a #b\\\nc\nd", "ad", true},
    {"(?i)(?m)^B", "a\nb", true},
    {"(?i)a|B", "b", true},
    {"a|(?:b|c)d", "cd", true},
    {"", "", true},
    {"()|x", "", true},
};

TEST(PatternTest, SearchesAsPythonDoes) {
  for (const Search& search : kSearches) {
    const absl::StatusOr<Pattern> pattern = Pattern::Create(search.pattern);
    ASSERT_TRUE(pattern.ok()) << pattern.status();
    EXPECT_THAT(pattern->Search(search.text), IsOkAndHolds(search.found))
        << search.pattern << " in " << search.text << ", RE2: " << pattern->re2_text().value_or("");
  }
}

TEST(PatternTest, MatchesTheFlagOfALeadingGroupInSearchesToo) {
  // Python's match agrees, its search does not.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create("(?a:\\W)"));
  EXPECT_THAT(pattern.Search("\u00e9"), IsOkAndHolds(true));
}

TEST(PatternTest, PrintsForRe2) {
  const std::pair<std::string, std::string> kPrints[] = {
      {"layers/(\\d+)/attn$", "layers/[\\p{Nd}]+/attn\\z"},
      {".*(input_layernorm|norm)/kernel", ".*(?:input_layernorm|norm)/kernel"},
      {"(?P<p>[qkv])_proj\\Z", "[kqv]_proj\\z"},
      {"^a{,2}", "\\Aa{0,2}"},
      {"(?i)K1", "(?i:[Kk])1"},
      {"a|b*?", "a|b*"},
      {"[^\\W\\d_]", "[\\p{L}\\p{Nl}\\p{No}]"},
  };
  for (const auto& [text, printed] : kPrints) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create(text));
    EXPECT_EQ(pattern.re2_text(), printed);
    EXPECT_EQ(pattern.text(), text);
  }
}

// --- Messages ---

TEST(PatternTest, IsQuotedInMessagesAsItWasWritten) {
  EXPECT_EQ(QuotePattern(R"(layers\.\d+)"), R"('layers\.\d+')");
  EXPECT_EQ(QuotePattern(R"(\\d)"), R"('\\d')");
  EXPECT_EQ(QuotePattern("it's"), "\"it's\"");
  EXPECT_EQ(QuotePattern("a'\"\\'"), "'a'\"\\''");
  EXPECT_EQ(QuotePattern("a\n\x01é"), R"('a\n\x01é')");
  EXPECT_EQ(QuotePattern("\\"), R"('\')");
  EXPECT_EQ(QuotePattern(""), "''");
  EXPECT_THAT(std::string(Pattern::Create(R"(\d()").status().message()),
              HasSubstr(R"(bad pattern '\d(': missing )"));
}

// --- Refusals ---

struct Refusal {
  std::string pattern;
  std::string message;  // a part of it
  std::string python_type = "error";
};

TEST(PatternTest, RefusesWhatPythonRefusesWithThePosition) {
  const Refusal kRefusals[] = {
      {"a(b", "missing ) for the group opened at position 1"},
      {"\u00e9)", "closing parenthesis without an opening one at position 1"},
      {"[a", "missing ] for the set opened at position 0"},
      {"[]", "missing ] for the set opened at position 0"},
      {"[z-a]", "range z-a, which runs backwards, at position 1"},
      {"[a-\\d]", "which has a class as an end, at position 1"},
      {"a{4294967295}\\", "backslash without a character after it at position 13"},
      {"a{4294967295}b\\", "is too large at position 1", "OverflowError"},
      {"(\\", "backslash without a character after it at position 1"},
      {"a\\", "backslash without a character after it at position 1"},
      {"*a", "nothing that * could repeat at position 0"},
      {"\\b*", "nothing that * could repeat at position 2"},
      {"a**", "the repeat * follows another repeat at position 2"},
      {"a{2}{3}", "the repeat {3} follows another repeat at position 4"},
      {"a{3,2}", "the repeat {3,2} has its bounds reversed at position 1"},
      {"a{4294967295}", "the repeat {4294967295} is too large at position 1", "OverflowError"},
      {"\\q", "unknown escape \\q at position 0"},
      {"[\\8]", "unknown escape \\8 at position 1"},
      {"\\x4", "the escape \\x4, which needs 2 hexadecimal digits, at position 0"},
      {"\\U00110000", "beyond the last code point at position 0"},
      {"\\400", "octal escape \\400, which is above \\377, at position 0"},
      {"\\1", "there is no group 1, referred to at position 0"},
      {"(a\\1)", "reference to group 1, which is still open, at position 2"},
      {"(?(1)a)", "there is no group 1, referred to at position 3"},
      {"(?P=n)", "there is no group 'n', referred to at position 4"},
      {"(?P<1>a)", "group name '1' is not an identifier at position 4"},
      {"(?P<n>a)(?P<n>b)", "a second group of the name 'n' at position 12"},
      {"(?<n>a)", "unknown group (?< at position 0"},
      {"(?#a", "comment without an end at position 0"},
      {"a(?i)", "flags for the whole pattern, which must stand at its beginning, at position 1"},
      {"(?iz)", "unknown flag, or no : or ) after the flags, at position 3"},
      {"(?-)", "missing flag at position 3"},
      {"(?i-i:a)", "a flag that is both turned on and off at position 4"},
      {"(?au)", "the flags a and u together at position 0"},
      {"(?a)(?u)", "the flags a and u exclude one another at position 0", "ValueError"},
      {"(?a)(?u)(?(2)a)", "the flags a and u exclude one another at position 0", "ValueError"},
      {"(?a)(?u))", "the flags a and u exclude one another at position 0", "ValueError"},
      {"(?<=a|bc)d", "look-behind of no fixed width at position 0"},
      {"(?<=a+)d", "look-behind of no fixed width at position 0"},
      {"(?<=(?:(?:(?:a{1000}){1000}){1000}){1000})", "look-behind of too many characters"},
      {"(?<=a+)b{4294967295}", "is too large at position 8", "OverflowError"},
      {"(?=a)(", "missing ) for the group opened at position 5"},
      {"\xff", "not valid UTF-8"},
  };
  for (const Refusal& refusal : kRefusals) {
    const absl::Status status = Pattern::Create(refusal.pattern).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadPattern)) << refusal.pattern;
    EXPECT_THAT(status.ToString(), HasSubstr(refusal.message));
    EXPECT_EQ(PythonTypeOf(status), refusal.python_type) << refusal.pattern;
  }
}

TEST(PatternTest, RefusesByNameWhatIsNotSupported) {
  const Refusal kRefusals[] = {
      {"\\N{DIGIT ONE}", "named character \\N{DIGIT ONE} is not supported (write \\uXXXX)"},
      {"(?=a)\\N{DIGIT ONE}", "named character \\N{DIGIT ONE} is not supported"},
      {"(?t)a", "flag t is not supported"},
  };
  for (const Refusal& refusal : kRefusals) {
    const absl::Status status = Pattern::Create(refusal.pattern).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedPattern)) << refusal.pattern;
    EXPECT_THAT(status.ToString(), HasSubstr(refusal.message));
  }
}

TEST(PatternTest, NamesWhatNeedsBacktracking) {
  const Refusal kBacktracking[] = {
      {"q(?=a)", "look-ahead (?=...) cannot be matched in linear time at position 1"},
      {"q(?!a)", "look-ahead (?!...)"},
      {"(?<=ab)q", "look-behind (?<=...)"},
      {"(?<!ab)q", "look-behind (?<!...)"},
      {"(a)\\1", "back-reference \\1"},
      {"(?P<n>a)(?P=n)", "back-reference (?P=n)"},
      {"(a)?(?(1)b|c)", "conditional (?(...)...)"},
      {"a*+", "possessive repeat *+"},
      {"(?>a)", "atomic group (?>...)"},
  };
  for (const Refusal& backtracking : kBacktracking) {
    const absl::Status status = ParsePattern(backtracking.pattern).status();
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kUnsupportedPattern)) << backtracking.pattern;
    EXPECT_THAT(status.ToString(), HasSubstr(backtracking.message));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create(backtracking.pattern));
    EXPECT_TRUE(pattern.backtracks());
    EXPECT_EQ(pattern.re2_text(), std::nullopt);
  }
  EXPECT_FALSE(Pattern::Create("(a|b)+?$")->backtracks());
}

TEST(PatternTest, BoundsWhatAPatternMayCost) {
  const auto repeat = [](std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) {
      out += text;
    }
    return out;
  };
  const std::string kTooMuch[] = {
      std::string(Pattern::kMaxLength + 1, 'a'),
      "a{1001}",
      "(?:a{100}){100}",
      "(?:(?:(?:a{1000}){1000}){1000}){1000}$",
      "(?:(?:(?:){1000}){1000}){1000}$",
      repeat("(", 201) + repeat(")", 201),
      repeat("\\w{1000}", 100) + "$",
      "(?=a{1001})",
      repeat("(?=", 201) + repeat(")", 201),
      "()" + repeat("(?(1)", 201) + repeat(")", 201),
  };
  for (const std::string& text : kTooMuch) {
    EXPECT_THAT(Pattern::Create(text).status(), StatusIs(kInvalid, Reason::kLimitExceeded)) << text;
  }
  EXPECT_THAT(Pattern::Create(repeat("(", 200) + repeat(")", 200)), test::IsOk());
  EXPECT_THAT(Pattern::Create("a{1000}$"), test::IsOk());
}

TEST(PatternTest, TellsFromTheTextThatAPatternMayBacktrack) {
  for (const char* text :
       {"a(?=b)", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?>a+)b", "(a)?(?(1)b|c)", "(?P<x>a)(?P=x)",
        R"((.)\1)", "a*+b", "a++b", "a?+b", "a{2}+b", "(?x)a{2,} b++", "(?i)(a)\\1"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create(text));
    EXPECT_TRUE(pattern.backtracks()) << text;
    EXPECT_TRUE(Pattern::MayBacktrack(text)) << text;
  }
  for (const char* text : {"", "(", "a\\", "(?:a|b)+?c*", "(?P<x>a)", "(?i:a)", R"(\d+\.\w)",
                           "(?#a)b", R"(\07)", "a{2}b"}) {
    EXPECT_FALSE(Pattern::MayBacktrack(text)) << text;
  }
}

TEST(PatternTest, EndsASearchThatTakesTooManySteps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create("(a+)+(?!a)b"));
  EXPECT_THAT(pattern.Search("aab"), IsOkAndHolds(true));
  const absl::Status status = pattern.Search(std::string(40, 'a')).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("pattern '(a+)+(?!a)b': the search in 'aaaa"));
}

// Nothing compiles to more instructions than a glance at its text tells.
TEST(PatternTest, BoundsTheCostOfCompilingBeforehand) {
  std::vector<std::string> patterns = {"",
                                       "a",
                                       ".",
                                       R"(\w)",
                                       R"(\W$)",
                                       R"(\b\w+\b)",
                                       R"((?i)k[à-ÿ])",
                                       R"(\w{100})",
                                       "a{,30}b{3,}",
                                       R"(((\w?){10}){10})"};
  for (const Golden& golden : LoadGoldens("regex_search.jsonl")) {
    patterns.push_back(golden.input["pattern"].get<std::string>());
  }
  const std::vector<std::string> pieces = {"a",   ".",    R"(\w)", R"([^\W\d])", R"(\D)", R"(\S)",
                                           "é?",  "[^ü]", "(",     ")",          "|",     "*",
                                           "{3}", "{2,}", "{,4}",  "{2,5}",      R"(\b)", "(?i:k)",
                                           "(?=", "(?<!", "(?>",   R"(\1)",      "++",    "(?(1)"};
  std::mt19937 random(11);
  for (int i = 0; i < 3'000; ++i) {
    std::string& pattern = patterns.emplace_back();
    for (size_t count = random() % 12; count > 0; --count) {
      pattern += pieces[random() % pieces.size()];
    }
  }
  int compiled = 0;
  for (const std::string& text : patterns) {
    if (const auto pattern = Pattern::Create(text); pattern.ok()) {
      ++compiled;
      EXPECT_LE(pattern->program_size(), Pattern::CompileCostBound(text)) << text;
    }
  }
  EXPECT_GT(compiled, 500);
  EXPECT_LT(Pattern::CompileCostBound(R"(model\.layers\.\d+\.mlp\.down_proj\.weight$)"), 1'000);
}

TEST(PatternTest, CannotBeMadeToSearchForLong) {
  // Exponential for a backtracking matcher, in either engine.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Pattern pattern, Pattern::Create("^(a|a)*\\bb$"));
  EXPECT_THAT(pattern.Search(std::string(5000, 'a')), IsOkAndHolds(false));
  EXPECT_THAT(pattern.Search(std::string(5000, 'a') + "\n"), IsOkAndHolds(false));
}

}  // namespace
}  // namespace shardmesh
