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

inline Vector LoadWeights(const uint16_t* from) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from)));
}

// Loads memory ahead, `step_bytes` at each call.
class LinesAhead {
 public:
  LinesAhead(const MemoryAhead& memory, size_t calls)
      : at_(memory.begin), step_bytes_(memory.size_bytes / calls) {}

  HWY_INLINE void Load() {
    constexpr size_t kLineBytes = 64;
    for (size_t i = 0; i < step_bytes_; i += kLineBytes) {
      constexpr int kForReading = 0, kSecondCache = 2;
      __builtin_prefetch(at_ + i, kForReading, kSecondCache);
    }
    at_ += step_bytes_;
  }
  // Returns an object that loads nothing.
  static LinesAhead None() { return LinesAhead({}, 1); }

 private:
  const char* at_;
  const size_t step_bytes_;
};

// Adds to the sums of kRows rows and kColumns columns.
template <size_t kRows, size_t kColumns, typename Weight>
HWY_INLINE void AddBlock(const float* HWY_RESTRICT lhs, size_t lhs_pitch,
                         const Weight* HWY_RESTRICT weights, size_t depth, size_t pitch,
                         float* HWY_RESTRICT sums, LinesAhead& ahead) {
  constexpr size_t kVectors = kColumns / kLanes;
  Vector block[kRows][kVectors];
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kVectors; ++i) {
      block[row][i] = hn::LoadU(Floats(), sums + row * pitch + i * kLanes);
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    Vector of_row[kVectors];
    ahead.Load();
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

// The sums of a block fit into the registers: 32 of 16 elements with AVX-512, otherwise 16. The
// first block of columns loads memory ahead.
template <size_t kRows, typename Weight>
void AddRows(const float* lhs, size_t lhs_pitch, const Weight* weights, size_t depth,
             size_t columns, float* sums, LinesAhead& ahead) {
  constexpr size_t kWide = kLanes >= 16 || kRows == 1 ? 64 : kRows == 2 ? 32 : kGranule;
  LinesAhead none = LinesAhead::None();
  size_t column = 0;
  for (; column + kWide <= columns; column += kWide) {
    AddBlock<kRows, kWide>(lhs, lhs_pitch, weights + column, depth, columns, sums + column,
                           column == 0 ? ahead : none);
  }
  for (; column < columns; column += kGranule) {
    AddBlock<kRows, kGranule>(lhs, lhs_pitch, weights + column, depth, columns, sums + column,
                              column == 0 ? ahead : none);
  }
}

template <typename Weight>
void Add(const float* lhs, size_t lhs_pitch, size_t rows, const Weight* weights, size_t depth,
         size_t columns, float* sums, const MemoryAhead& memory) {
  if (rows == 0 || depth == 0) return;  // there may be no weights at all
  constexpr auto kMostRows = static_cast<size_t>(kMostRowsOfOnePass);
  LinesAhead ahead(memory, (rows + kMostRows - 1) / kMostRows * depth);
  for (; rows >= kMostRows; rows -= kMostRows) {
    AddRows<kMostRows>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    lhs += kMostRows * lhs_pitch;
    sums += kMostRows * columns;
  }
  switch (rows) {
    case 3:
      return AddRows<3>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    case 2:
      return AddRows<2>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    case 1:
      return AddRows<1>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    default:
      return;
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
  return {.add_i8 = &Add<int8_t>,
          .add_f16 = &Add<uint16_t>,
          .add_f32 = &Add<float>,
          .i8_to_f32 = &ToF32,
          .i8_to_bf16 = &ToBF16};
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
