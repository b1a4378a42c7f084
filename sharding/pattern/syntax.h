// The grammar of Python's `re` patterns: text to syntax tree.
#ifndef SHARDMESH_SHARDING_PATTERN_SYNTAX_H_
#define SHARDMESH_SHARDING_PATTERN_SYNTAX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/pattern/character_set.h"

namespace shardmesh {

// A node of the tree. Groups and laziness are gone: they decide what a match covers, not whether
// there is one.
struct PatternNode {
  enum class Kind {
    kSet,          // one character of `set`
    kSequence,     // `children` in order; an empty one matches the empty text
    kAlternation,  // one of `children`, of which there are at least two
    kRepeat,       // children[0], `min` to `max` times
    // Assertions about the place between two characters; no children.
    kTextStart,              // \A, ^
    kLineStart,              // ^ in multi-line mode
    kTextEnd,                // \Z
    kTextEndOrFinalNewline,  // $
    kLineEnd,                // $ in multi-line mode
    kWordBoundary,           // \b
    kNotWordBoundary,        // \B; false in an empty text
    kAsciiWordBoundary,      // \b in ASCII mode
    kNotAsciiWordBoundary,   // \B in ASCII mode; false in an empty text
  };

  Kind kind = Kind::kSequence;
  CharacterSet set;
  std::vector<PatternNode> children;
  int64_t min = 0;
  std::optional<int64_t> max;  // nullopt: no bound
};

// Parses a pattern; errors are those of Pattern::Create, but for the program's size, which is not
// known yet. O(text).
absl::StatusOr<PatternNode> ParsePattern(std::string_view text);

// A pattern between quotes, for messages: as it was written, but that control characters and what
// else cannot be printed are escaped as in PythonRepr. '\d+\.weight' stays '\d+\.weight'.
std::string QuotePattern(std::string_view text);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_SYNTAX_H_
