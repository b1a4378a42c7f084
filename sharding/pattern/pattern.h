// Regular expressions in the dialect of Python's `re`, matched in time linear in the text.
#ifndef SHARDMESH_SHARDING_PATTERN_PATTERN_H_
#define SHARDMESH_SHARDING_PATTERN_PATTERN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace shardmesh {

class PatternAutomaton;

// One pattern, with the meaning of Python 3.11's `re.search(pattern, text)` for two str: Unicode \d
// \w \s \b, `$` before a last newline, \Z, {,n}, octal escapes, inline flags, comments and verbose
// mode.
//
// The pattern is parsed in that dialect and printed for RE2. RE2 cannot express three things: `$`
// before a last newline, \b and \B between characters beyond ASCII, and the failure of \B in an
// empty text. In texts where these matter, an automaton from the same parse decides.
//
// Constructs that need more than linear time are refused: look-around, back-references,
// conditionals, atomic groups and possessive repeats. \N{...} names are refused too, since they
// need Unicode's name table. Character classes follow RE2's Unicode version. One defect of Python
// 3.11 is not reproduced: its search, unlike its match, ignores the flag in a leading `(?a:\W)`.
//
// Immutable, and safe to share between threads; copies share the compiled programs.
class Pattern {
 public:
  // Bounds on the cost of one pattern.
  static constexpr int64_t kMaxLength = 4096;  // bytes of a pattern
  static constexpr int64_t kMaxRepeat = 1000;  // a bound within {m,n}; also of nested ones' product
  static constexpr int64_t kMaxDepth = 200;    // groups within groups

  // Errors, all INVALID_ARGUMENT, name the offending part and its position, counted in characters
  // from 0:
  // clang-format off
  //   BAD_PATTERN          Python refuses it too (`error`, its re.error; rarely another class)
  //   UNSUPPORTED_PATTERN  Python accepts it, and it is one of the constructs above
  //   LIMIT_EXCEEDED       one of the bounds above, or too large once repeats are written out
  // clang-format on
  // A pattern that is both bad and unsupported is reported as bad.
  static absl::StatusOr<Pattern> Create(std::string_view text);

  // Returns an upper bound on the instructions that Create may compile, from a single scan of any
  // text. Each instruction takes less than a microsecond, and so does each byte. The bound is never
  // below program_size() of the created pattern. It is far above it only if repeats with bounds are
  // adjacent.
  // Takes O(text).
  static int64_t CompileCostBound(std::string_view text);

  // Returns whether the pattern matches anywhere in `name`, which must be valid UTF-8. No character
  // of a pattern matches an invalid byte.
  bool Search(std::string_view name) const;

  // The pattern as given.
  const std::string& text() const { return text_; }
  // The text that RE2 runs; nullopt for the rare pattern that RE2 cannot express for any text.
  const std::optional<std::string>& re2_text() const { return re2_text_; }
  // Number of instructions of the compiled programs, of some 16 bytes each: the memory of the
  // pattern.
  int64_t program_size() const { return program_size_; }
  // Returns whether RE2 and Python agree on this text for every pattern that has a re2_text().
  static bool IsPlain(std::string_view name);

 private:
  Pattern() = default;

  // Like IsPlain, for this pattern.
  bool IsPlainHere(std::string_view name) const;

  std::string text_;
  std::optional<std::string> re2_text_;
  std::shared_ptr<const re2::RE2> re2_;                // null if re2_text_ is nullopt
  std::shared_ptr<const PatternAutomaton> automaton_;  // null if every text is plain
  int64_t program_size_ = 0;
  bool newline_matters_ = false;    // has `$` outside multi-line mode
  bool non_ascii_matters_ = false;  // has a Unicode \b, or any \B
  bool emptiness_matters_ = false;  // has \B
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_PATTERN_H_
