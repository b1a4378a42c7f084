// Measures how fast this host multiplies matrices.
#ifndef SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_
#define SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_

#include "worker/kernel/matmul.h"

namespace shardmesh::worker {

// Returns the floating-point operations per second of the kernel for F32 products of 512 x 512
// matrices. Runs the product a few times, for about 30 ms after the first run, and returns the
// speed of the fastest run: slower runs shared the cores with other work. Returns 0 if a product
// fails.
double MeasureF32Speed(MatmulKernel* kernel);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_
