// Sums of products of pairs in registers, as in weight_loops.cc. Highway 1.0 has no target with
// AVX512-BF16, so these loops are written with the compiler's functions for its instructions.
#include "worker/kernel/pair_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shardmesh::worker {

#if defined(__x86_64__)
namespace {

#define SHARDMESH_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

constexpr size_t kPairLanes = 16;
constexpr auto kPairRows = static_cast<size_t>(kMostRowsOfOnePass);
constexpr size_t kPairVectors = 4;  // the sums of so many vectors of kPairRows fit into registers
constexpr size_t kLineBytes = 64;

// Memory that is loaded ahead, `step_bytes` for each pair of rows of weights.
struct PairsAhead {
  const char* at;
  size_t step_bytes;
};

template <size_t kRows, size_t kVectors>
SHARDMESH_PAIRS inline void AddPairBlock(const uint32_t* lhs, size_t lhs_pitch,
                                         const uint32_t* weights, size_t depth, size_t pitch,
                                         float* sums, PairsAhead& ahead) {
  __m512 block[kRows][kVectors];
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kVectors; ++i) {
      block[row][i] = _mm512_loadu_ps(sums + row * pitch + i * kPairLanes);
    }
  }
  for (size_t k = 0; k < depth; ++k) {
    for (size_t i = 0; i < ahead.step_bytes; i += kLineBytes) {
      _mm_prefetch(ahead.at + i, _MM_HINT_T1);
    }
    ahead.at += ahead.step_bytes;
    __m512i of_row[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
      of_row[i] = _mm512_loadu_si512(weights + k * pitch + i * kPairLanes);
    }
    for (size_t row = 0; row < kRows; ++row) {
      const __m512i factor = _mm512_set1_epi32(static_cast<int>(lhs[row * lhs_pitch + k]));
      for (size_t i = 0; i < kVectors; ++i) {
        block[row][i] = _mm512_dpbf16_ps(block[row][i], reinterpret_cast<__m512bh>(factor),
                                         reinterpret_cast<__m512bh>(of_row[i]));
      }
    }
  }
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kVectors; ++i) {
      _mm512_storeu_ps(sums + row * pitch + i * kPairLanes, block[row][i]);
    }
  }
}

template <size_t kRows>
SHARDMESH_PAIRS void AddPairRows(const uint32_t* lhs, size_t lhs_pitch, const uint32_t* weights,
                                 size_t depth, size_t columns, float* sums, PairsAhead& ahead) {
  constexpr size_t kWide = kPairVectors * kPairLanes;
  PairsAhead none = {nullptr, 0};
  size_t column = 0;
  for (; column + kWide <= columns; column += kWide) {
    AddPairBlock<kRows, kPairVectors>(lhs, lhs_pitch, weights + column, depth, columns,
                                      sums + column, column == 0 ? ahead : none);
  }
  for (; column < columns; column += kPairLanes) {
    AddPairBlock<kRows, 1>(lhs, lhs_pitch, weights + column, depth, columns, sums + column,
                           column == 0 ? ahead : none);
  }
}

SHARDMESH_PAIRS void AddPairs(const uint32_t* lhs, size_t lhs_pitch, size_t rows,
                              const uint32_t* weights, size_t depth, size_t columns, float* sums,
                              const MemoryAhead& memory) {
  if (rows == 0 || depth == 0) return;  // there may be no weights at all
  PairsAhead ahead = {memory.begin,
                      memory.size_bytes / ((rows + kPairRows - 1) / kPairRows * depth)};
  for (; rows >= kPairRows; rows -= kPairRows) {
    AddPairRows<kPairRows>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    lhs += kPairRows * lhs_pitch;
    sums += kPairRows * columns;
  }
  switch (rows) {
    case 3:
      return AddPairRows<3>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    case 2:
      return AddPairRows<2>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    case 1:
      return AddPairRows<1>(lhs, lhs_pitch, weights, depth, columns, sums, ahead);
    default:
      return;
  }
}

SHARDMESH_PAIRS inline __m512i BitsOfF32(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

// The low half of the F32 of an I8 is zero, so its high half is the BF16.
SHARDMESH_PAIRS void I8ToPairs(const int8_t* from, size_t depth, size_t columns, uint32_t* to) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (size_t k = 0; k < depth; ++k) {
    for (size_t column = 0; column < columns; column += kPairLanes) {
      const __m512i first = BitsOfF32(from + 2 * k * columns + column);
      const __m512i second = BitsOfF32(from + (2 * k + 1) * columns + column);
      // (second & high_half) | (first >> 16), in one instruction.
      constexpr int kSecondWithinMaskOrFirst = 0xF8;
      _mm512_storeu_si512(to + k * columns + column,
                          _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second, high_half,
                                                    kSecondWithinMaskOrFirst));
    }
  }
}

}  // namespace

const PairLoops* PairLoopsOfCpu() {
  static constexpr PairLoops kLoops = {.add = &AddPairs, .i8_to_pairs = &I8ToPairs};
  static const bool has_pairs =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bf16");
  return has_pairs ? &kLoops : nullptr;
}

#else
const PairLoops* PairLoopsOfCpu() { return nullptr; }
#endif

}  // namespace shardmesh::worker
