// Elementwise loops, written so that the compiler vectorises them. The compiler makes each loop
// once for each instruction set, and CombineLoop and ScaleLoop select those for the CPU at hand.
#include "worker/kernel/reduce_loops.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/base/config.h"

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernel/reduce_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef SHARDMESH_TOLD_AS_RANGES
// Under ThreadSanitizer, Combine and Scale report the memory that they read and write as whole
// ranges. In instrumented code, each unaligned access is one call of the sanitizer per element.
// Such calls would take several times as long as the rest of a reduction. The functions below are
// therefore not instrumented.
#if defined(ABSL_HAVE_THREAD_SANITIZER)
extern "C" void __tsan_read_range(const void* begin, size_t bytes);
extern "C" void __tsan_write_range(void* begin, size_t bytes);
#define SHARDMESH_TOLD_AS_RANGES __attribute__((no_sanitize("thread")))
#else
#define SHARDMESH_TOLD_AS_RANGES
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

inline void TellRead([[maybe_unused]] const char* begin, [[maybe_unused]] int64_t bytes) {
#if defined(ABSL_HAVE_THREAD_SANITIZER)
  __tsan_read_range(begin, static_cast<size_t>(bytes));
#endif
}

inline void TellWritten([[maybe_unused]] char* begin, [[maybe_unused]] int64_t bytes) {
#if defined(ABSL_HAVE_THREAD_SANITIZER)
  __tsan_write_range(begin, static_cast<size_t>(bytes));
#endif
}

template <typename T>
SHARDMESH_TOLD_AS_RANGES T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
SHARDMESH_TOLD_AS_RANGES void Store(char* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

SHARDMESH_TOLD_AS_RANGES inline float Quiet(float nan) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nan) | 0x00400000u);
}
SHARDMESH_TOLD_AS_RANGES inline double Quiet(double nan) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(nan) | 0x0008000000000000u);
}

// Returns `left` if it is a NaN. Else returns `result`, the result of an operation on `left` and
// another value. The hardware keeps the NaN of its first operand, but the compiler may swap the
// operands of a sum or product. This function therefore selects the NaN explicitly.
template <typename T>
SHARDMESH_TOLD_AS_RANGES T LeftNanFirst(T left, T result) {
  return left != left ? Quiet(left) : result;
}

struct Sum {
  template <typename T>
  SHARDMESH_TOLD_AS_RANGES static T Apply(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return LeftNanFirst(left, left + right);
    } else {
      // Unsigned 64-bit arithmetic wraps. Signed overflow would be undefined, also for small types,
      // which C++ promotes to int.
      return static_cast<T>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
    }
  }
};

struct Product {
  template <typename T>
  SHARDMESH_TOLD_AS_RANGES static T Apply(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) {
      return LeftNanFirst(left, left * right);
    } else {
      return static_cast<T>(static_cast<uint64_t>(left) * static_cast<uint64_t>(right));
    }
  }
};

// A comparison with a NaN is false. If `right` is a NaN, both tests therefore fail and the result
// is `right`. The second test, left != left, keeps a NaN in `left`.
struct Min {
  template <typename T>
  SHARDMESH_TOLD_AS_RANGES static T Apply(T left, T right) {
    return (left <= right || left != left) ? left : right;
  }
};

struct Max {
  template <typename T>
  SHARDMESH_TOLD_AS_RANGES static T Apply(T left, T right) {
    return (left >= right || left != left) ? left : right;
  }
};

template <typename T, typename Op>
SHARDMESH_TOLD_AS_RANGES void Combine(const char* left, const char* right, int64_t count,
                                      char* out) {
  constexpr int64_t kSize = sizeof(T);
  TellRead(left, count * kSize);
  TellRead(right, count * kSize);
  TellWritten(out, count * kSize);
#pragma GCC ivdep  // where `out` is an operand, element i is read before it is written
  for (int64_t i = 0; i < count; ++i) {
    Store<T>(out + i * kSize,
             Op::template Apply<T>(Load<T>(left + i * kSize), Load<T>(right + i * kSize)));
  }
}

template <typename T>
CombineFn CombineOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMean:
      return &Combine<T, Sum>;
    case Reduction::kProduct:
      return &Combine<T, Product>;
    case Reduction::kMin:
      return &Combine<T, Min>;
    case Reduction::kMax:
      return &Combine<T, Max>;
  }
  return nullptr;
}

template <typename T>
SHARDMESH_TOLD_AS_RANGES void Scale(const char* in, double factor, int64_t count, char* out) {
  constexpr int64_t kSize = sizeof(T);
  const T typed_factor = static_cast<T>(factor);
  TellRead(in, count * kSize);
  TellWritten(out, count * kSize);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    Store<T>(out + i * kSize, Load<T>(in + i * kSize) * typed_factor);
  }
}

CombineFn CombineHere(Reduction reduction, Dtype partial) {
  switch (partial) {
    case Dtype::kF32:
      return CombineOf<float>(reduction);
    case Dtype::kF64:
      return CombineOf<double>(reduction);
    case Dtype::kI8:
      return CombineOf<int8_t>(reduction);
    case Dtype::kU8:
      return CombineOf<uint8_t>(reduction);
    case Dtype::kI32:
      return CombineOf<int32_t>(reduction);
    case Dtype::kI64:
      return CombineOf<int64_t>(reduction);
    default:
      return nullptr;
  }
}

ScaleFn ScaleHere(Dtype dtype) {
  if (dtype == Dtype::kF32) return &Scale<float>;
  if (dtype == Dtype::kF64) return &Scale<double>;
  return nullptr;
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(CombineHere);
HWY_EXPORT(ScaleHere);

}  // namespace

CombineFn CombineLoop(Reduction reduction, Dtype partial) {
  return HWY_DYNAMIC_DISPATCH(CombineHere)(reduction, partial);
}

ScaleFn ScaleLoop(Dtype dtype) { return HWY_DYNAMIC_DISPATCH(ScaleHere)(dtype); }

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
