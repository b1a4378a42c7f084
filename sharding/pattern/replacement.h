// Replaces what a pattern matches, as Python's re.sub does.
#ifndef SHARDMESH_SHARDING_PATTERN_REPLACEMENT_H_
#define SHARDMESH_SHARDING_PATTERN_REPLACEMENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/pattern/backtracking.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace shardmesh {

// A pattern with a replacement for its first match: Python's re.sub(pattern, replacement, text,
// count=1). The pattern has the dialect of Pattern. RE2 matches it where RE2 agrees with Python on
// the groups of the match, and a BacktrackingProgram elsewhere.
//
// The replacement is a text in which `\1`, `\12`, `\g<1>` and `\g<name>` mean the text of a group,
// `\g<0>` the whole match, and `\\` a backslash. A group that took no part is empty.
//
// Example: pattern `layer\.(\d+)\.(?P<part>\w+)\.weight$`, replacement `\g<part>_\1/kernel`:
// "h.layer.3.query.weight" becomes "h.query_3/kernel".
// Immutable, and safe to share between threads.
class PatternReplacement {
 public:
  // Errors are INVALID_ARGUMENT: those of Pattern::Create; BAD_PATTERN for a replacement with
  // another escape, or with a group that the pattern does not have.
  static absl::StatusOr<PatternReplacement> Create(std::string_view pattern,
                                                   std::string_view replacement);

  // Returns `text` with the first match replaced; nullopt if the pattern does not match.
  // INVALID_ARGUMENT (LIMIT_EXCEEDED): the pattern backtracks, or RE2 and Python may differ for
  // this text, and the search takes more than BacktrackingProgram::kMaxSteps steps, or more than
  // `budget`, which may be null and which counts the search, has left.
  absl::StatusOr<std::optional<std::string>> Apply(std::string_view text,
                                                   SearchBudget* budget = nullptr) const;

  const std::string& pattern() const { return pattern_; }

 private:
  // A piece of the replacement: `text`, then the text of `group`.
  struct Piece {
    std::string text;
    std::optional<int64_t> group;
  };

  PatternReplacement() = default;

  // Returns the groups of the first match, group 0 first; nullopt if the pattern does not match.
  absl::StatusOr<std::optional<std::vector<std::optional<TextRange>>>> Find(
      std::string_view text, SearchBudget* budget) const;

  std::string pattern_;
  std::shared_ptr<const re2::RE2> re2_;  // null if only backtracking gives Python's groups
  std::shared_ptr<const BacktrackingProgram> backtracking_;  // null if RE2 is exact for every text
  std::vector<Piece> pieces_;
  int64_t group_count_ = 0;
  bool newline_matters_ = false;
  bool non_ascii_matters_ = false;
  bool emptiness_matters_ = false;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_REPLACEMENT_H_
