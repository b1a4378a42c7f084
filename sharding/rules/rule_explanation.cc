// Builds the steps of an explanation from a rule set's own answers.
#include "sharding/rules/rule_explanation.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "sharding/spec.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int64_t kNearMisses = 3;

// Returns how many bytes of a pattern's plain words occur in a name. Plain words are runs of at
// least three letters, digits or underscores.
size_t SharedWords(std::string_view pattern, std::string_view name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  size_t shared = 0;
  for (size_t i = 0; i < pattern.size();) {
    if (!is_word(pattern[i])) {
      i += pattern[i] == '\\' ? 2 : 1;
      continue;
    }
    size_t end = i;
    while (end < pattern.size() && is_word(pattern[end])) {
      ++end;
    }
    if (end - i >= 3 && name.find(pattern.substr(i, end - i)) != std::string_view::npos) {
      shared += end - i;
    }
    i = end;
  }
  return shared;
}

}  // namespace

std::vector<int64_t> NearestRules(absl::Span<const Rule> rules, std::string_view name,
                                  int64_t limit) {
  std::vector<std::pair<size_t, int64_t>> nearest;  // shared bytes, index
  for (size_t i = 0; i < rules.size(); ++i) {
    if (const size_t shared = SharedWords(rules[i].pattern, name); shared > 0) {
      nearest.emplace_back(shared, static_cast<int64_t>(i));
    }
  }
  std::stable_sort(nearest.begin(), nearest.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int64_t> indices;
  for (const auto& [shared, index] : nearest) {
    if (static_cast<int64_t>(indices.size()) == limit) {
      break;
    }
    indices.push_back(index);
  }
  return indices;
}

absl::StatusOr<RuleExplanation> ExplainRules(const RuleSet& rule_set, std::string_view name,
                                             OptionalShape shape,
                                             const std::function<bool()>& is_cancelled) {
  MatchTreeOptions options;
  options.is_cancelled = is_cancelled;
  options.strategy = MatchStrategy::kRuleByRule;
  options.keep_unmatched = true;
  const NamedShape tensor = {name, shape};
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<RuleMatch> matches,
                             rule_set.MatchTree({&tensor, 1}, options));
  RuleExplanation explanation;
  explanation.match = std::move(matches.front());
  const RuleMatch& match = explanation.match;
  const absl::Span<const Rule> rules = rule_set.rules();
  const std::string subject(name);
  if (match.rule.has_value() || match.unmatched) {
    explanation.near_misses = NearestRules(
        match.unmatched ? rules : rules.first(static_cast<size_t>(*match.rule)), name, kNearMisses);
  }
  for (const int64_t near : explanation.near_misses) {
    explanation.steps.push_back(
        {ExplanationStep::Kind::kNearMiss, -1, subject, rules[static_cast<size_t>(near)].pattern});
  }
  if (!match.rule.has_value()) {
    return explanation;
  }
  const Rule& rule = rules[static_cast<size_t>(*match.rule)];
  explanation.steps.push_back({ExplanationStep::Kind::kRule, -1, subject, rule.pattern});
  if (!match.corrections.empty()) {
    // One step is enough: both kinds of correction, a cut and a replication, concern the whole
    // spec.
    explanation.steps.push_back(
        {ExplanationStep::Kind::kCorrection, -1, rule.spec.ToString(), match.spec.ToString()});
  }
  return explanation;
}

}  // namespace shardmesh
