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

// One pattern, with the meaning that Python 3.11 gives to `re.search(pattern, text)` for two str:
// Unicode \d \w \s \b, `$` before a last newline, \Z, {,n}, octal escapes, inline flags, comments
// and verbose mode.
//
// The pattern is parsed in that dialect and printed for RE2. RE2 cannot say three things: `$`
// before a last newline, \b and \B between characters beyond ASCII, and that \B fails in an empty
// text. In texts where these matter an automaton made from the same parse
// decides. What cannot be matched in linear time is refused: look-around, back-references,
// conditionals, atomic groups and possessive repeats; also \N{...} names, which would need
// Unicode's name table. Character classes are those of RE2's Unicode version. One defect of
// Python 3.11 is not followed: its search, unlike its match, ignores the flag in a leading
// `(?a:\W)`.
//
// Immutable, hence safe to share between threads; copies share the compiled programs.
class Pattern {
 public:
  // Bounds on what one pattern may cost.
  static constexpr int64_t kMaxLength = 4096;  // bytes of a pattern
  static constexpr int64_t kMaxRepeat = 1000;  // a bound within {m,n}; also of nested ones' product
  static constexpr int64_t kMaxDepth = 200;    // groups within groups

  // Errors, all INVALID_ARGUMENT, name the offending part and its position, counted in characters
  // from 0:
  //   BAD_PATTERN          Python refuses it too (`error`, its re.error; in few cases another
  //   class) UNSUPPORTED_PATTERN  Python accepts it, and it is one of the constructs above
  //   LIMIT_EXCEEDED       one of the bounds above, or too large once repeats are written out
  // A pattern that is bad and unsupported is bad.
  static absl::StatusOr<Pattern> Create(std::string_view text);

  // The most instructions that Create may come to, from a glance at the text, which need not be a
  // pattern: each takes below a microsecond, and so does each byte. Never less than program_size()
  // of what is created; far more only where bounds of repeats stand beside one another. O(text).
  static int64_t CompileCostBound(std::string_view text);

  // Whether the pattern matches anywhere in `name`, which must be valid UTF-8 (bytes that are not
  // are matched by no character).
  bool Search(std::string_view name) const;

  // The pattern as given.
  const std::string& text() const { return text_; }
  // What RE2 runs; nullopt for the rare pattern that RE2 cannot express for any text.
  const std::optional<std::string>& re2_text() const { return re2_text_; }
  // Instructions of the compiled programs, of some 16 bytes each: what holding the pattern costs.
  int64_t program_size() const { return program_size_; }
  // Whether RE2 and Python agree on this text for every pattern that has a re2_text().
  static bool IsPlain(std::string_view name);

 private:
  Pattern() = default;

  // As IsPlain, for this pattern.
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
