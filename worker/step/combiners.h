// Makes the Combiner of a reduction from the loops of kernel/reduce.h.
#ifndef SHARDMESH_WORKER_STEP_COMBINERS_H_
#define SHARDMESH_WORKER_STEP_COMBINERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/collective/combiner.h"

namespace shardmesh::worker {

// Returns the combiner that reduces elements of type `operand`, over a group of `ranks` >= 1 ranks,
// to elements of type `result`. It sums F16 and BF16 in F32 and rounds once. `result` must be the
// same type as `operand`, except that F32 operands (partial sums) may also give F16 or BF16. A mean
// is the sum times 1/ranks, in F32 or F64. INVALID_ARGUMENT (UNSUPPORTED_DTYPE) for a type without
// arithmetic, for a mean of integers, or for any other pair of types.
absl::StatusOr<Combiner> CombinerFor(Reduction reduction, Dtype operand, Dtype result,
                                     int64_t ranks);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_COMBINERS_H_
