// MultiplyPanels: block after block of a panel's rows. A block that all rows of lhs read stays in
// the nearest cache, and the next one is loaded meanwhile.
#include "worker/kernel/streamed_product.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "status/status_macros.h"
#include "worker/kernel/activation_loops.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/pair_loops.h"
#include "worker/kernel/pieces.h"
#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {
namespace {

constexpr auto kPitchMost = static_cast<size_t>(kMostPanelColumns);
// The rows, or pairs of rows, of a block that is read several times: its elements as F32, or as
// they are, lhs and sums fit into the nearest cache. And those of a block that is read once.
constexpr size_t kBlockDepth = 64;
constexpr size_t kOnePassDepth = 256;

constexpr size_t AsSize(int64_t count) { return static_cast<size_t>(count); }

// The sums of a panel.
class PanelSums {
 public:
  PanelSums(const PanelsView& weights, const StreamedProduct& product, int64_t panel)
      : product_(product),
        form_(weights.form),
        data_(weights.data + panel * weights.panel_bytes),
        depth_(AsSize(weights.k)),
        rows_(AsSize(product.rows)),
        pitch_(AsSize((panel + 1) * weights.columns < weights.n ? weights.columns
                                                                : weights.last_pitch)) {
    std::fill_n(sums_.data(), rows_ * pitch_, 0.0F);
  }

  void Add() {
    switch (form_) {
      case PanelForm::kBF16Pairs:
        return AddPairs();
      case PanelForm::kF32:
        return AddAsIs(loops_.add_f32);
      case PanelForm::kF16:
        return AddAsIs(loops_.add_f16);
      case PanelForm::kI8:
        return product_.pairs != nullptr ? AddI8AsPairs() : AddAsIs(loops_.add_i8);
    }
  }

  float* Row(int64_t row) { return sums_.data() + AsSize(row) * pitch_; }

 private:
  // Calls body(begin, count, weights, ahead) for each block of `depth` rows in memory, which have
  // `row_bytes` each.
  template <typename Body>
  void ForEachBlock(size_t depth, size_t row_bytes, Body body) {
    const bool reads_once = rows_ <= AsSize(kMostRowsOfOnePass);
    const size_t block = reads_once ? kOnePassDepth : kBlockDepth;
    for (size_t begin = 0; begin < depth; begin += block) {
      const size_t end = std::min(begin + block, depth);
      const size_t next_rows = reads_once ? 0 : std::min(block, depth - end);
      body(begin, end - begin, data_ + begin * row_bytes,
           MemoryAhead{data_ + end * row_bytes, next_rows * row_bytes});
    }
  }

  // Converts short weights in registers, at each time that a block is read: for two and more times
  // that takes less time than to store and load F32.
  template <typename Weight>
  void AddAsIs(AddProductsFn<Weight> add) {
    ForEachBlock(depth_, pitch_ * sizeof(Weight),
                 [&](size_t begin, size_t count, const char* weights, const MemoryAhead& ahead) {
                   add(product_.floats + begin, depth_, rows_,
                       reinterpret_cast<const Weight*>(weights), count, pitch_, sums_.data(),
                       ahead);
                 });
  }

  void AddPairs() {
    const size_t pairs = (depth_ + 1) / 2;
    ForEachBlock(pairs, pitch_ * sizeof(uint32_t),
                 [&](size_t begin, size_t count, const char* weights, const MemoryAhead& ahead) {
                   PairLoopsOfCpu()->add(product_.pairs + begin, pairs, rows_,
                                         reinterpret_cast<const uint32_t*>(weights), count, pitch_,
                                         sums_.data(), ahead);
                 });
  }

  // Converts blocks of rows that are read several times.
  void AddI8AsPairs() {
    const PairLoops& loops = *PairLoopsOfCpu();
    alignas(64) std::array<uint32_t, kBlockDepth * kPitchMost> pairs;
    const size_t lhs_pitch = (depth_ + 1) / 2;
    ForEachBlock(depth_ / 2, 2 * pitch_,
                 [&](size_t begin, size_t count, const char* weights, const MemoryAhead& ahead) {
                   loops.i8_to_pairs(reinterpret_cast<const int8_t*>(weights), count, pitch_,
                                     pairs.data());
                   loops.add(product_.pairs + begin, lhs_pitch, rows_, pairs.data(), count, pitch_,
                             sums_.data(), ahead);
                 });
    if (depth_ % 2 == 0) return;
    alignas(64) std::array<int8_t, 2 * kPitchMost> last = {};
    std::copy_n(data_ + (depth_ - 1) * pitch_, pitch_, last.data());
    loops.i8_to_pairs(last.data(), 1, pitch_, pairs.data());
    loops.add(product_.pairs + depth_ / 2, lhs_pitch, rows_, pairs.data(), 1, pitch_, sums_.data(),
              {});
  }

  const StreamedProduct& product_;
  const PanelForm form_;
  const char* const data_;
  const size_t depth_;
  const size_t rows_;
  const size_t pitch_;
  const WeightLoops loops_ = WeightLoopsOfCpu();
  alignas(64) std::array<float, AsSize(kMostStreamedRows) * kPitchMost> sums_;
};

void MultiplyPanel(const PanelsView& weights, const StreamedProduct& product, int64_t panel) {
  PanelSums sums(weights, product, panel);
  sums.Add();
  const int64_t first = panel * weights.columns;
  const size_t columns = AsSize(std::min(weights.columns, weights.n - first));
  const ActivationFn activate = ActivationLoop(product.activation);
  alignas(64) std::array<float, kPitchMost> bias;
  if (product.bias != nullptr) {
    LoadFloats(product.bias_dtype, product.bias + first * FloatBytes(product.bias_dtype), columns,
               bias.data());
  }
  const int64_t out_bytes = FloatBytes(product.out_dtype);
  for (int64_t row = 0; row < product.rows; ++row) {
    float* const values = sums.Row(row);
    for (size_t i = 0; product.scale != 1 && i < columns; ++i) values[i] *= product.scale;
    for (size_t i = 0; product.scales != nullptr && i < columns; ++i) {
      values[i] *= product.scales[AsSize(first) + i];
    }
    activate(product.bias != nullptr ? bias.data() : nullptr, values, columns);
    StoreFloats(product.out_dtype, values, columns,
                product.out + (row * product.out_pitch + first) * out_bytes);
  }
}

}  // namespace

bool MultipliesPairs() { return PairLoopsOfCpu() != nullptr; }

absl::Status MultiplyPanels(const PanelsView& weights, const StreamedProduct& product, int threads,
                            int64_t columns_of_turn,
                            const std::function<absl::Status()>& abort_check) {
  const int64_t panels = (weights.n + weights.columns - 1) / weights.columns;
  const int64_t turn = std::max<int64_t>(columns_of_turn / weights.columns, 1);
  for (int64_t first = 0; first < panels; first += turn) {
    if (abort_check && first > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
    RunOnKernelThreads(std::min(turn, panels - first), threads,
                       [&](int64_t i) { MultiplyPanel(weights, product, first + i); });
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
