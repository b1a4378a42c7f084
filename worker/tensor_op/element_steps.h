// Functions of elements that read one another's results, computed block by block: each block goes
// through all functions while it is in the nearest cache.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ELEMENT_STEPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_ELEMENT_STEPS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/tensor_op/element_function.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {

// A function, and the numbers of what it reads. The inputs have the first numbers; the results of
// the steps before it follow in order.
struct ElementStep {
  ElementFunction function;
  size_t left = 0;
  size_t right = 0;  // the same as `left` for functions of one input
};

// Computes the steps, at least one, for all elements of the output. The result of the last step is
// the output; the others are kept for a block only. Each result has the output's shape; inputs are
// broadcast to it as numpy broadcasts them. `output.bytes` may be the memory of an input of the
// output's type and size.
//
// Takes a few blocks of memory for each thread. Returns OK, or the status of
// `context.abort_check`.
absl::Status RunElementSteps(absl::Span<const ElementStep> steps, absl::Span<const OpInput> inputs,
                             const OpOutput& output, const OpContext& context);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ELEMENT_STEPS_H_
