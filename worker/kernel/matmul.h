// Matrix products on this host's CPU.
#ifndef SHARDMESH_WORKER_KERNEL_MATMUL_H_
#define SHARDMESH_WORKER_KERNEL_MATMUL_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh::worker {

// A product out = activation(scale * (lhs * rhs) * scales + bias), by its shapes and types.
//
// clang-format off
//   lhs     [m, k], or [k, m] if transpose_lhs
//   rhs     [k, n], or [n, k] if transpose_rhs (as PyTorch keeps the weights of linear layers)
//   scales  [n], F32, if has_scales: a factor for each column of rhs
//   bias    [n] if has_bias
//   out     [m, n]
// clang-format on
//
// All memory is row-major without gaps. The kernel reads a transposed operand in place. Sizes are
// at least 0; k=0 gives activation(bias). The kernel computes sums in F32 and rounds once to the
// type of `out`, after bias and activation.
//
// clang-format off
//   lhs   rhs   bias        out          remarks
//   F32   F32   F32         F32
//   BF16  BF16  BF16, F32   BF16, F32    F32: partial sums, to be reduced before an activation
//   F16   F16   F16, F32    F16, F32
//   F32   I8    F32         F32          quantised weights; `scales` undoes the quantisation
//   BF16  I8    BF16, F32   BF16, F32
//   F16   I8    F16, F32    F16, F32
//   I8    I8    F32         F32, BF16    integer sums; scale undoes the quantisation of both
// clang-format on
//
// oneDNN 2 has no products of F16, and none of floats with I8. CPUs before AVX-512 have no products
// of BF16, and CPUs without integer dot products have none of I8. There, the kernel converts
// operands to F32 block by block, in memory of its pool; weights of I8 for a lhs of BF16 to BF16 if
// the CPU multiplies these. Sums of I8 products beyond 2^24 are then rounded like sums of F32.
//
// Weights of F16, and those of I8 for a lhs of floats, are packed as they are. A product of at most
// kMostStreamedRows rows by packed weights converts them while it multiplies: it reads them once,
// and no other memory. Other weights that the kernel converts are packed as F32.
//
// The kernel refuses any other combination (UNSUPPORTED_DTYPE).
struct MatmulSpec {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Dtype lhs_dtype = Dtype::kF32;
  Dtype rhs_dtype = Dtype::kF32;
  Dtype bias_dtype = Dtype::kF32;
  Dtype out_dtype = Dtype::kF32;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  bool has_bias = false;
  bool has_scales = false;  // only for I8 weights and a lhs of floats
  float scale = 1;
  Activation activation = Activation::kNone;

  friend bool operator==(const MatmulSpec&, const MatmulSpec&) = default;
};

// Everything in a product's spec on which the layout of packed weights depends. Fields as in
// MatmulSpec. Weights that are packed as they are have one layout for all types of lhs and out:
// both are F32 here, and lhs is not transposed.
struct Packing {
  int64_t n = 0;
  int64_t k = 0;
  Dtype lhs_dtype = Dtype::kF32;
  Dtype rhs_dtype = Dtype::kF32;
  Dtype out_dtype = Dtype::kF32;
  bool transpose_lhs = false;
  bool transpose_rhs = false;

  friend auto operator<=>(const Packing&, const Packing&) = default;
};
Packing PackingOf(const MatmulSpec& spec);

// A right-hand operand (weights) in the layout that the kernel reads fastest. One packing serves
// products of every m. Immutable and thread-safe. Stays valid after the kernel that made it is
// destroyed.
class PackedWeights {
 public:
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  const Packing& packing() const;
  // Returns the memory that the packed weights take, for the owner's budget. They may take more
  // memory than the plain weights: the kernel pads rows and columns to whole blocks, at most 64
  // rows and 64 columns, or converts the elements to F32.
  int64_t size_bytes() const;

  // Returns whether Unpack can give the plain weights back. False for weights that were converted
  // to F32, and for layouts of oneDNN that are not made of blocks.
  bool can_unpack() const;
  // Copies the bytes of the plain weights, as Pack got them, from `offset_bytes` on to `out`.
  // Requires can_unpack(), and that offset and size are multiples of the size of an element and lie
  // within the plain weights. Runs on the calling thread.
  void Unpack(int64_t offset_bytes, absl::Span<char> out) const;

 private:
  friend class MatmulKernel;
  struct Rep;
  explicit PackedWeights(std::unique_ptr<const Rep> rep);

  std::unique_ptr<const Rep> rep_;
};

// The operands and the result of one run. Each of them has exactly the size that the spec gives,
// and is aligned to its elements. `packed`, if not null, replaces `rhs`.
struct MatmulOperands {
  absl::Span<const char> lhs;
  absl::Span<const char> rhs;
  absl::Span<const char> bias;
  absl::Span<char> out;  // the result; may not overlap the operands
  const PackedWeights* packed = nullptr;
  absl::Span<const char> scales = {};
  // The rows of the product whose rows are computed by several runs, of which this is one
  // (KeepsBitsOfRows). 0: this run computes all rows.
  int64_t rows_of_whole = 0;
};

// Upper limits for the work of one block of a product.
struct BlockLimits {
  double flops = 0;
  double bytes = 0;
};

// Runs products. Compiled kernels are kept by shape and type, in an LRU cache of bounded size. The
// number of rows is a part of the shape. Compiling for another number of rows takes 0.2 to 0.3 ms,
// since oneDNN keeps the code that it made: rounding the number up would take longer. Steps that
// decode tokens have the same numbers of rows each time, and compile nothing.
//
// A large product runs in blocks of rows or columns of the result. A block takes at most about 100
// ms, estimated from its operations and the bytes that it reads and writes. The kernel checks for
// an abort between blocks. Between runs a thread keeps at most kKeptScratchBytes of working memory.
// Each element of the result is computed in one block only, so the same run gives the same bits
// every time.
//
// Thread-safe: runs on different threads do not wait for one another.
class MatmulKernel {
 public:
  static constexpr size_t kKeptScratchBytes = size_t{16} << 20;

  struct Options {
    // Number of threads for each run; 0: as many as HostShare::Threads returns for this process.
    int threads = 0;
    // The maximum number of compiled kernels in the cache. Each kernel takes some tens of
    // kilobytes, and a model has some tens of shapes.
    size_t cache_capacity = 1024;
    // Estimated rate of one thread, from which the size of a block is computed. A low estimate
    // makes smaller blocks.
    double flops_per_second = 100e9;
    // Estimated rate at which all threads together read a block's operands. A low estimate makes
    // smaller blocks.
    double bytes_per_second = 4e9;
    // The pool for converted operands. Null: their memory counts in no budget.
    std::shared_ptr<BufferPool> pool = nullptr;
    // Convert BF16 and I8 to F32 even if the CPU can multiply them (for tests).
    bool converts_all = false;
  };

  // Called between blocks. A status other than OK ends the run, which returns this status.
  using AbortCheck = std::function<absl::Status()>;

  explicit MatmulKernel(Options options);
  ~MatmulKernel();
  MatmulKernel(const MatmulKernel&) = delete;
  MatmulKernel& operator=(const MatmulKernel&) = delete;

  // Runs a product. INVALID_ARGUMENT: a size is negative, an operand has the wrong size
  // (SHAPE_MISMATCH), or the kernel does not have this combination of types (UNSUPPORTED_DTYPE).
  // RESOURCE_EXHAUSTED: the pool (MEMORY_LIMIT) or the host has no working memory for the run.
  // INTERNAL: oneDNN failed; the message is oneDNN's. After an error `out` is undefined.
  absl::Status Run(const MatmulSpec& spec, const MatmulOperands& operands,
                   const AbortCheck& abort_check = nullptr);

  // Packs the spec's right-hand operand. The result serves all products with the same k, n, types
  // and transpositions, and any m; spec.m should be a typical value. Packs block by block, and
  // calls `abort_check` between blocks. Errors are those of Run.
  absl::StatusOr<std::shared_ptr<const PackedWeights>> Pack(
      const MatmulSpec& spec, absl::Span<const char> rhs, const AbortCheck& abort_check = nullptr);

  // Returns whether the bits of a row of the result depend on the row of lhs and on the other
  // operands only, and not on `m`: the rows of a product may then be computed by several products
  // of fewer rows. `dtype` is that of both operands. Holds if lhs is not transposed, the weights
  // are packed in one way, or not at all, in all of these products, and `rows_of_whole` is the
  // same: it decides whether oneDNN computes a product, or the loops for few rows.
  //
  // False for F16: the number of rows decides how packed weights are read.
  //
  // True if oneDNN 2 multiplies the type with its kernels for AVX-512 (brgemm), which add the
  // products of a row in the order of k, in parts that do not depend on m. The kernels for older
  // CPUs, and those for BF16 on CPUs with AVX-512 only, choose the order by m. With at least 16
  // threads, the kernel for BF16 on AMX splits k among threads where m is small.
  bool KeepsBitsOfRows(Dtype dtype) const;

  // Returns whether the bits of an element of the result depend on its row of lhs, its column of
  // rhs and its bias only, and not on `m` and `n`: a product may then be computed by products of
  // fewer rows or fewer columns. Holds if
  //   - rhs has at most 2^26 elements, so that all of its columns are one panel;
  //   - rhs is not packed, or all products have the same rhs, or the whole has more than
  //     kMostStreamedRows rows: the loops for few rows read packed weights only;
  //   - lhs is not transposed. Or k < 2,048, m * (k + n) <= 2^26 and m * n * k <= 2^32, so that the
  //     product is one block, and oneDNN does not split k among threads.
  //
  // True if KeepsBitsOfRows is, and oneDNN has no kernel for AMX and this type: that one chooses
  // other blocks of k, or another kernel, by m and n.
  bool KeepsBitsOfParts(Dtype dtype) const;

  // Returns the approximate memory that Pack takes for the spec's right-hand operand.
  int64_t LikelyPackedBytes(const MatmulSpec& spec) const;

  // Returns the number of threads of each run.
  int threads() const { return threads_; }

  // cached_kernels() returns the number of compiled kernels in the cache. compilations() returns
  // how many kernels were compiled in total.
  size_t cached_kernels() const;
  int64_t compilations() const;

 private:
  class Cache;
  static constexpr double kBlockSeconds = 0.1;

  // Limit for the bytes of one block's operands, if the kernel converts the operands to F32.
  static constexpr double kWideBlockBytes = 32 << 20;

  // Returns whether this kernel converts operands of type `dtype` to F32.
  bool IsWidened(Dtype dtype) const;
  // Returns the type in which the kernel multiplies plain operands of these types.
  Dtype ComputedType(const MatmulSpec& spec) const;
  BlockLimits LimitsFor(bool is_widened) const;
  // Runs a product of few rows by packed weights that lie in panels.
  absl::Status RunStreamed(const MatmulSpec& spec, const MatmulOperands& operands,
                           const AbortCheck& abort_check) const;
  // Runs a product block by block.
  absl::Status RunBlocks(const MatmulSpec& spec, const MatmulOperands& operands,
                         const AbortCheck& abort_check);
  // Runs a product with k=0: only bias and activation.
  static absl::Status RunWithoutSums(const MatmulSpec& spec, const MatmulOperands& operands);

  const int threads_;
  const BlockLimits limits_;
  const std::shared_ptr<BufferPool> pool_;
  const bool converts_all_;
  const std::unique_ptr<Cache> cache_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_MATMUL_H_
