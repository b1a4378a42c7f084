// Builds one deterministic automaton for all patterns (subset construction), then turns it into a
// pattern (state elimination).
#include "sharding/pattern/difference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "sharding/pattern/character_set.h"
#include "sharding/pattern/pattern.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {
namespace {

constexpr size_t kMaxInstructions = 2'000;
constexpr size_t kMaxStates = 300;
// Upper bound on the bytes of all intermediate expressions together. It limits time and memory;
// most of these bytes do not reach the resulting pattern.
constexpr size_t kMaxWritten = 4 << 20;
constexpr size_t kWrittenPerEdge = 16;

absl::Status Unsupported(std::string_view what) {
  return InvalidArgument(Reason::kUnsupportedPattern,
                         StrCat(what,
                                " cannot be rewritten; put the rule for the excluded names "
                                "before this one"),
                         {{fact::kValue, what}});
}

absl::Status TooLarge() {
  return WithReason(
      absl::InvalidArgumentError("written without its look-ahead the pattern would be too long; "
                                 "put a rule for the excluded names before it, and .* after it"),
      Reason::kLimitExceeded, {{fact::kLimit, kMaxWritten}});
}

// --- Characters ---

// Rising indices of atoms. An atom is a set of characters that none of the patterns distinguishes.
using Atoms = std::vector<size_t>;

// All atoms: one for each of the 128 ASCII characters, and atoms beyond ASCII. If no named class
// occurs, each atom beyond ASCII is a range. If one occurs, there are three such atoms: the parts
// into which \d and \w divide the characters beyond ASCII.
class Alphabet {
 public:
  static absl::StatusOr<Alphabet> Create(absl::Span<const CharacterSet* const> sets);

  size_t atom_count() const { return kAscii + beyond_.size(); }
  Atoms AtomsOf(const CharacterSet& set) const;
  // Returns the atoms as a pattern for one character.
  std::string Print(const Atoms& atoms) const;

 private:
  static constexpr size_t kAscii = 128;
  struct Beyond {
    CodePointRange range;  // set if no named class occurs
    bool digit = false;    // whether its characters are in \d
    bool word = false;     // whether its characters are in \w
  };

  bool Contains(const CharacterSet& set, size_t atom) const;
  // Returns the text between the brackets of a class with these atoms as members; nullopt if there
  // is no such class.
  std::optional<std::string> PrintMembers(const std::vector<bool>& atoms) const;

  bool named_ = false;
  std::vector<Beyond> beyond_;
};

bool IsAsciiDigit(size_t c) { return c >= '0' && c <= '9'; }
bool IsAsciiWord(size_t c) {
  return IsAsciiDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

absl::StatusOr<Alphabet> Alphabet::Create(absl::Span<const CharacterSet* const> sets) {
  Alphabet alphabet;
  std::vector<char32_t> bounds = {kAscii, kMaxCodePoint + 1};
  for (const CharacterSet* set : sets) {
    if (set->ignore_case) {
      return Unsupported("case that is ignored beyond ASCII (write (?ai) or [Kk])");
    }
    alphabet.named_ = alphabet.named_ || set->has_class();
    for (const CodePointRange& range : set->ranges) {
      bounds.push_back(std::max<char32_t>(range.first, kAscii));
      bounds.push_back(std::max<char32_t>(range.last + 1, kAscii));
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  if (!alphabet.named_) {
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      alphabet.beyond_.push_back({.range = {bounds[i], bounds[i + 1] - 1}});
    }
  } else if (bounds.size() > 2) {
    return Unsupported("a class such as \\d beside other characters beyond ASCII (\\s names some)");
  } else {
    alphabet.beyond_ = {{.range = {}, .digit = true, .word = true},
                        {.range = {}, .digit = false, .word = true},
                        {.range = {}, .digit = false, .word = false}};
  }
  return alphabet;
}

bool Alphabet::Contains(const CharacterSet& set, size_t atom) const {
  const bool ascii = atom < kAscii;
  const Beyond beyond = ascii ? Beyond{} : beyond_[atom - kAscii];
  const bool digit = ascii ? IsAsciiDigit(atom) : beyond.digit;
  const bool word = ascii ? IsAsciiWord(atom) : beyond.word;
  // Test one character for its whole atom: the ranges have all characters of an atom or none. If
  // named classes occur, Create accepts only ranges that have all characters beyond ASCII or none.
  const auto c = ascii ? static_cast<char32_t>(atom) : named_ ? kMaxCodePoint : beyond.range.first;
  const bool in_ranges =
      std::any_of(set.ranges.begin(), set.ranges.end(),
                  [c](const CodePointRange& range) { return range.first <= c && c <= range.last; });
  const bool contained = (set.digit && digit) || (set.not_digit && !digit) || (set.word && word) ||
                         (set.not_word && !word) || in_ranges;
  return contained != set.negated;
}

Atoms Alphabet::AtomsOf(const CharacterSet& set) const {
  Atoms atoms;
  for (size_t atom = 0; atom < atom_count(); ++atom) {
    if (Contains(set, atom)) {
      atoms.push_back(atom);
    }
  }
  return atoms;
}

// Returns one character, escaped for use inside or outside a class.
std::string PrintCharacter(char32_t c) {
  if (c > 0xFFFF) {
    return absl::StrFormat("\\U%08x", static_cast<uint32_t>(c));
  }
  if (c > 0x7F) {
    return absl::StrFormat("\\u%04x", static_cast<uint32_t>(c));
  }
  if (c < ' ' || c == 0x7F) {
    return c == '\n' ? "\\n" : absl::StrFormat("\\x%02x", static_cast<uint32_t>(c));
  }
  const bool plain = IsAsciiWord(c) || c == '/' || c == ' ' || c == ',' || c == ':' || c == '=' ||
                     c == '"' || c == '\'' || c == '<' || c == '>' || c == '@' || c == '%' ||
                     c == ';' || c == '!' || c == '`';
  return StrCat(plain ? "" : "\\", std::string(1, static_cast<char>(c)));
}

std::string PrintRange(char32_t first, char32_t last) {
  return first == last       ? PrintCharacter(first)
         : first + 1 == last ? PrintCharacter(first) + PrintCharacter(last)
                             : StrCat(PrintCharacter(first), "-", PrintCharacter(last));
}

std::optional<std::string> Alphabet::PrintMembers(const std::vector<bool>& atoms) const {
  std::vector<bool> left = atoms;
  std::string out;
  const auto take = [&](const char* name, bool (*is_in)(size_t, const Beyond&)) {
    std::vector<size_t> members;
    for (size_t atom = 0; atom < left.size(); ++atom) {
      if (is_in(atom, atom < kAscii ? Beyond{} : beyond_[atom - kAscii])) {
        if (!atoms[atom]) {
          return;
        }
        members.push_back(atom);
      }
    }
    for (const size_t atom : members) {
      left[atom] = false;
    }
    out += name;
  };
  static constexpr auto kIsDigit = [](size_t atom, const Beyond& beyond) {
    return atom < kAscii ? IsAsciiDigit(atom) : beyond.digit;
  };
  static constexpr auto kIsWord = [](size_t atom, const Beyond& beyond) {
    return atom < kAscii ? IsAsciiWord(atom) : beyond.word;
  };
  if (named_) {
    // Take \W and \w before the smaller class \d: \d is then needed only for the remaining atoms.
    take("\\W", [](size_t atom, const Beyond& beyond) { return !kIsWord(atom, beyond); });
    take("\\w", kIsWord);
    if (left[kAscii]) {
      take("\\d", kIsDigit);
    }
  }
  for (size_t atom = 0; atom < left.size();) {
    if (!left[atom]) {
      ++atom;
      continue;
    }
    if (atom >= kAscii && named_) {
      return std::nullopt;
    }
    size_t end = atom;
    while (end + 1 < left.size() && left[end + 1] && (end + 1 < kAscii) == (atom < kAscii)) {
      ++end;
    }
    out += atom < kAscii
               ? PrintRange(static_cast<char32_t>(atom), static_cast<char32_t>(end))
               : PrintRange(beyond_[atom - kAscii].range.first, beyond_[end - kAscii].range.last);
    atom = end + 1;
  }
  return out;
}

std::string Alphabet::Print(const Atoms& atoms) const {
  std::vector<bool> has(atom_count(), false);
  for (const size_t atom : atoms) {
    has[atom] = true;
  }
  if (atoms.size() == atom_count()) {
    return "(?s:.)";
  }
  if (atoms.size() + 1 == atom_count() && !has['\n']) {
    return ".";
  }
  if (atoms.size() == 1 && atoms.front() < kAscii) {
    return PrintCharacter(static_cast<char32_t>(atoms.front()));
  }
  std::vector<bool> lacks = has;
  lacks.flip();
  const std::optional<std::string> members = PrintMembers(has);
  const std::optional<std::string> others = PrintMembers(lacks);
  if (members.has_value() && (!others.has_value() || members->size() <= others->size() + 1)) {
    const bool is_name = members->size() == 2 && members->front() == '\\';
    return is_name ? *members : StrCat("[", *members, "]");
  }
  if (others.has_value()) {
    return StrCat("[^", *others, "]");
  }
  // Neither the given atoms nor all other atoms form a class: write an alternation, with one choice
  // for each atom beyond ASCII.
  std::vector<std::string> choices;
  std::vector<bool> ascii = has;
  for (size_t atom = kAscii; atom < has.size(); ++atom) {
    ascii[atom] = false;
    if (has[atom]) {
      const Beyond& beyond = beyond_[atom - kAscii];
      choices.push_back(beyond.digit  ? "[^\\D0-9]"
                        : beyond.word ? "[^\\W\\d\\x00-\\x7f]"
                                      : "[^\\w\\x00-\\x7f]");
    }
  }
  if (const std::string printed = PrintMembers(ascii).value(); !printed.empty()) {
    choices.push_back(StrCat("[", printed, "]"));
  }
  return StrCat("(?:", StrJoin(choices, "|"), ")");
}

// --- The automaton of a pattern that is matched from the start of the text ---

struct Instruction {
  enum class Op { kSet, kFork, kTextStart, kLineStart, kTextEnd, kMatch };
  Op op = Op::kMatch;
  const CharacterSet* set = nullptr;
  size_t next = 0;
  size_t other = 0;
};

class Program {
 public:
  // `node` must outlive the program.
  static absl::StatusOr<Program> Create(const PatternNode& node) {
    Program program;
    SHARDMESH_ASSIGN_OR_RETURN(const size_t match, program.Add({}));
    SHARDMESH_ASSIGN_OR_RETURN(program.start_, program.Compile(node, match));
    return program;
  }

  // The state of a run of the program after some characters of a text.
  struct Places {
    bool matched = false;         // whether the pattern matches, regardless of further text
    std::vector<size_t> waiting;  // rising indices of the reached instructions kSet and kTextEnd

    friend auto operator<=>(const Places&, const Places&) = default;
  };

  Places Start() const { return Close({start_}, /*at_start=*/true, /*after_newline=*/true, false); }
  // Returns whether the program matches if the text ends here.
  bool MatchesAtEnd(const Places& places) const {
    return places.matched || Close(places.waiting, false, false, /*at_end=*/true).matched;
  }
  // Returns the state after a character that is in the sets for which `contains(set)` is true.
  template <typename Contains>
  Places After(const Places& places, bool newline, const Contains& contains) const {
    if (places.matched) {
      return places;
    }
    std::vector<size_t> next;
    for (const size_t place : places.waiting) {
      if (program_[place].op == Instruction::Op::kSet && contains(*program_[place].set)) {
        next.push_back(program_[place].next);
      }
    }
    return Close(std::move(next), false, newline, false);
  }

  void AppendSets(std::vector<const CharacterSet*>& sets) const {
    for (const Instruction& instruction : program_) {
      if (instruction.op == Instruction::Op::kSet) {
        sets.push_back(instruction.set);
      }
    }
  }

 private:
  Program() = default;

  static const CharacterSet& Newline() {
    static const auto* const kNewline = [] {
      auto* set = new CharacterSet();
      set->ranges = {{'\n', '\n'}};
      return set;
    }();
    return *kNewline;
  }

  absl::StatusOr<size_t> Add(Instruction instruction) {
    if (program_.size() == kMaxInstructions) {
      return TooLarge();
    }
    program_.push_back(instruction);
    return program_.size() - 1;
  }

  absl::StatusOr<size_t> Fork(size_t next, size_t other) {
    return Add({.op = Instruction::Op::kFork, .next = next, .other = other});
  }

  Places Close(std::vector<size_t> pending, bool at_start, bool after_newline, bool at_end) const {
    Places places;
    std::vector<bool> seen(program_.size(), false);
    while (!pending.empty()) {
      const size_t place = pending.back();
      pending.pop_back();
      if (seen[place]) {
        continue;
      }
      seen[place] = true;
      const Instruction& instruction = program_[place];
      switch (instruction.op) {
        case Instruction::Op::kMatch:
          return {.matched = true, .waiting = {}};
        case Instruction::Op::kSet:
          places.waiting.push_back(place);
          break;
        case Instruction::Op::kFork:
          pending.push_back(instruction.next);
          pending.push_back(instruction.other);
          break;
        case Instruction::Op::kTextStart:
          if (at_start) {
            pending.push_back(instruction.next);
          }
          break;
        case Instruction::Op::kLineStart:
          if (after_newline) {
            pending.push_back(instruction.next);
          }
          break;
        case Instruction::Op::kTextEnd:
          if (at_end) {
            pending.push_back(instruction.next);
          } else {
            places.waiting.push_back(place);
          }
          break;
      }
    }
    std::sort(places.waiting.begin(), places.waiting.end());
    return places;
  }

  absl::StatusOr<size_t> Compile(const PatternNode& node, size_t next);
  absl::StatusOr<size_t> CompileRepeat(const PatternNode& node, size_t next);
  // Compiles `$`, in multi-line mode if `any_line`. Requires that nothing follows it.
  absl::StatusOr<size_t> CompileEnd(bool any_line, size_t next);

  std::vector<Instruction> program_;
  size_t start_ = 0;
};

absl::StatusOr<size_t> Program::CompileEnd(bool any_line, size_t next) {
  if (!Close({next}, false, false, false).matched) {
    return Unsupported("$ elsewhere than at the end of the pattern");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const size_t end,
                             Add({.op = Instruction::Op::kTextEnd, .next = next}));
  SHARDMESH_ASSIGN_OR_RETURN(
      const size_t newline,
      Add({.op = Instruction::Op::kSet, .set = &Newline(), .next = any_line ? next : end}));
  return Fork(end, newline);
}

absl::StatusOr<size_t> Program::CompileRepeat(const PatternNode& node, size_t next) {
  const PatternNode& repeated = node.children.front();
  size_t start = next;
  if (node.max.has_value()) {
    for (int64_t i = node.min; i < *node.max; ++i) {
      SHARDMESH_ASSIGN_OR_RETURN(const size_t once, Compile(repeated, start));
      SHARDMESH_ASSIGN_OR_RETURN(start, Fork(once, next));
    }
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(start, Fork(next, next));
    SHARDMESH_ASSIGN_OR_RETURN(const size_t once, Compile(repeated, start));
    program_[start].next = once;
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

absl::StatusOr<size_t> Program::Compile(const PatternNode& node, size_t next) {
  switch (node.kind) {
    case PatternNode::Kind::kSet:
      return Add({.op = Instruction::Op::kSet, .set = &node.set, .next = next});
    case PatternNode::Kind::kSequence:
      for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
        SHARDMESH_ASSIGN_OR_RETURN(next, Compile(*child, next));
      }
      return next;
    case PatternNode::Kind::kAlternation: {
      SHARDMESH_ASSIGN_OR_RETURN(size_t start, Compile(node.children.front(), next));
      for (size_t i = 1; i < node.children.size(); ++i) {
        SHARDMESH_ASSIGN_OR_RETURN(const size_t branch, Compile(node.children[i], next));
        SHARDMESH_ASSIGN_OR_RETURN(start, Fork(start, branch));
      }
      return start;
    }
    case PatternNode::Kind::kRepeat:
      return CompileRepeat(node, next);
    case PatternNode::Kind::kTextStart:
      return Add({.op = Instruction::Op::kTextStart, .next = next});
    case PatternNode::Kind::kLineStart:
      return Add({.op = Instruction::Op::kLineStart, .next = next});
    case PatternNode::Kind::kTextEnd:
      return Add({.op = Instruction::Op::kTextEnd, .next = next});
    case PatternNode::Kind::kTextEndOrFinalNewline:
      return CompileEnd(/*any_line=*/false, next);
    case PatternNode::Kind::kLineEnd:
      return CompileEnd(/*any_line=*/true, next);
    default:
      return Unsupported("a word boundary (\\b, \\B)");
  }
}

// --- The automaton of the matched and the excluded patterns together ---

// A complete deterministic automaton. Its input symbols are classes of atoms.
struct Machine {
  enum class Verdict {
    kEndOnly,  // `accepts` decides if the text ends here, else the remainder of the text decides
    kAll,      // accepts the text, with any remainder
    kNone,     // rejects the text, with any remainder
  };
  struct State {
    Verdict verdict = Verdict::kEndOnly;
    bool accepts = false;      // whether a text that ends here is accepted
    std::vector<size_t> next;  // the next state, indexed by the class of the next character
  };
  std::vector<State> states;  // the start state first
  std::vector<Atoms> classes;
};

absl::StatusOr<Machine> Combine(const Program& matched, const Program& excluded,
                                const Alphabet& alphabet,
                                absl::Span<const CharacterSet* const> sets) {
  Machine machine;
  // Atoms that are in the same sets form one class. A newline forms a separate class, because ^ and
  // $ treat it specially.
  std::map<std::pair<bool, std::vector<bool>>, Atoms> atoms_by_sets;
  std::map<const CharacterSet*, size_t> number_of_set;
  std::vector<std::vector<bool>> contains_atom;
  for (const CharacterSet* set : sets) {
    if (number_of_set.emplace(set, contains_atom.size()).second) {
      std::vector<bool>& contains = contains_atom.emplace_back(alphabet.atom_count(), false);
      for (const size_t atom : alphabet.AtomsOf(*set)) {
        contains[atom] = true;
      }
    }
  }
  for (size_t atom = 0; atom < alphabet.atom_count(); ++atom) {
    std::vector<bool> in_sets;
    for (const std::vector<bool>& contains : contains_atom) {
      in_sets.push_back(contains[atom]);
    }
    atoms_by_sets[{atom == '\n', std::move(in_sets)}].push_back(atom);
  }
  for (auto& [key, atoms] : atoms_by_sets) {
    machine.classes.push_back(std::move(atoms));
  }

  using Key = std::pair<Program::Places, Program::Places>;
  std::map<Key, size_t> number_of;
  std::vector<Key> keys;
  const auto number = [&](Key key) {
    const auto [known, is_new] = number_of.emplace(key, keys.size());
    if (is_new) {
      Machine::State state;
      const bool out = key.second.matched || (!key.first.matched && key.first.waiting.empty());
      state.verdict = out ? Machine::Verdict::kNone
                      : key.first.matched && key.second.waiting.empty()
                          ? Machine::Verdict::kAll
                          : Machine::Verdict::kEndOnly;
      state.accepts = !out && matched.MatchesAtEnd(key.first) && !excluded.MatchesAtEnd(key.second);
      machine.states.push_back(std::move(state));
      keys.push_back(std::move(key));
    }
    return known->second;
  };
  number({matched.Start(), excluded.Start()});
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys.size() > kMaxStates) {
      return TooLarge();
    }
    std::vector<size_t> next;
    for (const Atoms& atoms : machine.classes) {
      if (machine.states[i].verdict != Machine::Verdict::kEndOnly) {
        next.push_back(i);
        continue;
      }
      const size_t atom = atoms.front();
      const auto contains = [&](const CharacterSet& set) {
        return contains_atom[number_of_set.at(&set)][atom];
      };
      const Key key = keys[i];
      next.push_back(number({matched.After(key.first, atom == '\n', contains),
                             excluded.After(key.second, atom == '\n', contains)}));
    }
    machine.states[i].next = std::move(next);
  }
  return machine;
}

// Returns an equivalent machine with the fewest states.
Machine Minimized(const Machine& machine) {
  const size_t count = machine.states.size();
  std::vector<size_t> block(count);
  for (size_t i = 0; i < count; ++i) {
    block[i] = static_cast<size_t>(machine.states[i].verdict) * 2 + machine.states[i].accepts;
  }
  size_t blocks = 0;
  while (true) {
    std::map<std::vector<size_t>, size_t> number_of;
    std::vector<size_t> refined(count);
    for (size_t i = 0; i < count; ++i) {
      std::vector<size_t> key = {block[i]};
      for (const size_t next : machine.states[i].next) {
        key.push_back(block[next]);
      }
      refined[i] = number_of.emplace(std::move(key), number_of.size()).first->second;
    }
    block = std::move(refined);
    if (number_of.size() == blocks) {
      break;
    }
    blocks = number_of.size();
  }
  // Blocks are numbered in the order of their first states, so the start state keeps number 0.
  Machine out;
  out.classes = machine.classes;
  out.states.resize(blocks);
  for (size_t i = count; i-- > 0;) {
    Machine::State& state = out.states[block[i]];
    state = machine.states[i];
    for (size_t& next : state.next) {
      next = block[next];
    }
  }
  return out;
}

// --- Expressions ---

struct Expression {
  enum class Form { kEmpty, kOne, kSequence, kChoice };
  Form form = Form::kEmpty;
  Atoms atoms;       // only for kOne: nonempty if the expression is a class of characters
  std::string text;  // the expression as a pattern, also for classes
};

class Speller {
 public:
  Speller(const Machine& machine, const Alphabet& alphabet)
      : machine_(machine), alphabet_(alphabet) {}

  absl::StatusOr<std::optional<std::string>> Spell();

 private:
  using Edges = std::map<size_t, std::map<size_t, Expression>>;

  Expression Class(Atoms atoms) const {
    std::string text = alphabet_.Print(atoms);
    return {Expression::Form::kOne, std::move(atoms), std::move(text)};
  }
  Expression Either(const Expression& a, const Expression& b) const;
  static Expression Then(const Expression& a, const Expression& b);
  static Expression Repeated(const Expression& a);
  static std::string Grouped(const Expression& a, Expression::Form most) {
    return a.form > most ? StrCat("(?:", a.text, ")") : a.text;
  }
  void AddEdge(size_t from, size_t to, const Expression& label);
  absl::Status Eliminate(size_t state);

  const Machine& machine_;
  const Alphabet& alphabet_;
  Edges out_;
  std::map<size_t, std::vector<size_t>> in_;  // sources of edges into each state, also removed ones
  size_t written_ = 0;                        // bytes of all labels, including removed ones
};

Expression Speller::Either(const Expression& a, const Expression& b) const {
  if (!a.atoms.empty() && !b.atoms.empty()) {
    Atoms atoms;
    std::set_union(a.atoms.begin(), a.atoms.end(), b.atoms.begin(), b.atoms.end(),
                   std::back_inserter(atoms));
    return Class(std::move(atoms));
  }
  if (a.text == b.text) {
    return a;
  }
  if (a.form == Expression::Form::kEmpty || b.form == Expression::Form::kEmpty) {
    const Expression& some = a.form == Expression::Form::kEmpty ? b : a;
    // Put everything except a class into a group: `?` may not follow another repeat directly.
    return {Expression::Form::kOne,
            {},
            StrCat(some.atoms.empty() ? StrCat("(?:", some.text, ")") : some.text, "?")};
  }
  return {Expression::Form::kChoice, {}, StrCat(a.text, "|", b.text)};
}

Expression Speller::Then(const Expression& a, const Expression& b) {
  if (a.form == Expression::Form::kEmpty) {
    return b;
  }
  if (b.form == Expression::Form::kEmpty) {
    return a;
  }
  return {Expression::Form::kSequence,
          {},
          StrCat(Grouped(a, Expression::Form::kSequence), Grouped(b, Expression::Form::kSequence))};
}

Expression Speller::Repeated(const Expression& a) {
  if (a.form == Expression::Form::kEmpty) {
    return a;
  }
  return {Expression::Form::kOne,
          {},
          StrCat(a.atoms.empty() ? StrCat("(?:", a.text, ")") : a.text, "*")};
}

void Speller::AddEdge(size_t from, size_t to, const Expression& label) {
  const auto [known, is_new] = out_[from].emplace(to, label);
  if (is_new) {
    in_[to].push_back(from);
  } else {
    known->second = Either(known->second, label);
  }
  written_ += known->second.text.size() + kWrittenPerEdge;
}

absl::Status Speller::Eliminate(size_t state) {
  std::map<size_t, Expression> out = std::move(out_[state]);
  out_.erase(state);
  Expression loop;
  if (const auto self = out.find(state); self != out.end()) {
    loop = Repeated(self->second);
    out.erase(self);
  }
  for (const size_t from : in_[state]) {
    const auto edges = out_.find(from);
    if (edges == out_.end() || edges->second.count(state) == 0) {
      continue;
    }
    const Expression entry = Then(edges->second.at(state), loop);
    edges->second.erase(state);
    for (const auto& [to, label] : out) {
      AddEdge(from, to, Then(entry, label));
      if (written_ > kMaxWritten) {
        return TooLarge();
      }
    }
  }
  in_.erase(state);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> Speller::Spell() {
  const size_t start = machine_.states.size();
  const size_t end = start + 1;
  AddEdge(start, 0, Expression{});
  std::vector<size_t> left;
  for (size_t i = 0; i < machine_.states.size(); ++i) {
    const Machine::State& state = machine_.states[i];
    if (state.verdict == Machine::Verdict::kNone) {
      continue;
    }
    left.push_back(i);
    if (state.verdict == Machine::Verdict::kAll) {
      AddEdge(i, end, Expression{});
      continue;
    }
    if (state.accepts) {
      AddEdge(i, end, {Expression::Form::kOne, {}, "\\Z"});
    }
    std::map<size_t, Atoms> atoms_to;
    for (size_t c = 0; c < state.next.size(); ++c) {
      if (machine_.states[state.next[c]].verdict != Machine::Verdict::kNone) {
        Atoms& atoms = atoms_to[state.next[c]];
        atoms.insert(atoms.end(), machine_.classes[c].begin(), machine_.classes[c].end());
      }
    }
    for (auto& [to, atoms] : atoms_to) {
      std::sort(atoms.begin(), atoms.end());
      AddEdge(i, to, Class(std::move(atoms)));
    }
  }
  while (!left.empty()) {
    // Choose the state whose elimination adds the least text.
    size_t best = 0;
    size_t least = static_cast<size_t>(-1);
    for (size_t k = 0; k < left.size(); ++k) {
      const size_t state = left[k];
      size_t in_count = 0;
      size_t in_text = 0;
      for (const size_t from : in_[state]) {
        const auto edges = out_.find(from);
        if (from == state || edges == out_.end()) {
          continue;
        }
        if (const auto edge = edges->second.find(state); edge != edges->second.end()) {
          ++in_count;
          in_text += edge->second.text.size();
        }
      }
      size_t out_count = 0;
      size_t out_text = 0;
      size_t loop_text = 0;
      for (const auto& [to, label] : out_[state]) {
        if (to == state) {
          loop_text = label.text.size();
        } else {
          ++out_count;
          out_text += label.text.size();
        }
      }
      const size_t cost =
          in_text * out_count + out_text * in_count + loop_text * in_count * out_count;
      if (cost < least) {
        least = cost;
        best = k;
      }
    }
    SHARDMESH_RETURN_IF_ERROR(Eliminate(left[best]));
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
  }
  const auto whole = out_[start].find(end);
  if (whole == out_[start].end()) {
    return std::nullopt;
  }
  std::string pattern = StrCat("^", Grouped(whole->second, Expression::Form::kSequence));
  if (pattern.size() > static_cast<size_t>(Pattern::kMaxLength)) {
    return TooLarge();
  }
  return pattern;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> PatternDifference(
    const PatternNode& matched, absl::Span<const PatternNode> excluded) {
  PatternNode any;
  any.kind = PatternNode::Kind::kAlternation;
  any.children.assign(excluded.begin(), excluded.end());
  SHARDMESH_ASSIGN_OR_RETURN(const Program in, Program::Create(matched));
  SHARDMESH_ASSIGN_OR_RETURN(const Program out, Program::Create(any));
  std::vector<const CharacterSet*> sets;
  in.AppendSets(sets);
  out.AppendSets(sets);
  SHARDMESH_ASSIGN_OR_RETURN(const Alphabet alphabet, Alphabet::Create(sets));
  SHARDMESH_ASSIGN_OR_RETURN(const Machine machine, Combine(in, out, alphabet, sets));
  const Machine least = Minimized(machine);
  return Speller(least, alphabet).Spell();
}

}  // namespace shardmesh
