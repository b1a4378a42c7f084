// The set of characters that one place of a pattern accepts, such as [a-z\d] or a dot.
#ifndef SHARDMESH_SHARDING_PATTERN_CHARACTER_SET_H_
#define SHARDMESH_SHARDING_PATTERN_CHARACTER_SET_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardmesh {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

// A range of code points from `first` to `last`, including both.
struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;

  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const CodePointRange& range) {
    return H::combine(std::move(hash), range.first, range.last);
  }
};

// The characters that one place of a pattern accepts: the code points of `ranges` and of the named
// classes. If `negated`, the place accepts all other code points instead. \s, and every class in
// ASCII mode, are stored as ranges.
struct CharacterSet {
  std::vector<CodePointRange> ranges;  // sorted, disjoint, not adjacent
  bool digit = false;                  // Unicode \d
  bool not_digit = false;              // \D
  bool word = false;                   // Unicode \w
  bool not_word = false;               // \W
  bool negated = false;
  // Whether ranges match in any case, by Unicode's rules. `ranges` already contains both cases of
  // ASCII letters.
  bool ignore_case = false;

  bool has_class() const { return digit || not_digit || word || not_word; }

  friend bool operator==(const CharacterSet&, const CharacterSet&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const CharacterSet& set) {
    return H::combine(std::move(hash), set.ranges, set.digit, set.not_digit, set.word, set.not_word,
                      set.negated, set.ignore_case);
  }
};

// Adds the class that a backslash and `letter` name in Python, in ASCII or in Unicode mode. Returns
// false, and adds nothing, if no such class exists.
bool AddNamedClass(char32_t letter, bool ascii, CharacterSet& set);

// Sorts and merges the ranges, which may have been added in any order, to the form that
// CharacterSet::ranges requires. If case is ignored, adds the characters that differ from members
// only by case.
void CompleteSet(bool ignore_case, bool ascii, CharacterSet& set);

// Returns the set as an RE2 expression for one character; nullopt for the few sets that RE2 cannot
// express.
std::optional<std::string> PrintSet(const CharacterSet& set);

// Returns the ranges as an RE2 class, such as `[a-z\x{e9}]` (`[^a-z]` if `negated`). Requires at
// least one range.
std::string PrintRanges(const std::vector<CodePointRange>& ranges, bool negated);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_CHARACTER_SET_H_
