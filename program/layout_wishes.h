// The layouts that the readers of a program's values want, found backwards from the values whose
// layouts are fixed: operands, state, and reshards.
#ifndef SHARDMESH_PROGRAM_LAYOUT_WISHES_H_
#define SHARDMESH_PROGRAM_LAYOUT_WISHES_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"

namespace shardmesh {

// Returns, by value of the program, the layout that is wished for; nullopt if there is none, and
// for operands.
//
// The value of a state update is wished for as its operand lies. A value that only one op reads is
// wished for as this op needs it: a reshard needs its own layout; a product needs the contracted
// dimension as its weight has it, and the others as its result is wished for; a tensor op needs the
// factors of its sharding rule as its operands and its result have them or are wished for.
//
// A wish is a hint: types are not checked, and ops that do not fit give none. Takes O(n) for n ops.
// Requires operands that Tiling::Create accepts on `mesh`. Requires as many
// operands as the program has.
std::vector<std::optional<ValueDescriptor>> LayoutWishesOf(
    const Program& program, absl::Span<const ValueDescriptor> operands, const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_LAYOUT_WISHES_H_
