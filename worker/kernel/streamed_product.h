// Products of few rows by weights in panels of columns. Loops of our own read each weight once from
// memory, in its order, and convert it in registers or in the nearest cache.
#ifndef SHARDMESH_WORKER_KERNEL_STREAMED_PRODUCT_H_
#define SHARDMESH_WORKER_KERNEL_STREAMED_PRODUCT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh::worker {

// The most rows of a streamed product. Measured with AVX-512: with more, oneDNN takes less time,
// also if it needs the weights converted before.
inline constexpr int64_t kMostStreamedRows = 16;
// The most columns of a panel.
inline constexpr int64_t kMostPanelColumns = 64;

// How the elements of a panel lie in memory.
enum class PanelForm {
  kI8,  // row after row
  kF16,
  kF32,
  // BF16, pair of rows after pair of rows: the elements of rows 2 i and 2 i + 1 of a column are
  // neighbours. The partner of an odd last row is zero.
  kBF16Pairs,
};

// Where the panels of a matrix [k, n] lie. A panel has all rows of `columns` columns, the last one
// those of the rest.
struct PanelsView {
  PanelForm form = PanelForm::kF32;
  const char* data = nullptr;
  int64_t k = 0;
  int64_t n = 0;
  int64_t columns = 0;  // a multiple of kWeightColumnGranule, at most kMostPanelColumns
  // The columns of the last panel and those that pad it; such a multiple too.
  int64_t last_pitch = 0;
  int64_t panel_bytes = 0;  // from one panel to the next
};

// A product of few rows, out = activation(scale * (lhs * weights) * scales + bias).
struct StreamedProduct {
  int64_t rows = 0;  // at most kMostStreamedRows
  // lhs, row after row without gaps: [rows, k] of F32, or [rows, (k + 1) / 2] pairs of BF16, the
  // partner of an odd last element zero. A product of F16 or F32 reads `floats`, one of pairs reads
  // `pairs`. One of I8 reads `pairs`, unless this is
  // null; it may be set only above kMostRowsOfOnePass.
  const float* floats = nullptr;
  const uint32_t* pairs = nullptr;
  float scale = 1;
  const float* scales = nullptr;  // [n]; null: all are 1
  Dtype bias_dtype = Dtype::kF32;
  const char* bias = nullptr;  // [n]; null: there is none
  Activation activation = Activation::kNone;
  Dtype out_dtype = Dtype::kF32;
  char* out = nullptr;    // [rows, n]
  int64_t out_pitch = 0;  // from one row to the next, in elements
};

// Returns whether this CPU can multiply pairs.
bool MultipliesPairs();

// Runs a product. Each sum adds its products in the order of k, with one rounding for each (where
// the CPU has fused operations), or as the CPU's instruction for pairs does: the bits of a row do
// not depend on the number of rows or of threads. Only of I8 they depend on whether it has pairs.
// Calls `abort_check`, if it is not null, after every `columns_of_turn` columns, rounded up to
// whole panels. The only error is its status.
absl::Status MultiplyPanels(const PanelsView& weights, const StreamedProduct& product, int threads,
                            int64_t columns_of_turn,
                            const std::function<absl::Status()>& abort_check);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_STREAMED_PRODUCT_H_
