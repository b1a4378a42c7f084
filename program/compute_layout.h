// The layouts in which devices can compute a tensor op: the parts of the factors of its sharding
// rule.
//
// In a layout, each mesh axis partitions at most one factor. A dimension of several factors is
// partitioned along its first ones: each factor must be in parts of one index before the next
// factor has parts. Only a factor that is alone in all its dimensions may have unequal parts.
//
// Pure functions. They require values that Tiling::Create accepts on `mesh`, and a rule of
// ShardingRuleOf for them.
#ifndef SHARDMESH_PROGRAM_COMPUTE_LAYOUT_H_
#define SHARDMESH_PROGRAM_COMPUTE_LAYOUT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/product_layout.h"
#include "program/sharding_rule.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"

namespace shardmesh {

// The parts of each factor, by the factor's number. Factors of the kind kWhole have no parts.
using ComputeLayout = std::vector<DimParts>;

// Returns the factors of those dimensions that are compared: input number `value`, or the result if
// `value` is the number of inputs.
const std::vector<DimFactors>& FactorsOf(const ShardingRule& rule, size_t value);

// Adds the parts of a value to the layout, as far as possible: a factor that has parts keeps them,
// and so does an axis that partitions another factor. If not `may_sum`, factors of the kind kSummed
// get no parts. Ignores unreduced axes. The time does not depend on the number of inputs.
void AddPartsOf(const Mesh& mesh, const ShardingRule& rule, const std::vector<DimFactors>& factors,
                const ValueDescriptor& value, bool may_sum, ComputeLayout* layout);

// Removes those parts that a dimension of some value cannot have, because a factor before them is
// not in parts of one index.
void RemoveImpossibleParts(const Mesh& mesh, const ShardingRule& rule, ComputeLayout* layout);

// Returns `value`, an input or the result of the op, with the parts of its factors, and with no
// unreduced axes.
ValueDescriptor WithFactorParts(ValueDescriptor value, const std::vector<DimFactors>& factors,
                                const ComputeLayout& layout);

// Returns the axes along which the result is unreduced, in the order of the factors.
Axes SummedAxes(const ShardingRule& rule, const ComputeLayout& layout);

// Returns OK if the values lie as the rule says: each factor has the same parts in all values, and
// the result is unreduced along exactly the axes of the factors that are summed. Else returns
// INVALID_ARGUMENT (SHAPE_MISMATCH).
absl::Status CheckComputeLayout(const Mesh& mesh, const ShardingRule& rule,
                                absl::Span<const ValueDescriptor> inputs,
                                const ValueDescriptor& result);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COMPUTE_LAYOUT_H_
