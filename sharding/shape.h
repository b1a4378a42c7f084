// The extents of a tensor, one per dimension, and the checks every shape from outside goes through.
#ifndef SHARDMESH_SHARDING_SHAPE_H_
#define SHARDMESH_SHARDING_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// Most dimensions a tensor may have.
inline constexpr int64_t kMaxRank = 16;

// Extents in elements, outermost dimension first. An empty shape is a scalar.
using Shape = absl::InlinedVector<int64_t, 6>;

// INVALID_ARGUMENT (INVALID_SHAPE) unless the rank is at most kMaxRank, no extent is negative and
// the element count fits int64_t. An extent of 0 is valid.
absl::Status CheckShape(absl::Span<const int64_t> shape);

// Product of the extents; 1 for a scalar, 0 as soon as one extent is 0. Same errors as CheckShape.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> shape);

// As Python writes the tuple: `(8, 16)`, `(8,)`, `()`.
std::string ShapeToString(absl::Span<const int64_t> shape);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_SHAPE_H_
