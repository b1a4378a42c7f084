// Epilogue of a matrix product that the product itself cannot apply: bias and activation on reduced
// sums.
#ifndef SHARDMESH_WORKER_KERNEL_EPILOGUE_H_
#define SHARDMESH_WORKER_KERNEL_EPILOGUE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh::worker {

// out[i, j] = activation(in[i, j] + bias[j]), computed in F32 and rounded once. Sums of partial
// products need this step after the reduction: an activation other than "none" may not be applied
// to the partial sums.
struct EpilogueSpec {
  int64_t rows = 0;
  int64_t columns = 0;
  Dtype in_dtype = Dtype::kF32;  // F32, BF16 or F16, as the other two types
  Dtype bias_dtype = Dtype::kF32;
  Dtype out_dtype = Dtype::kF32;
  bool has_bias = false;
  Activation activation = Activation::kNone;
};

// Applies the epilogue. Memory is row-major without gaps and needs no alignment. `out` may be `in`
// where their types are the same; it may not overlap an operand otherwise. `bias` is empty without
// has_bias. Thread-safe. INVALID_ARGUMENT: a size is negative, memory does not have the spec's size
// (SHAPE_MISMATCH), or a type is not one of the three (UNSUPPORTED_DTYPE).
absl::Status ApplyEpilogue(const EpilogueSpec& spec, absl::Span<const char> in,
                           absl::Span<const char> bias, absl::Span<char> out);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_EPILOGUE_H_
