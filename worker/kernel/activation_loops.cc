// Activations, by additions, multiplications, divisions and selections in F64 without branches: the
// compiler vectorises the loops. It contracts no multiplication and addition to one operation. All
// instruction sets therefore give the same bits.
#include "worker/kernel/activation_loops.h"

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernel/activation_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "worker/kernel/loop_math.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

// Returns erfc(t / sqrt(2)) / 2, the probability that a normally distributed number is above t,
// with a relative error below 2e-10. Requires 0 <= t <= kFar.
constexpr double kFar = 15;
inline double UpperTail(double t) {
  // The quotient is fitted to the result divided by e^(-t^2 / 2). All coefficients are positive, so
  // no sum cancels.
  double numerator = 0x1.d6665d359b020p-11;
  numerator = numerator * t + 0x1.7fefbec80ae97p-7;
  numerator = numerator * t + 0x1.2569c11d8ebbep-4;
  numerator = numerator * t + 0x1.015eedd53c94ap-2;
  numerator = numerator * t + 0x1.044c950bbc022p-1;
  numerator = numerator * t + 0x1.ffffffff40e98p-2;
  double denominator = 0x1.26c79cd103d06p-9;
  denominator = denominator * t + 0x1.e130ae15b3acep-6;
  denominator = denominator * t + 0x1.745b0db5ffe19p-3;
  denominator = denominator * t + 0x1.518df2d05cd5dp-1;
  denominator = denominator * t + 0x1.7359493f6dd1fp+0;
  denominator = denominator * t + 0x1.d08ebe863ae45p+0;
  denominator = denominator * t + 1;
  return Exp(-0.5 * (t * t)) * (numerator / denominator);
}

// Each of the functions below is less than half of the least F32, 2^-149, from its bound downwards.
struct Gelu {
  static double Apply(double x) {
    const double tail = UpperTail(Least(x < 0 ? -x : x, kFar));
    return Greatest(x, -kFar) * (x < 0 ? tail : 1 - tail);
  }
};

struct GeluTanh {
  // x/2 (1 + tanh(u)) = x / (1 + e^(-2u)) for u = sqrt(2/pi) (x + 0.044715 x^3)
  static double Apply(double x) {
    constexpr double kTwoSqrt2OverPi = 0x1.9884533d43651p+0;
    constexpr double kBound = 14;
    const double bounded = Least(Greatest(x, -kBound), kBound);
    const double exponent = kTwoSqrt2OverPi * (bounded + 0.044715 * (bounded * bounded * bounded));
    return Greatest(x, -kBound) / (1 + Exp(-exponent));
  }
};

struct Silu {
  static double Apply(double x) {
    constexpr double kBound = 120;
    return Greatest(x, -kBound) / (1 + Exp(-Least(Greatest(x, -kBound), kBound)));
  }
};

// Computes in F64, and rounds once.
template <typename Function>
struct Rounded {
  static float Apply(float x) {
    const float result = static_cast<float>(Function::Apply(static_cast<double>(x)));
    return x != x ? Quiet(x) : result;
  }
};

struct Relu {
  static float Apply(float x) { return x < 0 ? 0 : x; }
};

struct Identity {
  static float Apply(float x) { return x; }
};

template <typename Function>
void Activate(const float* __restrict bias, float* __restrict values, size_t count) {
  if (bias != nullptr) {
    for (size_t i = 0; i < count; ++i) {
      const float value = values[i];
      const float sum = value + bias[i];
      values[i] = value != value ? Quiet(value) : sum;
    }
  }
  for (size_t i = 0; i < count; ++i) values[i] = Function::Apply(values[i]);
}

ActivationFn ActivationHere(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return &Activate<Relu>;
    case Activation::kGelu:
      return &Activate<Rounded<Gelu>>;
    case Activation::kGeluTanh:
      return &Activate<Rounded<GeluTanh>>;
    case Activation::kSilu:
      return &Activate<Rounded<Silu>>;
    case Activation::kNone:
      break;
  }
  return &Activate<Identity>;
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(ActivationHere);

}  // namespace

ActivationFn ActivationLoop(Activation activation) {
  return HWY_DYNAMIC_DISPATCH(ActivationHere)(activation);
}

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
