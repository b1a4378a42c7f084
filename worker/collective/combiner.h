// How elements are combined: the arithmetic of a reduction, handed to the algorithms.
#ifndef SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_
#define SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_

#include <cstdint>
#include <functional>

namespace shardmesh::worker {

// Operands become partial results, partial results are combined along the canonical tree, and the
// result is made from the partial result at its root. Memory is aligned to nothing. All functions
// take a number of elements, and may be called from several threads at once.
struct Combiner {
  // Sizes of one element, 1 to 16 bytes.
  int64_t operand_bytes = 0;
  int64_t partial_bytes = 0;
  int64_t result_bytes = 0;

  // Operands to partial results. Empty where an operand is a partial result as it is.
  std::function<void(const char* operands, int64_t count, char* partials)> widen;
  // left with right to out, element by element, left standing first. `out` may be `left`, or
  // `right`, and overlaps neither otherwise.
  std::function<void(const char* left, const char* right, int64_t count, char* out)> combine;
  // Partial results at the root to results. Empty where a partial result is a result as it is.
  // `results` may be `partials` where the sizes are equal.
  std::function<void(const char* partials, int64_t count, char* results)> finish;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_
