// Parses replacements, and puts the groups of a match of RE2 into them.
#include "sharding/pattern/replacement.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "re2/re2.h"
#include "sharding/pattern/pattern.h"
#include "sharding/pattern/printer.h"
#include "sharding/pattern/syntax.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status BadReplacement(std::string_view replacement, size_t position, std::string_view what) {
  return InvalidArgument(
      Reason::kBadPattern,
      StrCat("replacement ", QuotePattern(replacement), ": ", what, " at position ", position),
      {{fact::kValue, replacement}, {fact::kPosition, position}});
}

bool IsGroupDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

bool HasGroup(const PatternNode& node) {
  return node.group > 0 || std::any_of(node.children.begin(), node.children.end(), HasGroup);
}

// Returns whether the node may match the empty text. Requires a node without anything that needs
// backtracking.
bool MayBeEmpty(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::Kind::kSet:
      return false;
    case PatternNode::Kind::kSequence:
      return std::all_of(node.children.begin(), node.children.end(), MayBeEmpty);
    case PatternNode::Kind::kAlternation:
      return std::any_of(node.children.begin(), node.children.end(), MayBeEmpty);
    case PatternNode::Kind::kRepeat:
      return node.min == 0 || MayBeEmpty(node.children.front());
    default:
      return true;  // an assertion
  }
}

// Returns whether the pattern repeats a part with a group that may match the empty text. After the
// last iteration that consumes something, Python matches the part once more, to the empty text, and
// sets its groups. RE2 does not.
bool RepeatsEmptyGroups(const PatternNode& node) {
  return (node.kind == PatternNode::Kind::kRepeat && HasGroup(node.children.front()) &&
          MayBeEmpty(node.children.front())) ||
         std::any_of(node.children.begin(), node.children.end(), RepeatsEmptyGroups);
}

// Returns the number of the group that `name` names: a number or an identifier. nullopt if the
// pattern has no such group.
std::optional<int64_t> GroupOf(std::string_view name, const PatternWithGroups& pattern) {
  int64_t number = 0;
  if (!name.empty() && std::all_of(name.begin(), name.end(), IsGroupDigit)) {
    if (!absl::SimpleAtoi(ToAbsl(name), &number) || number > pattern.group_count) {
      return std::nullopt;
    }
    return number;
  }
  const auto found = pattern.group_names.find(ToAbsl(name));
  return found == pattern.group_names.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

absl::StatusOr<PatternReplacement> PatternReplacement::Create(std::string_view pattern,
                                                              std::string_view replacement) {
  SHARDMESH_RETURN_IF_ERROR(Pattern::Create(pattern).status());
  SHARDMESH_ASSIGN_OR_RETURN(const PatternWithGroups parsed, ParsePatternWithGroups(pattern));
  const PrintedPattern printed = PrintPattern(parsed.root);
  PatternReplacement result;
  result.pattern_ = std::string(pattern);
  result.group_count_ = parsed.group_count;
  result.newline_matters_ = printed.newline_matters;
  result.non_ascii_matters_ = printed.non_ascii_matters;
  result.emptiness_matters_ = printed.emptiness_matters;
  RE2::Options options;
  options.set_log_errors(false);
  if (printed.text.has_value() && !RepeatsEmptyGroups(parsed.root)) {
    if (auto re2 = std::make_shared<RE2>(*printed.text, options); re2->ok()) {
      result.re2_ = std::move(re2);
    }
  }
  if (result.re2_ == nullptr || printed.newline_matters || printed.non_ascii_matters ||
      printed.emptiness_matters) {
    SHARDMESH_ASSIGN_OR_RETURN(BacktrackingProgram program, BacktrackingProgram::Create(pattern));
    result.backtracking_ = std::make_shared<BacktrackingProgram>(std::move(program));
  }
  Piece piece;
  const auto refer = [&](std::string_view group, size_t position) -> absl::Status {
    piece.group = GroupOf(group, parsed);
    if (!piece.group.has_value()) {
      return BadReplacement(
          replacement, position,
          StrCat("the pattern has no group ", QuotePattern(group), ", referred to"));
    }
    result.pieces_.push_back(std::exchange(piece, Piece()));
    return absl::OkStatus();
  };
  for (size_t i = 0; i < replacement.size();) {
    if (replacement[i] != '\\') {
      piece.text.push_back(replacement[i++]);
      continue;
    }
    const size_t start = i++;
    const char letter = i < replacement.size() ? replacement[i++] : '\0';
    if (letter == '\\') {
      piece.text.push_back('\\');
    } else if (letter >= '1' && letter <= '9') {
      const size_t digits = i < replacement.size() && IsGroupDigit(replacement[i]) ? 2 : 1;
      SHARDMESH_RETURN_IF_ERROR(refer(replacement.substr(start + 1, digits), start));
      i = start + 1 + digits;
    } else if (letter == 'g' && i < replacement.size() && replacement[i] == '<' &&
               replacement.find('>', i) != std::string_view::npos) {
      const size_t end = replacement.find('>', i);
      SHARDMESH_RETURN_IF_ERROR(refer(replacement.substr(i + 1, end - i - 1), start));
      i = end + 1;
    } else {
      return BadReplacement(replacement, start,
                            R"(an escape other than \1, \g<1>, \g<name> and \\)");
    }
  }
  if (!piece.text.empty()) result.pieces_.push_back(std::move(piece));
  return result;
}

absl::StatusOr<std::optional<std::vector<std::optional<TextRange>>>> PatternReplacement::Find(
    std::string_view text, SearchBudget* budget) const {
  const bool is_ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  if (re2_ == nullptr || (newline_matters_ && text.ends_with('\n')) ||
      (non_ascii_matters_ && !is_ascii) || (emptiness_matters_ && text.empty())) {
    return backtracking_->Find(text, budget);
  }
  std::vector<re2::StringPiece> found(static_cast<size_t>(group_count_) + 1);
  const re2::StringPiece subject(text.data(), text.size());
  if (!re2_->Match(subject, 0, subject.size(), RE2::UNANCHORED, found.data(),
                   static_cast<int>(found.size()))) {
    return std::nullopt;
  }
  std::vector<std::optional<TextRange>> groups;
  for (const re2::StringPiece& group : found) {
    const int64_t begin = group.data() - text.data();
    groups.push_back(
        group.data() == nullptr
            ? std::nullopt
            : std::optional(TextRange{begin, begin + static_cast<int64_t>(group.size())}));
  }
  return groups;
}

absl::StatusOr<std::optional<std::string>> PatternReplacement::Apply(std::string_view text,
                                                                     SearchBudget* budget) const {
  SHARDMESH_ASSIGN_OR_RETURN(const auto groups, Find(text, budget));
  if (!groups.has_value()) {
    return std::nullopt;
  }
  const auto part = [text](const std::optional<TextRange>& range) {
    return range.has_value() ? text.substr(static_cast<size_t>(range->begin),
                                           static_cast<size_t>(range->end - range->begin))
                             : std::string_view();
  };
  const TextRange match = *groups->front();
  std::string replaced(text.substr(0, static_cast<size_t>(match.begin)));
  for (const Piece& piece : pieces_) {
    replaced += piece.text;
    if (piece.group.has_value()) {
      replaced += part((*groups)[static_cast<size_t>(*piece.group)]);
    }
  }
  replaced += text.substr(static_cast<size_t>(match.end));
  return replaced;
}

}  // namespace shardmesh
