// Matrix products on this host's CPU.
#ifndef SHARDMESH_WORKER_KERNEL_MATMUL_H_
#define SHARDMESH_WORKER_KERNEL_MATMUL_H_

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

// A product out = activation(scale * lhs * rhs + bias), by its shapes and types.
//
// clang-format off
//   lhs   [m, k], or [k, m] if transpose_lhs
//   rhs   [k, n], or [n, k] if transpose_rhs (as PyTorch keeps the weights of linear layers)
//   bias  [n] if has_bias
//   out   [m, n]
// clang-format on
//
// All memory is row-major without gaps. A transposed operand is read in place. Sizes are at least
// 0; k=0 gives activation(bias). Sums are computed in F32 and rounded once to the type of `out`,
// after bias and activation.
//
// clang-format off
//   lhs   rhs   bias        out          remarks
//   F32   F32   F32         F32
//   BF16  BF16  BF16, F32   BF16, F32    F32: partial sums, to be reduced before an activation
//   I8    I8    F32         F32, BF16    integer sums; scale undoes the quantisation of both
// clang-format on
//
// Some CPUs lack such products: BF16 before AVX-512, I8 without integer dot products. There,
// operands are converted to F32 block by block, in memory of the kernel's pool. Sums of I8 beyond
// 2^24 are then rounded as sums of F32 are, and a packing is of F32.
//
// Any other combination is refused (UNSUPPORTED_DTYPE). This includes I8 weights with a
// floating-point lhs, for which oneDNN's CPU kernels of version 2 have no product.
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
  float scale = 1;
  Activation activation = Activation::kNone;

  friend bool operator==(const MatmulSpec&, const MatmulSpec&) = default;
};

// A right-hand operand in the layout that the kernel reads fastest. One packing serves every m.
// Immutable and thread-safe; independent of the kernel that made it.
class PackedWeights {
 public:
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Returns the memory of the packed form, for the owner's budget. It may exceed the plain size.
  int64_t size_bytes() const;

 private:
  friend class MatmulKernel;
  struct Rep;
  explicit PackedWeights(std::unique_ptr<const Rep> rep);

  std::unique_ptr<const Rep> rep_;
};

// The operands of one run. Each has exactly the spec's size and is aligned to its elements.
// `packed`, if not null, replaces `rhs`.
struct MatmulOperands {
  absl::Span<const char> lhs;
  absl::Span<const char> rhs;
  absl::Span<const char> bias;
  absl::Span<char> out;  // may not overlap the operands
  const PackedWeights* packed = nullptr;
};

// Upper limits of one block of a product.
struct BlockLimits {
  double flops = 0;
  double bytes = 0;
};

// Runs products and caches their costly setup: compiled kernels by shape and type, in an LRU cache
// of bounded size.
//
// A large product runs in blocks of rows or columns of the result. A block takes at most about 100
// ms, estimated from its operations and the bytes that it reads and writes. The kernel checks for
// an abort between blocks. Between runs a thread keeps at most kKeptScratchBytes of working memory.
// One block computes each element of the result, and the same run gives the same bits every time.
//
// Thread-safe; runs on distinct threads do not wait for one another.
class MatmulKernel {
 public:
  static constexpr size_t kKeptScratchBytes = size_t{16} << 20;

  struct Options {
    // Threads per run; 0 for HostShare's number.
    int threads = 0;
    // Compiled kernels in the cache: some tens of kilobytes each, and a model has some tens of
    // shapes.
    size_t cache_capacity = 1024;
    // Estimated rate per thread, for the time of a block: a low estimate makes smaller blocks.
    double flops_per_second = 100e9;
    // Estimated rate at which the whole machine reads a block's operands; a low estimate makes
    // smaller blocks.
    double bytes_per_second = 4e9;
    // Where converted operands lie; null for memory outside any budget.
    std::shared_ptr<BufferPool> pool = nullptr;
    // Converts BF16 and I8 even on a CPU that has products of them.
    bool converts_all = false;
  };

  // Called between blocks; a status other than OK ends the run with that status.
  using AbortCheck = std::function<absl::Status()>;

  explicit MatmulKernel(Options options);
  ~MatmulKernel();
  MatmulKernel(const MatmulKernel&) = delete;
  MatmulKernel& operator=(const MatmulKernel&) = delete;

  // Runs a product. INVALID_ARGUMENT: a size is negative, an operand does not have its size
  // (SHAPE_MISMATCH), or the types do not go together (UNSUPPORTED_DTYPE). RESOURCE_EXHAUSTED: the
  // pool (MEMORY_LIMIT) or the host has no working memory for the run. INTERNAL: oneDNN failed; the
  // message is oneDNN's. After an error `out` is undefined.
  absl::Status Run(const MatmulSpec& spec, const MatmulOperands& operands,
                   const AbortCheck& abort_check = nullptr);

  // Packs spec's right-hand operand for products of its k, n, types and transpositions, and of any
  // m; spec.m is a typical value. Runs block by block as Run does. INVALID_ARGUMENT as in Run.
  absl::StatusOr<std::shared_ptr<const PackedWeights>> Pack(
      const MatmulSpec& spec, absl::Span<const char> rhs, const AbortCheck& abort_check = nullptr);

  // Returns the approximate memory that Pack takes for the spec's right-hand operand.
  int64_t LikelyPackedBytes(const MatmulSpec& spec) const;

  // Compiled kernels in the cache, and how many were compiled in total.
  size_t cached_kernels() const;
  int64_t compilations() const;

 private:
  class Cache;
  static constexpr double kBlockSeconds = 0.1;

  // Most bytes of one block's operands while they are converted.
  static constexpr double kWideBlockBytes = 32 << 20;

  // Returns whether operands of the type are converted to F32.
  bool IsWidened(Dtype dtype) const;
  BlockLimits LimitsFor(bool is_widened) const;
  // Runs the blocks of a product.
  absl::Status RunBlocks(const MatmulSpec& spec, const MatmulOperands& operands,
                         const AbortCheck& abort_check);
  // Runs a product with k=0.
  static absl::Status RunWithoutSums(const MatmulSpec& spec, const MatmulOperands& operands);

  const int threads_;
  const BlockLimits limits_;
  const std::shared_ptr<BufferPool> pool_;
  const bool converts_all_;
  const std::unique_ptr<Cache> cache_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_MATMUL_H_
