// Adds named classes and the missing case of letters to character sets, and prints sets for RE2.
#include "sharding/pattern/character_set.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using Ranges = std::vector<CodePointRange>;

// Returns the ranges sorted, with overlapping and adjacent ones merged.
Ranges Normalized(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  Ranges out;
  for (const CodePointRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

// Returns the code points that are in none of the ranges. Requires normalized ranges.
Ranges Complement(absl::Span<const CodePointRange> ranges) {
  Ranges out;
  char32_t next = 0;
  for (const CodePointRange& range : ranges) {
    if (range.first > next) {
      out.push_back({next, range.first - 1});
    }
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) {
    out.push_back({next, kMaxCodePoint});
  }
  return out;
}

const Ranges& AsciiDigits() {
  static const auto* const kRanges = new Ranges{{'0', '9'}};
  return *kRanges;
}
const Ranges& AsciiWord() {
  static const auto* const kRanges = new Ranges{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return *kRanges;
}
const Ranges& AsciiSpace() {
  static const auto* const kRanges = new Ranges{{'\t', '\r'}, {' ', ' '}};
  return *kRanges;
}
// The characters that str.isspace() accepts: Unicode's White_Space and the four ASCII separators.
const Ranges& UnicodeSpace() {
  static const auto* const kRanges = new Ranges{
      {'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  return *kRanges;
}

// Letters that Python, but not RE2, treats as equal if case is ignored.
constexpr std::u32string_view kSameLetters[] = {U"Ii\u0130\u0131", U"\u0390\u1FD3", U"\u03B0\u1FE3",
                                                U"\uFB05\uFB06"};

// Adds characters that differ only by case from characters of the ranges. Adds only those that
// RE2's own case folding does not cover: the other case of ASCII letters and, in Unicode mode, the
// groups of kSameLetters.
void FoldCase(bool ascii, Ranges& ranges) {
  const Ranges before = ranges;
  for (const CodePointRange& range : before) {
    for (const char32_t a : {U'a', U'A'}) {
      const char32_t first = std::max<char32_t>(range.first, a);
      const char32_t last = std::min<char32_t>(range.last, a + 25);
      if (first <= last) {
        ranges.push_back({first ^ 0x20, last ^ 0x20});
      }
    }
  }
  if (ascii) {
    return;
  }
  const auto has = [&before](char32_t c) {
    return std::any_of(before.begin(), before.end(), [c](const CodePointRange& range) {
      return range.first <= c && c <= range.last;
    });
  };
  for (const std::u32string_view letters : kSameLetters) {
    if (std::any_of(letters.begin(), letters.end(), has)) {
      for (const char32_t c : letters) {
        ranges.push_back({c, c});
      }
    }
  }
}

// Returns whether case can matter for the ranges: they contain an ASCII letter, or a character
// beyond ASCII.
bool MayHaveCase(const Ranges& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [](const CodePointRange& range) {
    return range.last > 0x7F || (range.first <= 'Z' && range.last >= 'A') ||
           (range.first <= 'z' && range.last >= 'a');
  });
}

}  // namespace

bool AddNamedClass(char32_t letter, bool ascii, CharacterSet& set) {
  const auto add = [&set](const Ranges& ranges) {
    set.ranges.insert(set.ranges.end(), ranges.begin(), ranges.end());
  };
  switch (letter) {
    case 'd':
      ascii ? add(AsciiDigits()) : void(set.digit = true);
      return true;
    case 'D':
      ascii ? add(Complement(AsciiDigits())) : void(set.not_digit = true);
      return true;
    case 'w':
      ascii ? add(AsciiWord()) : void(set.word = true);
      return true;
    case 'W':
      ascii ? add(Complement(AsciiWord())) : void(set.not_word = true);
      return true;
    case 's':
      add(ascii ? AsciiSpace() : UnicodeSpace());
      return true;
    case 'S':
      add(Complement(ascii ? AsciiSpace() : UnicodeSpace()));
      return true;
    default:
      return false;
  }
}

void CompleteSet(bool ignore_case, bool ascii, CharacterSet& set) {
  if (ignore_case) {
    FoldCase(ascii, set.ranges);
    set.ignore_case = !ascii && MayHaveCase(set.ranges);
  }
  set.ranges = Normalized(std::move(set.ranges));
}

std::string PrintRanges(const std::vector<CodePointRange>& ranges, bool negated) {
  std::string out = negated ? "[^" : "[";
  const auto print = [&out](char32_t c) {
    if (c < 0x80 && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '/' ||
                     c == '.' || c == ' ')) {
      out.push_back(static_cast<char>(c));
    } else {
      absl::StrAppendFormat(&out, "\\x{%x}", static_cast<uint32_t>(c));
    }
  };
  for (const CodePointRange& range : ranges) {
    print(range.first);
    if (range.last > range.first) {
      out += '-';
      print(range.last);
    }
  }
  return out + ']';
}

namespace {

// The characters of Python's Unicode \w, as members of an RE2 class.
constexpr char kWordMembers[] = "\\p{L}\\p{N}_";

bool IsBothCasesOfKOrS(const Ranges& ranges) {
  return ranges == Ranges{{'K', 'K'}, {'k', 'k'}} || ranges == Ranges{{'S', 'S'}, {'s', 's'}};
}

// Returns the members of the named classes, without brackets. Leaves out \W, for which RE2 has no
// member.
std::string PrintMembers(const CharacterSet& set) {
  return StrCat(set.digit ? "\\p{Nd}" : "", set.not_digit ? "\\P{Nd}" : "",
                set.word ? kWordMembers : "");
}

// Returns the RE2 expression of a set that consists only of ranges.
std::optional<std::string> PrintRangeSet(const CharacterSet& set) {
  const Ranges& ranges = set.ranges;
  if (ranges.empty()) {
    return set.negated ? "(?s:.)" : std::optional<std::string>();
  }
  if (set.negated && ranges == std::vector<CodePointRange>{{'\n', '\n'}}) {
    return ".";
  }
  if (const char32_t c = ranges[0].first; !set.negated && !set.ignore_case && ranges.size() == 1 &&
                                          c == ranges[0].last && c >= ' ' && c <= '~') {
    // Print a single printable character as itself, with a backslash if RE2 needs one.
    const bool special =
        std::string_view("\\^$.|?*+()[]{}").find(static_cast<char>(c)) != std::string_view::npos;
    return std::string(special ? "\\" : "") + static_cast<char>(c);
  }
  if (!set.negated && !set.ignore_case && IsBothCasesOfKOrS(ranges)) {
    // RE2 simplifies [Kk] to (?i:k), which can also match the Kelvin sign. A surrogate in the class
    // prevents the simplification, and matches nothing: no text contains surrogates.
    return StrCat("[", std::string(1, static_cast<char>(ranges[0].first)),
                  std::string(1, static_cast<char>(ranges[1].first)), "\\x{d800}]");
  }
  const std::string printed = PrintRanges(ranges, set.negated);
  return set.ignore_case ? StrCat("(?i:", printed, ")") : printed;
}

// Returns the RE2 expression of a negated set with named classes; nullopt if RE2 cannot express it.
// RE2 has no intersection of classes, which [^\Wx] needs. If case is ignored, RE2 folds named
// classes too, which Python does not.
std::optional<std::string> PrintNegated(const CharacterSet& set) {
  const Ranges& ranges = set.ranges;
  if (set.ignore_case) {
    return std::nullopt;
  }
  // Drop the closing bracket, so that members can follow.
  const std::string negated_ranges = ranges.empty() ? "[^]" : PrintRanges(ranges, true);
  const std::string open = negated_ranges.substr(0, negated_ranges.size() - 1);
  if (!set.not_word) {
    return StrCat(open, PrintMembers(set), "]");
  }
  // [^\W...] is \w without the other members. Only the usual forms can be printed: [^\W], [^\W\d],
  // [^\W_] and [^\W\d_].
  const bool no_underscore = ranges == std::vector<CodePointRange>{{'_', '_'}};
  if (set.not_digit || set.word || !(ranges.empty() || no_underscore)) {
    return std::nullopt;
  }
  return StrCat("[\\p{L}", set.digit ? "\\p{Nl}\\p{No}" : "\\p{N}", no_underscore ? "" : "_", "]");
}

// Returns the RE2 expression of a set with named classes: one class, or an alternation of classes
// if one class cannot have all members.
std::string PrintUnion(const CharacterSet& set) {
  const Ranges& ranges = set.ranges;
  const std::string members = PrintMembers(set);
  std::vector<std::string> choices;
  if (!ranges.empty()) {
    const std::string printed = PrintRanges(ranges, /*negated=*/false);
    choices.push_back(set.ignore_case ? StrCat("(?i:", printed, ")") : printed);
  }
  if (!members.empty()) {
    if (!choices.empty() && !set.ignore_case) {
      choices.back().insert(choices.back().size() - 1, members);
    } else {
      choices.push_back(StrCat("[", members, "]"));
    }
  }
  if (set.not_word) {
    choices.push_back(StrCat("[^", kWordMembers, "]"));
  }
  if (choices.size() == 1) {
    return choices.front();
  }
  return StrCat("(?:", StrJoin(choices, "|"), ")");
}

}  // namespace

std::optional<std::string> PrintSet(const CharacterSet& set) {
  if (!set.has_class()) {
    return PrintRangeSet(set);
  }
  return set.negated ? PrintNegated(set) : PrintUnion(set);
}

}  // namespace shardmesh
