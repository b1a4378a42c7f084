// Reproducible random tensor values, for synthetic checkpoints in trials and benchmarks.
#ifndef SHARDMESH_TENSOR_RANDOM_H_
#define SHARDMESH_TENSOR_RANDOM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"

namespace shardmesh {

// Fills `out` with normally distributed values (mean 0, the given deviation, cut off at four
// deviations). Element i depends only on the seed and first_element + i. Threads can therefore fill
// pieces of a tensor in any order, with the same result.
//
// Returns INVALID_ARGUMENT unless dtype is F16, BF16, F32 or F64, out.size() is a multiple of an
// element's size, first_element >= 0, and `out` is aligned to an element.
absl::Status FillNormal(Dtype dtype, uint64_t seed, double deviation, int64_t first_element,
                        absl::Span<char> out);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_RANDOM_H_
