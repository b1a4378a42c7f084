// Scores of a few queries and panels of keys, their softmax, and sums of values. Sums of a tile of
// queries and columns stay in registers.
#include "worker/tensor_op/attention_loops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

// foreach_target.h includes this file once more for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/tensor_op/attention_loops.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace shardmesh::worker::HWY_NAMESPACE {
namespace {

namespace hn = ::hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kValuePadding>;
using Vector = hn::Vec<Floats>;
constexpr size_t kVectorLanes = hn::MaxLanes(Floats());
static_assert(kPanelRows % (2 * kVectorLanes) == 0 && kBlockRows % kPanelRows == 0);

// Queries of a tile whose sums of two vectors fit into the registers.
constexpr size_t kRegisterQueries = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Scores or weights of a tile of queries, [kTileQueries, kBlockRows].
using TileScores = std::array<float, kTileQueries * kBlockRows>;

// Where element (query, i) of a left operand is: at query * query_step + i * step.
struct QueriesLayout {
  static constexpr size_t kQueryStep = 1;
  static constexpr size_t kStep = kTileQueries;
};
struct WeightsLayout {
  static constexpr size_t kQueryStep = kBlockRows;
  static constexpr size_t kStep = 1;
};

// Loads the next block into the caches, a line of its keys and one of its values at each call.
class LinesAhead {
 public:
  explicit LinesAhead(const AttentionBlock& block)
      : keys_(block.next_keys), values_(block.next_values) {}

  HWY_INLINE void LoadOne() {
    LoadOneOf(keys_);
    LoadOneOf(values_);
  }

 private:
  static constexpr size_t kLineBytes = 64;

  static HWY_INLINE void LoadOneOf(RowsAhead& rows) {
    if (rows.count == 0) return;
    hwy::Prefetch(rows.first + rows.offset_bytes);
    rows.offset_bytes += kLineBytes;
    if (rows.offset_bytes < rows.row_bytes) return;
    rows.offset_bytes = 0;
    rows.first += rows.stride_bytes;
    --rows.count;
  }

  RowsAhead keys_;
  RowsAhead values_;
};

// Sets kQueries x kVectors vectors of `out` to left * right, where `depth` is the extent of the
// sum; with `factors`, to out * factor of the query + left * right.
template <typename Layout, size_t kQueries, size_t kVectors, bool kAdds>
HWY_INLINE void MultiplyTile(const float* HWY_RESTRICT left, const float* HWY_RESTRICT right,
                             size_t right_stride, size_t depth, const float* factors,
                             float* HWY_RESTRICT out, size_t out_stride, LinesAhead* ahead) {
  const Floats d;
  Vector sums[kQueries][kVectors];
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t v = 0; v < kVectors; ++v) {
      if constexpr (kAdds) {
        sums[query][v] = hn::Mul(hn::Load(d, out + query * out_stride + v * kVectorLanes),
                                 hn::Set(d, factors[query]));
      } else {
        sums[query][v] = hn::Zero(d);
      }
    }
  }
  for (size_t i = 0; i < depth; ++i) {
    Vector columns[kVectors];
    for (size_t v = 0; v < kVectors; ++v) columns[v] = hn::Load(d, right + v * kVectorLanes);
    for (size_t query = 0; query < kQueries; ++query) {
      const Vector factor = hn::Set(d, left[query * Layout::kQueryStep]);
      for (size_t v = 0; v < kVectors; ++v) {
        sums[query][v] = hn::MulAdd(factor, columns[v], sums[query][v]);
      }
    }
    if constexpr (!kAdds) {
      if (ahead != nullptr) ahead->LoadOne();
    }
    left += Layout::kStep;
    right += right_stride;
  }
  for (size_t query = 0; query < kQueries; ++query) {
    for (size_t v = 0; v < kVectors; ++v) {
      hn::Store(sums[query][v], d, out + query * out_stride + v * kVectorLanes);
    }
  }
}

// Multiplies for kQueries queries and all `columns`, a multiple of the lanes.
template <typename Layout, size_t kQueries, bool kAdds>
void MultiplyColumns(const float* left, const float* right, size_t right_stride, size_t columns,
                     size_t depth, const float* factors, float* out, size_t out_stride,
                     LinesAhead* ahead) {
  size_t column = 0;
  for (; column + 2 * kVectorLanes <= columns; column += 2 * kVectorLanes) {
    MultiplyTile<Layout, kQueries, 2, kAdds>(left, right + column, right_stride, depth, factors,
                                             out + column, out_stride, ahead);
  }
  for (; column < columns; column += kVectorLanes) {
    MultiplyTile<Layout, kQueries, 1, kAdds>(left, right + column, right_stride, depth, factors,
                                             out + column, out_stride, ahead);
  }
}

// Multiplies for up to kTileQueries queries. The order of each sum is the same for any number.
template <typename Layout, bool kAdds>
HWY_INLINE void Multiply(size_t queries, const float* left, const float* right, size_t right_stride,
                         size_t columns, size_t depth, const float* factors, float* out,
                         size_t out_stride, LinesAhead* ahead) {
  size_t query = 0;
  const auto advance = [&](auto multiply, size_t count) {
    multiply(left + query * Layout::kQueryStep, right, right_stride, columns, depth,
             kAdds ? factors + query : nullptr, out + query * out_stride, out_stride, ahead);
    query += count;
  };
  while (query + kRegisterQueries <= queries) {
    advance(&MultiplyColumns<Layout, kRegisterQueries, kAdds>, kRegisterQueries);
  }
  if (query + 4 <= queries) advance(&MultiplyColumns<Layout, 4, kAdds>, 4);
  if (query + 2 <= queries) advance(&MultiplyColumns<Layout, 2, kAdds>, 2);
  if (query < queries) advance(&MultiplyColumns<Layout, 1, kAdds>, 1);
}

// Returns e^x with a relative error below 2e-7, and 0 for x < -87. Requires x <= 0, not a NaN.
// Source of the polynomial: expf.c of Cephes (S. Moshier).
HWY_INLINE Vector ExpOf(Vector x) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto is_small = hn::Lt(x, hn::Set(d, -87.0f));
  // The addition rounds to an integer, which the low bits of the sum are.
  const Vector magic = hn::Set(d, 0x1.8p23f);
  const Vector shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const Vector power = hn::Sub(shifted, magic);
  Vector r = hn::NegMulAdd(power, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(power, hn::Set(d, -2.12194440e-4f), r);
  Vector sum = hn::Set(d, 1.9875691500e-4f);
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.3981999507e-3f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 8.3334519073e-3f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 4.1665795894e-2f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.6666665459e-1f));
  sum = hn::MulAdd(sum, r, hn::Set(d, 5.0000001201e-1f));
  sum = hn::Add(hn::MulAdd(sum, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  return hn::IfThenZeroElse(is_small, hn::BitCast(d, hn::Add(hn::BitCast(du, sum), exponent)));
}

inline float Widened(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

void SetZero(float* values, size_t count) {
  const Floats d;
  for (size_t i = 0; i < count; i += kVectorLanes) hn::Store(hn::Zero(d), d, values + i);
}

// Replaces the scores of the first `seen` rows by weights, and those of the others, up to `depth`,
// by 0. Adds the weights to the softmax. Returns the factor of earlier results.
HWY_INLINE float WeighRows(float scale, size_t seen, size_t depth, float* HWY_RESTRICT scores,
                           PartialSoftmax& partial) {
  const Floats d;
  if (seen == 0) {
    SetZero(scores, depth);
    return 1;
  }
  partial.has_rows = true;
  const Vector factor = hn::Set(d, scale);
  Vector largest_lanes = hn::Set(d, kMinusInfinity);
  auto is_nan = hn::IsNaN(hn::Zero(d));
  size_t i = 0;
  for (; i + kVectorLanes <= seen; i += kVectorLanes) {
    const Vector score = hn::Mul(hn::Load(d, scores + i), factor);
    hn::Store(score, d, scores + i);
    is_nan = hn::Or(is_nan, hn::IsNaN(score));
    largest_lanes = hn::Max(largest_lanes, score);
  }
  if (i < seen) {
    const Vector score =
        hn::IfThenElse(hn::FirstN(d, seen - i), hn::Mul(hn::Load(d, scores + i), factor),
                       hn::Set(d, kMinusInfinity));
    hn::Store(score, d, scores + i);
    is_nan = hn::Or(is_nan, hn::IsNaN(score));
    largest_lanes = hn::Max(largest_lanes, score);
    i += kVectorLanes;
  }
  const size_t end = i;
  const float largest_here = hn::GetLane(hn::MaxOfLanes(d, largest_lanes));
  if (!hn::AllFalse(d, is_nan) || largest_here == std::numeric_limits<float>::infinity()) {
    partial.is_nan = true;
  }
  if (partial.is_nan || largest_here == kMinusInfinity) {
    SetZero(scores, depth);
    return 1;
  }
  const float largest = std::max(partial.largest, largest_here);
  const float earlier =
      largest == partial.largest ? 1 : hn::GetLane(ExpOf(hn::Set(d, partial.largest - largest)));
  const Vector base = hn::Set(d, largest);
  Vector sum = hn::Zero(d);
  for (i = 0; i < end; i += kVectorLanes) {
    const Vector weight = ExpOf(hn::Sub(hn::Load(d, scores + i), base));
    hn::Store(weight, d, scores + i);
    sum = hn::Add(sum, weight);
  }
  if (end < depth) SetZero(scores + end, depth - end);
  partial.largest = largest;
  partial.sum = partial.sum * earlier + hn::GetLane(hn::SumOfLanes(d, sum));
  return earlier;
}

// Adds a block for the `count` <= kTileQueries queries from `first` on.
void AddTile(const AttentionBlock& block, size_t first, size_t count) {
  const size_t* const seen = block.seen + first;
  const size_t depth = *std::max_element(seen, seen + count);
  if (depth == 0) return;
  alignas(64) TileScores scores;
  const float* const queries = block.queries + first * block.features;
  // The loads of lines are spread over a product: loads at once would wait for each other.
  LinesAhead ahead(block);
  for (size_t row = 0; row < depth; row += kPanelRows) {
    Multiply<QueriesLayout, false>(count, queries, block.keys + row / kPanelRows * block.panel_size,
                                   kPanelRows, kPanelRows, block.features, nullptr,
                                   scores.data() + row, kBlockRows, first == 0 ? &ahead : nullptr);
  }
  std::array<float, kTileQueries> factors;
  for (size_t i = 0; i < count; ++i) {
    factors[i] = WeighRows(block.scale, seen[i], depth, scores.data() + i * kBlockRows,
                           block.partials[first + i]);
  }
  float* const results = block.results + first * block.value_width;
  const auto add = [&](size_t begin, size_t end, size_t rows) {
    Multiply<WeightsLayout, true>(end - begin, scores.data() + begin * kBlockRows, block.values,
                                  block.value_width, block.value_width, rows,
                                  factors.data() + begin, results + begin * block.value_width,
                                  block.value_width, nullptr);
  };
  if (!block.has_special_values) return add(0, count, depth);
  // A weight of 0 times a NaN would be a NaN: each query reads only the values that it sees.
  for (size_t i = 0; i < count; ++i) add(i, i + 1, seen[i]);
}

void AddBlock(const AttentionBlock& block) {
  for (size_t first = 0; first < block.query_count; first += kTileQueries) {
    AddTile(block, first, std::min(kTileQueries, block.query_count - first));
  }
}

#if HWY_TARGET != HWY_SCALAR

// Returns 4 floats of lanes / 4 keys. `keys` has a key for every fourth pointer.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const char* const* keys, size_t offset_bytes) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    const hn::Repartition<uint8_t, D> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(*keys) + offset_bytes));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, keys + hn::MaxLanes(D()) / 2, offset_bytes),
                       LoadBlocks(half, keys, offset_bytes));
  }
}

// Calls store(i, lanes) with the 32 bits at offset_bytes + 4 * i of each of kVectorLanes keys, for
// i < 4.
template <typename StoreLanes>
HWY_INLINE void TransposeFour(const char* const* keys, size_t offset_bytes, StoreLanes store) {
  const hn::RebindToUnsigned<Floats> d;
  const hn::RepartitionToWide<decltype(d)> pairs;
  const auto v0 = LoadBlocks(d, keys, offset_bytes);
  const auto v1 = LoadBlocks(d, keys + 1, offset_bytes);
  const auto v2 = LoadBlocks(d, keys + 2, offset_bytes);
  const auto v3 = LoadBlocks(d, keys + 3, offset_bytes);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
  store(0, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)));
  store(1, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)));
  store(2, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)));
  store(3, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)));
}

void PackF32Keys(const char* const* keys, size_t features, float* HWY_RESTRICT panel) {
  const Floats d;
  for (size_t row = 0; row < kPanelRows; row += kVectorLanes) {
    for (size_t feature = 0; feature < features; feature += 4) {
      float* const to = panel + feature * kPanelRows + row;
      TransposeFour(keys + row, feature * sizeof(float), [&](size_t i, auto lanes) {
        hn::Store(hn::BitCast(d, lanes), d, to + i * kPanelRows);
      });
    }
  }
}

void PackBf16Keys(const char* const* keys, size_t features, float* HWY_RESTRICT panel) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  for (size_t row = 0; row < kPanelRows; row += kVectorLanes) {
    for (size_t feature = 0; feature < features; feature += 8) {
      float* const to = panel + feature * kPanelRows + row;
      // 32 bits are two features; the lower one has the lower bits.
      TransposeFour(keys + row, feature * sizeof(uint16_t), [&](size_t i, auto lanes) {
        hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(lanes)), d, to + 2 * i * kPanelRows);
        hn::Store(hn::BitCast(d, hn::And(lanes, hn::Set(du, 0xFFFF0000u))), d,
                  to + (2 * i + 1) * kPanelRows);
      });
    }
  }
}

#else  // one lane

void PackF32Keys(const char* const* keys, size_t features, float* HWY_RESTRICT panel) {
  for (size_t row = 0; row < kPanelRows; ++row) {
    const float* const key = reinterpret_cast<const float*>(keys[row]);
    for (size_t i = 0; i < features; ++i) panel[i * kPanelRows + row] = key[i];
  }
}

void PackBf16Keys(const char* const* keys, size_t features, float* HWY_RESTRICT panel) {
  for (size_t row = 0; row < kPanelRows; ++row) {
    const uint16_t* const key = reinterpret_cast<const uint16_t*>(keys[row]);
    for (size_t i = 0; i < features; ++i) panel[i * kPanelRows + row] = Widened(key[i]);
  }
}

#endif  // HWY_TARGET

void WidenBf16(const char* in, size_t count, float* HWY_RESTRICT out) {
  const Floats d;
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::RebindToUnsigned<Floats> du;
  const uint16_t* HWY_RESTRICT const from = reinterpret_cast<const uint16_t*>(in);
  size_t i = 0;
  for (; i + kVectorLanes <= count; i += kVectorLanes) {
    const auto bits = hn::PromoteTo(du, hn::LoadU(halves, from + i));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, out + i);
  }
  for (; i < count; ++i) out[i] = Widened(from[i]);
}

bool AllFinite(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFu);
  }
  return largest < 0x7F800000u;
}

void DivideValues(float divisor, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] /= divisor;
}

const AttentionLoops* AttentionLoopsHere() {
  static constexpr AttentionLoops kLoops = {
      .pack_f32_keys = &PackF32Keys,
      .pack_bf16_keys = &PackBf16Keys,
      .widen_bf16 = &WidenBf16,
      .all_finite = &AllFinite,
      .add_block = &AddBlock,
      .divide = &DivideValues,
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
