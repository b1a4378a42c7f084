// Regular expressions in the dialect of Python's `re`, matched in bounded time.
#ifndef SHARDMESH_SHARDING_PATTERN_PATTERN_H_
#define SHARDMESH_SHARDING_PATTERN_PATTERN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sharding/pattern/search_budget.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace shardmesh {

class BacktrackingProgram;
class PatternAutomaton;

// One pattern, with the meaning of Python 3.11's `re.search(pattern, text)` for two str: Unicode \d
// \w \s \b, `$` before a last newline, \Z, {,n}, octal escapes, inline flags, comments and verbose
// mode.
//
// Create parses the pattern in Python's dialect. Look-around, back-references, conditionals, atomic
// groups and possessive repeats need backtracking: a BacktrackingProgram matches a pattern with one
// of these, in a bounded number of steps. All other patterns are matched in time linear in the
// text: Create prints them for RE2. RE2 cannot express three things: `$` before a last newline, \b
// and \B between characters beyond ASCII, and the failure of \B in an empty text. For a text in
// which one of these three matters, a PatternAutomaton from the same parse decides.
//
// Create refuses \N{...}, which needs Unicode's name table, and the flag t. Character classes
// follow RE2's Unicode version. One defect of Python 3.11 is not reproduced: its search, unlike its
// match, ignores the flag in a leading `(?a:\W)`.
//
// Immutable, and safe to share between threads; copies share the compiled programs.
class Pattern {
 public:
  // Bounds on the cost of one pattern.
  static constexpr int64_t kMaxLength = 4096;  // bytes of a pattern
  static constexpr int64_t kMaxRepeat = 1000;  // m and n in {m,n}; the product of nested repeats
  static constexpr int64_t kMaxDepth = 200;    // groups within groups

  // Errors, all INVALID_ARGUMENT, name the offending part and its position, counted in characters
  // from 0:
  // clang-format off
  //   BAD_PATTERN          Python also refuses the pattern (`error`, its re.error; rarely another
  //                        class).
  //   UNSUPPORTED_PATTERN  Python accepts the pattern, but it has \N{...} or the flag t.
  //   LIMIT_EXCEEDED       The pattern exceeds a bound above, or is too large once repeats are
  //                        expanded.
  // clang-format on
  // A pattern that is both bad and unsupported is reported as bad.
  static absl::StatusOr<Pattern> Create(std::string_view text);

  // Returns an upper bound on the instructions that Create(text) may compile. `text` may be any
  // text. Create takes less than a microsecond for each instruction and for each byte. The bound is
  // never below program_size() of the created pattern. The bound is far above program_size() only
  // if bounded repeats stand side by side. Takes O(text), for one scan.
  static int64_t CompileCostBound(std::string_view text);
  // Returns whether Create(text) may return a pattern that backtracks. `text` may be any text, also
  // one with several patterns. Returns true for every pattern that backtracks, and for few others.
  // Takes O(text), for one scan.
  static bool MayBacktrack(std::string_view text);

  // Returns whether the pattern matches anywhere in `name`, which must be valid UTF-8. No character
  // of a pattern matches an invalid byte.
  // The only error is INVALID_ARGUMENT (LIMIT_EXCEEDED): the pattern backtracks, and its search
  // takes more than BacktrackingProgram::kMaxSteps steps, or more than `budget`, which may be null
  // and which counts the search, has left.
  absl::StatusOr<bool> Search(std::string_view name, SearchBudget* budget = nullptr) const;

  // Returns the pattern as given.
  const std::string& text() const { return text_; }
  // Returns whether the pattern needs backtracking. The search for any other pattern has no errors.
  bool backtracks() const { return backtracking_ != nullptr; }
  // Returns the pattern as printed for RE2; nullopt for patterns that need backtracking, and for
  // the few others that RE2 cannot express.
  const std::optional<std::string>& re2_text() const { return re2_text_; }
  // Returns the number of instructions of the compiled programs. It measures the pattern's memory:
  // an instruction has about 16 bytes. If the pattern backtracks, an instruction has 44 bytes, and
  // each distinct set of characters some 150.
  int64_t program_size() const { return program_size_; }
  // Returns whether RE2 and Python agree on this text for every pattern that has a re2_text().
  static bool IsPlain(std::string_view name);

 private:
  Pattern() = default;

  // Returns whether RE2 and Python agree on this text for this pattern.
  bool IsPlainHere(std::string_view name) const;

  std::string text_;
  std::optional<std::string> re2_text_;
  std::shared_ptr<const re2::RE2> re2_;                      // null if re2_text_ is nullopt
  std::shared_ptr<const PatternAutomaton> automaton_;        // null if RE2 is exact for every text
  std::shared_ptr<const BacktrackingProgram> backtracking_;  // null unless the pattern needs it
  int64_t program_size_ = 0;
  bool newline_matters_ = false;    // has `$` outside multi-line mode
  bool non_ascii_matters_ = false;  // has a Unicode \b, or any \B
  bool emptiness_matters_ = false;  // has \B
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_PATTERN_H_
