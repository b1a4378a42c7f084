// Rules that exclude names by a leading negative look-ahead, written without it.
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

// Rules that Pattern accepts, and what they came from.
struct RewrittenRules {
  std::vector<Rule> rules;
  // Per rule the index of the original one whose spec it has.
  std::vector<int64_t> origins;
  // Whether anything was rewritten: some pattern had a leading exclusion.
  bool changed = false;
};

// The rules without look-ahead: every name gets the same spec of its first match as by the original
// ones in Python, and a name that none of those matches is matched by none of these.
//
// An exclusion is a pattern that begins `^(?!BODY)` (or several such groups, or \A), such as
// `^(?!.*bias).*kernel$`. A rule with one becomes
//   - two rules, if the next one matches every name: ("^BODY", the next rule's spec), then
//     ("^REST", its own). This is what one would write by hand;
//   - else one rule, whose pattern spells out the names that REST matches and BODY does not; exact,
//     but not meant to be read.
// Other rules stay as they are.
//
// Example: ("^(?!.*bias)", P('tp')), (".*", P()) becomes ("^.*bias", P()), ("^", P('tp')),
// (".*", P()).
//
// Errors are INVALID_ARGUMENT, with the rule's index and the part that stands in the way:
// UNSUPPORTED_PATTERN for look-around in any other place and all else that Pattern refuses, and for
// parts that are not rewritten (word boundaries, `$` in the middle, case that is ignored beyond
// ASCII, named classes beside other characters beyond ASCII); BAD_PATTERN; LIMIT_EXCEEDED where
// what is spelled out is longer than a pattern may be, more than 100 rules would have to be, or the
// rules come to more than RuleSet::kMaxRules. CANCELLED where `is_cancelled`, asked before each
// rule, says so.
absl::StatusOr<RewrittenRules> RewriteExclusions(absl::Span<const Rule> rules,
                                                 const std::function<bool()>& is_cancelled = {});

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_EXCLUSION_H_
