// Compiles a pattern's syntax tree to instructions, and runs them with a stack of choices.
#include "sharding/pattern/backtracking.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "sharding/pattern/lower_case.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

constexpr int32_t kUnset = -1;
constexpr int32_t kNoMaximum = std::numeric_limits<int32_t>::max();
// The number of characters that an instruction compares in about the time of a step.
constexpr int32_t kCharactersOfStep = 8;
// The bytes of a text that an error shows.
constexpr size_t kShownBytes = 120;

int32_t Clamped(int64_t count) {
  return static_cast<int32_t>(std::min<int64_t>(count, kNoMaximum));
}

// `budget`: null, unless the search took all that it has left.
absl::Status TooManySteps(std::string_view pattern, std::string_view text,
                          const SearchBudget* budget) {
  size_t shown = std::min(text.size(), kShownBytes);
  while (shown < text.size() && (text[shown] & 0xC0) == 0x80) {
    --shown;  // do not cut a character
  }
  const bool is_anchored = pattern.starts_with('^') || pattern.starts_with("\\A");
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("pattern ", QuotePattern(pattern), ": the search in ",
             PythonRepr(text.substr(0, shown)), shown < text.size() ? "..." : "",
             budget == nullptr
                 ? StrCat(" takes more than ", BacktrackingProgram::kMaxSteps, " steps, the limit")
                 : StrCat(" and those before it take more than ", budget->steps(),
                          " steps, the limit for all searches together"),
             is_anchored ? "; make" : "; begin the pattern with ^, or make",
             " repeats within repeats possessive, such as (?:a+)*+"),
      {{fact::kLimit, budget == nullptr ? BacktrackingProgram::kMaxSteps : budget->steps()}});
}

}  // namespace

// --- Compilation ---

class BacktrackingProgram::Builder {
 public:
  explicit Builder(int64_t groups) {
    program_.groups_ = static_cast<int32_t>(groups + 1);
    program_.slots_ = 2 * program_.groups_;
  }

  BacktrackingProgram Build(const PatternNode& root, std::string_view pattern) && {
    Compile(root);
    Add(Op::kMatch);
    program_.pattern_ = std::string(pattern);
    return std::move(program_);
  }

 private:
  using Op = Instruction::Op;

  // Appends an instruction and returns its index.
  int32_t Add(const Instruction& instruction) {
    program_.program_.push_back(instruction);
    return Next() - 1;
  }
  int32_t Add(Op op) {
    Instruction instruction;
    instruction.op = op;
    return Add(instruction);
  }
  // Returns the instruction, for changes before the next Add.
  Instruction& At(int32_t index) { return program_.program_[static_cast<size_t>(index)]; }
  // Returns the index of the instruction that will be appended next.
  int32_t Next() const { return static_cast<int32_t>(program_.program_.size()); }

  // Appends instructions that match the node and continue after the last of them.
  void Compile(const PatternNode& node);
  void CompileAlternation(const PatternNode& node);
  void CompileRepeat(const PatternNode& node);
  // Appends the instructions of an atomic group or a look-around.
  void CompileApart(const PatternNode& node);

  BacktrackingProgram program_;
};

void BacktrackingProgram::Builder::Compile(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::Kind::kSet: {
      const int32_t set = program_.sets_.Add(node.set);
      At(Add(Op::kSet)).set = set;
      return;
    }
    case PatternNode::Kind::kSequence: {
      const auto group = static_cast<int32_t>(node.group);
      if (group > 0) {
        At(Add(Op::kSave)).slot = 2 * group;
      }
      for (const PatternNode& child : node.children) {
        Compile(child);
      }
      if (group > 0) {
        At(Add(Op::kSave)).slot = 2 * group + 1;
      }
      return;
    }
    case PatternNode::Kind::kAlternation:
      CompileAlternation(node);
      return;
    case PatternNode::Kind::kRepeat:
      CompileRepeat(node);
      return;
    case PatternNode::Kind::kLookAround:
    case PatternNode::Kind::kAtomic:
      CompileApart(node);
      return;
    case PatternNode::Kind::kBackReference: {
      Instruction& reference = At(Add(Op::kBackReference));
      reference.slot = static_cast<int32_t>(node.group);
      reference.ignore_case = node.ignore_case;
      reference.ascii = node.ascii;
      return;
    }
    case PatternNode::Kind::kConditional: {
      const int32_t condition = Add(Op::kIfGroup);
      At(condition).slot = static_cast<int32_t>(node.group);
      Compile(node.children[0]);
      const int32_t jump = Add(Op::kJump);
      At(condition).other = Next();
      Compile(node.children[1]);
      At(jump).other = Next();
      return;
    }
    default:
      At(Add(Op::kAssert)).assertion = node.kind;
  }
}

void BacktrackingProgram::Builder::CompileAlternation(const PatternNode& node) {
  std::vector<int32_t> jumps;
  for (size_t i = 0; i + 1 < node.children.size(); ++i) {
    const int32_t fork = Add(Op::kFork);
    Compile(node.children[i]);
    jumps.push_back(Add(Op::kJump));
    At(fork).other = Next();
  }
  Compile(node.children.back());
  for (const int32_t jump : jumps) {
    At(jump).other = Next();
  }
}

void BacktrackingProgram::Builder::CompileRepeat(const PatternNode& node) {
  const PatternNode& repeated = node.children.front();
  Instruction repeat;
  repeat.mode = node.possessive ? Instruction::Mode::kPossessive
                : node.lazy     ? Instruction::Mode::kLazy
                                : Instruction::Mode::kGreedy;
  repeat.min = Clamped(node.min);
  repeat.max = Clamped(node.max.value_or(kNoMaximum));
  if (repeated.kind == PatternNode::Kind::kSet) {
    repeat.op = Op::kRepeatSet;
    repeat.set = program_.sets_.Add(repeated.set);
    Add(repeat);
    return;
  }
  repeat.slot = program_.slots_;
  program_.slots_ += 2;
  At(Add(Op::kLoop)).slot = repeat.slot;
  repeat.op = Op::kIterate;
  if (node.possessive) {
    repeat.mark = program_.marks_++;
  }
  const int32_t iterate = Add(repeat);
  Compile(repeated);
  Instruction& end = At(Add(node.possessive ? Op::kCut : Op::kJump));
  end.mark = repeat.mark;
  end.other = iterate;
  At(iterate).other = Next();
}

void BacktrackingProgram::Builder::CompileApart(const PatternNode& node) {
  const int32_t mark = program_.marks_++;
  const int32_t enter = Add(Op::kEnter);
  At(enter).mark = mark;
  At(enter).negated = node.negated;
  At(enter).min = Clamped(node.behind.value_or(0));
  Compile(node.children.front());
  At(Add(node.kind == PatternNode::Kind::kAtomic ? Op::kLeaveAtomic
         : node.negated                          ? Op::kLeaveNot
                                                 : Op::kLeaveAhead))
      .mark = mark;
  At(enter).other = Next();
}

absl::StatusOr<BacktrackingProgram> BacktrackingProgram::Create(std::string_view pattern) {
  SHARDMESH_ASSIGN_OR_RETURN(const PatternWithGroups parsed, ParsePatternWithGroups(pattern));
  return Builder(parsed.group_count).Build(parsed.root, pattern);
}

// --- Matching ---

// The state of one search. A choice is a place to which the search returns if what follows fails.
// `log_` holds the overwritten values of slots, so that a return restores them.
class BacktrackingProgram::Matcher {
 public:
  enum class Outcome { kMatch, kNoMatch, kTooManySteps };

  Matcher(const BacktrackingProgram& program, std::u32string_view text, int64_t max_steps)
      : program_(program),
        text_(text),
        max_steps_(max_steps),
        slots_(static_cast<size_t>(program.slots_), kUnset),
        marks_(static_cast<size_t>(program.marks_)) {}

  // Tries all places of the text as starts of the match.
  Outcome Search() {
    for (int32_t start = 0; start <= Size(); ++start) {
      const Outcome outcome = MatchAt(start);
      if (outcome != Outcome::kNoMatch) {
        return outcome;
      }
    }
    return Outcome::kNoMatch;
  }

  // After a match: returns the first or the last place of a group; a negative number, or a last
  // place before the first one, if the group took no part.
  int32_t slot(int32_t index) const { return slots_[static_cast<size_t>(index)]; }
  // Returns the number of steps so far.
  int64_t steps() const { return steps_; }

 private:
  struct Choice {
    enum class Kind {
      kContinue,  // continue with instruction `index`
      kShorter,   // a greedy kRepeatSet: one character less, but not before `limit`
      kLonger,    // a lazy kRepeatSet: one character more, but not beyond `limit`
      kIterate,   // a lazy kIterate: one more iteration
    };
    Kind kind = Kind::kContinue;
    int32_t index = 0;
    int32_t place = 0;
    int32_t limit = 0;
    uint32_t log_size = 0;
  };
  struct Mark {
    size_t choices = 0;  // the number of choices when the construct began
    int32_t place = 0;
  };
  struct Overwritten {
    int32_t slot = 0;
    int32_t value = 0;
  };

  int32_t Size() const { return static_cast<int32_t>(text_.size()); }
  char32_t Character(int32_t place) const { return text_[static_cast<size_t>(place)]; }
  bool Contains(int32_t set, int32_t place) {
    const char32_t c = Character(place);
    steps_ += c < 0x80 ? 0 : 1;  // the look-up takes about the time of a step
    return program_.sets_.Contains(set, c, memory_);
  }

  Outcome MatchAt(int32_t start);
  // The functions below run one instruction. They move `index_` and `place_`, or return false if
  // the instruction fails.
  bool Run(const Instruction& instruction);
  bool RunRepeatSet(const Instruction& instruction);
  bool RunBackReference(const Instruction& instruction);
  bool RunIterate(const Instruction& instruction);
  bool RunEnter(const Instruction& instruction);

  bool TookPart(int32_t group) const {
    return slot(2 * group) >= 0 && slot(2 * group + 1) >= slot(2 * group);
  }
  void CountCharacters(int32_t count) { steps_ += count / kCharactersOfStep; }
  void Save(int32_t slot, int32_t value) {
    int32_t& saved = slots_[static_cast<size_t>(slot)];
    log_.push_back({slot, saved});
    saved = value;
  }
  void Undo(size_t log_size) {
    for (; log_.size() > log_size; log_.pop_back()) {
      slots_[static_cast<size_t>(log_.back().slot)] = log_.back().value;
    }
  }
  void Choose(Choice::Kind kind, int32_t index, int32_t place, int32_t limit = 0) {
    choices_.push_back({kind, index, place, limit, static_cast<uint32_t>(log_.size())});
  }
  // Forgets all choices that were made since the mark.
  void Cut(const Instruction& instruction) { choices_.resize(MarkOf(instruction).choices); }
  Mark& MarkOf(const Instruction& instruction) {
    return marks_[static_cast<size_t>(instruction.mark)];
  }
  // Moves the place of a greedy kRepeatSet back, to the next place where the instruction `index_`
  // after it does not fail at once; returns false if there is none.
  bool GiveBack(Choice& choice);
  // Returns to the last choice that is left; false if there is none.
  bool Backtrack();

  const BacktrackingProgram& program_;
  const std::u32string_view text_;
  const int64_t max_steps_;
  PlaceMatcher::Memory memory_;
  std::vector<int32_t> slots_;  // places of groups, then two for each loop: iterations, last place
  std::vector<Mark> marks_;
  std::vector<Choice> choices_;
  std::vector<Overwritten> log_;
  int64_t steps_ = 0;
  int32_t index_ = 0;  // of the next instruction
  int32_t place_ = 0;
};

BacktrackingProgram::Matcher::Outcome BacktrackingProgram::Matcher::MatchAt(int32_t start) {
  index_ = 0;
  place_ = start;
  while (++steps_ <= max_steps_) {
    const Instruction& instruction = program_.program_[static_cast<size_t>(index_)];
    if (instruction.op == Instruction::Op::kMatch) {
      Save(0, start);
      Save(1, place_);
      return Outcome::kMatch;
    }
    if (!Run(instruction) && !Backtrack()) {
      Undo(0);
      return Outcome::kNoMatch;
    }
  }
  return Outcome::kTooManySteps;
}

bool BacktrackingProgram::Matcher::Run(const Instruction& instruction) {
  using Op = Instruction::Op;
  switch (instruction.op) {
    case Op::kSet:
      if (place_ == Size() || !Contains(instruction.set, place_)) {
        return false;
      }
      ++place_;
      break;
    case Op::kRepeatSet:
      return RunRepeatSet(instruction);
    case Op::kAssert:
      if (!program_.sets_.Holds(instruction.assertion, text_, static_cast<size_t>(place_),
                                memory_)) {
        return false;
      }
      break;
    case Op::kSave:
      Save(instruction.slot, place_);
      break;
    case Op::kBackReference:
      return RunBackReference(instruction);
    case Op::kIfGroup:
      if (!TookPart(instruction.slot)) {
        index_ = instruction.other;
        return true;
      }
      break;
    case Op::kFork:
      Choose(Choice::Kind::kContinue, instruction.other, place_);
      break;
    case Op::kJump:
      index_ = instruction.other;
      return true;
    case Op::kLoop:
      Save(instruction.slot, -1);
      Save(instruction.slot + 1, kUnset);
      break;
    case Op::kIterate:
      return RunIterate(instruction);
    case Op::kCut:
      Cut(instruction);
      index_ = instruction.other;
      return true;
    case Op::kEnter:
      return RunEnter(instruction);
    case Op::kLeaveAtomic:
      Cut(instruction);
      break;
    case Op::kLeaveAhead:
      Cut(instruction);
      place_ = MarkOf(instruction).place;
      break;
    case Op::kLeaveNot:
      Cut(instruction);
      return false;
    case Op::kMatch:
      return false;  // MatchAt handles it
  }
  ++index_;
  return true;
}

bool BacktrackingProgram::Matcher::RunRepeatSet(const Instruction& instruction) {
  const bool lazy = instruction.mode == Instruction::Mode::kLazy;
  const int32_t room = Size() - place_;
  const int32_t most = std::min(instruction.max, room);
  if (instruction.min > room) {
    return false;
  }
  const int32_t wanted = lazy ? instruction.min : most;
  int32_t taken = 0;
  while (taken < wanted && Contains(instruction.set, place_ + taken)) {
    ++taken;
  }
  CountCharacters(taken);
  if (taken < instruction.min) {
    return false;
  }
  if (lazy && taken < most) {
    Choose(Choice::Kind::kLonger, index_, place_ + taken, place_ + most);
  } else if (instruction.mode == Instruction::Mode::kGreedy && taken > instruction.min) {
    Choose(Choice::Kind::kShorter, index_, place_ + taken, place_ + instruction.min);
  }
  place_ += taken;
  ++index_;
  return true;
}

bool BacktrackingProgram::Matcher::RunBackReference(const Instruction& instruction) {
  if (!TookPart(instruction.slot)) {
    return false;
  }
  const int32_t begin = slot(2 * instruction.slot);
  const int32_t size = slot(2 * instruction.slot + 1) - begin;
  if (size > Size() - place_) {
    return false;
  }
  CountCharacters(size);
  for (int32_t i = 0; i < size; ++i) {
    const char32_t before = Character(begin + i);
    const char32_t here = Character(place_ + i);
    if (before != here && (!instruction.ignore_case || LowerCase(before, instruction.ascii) !=
                                                           LowerCase(here, instruction.ascii))) {
      return false;
    }
  }
  place_ += size;
  ++index_;
  return true;
}

// Follows Python's order of tests, because an iteration that matches the empty text can set groups:
// such an iteration is the last one, but it counts.
bool BacktrackingProgram::Matcher::RunIterate(const Instruction& instruction) {
  using Mode = Instruction::Mode;
  const int32_t count = slot(instruction.slot) + 1;
  Save(instruction.slot, count);
  const bool required = count < instruction.min;
  if (!required && (count >= instruction.max || place_ == slot(instruction.slot + 1))) {
    index_ = instruction.other;
    return true;
  }
  if (instruction.mode == Mode::kPossessive) {
    MarkOf(instruction).choices = choices_.size();
  }
  if (!required) {
    if (instruction.mode == Mode::kLazy) {
      Choose(Choice::Kind::kIterate, index_, place_);
      index_ = instruction.other;
      return true;
    }
    Choose(Choice::Kind::kContinue, instruction.other, place_);
    Save(instruction.slot + 1, place_);
  }
  ++index_;
  return true;
}

bool BacktrackingProgram::Matcher::RunEnter(const Instruction& instruction) {
  if (instruction.min > place_) {
    index_ = instruction.other;
    return instruction.negated;
  }
  MarkOf(instruction) = {choices_.size(), place_};
  if (instruction.negated) {
    Choose(Choice::Kind::kContinue, instruction.other, place_);
  }
  place_ -= instruction.min;
  ++index_;
  return true;
}

bool BacktrackingProgram::Matcher::GiveBack(Choice& choice) {
  const Instruction& next = program_.program_[static_cast<size_t>(index_)];
  const int32_t start = choice.place--;
  if (next.op == Instruction::Op::kSet) {
    while (choice.place >= choice.limit && !Contains(next.set, choice.place)) {
      --choice.place;
    }
  }
  CountCharacters(start - choice.place);
  return choice.place >= choice.limit;
}

bool BacktrackingProgram::Matcher::Backtrack() {
  while (!choices_.empty()) {
    Choice& choice = choices_.back();
    Undo(choice.log_size);
    place_ = choice.place;
    index_ = choice.index;
    switch (choice.kind) {
      case Choice::Kind::kContinue:
        choices_.pop_back();
        return true;
      case Choice::Kind::kShorter:
        ++index_;
        if (!GiveBack(choice)) {
          choices_.pop_back();
          break;
        }
        place_ = choice.place;
        if (choice.place == choice.limit) {
          choices_.pop_back();
        }
        return true;
      case Choice::Kind::kLonger:
        if (!Contains(program_.program_[static_cast<size_t>(index_)].set, place_)) {
          choices_.pop_back();
          break;
        }
        ++place_;
        ++index_;
        if (++choice.place == choice.limit) {
          choices_.pop_back();
        }
        return true;
      case Choice::Kind::kIterate:
        choices_.pop_back();
        Save(program_.program_[static_cast<size_t>(index_)].slot + 1, place_);
        ++index_;
        return true;
    }
  }
  return false;
}

absl::StatusOr<std::optional<std::vector<std::optional<TextRange>>>> BacktrackingProgram::Find(
    std::string_view text, SearchBudget* budget) const {
  const std::optional<std::u32string> characters = DecodeUtf8(text);
  if (!characters.has_value()) {
    return std::nullopt;
  }
  const bool is_budget_short = budget != nullptr && budget->StepsOfNext() < kMaxSteps;
  Matcher matcher(*this, *characters, is_budget_short ? budget->StepsOfNext() : kMaxSteps);
  const Matcher::Outcome outcome = matcher.Search();
  if (budget != nullptr) {
    budget->Count(matcher.steps());
  }
  switch (outcome) {
    case Matcher::Outcome::kTooManySteps:
      return TooManySteps(pattern_, text, is_budget_short ? budget : nullptr);
    case Matcher::Outcome::kNoMatch:
      return std::nullopt;
    case Matcher::Outcome::kMatch:
      break;
  }
  // The first byte of each character, and the end of the text.
  std::vector<int64_t> bytes;
  bytes.reserve(characters->size() + 1);
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] & 0xC0) != 0x80) {
      bytes.push_back(static_cast<int64_t>(i));
    }
  }
  std::vector<std::optional<TextRange>> groups;
  for (int32_t group = 0; group < groups_; ++group) {
    const int32_t begin = matcher.slot(2 * group);
    const int32_t end = matcher.slot(2 * group + 1);
    groups.push_back(begin < 0 || end < begin
                         ? std::nullopt
                         : std::optional(TextRange{bytes[static_cast<size_t>(begin)],
                                                   bytes[static_cast<size_t>(end)]}));
  }
  return groups;
}

}  // namespace shardmesh
