// Elementwise loops, written so that the compiler vectorises them.
#include "worker/kernel/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"

// Under ThreadSanitizer, Combine and Scale report the memory that they read and write as whole
// ranges. In instrumented code, each unaligned access is one call of the sanitizer per element.
// Such calls would take several times as long as the rest of a reduction. The functions below are
// therefore not instrumented.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(const void* begin, size_t bytes);
extern "C" void __tsan_write_range(void* begin, size_t bytes);
#define SHARDMESH_TOLD_AS_RANGES __attribute__((no_sanitize("thread")))
#else
#define SHARDMESH_TOLD_AS_RANGES
#endif

namespace shardmesh::worker {
namespace {

inline void TellRead([[maybe_unused]] const char* begin, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  __tsan_read_range(begin, static_cast<size_t>(bytes));
#endif
}

inline void TellWritten([[maybe_unused]] char* begin, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_THREAD__)
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
absl::StatusOr<CombineFn> CombineOf(Reduction reduction) {
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
  return absl::InternalError(StrCat("reduction ", static_cast<int>(reduction), " is not known"));
}

// Elements are converted in aligned blocks that fit into the nearest cache.
constexpr int64_t kBlock = 512;

template <auto kConvert, typename From, typename To>
void Convert(const char* from, int64_t count, char* to) {
  std::array<From, kBlock> in;
  std::array<To, kBlock> out;
  for (int64_t done = 0; done < count; done += kBlock) {
    const auto size = static_cast<size_t>(std::min(kBlock, count - done));
    std::memcpy(in.data(), from + done * static_cast<int64_t>(sizeof(From)), size * sizeof(From));
    kConvert(absl::MakeConstSpan(in.data(), size), absl::MakeSpan(out.data(), size));
    std::memcpy(to + done * static_cast<int64_t>(sizeof(To)), out.data(), size * sizeof(To));
  }
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

absl::Status Unsupported(Dtype dtype, std::string_view what) {
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat(what,
                                "; arithmetic is there for F32, F64, F16, BF16, I8, U8, I32 "
                                "and I64, partial results of F16 and BF16 being F32"),
                         {{fact::kDtype, DtypeName(dtype)}});
}

}  // namespace

absl::StatusOr<Dtype> PartialDtype(Dtype operand) {
  switch (operand) {
    case Dtype::kF16:
    case Dtype::kBF16:
      return Dtype::kF32;
    case Dtype::kF32:
    case Dtype::kF64:
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kI32:
    case Dtype::kI64:
      return operand;
    default:
      return Unsupported(operand, StrCat(DtypeName(operand), " cannot be reduced"));
  }
}

absl::StatusOr<CombineFn> CombineFunction(Reduction reduction, Dtype partial) {
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
      return Unsupported(partial,
                         StrCat("partial results of ", DtypeName(partial), " cannot be combined"));
  }
}

absl::StatusOr<ConvertFn> ConvertFunction(Dtype from, Dtype to) {
  if (from == Dtype::kF16 && to == Dtype::kF32) return &Convert<ConvertF16ToF32, uint16_t, float>;
  if (from == Dtype::kBF16 && to == Dtype::kF32) return &Convert<ConvertBF16ToF32, uint16_t, float>;
  if (from == Dtype::kF32 && to == Dtype::kF16) return &Convert<ConvertF32ToF16, float, uint16_t>;
  if (from == Dtype::kF32 && to == Dtype::kBF16) return &Convert<ConvertF32ToBF16, float, uint16_t>;
  return Unsupported(
      from, StrCat("elements of ", DtypeName(from), " are not converted to ", DtypeName(to)));
}

absl::StatusOr<ScaleFn> ScaleFunction(Dtype dtype) {
  if (dtype == Dtype::kF32) return &Scale<float>;
  if (dtype == Dtype::kF64) return &Scale<double>;
  return Unsupported(dtype, StrCat("elements of ", DtypeName(dtype), " are not scaled"));
}

}  // namespace shardmesh::worker
