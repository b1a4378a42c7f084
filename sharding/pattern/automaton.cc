// Builds the automaton by Thompson's construction, and runs all its states in lockstep.
#include "sharding/pattern/automaton.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh {

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
  PlaceMatcher sets_;
  absl::flat_hash_map<const PatternNode*, int32_t> set_of_node_;
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
  return automaton;
}

int32_t PatternAutomaton::Builder::SetOf(const PatternNode& node) {
  const auto [known, inserted] = set_of_node_.try_emplace(&node, 0);
  if (inserted) {
    known->second = sets_.Add(node.set);
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
  PlaceMatcher::Memory memory;
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
          if (sets_.Holds(instruction.assertion, *characters, place, memory)) {
            pending.push_back(instruction.next);
          }
          break;
      }
    }
    if (place == characters->size()) {
      return false;
    }
    for (const int32_t state : consuming) {
      if (sets_.Contains(program_[state].set, (*characters)[place], memory)) {
        pending.push_back(program_[state].next);
      }
    }
  }
}

}  // namespace shardmesh
