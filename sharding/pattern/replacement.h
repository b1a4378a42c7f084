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

namespace re2 {
class RE2;
}  // namespace re2

namespace shardmesh {

// A pattern with a replacement for its first match: Python's re.sub(pattern, replacement, text,
// count=1), in time linear in the text. The pattern has the dialect of Pattern.
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
  // another escape, or with a group that the pattern does not have; UNSUPPORTED_PATTERN for the few
  // patterns that RE2 cannot express.
  static absl::StatusOr<PatternReplacement> Create(std::string_view pattern,
                                                   std::string_view replacement);

  // Returns `text` with the first match replaced; nullopt if the pattern does not match.
  // INVALID_ARGUMENT (UNSUPPORTED_PATTERN): RE2 and Python may differ, for `\b` and `\B` in a text
  // with characters beyond ASCII, and for `$` and `\B` in a text that is empty or ends in a
  // newline.
  absl::StatusOr<std::optional<std::string>> Apply(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  // A piece of the replacement: `text`, then the text of `group`.
  struct Piece {
    std::string text;
    std::optional<int64_t> group;
  };

  PatternReplacement() = default;

  std::string pattern_;
  std::shared_ptr<const re2::RE2> re2_;
  std::vector<Piece> pieces_;
  int64_t group_count_ = 0;
  bool newline_matters_ = false;
  bool non_ascii_matters_ = false;
  bool emptiness_matters_ = false;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_REPLACEMENT_H_
