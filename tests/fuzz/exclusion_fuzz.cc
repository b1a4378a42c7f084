// Fuzzes exclusions: of an input BODY, zero byte, REST, zero byte, NAME the pattern `^(?!BODY)REST`
// finds, once rewritten, the names that REST matches from the start and BODY does not. The whole
// input is read as rules in one line of text, too.
#include <string>
#include <string_view>

#include "sharding/pattern/pattern.h"
#include "sharding/pattern/syntax.h"
#include "sharding/rules/exclusion.h"
#include "sharding/rules/pattern_rules.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "status/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const absl::StatusOr<std::vector<Rule>> read = ParsePatternRules(input);
  Require(read.ok() || read.status().code() == absl::StatusCode::kInvalidArgument);

  const size_t first = input.find('\0');
  const size_t second = first == std::string_view::npos ? first : input.find('\0', first + 1);
  if (second == std::string_view::npos) {
    return;
  }
  const std::string_view body = input.substr(0, first);
  const std::string_view rest = input.substr(first + 1, second - first - 1);
  const std::string_view name = input.substr(second + 1);
  const absl::StatusOr<RewrittenRules> rewritten =
      RewriteExclusions({{{StrCat("^(?!", body, ")", rest), {}}}});
  if (!rewritten.ok()) {
    Require(rewritten.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  Require(rewritten->rules.size() <= 1);
  // Each must stand alone: `a)(b` ends one group and begins another.
  if (!ParsePattern(body).ok() || !ParsePattern(rest).ok()) {
    return;
  }
  const absl::StatusOr<Pattern> excluded = Pattern::Create(StrCat("^(?:", body, ")"));
  const absl::StatusOr<Pattern> matched = Pattern::Create(StrCat("^(?:", rest, ")"));
  if (!DecodeUtf8(name).has_value() || !excluded.ok() || !matched.ok()) {
    return;
  }
  const bool found = !rewritten->rules.empty() &&
                     Pattern::Create(rewritten->rules.front().pattern)->Search(name).value();
  Require(found == (matched->Search(name).value() && !excluded->Search(name).value()));
  // The pattern as it was given has the same meaning.
  const absl::StatusOr<Pattern> original = Pattern::Create(StrCat("^(?!", body, ")", rest));
  const absl::StatusOr<bool> searched = original.ok() ? original->Search(name) : original.status();
  Require(searched.ok() ? *searched == found
                        : ReasonOf(searched.status()) == Reason::kLimitExceeded);
}

}  // namespace shardmesh::fuzz
