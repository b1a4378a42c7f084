// Cut points of parts of unequal sizes, by rule.
#ifndef SHARDMESH_SHARDING_UNEVEN_H_
#define SHARDMESH_SHARDING_UNEVEN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"

namespace shardmesh {

// A rule by which dimensions are cut into parts.
enum class UnevenCuts {
  kEqualOnly,   // equal parts only; correction drops axes that do not divide a dimension
  kCeilChunks,  // CeilChunks
  kByWeights,   // WeightedCuts, by weights that the caller gives
  kByMemory,    // WeightedCuts, by the memory of the devices' workers
  kBySpeed,     // WeightedCuts, by the speed of the devices' workers
};

// Returns the cut points of `parts` parts of ceil(extent / parts) indices each. The last parts are
// smaller, or empty, as torch.chunk (DTensor) and XLA's padded shardings (GSPMD) cut.
// Example: 10 indices in 4 parts are cut at 0, 3, 6, 9, 10; 5 in 4 at 0, 2, 4, 5, 5.
// Requires extent >= 0 and parts >= 1. Takes O(parts).
CutPoints CeilChunks(int64_t extent, int64_t parts);

// Returns the cut points of one part for each weight. Each part has extent * weight / sum indices,
// rounded down. The indices that remain go one each to the parts with the largest remainders; of
// equal remainders, to the first parts (the method of largest remainders). A part of weight 0 is
// empty. The result depends on the ratios of the weights alone.
// Example: 10 indices by 1, 2, 1 are cut at 0, 3, 8, 10.
// Requires extent >= 0 and weights that CheckWeights accepts. Takes O(parts log parts).
CutPoints WeightedCuts(int64_t extent, absl::Span<const int64_t> weights);

// INVALID_ARGUMENT (INVALID_CUT_POINTS): there are not `count` weights, a weight is negative, all
// weights are 0, or their sum exceeds int64_t.
absl::Status CheckWeights(absl::Span<const int64_t> weights, int64_t count);

// Returns, for each dimension of `shape`, its cut points by `rule`; an empty list where the parts
// are equal, and no lists if the parts of all dimensions are equal.
//   kCeilChunks  cuts the dimensions whose axes do not divide them.
//   kByWeights, kByMemory, kBySpeed
//                cut every partitioned dimension. `weights` has one weight for each device of the
//                mesh. A part of a dimension lies on all devices that have the part's coordinates
//                along the axes of the dimension. The least of their weights is the weight of the
//                part, since the part is the same size on all of them.
// Errors:
//   INVALID_ARGUMENT (INVALID_CUT_POINTS): errors of CheckWeights; or the weights of all parts of a
//   dimension are 0, because each part lies on some device of weight 0.
//   INVALID_ARGUMENT (LIMIT_EXCEEDED): a dimension that must be cut has more than kMaxUnevenParts
//   parts.
// Requires a mesh that is not empty, and distinct axes of the mesh in `spec`, which has at most one
// entry for each dimension. By weights, takes O(devices * rank).
inline constexpr int64_t kMaxUnevenParts = int64_t{1} << 16;
absl::StatusOr<std::vector<CutPoints>> CutByRule(UnevenCuts rule, absl::Span<const int64_t> weights,
                                                 const Mesh& mesh, const PartitionSpec& spec,
                                                 absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_UNEVEN_H_
