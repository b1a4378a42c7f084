// The extents of a tensor, one per dimension, and the checks that every shape from outside must
// pass.
#ifndef SHARDMESH_SHARDING_SHAPE_H_
#define SHARDMESH_SHARDING_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// Upper bound on the dimensions of a tensor.
inline constexpr int64_t kMaxRank = 16;

// Extents in elements, outermost dimension first. An empty shape is a scalar.
using Shape = absl::InlinedVector<int64_t, 6>;

// Returns INVALID_ARGUMENT (INVALID_SHAPE) unless the rank is at most kMaxRank, no extent is
// negative and the element count fits int64_t. An extent of 0 is valid.
absl::Status CheckShape(absl::Span<const int64_t> shape);

// Returns the product of the extents; 1 for a scalar, 0 if any extent is 0. Errors as CheckShape.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape);

// Returns the tuple as Python writes it: `(8, 16)`, `(8,)`, `()`.
std::string ShapeToString(absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_SHAPE_H_
