// Matches texts for which RE2 and Python differ, with an automaton made from a pattern's syntax
// tree.
#ifndef SHARDMESH_SHARDING_PATTERN_AUTOMATON_H_
#define SHARDMESH_SHARDING_PATTERN_AUTOMATON_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/pattern/place_matcher.h"
#include "sharding/pattern/syntax.h"

namespace shardmesh {

// A non-deterministic automaton that tracks all its states at once, in time O(text * program). It
// agrees with Python on every text, but is far slower than RE2.
// Immutable, and safe to share between threads.
class PatternAutomaton {
 public:
  // Upper bound on the instructions of one program. A repeat such as x{3} counts as three copies.
  static constexpr int64_t kMaxInstructions = 20'000;

  // Returns the automaton of a syntax tree; LIMIT_EXCEEDED if its program would be too large.
  static absl::StatusOr<PatternAutomaton> Create(const PatternNode& root);

  // Returns whether the pattern matches anywhere in `text`. No pattern matches a text that is not
  // UTF-8.
  bool Search(std::string_view text) const;

  int64_t program_size() const { return static_cast<int64_t>(program_.size()); }
  // Returns the number of RE2 expressions for case-insensitive ranges. Sets with equal ranges share
  // one expression.
  int64_t folded_ranges() const { return sets_.folded_ranges(); }

 private:
  // kSet consumes a character and continues at `next`; kFork continues at `next` and `other`.
  struct Instruction {
    enum class Op { kSet, kFork, kAssert, kMatch };
    Op op = Op::kMatch;
    PatternNode::Kind assertion = PatternNode::Kind::kTextStart;
    int32_t set = 0;
    int32_t next = 0;
    int32_t other = 0;
  };

  class Builder;

  PatternAutomaton() = default;

  std::vector<Instruction> program_;
  PlaceMatcher sets_;
  int32_t start_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_AUTOMATON_H_
