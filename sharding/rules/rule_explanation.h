// Why a rule set gives a tensor its spec: the rules that nearly matched, the one that did, and what
// became of its spec.
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
  // As RuleSet::Match answers; `unmatched` where that is an error.
  RuleMatch match;
  // The nearest of the earlier rules, at most three, best first: see NearestRules. All rules count
  // as earlier where none matches.
  std::vector<int64_t> near_misses;
  // For the whole spec (dim -1): near misses, the rule, and if it was cut to the
  // rank or the tensor is too small, a correction from the rule's spec to the effective one.
  std::vector<ExplanationStep> steps;
};

// Explains RuleSet::Match. A tensor that no rule matches is an answer here, and so is one that is
// replicated without asking a rule, which has no steps.
// Errors: INVALID_SHAPE; a deferred pattern error.
absl::StatusOr<RuleExplanation> ExplainRules(const RuleSet& rule_set, std::string_view name,
                                             OptionalShape shape);

// At most `limit` indices of the rules whose patterns come nearest to the name, best first: by the
// bytes of the pattern's plain words (runs of at least three letters, digits or underscores) that
// stand in the name; rules without any are left out.
std::vector<int64_t> NearestRules(absl::Span<const Rule> rules, std::string_view name,
                                  int64_t limit);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_EXPLANATION_H_
