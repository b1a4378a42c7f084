// Replaces instructions of a plan by others, and numbers the values anew.
#ifndef SHARDMESH_PROGRAM_FUSE_REPLACE_INSTRUCTIONS_H_
#define SHARDMESH_PROGRAM_FUSE_REPLACE_INSTRUCTIONS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "program/step_plan.h"

namespace shardmesh {

// Which instructions of a plan are left out or replaced, by index.
struct InstructionChanges {
  explicit InstructionChanges(size_t instructions)
      : replaced(instructions), is_left_out(instructions, false) {}

  // The instruction that takes the place of another one and makes the same value. Its numbers of
  // values are those of the plan before the changes.
  std::vector<std::optional<Instruction>> replaced;
  std::vector<bool> is_left_out;
};

// Returns the plan with the changes. The results of instructions that are left out are no values of
// the plan any more, so later values get lower numbers. Does not change the cost. Requires that no
// instruction that stays reads such a result, that none is an output or the value of an update, and
// that an instruction reads only operands and results of instructions before it.
Plan WithChanges(Plan plan, InstructionChanges changes);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_FUSE_REPLACE_INSTRUCTIONS_H_
