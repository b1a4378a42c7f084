// Looks up characters in the ranges of sets, and asks RE2 where Unicode's tables decide.
#include "sharding/pattern/place_matcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/hash/hash.h"
#include "re2/re2.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

using Memory = PlaceMatcher::Memory;

// Numbers of the classes in keys of Memory. The numbers of sets begin at 0.
constexpr int32_t kDigitClass = -1;
constexpr int32_t kWordClass = -2;

bool FullMatches(char32_t c, const re2::RE2& expression) {
  std::string text;
  AppendUtf8(c, text);
  return re2::RE2::FullMatch(text, expression);
}

// Returns FullMatches(c, expression), from `memory` if it was asked before.
bool Remembered(int32_t set, char32_t c, const re2::RE2& expression, Memory& memory) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(set)} << 32 | c;
  const auto [known, is_new] = memory.try_emplace(key, false);
  if (is_new) {
    known->second = FullMatches(c, expression);
  }
  return known->second;
}

bool IsDigit(char32_t c, Memory& memory) {
  static const auto* const kDigit = new re2::RE2("\\p{Nd}");
  return c < 0x80 ? c >= '0' && c <= '9' : Remembered(kDigitClass, c, *kDigit, memory);
}

bool IsAsciiWord(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

bool IsWord(char32_t c, Memory& memory) {
  static const auto* const kWord = new re2::RE2("[\\p{L}\\p{N}]");
  return c < 0x80 ? IsAsciiWord(c) : Remembered(kWordClass, c, *kWord, memory);
}

bool InRanges(const CharacterSet& set, char32_t c) {
  // The ranges are sorted and disjoint: only the last one that begins at or before `c` can hold it.
  const auto after =
      std::upper_bound(set.ranges.begin(), set.ranges.end(), c,
                       [](char32_t d, const CodePointRange& range) { return d < range.first; });
  return after != set.ranges.begin() && c <= std::prev(after)->last;
}

}  // namespace

int32_t PlaceMatcher::Add(const CharacterSet& set) {
  const auto index = static_cast<int32_t>(sets_.size());
  const auto [first, is_new] = set_of_hash_.try_emplace(absl::HashOf(set), index);
  if (!is_new && sets_[static_cast<size_t>(first->second)].set == set) {
    return first->second;
  }
  Set added{set, nullptr, {}};
  if (set.ignore_case) {
    std::string ranges = PrintRanges(set.ranges, /*negated=*/false);
    std::shared_ptr<const re2::RE2>& folded = folded_[ranges];
    if (folded == nullptr) {
      folded = std::make_shared<re2::RE2>("(?i)" + ranges);
    }
    added.folded = folded;
  }
  // The ranges contain both cases of ASCII letters. An ASCII letter can also be the other case of a
  // character beyond ASCII, such as the Kelvin sign.
  const bool beyond = added.folded != nullptr && set.ranges.back().last >= 0x80;
  for (char32_t c = 0; c < 0x80; ++c) {
    const bool digit = c >= '0' && c <= '9';
    const bool word = IsAsciiWord(c);
    const bool contained = (set.digit && digit) || (set.not_digit && !digit) ||
                           (set.word && word) || (set.not_word && !word) || InRanges(set, c) ||
                           (beyond && c >= 'A' && word && FullMatches(c, *added.folded));
    if (contained != set.negated) {
      added.ascii[c / 64] |= uint64_t{1} << (c % 64);
    }
  }
  sets_.push_back(std::move(added));
  return index;
}

bool PlaceMatcher::ContainsBeyondAscii(int32_t set, char32_t c, Memory& memory) const {
  const Set& entry = sets_[static_cast<size_t>(set)];
  const CharacterSet& s = entry.set;
  const bool contained = (s.digit && IsDigit(c, memory)) || (s.not_digit && !IsDigit(c, memory)) ||
                         (s.word && IsWord(c, memory)) || (s.not_word && !IsWord(c, memory)) ||
                         InRanges(s, c) ||
                         (entry.folded != nullptr && Remembered(set, c, *entry.folded, memory));
  return contained != s.negated;
}

bool PlaceMatcher::Holds(PatternNode::Kind assertion, std::u32string_view text, size_t place,
                         Memory& memory) const {
  const bool at_start = place == 0;
  const bool at_end = place == text.size();
  const auto at_boundary = [&](const auto& is_word) {
    return (!at_start && is_word(text[place - 1])) != (!at_end && is_word(text[place]));
  };
  const auto is_word = [&memory](char32_t c) { return IsWord(c, memory); };
  const auto is_ascii_word = [](char32_t c) { return IsAsciiWord(c); };
  switch (assertion) {
    case PatternNode::Kind::kTextStart:
      return at_start;
    case PatternNode::Kind::kLineStart:
      return at_start || text[place - 1] == '\n';
    case PatternNode::Kind::kTextEnd:
      return at_end;
    case PatternNode::Kind::kTextEndOrFinalNewline:
      return at_end || (place + 1 == text.size() && text[place] == '\n');
    case PatternNode::Kind::kLineEnd:
      return at_end || text[place] == '\n';
    case PatternNode::Kind::kWordBoundary:
      return at_boundary(is_word);
    case PatternNode::Kind::kNotWordBoundary:
      return !text.empty() && !at_boundary(is_word);
    case PatternNode::Kind::kAsciiWordBoundary:
      return at_boundary(is_ascii_word);
    case PatternNode::Kind::kNotAsciiWordBoundary:
      return !text.empty() && !at_boundary(is_ascii_word);
    default:
      return false;
  }
}

}  // namespace shardmesh
