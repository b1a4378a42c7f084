// Elementwise arithmetic of reductions, on memory of any alignment.
#ifndef SHARDMESH_WORKER_KERNEL_REDUCE_H_
#define SHARDMESH_WORKER_KERNEL_REDUCE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh::worker {

// Element types with arithmetic: F32, F64, F16, BF16, I8, U8, I32, I64.
//
// PartialDtype returns the type in which a reduction keeps and sends partial results for operands
// of the given type. For F16 and BF16 it returns F32, so the reduction rounds only once, at its
// end. For any other type with arithmetic it returns `operand`. INVALID_ARGUMENT
// (UNSUPPORTED_DTYPE) for a type without arithmetic; the message names the types that have
// arithmetic.
absl::StatusOr<Dtype> PartialDtype(Dtype operand);

// Combines left[i] with right[i] and writes the result to out[i], for i in [0, count). `out` may be
// the same memory as `left` or `right`, but may not overlap either of them in part. Thread-safe.
using CombineFn = void (*)(const char* left, const char* right, int64_t count, char* out);

// Returns the function that combines partial results. `partial` is a type that PartialDtype
// returns; for any other type, INVALID_ARGUMENT (UNSUPPORTED_DTYPE).
//
// Sums and products of integers wrap around. If only one operand is a NaN, the result is this NaN;
// if both operands are NaNs, the result is the left one. Sums and products make a NaN quiet. For
// equal values, including zeros of both signs, min and max return the left value. A mean is
// combined as a sum.
absl::StatusOr<CombineFn> CombineFunction(Reduction reduction, Dtype partial);

// Sets to[i] = from[i], rounded to nearest even, for i in [0, count). `to` does not overlap `from`.
// Thread-safe.
using ConvertFn = void (*)(const char* from, int64_t count, char* to);

// Returns the function that converts F16 or BF16 to F32, or F32 to F16 or BF16. INVALID_ARGUMENT
// (UNSUPPORTED_DTYPE) for other pairs of types.
absl::StatusOr<ConvertFn> ConvertFunction(Dtype from, Dtype to);

// A ScaleFn sets out[i] = in[i] * factor for i in [0, count); `out` may be `in`. ScaleFunction
// returns the ScaleFn for F32 or F64, and INVALID_ARGUMENT (UNSUPPORTED_DTYPE) for other types.
using ScaleFn = void (*)(const char* in, double factor, int64_t count, char* out);
absl::StatusOr<ScaleFn> ScaleFunction(Dtype dtype);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_REDUCE_H_
