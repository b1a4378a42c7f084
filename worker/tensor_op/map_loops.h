// The loops of functions of elements, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_TENSOR_OP_MAP_LOOPS_H_
#define SHARDMESH_WORKER_TENSOR_OP_MAP_LOOPS_H_

#include <cstdint>

#include "program/tensor_op.h"
#include "tensor/dtype.h"
#include "worker/kernel/reduce.h"

namespace shardmesh::worker {

// Sets out[i] to the function of in[i] for i in [0, count). `out` may be `in`, but may not overlap
// it in part. Memory is aligned to its elements. Thread-safe.
using MapFn = void (*)(const char* in, int64_t count, char* out);

// Return the loop of a function of one input and of two inputs for this CPU. `dtype` is F32, F64
// or, for functions that MapOp has for integers, I8, I16, I32 or I64. Null for other types and for
// functions with another number of inputs. The bits of a result do not depend on the CPU.
//
// A function of F32 is computed in F64, and rounded once. Functions of F64 have relative errors of
// some 1e-15; gelu and gelu-tanh lose more where x is negative and large, because their exponents
// are rounded. NaNs stay NaNs, and of two NaNs the left one counts, also for kMinimum and kMaximum.
// For equal values these return the left one. The activations of minus infinity are -0.
MapFn MapLoop(MapFunction function, Dtype dtype);
CombineFn PairLoop(MapFunction function, Dtype dtype);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_TENSOR_OP_MAP_LOOPS_H_
