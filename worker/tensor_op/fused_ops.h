// Runs several functions of elements as one op on the tiles of one device.
#ifndef SHARDMESH_WORKER_TENSOR_OP_FUSED_OPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_FUSED_OPS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/step_plan.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {

// Computes the ops of `fused`: `inputs` has the tiles of fused.inputs in order, whose numbers are
// ignored. The output has the bits that RunTensorOp of each op would give, one after the other.
// `output.bytes` may be the memory of an input of the output's type and size. Threads, memory and
// abort checks are those of a MapOp in RunTensorOp.
//
// Errors: INVALID_ARGUMENT for sizes, types or ops that do not fit, with the label of the op; else
// the status of `context.abort_check`. After an error the output is undefined. Thread-safe.
absl::Status RunFusedOps(const FusedCompute& fused, absl::Span<const OpInput> inputs,
                         const OpOutput& output, const OpContext& context);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_FUSED_OPS_H_
