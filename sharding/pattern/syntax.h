// Parses the grammar of Python's `re` patterns: from text to syntax tree.
#ifndef SHARDMESH_SHARDING_PATTERN_SYNTAX_H_
#define SHARDMESH_SHARDING_PATTERN_SYNTAX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "sharding/pattern/character_set.h"

namespace shardmesh {

// A node of the tree. The tree of ParsePattern does not represent groups and laziness: these decide
// which text a pattern matches, not whether it matches. Kinds and fields that are marked "groups"
// occur only in trees of ParsePatternWithGroups.
struct PatternNode {
  enum class Kind {
    kSet,          // one character of `set`
    kSequence,     // `children` in order; without children, it matches the empty text
    kAlternation,  // one of `children`, at least two
    kRepeat,       // children[0], `min` to `max` times
    // Groups: constructs that need backtracking.
    kLookAround,     // children[0] from here on or, if `behind`, ending here; consumes nothing
    kAtomic,         // children[0] by the first way in which it matches
    kBackReference,  // the text of `group`
    kConditional,    // children[0] if `group` took part, else children[1]
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
  // Groups: a node of kSequence with one child is group number `group` if that is not 0.
  int64_t group = 0;
  // Groups: a lazy repeat matches as little as it can. Each time that a possessive repeat matches
  // its child, it keeps the first way that it found.
  bool lazy = false;
  bool possessive = false;
  // Groups: the number of characters that a look-behind goes back; nullopt for a look-ahead.
  std::optional<int64_t> behind;
  bool negated = false;  // groups: a look-around that must not match
  // Groups: a back-reference matches the text of its group in any case.
  bool ignore_case = false;
  bool ascii = false;  // groups: only for ASCII letters does case not count
};

// Parses a pattern that can be matched in linear time. Errors as Pattern::Create, except
// LIMIT_EXCEEDED for the size of the program, which is not known yet; also UNSUPPORTED_PATTERN for
// a pattern that needs backtracking. Takes O(text).
absl::StatusOr<PatternNode> ParsePattern(std::string_view text);

// A pattern's tree with its groups and lazy repeats, and with all that needs backtracking.
struct PatternWithGroups {
  PatternNode root;
  int64_t group_count = 0;  // group 0, the whole match, does not count
  // The numbers of named groups.
  absl::flat_hash_map<std::string, int64_t> group_names;
};
// Like ParsePattern, but also parses patterns that need backtracking.
absl::StatusOr<PatternWithGroups> ParsePatternWithGroups(std::string_view text);

// Returns a pattern in quotes, for messages. Escapes control and other unprintable characters as
// PythonRepr does, and leaves everything else unchanged: '\d+\.weight' stays '\d+\.weight'.
std::string QuotePattern(std::string_view text);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_SYNTAX_H_
