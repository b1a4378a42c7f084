// Prints a pattern's syntax tree as an expression of RE2.
#ifndef SHARDMESH_SHARDING_PATTERN_PRINTER_H_
#define SHARDMESH_SHARDING_PATTERN_PRINTER_H_

#include <optional>
#include <string>

#include "sharding/pattern/syntax.h"

namespace shardmesh {

// The expression, and the texts for which RE2 does not match it as Python matches the pattern.
struct PrintedPattern {
  // nullopt: RE2 cannot express one of the pattern's sets, or the pattern needs backtracking.
  std::optional<std::string> text;
  bool newline_matters = false;    // texts that end in a newline
  bool non_ascii_matters = false;  // texts with characters beyond ASCII
  bool emptiness_matters = false;  // the empty text
};

// Prints the tree with the groups and lazy repeats that it has.
PrintedPattern PrintPattern(const PatternNode& root);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_PRINTER_H_
