// Weights of I8 or F16 for products with floats: packed as they are, and converted while a product
// reads them.
#ifndef SHARDMESH_WORKER_KERNEL_WEIGHT_PANELS_H_
#define SHARDMESH_WORKER_KERNEL_WEIGHT_PANELS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensor/dtype.h"
#include "worker/kernel/aligned_bytes.h"
#include "worker/kernel/streamed_product.h"
#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {

// A matrix [k, n] in panels of kColumns columns. A panel has the elements of its first row, then
// those of the next row: a product of few rows reads all weights once, in the order of memory. The
// last panel may have fewer columns, padded with zeros to a multiple of kWeightColumnGranule.
// Immutable and thread-safe.
class WeightPanels {
 public:
  static constexpr int64_t kColumns = kMostPanelColumns;

  // Checks for an abort, between pieces of work. A status other than OK ends the work.
  using AbortCheck = std::function<absl::Status()>;

  // Packs weights of I8 or F16: a matrix [k, n], or [n, k] if `is_transposed`. The only error is
  // that of `abort_check`, if it is not null. Throws std::bad_alloc.
  static absl::StatusOr<std::unique_ptr<const WeightPanels>> Pack(Dtype dtype, int64_t k, int64_t n,
                                                                  bool is_transposed,
                                                                  absl::Span<const char> weights,
                                                                  const AbortCheck& abort_check);

  // Returns the memory of the panels of a matrix [k, n].
  static int64_t SizeBytes(Dtype dtype, int64_t k, int64_t n);

  // Returns the memory of the panels.
  int64_t size_bytes() const { return SizeBytes(dtype_, k_, n_); }

  // Returns where the panels lie, for MultiplyPanels. Requires k > 0 and n > 0.
  PanelsView view() const;

  // Converts `columns` columns from `column` on, a multiple of kColumns, to F32 or, for weights of
  // I8, to BF16. Writes them to `out` as a matrix [k, columns] without gaps.
  void Widen(int64_t column, int64_t columns, Dtype to, int threads, char* out) const;

  // Copies the elements [begin, end) of the matrix as Pack got it to `out`.
  void Unpack(int64_t begin, int64_t end, char* out) const;

 private:
  WeightPanels(Dtype dtype, int64_t k, int64_t n, bool is_transposed);

  int64_t Panels() const { return (n_ + kColumns - 1) / kColumns; }
  // Returns the number of columns of a panel, and this number with those that pad it.
  int64_t ColumnsOf(int64_t panel) const;
  int64_t PitchOf(int64_t panel) const;
  // Returns the padded number of columns of all panels of a matrix with n columns.
  static int64_t RowPitch(int64_t n);
  // Returns the place of an element.
  const char* At(int64_t row, int64_t column) const;

  void PackPanel(int64_t panel, const char* weights);

  const Dtype dtype_;
  const int64_t element_bytes_;
  const int64_t k_;
  const int64_t n_;
  const bool is_transposed_;  // of the matrix that Pack got
  AlignedBytes data_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_WEIGHT_PANELS_H_
