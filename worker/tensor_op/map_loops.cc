// Functions of elements, written so that the compiler vectorises the loops. The compiler contracts
// no multiplication and addition to one operation. All instruction sets therefore give the same
// bits.
#include "worker/tensor_op/map_loops.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/tensor_op/map_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "worker/kernel/loop_math.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

// Unsigned arithmetic wraps. Signed overflow would be undefined, also for small types, which C++
// promotes to int.
template <typename T>
uint64_t Wrapping(T value) {
  return static_cast<uint64_t>(value);
}

// Functions of two elements. The hardware keeps the NaN of its first operand, but the compiler may
// swap the operands of a sum or product. The functions therefore select the left NaN explicitly.
template <typename T>
T LeftNanFirst(T left, T result) {
  return left != left ? Quiet(left) : result;
}

struct Add {
  template <typename T>
  static T Apply(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) return LeftNanFirst(left, left + right);
    return static_cast<T>(Wrapping(left) + Wrapping(right));
  }
};

struct Subtract {
  template <typename T>
  static T Apply(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) return LeftNanFirst(left, left - right);
    return static_cast<T>(Wrapping(left) - Wrapping(right));
  }
};

struct Multiply {
  template <typename T>
  static T Apply(T left, T right) {
    if constexpr (std::is_floating_point_v<T>) return LeftNanFirst(left, left * right);
    return static_cast<T>(Wrapping(left) * Wrapping(right));
  }
};

struct Divide {
  template <typename T>
  static T Apply(T left, T right) {
    return LeftNanFirst(left, left / right);
  }
};

// A comparison with a NaN is false. If `right` is a NaN, both tests fail and the result is `right`.
struct Minimum {
  template <typename T>
  static T Apply(T left, T right) {
    return (left <= right || left != left) ? left : right;
  }
};

struct Maximum {
  template <typename T>
  static T Apply(T left, T right) {
    return (left >= right || left != left) ? left : right;
  }
};

// Functions of one element, for integers too.
struct Negate {
  template <typename T>
  static T Apply(T x) {
    if constexpr (std::is_floating_point_v<T>) return -x;
    return static_cast<T>(0 - Wrapping(x));
  }
};

struct Abs {
  template <typename T>
  static T Apply(T x) {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(Magnitude(static_cast<double>(x)));
    } else {
      return x < 0 ? Negate::Apply(x) : x;
    }
  }
};

// Functions of F64. Callers keep NaNs.
struct ExpOf {
  static double Apply(double x) { return ExactExp(x); }
};

struct LogOf {
  static double Apply(double x) { return Log(x); }
};

struct SqrtOf {
  static double Apply(double x) { return std::sqrt(x); }
};

struct RsqrtOf {
  static double Apply(double x) { return 1 / std::sqrt(x); }
};

struct TanhOf {
  // tanh(a) = (e^(2a) - 1) / (e^(2a) + 1), which is 1 from 22 on.
  static double Apply(double x) {
    const double t = ExpMinusOne(2 * Least(Magnitude(x), 22));
    return WithSignOf(t / (t + 2), x);
  }
};

struct SigmoidOf {
  static double Apply(double x) {
    const double power = ExactExp(-Magnitude(x));
    return (x < 0 ? power : 1) / (1 + power);
  }
};

struct ReluOf {
  static double Apply(double x) { return x < 0 ? 0 : x; }
};

// The bounds keep infinity times zero out.
struct SiluOf {
  static double Apply(double x) { return Greatest(x, -800) * SigmoidOf::Apply(x); }
};

struct GeluTanhOf {
  // x/2 (1 + tanh(u)) = x * sigmoid(2u) for u = sqrt(2/pi) (x + 0.044715 x^3)
  static double Apply(double x) {
    constexpr double kTwoSqrt2OverPi = 0x1.9884533d43651p+0;
    const double bounded = Least(Greatest(x, -40), 40);
    return Greatest(x, -40) *
           SigmoidOf::Apply(kTwoSqrt2OverPi * (bounded + 0.044715 * (bounded * bounded * bounded)));
  }
};

struct GeluOf {
  // Returns erfc(t) / 2 with a relative error below 1e-14. Requires 0 <= t <= 28.
  static double HalfErfc(double t) {
    // e^(-t^2), where the square of the rounded part is exact.
    const double part = std::bit_cast<double>(std::bit_cast<uint64_t>(t) & 0xFFFFFFFFF8000000u);
    const double power = ExactExp(-part * part) * ExactExp((part - t) * (part + t));
    constexpr double kOneOverSqrtPi = 0x1.20dd750429b6dp-1;
    if (t < 1.25) {
      // erf(t) = 2/sqrt(pi) e^(-t^2) (t + 2/3 t^3 + 4/15 t^5 + ...): all terms are positive.
      double term = t;
      double sum = t;
      for (int n = 1; n < 40; ++n) {
        term *= 2 * t * t / (2 * n + 1);
        sum += term;
      }
      return 0.5 - kOneOverSqrtPi * power * sum;
    }
    // The continued fraction of erfc, from its end.
    double fraction = t;
    for (int n = 120; n > 0; --n) fraction = t + 0.5 * n / fraction;
    return 0.5 * kOneOverSqrtPi * power / fraction;
  }
  static double Apply(double x) {
    constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
    const double tail = HalfErfc(Least(Magnitude(x) * kSqrtHalf, 28));
    return Greatest(x, -40) * (x < 0 ? tail : 1 - tail);
  }
};

// Computes in F64, and rounds once.
template <typename Function>
struct KeepsNan {
  template <typename T>
  static T Apply(T x) {
    const T result = static_cast<T>(Function::Apply(static_cast<double>(x)));
    return x != x ? Quiet(x) : result;
  }
};

template <typename T, typename Function>
void MapEach(const char* in, int64_t count, char* out) {
  const T* const from = reinterpret_cast<const T*>(in);
  T* const to = reinterpret_cast<T*>(out);
#pragma GCC ivdep  // where `out` is `in`, element i is read before it is written
  for (int64_t i = 0; i < count; ++i) to[i] = Function::Apply(from[i]);
}

template <typename T, typename Function>
void MapPairs(const char* left, const char* right, int64_t count, char* out) {
  const T* const a = reinterpret_cast<const T*>(left);
  const T* const b = reinterpret_cast<const T*>(right);
  T* const to = reinterpret_cast<T*>(out);
#pragma GCC ivdep  // where `out` is an input, element i is read before it is written
  for (int64_t i = 0; i < count; ++i) to[i] = Function::Apply(a[i], b[i]);
}

template <typename T>
MapFn MapOf(MapFunction function) {
  if (function == MapFunction::kNegate) return &MapEach<T, Negate>;
  if (function == MapFunction::kAbs) return &MapEach<T, Abs>;
  if constexpr (std::is_floating_point_v<T>) {
    switch (function) {
      case MapFunction::kExp:
        return &MapEach<T, KeepsNan<ExpOf>>;
      case MapFunction::kLog:
        return &MapEach<T, KeepsNan<LogOf>>;
      case MapFunction::kSqrt:
        return &MapEach<T, KeepsNan<SqrtOf>>;
      case MapFunction::kRsqrt:
        return &MapEach<T, KeepsNan<RsqrtOf>>;
      case MapFunction::kTanh:
        return &MapEach<T, KeepsNan<TanhOf>>;
      case MapFunction::kSigmoid:
        return &MapEach<T, KeepsNan<SigmoidOf>>;
      case MapFunction::kRelu:
        return &MapEach<T, KeepsNan<ReluOf>>;
      case MapFunction::kGelu:
        return &MapEach<T, KeepsNan<GeluOf>>;
      case MapFunction::kGeluTanh:
        return &MapEach<T, KeepsNan<GeluTanhOf>>;
      case MapFunction::kSilu:
        return &MapEach<T, KeepsNan<SiluOf>>;
      default:
        break;
    }
  }
  return nullptr;
}

template <typename T>
CombineFn PairOf(MapFunction function) {
  switch (function) {
    case MapFunction::kAdd:
      return &MapPairs<T, Add>;
    case MapFunction::kSubtract:
      return &MapPairs<T, Subtract>;
    case MapFunction::kMultiply:
      return &MapPairs<T, Multiply>;
    case MapFunction::kDivide:
      if constexpr (std::is_floating_point_v<T>) return &MapPairs<T, Divide>;
      return nullptr;
    case MapFunction::kMinimum:
      return &MapPairs<T, Minimum>;
    case MapFunction::kMaximum:
      return &MapPairs<T, Maximum>;
    default:
      return nullptr;
  }
}

MapFn MapHere(MapFunction function, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return MapOf<float>(function);
    case Dtype::kF64:
      return MapOf<double>(function);
    case Dtype::kI8:
      return MapOf<int8_t>(function);
    case Dtype::kI16:
      return MapOf<int16_t>(function);
    case Dtype::kI32:
      return MapOf<int32_t>(function);
    case Dtype::kI64:
      return MapOf<int64_t>(function);
    default:
      return nullptr;
  }
}

CombineFn PairHere(MapFunction function, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return PairOf<float>(function);
    case Dtype::kF64:
      return PairOf<double>(function);
    case Dtype::kI8:
      return PairOf<int8_t>(function);
    case Dtype::kI16:
      return PairOf<int16_t>(function);
    case Dtype::kI32:
      return PairOf<int32_t>(function);
    case Dtype::kI64:
      return PairOf<int64_t>(function);
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(MapHere);
HWY_EXPORT(PairHere);

}  // namespace

MapFn MapLoop(MapFunction function, Dtype dtype) {
  return HWY_DYNAMIC_DISPATCH(MapHere)(function, dtype);
}

CombineFn PairLoop(MapFunction function, Dtype dtype) {
  return HWY_DYNAMIC_DISPATCH(PairHere)(function, dtype);
}

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
