// The loops of norms, softmax and rotary embedding over rows of F32, compiled for several
// instruction sets.
#ifndef SHARDMESH_WORKER_TENSOR_OP_ROW_LOOPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_ROW_LOOPS_H_

#include <cstddef>

namespace shardmesh::worker {

// A row becomes out[i] = (in[i] - mean) * factor * weight[i] + bias[i], computed in F64. Null
// `weight` or `bias`: 1 or 0.
struct RowScaling {
  double mean = 0;
  double factor = 1;
  const float* weight = nullptr;
  const float* bias = nullptr;
};

// Loops for one CPU. Their bits do not depend on the CPU: sums of F64 are added in a fixed order. A
// NaN that scale, angles or a rotation makes is 0x7FC00000. Thread-safe.
struct RowLoops {
  // Return the sum of in[i], and that of (in[i] - mean)^2.
  double (*sum)(const float* in, size_t count);
  double (*squares)(const float* in, double mean, size_t count);
  // `out` may be `in`.
  void (*scale)(const float* in, const RowScaling& scaling, size_t count, float* out);

  // Multiplies by `factor`, and returns the largest product: -infinity for no elements, a NaN if
  // there is one.
  float (*multiply)(float factor, size_t count, float* values);
  float (*largest)(const float* values, size_t count);
  // Replaces x by e^(x - largest), and returns the sum of the results. Requires that `largest` is
  // finite and not below any element.
  double (*exp)(float largest, size_t count, float* values);
  // Divides by `divisor`.
  void (*divide)(double divisor, size_t count, float* values);

  // Computes the sines and cosines of position * frequencies[i], a product of F64s, with an error
  // below 1e-15 before they are rounded. Those of a product beyond 3e9, or of a NaN, are NaNs.
  void (*angles)(double position, const float* frequencies, size_t count, float* sines,
                 float* cosines);
  // Rotate `pairs` pairs: elements i and i + pairs, or elements 2i and 2i + 1. `out` may be `in`.
  void (*rotate_halves)(const float* in, const float* sines, const float* cosines, size_t pairs,
                        float* out);
  void (*rotate_neighbours)(const float* in, const float* sines, const float* cosines, size_t pairs,
                            float* out);
};

// Returns the loops for this CPU.
const RowLoops& RowLoopsOfCpu();

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_ROW_LOOPS_H_
