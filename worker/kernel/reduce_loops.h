// The loops of reductions, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_KERNEL_REDUCE_LOOPS_H_
#define SHARDMESH_WORKER_KERNEL_REDUCE_LOOPS_H_

#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "worker/kernel/reduce.h"

namespace shardmesh::worker {

// Return the loop of CombineFunction and of ScaleFunction for this CPU. Null: there is no
// arithmetic for the type. The bits of a result do not depend on the CPU. Thread-safe.
CombineFn CombineLoop(Reduction reduction, Dtype partial);
ScaleFn ScaleLoop(Dtype dtype);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_REDUCE_LOOPS_H_
