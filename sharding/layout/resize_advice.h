// Advice about arrays that cannot move to a mesh of another shape.
#ifndef SHARDMESH_SHARDING_LAYOUT_RESIZE_ADVICE_H_
#define SHARDMESH_SHARDING_LAYOUT_RESIZE_ADVICE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "sharding/uneven.h"
#include "status/reason.h"

namespace shardmesh {

// Returns what to do about arrays that a resize refuses: a sentence for each cause among `reasons`,
// without a full stop. Causes whose errors say themselves what to do have no sentence. `rule`: the
// rule for uneven cuts that the resize was asked for.
std::vector<std::string> AdviceOnResize(absl::Span<const Reason> reasons, UnevenCuts rule);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_RESIZE_ADVICE_H_
