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
// most work, if each query sees all rows; 0 for other ops. Numbers beyond 64 bits are capped.
int64_t FlopsOf(const Plan& plan, const LocalCompute& compute, ValueIndex output);

// Returns how many rows of keys all queries of a head together are taken to see. Without positions,
// each of `queries` queries sees all `rows`. The planner does not know positions. Several queries
// with positions are taken to be the first ones of their sequence, as in a prefill: query i sees
// the rows 0 to i. As many queries as rows therefore see about half of the pairs. The result is at
// least `rows`: a single query, as in decoding, is taken to be the last one. Capped as above.
int64_t SeenPairs(int64_t queries, int64_t rows, bool has_positions);

// Returns the predicted time of an instruction on the device with the most work. `rates` has the
// costs of units of work (KernelCost). Where a cost was not measured, the other rates replace it.
//
// clang-format off
//   products     the time for their weights and rows (kProductRows, interpolated) or for their
//                bytes, whichever is longer; and the time to start each of them, to pack a right
//                operand that is not a weight, and of the activation
//   attention    the time of the operations, or of its bytes; for SeenPairs, and for some rows that
//                a query does not see, since kernels compute blocks of rows
//   functions, norms, rotary embeddings, sums, transpositions
//                the time of their elements, or of their bytes
//   softmax      both together
//   other ops, epilogues and slices    the time of their bytes
//   collectives and moves of regions   0
// clang-format on
//
// Lookups and slices read only what they copy. An update of rows writes only these rows, as in the
// memory of a state operand. A FusedCompute reads each input once, and writes only its output.
//
// A fused exchange (fuse/fuse_exchanges.h) computes the products of each place. Those of rows read
// all of the right operand each time, and those of columns all of the left one. Blocks of columns
// are copied: of a gathered operand's result, and of a right operand whose columns are apart. Along
// a batch dimension, each matrix is read once.
//
// Requires a plan that CheckPlan accepts, up to this instruction.
double KernelSeconds(const Plan& plan, const Instruction& instruction, const KernelRates& rates);

// Returns whether the times that follow from the two rates differ by a factor below 1.5 for each
// kind of work, and devices run fused instructions of each kind with both or with neither.
bool AreAlike(const KernelRates& a, const KernelRates& b);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_KERNEL_TIME_H_
