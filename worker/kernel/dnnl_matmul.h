// Products of one block by oneDNN, version 2.6 or 3: how they are described, compiled and laid out.
// All that differs between the versions is in dnnl_matmul.cc.
#ifndef SHARDMESH_WORKER_KERNEL_DNNL_MATMUL_H_
#define SHARDMESH_WORKER_KERNEL_DNNL_MATMUL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tensor/dtype.h"
#include "worker/kernel/matmul.h"
#include "worker/kernel/streamed_product.h"

namespace shardmesh::worker {

// Returns the engine of this process's CPU. All functions below are thread-safe, and throw
// dnnl::error where oneDNN fails.
const dnnl::engine& DnnlEngine();

// Returns whether oneDNN multiplies the type on this CPU with correct results. It is not asked for
// products of F16, which version 2 does not have. Before AVX-512, oneDNN has no product of BF16.
// Without integer dot products (VNNI), it adds pairs of I8 products in 16 bits, and these sums
// saturate.
bool DnnlMultiplies(Dtype dtype);

// Returns MatmulKernel::KeepsBitsOfRows for products of F32 or BF16 that oneDNN computes with so
// many threads.
bool DnnlKeepsBitsOfRows(Dtype dtype, int threads);

// Returns whether a product of such a type for which DnnlKeepsBitsOfRows is true also keeps its
// bits in parts of its columns. With AMX, oneDNN chooses kernel and blocks of k by the size of the
// result.
bool DnnlKeepsBitsOfParts(Dtype dtype);

// Returns the descriptor of a rows x columns matrix of F32, BF16 or I8 that is a part of a larger
// matrix. In the larger matrix, rows (columns, if transposed) begin `pitch` elements apart.
dnnl::memory::desc MatrixDesc(Dtype dtype, int64_t rows, int64_t columns, int64_t pitch,
                              bool transposed);

// A layout in which an element lies at the sum of the places of its outer blocks, by `strides`, and
// of its place within them, by inner blocks: `inner_sizes[i]` indices of dimension `inner_dims[i]`,
// the outermost first. In elements.
struct BlockedLayout {
  dnnl::memory::dims strides;
  dnnl::memory::dims inner_sizes;
  dnnl::memory::dims inner_dims;
};
// Returns nullopt if the layout is not made of blocks.
std::optional<BlockedLayout> BlockedLayoutOf(const dnnl::memory::desc& desc);

// Returns the panels of weights [k, n] of F32 or BF16 that lie at `data` in a layout of oneDNN.
// nullopt if the layout is another one; and of BF16 if this CPU has no instructions for pairs, or
// has AMX, with which oneDNN is faster.
std::optional<PanelsView> PanelsOf(Dtype dtype, int64_t k, int64_t n, const BlockedLayout& layout,
                                   const char* data);

// Describes out = lhs * rhs + bias. With format `any`, oneDNN chooses the layout of an operand.
dnnl::matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine,
                                            const dnnl::memory::desc& lhs,
                                            const dnnl::memory::desc& rhs,
                                            const std::optional<dnnl::memory::desc>& bias,
                                            const dnnl::memory::desc& out,
                                            const dnnl::primitive_attr& attr);

// The compiled product of one block. To compute a block, a run executes it once.
struct CompiledProduct {
  dnnl::matmul primitive;
  dnnl::memory::desc lhs;
  dnnl::memory::desc rhs;
  dnnl::memory::desc out;
  dnnl::memory::desc bias;  // set if has_bias: oneDNN adds the bias in the product itself
  dnnl::memory::desc scratch;
  bool has_bias = false;
  // A row of F32 or of the bias's type that a post-op multiplies or adds.
  struct Row {
    dnnl::memory::desc desc;
    int argument = 0;
  };
  std::optional<Row> scales;
  std::optional<Row> addend;  // the bias, if it is added after scaling
};

// Compiles the product of one block, `rows` x `columns`, of the spec's product. `rhs` is the layout
// of the right-hand operand. INTERNAL: the spec has an activation that has no kernel.
absl::StatusOr<std::shared_ptr<const CompiledProduct>> CompileProduct(
    const MatmulSpec& spec, int64_t rows, int64_t columns, const dnnl::memory::desc& rhs);

// Returns the layout of the right-hand operand that oneDNN prefers for such a block. Errors as
// CompileProduct.
absl::StatusOr<dnnl::memory::desc> PreferredLayout(const MatmulSpec& spec, int64_t rows,
                                                   int64_t columns);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_DNNL_MATMUL_H_
