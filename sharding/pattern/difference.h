// A pattern for what one pattern matches and others do not.
#ifndef SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
#define SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/pattern/syntax.h"

namespace shardmesh {

// A pattern, anchored at the start of the text, that is found in just those texts at whose start
// `matched` matches and none of `excluded` does; nullopt if there is no such text.
//
// RewriteExclusions needs it for rules such as `^(?!.*bias)` whose next rule is not `.*`: there is
// no rule that the excluded names could be sent to by a pattern of their own. docs/semantics.md
// ("Exclusions") and RewriteRules promise such lists the same specs. No golden has one;
// exclusion_test, the fuzz target and the differential probe do.
//
// Patterns are made into one finite automaton, and that is spelled out as an expression again: good
// for exactness, not for reading. Errors are INVALID_ARGUMENT: UNSUPPORTED_PATTERN for word
// boundaries, for `$` elsewhere than at the end of what is matched, for case that is ignored beyond
// ASCII, and for named classes together with other characters beyond ASCII; LIMIT_EXCEEDED where
// automaton or expression get too large.
absl::StatusOr<std::optional<std::string>> PatternDifference(
    const PatternNode& matched, absl::Span<const PatternNode> excluded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
