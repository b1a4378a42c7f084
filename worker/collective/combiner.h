// The functions that do the arithmetic of a reduction, for the collective algorithms.
#ifndef SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_
#define SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_

#include <cstdint>
#include <functional>

namespace shardmesh::worker {

// The functions of a reduction. `widen` converts operands to partial results. `combine` combines
// partial results along the canonical tree (tree.h). `finish` converts the partial result at the
// root of that tree to the result.
//
// Memory need not be aligned. `count` is a number of elements. Several threads may call the
// functions at once.
struct Combiner {
  // Sizes of one element of operands, partial results and results, 1 to 16 bytes each.
  int64_t operand_bytes = 0;
  int64_t partial_bytes = 0;
  int64_t result_bytes = 0;

  // Converts operands to partial results. Not set if operands need no conversion.
  std::function<void(const char* operands, int64_t count, char* partials)> widen;
  // Combines `left` with `right` into `out`, element by element; `left` is the left operand. `out`
  // may be the same memory as `left` or `right`, but may not overlap either of them in part.
  std::function<void(const char* left, const char* right, int64_t count, char* out)> combine;
  // Converts partial results at the root of the canonical tree to results. Not set if partial
  // results need no conversion. `results` may be the same memory as `partials` if partial_bytes
  // equals result_bytes.
  std::function<void(const char* partials, int64_t count, char* results)> finish;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COMBINER_H_
