// The loops of epilogues, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_KERNEL_ACTIVATION_LOOPS_H_
#define SHARDMESH_WORKER_KERNEL_ACTIVATION_LOOPS_H_

#include <cstddef>

#include "tensor/elementwise.h"

namespace shardmesh::worker {

// Sets values[i] = activation(values[i] + bias[i]) for i in [0, count); without a bias (null), to
// activation(values[i]). `bias` and `values` do not overlap. Thread-safe.
using ActivationFn = void (*)(const float* bias, float* values, size_t count);

// Returns the loop of the activation for this CPU. The bits of a result do not depend on the CPU.
//
// Relu is exact. A result of another activation is computed in F64 and rounded once, and is less
// than 0.51 units in the last place from the exact value. At minus infinity its value is the limit,
// -0. A NaN stays a NaN with its sign and payload. The sum of two NaNs is the left one.
ActivationFn ActivationLoop(Activation activation);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_ACTIVATION_LOOPS_H_
