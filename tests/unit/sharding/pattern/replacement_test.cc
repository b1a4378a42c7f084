// Replacements as Python's re.sub(pattern, replacement, text, count=1) makes them.
#include "sharding/pattern/replacement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

TEST(PatternReplacementTest, ReplacesAsPythonDoes) {
  // The results are those of Python 3.11.
  const struct {
    const char* pattern;
    const char* replacement;
    const char* text;
    std::optional<std::string> result;
  } cases[] = {
      {R"(\.weight$)", ".kernel", "a.weight.weight", "a.weight.kernel"},
      {"weight", "kernel", "a.weight.weight", "a.kernel.weight"},
      {"x", "y", "abc", std::nullopt},
      {R"(layer\.(\d+)\.(.*)\.weight$)", R"(h_\1/\2/kernel)", "m.layer.12.q.k.weight",
       "m.h_12/q.k/kernel"},
      {R"((?P<a>x)(?P<b>y))", R"(\g<b>\g<a>\g<0>\g<1>\2)", "-xy-", "-yxxyxy-"},
      {R"((a)|(b))", R"([\1\2])", "b", "[b]"},
      {R"((a)?b)", R"([\1])", "xb", "x[]"},
      {R"((a|ab)(c|bcd)(d*))", R"(\1,\2,\3)", "abcd", "a,bcd,"},
      {R"((.*?)\.(.*))", R"(\2@\1)", "a.b.c", "b.c@a"},
      {R"((.*)\.(.*))", R"(\2@\1)", "a.b.c", "c@a.b"},
      {R"((\w)+)", R"(<\1>)", "abc", "<c>"},
      {R"((?:(a)|b)*)", R"(<\1>)", "ab", "<a>"},
      {R"((a)(b)(c)(d)(e)(f)(g)(h)(i)(j))", R"(\10-\1)", "abcdefghij", "j-a"},
      {"^", "p.", "w", "p.w"},
      {"", "x", "", "x"},
      {"(?i)WEIGHT", "k", "a.Weight", "a.k"},
      {R"(\.)", R"(\\)", "a.b", R"(a\b)"},
      {"a", R"(\g<0>\g<0>)", "xax", "xaax"},
      {R"((\d{2,3}?))", R"(<\1>)", "1234", "<12>34"},
      {"\xC3\xA9(.)", R"(\1)", "caf\xC3\xA9s", "cafs"},
      // RE2 gives other groups.
      {R"((a|b*)*)", R"(<\g<1>>)", "abb", "<>"},
      {R"((\w*)*\.weight)", R"(<\g<1>>)", "h.weight", "<>"},
      {R"((a*)*b)", R"(<\g<1>>)", "aab", "<>"},
      {R"((\d*)*$)", R"(<\g<1>>)", "12", "<>"},
      {R"((?:x(a*)|y?)+)", R"(<\1>)", "xaay", "<aa>"},
      // RE2 cannot match these patterns, or not in these texts.
      {R"((\w)\1)", R"(<\1>)", "xlayer.ll", "xlayer.<l>"},
      {R"((?<=\.)w(?P<rest>.*?)(?=\.)|z)", R"([\g<rest>])", "w.wq.b", "w.[q].b"},
      {R"((?:(a)|b)*c(?!a))", R"(<\1>)", "abc", "<a>"},
      {R"((a)?(?(1)b|c))", R"(<\1>)", "xc", "x<>"},
      {"a$", "x", "a\n", "x\n"},
      {"a$", "x", "a", "x"},
      {"\\ba", "x",
       "\xC3\xA9"
       "a",
       std::nullopt},
      {"\\B", "x", "", std::nullopt},
      {"\\b(.)", R"(\1\1)", "\xC3\xA9.a", "\xC3\xA9\xC3\xA9.a"},
  };
  for (const auto& c : cases) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternReplacement replacement,
                                   PatternReplacement::Create(c.pattern, c.replacement));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::optional<std::string> result,
                                   replacement.Apply(c.text));
    EXPECT_EQ(result, c.result) << c.pattern;
    EXPECT_EQ(replacement.pattern(), c.pattern);
  }
}

TEST(PatternReplacementTest, RefusesWhatPythonRefuses) {
  for (const auto& [pattern, replacement, message] :
       {std::tuple{"(a)", R"(\2)", "the pattern has no group '2', referred to at position 0"},
        {"(a)", R"(x\g<name>)", "no group 'name', referred to at position 1"},
        {"(a)", R"(\g<>)", "no group ''"},
        {"(a)", R"(\g<1)", "an escape other than"},
        {"(a)", R"(\n)", "an escape other than"},
        {"(a)", R"(\0)", "an escape other than"},
        {"(a)", "x\\", "an escape other than"},
        {"(a)", R"(\g<99999999999999999999>)", "no group"},
        {"(a", "x", "missing )"}}) {
    const auto created = PatternReplacement::Create(pattern, replacement);
    EXPECT_THAT(created, StatusIs(kInvalid, Reason::kBadPattern)) << replacement;
    EXPECT_THAT(created.status().message(), HasSubstr(message));
  }
  EXPECT_THAT(PatternReplacement::Create(R"(\N{SPACE})", "x"),
              StatusIs(kInvalid, Reason::kUnsupportedPattern));
}

TEST(PatternReplacementTest, EndsASearchThatTakesTooManySteps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PatternReplacement replacement,
                                 PatternReplacement::Create("(a+)+(?!a)b", "x"));
  EXPECT_THAT(replacement.Apply(std::string(40, 'a')), StatusIs(kInvalid, Reason::kLimitExceeded));
}

}  // namespace
}  // namespace shardmesh
