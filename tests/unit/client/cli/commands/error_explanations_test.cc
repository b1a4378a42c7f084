// Explanations of reasons: rows of docs/errors.md, links as plain text, suggestions.
#include "client/cli/commands/error_explanations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using test::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string MessageFor(std::string_view reason) {
  return std::string(ExplainError(reason).status().message());
}

TEST(ErrorExplanationsTest, EachReasonHasAnExplanationInPlainText) {
  for (int i = 1; i <= static_cast<int>(Reason::kLast); ++i) {
    const std::string name(ReasonName(static_cast<Reason>(i)));
    const absl::StatusOr<ErrorExplanation> found = ExplainError(name);
    ASSERT_THAT(found, IsOk()) << name;
    EXPECT_EQ(found->reason, name);
    std::vector<std::string> facts;
    for (const FactKey key : FactKeysOf(static_cast<Reason>(i))) facts.emplace_back(key.name());
    EXPECT_EQ(found->facts, facts) << name;
    for (const std::string& text : {found->code, found->meaning, found->action}) {
      EXPECT_THAT(text, AllOf(Not(IsEmpty()), Not(HasSubstr("|")), Not(HasSubstr("]("))));
    }
  }
  EXPECT_THAT(ParseErrorsPage(ErrorsPage()), SizeIs(static_cast<size_t>(Reason::kLast)));
}

TEST(ErrorExplanationsTest, ARowIsReadAndItsLinksBecomePaths) {
  const std::vector<ErrorExplanation> rows = ParseErrorsPage(
      "# Errors\n\n| reason | code | meaning | what the caller does | facts "
      "|\n|---|---|---|---|---|\n"
      "| `APPLE` | NOT_FOUND, or a correction | There is no `apple`. | See [one](a.md), "
      "[two](b/c.md). | `tree`, `branch` |\n");
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].reason, "APPLE");
  EXPECT_EQ(rows[0].code, "NOT_FOUND, or a correction");
  EXPECT_EQ(rows[0].meaning, "There is no `apple`.");
  EXPECT_EQ(rows[0].action, "See one (docs/a.md), two (docs/b/c.md).");
  EXPECT_THAT(rows[0].facts, ElementsAre("tree", "branch"));
}

TEST(ErrorExplanationsTest, AMistypedReasonGetsTheNearestOne) {
  const absl::Status status = ExplainError("NOT_DIVISIBEL").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(ReasonOf(status), Reason::kNotFound);
  EXPECT_THAT(MessageFor("NOT_DIVISIBEL"), HasSubstr("did you mean \"NOT_DIVISIBLE\"?"));
  EXPECT_THAT(MessageFor("not_divisible"), HasSubstr("did you mean \"NOT_DIVISIBLE\"?"));
  EXPECT_EQ(MessageFor("QQQQ"),
            "no reason of an error is named \"QQQQ\"; `shardmesh explain-error` without a reason "
            "lists all");
  EXPECT_THAT(MessageFor(""), HasSubstr("\"\""));
}

TEST(ErrorExplanationsTest, AStatusCodeThatIsNoReasonIsCalledOne) {
  EXPECT_THAT(MessageFor("UNAVAILABLE"), HasSubstr("is a status code"));
  EXPECT_THAT(ExplainError("NOT_FOUND"), IsOk());  // both a code and a reason
}

}  // namespace
}  // namespace shardmesh::client
