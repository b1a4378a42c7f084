// Computes a pattern for the texts that one pattern matches and others do not.
#ifndef SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
#define SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/pattern/syntax.h"

namespace shardmesh {

// Returns a pattern, anchored at the start of the text, for exactly these texts: `matched` matches
// at the start, and none of `excluded` does. Returns nullopt if no such text exists.
//
// The patterns become one finite automaton, which is written as an expression again. The result is
// exact, but hard to read.
//
// Errors are INVALID_ARGUMENT. UNSUPPORTED_PATTERN is for word boundaries, for `$` before the end
// of the match, for ignored case beyond ASCII, and for named classes together with other characters
// beyond ASCII. LIMIT_EXCEEDED is for an automaton or expression that is too large.
absl::StatusOr<std::optional<std::string>> PatternDifference(
    const PatternNode& matched, absl::Span<const PatternNode> excluded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_DIFFERENCE_H_
