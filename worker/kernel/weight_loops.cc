// Sums of products in registers: a block of rows and columns at a time. The weights of a block are
// loaded and converted once for all of its rows.
#include "worker/kernel/weight_loops.h"

#include <bit>
#include <cstddef>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernel/weight_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());
constexpr size_t kGranule = kWeightColumnGranule;

inline Vector LoadWeights(const float* from) { return hn::LoadU(Floats(), from); }
inline Vector LoadWeights(const int8_t* from) {
  const hn::Rebind<int8_t, Floats> bytes;
  const hn::Rebind<int32_t, Floats> integers;
  return hn::ConvertTo(Floats(), hn::PromoteTo(integers, hn::LoadU(bytes, from)));
}

// Adds to the sums of kRows rows and kColumns columns.
template <size_t kRows, size_t kColumns, typename Weight>
HWY_INLINE void AddBlock(const float* HWY_RESTRICT lhs, size_t lhs_pitch,
                         const Weight* HWY_RESTRICT weights, size_t depth, size_t pitch,
                         float* HWY_RESTRICT sums) {
  constexpr size_t kVectors = kColumns / kLanes;
  Vector block[kRows][kVectors];
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kVectors; ++i) {
      block[row][i] = hn::LoadU(Floats(), sums + row * pitch + i * kLanes);
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    Vector of_row[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      of_row[i] = LoadWeights(weights + k * pitch + i * kLanes);
    }
    for (size_t row = 0; row < kRows; ++row) {
      const Vector factor = hn::Set(Floats(), lhs[row * lhs_pitch + k]);
      for (size_t i = 0; i < kVectors; ++i) {
        block[row][i] = hn::MulAdd(factor, of_row[i], block[row][i]);
      }
    }
  }
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kVectors; ++i) {
      hn::StoreU(block[row][i], Floats(), sums + row * pitch + i * kLanes);
    }
  }
}

// The sums of a block fit into the registers: 32 of 16 elements with AVX-512, otherwise 16.
template <size_t kRows, typename Weight>
void AddRows(const float* lhs, size_t lhs_pitch, const Weight* weights, size_t depth,
             size_t columns, float* sums) {
  constexpr size_t kWide = kLanes >= 16 || kRows == 1 ? 64 : 64 / kRows;
  size_t column = 0;
  for (; column + kWide <= columns; column += kWide) {
    AddBlock<kRows, kWide>(lhs, lhs_pitch, weights + column, depth, columns, sums + column);
  }
  for (; column < columns; column += kGranule) {
    AddBlock<kRows, kGranule>(lhs, lhs_pitch, weights + column, depth, columns, sums + column);
  }
}

template <typename Weight>
void Add(const float* lhs, size_t lhs_pitch, size_t rows, const Weight* weights, size_t depth,
         size_t columns, float* sums) {
  if (depth == 0) return;  // there may be no weights at all
  size_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    AddRows<4>(lhs + row * lhs_pitch, lhs_pitch, weights, depth, columns, sums + row * columns);
  }
  for (; row + 2 <= rows; row += 2) {
    AddRows<2>(lhs + row * lhs_pitch, lhs_pitch, weights, depth, columns, sums + row * columns);
  }
  for (; row < rows; ++row) {
    AddRows<1>(lhs + row * lhs_pitch, lhs_pitch, weights, depth, columns, sums + row * columns);
  }
}

void ToF32(const int8_t* HWY_RESTRICT from, size_t count, float* HWY_RESTRICT to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void ToBF16(const int8_t* HWY_RESTRICT from, size_t count, uint16_t* HWY_RESTRICT to) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(from[i])) >> 16);
  }
}

WeightLoops LoopsHere() {
  return {
      .add_i8 = &Add<int8_t>, .add_f32 = &Add<float>, .i8_to_f32 = &ToF32, .i8_to_bf16 = &ToBF16};
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(LoopsHere);

}  // namespace

WeightLoops WeightLoopsOfCpu() { return HWY_DYNAMIC_DISPATCH(LoopsHere)(); }

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
