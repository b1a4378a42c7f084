// Matches the patterns of Python that need backtracking, in a bounded number of steps.
#ifndef SHARDMESH_SHARDING_PATTERN_BACKTRACKING_H_
#define SHARDMESH_SHARDING_PATTERN_BACKTRACKING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/pattern/place_matcher.h"
#include "sharding/pattern/search_budget.h"
#include "sharding/pattern/syntax.h"

namespace shardmesh {

// A part of a text: the bytes [begin, end).
struct TextRange {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

// A program that tries the ways in which a pattern can match one after the other, as Python's `re`
// does. It therefore finds the same match as Python 3.11, with the same groups. Unlike RE2, it can
// match look-around, back-references, conditionals, atomic groups and possessive repeats. Its time
// may grow exponentially with the text, so it counts steps and gives up after kMaxSteps.
//
// One defect of Python 3.11 is not reproduced: if a possessive repeat has alternatives with groups,
// Python can keep the groups of an alternative that failed. It then finds another match, or raises
// SystemError.
//
// Immutable, and safe to share between threads.
class BacktrackingProgram {
 public:
  // Upper bound on the steps of one search, which take some 40 ms at most. A step is an
  // instruction, eight characters that a repeat or a back-reference compares, or a character beyond
  // ASCII that is looked up in a set.
  static constexpr int64_t kMaxSteps = 1'000'000;

  // Compiles any pattern of Python's dialect. Errors as ParsePatternWithGroups. The program has at
  // most three instructions for each character of the pattern, and one more.
  static absl::StatusOr<BacktrackingProgram> Create(std::string_view pattern);

  // Returns the groups of the first match in `text`: first group 0, the whole match, then the
  // others by number. A group that took no part is nullopt. Returns nullopt if the pattern does not
  // match, or if `text` is not UTF-8.
  //
  // INVALID_ARGUMENT (LIMIT_EXCEEDED): the search takes more than kMaxSteps steps, or more than
  // `budget`, which may be null and which counts it, has left. The error names the pattern and the
  // text. Requires a text of less than 2 GiB. Takes O(text) memory, and at most
  // 36 bytes for each step. The stack does not grow with the text.
  absl::StatusOr<std::optional<std::vector<std::optional<TextRange>>>> Find(
      std::string_view text, SearchBudget* budget = nullptr) const;

  int64_t program_size() const { return static_cast<int64_t>(program_.size()); }

 private:
  // Each instruction continues at the next one unless its comment says otherwise. `other` is the
  // index of another instruction; `slot` is an index of Matcher's slots or marks.
  struct Instruction {
    enum class Op {
      kSet,            // consumes a character of `set`
      kRepeatSet,      // consumes `min` to `max` characters of `set`
      kAssert,         // fails unless `assertion` holds
      kSave,           // slot = the place
      kBackReference,  // consumes the text of group `slot`
      kIfGroup,        // continues at `other` unless group `slot` took part
      kFork,           // continues at `other` if what follows fails
      kJump,           // continues at `other`
      kLoop,           // begins a repeat, whose state is in the slots `slot` and `slot` + 1
      kIterate,        // repeats what follows, or continues at `other`
      kCut,            // ends an iteration of a possessive repeat: continues at `other`, a kIterate
      kEnter,          // begins an atomic group, or a look-around that goes `min` characters back
      kLeaveAtomic,    // ends an atomic group
      kLeaveAhead,     // ends a look-around that must match
      kLeaveNot,       // ends a look-around that must not match: fails
      kMatch,          // the whole pattern matches
    };
    enum class Mode { kGreedy, kLazy, kPossessive };

    Op op = Op::kMatch;
    PatternNode::Kind assertion = PatternNode::Kind::kTextStart;
    Mode mode = Mode::kGreedy;
    bool ignore_case = false;
    bool ascii = false;
    bool negated = false;
    int32_t set = 0;
    int32_t slot = 0;
    int32_t mark = 0;
    int32_t other = 0;
    int32_t min = 0;
    int32_t max = 0;
  };

  class Builder;
  class Matcher;

  BacktrackingProgram() = default;

  std::string pattern_;
  std::vector<Instruction> program_;
  PlaceMatcher sets_;
  int32_t groups_ = 0;  // with group 0
  int32_t slots_ = 0;
  int32_t marks_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_BACKTRACKING_H_
