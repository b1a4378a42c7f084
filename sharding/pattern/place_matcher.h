// Decides, for one place of a text, whether a set contains its character and an assertion holds.
#ifndef SHARDMESH_SHARDING_PATTERN_PLACE_MATCHER_H_
#define SHARDMESH_SHARDING_PATTERN_PLACE_MATCHER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "sharding/pattern/character_set.h"
#include "sharding/pattern/syntax.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace shardmesh {

// The sets of one pattern, with Python's meaning of them and of assertions.
//
// Add the sets first. Contains and Holds may then be called from several threads, each with its own
// Memory.
class PlaceMatcher {
 public:
  // Remembers which characters beyond ASCII are in which sets, because RE2 takes some 200 ns to
  // find out. It may be used for many texts, but only with one PlaceMatcher.
  using Memory = absl::flat_hash_map<uint64_t, bool>;

  // Adds a set and returns its index. Equal sets have one index. Sets with the same
  // case-insensitive ranges share one expression of RE2.
  int32_t Add(const CharacterSet& set);

  // Returns whether the set contains the character. Requires an index that Add returned.
  bool Contains(int32_t set, char32_t c, Memory& memory) const {
    return c < 0x80 ? (sets_[static_cast<size_t>(set)].ascii[c / 64] >> (c % 64) & 1) != 0
                    : ContainsBeyondAscii(set, c, memory);
  }
  // Returns whether the assertion holds before the character at `place`, or at the end of the text
  // if `place` is its size. Requires a kind that is an assertion.
  bool Holds(PatternNode::Kind assertion, std::u32string_view text, size_t place,
             Memory& memory) const;

  // Returns the number of RE2 expressions for case-insensitive ranges.
  int64_t folded_ranges() const { return static_cast<int64_t>(folded_.size()); }

 private:
  struct Set {
    CharacterSet set;
    // Matches the ranges of `set` in upper and lower case. Null if the ranges are case-sensitive.
    std::shared_ptr<const re2::RE2> folded;
    std::array<uint64_t, 2> ascii = {};  // a bit for each ASCII character that the set contains
  };

  bool ContainsBeyondAscii(int32_t set, char32_t c, Memory& memory) const;

  std::vector<Set> sets_;
  absl::flat_hash_map<size_t, int32_t> set_of_hash_;  // the first set with this hash
  // Compiled expressions of case-insensitive ranges. The keys are the printed ranges.
  absl::flat_hash_map<std::string, std::shared_ptr<const re2::RE2>> folded_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_PLACE_MATCHER_H_
