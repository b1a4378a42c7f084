// The arithmetic of collectives: the kernels' loops behind the interface of the algorithms.
#ifndef SHARDMESH_WORKER_STEP_COMBINERS_H_
#define SHARDMESH_WORKER_STEP_COMBINERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/collective/combiner.h"

namespace shardmesh::worker {

// Returns the combiner that reduces `operand` elements of a group of `ranks` >= 1 ranks to `result`
// elements. F16 and BF16 are summed in F32 and rounded once, and F32 partial sums can become F16 or
// BF16. Otherwise the two types are equal. A mean is the sum times 1/ranks, in F32 or F64.
// INVALID_ARGUMENT (UNSUPPORTED_DTYPE) for a type without arithmetic, a mean of integers, or two
// types that do not go together.
absl::StatusOr<Combiner> CombinerFor(Reduction reduction, Dtype operand, Dtype result,
                                     int64_t ranks);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_COMBINERS_H_
