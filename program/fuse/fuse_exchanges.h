// Makes one instruction of an exchange and the product beside it, so that the exchange runs while
// the device multiplies.
//
// Two pairs of instructions can be one instruction:
//   - GatherMatmul: an all-gather, and the product of which it makes one operand;
//   - MatmulScatter: a product, and the reduce-scatter (sum) of its result.
// Both exchanges are pairwise. The dimension of the exchange is one of the result: rows (M),
// columns (N) or a batch dimension. It is never the contracted one (K): the parts would be partial
// sums, in an order that the product of the whole does not have. Parts may be uneven or empty. In a
// MatmulScatter, the product has neither bias nor activation.
//
// A worker computes the part of each place by products of fewer rows or columns. The bits are those
// of the plain form only if the kernel computes an element in the same way for any number of rows
// and columns. Two kinds of workers do so:
//   - Those with the feature kOverlapFeature run fused instructions of rows: `rhs` is a matrix, and
//     `lhs` is not transposed. The dimension is not the last one. All dimensions before it have the
//     extent 1 in the tiles, so that the rows of each place follow one another in memory. Their
//     kernel keeps the bits of rows (MatmulKernel::KeepsBitsOfRows).
//   - Those with the feature kOverlapPartsFeature run all of them (KeepsBitsOfParts).
//
// oneDNN chooses the order of sums by the sizes of large products, and of those whose left operand
// is transposed. Such products stay separate: see kMostPanelElements and kMostTransposedK.
#ifndef SHARDMESH_PROGRAM_FUSE_FUSE_EXCHANGES_H_
#define SHARDMESH_PROGRAM_FUSE_FUSE_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "program/collective_choice.h"
#include "program/step_plan.h"

namespace shardmesh {

// Returns the plan in which those pairs are one instruction that the workers run (may_overlap,
// may_overlap_parts) and for which this saves time by the forecast: at least kLeastSavedSeconds and
// kLeastSavedPart of the pair's time. The exchange's
// result, or the product's, is read by nothing but the other instruction, and is no output of the
// plan. A product that could be one instruction with several exchanges, those of its operands and
// the one after it, joins the one with which most time is saved.
//
// The fused instruction stands where the later one of the pair stood. The value between the two is
// no value of the plan any more, so later values get lower numbers. Does not change the cost.
// Requires a plan that CheckPlan accepts.
Plan FuseExchanges(Plan plan, const LinkCost& links, const KernelRates& kernels);
// Returns the time that FuseExchanges saves with the instructions from number `first` on, if no
// other instruction reads what they make, but for the last value.
double SecondsSavedByFusing(const Plan& plan, size_t first, const LinkCost& links,
                            const KernelRates& kernels);
inline constexpr double kLeastSavedSeconds = 50e-6;
inline constexpr double kLeastSavedPart = 0.02;

// Returns the plain form of a fused instruction as a plan of its own: the instruction's inputs are
// its operands, and its output is its only output. The plan has two instructions. nullopt for all
// other instructions. Requires inputs and an output that are values of the plan.
std::optional<Plan> PlainFormOf(const Plan& plan, const Instruction& instruction);

// Returns OK if the two instructions of a plan like those of PlainFormOf can be one instruction.
// Otherwise returns INVALID_ARGUMENT (SHAPE_MISMATCH), which says why not. Requires a plan that
// CheckPlan accepts.
absl::Status CheckFusible(const Plan& pair);

// Returns whether the plan has a fused instruction that is not one of rows, as the head of this
// file says: only workers with the feature kOverlapPartsFeature (rpc/contract.h) run such a plan.
bool OverlapsParts(const Plan& plan);

// The kernel multiplies right matrices of more elements in several panels, for which oneDNN has
// other kernels. Products with such tiles are not fused.
inline constexpr int64_t kMostPanelElements = int64_t{1} << 26;
// With a transposed left operand, oneDNN may split K among threads from 2,048 on, and a kernel of
// one thread computes at most so many multiplications at once. Products beyond either are fused
// only along a batch dimension, which leaves each of their matrices whole.
inline constexpr int64_t kMostTransposedK = 2047;
inline constexpr int64_t kMostTransposedProducts = int64_t{1} << 32;
// With fewer rows, a worker multiplies by weights that it holds packed in loops of its own, which
// add in another order than oneDNN. The columns of a product that is scattered are not multiplied
// by packed weights: a product that has fewer rows on some device is not fused. With a transposed
// left operand, the rows are those of each of its matrices.
inline constexpr int64_t kFewestRowsOfScatteredColumns = 17;
// A fused instruction computes at most so many matrix products on a device.
inline constexpr int64_t kMostFusedMatrices = int64_t{1} << 16;

// The collective of an instruction, with its operand and its result. The pointers are valid as long
// as the plan and the instruction.
struct Exchange {
  const GroupCollective* op = nullptr;
  const ValueDescriptor* operand = nullptr;
  const ValueDescriptor* result = nullptr;
};
// Returns the collective of a GroupCollective or of a fused instruction; nullopt for all others.
std::optional<Exchange> ExchangeOf(const Plan& plan, const Instruction& instruction);

// Returns the time of the instruction's collective during which the device does not multiply:
// PredictedSeconds of the collective, less the part that a fused instruction hides behind its
// product. 0 for instructions without a collective.
double ExchangeSeconds(const Plan& plan, const Instruction& instruction, const LinkCost& links,
                       const KernelRates& kernels);

// The rows that a GatherMatmul multiplies at once if they arrive in pieces: at least kRowsAtOnce,
// and kBytesAtOnce bytes. A device collects so many rows of each peer's message before it
// multiplies them. Columns of a transposed right operand count as rows here. Where an operand lies
// so that rows or columns do not arrive one by one, a device collects whole matrices. A message
// that arrives in one piece, as through shared memory, is read in place.
// Requires row_bytes >= 1.
int64_t RowsAtOnce(int64_t row_bytes);
inline constexpr int64_t kRowsAtOnce = 256;
inline constexpr int64_t kBytesAtOnce = int64_t{1} << 20;

// Returns the most bytes that a fused instruction takes on a device beside its inputs and its
// output: the rows or matrices that a GatherMatmul collects, the parts that a MatmulScatter sends,
// and the columns of operands and of the result that are copied. 0 for all other instructions.
// Results beyond 64 bits become INT64_MAX.
int64_t FusedCopiesBytes(const Plan& plan, const Instruction& instruction);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_FUSE_FUSE_EXCHANGES_H_
