// Advice about arrays that cannot move to a mesh of another shape.
#include "sharding/layout/resize_advice.h"

#include <algorithm>

namespace shardmesh {

std::vector<std::string> AdviceOnResize(absl::Span<const Reason> reasons, UnevenCuts rule) {
  const auto has = [&reasons](Reason reason) {
    return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
  };
  std::vector<std::string> advice;
  if (has(Reason::kNotDivisible)) {
    advice.push_back(
        "Choose a shape that divides the arrays, or --uneven ceil, which cuts them into unequal "
        "parts, or reshard these arrays to another spec first: `shardmesh reshard NAME --to SPEC`");
  }
  if (has(Reason::kInvalidCutPoints)) {
    advice.push_back(rule == UnevenCuts::kEqualOnly
                         ? "Cut arrays with unequal parts anew, by a rule such as --uneven ceil"
                         : "Choose another rule or other weights");
  }
  if (has(Reason::kAxisNotInMesh)) {
    advice.push_back(
        "Keep the axes that specs name, with size 1, or reshard these arrays first to specs "
        "without them");
  }
  return advice;
}

}  // namespace shardmesh
