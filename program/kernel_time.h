// The predicted time of the instructions that run on each device alone.
#ifndef SHARDMESH_PROGRAM_KERNEL_TIME_H_
#define SHARDMESH_PROGRAM_KERNEL_TIME_H_

#include <cstdint>

#include "program/step_plan.h"

namespace shardmesh {

// Returns how many matrix products a device computes for the instruction: one for each matrix of
// its tile's batch. A left operand that is not transposed needs only one if the right operand has
// no batch: all its rows are the rows of one matrix. Numbers beyond 64 bits are capped.
int64_t ProductsOf(const Plan& plan, const LocalMatmul& matmul, ValueIndex output);

// Returns the multiplications and additions of the products in attention, on the device with the
// most work; 0 for other ops, whose time is that of their bytes. Numbers beyond 64 bits are capped.
int64_t FlopsOf(const Plan& plan, const LocalCompute& compute, ValueIndex output);

// Returns the predicted time of an instruction on the device with the most work: for a product, the
// time of its operations or of its bytes, whichever is longer, and the time to start each matrix
// product. For an epilogue, a slice or a tensor op, the time of its bytes. Attention is like a
// product. Lookups and slices read only what they copy, and an update of rows writes only these
// rows, as in the memory of a state operand. 0 for instructions that only exchange data. A fused
// instruction (fuse_exchanges.h) computes the products of each place. Those of rows read all of the
// right operand each time, and those of columns all of the left one. Blocks of columns are copied:
// of a gathered operand's result, and of a right operand whose columns are apart. Along a batch
// dimension, each matrix is read once. Requires a plan that CheckPlan accepts, up to this
// instruction.
double KernelSeconds(const Plan& plan, const Instruction& instruction, const KernelRates& rates);

// Returns whether no figure of one differs from that of the other by a factor of 1.5 or more, and
// devices run fused instructions with both or with neither.
bool AreAlike(const KernelRates& a, const KernelRates& b);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_KERNEL_TIME_H_
