// Which dimensions of a tensor op's inputs and result must lie alike on the mesh, so that each
// device computes its tile of the result from its own tiles.
//
// Source: the sharding rules of Shardy, https://openxla.org/shardy/propagation.
#ifndef SHARDMESH_PROGRAM_SHARDING_RULE_H_
#define SHARDMESH_PROGRAM_SHARDING_RULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/tensor_op.h"

namespace shardmesh {

// How axes may partition a factor.
enum class FactorKind : uint8_t {
  kFree,    // any axes may partition it; tiles of all values have the same part of it
  kWhole,   // each device needs all of it
  kSummed,  // any axes may partition it; the result is then unreduced along these axes
};

// A dimension is a product of factors, major first. Each dimension has at least one factor, except
// that a dimension of extent 1 has none. A dimension of one factor has the factor's size.
using DimFactors = std::vector<size_t>;

struct ShardingRule {
  std::vector<int64_t> sizes;                   // by factor
  std::vector<FactorKind> kinds;                // by factor
  std::vector<std::vector<DimFactors>> inputs;  // by input and dimension
  std::vector<DimFactors> result;               // by dimension

  // ShardingRuleOf derives these from the fields above.
  std::vector<bool> are_alone = {};    // by factor: whether it is alone in all its dimensions
  std::vector<size_t> divisible = {};  // the factors that are not kWhole, in rising order
};

// Returns the rule of an op. `inputs` and `result` are the types of its inputs and of its result.
// Requires that ResultTypeOf returns `result` for them.
//
// Example: attention [b,s,h,d] x [b,t,g,d] x [b,t,g,e]: the factors are b, s, g, h/g (free), t, d
// (whole), e (free). The query's third dimension has the factors g and h/g.
ShardingRule ShardingRuleOf(const TensorOp& op, absl::Span<const TensorType> inputs,
                            const TensorType& result);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_SHARDING_RULE_H_
