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
//   lhs   [m, k], or [k, m] if transpose_lhs
//   rhs   [k, n], or [n, k] if transpose_rhs (as PyTorch keeps the weights of linear layers)
//   bias  [n] if has_bias
//   out   [m, n]
//
// All row-major without gaps; a transposed operand is read where it lies. Sizes are at least 0; k=0
// gives activation(bias). Sums are made in F32 and rounded once to the type of `out`, after bias
// and activation.
//
//   lhs   rhs   bias        out          remarks
//   F32   F32   F32         F32
//   BF16  BF16  BF16, F32   BF16, F32    F32: partial sums, to be reduced before an activation
//   I8    I8    F32         F32, BF16    integer sums; scale undoes the quantisation of both
//
// On CPUs that have no such product (BF16 before AVX-512, I8 without integer dot products) operands
// are converted to F32 block by block, in memory of the kernel's pool, and sums of I8 beyond 2^24
// are rounded as those of F32 are. A packing is then of F32.
//
// Any other combination is refused (UNSUPPORTED_DTYPE), among them I8 weights under floating-point
// lhs, for which oneDNN's CPU kernels of version 2 have no product.
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
// Immutable, hence safe to share between threads; independent of the kernel that made it.
class PackedWeights {
 public:
  ~PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Memory that the packed form takes, for the owner's budget; it may exceed the plain size.
  int64_t size_bytes() const;

 private:
  friend class MatmulKernel;
  struct Rep;
  explicit PackedWeights(std::unique_ptr<const Rep> rep);

  std::unique_ptr<const Rep> rep_;
};

// The operands of one run, each exactly of the size that the spec says, and aligned to its
// elements. `packed`, if not null, is used in place of `rhs`.
struct MatmulOperands {
  absl::Span<const char> lhs;
  absl::Span<const char> rhs;
  absl::Span<const char> bias;
  absl::Span<char> out;  // overlaps none of the others
  const PackedWeights* packed = nullptr;
};

// What a block of a product may take.
struct BlockLimits {
  double flops = 0;
  double bytes = 0;
};

// Runs products, keeping what is costly to set up: compiled kernels by shape and type, the least
// recently used ones given up beyond a bound.
//
// A large product runs as blocks of rows or columns of the result that take at most about 100 ms
// each, by their operations and by the bytes that they read and write; between them an abort is
// noticed. Between runs a thread keeps at most kKeptScratchBytes of working memory. Each element of
// the result is made within one block, and the same run gives the same bits every time.
//
// Thread-safe; runs on distinct threads do not wait for one another.
class MatmulKernel {
 public:
  static constexpr size_t kKeptScratchBytes = size_t{16} << 20;

  struct Options {
    // Threads per run; 0 for as many as HostShare says.
    int threads = 0;
    // Compiled kernels kept: some tens of kilobytes each, and a model has some tens of shapes.
    size_t cache_capacity = 1024;
    // Rate per thread by which a block's time is foreseen: a low estimate makes smaller blocks.
    double flops_per_second = 100e9;
    // Rate of the whole machine at which a block's operands are read, likewise.
    double bytes_per_second = 4e9;
    // Where converted operands lie; null for memory that no budget counts.
    std::shared_ptr<BufferPool> pool = nullptr;
    // Converts BF16 and I8 also on a CPU that has products of them.
    bool converts_all = false;
  };

  // Asked between blocks; a status other than OK ends the run with it.
  using AbortCheck = std::function<absl::Status()>;

  explicit MatmulKernel(Options options);
  ~MatmulKernel();
  MatmulKernel(const MatmulKernel&) = delete;
  MatmulKernel& operator=(const MatmulKernel&) = delete;

  // INVALID_ARGUMENT: a size is negative or an operand is not of its size (SHAPE_MISMATCH), or the
  // types do not go together (UNSUPPORTED_DTYPE). RESOURCE_EXHAUSTED: no memory for the run's own
  // use, of the pool (MEMORY_LIMIT) or of the host. INTERNAL: oneDNN failed; the message is its
  // own. After an error `out` is undefined.
  absl::Status Run(const MatmulSpec& spec, const MatmulOperands& operands,
                   const AbortCheck& abort_check = nullptr);

  // Packs spec's right-hand operand for products of its k, n, types and transpositions, and of any
  // m; spec.m is a typical one. Goes block by block as Run does. INVALID_ARGUMENT as in Run.
  absl::StatusOr<std::shared_ptr<const PackedWeights>> Pack(
      const MatmulSpec& spec, absl::Span<const char> rhs, const AbortCheck& abort_check = nullptr);

  // About what Pack takes for the spec's right-hand operand.
  int64_t LikelyPackedBytes(const MatmulSpec& spec) const;

  // Compiled kernels held, and how often one had to be made.
  size_t cached_kernels() const;
  int64_t compilations() const;

 private:
  class Cache;
  static constexpr double kBlockSeconds = 0.1;

  // Of the operands of one block at most, while they are converted.
  static constexpr double kWideBlockBytes = 32 << 20;

  // Whether operands of the type are converted to F32.
  bool IsWidened(Dtype dtype) const;
  BlockLimits LimitsFor(bool is_widened) const;
  // The blocks of a product.
  absl::Status RunBlocks(const MatmulSpec& spec, const MatmulOperands& operands,
                         const AbortCheck& abort_check);
  // The product with k=0.
  static absl::Status RunWithoutSums(const MatmulSpec& spec, const MatmulOperands& operands);

  const int threads_;
  const BlockLimits limits_;
  const std::shared_ptr<BufferPool> pool_;
  const bool converts_all_;
  const std::unique_ptr<Cache> cache_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_MATMUL_H_
