// Compiles a pattern for RE2 or for backtracking, and selects the engine for each text.
#include "sharding/pattern/pattern.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "re2/re2.h"
#include "sharding/pattern/automaton.h"
#include "sharding/pattern/backtracking.h"
#include "sharding/pattern/printer.h"
#include "sharding/pattern/syntax.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Upper bounds on the instructions that one byte of a pattern, such as `.`, compiles to, and that
// each of the classes \s, \d and \w compiles to.
constexpr int64_t kInstructionsOfByte = 8;
constexpr int64_t kInstructionsOfSpaces = 50;
constexpr int64_t kInstructionsOfDigits = 300;
constexpr int64_t kInstructionsOfWords = 1500;

int64_t InstructionsOfEscape(char letter) {
  switch (letter) {
    case 'w':
    case 'W':
      return kInstructionsOfWords;
    case 'd':
    case 'D':
      return kInstructionsOfDigits;
    case 's':
    case 'S':
      return kInstructionsOfSpaces;
    default:
      return 0;
  }
}

// Parses the number at `position` and moves `position` past its digits. Returns at most kMaxRepeat.
int64_t CountAt(std::string_view text, size_t* position) {
  int64_t count = 0;
  for (;
       *position < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[*position]));
       ++*position) {
    count = std::min(count * 10 + (text[*position] - '0'), Pattern::kMaxRepeat);
  }
  return count;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

absl::StatusOr<Pattern> Pattern::Create(std::string_view text) {
  Pattern pattern;
  pattern.text_ = std::string(text);
  const absl::StatusOr<PatternNode> root = ParsePattern(text);
  if (ReasonOf(root.status()) == Reason::kUnsupportedPattern) {
    SHARDMESH_ASSIGN_OR_RETURN(BacktrackingProgram program, BacktrackingProgram::Create(text));
    pattern.program_size_ = program.program_size();
    pattern.backtracking_ = std::make_shared<BacktrackingProgram>(std::move(program));
    return pattern;
  }
  SHARDMESH_RETURN_IF_ERROR(root.status());
  PrintedPattern printed = PrintPattern(*root);
  pattern.newline_matters_ = printed.newline_matters;
  pattern.non_ascii_matters_ = printed.non_ascii_matters;
  pattern.emptiness_matters_ = printed.emptiness_matters;
  if (printed.text.has_value()) {
    RE2::Options options;
    options.set_log_errors(false);
    options.set_never_capture(true);
    auto compiled = std::make_shared<RE2>(*printed.text, options);
    if (!compiled->ok()) {
      return WithReason(absl::InvalidArgumentError(
                            StrCat("pattern ", QuotePattern(text), ": too large to compile (",
                                   compiled->error(), "); lower its repeats")),
                        Reason::kLimitExceeded, {{fact::kLimit, options.max_mem()}});
    }
    pattern.program_size_ += compiled->ProgramSize();
    pattern.re2_text_ = std::move(printed.text);
    pattern.re2_ = std::move(compiled);
  }
  if (pattern.re2_ == nullptr || pattern.newline_matters_ || pattern.non_ascii_matters_ ||
      pattern.emptiness_matters_) {
    SHARDMESH_ASSIGN_OR_RETURN(PatternAutomaton automaton, PatternAutomaton::Create(*root));
    pattern.program_size_ += automaton.program_size();
    pattern.automaton_ = std::make_shared<PatternAutomaton>(std::move(automaton));
  }
  return pattern;
}

int64_t Pattern::CompileCostBound(std::string_view text) {
  int64_t once = kInstructionsOfByte * (static_cast<int64_t>(text.size()) + 2);
  int64_t repeats = 1;  // product of all repeats so far, as if each were nested in the others
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\\') {
      once += InstructionsOfEscape(text[++i]);
    } else if (text[i] == '{') {
      size_t end = i + 1;
      int64_t count = CountAt(text, &end);
      if (end < text.size() && text[end] == ',') {
        count = std::max(count, CountAt(text, &++end));
      }
      repeats = std::min(repeats * std::max<int64_t>(count, 1), kMaxRepeat);
    }
  }
  return once * repeats;
}

bool Pattern::MayBacktrack(std::string_view text) {
  const auto follows = [text](size_t position, std::string_view what) {
    return text.substr(position).starts_with(what);
  };
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const char next = text[i + 1];
    switch (text[i]) {
      case '(':
        for (const char* const group : {"(?=", "(?!", "(?<", "(?>", "(?(", "(?P="}) {
          if (follows(i, group)) {
            return true;
          }
        }
        break;
      case '\\':  // a back-reference
        if (next >= '1' && next <= '9') {
          return true;
        }
        break;
      case '*':
      case '+':
      case '?':
      case '}':  // a possessive repeat
        if (next == '+') {
          return true;
        }
        break;
      default:
        break;
    }
  }
  return false;
}

bool Pattern::IsPlain(std::string_view name) {
  return !name.empty() && !name.ends_with('\n') && IsAscii(name);
}

bool Pattern::IsPlainHere(std::string_view name) const {
  return !(newline_matters_ && name.ends_with('\n')) && !(non_ascii_matters_ && !IsAscii(name)) &&
         !(emptiness_matters_ && name.empty());
}

absl::StatusOr<bool> Pattern::Search(std::string_view name, SearchBudget* budget) const {
  if (backtracking_ != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const auto match, backtracking_->Find(name, budget));
    return match.has_value();
  }
  if (re2_ != nullptr && IsPlainHere(name)) {
    return RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *re2_);
  }
  return automaton_->Search(name);
}

}  // namespace shardmesh
