// Builds the automaton by Thompson's construction, and runs all its states in lockstep.
#include "sharding/pattern/automaton.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "re2/re2.h"
#include "sharding/pattern/character_set.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

std::string Utf8(char32_t c) {
  std::string out;
  AppendUtf8(c, out);
  return out;
}

bool IsDigit(char32_t c) {
  static const auto* const kDigit = new re2::RE2("\\p{Nd}");
  return c < 0x80 ? c >= '0' && c <= '9' : re2::RE2::FullMatch(Utf8(c), *kDigit);
}

bool IsAsciiWord(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

bool IsWord(char32_t c) {
  static const auto* const kWord = new re2::RE2("[\\p{L}\\p{N}]");
  return c < 0x80 ? IsAsciiWord(c) : re2::RE2::FullMatch(Utf8(c), *kWord);
}

}  // namespace

// Compiles a syntax tree to a program. Compiles the end of the pattern before its beginning,
// because an instruction contains the index of the next instruction.
class PatternAutomaton::Builder {
 public:
  absl::StatusOr<PatternAutomaton> Build(const PatternNode& root);

 private:
  // Appends instructions that match `node` and then continue at `next`; returns their first index.
  absl::StatusOr<int32_t> Compile(const PatternNode& node, int32_t next);
  absl::StatusOr<int32_t> CompileRepeat(const PatternNode& node, int32_t next);
  absl::StatusOr<int32_t> Add(Instruction instruction);
  // Returns the index of the node's set. The copies of a node that a repeat makes share one set.
  int32_t SetOf(const PatternNode& node);

  std::vector<Instruction> program_;
  std::vector<Set> sets_;
  absl::flat_hash_map<const PatternNode*, int32_t> set_of_node_;
  // Compiled RE2 expressions of case-insensitive ranges. The keys are the printed ranges.
  absl::flat_hash_map<std::string, std::shared_ptr<const re2::RE2>> folded_;
};

absl::StatusOr<PatternAutomaton> PatternAutomaton::Create(const PatternNode& root) {
  return Builder().Build(root);
}

absl::StatusOr<PatternAutomaton> PatternAutomaton::Builder::Build(const PatternNode& root) {
  PatternAutomaton automaton;
  SHARDMESH_ASSIGN_OR_RETURN(const int32_t match, Add({}));
  SHARDMESH_ASSIGN_OR_RETURN(automaton.start_, Compile(root, match));
  automaton.program_ = std::move(program_);
  automaton.sets_ = std::move(sets_);
  automaton.folded_ranges_ = static_cast<int64_t>(folded_.size());
  return automaton;
}

int32_t PatternAutomaton::Builder::SetOf(const PatternNode& node) {
  const auto [known, inserted] = set_of_node_.emplace(&node, static_cast<int32_t>(sets_.size()));
  if (inserted) {
    Set set{node.set, nullptr};
    if (node.set.ignore_case) {
      const std::string ranges = PrintRanges(node.set.ranges, /*negated=*/false);
      std::shared_ptr<const re2::RE2>& folded = folded_[ranges];
      if (folded == nullptr) {
        folded = std::make_shared<re2::RE2>("(?i)" + ranges);
      }
      set.folded = folded;
    }
    sets_.push_back(std::move(set));
  }
  return known->second;
}

absl::StatusOr<int32_t> PatternAutomaton::Builder::Add(Instruction instruction) {
  if (static_cast<int64_t>(program_.size()) >= kMaxInstructions) {
    return WithReason(absl::InvalidArgumentError(
                          StrCat("the pattern is too large: with its repeats written out it "
                                 "has more than ",
                                 kMaxInstructions, " parts; lower the repeats")),
                      Reason::kLimitExceeded, {{fact::kLimit, kMaxInstructions}});
  }
  program_.push_back(instruction);
  return static_cast<int32_t>(program_.size() - 1);
}

absl::StatusOr<int32_t> PatternAutomaton::Builder::Compile(const PatternNode& node, int32_t next) {
  Instruction instruction;
  instruction.next = next;
  switch (node.kind) {
    case PatternNode::Kind::kSet:
      instruction.op = Instruction::Op::kSet;
      instruction.set = SetOf(node);
      return Add(instruction);
    case PatternNode::Kind::kSequence:
      for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
        SHARDMESH_ASSIGN_OR_RETURN(next, Compile(*child, next));
      }
      return next;
    case PatternNode::Kind::kAlternation: {
      std::optional<int32_t> rest;
      for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
        SHARDMESH_ASSIGN_OR_RETURN(const int32_t branch, Compile(*child, next));
        if (!rest.has_value()) {
          rest = branch;
          continue;
        }
        instruction.op = Instruction::Op::kFork;
        instruction.next = branch;
        instruction.other = *rest;
        SHARDMESH_ASSIGN_OR_RETURN(rest, Add(instruction));
      }
      return *rest;
    }
    case PatternNode::Kind::kRepeat:
      return CompileRepeat(node, next);
    default:
      instruction.op = Instruction::Op::kAssert;
      instruction.assertion = node.kind;
      return Add(instruction);
  }
}

absl::StatusOr<int32_t> PatternAutomaton::Builder::CompileRepeat(const PatternNode& node,
                                                                 int32_t next) {
  const PatternNode& repeated = node.children.front();
  int32_t start = next;
  if (node.max.has_value()) {
    // Compile x{0,3} as (x(x(x)?)?)?, from the inside out.
    for (int64_t i = node.min; i < *node.max; ++i) {
      SHARDMESH_ASSIGN_OR_RETURN(const int32_t once, Compile(repeated, start));
      Instruction fork;
      fork.op = Instruction::Op::kFork;
      fork.next = once;
      fork.other = next;
      SHARDMESH_ASSIGN_OR_RETURN(start, Add(fork));
    }
  } else {
    Instruction loop;
    loop.op = Instruction::Op::kFork;
    loop.other = next;
    SHARDMESH_ASSIGN_OR_RETURN(start, Add(loop));
    SHARDMESH_ASSIGN_OR_RETURN(program_[start].next, Compile(repeated, start));
  }
  for (int64_t i = 0; i < node.min; ++i) {
    const size_t size = program_.size();
    SHARDMESH_ASSIGN_OR_RETURN(start, Compile(repeated, start));
    if (program_.size() == size) {
      break;  // the node matches only the empty text, and so do its repeats
    }
  }
  return start;
}

bool PatternAutomaton::Contains(const Set& set, char32_t c) const {
  const CharacterSet& s = set.set;
  const auto in_ranges = [&] {
    if (set.folded != nullptr) {
      return re2::RE2::FullMatch(Utf8(c), *set.folded);
    }
    return std::any_of(s.ranges.begin(), s.ranges.end(), [c](const CodePointRange& range) {
      return c >= range.first && c <= range.last;
    });
  };
  const bool contained = (s.digit && IsDigit(c)) || (s.not_digit && !IsDigit(c)) ||
                         (s.word && IsWord(c)) || (s.not_word && !IsWord(c)) || in_ranges();
  return contained != s.negated;
}

bool PatternAutomaton::Holds(PatternNode::Kind assertion, const std::u32string& text,
                             size_t place) const {
  const bool at_start = place == 0;
  const bool at_end = place == text.size();
  const auto at_boundary = [&](bool (*is_word)(char32_t)) {
    return (!at_start && is_word(text[place - 1])) != (!at_end && is_word(text[place]));
  };
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
      return at_boundary(IsWord);
    case PatternNode::Kind::kNotWordBoundary:
      return !text.empty() && !at_boundary(IsWord);
    case PatternNode::Kind::kAsciiWordBoundary:
      return at_boundary(IsAsciiWord);
    case PatternNode::Kind::kNotAsciiWordBoundary:
      return !text.empty() && !at_boundary(IsAsciiWord);
    default:
      return false;
  }
}

bool PatternAutomaton::Search(std::string_view text) const {
  const std::optional<std::u32string> characters = DecodeUtf8(text);
  if (!characters.has_value()) {
    return false;
  }
  // `alive`: the states that the automaton can be in before the character at `place`. `seen_at`:
  // the place at which each state was last visited.
  std::vector<int32_t> alive;
  std::vector<int32_t> pending;
  std::vector<size_t> seen_at(program_.size(), std::u32string::npos);
  for (size_t place = 0;; ++place) {
    pending.push_back(start_);
    std::vector<int32_t> consuming;
    while (!pending.empty()) {
      const int32_t state = pending.back();
      pending.pop_back();
      if (seen_at[state] == place) {
        continue;
      }
      seen_at[state] = place;
      const Instruction& instruction = program_[state];
      switch (instruction.op) {
        case Instruction::Op::kMatch:
          return true;
        case Instruction::Op::kSet:
          consuming.push_back(state);
          break;
        case Instruction::Op::kFork:
          pending.push_back(instruction.other);
          pending.push_back(instruction.next);
          break;
        case Instruction::Op::kAssert:
          if (Holds(instruction.assertion, *characters, place)) {
            pending.push_back(instruction.next);
          }
          break;
      }
    }
    if (place == characters->size()) {
      return false;
    }
    for (const int32_t state : consuming) {
      if (Contains(sets_[program_[state].set], (*characters)[place])) {
        pending.push_back(program_[state].next);
      }
    }
  }
}

}  // namespace shardmesh
