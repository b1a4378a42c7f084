// Loops over rows, written so that the compiler vectorises them. Sums have a fixed number of
// partial sums, whatever the width of vectors.
#include "worker/tensor_op/row_loops.h"

#include <algorithm>
#include <array>
#include <limits>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/tensor_op/row_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "worker/kernel/loop_math.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

constexpr size_t kLanes = 32;
constexpr float kRowNan = std::bit_cast<float>(uint32_t{0x7FC00000});
constexpr double kLargestAngle = 3e9;  // SineAndCosine takes somewhat larger ones

// Adds term(i) for i in [0, count): those with equal i % kLanes first, then the sums of neighbours.
template <typename Term>
double SumOfTerms(size_t count, Term term) {
  std::array<double, kLanes> sums = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  for (size_t lane = 0; i < count; ++i, ++lane) sums[lane] += term(i);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

double SumRow(const float* in, size_t count) {
  return SumOfTerms(count, [in](size_t i) { return static_cast<double>(in[i]); });
}

double SumSquares(const float* in, double mean, size_t count) {
  return SumOfTerms(count, [in, mean](size_t i) {
    const double difference = static_cast<double>(in[i]) - mean;
    return difference * difference;
  });
}

inline float OneNan(float value) { return value != value ? kRowNan : value; }

template <bool kHasWeight, bool kHasBias>
void ScaleElements(const float* in, const RowScaling& scaling, size_t count, float* out) {
  const double mean = scaling.mean;
  const double factor = scaling.factor;
  const float* const weight = scaling.weight;
  const float* const bias = scaling.bias;
#pragma GCC ivdep  // where `out` is `in`, element i is read before it is written
  for (size_t i = 0; i < count; ++i) {
    double value = (static_cast<double>(in[i]) - mean) * factor;
    if constexpr (kHasWeight) value *= static_cast<double>(weight[i]);
    if constexpr (kHasBias) value += static_cast<double>(bias[i]);
    out[i] = OneNan(static_cast<float>(value));
  }
}

void ScaleRow(const float* in, const RowScaling& scaling, size_t count, float* out) {
  if (scaling.weight != nullptr && scaling.bias != nullptr) {
    ScaleElements<true, true>(in, scaling, count, out);
  } else if (scaling.weight != nullptr) {
    ScaleElements<true, false>(in, scaling, count, out);
  } else if (scaling.bias != nullptr) {
    ScaleElements<false, true>(in, scaling, count, out);
  } else {
    ScaleElements<false, false>(in, scaling, count, out);
  }
}

inline float LargerOrNan(float a, float b) { return (a >= b || a != a) ? a : b; }

float LargestOfRow(const float* values, size_t count) {
  std::array<float, kLanes> largest;
  largest.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = LargerOrNan(largest[lane], values[i + lane]);
    }
  }
  for (size_t lane = 0; i < count; ++i, ++lane) {
    largest[lane] = LargerOrNan(largest[lane], values[i]);
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      largest[lane] = LargerOrNan(largest[lane], largest[lane + half]);
    }
  }
  return largest[0];
}

float MultiplyRow(float factor, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
  return LargestOfRow(values, count);
}

double ExpRow(float largest, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(values[i]) - static_cast<double>(largest);
    values[i] = static_cast<float>(Exp(Greatest(difference, -700)));
  }
  return SumRow(values, count);
}

void DivideRow(double divisor, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) / divisor);
  }
}

void AnglesOfRow(double position, const float* __restrict frequencies, size_t count,
                 float* __restrict sines, float* __restrict cosines) {
  for (size_t i = 0; i < count; ++i) {
    const double angle = position * static_cast<double>(frequencies[i]);
    double sine = 0;
    double cosine = 0;
    SineAndCosine(angle, sine, cosine);
    const bool is_in_range = Magnitude(angle) <= kLargestAngle;  // false for a NaN
    sines[i] = is_in_range ? static_cast<float>(sine) : kRowNan;
    cosines[i] = is_in_range ? static_cast<float>(cosine) : kRowNan;
  }
}

void RotateHalves(const float* in, const float* __restrict sines, const float* __restrict cosines,
                  size_t pairs, float* out) {
#pragma GCC ivdep  // where `out` is `in`, pair i is read before it is written
  for (size_t i = 0; i < pairs; ++i) {
    const float x = in[i];
    const float y = in[i + pairs];
    out[i] = OneNan(x * cosines[i] - y * sines[i]);
    out[i + pairs] = OneNan(y * cosines[i] + x * sines[i]);
  }
}

void RotateNeighbours(const float* in, const float* __restrict sines,
                      const float* __restrict cosines, size_t pairs, float* out) {
#pragma GCC ivdep  // where `out` is `in`, pair i is read before it is written
  for (size_t i = 0; i < pairs; ++i) {
    const float x = in[2 * i];
    const float y = in[2 * i + 1];
    out[2 * i] = OneNan(x * cosines[i] - y * sines[i]);
    out[2 * i + 1] = OneNan(y * cosines[i] + x * sines[i]);
  }
}

const RowLoops* RowLoopsHere() {
  static constexpr RowLoops kLoops = {
      .sum = &SumRow,
      .squares = &SumSquares,
      .scale = &ScaleRow,
      .multiply = &MultiplyRow,
      .largest = &LargestOfRow,
      .exp = &ExpRow,
      .divide = &DivideRow,
      .angles = &AnglesOfRow,
      .rotate_halves = &RotateHalves,
      .rotate_neighbours = &RotateNeighbours,
  };
  return &kLoops;
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(RowLoopsHere);

}  // namespace

const RowLoops& RowLoopsOfCpu() { return *HWY_DYNAMIC_DISPATCH(RowLoopsHere)(); }

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
