// The loops of products with pairs of BF16, for CPUs that multiply and add both of a pair at once
// (AVX512-BF16).
#ifndef SHARDMESH_WORKER_KERNEL_PAIR_LOOPS_H_
#define SHARDMESH_WORKER_KERNEL_PAIR_LOOPS_H_

#include <cstddef>
#include <cstdint>

#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {

// A pair has the elements of two neighbours in the dimension of the sum, the first one in the low
// bits. All loops are thread-safe. The memory of results overlaps no other.
struct PairLoops {
  // Adds lhs * weights to `sums`: those of rows 2 i and 2 i + 1, for one i after the other, as the
  // instruction adds them.
  //
  // clang-format off
  //   lhs      [rows, depth] pairs; rows begin `lhs_pitch` pairs apart
  //   weights  [depth, columns] pairs without gaps; columns is a multiple of kWeightColumnGranule
  //   sums     [rows, columns] without gaps
  // clang-format on
  void (*add)(const uint32_t* lhs, size_t lhs_pitch, size_t rows, const uint32_t* weights,
              size_t depth, size_t columns, float* sums, const MemoryAhead& ahead) = nullptr;
  // Converts I8 [2 * depth, columns] to pairs [depth, columns], which is exact. `columns` as above.
  void (*i8_to_pairs)(const int8_t* from, size_t depth, size_t columns, uint32_t* to) = nullptr;
};

// Returns the loops for this CPU; null if it does not multiply pairs.
const PairLoops* PairLoopsOfCpu();

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_PAIR_LOOPS_H_
