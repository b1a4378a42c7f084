// Epilogue of a matrix product: bias and activation. If ranks must reduce the product's partial
// sums first, the kernel of the product cannot apply the epilogue itself.
#ifndef SHARDMESH_WORKER_KERNEL_EPILOGUE_H_
#define SHARDMESH_WORKER_KERNEL_EPILOGUE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh::worker {

// Describes the epilogue out[i, j] = activation(in[i, j] + bias[j]), computed in F32 and rounded
// once. An activation other than "none" must not be applied to partial sums. Callers therefore
// apply this epilogue after the reduction.
struct EpilogueSpec {
  int64_t rows = 0;
  int64_t columns = 0;
  Dtype in_dtype = Dtype::kF32;  // each of the three types is F32, BF16 or F16
  Dtype bias_dtype = Dtype::kF32;
  Dtype out_dtype = Dtype::kF32;
  bool has_bias = false;
  Activation activation = Activation::kNone;
};

// Applies the epilogue. Memory is row-major without gaps and need not be aligned. `out` may be the
// same memory as `in` if in_dtype is out_dtype; in all other cases it may not overlap `in` or
// `bias`. `bias` is empty if has_bias is false. Thread-safe.
//
// A large result is computed by at most `threads` threads; the caller's thread is one of them. The
// bits of the result depend neither on their number nor on the CPU. ActivationLoop states how exact
// they are. The caller's thread calls `abort_check`, if not null, at least every 100 ms or so. A
// status other than OK ends the run, and `out` is then undefined.
//
// INVALID_ARGUMENT: a size is negative, memory does not have the spec's size (SHAPE_MISMATCH), or a
// type is not one of the three (UNSUPPORTED_DTYPE). Else the status of `abort_check`.
absl::Status ApplyEpilogue(const EpilogueSpec& spec, absl::Span<const char> in,
                           absl::Span<const char> bias, absl::Span<char> out, int threads = 1,
                           const std::function<absl::Status()>& abort_check = nullptr);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_EPILOGUE_H_
