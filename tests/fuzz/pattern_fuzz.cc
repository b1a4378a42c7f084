// Fuzzes rules' patterns, on a name that follows after a zero byte: RE2 and our automaton, which
// share nothing but the syntax tree, agree on whether the name matches, and so do rules tried one
// by one and all at once.
#include <algorithm>
#include <string>
#include <string_view>

#include "sharding/pattern/automaton.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/syntax.h"
#include "sharding/rules/rule_set.h"
#include "status/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(0, end);
  const std::string_view name = input.substr(std::min(end + 1, input.size()));
  const absl::StatusOr<Pattern> pattern = Pattern::Create(text);
  if (!pattern.ok()) {
    Require(pattern.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const bool matches = pattern->Search(name);
  if (!DecodeUtf8(name).has_value()) {
    return;
  }
  const absl::StatusOr<PatternNode> tree = ParsePattern(text);
  Require(tree.ok());
  const absl::StatusOr<PatternAutomaton> automaton = PatternAutomaton::Create(*tree);
  Require(!automaton.ok() || automaton->Search(name) == matches);

  const auto rules = RuleSet::Create({{std::string(text), {}}, {"", {}}});
  Require(rules.ok());
  constexpr int64_t kShape[] = {2, 2};
  const NamedShape tensor = {name, kShape};
  for (const MatchStrategy strategy : {MatchStrategy::kRuleByRule, MatchStrategy::kAtOnce}) {
    const auto found = rules->MatchTree({&tensor, 1}, {.strategy = strategy});
    Require(found.ok() && found->front().rule == (matches ? 0 : 1));
  }
}

}  // namespace shardmesh::fuzz
