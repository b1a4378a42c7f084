// The loops of products with short weights, compiled for several instruction sets.
#ifndef SHARDMESH_WORKER_KERNEL_WEIGHT_LOOPS_H_
#define SHARDMESH_WORKER_KERNEL_WEIGHT_LOOPS_H_

#include <cstddef>
#include <cstdint>

namespace shardmesh::worker {

// The number of columns of a piece of weights is a multiple of this number.
inline constexpr size_t kWeightColumnGranule = 16;

// Memory that is read next. Loops that read weights several times load it into the second cache
// meanwhile, a line now and then. Loops that read them once need nothing ahead: the CPU sees that
// they read memory in its order, and is faster by itself.
struct MemoryAhead {
  const char* begin = nullptr;
  size_t size_bytes = 0;  // 0: there is none
};

// Up to this number of rows, the loops read weights once.
inline constexpr int64_t kMostRowsOfOnePass = 4;

// Adds lhs * weights to `sums`.
//
// clang-format off
//   lhs      [rows, depth]; rows begin `lhs_pitch` elements apart
//   weights  [depth, columns] without gaps; columns is a multiple of kWeightColumnGranule
//   sums     [rows, columns] without gaps
// clang-format on
//
// Each sum adds its products in the order of `depth`, in F32. `sums` does not overlap the others.
template <typename Weight>
using AddProductsFn = void (*)(const float* lhs, size_t lhs_pitch, size_t rows,
                               const Weight* weights, size_t depth, size_t columns, float* sums,
                               const MemoryAhead& ahead);

// The loops for one CPU. All are thread-safe.
struct WeightLoops {
  // Some CPUs round after each multiplication and each addition, others once for both. The bits of
  // sums therefore depend on the CPU, as those of oneDNN's products do.
  AddProductsFn<int8_t> add_i8 = nullptr;
  AddProductsFn<uint16_t> add_f16 = nullptr;  // bits of F16
  AddProductsFn<float> add_f32 = nullptr;
  // Convert `count` elements, which is exact. `from` and `to` do not overlap.
  void (*i8_to_f32)(const int8_t* from, size_t count, float* to) = nullptr;
  void (*i8_to_bf16)(const int8_t* from, size_t count, uint16_t* to) = nullptr;
};

// Returns the loops for this CPU.
WeightLoops WeightLoopsOfCpu();

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_WEIGHT_LOOPS_H_
