// Measures the costs of this worker's kernels, from which the coordinator predicts times of steps.
#ifndef SHARDMESH_WORKER_TENSOR_OP_KERNEL_PROBE_H_
#define SHARDMESH_WORKER_TENSOR_OP_KERNEL_PROBE_H_

#include "program/measured_rates.h"
#include "worker/kernel/matmul.h"

namespace shardmesh::worker {

// Returns the costs of the kernels on kernel->threads() threads. `sharing` is the number of workers
// that compute on the same cores, this one included: memory is read by as many threads as all of
// them have, and this worker gets the share of its own.
//
// Takes about 0.14 s of processor time. After 0.15 s, begins no further measurement: costs that are
// not measured then are 0. Takes 48 MiB of memory until it returns. Measures once in a process for
// each number of threads and of workers: later calls return the first result. Thread-safe;
// concurrent calls wait for one another.
MeasuredKernels MeasureKernels(MatmulKernel* kernel, int sharing = 1);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_KERNEL_PROBE_H_
