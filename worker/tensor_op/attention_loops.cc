// Products of a query with keys, and sums of values, four rows at a time: each load of the query or
// of the sums serves four rows.
#include "worker/tensor_op/attention_loops.h"

#include <bit>
#include <cstddef>
#include <cstdint>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/tensor_op/attention_loops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

namespace hn = ::hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

// Computes the products of the query with kRows keys.
template <size_t kRows>
void ScoresOfRows(const float* query, const float* const* keys, size_t features, float* out) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= features; i += lanes) {
    const auto q = hn::LoadU(d, query + i);
    sum0 = hn::MulAdd(q, hn::LoadU(d, keys[0] + i), sum0);
    if constexpr (kRows == 4) {
      sum1 = hn::MulAdd(q, hn::LoadU(d, keys[1] + i), sum1);
      sum2 = hn::MulAdd(q, hn::LoadU(d, keys[2] + i), sum2);
      sum3 = hn::MulAdd(q, hn::LoadU(d, keys[3] + i), sum3);
    }
  }
  out[0] = hn::GetLane(hn::SumOfLanes(d, sum0));
  if constexpr (kRows == 4) {
    out[1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    out[2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    out[3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
  for (; i < features; ++i) {
    for (size_t row = 0; row < kRows; ++row) out[row] += query[i] * keys[row][i];
  }
}

void Scores(const float* query, const float* const* keys, size_t rows, size_t features,
            float* out) {
  size_t row = 0;
  for (; row + 4 <= rows; row += 4) ScoresOfRows<4>(query, keys + row, features, out + row);
  for (; row < rows; ++row) ScoresOfRows<1>(query, keys + row, features, out + row);
}

template <size_t kRows>
void AddRows(const float* weights, const float* const* values, size_t features, float* sums) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= features; i += lanes) {
    auto sum = hn::LoadU(d, sums + i);
    for (size_t row = 0; row < kRows; ++row) {
      sum = hn::MulAdd(hn::Set(d, weights[row]), hn::LoadU(d, values[row] + i), sum);
    }
    hn::StoreU(sum, d, sums + i);
  }
  for (; i < features; ++i) {
    for (size_t row = 0; row < kRows; ++row) sums[i] += weights[row] * values[row][i];
  }
}

void AddValues(const float* weights, const float* const* values, size_t rows, size_t features,
               float* sums) {
  size_t row = 0;
  for (; row + 4 <= rows; row += 4) AddRows<4>(weights + row, values + row, features, sums);
  for (; row < rows; ++row) AddRows<1>(weights + row, values + row, features, sums);
}

void MultiplyValues(float factor, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}

void WidenBf16(const uint16_t* __restrict in, size_t count, float* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
  }
}

const AttentionLoops* AttentionLoopsHere() {
  static constexpr AttentionLoops kLoops = {
      .scores = &Scores,
      .add_values = &AddValues,
      .multiply = &MultiplyValues,
      .widen_bf16 = &WidenBf16,
  };
  return &kLoops;
}

}  // namespace
}  // namespace shardmesh::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardmesh::worker {
namespace {

HWY_EXPORT(AttentionLoopsHere);

}  // namespace

const AttentionLoops& AttentionLoopsOfCpu() { return *HWY_DYNAMIC_DISPATCH(AttentionLoopsHere)(); }

}  // namespace shardmesh::worker
#endif  // HWY_ONCE
