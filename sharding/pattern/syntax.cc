// A recursive-descent parser of Python's `re` dialect.
//
// The parser reads the whole pattern, including constructs that it refuses. It therefore reports
// BAD_PATTERN for every pattern that Python refuses, and UNSUPPORTED_PATTERN only for patterns that
// Python accepts.
#include "sharding/pattern/syntax.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "re2/re2.h"
#include "sharding/axis_value.h"
#include "sharding/pattern/character_set.h"
#include "sharding/pattern/pattern.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
// Python accepts repeat bounds below this number.
constexpr int64_t kPythonMaxRepeat = 4294967295;

// One character of the pattern, or a backslash with the character after it.
struct Token {
  char32_t character = 0;
  bool escaped = false;
  int64_t position = 0;  // in characters

  bool Is(char32_t c) const { return !escaped && character == c; }
  bool IsOneOf(std::u32string_view set) const {
    return !escaped && set.find(character) != std::u32string_view::npos;
  }
};

constexpr std::u32string_view kDigits = U"0123456789";
constexpr std::u32string_view kOctalDigits = U"01234567";
constexpr std::u32string_view kHexDigits = U"0123456789abcdefABCDEF";
constexpr std::u32string_view kVerboseSpace = U" \t\n\r\v\f";

bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct Flags {
  bool ignore_case = false;
  bool multi_line = false;
  bool dot_all = false;
  bool verbose = false;
  bool ascii = false;
};

// The least and the largest number of characters that a part of the pattern can match. Look-behind
// requires that both numbers are equal.
struct Width {
  int64_t least = 0;
  int64_t most = 0;
};

int64_t SaturatingAdd(int64_t a, int64_t b) { return a > kUnbounded - b ? kUnbounded : a + b; }
int64_t SaturatingMultiply(int64_t a, int64_t b) {
  return b != 0 && a > kUnbounded / b ? kUnbounded : a * b;
}
Width operator+(Width a, Width b) {
  return {SaturatingAdd(a.least, b.least), SaturatingAdd(a.most, b.most)};
}
Width Either(Width a, Width b) { return {std::min(a.least, b.least), std::max(a.most, b.most)}; }

struct Part {
  PatternNode node;
  Width width;
};

PatternNode SetNode(CharacterSet set, const Flags& flags) {
  CompleteSet(flags.ignore_case, flags.ascii, set);
  PatternNode node;
  node.kind = PatternNode::Kind::kSet;
  node.set = std::move(set);
  return node;
}

PatternNode LiteralNode(char32_t c, const Flags& flags) {
  CharacterSet set;
  set.ranges = {{c, c}};
  return SetNode(std::move(set), flags);
}

PatternNode BackReferenceNode(int64_t group, const Flags& flags) {
  PatternNode node;
  node.kind = PatternNode::Kind::kBackReference;
  node.group = group;
  node.ignore_case = flags.ignore_case;
  node.ascii = flags.ascii;
  return node;
}

PatternNode AssertionNode(PatternNode::Kind kind) {
  PatternNode node;
  node.kind = kind;
  return node;
}

bool IsIdentifier(std::string_view name) {
  static const auto* const kIdentifier =
      new RE2("[\\p{L}\\p{Nl}_][\\p{L}\\p{Nl}\\p{Mn}\\p{Mc}\\p{Nd}\\p{Pc}]*");
  return RE2::FullMatch(name, *kIdentifier);
}

// --- The parser ---

class Parser {
 public:
  // With `keep_groups`, the tree has the groups, the lazy repeats, and all that needs backtracking.
  // Without it, the parser refuses patterns that need backtracking.
  Parser(std::string_view text, bool keep_groups) : text_(text), keep_groups_(keep_groups) {}

  absl::StatusOr<PatternNode> Parse();
  // Call them after Parse.
  int64_t group_count() const { return static_cast<int64_t>(groups_.size()) - 1; }
  const absl::flat_hash_map<std::string, int64_t>& group_names() const { return group_names_; }

 private:
  // The kind of the item before a repeat operator, which decides whether the operator is legal
  // there.
  enum class Item { kNothing, kAssertion, kRepeat, kOther };

  struct RepeatBounds {
    int64_t min = 0;
    std::optional<int64_t> max;
  };

  struct Group {
    bool closed = false;
    Width width;
  };

  absl::Status Tokenize();

  bool AtEnd() const { return next_ == tokens_.size(); }
  bool NextIs(char32_t c) const { return !AtEnd() && tokens_[next_].Is(c); }
  bool NextIsOneOf(std::u32string_view set) const {
    return !AtEnd() && tokens_[next_].IsOneOf(set);
  }
  bool Consume(char32_t c) {
    const bool found = NextIs(c);
    next_ += found ? 1 : 0;
    return found;
  }
  // Returns the position of the next token; at the end, the length of the pattern.
  int64_t Position() const { return AtEnd() ? length_ : tokens_[next_].position; }
  // Returns the characters [first, last) of the pattern.
  std::string Quote(int64_t first, int64_t last) const;

  absl::Status Bad(int64_t position, std::string_view what,
                   std::string_view python_type = "error") const;
  absl::Status Refusal(Reason reason, int64_t position, std::string_view what) const;
  // Records why Pattern does not support this pattern. Parse returns the first recorded error if
  // the rest of the pattern is valid.
  void Refuse(Reason reason, int64_t position, std::string_view what);
  // Refuses a construct that needs backtracking, unless the tree keeps the groups.
  void RefuseBacktracking(int64_t position, std::string_view construct);

  // LIMIT_EXCEEDED: groups are nested deeper than Pattern::kMaxDepth.
  absl::Status CheckDepth(int64_t depth) const;
  // Parses alternatives up to the end of the group or pattern. Global flags, which the outermost
  // alternation may set, change `flags`.
  absl::StatusOr<Part> ParseAlternation(Flags& flags, int64_t depth);
  absl::StatusOr<Part> ParseSequence(Flags& flags, int64_t depth, bool may_set_flags);
  // Parses the group whose opening parenthesis at `start` was read. Returns nullopt for a comment
  // and for global flags.
  absl::StatusOr<std::optional<Part>> ParseGroup(int64_t start, Flags& flags, int64_t depth,
                                                 bool may_set_flags);
  absl::StatusOr<Part> ParseGroupBody(int64_t start, Flags flags, int64_t depth);
  absl::StatusOr<Part> ParseLookAround(int64_t start, bool behind, Flags flags, int64_t depth);
  absl::StatusOr<Part> ParseConditional(int64_t start, Flags flags, int64_t depth);
  absl::StatusOr<Part> ParseNamedReference(int64_t start, const Flags& flags);
  // Parses flags up to `)` or `:`. Returns true for `)`: the flags are global.
  absl::StatusOr<bool> ParseFlags(int64_t start, Flags& flags);
  absl::StatusOr<std::string> ParseName(char32_t terminator);
  // Parses `{m,n}`. Returns nullopt, and leaves the position unchanged, if the brace is a plain
  // character.
  absl::StatusOr<std::optional<RepeatBounds>> ParseBraces();
  // Replaces the last element of `parts` by its repeat. `token` is the first token of the repeat
  // operator; `bounds` are the operator's parsed bounds.
  absl::Status Repeat(const Token& token, const RepeatBounds& bounds, Item& last,
                      std::vector<Part>& parts);
  absl::StatusOr<PatternNode> ParseSet(int64_t start, const Flags& flags);
  // Parses one member of a set. Returns a code point, or adds a class to `set` and returns nullopt.
  absl::StatusOr<std::optional<char32_t>> ParseSetMember(const Token& token, const Flags& flags,
                                                         CharacterSet& set);
  absl::StatusOr<Part> ParseEscape(const Token& token, const Flags& flags);
  absl::StatusOr<Part> ParseDigitEscape(const Token& token, const Flags& flags);
  // Parses an escape that means one character, both inside and outside sets. Returns nullopt for
  // any other escape.
  absl::StatusOr<std::optional<char32_t>> ParseCharacterEscape(const Token& token);
  // Reads up to `most` characters that are in `digits`.
  std::u32string TakeDigits(std::u32string_view digits, size_t most);
  absl::StatusOr<Width> Refer(int64_t group, int64_t position);

  const std::string_view text_;
  const bool keep_groups_;
  std::u32string characters_;
  int64_t length_ = 0;
  std::vector<Token> tokens_;
  size_t next_ = 0;

  std::vector<Group> groups_{Group{}};  // by number; 0 is the whole pattern
  absl::flat_hash_map<std::string, int64_t> group_names_;
  // Within a look-behind: the number of the first group that the outermost look-behind contains.
  std::optional<int64_t> look_behind_groups_;
  // The group numbers that conditionals refer to, each with its position. Parse checks at the end
  // that the groups exist.
  std::vector<std::pair<int64_t, int64_t>> conditional_groups_;
  absl::Status final_backslash_;  // an error if the pattern ends in a lone backslash
  // The error for the first look-behind without a fixed width. Python reports this error only after
  // it has read the whole pattern.
  absl::Status behind_width_;
  bool global_ascii_ = false;
  bool global_unicode_ = false;
  absl::Status refusal_;
};

absl::Status Parser::Bad(int64_t position, std::string_view what,
                         std::string_view python_type) const {
  return InvalidArgument(
      Reason::kBadPattern,
      StrCat("bad pattern ", QuotePattern(text_), ": ", what, " at position ", position),
      {{fact::kValue, text_}, {fact::kPosition, position}}, python_type);
}

absl::Status Parser::Refusal(Reason reason, int64_t position, std::string_view what) const {
  absl::Status status =
      WithReason(absl::InvalidArgumentError(StrCat("pattern ", QuotePattern(text_), ": ", what,
                                                   " at position ", position)),
                 reason);
  return reason == Reason::kUnsupportedPattern
             ? WithFacts(std::move(status), {{fact::kValue, text_}, {fact::kPosition, position}})
             : status;
}

void Parser::Refuse(Reason reason, int64_t position, std::string_view what) {
  if (refusal_.ok()) {
    refusal_ = Refusal(reason, position, what);
  }
}

void Parser::RefuseBacktracking(int64_t position, std::string_view construct) {
  if (!keep_groups_) {
    Refuse(Reason::kUnsupportedPattern, position,
           StrCat(construct, " cannot be matched in linear time"));
  }
}

std::string Parser::Quote(int64_t first, int64_t last) const {
  std::string out;
  for (int64_t i = first; i < std::min(last, length_); ++i) {
    AppendUtf8(characters_[i], out);
  }
  return out;
}

absl::Status Parser::Tokenize() {
  std::optional<std::u32string> characters = DecodeUtf8(text_);
  if (!characters.has_value()) {
    return InvalidArgument(Reason::kBadPattern, "the pattern is not valid UTF-8", "error");
  }
  characters_ = *std::move(characters);
  length_ = static_cast<int64_t>(characters_.size());
  for (int64_t i = 0; i < length_; ++i) {
    Token token{characters_[i], false, i};
    if (token.character == '\\') {
      if (++i == length_) {
        final_backslash_ = Bad(token.position, "backslash without a character after it");
        break;
      }
      token.character = characters_[i];
      token.escaped = true;
    }
    tokens_.push_back(token);
  }
  return absl::OkStatus();
}

absl::StatusOr<PatternNode> Parser::Parse() {
  SHARDMESH_RETURN_IF_ERROR(Tokenize());
  Flags flags;
  absl::StatusOr<Part> parsed = ParseAlternation(flags, 0);
  if (!final_backslash_.ok()) {
    // Python reads one item ahead: it reports the final backslash unless it found another error
    // before. Of the possible earlier errors, only OverflowError has another class than this error.
    const bool seen = AtEnd() || PythonTypeOf(parsed.status()) != "OverflowError";
    return seen ? final_backslash_ : parsed.status();
  }
  SHARDMESH_ASSIGN_OR_RETURN(Part whole, std::move(parsed));
  // Make the checks in Python's order, because the first error decides the class of the exception.
  if (global_ascii_ && global_unicode_) {
    return Bad(0, "the flags a and u exclude one another", "ValueError");
  }
  if (!AtEnd()) {
    return Bad(Position(), "closing parenthesis without an opening one");
  }
  for (const auto& [group, position] : conditional_groups_) {
    if (group >= static_cast<int64_t>(groups_.size())) {
      return Bad(position, StrCat("there is no group ", group, ", referred to"));
    }
  }
  SHARDMESH_RETURN_IF_ERROR(behind_width_);
  SHARDMESH_RETURN_IF_ERROR(refusal_);
  return std::move(whole.node);
}

absl::Status Parser::CheckDepth(int64_t depth) const {
  if (depth <= Pattern::kMaxDepth) {
    return absl::OkStatus();
  }
  return WithFacts(
      Refusal(Reason::kLimitExceeded, Position(),
              StrCat("groups are nested more than ", Pattern::kMaxDepth, " deep; limit exceeded")),
      {{fact::kHave, depth}, {fact::kLimit, Pattern::kMaxDepth}});
}

absl::StatusOr<Part> Parser::ParseAlternation(Flags& flags, int64_t depth) {
  SHARDMESH_RETURN_IF_ERROR(CheckDepth(depth));
  SHARDMESH_ASSIGN_OR_RETURN(Part whole, ParseSequence(flags, depth, depth == 0));
  if (!NextIs('|')) {
    return whole;
  }
  PatternNode alternation;
  alternation.kind = PatternNode::Kind::kAlternation;
  alternation.children.push_back(std::move(whole.node));
  Width width = whole.width;
  while (Consume('|')) {
    SHARDMESH_ASSIGN_OR_RETURN(Part branch, ParseSequence(flags, depth, false));
    alternation.children.push_back(std::move(branch.node));
    width = Either(width, branch.width);
  }
  return Part{std::move(alternation), width};
}

absl::StatusOr<Part> Parser::ParseSequence(Flags& flags, int64_t depth, bool may_set_flags) {
  std::vector<Part> parts;
  Item last = Item::kNothing;
  const auto add = [&](Part part, Item item) {
    parts.push_back(std::move(part));
    last = item;
  };
  constexpr Width kOne = {1, 1};
  while (!AtEnd() && !NextIsOneOf(U"|)")) {
    const Token token = tokens_[next_++];
    if (flags.verbose && token.IsOneOf(kVerboseSpace)) {
      continue;
    }
    if (flags.verbose && token.Is('#')) {
      while (!AtEnd() && !tokens_[next_++].Is('\n')) {
      }
      continue;
    }
    if (token.escaped) {
      SHARDMESH_ASSIGN_OR_RETURN(Part part, ParseEscape(token, flags));
      const bool is_assertion = part.node.kind >= PatternNode::Kind::kTextStart;
      add(std::move(part), is_assertion ? Item::kAssertion : Item::kOther);
      continue;
    }
    switch (token.character) {
      case '[': {
        SHARDMESH_ASSIGN_OR_RETURN(PatternNode node, ParseSet(token.position, flags));
        add({std::move(node), kOne}, Item::kOther);
        break;
      }
      case '.': {
        CharacterSet set;
        set.negated = true;
        if (!flags.dot_all) {
          set.ranges = {{'\n', '\n'}};
        }
        add({SetNode(std::move(set), Flags{}), kOne}, Item::kOther);
        break;
      }
      case '^':
        add({AssertionNode(flags.multi_line ? PatternNode::Kind::kLineStart
                                            : PatternNode::Kind::kTextStart),
             Width{}},
            Item::kAssertion);
        break;
      case '$':
        add({AssertionNode(flags.multi_line ? PatternNode::Kind::kLineEnd
                                            : PatternNode::Kind::kTextEndOrFinalNewline),
             Width{}},
            Item::kAssertion);
        break;
      case '(': {
        SHARDMESH_ASSIGN_OR_RETURN(
            std::optional<Part> part,
            ParseGroup(token.position, flags, depth, may_set_flags && parts.empty()));
        if (part.has_value()) {
          add(*std::move(part), Item::kOther);
        }
        break;
      }
      case '{': {
        SHARDMESH_ASSIGN_OR_RETURN(const std::optional<RepeatBounds> bounds, ParseBraces());
        if (!bounds.has_value()) {
          add({LiteralNode('{', flags), kOne}, Item::kOther);
          break;
        }
        SHARDMESH_RETURN_IF_ERROR(Repeat(token, *bounds, last, parts));
        break;
      }
      case '*':
        SHARDMESH_RETURN_IF_ERROR(Repeat(token, {0, std::nullopt}, last, parts));
        break;
      case '+':
        SHARDMESH_RETURN_IF_ERROR(Repeat(token, {1, std::nullopt}, last, parts));
        break;
      case '?':
        SHARDMESH_RETURN_IF_ERROR(Repeat(token, {0, 1}, last, parts));
        break;
      default:
        add({LiteralNode(token.character, flags), kOne}, Item::kOther);
    }
  }
  if (parts.size() == 1) {
    return std::move(parts.front());
  }
  Part whole;
  for (Part& part : parts) {
    whole.width = whole.width + part.width;
    whole.node.children.push_back(std::move(part.node));
  }
  return whole;
}

absl::StatusOr<std::optional<Parser::RepeatBounds>> Parser::ParseBraces() {
  const int64_t start = Position() - 1;
  const size_t after_brace = next_;
  if (NextIs('}')) {
    return std::nullopt;
  }
  const auto number = [](std::u32string_view digits) {
    int64_t value = 0;
    for (const char32_t digit : digits) {
      value = std::min<int64_t>(kPythonMaxRepeat, value * 10 + (digit - '0'));
    }
    return value;
  };
  const std::u32string low = TakeDigits(kDigits, tokens_.size());
  const std::u32string high = Consume(',') ? TakeDigits(kDigits, tokens_.size()) : low;
  if (!Consume('}')) {
    next_ = after_brace;
    return std::nullopt;
  }
  RepeatBounds bounds;
  bounds.min = number(low);
  if (!high.empty()) {
    bounds.max = number(high);
  }
  const std::string quoted = Quote(start, Position());
  if (std::max(bounds.min, bounds.max.value_or(0)) >= kPythonMaxRepeat) {
    return Bad(start, StrCat("the repeat ", quoted, " is too large"), "OverflowError");
  }
  if (bounds.max.has_value() && *bounds.max < bounds.min) {
    return Bad(start, StrCat("the repeat ", quoted, " has its bounds reversed"));
  }
  return bounds;
}

absl::Status Parser::Repeat(const Token& token, const RepeatBounds& bounds, Item& last,
                            std::vector<Part>& parts) {
  const std::string quoted = Quote(token.position, Position());
  if (last == Item::kNothing || last == Item::kAssertion) {
    return Bad(token.position, StrCat("nothing that ", quoted, " could repeat"));
  }
  if (last == Item::kRepeat) {
    return Bad(token.position, StrCat("the repeat ", quoted, " follows another repeat"));
  }
  const int64_t repeats = std::max(bounds.min, bounds.max.value_or(0));
  if (repeats > Pattern::kMaxRepeat && refusal_.ok()) {
    refusal_ =
        WithFacts(Refusal(Reason::kLimitExceeded, token.position,
                          StrCat("repeat ", quoted, " exceeds the limit of ", Pattern::kMaxRepeat)),
                  {{fact::kHave, repeats}, {fact::kLimit, Pattern::kMaxRepeat}});
  }
  const bool lazy = Consume('?');
  const bool possessive = !lazy && Consume('+');
  if (possessive) {
    RefuseBacktracking(token.position,
                       StrCat("possessive repeat ", Quote(token.position, Position())));
  }
  Part& repeated = parts.back();
  const Width width = repeated.width;
  repeated.width.least = SaturatingMultiply(width.least, bounds.min);
  repeated.width.most = bounds.max.has_value() ? SaturatingMultiply(width.most, *bounds.max)
                        : width.most > 0       ? kUnbounded
                                               : 0;
  PatternNode node;
  node.kind = PatternNode::Kind::kRepeat;
  node.min = bounds.min;
  node.max = bounds.max;
  node.lazy = keep_groups_ && lazy;
  node.possessive = keep_groups_ && possessive;
  node.children.push_back(std::move(repeated.node));
  repeated.node = std::move(node);
  last = Item::kRepeat;
  return absl::OkStatus();
}

absl::StatusOr<std::string> Parser::ParseName(char32_t terminator) {
  const int64_t start = Position();
  std::string name;
  while (!AtEnd()) {
    const Token token = tokens_[next_++];
    if (token.Is(terminator)) {
      if (name.empty()) {
        return Bad(start, "missing name");
      }
      return name;
    }
    if (token.escaped) {
      name += '\\';
    }
    AppendUtf8(token.character, name);
  }
  return Bad(start, "name without an end");
}

absl::StatusOr<std::optional<Part>> Parser::ParseGroup(int64_t start, Flags& flags, int64_t depth,
                                                       bool may_set_flags) {
  Flags inner = flags;
  bool captures = true;
  bool atomic = false;
  std::string name;
  int64_t name_position = 0;
  if (Consume('?')) {
    captures = false;
    if (AtEnd()) {
      return Bad(start, "group (? without an end");
    }
    const Token token = tokens_[next_++];
    if (token.Is('#')) {
      while (!AtEnd()) {
        if (tokens_[next_++].Is(')')) {
          return std::nullopt;
        }
      }
      return Bad(start, "comment without an end");
    }
    if (token.IsOneOf(U"=!")) {
      return ParseLookAround(start, /*behind=*/false, flags, depth);
    }
    if (token.Is('<') && NextIsOneOf(U"=!")) {
      ++next_;
      return ParseLookAround(start, /*behind=*/true, flags, depth);
    }
    if (token.Is('(')) {
      return ParseConditional(start, flags, depth);
    }
    if (token.Is('P') && Consume('=')) {
      return ParseNamedReference(start, flags);
    }
    if (token.Is('P') && Consume('<')) {
      captures = true;
      name_position = Position();
      SHARDMESH_ASSIGN_OR_RETURN(name, ParseName('>'));
      if (!IsIdentifier(name)) {
        return Bad(name_position, StrCat("group name '", name, "' is not an identifier"));
      }
    } else if (token.Is('>')) {
      atomic = true;
      RefuseBacktracking(start, "atomic group (?>...)");
    } else if (token.IsOneOf(U"iLmsxatu-")) {
      --next_;
      SHARDMESH_ASSIGN_OR_RETURN(const bool global, ParseFlags(start, inner));
      if (global) {
        if (!may_set_flags) {
          return Bad(start, "flags for the whole pattern, which must stand at its beginning,");
        }
        flags = inner;
        return std::nullopt;
      }
    } else if (!token.Is(':')) {
      return Bad(start, StrCat("unknown group ", Quote(start, Position())));
    }
  }
  if (!captures) {
    SHARDMESH_ASSIGN_OR_RETURN(Part body, ParseGroupBody(start, inner, depth));
    if (atomic) {
      PatternNode node;
      node.kind = PatternNode::Kind::kAtomic;
      node.children.push_back(std::move(body.node));
      body.node = std::move(node);
    }
    return body;
  }
  const size_t number = groups_.size();
  if (!name.empty() && !group_names_.emplace(name, number).second) {
    return Bad(name_position, StrCat("a second group of the name '", name, "'"));
  }
  groups_.push_back(Group{});
  SHARDMESH_ASSIGN_OR_RETURN(Part body, ParseGroupBody(start, inner, depth));
  groups_[number] = {true, body.width};
  if (keep_groups_) {
    PatternNode group;
    group.group = static_cast<int64_t>(number);
    group.children.push_back(std::move(body.node));
    body.node = std::move(group);
  }
  return body;
}

absl::StatusOr<Part> Parser::ParseGroupBody(int64_t start, Flags flags, int64_t depth) {
  SHARDMESH_ASSIGN_OR_RETURN(Part body, ParseAlternation(flags, depth + 1));
  if (!Consume(')')) {
    return Bad(start, "missing ) for the group opened");
  }
  return body;
}

absl::StatusOr<Part> Parser::ParseLookAround(int64_t start, bool behind, Flags flags,
                                             int64_t depth) {
  RefuseBacktracking(
      start, StrCat(behind ? "look-behind " : "look-ahead ", Quote(start, Position()), "...)"));
  const bool negated = tokens_[next_ - 1].Is('!');
  const bool outermost = behind && !look_behind_groups_.has_value();
  if (outermost) {
    look_behind_groups_ = static_cast<int64_t>(groups_.size());
  }
  SHARDMESH_ASSIGN_OR_RETURN(Part body, ParseGroupBody(start, flags, depth));
  if (outermost) {
    look_behind_groups_.reset();
  }
  if (behind && behind_width_.ok()) {
    if (body.width.least != body.width.most) {
      behind_width_ = Bad(start, "look-behind of no fixed width");
    } else if (body.width.most >= kPythonMaxRepeat) {
      behind_width_ = Bad(start, "look-behind of too many characters");
    }
  }
  PatternNode node;
  node.kind = PatternNode::Kind::kLookAround;
  node.negated = negated;
  if (behind) {
    node.behind = body.width.least;
  }
  node.children.push_back(std::move(body.node));
  return Part{std::move(node), {}};
}

absl::StatusOr<Part> Parser::ParseConditional(int64_t start, Flags flags, int64_t depth) {
  RefuseBacktracking(start, "conditional (?(...)...)");
  SHARDMESH_RETURN_IF_ERROR(CheckDepth(depth + 1));
  const int64_t name_position = Position();
  SHARDMESH_ASSIGN_OR_RETURN(const std::string name, ParseName(')'));
  int64_t group = 0;
  if (IsIdentifier(name)) {
    const auto found = group_names_.find(name);
    if (found == group_names_.end()) {
      return Bad(name_position, StrCat("there is no group '", name, "', referred to"));
    }
    group = found->second;
  } else {
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      return Bad(name_position, StrCat("group name '", name, "' is not an identifier"));
    }
    for (const char digit : name) {
      group = std::min<int64_t>(kPythonMaxRepeat, group * 10 + (digit - '0'));
    }
    if (group == 0) {
      return Bad(name_position, "reference to group 0");
    }
    conditional_groups_.emplace_back(group, name_position);
  }
  if (look_behind_groups_.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(Refer(group, name_position).status());
  }
  SHARDMESH_ASSIGN_OR_RETURN(Part yes, ParseSequence(flags, depth + 1, false));
  Part no;
  if (Consume('|')) {
    SHARDMESH_ASSIGN_OR_RETURN(no, ParseSequence(flags, depth + 1, false));
    if (NextIs('|')) {
      return Bad(Position(), "third branch of a conditional");
    }
  }
  if (!Consume(')')) {
    return Bad(start, "missing ) for the group opened");
  }
  PatternNode node;
  node.kind = PatternNode::Kind::kConditional;
  node.group = group;
  node.children.push_back(std::move(yes.node));
  node.children.push_back(std::move(no.node));
  return Part{std::move(node), Either(yes.width, no.width)};
}

absl::StatusOr<Width> Parser::Refer(int64_t group, int64_t position) {
  if (group >= static_cast<int64_t>(groups_.size())) {
    return Bad(position, StrCat("there is no group ", group, ", referred to"));
  }
  if (!groups_[group].closed) {
    return Bad(position, StrCat("reference to group ", group, ", which is still open,"));
  }
  if (look_behind_groups_.has_value() && group >= *look_behind_groups_) {
    return Bad(position, StrCat("reference to group ", group, " of the same look-behind"));
  }
  return groups_[group].width;
}

absl::StatusOr<Part> Parser::ParseNamedReference(int64_t start, const Flags& flags) {
  const int64_t position = Position();
  SHARDMESH_ASSIGN_OR_RETURN(const std::string name, ParseName(')'));
  const auto found = group_names_.find(name);
  if (found == group_names_.end()) {
    return Bad(position, StrCat("there is no group '", name, "', referred to"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Width width, Refer(found->second, position));
  RefuseBacktracking(start, StrCat("back-reference ", Quote(start, Position())));
  return Part{BackReferenceNode(found->second, flags), width};
}

absl::StatusOr<bool> Parser::ParseFlags(int64_t start, Flags& flags) {
  const auto set = [&](char32_t letter, bool value) {
    switch (letter) {
      case 'i':
        flags.ignore_case = value;
        break;
      case 'm':
        flags.multi_line = value;
        break;
      case 's':
        flags.dot_all = value;
        break;
      case 'x':
        flags.verbose = value;
        break;
      case 'a':
        flags.ascii = true;
        break;
      case 'u':
        flags.ascii = false;
        break;
    }
  };
  constexpr std::u32string_view kFlags = U"iLmsxatu";
  std::u32string on;
  while (NextIsOneOf(kFlags)) {
    const char32_t letter = tokens_[next_++].character;
    on.push_back(letter);
    if (letter == 'L') {
      return Bad(Position() - 1, "flag L, which is for bytes,");
    }
    set(letter, true);
  }
  const bool has_a = on.find('a') != on.npos;
  const bool has_u = on.find('u') != on.npos;
  if (has_a && has_u) {
    return Bad(start, "the flags a and u together");
  }
  const size_t template_flag = on.find('t');
  if (Consume(')')) {
    if (template_flag != on.npos) {
      Refuse(Reason::kUnsupportedPattern, start, "flag t is not supported");
    }
    global_ascii_ |= has_a;
    global_unicode_ |= has_u;
    return true;
  }
  if (template_flag != on.npos) {
    return Bad(start, "flag t for a part of the pattern");
  }
  if (Consume('-')) {
    size_t off = 0;
    for (; NextIsOneOf(kFlags); ++off) {
      const char32_t letter = tokens_[next_++].character;
      if (std::u32string_view(U"aLut").find(letter) != std::u32string_view::npos) {
        return Bad(Position() - 1, "a flag that cannot be turned off");
      }
      if (on.find(letter) != on.npos) {
        return Bad(Position() - 1, "a flag that is both turned on and off");
      }
      set(letter, false);
    }
    if (off == 0) {
      return Bad(Position(), "missing flag");
    }
  }
  if (!Consume(':')) {
    return Bad(Position(), "unknown flag, or no : or ) after the flags,");
  }
  return false;
}

std::u32string Parser::TakeDigits(std::u32string_view digits, size_t most) {
  std::u32string out;
  while (out.size() < most && NextIsOneOf(digits)) {
    out.push_back(tokens_[next_++].character);
  }
  return out;
}

absl::StatusOr<std::optional<char32_t>> Parser::ParseCharacterEscape(const Token& token) {
  size_t hex_digits = 0;
  switch (token.character) {
    case 'a':
      return U'\a';
    case 'f':
      return U'\f';
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case 'v':
      return U'\v';
    case 'x':
      hex_digits = 2;
      break;
    case 'u':
      hex_digits = 4;
      break;
    case 'U':
      hex_digits = 8;
      break;
    case 'N': {
      if (!Consume('{')) {
        return Bad(token.position, "\\N without {NAME}");
      }
      SHARDMESH_RETURN_IF_ERROR(ParseName('}').status());
      Refuse(Reason::kUnsupportedPattern, token.position,
             StrCat("named character ", Quote(token.position, Position()),
                    " is not supported (write \\uXXXX)"));
      return U' ';
    }
    default:
      if (IsAsciiLetter(token.character) ||
          kDigits.find(token.character) != std::u32string_view::npos) {
        return std::nullopt;
      }
      return token.character;
  }
  const std::u32string digits = TakeDigits(kHexDigits, hex_digits);
  int64_t value = 0;
  for (const char32_t digit : digits) {
    value =
        value * 16 + static_cast<int64_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
  }
  if (digits.size() != hex_digits || value > int64_t{kMaxCodePoint}) {
    return Bad(token.position,
               StrCat("the escape ", Quote(token.position, Position()),
                      digits.size() != hex_digits
                          ? StrCat(", which needs ", hex_digits, " hexadecimal digits,")
                          : " beyond the last code point"));
  }
  return static_cast<char32_t>(value);
}

absl::StatusOr<Part> Parser::ParseDigitEscape(const Token& token, const Flags& flags) {
  const auto octal = [](std::u32string_view digits) {
    char32_t value = 0;
    for (const char32_t digit : digits) {
      value = value * 8 + (digit - '0');
    }
    return value;
  };
  const auto is_octal = [](char32_t c) { return c >= '0' && c <= '7'; };
  std::u32string digits(1, token.character);
  if (token.character == '0') {
    digits += TakeDigits(kOctalDigits, 2);
    return Part{LiteralNode(octal(digits), flags), {1, 1}};
  }
  digits += TakeDigits(kDigits, 1);
  if (digits.size() == 2 && is_octal(digits[0]) && is_octal(digits[1]) &&
      NextIsOneOf(kOctalDigits)) {
    digits += TakeDigits(kOctalDigits, 1);
    if (octal(digits) > 0377) {
      return Bad(token.position, StrCat("octal escape ", Quote(token.position, Position()),
                                        ", which is above \\377,"));
    }
    return Part{LiteralNode(octal(digits), flags), {1, 1}};
  }
  int64_t group = 0;
  for (const char32_t digit : digits) {
    group = group * 10 + (digit - '0');
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Width width, Refer(group, token.position));
  RefuseBacktracking(token.position, StrCat("back-reference \\", group));
  return Part{BackReferenceNode(group, flags), width};
}

absl::StatusOr<Part> Parser::ParseEscape(const Token& token, const Flags& flags) {
  switch (token.character) {
    case 'A':
      return Part{AssertionNode(PatternNode::Kind::kTextStart), {}};
    case 'Z':
      return Part{AssertionNode(PatternNode::Kind::kTextEnd), {}};
    case 'b':
      return Part{AssertionNode(flags.ascii ? PatternNode::Kind::kAsciiWordBoundary
                                            : PatternNode::Kind::kWordBoundary),
                  {}};
    case 'B':
      return Part{AssertionNode(flags.ascii ? PatternNode::Kind::kNotAsciiWordBoundary
                                            : PatternNode::Kind::kNotWordBoundary),
                  {}};
    default:
      break;
  }
  if (CharacterSet set; AddNamedClass(token.character, flags.ascii, set)) {
    return Part{SetNode(std::move(set), flags), {1, 1}};
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<char32_t> c, ParseCharacterEscape(token));
  if (c.has_value()) {
    return Part{LiteralNode(*c, flags), {1, 1}};
  }
  if (IsAsciiLetter(token.character)) {
    return Bad(token.position,
               StrCat("unknown escape ", Quote(token.position, token.position + 2)));
  }
  return ParseDigitEscape(token, flags);
}

absl::StatusOr<std::optional<char32_t>> Parser::ParseSetMember(const Token& token,
                                                               const Flags& flags,
                                                               CharacterSet& set) {
  if (!token.escaped) {
    return token.character;
  }
  if (token.character == 'b') {
    return U'\b';
  }
  if (AddNamedClass(token.character, flags.ascii, set)) {
    return std::nullopt;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<char32_t> c, ParseCharacterEscape(token));
  if (c.has_value()) {
    return c;
  }
  if (token.character < '0' || token.character > '7') {
    return Bad(token.position,
               StrCat("unknown escape ", Quote(token.position, token.position + 2)));
  }
  char32_t value = token.character - '0';
  for (const char32_t digit : TakeDigits(kOctalDigits, 2)) {
    value = value * 8 + (digit - '0');
  }
  if (value > 0377) {
    return Bad(token.position, StrCat("octal escape ", Quote(token.position, Position()),
                                      ", which is above \\377,"));
  }
  return value;
}

absl::StatusOr<PatternNode> Parser::ParseSet(int64_t start, const Flags& flags) {
  CharacterSet set;
  set.negated = Consume('^');
  for (bool first_member = true;; first_member = false) {
    if (AtEnd()) {
      return Bad(start, "missing ] for the set opened");
    }
    const Token token = tokens_[next_++];
    if (token.Is(']') && !first_member) {
      return SetNode(std::move(set), flags);
    }
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<char32_t> first,
                               ParseSetMember(token, flags, set));
    const bool is_range = NextIs('-') && next_ + 1 < tokens_.size() && !tokens_[next_ + 1].Is(']');
    if (!is_range) {
      if (first.has_value()) {
        set.ranges.push_back({*first, *first});
      }
      continue;
    }
    ++next_;  // the dash
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<char32_t> last,
                               ParseSetMember(tokens_[next_++], flags, set));
    if (!first.has_value() || !last.has_value() || *last < *first) {
      return Bad(token.position,
                 StrCat("range ", Quote(token.position, Position()),
                        first.has_value() && last.has_value() ? ", which runs backwards,"
                                                              : ", which has a class as an end,"));
    }
    set.ranges.push_back({*first, *last});
  }
}

absl::Status CheckPatternLength(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > Pattern::kMaxLength) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("a pattern of ", text.size(), " bytes; the limit is ",
                                          Pattern::kMaxLength, ", split it into several rules")),
        Reason::kLimitExceeded, {{fact::kHave, text.size()}, {fact::kLimit, Pattern::kMaxLength}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PatternNode> ParsePattern(std::string_view text) {
  SHARDMESH_RETURN_IF_ERROR(CheckPatternLength(text));
  return Parser(text, /*keep_groups=*/false).Parse();
}

absl::StatusOr<PatternWithGroups> ParsePatternWithGroups(std::string_view text) {
  SHARDMESH_RETURN_IF_ERROR(CheckPatternLength(text));
  Parser parser(text, /*keep_groups=*/true);
  PatternWithGroups pattern;
  SHARDMESH_ASSIGN_OR_RETURN(pattern.root, parser.Parse());
  pattern.group_count = parser.group_count();
  pattern.group_names = parser.group_names();
  return pattern;
}

std::string QuotePattern(std::string_view text) {
  const std::string repr = PythonRepr(text);
  std::string out;
  out.reserve(repr.size());
  for (size_t i = 0; i < repr.size(); ++i) {
    if (repr[i] == '\\' && (repr[i + 1] == '\\' || repr[i + 1] == '\'')) {
      ++i;  // keep the original backslash, drop the one that repr added
    }
    out += repr[i];
  }
  return out;
}

}  // namespace shardmesh
