// Fuzzes rules' patterns, on a name that follows after a zero byte: RE2, our automaton and the
// search with backtracking, which share nothing but the parser, agree on whether the name matches,
// and so do rules tried one by one and all at once.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "sharding/pattern/automaton.h"
#include "sharding/pattern/backtracking.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/syntax.h"
#include "sharding/rules/rule_set.h"
#include "status/reason.h"
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
  Require(pattern->program_size() <= Pattern::CompileCostBound(text));
  const absl::StatusOr<bool> searched = pattern->Search(name);
  const absl::StatusOr<BacktrackingProgram> program = BacktrackingProgram::Create(text);
  Require(program.ok());
  const auto match = program->Find(name);
  if (!searched.ok()) {
    Require(pattern->backtracks() && !match.ok());
    Require(ReasonOf(searched.status()) == Reason::kLimitExceeded);
    return;
  }
  const bool matches = *searched;
  if (match.ok() && match->has_value()) {
    for (const std::optional<TextRange>& group : **match) {
      Require(!group.has_value() || (0 <= group->begin && group->begin <= group->end &&
                                     group->end <= static_cast<int64_t>(name.size())));
    }
  }
  if (!DecodeUtf8(name).has_value()) {
    return;
  }
  Require(match.ok() ? match->has_value() == matches
                     : ReasonOf(match.status()) == Reason::kLimitExceeded);
  if (!pattern->backtracks()) {
    const absl::StatusOr<PatternNode> tree = ParsePattern(text);
    Require(tree.ok());
    const absl::StatusOr<PatternAutomaton> automaton = PatternAutomaton::Create(*tree);
    Require(!automaton.ok() || automaton->Search(name) == matches);
  }

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
