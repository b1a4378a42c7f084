// The difference of patterns: a pattern for the texts that one pattern matches and others do not.
#ifndef SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
#define SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/pattern/syntax.h"

namespace shardmesh {

// Returns a pattern, anchored at the start of the text. It is found in exactly the texts at whose
// start `matched` matches and none of `excluded` matches. Returns nullopt if there is no such text.
//
// RewriteExclusions needs this for a rule such as `^(?!.*bias)` if the next rule is not `.*`. In
// that case the excluded names may get their specs from several later rules, so one added rule
// cannot give all of them the right spec. docs/semantics.md ("Exclusions") and RewriteRules promise
// that rewritten lists give the same specs. The goldens contain no such list; exclusion_test, the
// fuzz target and the differential probe test such lists.
//
// The function makes one finite automaton from all patterns, and writes the automaton as a pattern
// again. The result is exact, but hard to read. Errors are INVALID_ARGUMENT: UNSUPPORTED_PATTERN
// for word boundaries, for `$` that is not at the end of `matched` or of an excluded pattern, for
// ignored case beyond ASCII, and for named classes together with other characters beyond ASCII;
// LIMIT_EXCEEDED if the automaton or the pattern gets too large.
absl::StatusOr<std::optional<std::string>> PatternDifference(
    const PatternNode& matched, absl::Span<const PatternNode> excluded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
