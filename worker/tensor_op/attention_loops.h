// The loops of attention over few queries, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_

#include <cstddef>
#include <cstdint>

namespace shardmesh::worker {

// Loops for one CPU. Sums are F32, in an order that depends on the CPU. Thread-safe.
struct AttentionLoops {
  // Sets out[row] to the product of the query with each key, for row in [0, rows).
  void (*scores)(const float* query, const float* const* keys, size_t rows, size_t features,
                 float* out);
  // Adds weights[row] * values[row] to `sums`.
  void (*add_values)(const float* weights, const float* const* values, size_t rows, size_t features,
                     float* sums);
  void (*multiply)(float factor, size_t count, float* values);
  void (*widen_bf16)(const uint16_t* in, size_t count, float* out);
};

// Returns the loops for this CPU.
const AttentionLoops& AttentionLoopsOfCpu();

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ATTENTION_LOOPS_H_
