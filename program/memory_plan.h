// The memory of a plan's temporaries, which are the values that are neither operands, outputs nor
// values of updates, and that no state operand has in its memory (StatePlaces). All of them share
// one block, and each has an offset in the block.
#ifndef SHARDMESH_PROGRAM_MEMORY_PLAN_H_
#define SHARDMESH_PROGRAM_MEMORY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "program/program.h"
#include "program/step_plan.h"

namespace shardmesh {

// Offsets in a block, and its size, are multiples of this number of bytes.
inline constexpr int64_t kBlockAlignment = 64;

// Memory that is in use from instruction `first` to instruction `last`, both included. Requires
// size_bytes >= 0 and first <= last.
struct LiveRange {
  int64_t size_bytes = 0;
  size_t first = 0;
  size_t last = 0;
};

// Returns the size that a block for these ranges has at least: the largest sum of the sizes of the
// ranges that are in use at the same time, each rounded up to kBlockAlignment. A result beyond 64
// bits becomes INT64_MAX.
int64_t LeastBlockBytes(absl::Span<const LiveRange> ranges);

// Offsets in one block, by range, and the size of the block.
struct BlockLayout {
  std::vector<int64_t> offsets;
  int64_t size_bytes = 0;
};

// Gives each range an offset, so that ranges which are in use at the same time do not overlap.
//
// First places the ranges in the order of their first instructions, at the two ends of a block of
// LeastBlockBytes in turn. This fits for every chain, in which each instruction reads only the
// result of the one before it. If it does not fit, places the largest ranges first, each at the
// lowest offset at which it fits; the block may then be larger than LeastBlockBytes. The result
// depends on the ranges only. Sizes beyond 64 bits become INT64_MAX, which no host can allocate.
// Takes O(n^2) for n ranges: some 10 ms for 3,000.
BlockLayout LayOutBlock(absl::Span<const LiveRange> ranges);

// The place of a temporary.
struct BlockPlace {
  int64_t offset_bytes = 0;
  // The input of the instruction that makes the temporary, if both are at the same offset. The
  // instruction overwrites its input; no later instruction reads the input.
  std::optional<ValueIndex> over = std::nullopt;
};

// The same for every rank of the plan: places have room for the largest tile of any rank.
struct MemoryPlan {
  std::vector<std::optional<BlockPlace>> places;  // by value; set for temporaries
  int64_t block_bytes = 0;
  // The block is in use from the first to the last of these instructions. Both are 0 if there are
  // no temporaries.
  size_t first = 0;
  size_t last = 0;
};

// Returns the places of the plan's temporaries. A temporary is made over an input of the same size
// if that is a temporary too, if no later instruction reads the input, and if the instruction
// allows it: an epilogue that keeps the element type, a copy, a collective for which
// MayOverwriteOperand is true, a tensor op for which MayOverwriteInput is true, if it reads the
// input once, and a FusedCompute. Requires a plan that CheckPlan accepts.
MemoryPlan MemoryPlanOf(const Plan& plan);

// Returns the most bytes that the values of a plan take on one rank at the same time in a run, and
// the copies of its moves. These are: the block while it is in use; the outputs and the values of
// updates that are not made in the memory of their operands, each from the instruction that makes
// it on; the copies that a move makes to send them (MoveCopiesBytes); and the parts of a fused
// instruction (FusedCopiesBytes). Operands do not count, and neither does what collectives copy to
// send or receive, nor the memory that values take while their place in the block is lent to a
// peer. A result beyond 64 bits becomes INT64_MAX. Requires a plan that CheckPlan accepts.
int64_t PeakBytesOf(const Plan& plan);

// Returns the bytes without which no run of the plan succeeds: like PeakBytesOf, for a run without
// a block, whose temporaries have memory of their own while they are in use, and without the copies
// of moves and of fused instructions, which can do with less. A result beyond 64 bits becomes
// INT64_MAX. Requires a plan that CheckPlan accepts. Takes O(n) for n instructions.
int64_t LeastBytesOf(const Plan& plan);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_MEMORY_PLAN_H_
