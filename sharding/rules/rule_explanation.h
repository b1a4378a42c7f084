// Explains the spec of a tensor under a rule set: the rules that nearly matched, the rule that
// matched, and the corrections of the rule's spec.
#ifndef SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_
#define SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/explanation.h"
#include "sharding/rules/rule_set.h"

namespace shardmesh {

struct RuleExplanation {
  // The answer of RuleSet::Match. If Match returns UNMATCHED_TENSOR, `unmatched` is true instead.
  RuleMatch match;
  // The nearest rules before the matching rule, at most three, best first: see NearestRules. If no
  // rule matches, these are the nearest rules of the whole set.
  std::vector<int64_t> near_misses;
  // Steps for the whole spec (dim -1): near misses, then the rule. If the spec was cut to the rank,
  // or if the tensor is too small, a last step gives the correction from the rule's spec to the
  // effective spec.
  std::vector<ExplanationStep> steps;
};

// Explains RuleSet::Match. For a tensor without a matching rule, returns an explanation and no
// error. For a tensor that the rule set replicates without a search, returns no steps.
// Errors: INVALID_SHAPE for a malformed shape; the deferred error of a faulty pattern that the
// search reaches; LIMIT_EXCEEDED as for RuleSet::Match; CANCELLED if `is_cancelled`, which may be
// null and which the search polls, returned true.
absl::StatusOr<RuleExplanation> ExplainRules(const RuleSet& rule_set, std::string_view name,
                                             OptionalShape shape,
                                             const std::function<bool()>& is_cancelled = {});

// Returns at most `limit` indices of the rules whose patterns are nearest to the name, best first.
// The measure is the bytes of the pattern's plain words (runs of at least three letters, digits or
// underscores) that occur in the name. Rules without such words are left out.
std::vector<int64_t> NearestRules(absl::Span<const Rule> rules, std::string_view name,
                                  int64_t limit);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_
