// Rewrites rules that exclude names by a leading negative look-ahead into rules without look-ahead.
#ifndef SHARDMESH_SHARDING_RULES_EXCLUSION_H_
#define SHARDMESH_SHARDING_RULES_EXCLUSION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/rules/rule_set.h"

namespace shardmesh {

// Rules whose patterns are matched in linear time, with their origins.
struct RewrittenRules {
  std::vector<Rule> rules;
  // For each rule, the index of the original rule that its spec comes from.
  std::vector<int64_t> origins;
  // Whether some pattern had a leading exclusion and was rewritten.
  bool changed = false;
};

// Returns equivalent rules without look-ahead. Every name gets the same spec as from its first
// match among the original rules in Python. A name that no original rule matches has no match among
// the returned rules either.
//
// An exclusion is a pattern that begins `^(?!BODY)` (or several such groups, or \A), such as
// `^(?!.*bias).*kernel$`. A rule with an exclusion becomes
//   - two rules, if the next rule matches every name: ("^BODY", the next rule's spec), then
//     ("^REST", its own spec), as a person would write them. Each further BODY adds a rule;
//   - else one rule, whose pattern spells out the names that REST matches and BODY does not. The
//     pattern is exact, but hard to read.
// Other rules stay unchanged.
//
// Example: ("^(?!.*bias)", P('tp')), (".*", P()) becomes ("^.*bias", P()), ("^", P('tp')), (".*",
// P()).
//
// Errors are INVALID_ARGUMENT, with the rule's index and the offending part:
//   - UNSUPPORTED_PATTERN for look-around in any other place, and for any other construct that
//     needs backtracking or that Pattern does not support. Also for parts that cannot be rewritten:
//     word boundaries, `$` in the middle, ignored case beyond ASCII, named classes beside other
//     characters beyond ASCII.
//   - BAD_PATTERN for a pattern that Python refuses.
//   - LIMIT_EXCEEDED if a pattern exceeds the limits of Pattern, if more than 100 rules need a
//     spelled-out pattern, or if the result has more than RuleSet::kMaxRules rules.
// CANCELLED if `is_cancelled`, which is polled before each rule, returns true.
absl::StatusOr<RewrittenRules> RewriteExclusions(absl::Span<const Rule> rules,
                                                 const std::function<bool()>& is_cancelled = {});

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_EXCLUSION_H_
