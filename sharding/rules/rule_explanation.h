// Explains the spec of a tensor under a rule set: the rules that nearly matched, the rule that did,
// and the corrections of its spec.
#ifndef SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_
#define SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/explanation.h"
#include "sharding/rules/rule_set.h"

namespace shardmesh {

struct RuleExplanation {
  // The answer of RuleSet::Match; `unmatched` where Match returns that error.
  RuleMatch match;
  // The nearest earlier rules, at most three, best first: see NearestRules. If no rule matches, all
  // rules count as earlier.
  std::vector<int64_t> near_misses;
  // For the whole spec (dim -1): near misses, then the rule. If the spec was cut to the rank or the
  // tensor is too small, then a correction from the rule's spec to the effective one.
  std::vector<ExplanationStep> steps;
};

// Explains RuleSet::Match. A tensor without a matching rule is an answer here. A tensor that is
// replicated unconditionally is an answer without steps.
// Errors: INVALID_SHAPE; a deferred pattern error.
absl::StatusOr<RuleExplanation> ExplainRules(const RuleSet& rule_set, std::string_view name,
                                             OptionalShape shape);

// Returns at most `limit` indices of the rules whose patterns are nearest to the name, best first.
// The measure is the bytes of the pattern's plain words (runs of at least three letters, digits or
// underscores) that occur in the name. Rules without such words are left out.
std::vector<int64_t> NearestRules(absl::Span<const Rule> rules, std::string_view name,
                                  int64_t limit);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_
