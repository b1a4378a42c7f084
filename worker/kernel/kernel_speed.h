// Measures how fast this host multiplies matrices and reads memory.
#ifndef SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_
#define SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"
#include "worker/kernel/matmul.h"

namespace shardmesh::worker {

// Returns the time in seconds of the fastest of some runs; 0 if a run fails. Slower runs shared the
// caches with other work. The time is that for which the calling thread computes, which does one of
// equal shares of the work: waits for a core do not count. Calls `run` once before, which compiles
// kernels, starts threads and loads caches; then at least once, at most 8 times, until the runs
// have taken `enough_seconds`.
double BestSeconds(absl::FunctionRef<absl::Status()> run, double enough_seconds = 0.001);

// Returns the times in seconds of products of these numbers of rows by packed weights of side x
// side, for each element of the weights. Empty if a product fails.
std::vector<double> MeasureProducts(MatmulKernel* kernel, Dtype lhs, Dtype rhs, int64_t side,
                                    absl::Span<const int64_t> rows);

// Returns the processor time of the calling thread in seconds.
double ThreadSeconds();

// Returns by how many seconds the kernel takes longer for each byte of a right operand that is not
// packed. Measured in F32; 0 if a product fails.
double MeasurePlainByte(MatmulKernel* kernel);

// Returns the time to start one product: that of a product of 16 x 16 matrices of F32. 0 if it
// fails.
double MeasureProductStart(MatmulKernel* kernel);

// Returns the time in seconds for which one of `readers` threads computes to read a byte of
// `memory`, while the others read other parts. The memory should not fit into the caches. Time in
// which a thread waits for a core does not count. 0 if there is less than a word for each thread.
double MeasureReadByte(absl::Span<const char> memory, int readers);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_KERNEL_SPEED_H_
