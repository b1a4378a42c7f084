// Parses rules from one line of text.
#include "sharding/rules/pattern_rules.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "sharding/axis_value.h"
#include "sharding/pattern/syntax.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr absl::string_view kArrow = "->";

absl::StatusOr<PartitionSpec> ParseSpec(absl::string_view text) {
  std::vector<SpecEntry> entries;
  for (const absl::string_view axis : absl::StrSplit(text, '.')) {
    if (static_cast<int64_t>(entries.size()) == kMaxRank) {
      return InvalidArgument(Reason::kLimitExceeded,
                             StrCat("the spec ", PythonRepr(ToStd(text.substr(0, 80))),
                                    " has more than ", kMaxRank, " dimensions, parted by dots"),
                             {{fact::kLimit, kMaxRank}});
    }
    entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(std::string(axis)));
  }
  return PartitionSpec(std::move(entries));
}

}  // namespace

absl::StatusOr<std::vector<Rule>> ParsePatternRules(std::string_view text) {
  if (text.size() > kMaxPatternRulesBytes) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("the rules' text has ", text.size(), " bytes; the limit is ",
                                  kMaxPatternRulesBytes, ", store a rule set instead"),
                           {{fact::kHave, text.size()}, {fact::kLimit, kMaxPatternRulesBytes}});
  }
  std::vector<Rule> rules;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(piece, kArrow);
    if (sides.size() == 1) {
      continue;
    }
    if (sides.size() > 2) {
      return InvalidArgument(
          Reason::kBadPattern,
          StrCat("the rule ", QuotePattern(ToStd(piece.substr(0, 80))), " has ", sides.size() - 1,
                 " arrows; write patterns->spec, and a comma between rules"),
          {{fact::kValue, ToStd(piece)}});
    }
    SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, ParseSpec(sides[1]));
    for (const absl::string_view pattern : absl::StrSplit(sides[0], '|')) {
      if (static_cast<int64_t>(rules.size()) == RuleSet::kMaxRules) {
        return InvalidArgument(Reason::kLimitExceeded,
                               StrCat("the text has more than ", RuleSet::kMaxRules,
                                      " rules, a pattern each; join them to fewer"),
                               {{fact::kLimit, RuleSet::kMaxRules}});
      }
      rules.push_back({std::string(pattern), spec});
    }
  }
  return rules;
}

absl::StatusOr<PatternRules> PatternRules::Create(std::string_view text, PartitionSpec default_spec,
                                                  const Mesh& mesh, Compatibility compatibility,
                                                  const std::function<bool()>& is_cancelled) {
  const bool exact = compatibility == Compatibility::kExact;
  if (exact && mesh.empty()) {
    return WithPythonType(
        WithReason(absl::FailedPreconditionError(
                       "there is no mesh; name one in the request, though the answer does not "
                       "depend on it"),
                   Reason::kNoMesh),
        "AssertionError");
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Rule> rules, ParsePatternRules(text));
  RuleSetOptions options;
  options.strict = false;
  options.defer_pattern_errors = exact;
  options.is_cancelled = is_cancelled;
  SHARDMESH_ASSIGN_OR_RETURN(RuleSet rule_set, RuleSet::Create(std::move(rules), options));
  return PatternRules(std::move(rule_set), std::move(default_spec));
}

absl::StatusOr<std::optional<int64_t>> PatternRules::RuleOf(
    std::string_view name, const std::function<bool()>& is_cancelled) const {
  MatchTreeOptions options;
  options.is_cancelled = is_cancelled;
  options.strategy = MatchStrategy::kRuleByRule;
  options.keep_unmatched = true;
  const NamedShape tensor = {name, std::nullopt};
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RuleMatch> matches,
                             rule_set_.MatchTree({&tensor, 1}, options));
  return matches.front().rule;
}

absl::StatusOr<PartitionSpec> PatternRules::SpecOf(std::string_view name) const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> rule, RuleOf(name));
  return rule.has_value() ? rules()[static_cast<size_t>(*rule)].spec : default_spec_;
}

}  // namespace shardmesh
