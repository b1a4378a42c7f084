// Removes leading exclusions, `(?!BODY)`, from patterns, and adds rules that have the same effect.
#include "sharding/rules/exclusion.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "sharding/pattern/difference.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/syntax.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr std::string_view kOpening = "(?!";
// Upper bound on the patterns that are spelled out. Each may take a few tenths of a second.
constexpr int64_t kMaxSpelledOut = 100;

// A pattern of the form `^(?!BODY)(?!BODY)REST`, optionally after flags.
struct Exclusion {
  std::string flags;   // `(?s)`, or empty
  std::string anchor;  // `^` or `\A`
  std::vector<std::string> bodies;
  std::string rest;
};

// Reads a pattern part by part. It parses only groups and sets, and only to find their ends.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Consume(std::string_view prefix) {
    if (!text_.substr(at_).starts_with(prefix)) {
      return false;
    }
    at_ += prefix.size();
    return true;
  }
  std::string_view Rest() const { return text_.substr(at_); }

  // Returns the text up to the closing parenthesis of the enclosing group, and skips that
  // parenthesis. Returns nullopt if there is no such parenthesis. Sets `has_choice` to true if the
  // text is an alternation.
  std::optional<std::string_view> TakeGroup(bool* has_choice = nullptr) {
    const size_t start = at_;
    int64_t depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ')' && depth == 0) {
        return text_.substr(start, at_++ - start);
      }
      if (c == '|' && depth == 0 && has_choice != nullptr) {
        *has_choice = true;
      }
      if (c == '[') {
        SkipSet();
        continue;
      }
      if (Consume("(?#")) {
        at_ = std::min(text_.find(')', at_), text_.size() - 1) + 1;
        continue;
      }
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      at_ += c == '\\' ? 2 : 1;
    }
    at_ = text_.size();
    return std::nullopt;
  }

 private:
  void SkipSet() {
    at_ += text_.substr(at_).starts_with("[^") ? 2 : 1;
    // A closing bracket directly at the start is a member of the set and does not end the set.
    for (size_t first = at_; at_ < text_.size() && (text_[at_] != ']' || at_ == first);) {
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    ++at_;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

bool HasChoice(std::string_view text) {
  bool has_choice = false;
  Scanner(text).TakeGroup(&has_choice);
  return has_choice;
}

// Returns the parts of a pattern that begins with an exclusion; nullopt for any other pattern.
std::optional<Exclusion> ParseExclusion(std::string_view pattern) {
  Exclusion out;
  // Accept only the flags a, i and s: verbose mode would change the meaning of the text, and
  // multi-line mode would change the meaning of ^.
  if (pattern.starts_with("(?")) {
    const size_t end = pattern.find_first_not_of("ais", 2);
    if (end == std::string_view::npos || end == 2 || pattern[end] != ')') {
      return std::nullopt;
    }
    out.flags = std::string(pattern.substr(0, end + 1));
    pattern.remove_prefix(end + 1);
  }
  Scanner scanner(pattern);
  out.anchor = scanner.Consume("^") ? "^" : scanner.Consume("\\A") ? "\\A" : "";
  while (scanner.Consume(kOpening)) {
    const std::optional<std::string_view> body = scanner.TakeGroup();
    if (!body.has_value()) {
      return std::nullopt;
    }
    out.bodies.emplace_back(*body);
  }
  out.rest = std::string(scanner.Rest());
  // Refuse an alternation after the exclusion: the exclusion would belong to its first branch only.
  // Refuse a repeat operator after the exclusion: it would repeat the exclusion.
  if (out.anchor.empty() || out.bodies.empty() || HasChoice(out.rest) ||
      out.rest.find_first_of("*+?{") == 0) {
    return std::nullopt;
  }
  return out;
}

// Returns whether the node matches the empty text at the start of every text.
bool MatchesEmptyStart(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::Kind::kSequence:
      return std::all_of(node.children.begin(), node.children.end(), MatchesEmptyStart);
    case PatternNode::Kind::kAlternation:
      return std::any_of(node.children.begin(), node.children.end(), MatchesEmptyStart);
    case PatternNode::Kind::kRepeat:
      return node.min == 0 || MatchesEmptyStart(node.children.front());
    case PatternNode::Kind::kTextStart:
    case PatternNode::Kind::kLineStart:
      return true;
    default:
      return false;
  }
}

bool MatchesEveryName(std::string_view pattern) {
  const absl::StatusOr<PatternNode> node = ParsePattern(pattern);
  return node.ok() && MatchesEmptyStart(*node);
}

// Returns the error of a pattern that needs backtracking, or that Pattern refuses.
absl::Status CheckLinear(std::string_view pattern) {
  SHARDMESH_RETURN_IF_ERROR(ParsePattern(pattern).status());
  return Pattern::Create(pattern).status();
}

// Returns the patterns that replace the exclusion if the next rule matches every name: one for each
// body, then one for the rest. Returns nullopt if one of them needs backtracking, or if Pattern
// refuses it.
std::optional<std::vector<std::string>> Split(const Exclusion& exclusion) {
  std::vector<std::string> patterns;
  for (const std::string& body : exclusion.bodies) {
    const bool choice = HasChoice(body);
    patterns.push_back(
        StrCat(exclusion.flags, exclusion.anchor, choice ? "(?:" : "", body, choice ? ")" : ""));
  }
  patterns.push_back(StrCat(exclusion.flags, exclusion.anchor, exclusion.rest));
  for (const std::string& pattern : patterns) {
    if (!CheckLinear(pattern).ok()) {
      return std::nullopt;
    }
  }
  return patterns;
}

// Returns one pattern for the names that the exclusion matches; nullopt if it matches none.
absl::StatusOr<std::optional<std::string>> SpellOut(const Exclusion& exclusion) {
  // Python accepts the whole pattern, so a part that does not parse alone is only unsupported here.
  const auto parse = [&exclusion](std::string_view text) -> absl::StatusOr<PatternNode> {
    absl::StatusOr<PatternNode> node = ParsePattern(StrCat(exclusion.flags, text));
    if (ReasonOf(node.status()) == Reason::kBadPattern) {
      return WithReason(node.status(), Reason::kUnsupportedPattern);
    }
    return node;
  };
  SHARDMESH_ASSIGN_OR_RETURN(const PatternNode rest, parse(exclusion.rest));
  std::vector<PatternNode> bodies;
  for (const std::string& body : exclusion.bodies) {
    SHARDMESH_ASSIGN_OR_RETURN(bodies.emplace_back(), parse(body));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::optional<std::string> pattern, PatternDifference(rest, bodies));
  if (pattern.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(Pattern::Create(*pattern).status());
  }
  return pattern;
}

}  // namespace

absl::StatusOr<RewrittenRules> RewriteExclusions(absl::Span<const Rule> rules,
                                                 const std::function<bool()>& is_cancelled) {
  RewrittenRules out;
  int64_t spelled_out = 0;
  const auto add = [&](std::string pattern, size_t origin) {
    out.rules.push_back({std::move(pattern), rules[origin].spec});
    out.origins.push_back(static_cast<int64_t>(origin));
  };
  for (size_t i = 0; i < rules.size(); ++i) {
    if (static_cast<int64_t>(out.rules.size()) > RuleSet::kMaxRules) {
      break;
    }
    if (is_cancelled != nullptr && is_cancelled()) {
      return absl::CancelledError(
          StrCat("rewriting was cancelled after ", i, " of ", rules.size(), " rules"));
    }
    const std::string& pattern = rules[i].pattern;
    const absl::Status status = CheckLinear(pattern);
    if (status.ok()) {
      add(pattern, i);
      continue;
    }
    const std::optional<Exclusion> exclusion =
        ReasonOf(status) == Reason::kUnsupportedPattern ? ParseExclusion(pattern) : std::nullopt;
    if (!exclusion.has_value()) {
      return WithContext(status, StrCat("rule ", i));
    }
    out.changed = true;
    if (i + 1 < rules.size() && MatchesEveryName(rules[i + 1].pattern)) {
      if (std::optional<std::vector<std::string>> split = Split(*exclusion); split.has_value()) {
        for (size_t k = 0; k < split->size(); ++k) {
          add(std::move((*split)[k]), k + 1 < split->size() ? i + 1 : i);
        }
        continue;
      }
    }
    if (++spelled_out > kMaxSpelledOut) {
      return WithReason(absl::InvalidArgumentError(
                            StrCat("rule ", i, " is the ", spelled_out,
                                   "th whose exclusion has to ", "be spelled out; the limit is ",
                                   kMaxSpelledOut, ", put rules for excluded names before them")),
                        Reason::kLimitExceeded,
                        {{fact::kHave, spelled_out}, {fact::kLimit, kMaxSpelledOut}});
    }
    absl::StatusOr<std::optional<std::string>> spelled = SpellOut(*exclusion);
    if (!spelled.ok()) {
      return WithContext(spelled.status(), StrCat("rule ", i, ", pattern ", QuotePattern(pattern)));
    }
    if (spelled->has_value()) {
      add(**std::move(spelled), i);
    }
  }
  if (static_cast<int64_t>(out.rules.size()) > RuleSet::kMaxRules) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("without exclusions there are more than ", RuleSet::kMaxRules,
                                  " rules, as each excluded pattern becomes one; exclude fewer"),
                           {{fact::kHave, out.rules.size()}, {fact::kLimit, RuleSet::kMaxRules}});
  }
  return out;
}

}  // namespace shardmesh
