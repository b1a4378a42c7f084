// The calls of oneDNN that describe and compile products.
#include "worker/kernel/dnnl_matmul.h"

#include <utility>

#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/kernel/weight_loops.h"

namespace shardmesh::worker {
namespace {

using dnnl::memory;

void AppendEltwise(dnnl::post_ops& post_ops, dnnl::algorithm algorithm, float alpha) {
#if DNNL_VERSION_MAJOR >= 3
  post_ops.append_eltwise(algorithm, alpha, 0);
#else
  post_ops.append_eltwise(1, algorithm, alpha, 0);
#endif
}

// The kernels of version 2 for AVX-512 (brgemm) add the products of a row in the order of k.
// Version 3 has other kernels, and other rules for threads.
#if DNNL_VERSION_MAJOR >= 3
constexpr bool kAddsInOrder = false;
#else
constexpr bool kAddsInOrder = true;
#endif

memory::data_type TypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return memory::data_type::f32;
    case Dtype::kBF16:
      return memory::data_type::bf16;
    case Dtype::kI8:
      return memory::data_type::s8;
    default:
      return memory::data_type::undef;  // refused by CheckTypes
  }
}

absl::StatusOr<dnnl::algorithm> AlgorithmOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return dnnl::algorithm::eltwise_relu;
    case Activation::kGelu:
      return dnnl::algorithm::eltwise_gelu_erf;
    case Activation::kGeluTanh:
      return dnnl::algorithm::eltwise_gelu_tanh;
    case Activation::kSilu:
      return dnnl::algorithm::eltwise_swish;
    case Activation::kNone:
      break;
  }
  return absl::InternalError(StrCat("activation ", static_cast<int>(activation), " has no kernel"));
}

// Describes the product of one block, `rows` x `columns`, of the spec's product. `rhs` is the
// layout of the right-hand operand; with format `any`, oneDNN chooses the layout that it prefers.
absl::StatusOr<dnnl::matmul::primitive_desc> Describe(const MatmulSpec& spec, int64_t rows,
                                                      int64_t columns, const memory::desc& rhs,
                                                      CompiledProduct& compiled) {
  compiled.lhs = MatrixDesc(spec.lhs_dtype, rows, spec.k, spec.transpose_lhs ? spec.m : spec.k,
                            spec.transpose_lhs);
  compiled.out = MatrixDesc(spec.out_dtype, rows, columns, spec.n, false);

  // Scales must not apply to the bias, but oneDNN would scale a bias that is part of the product.
  // If there are scales, a post-op therefore adds the bias after scaling.
  dnnl::post_ops post_ops;
  std::optional<memory::desc> bias;
  const auto append_row = [&](dnnl::algorithm algorithm, Dtype dtype) {
    const memory::desc row({1, columns}, TypeOf(dtype), memory::format_tag::ab);
    const int number = post_ops.len();
    post_ops.append_binary(algorithm, row);
    return CompiledProduct::Row{row, DNNL_ARG_ATTR_MULTIPLE_POST_OP(number) | DNNL_ARG_SRC_1};
  };
  if (spec.scale != 1) {
    AppendEltwise(post_ops, dnnl::algorithm::eltwise_linear, spec.scale);
  }
  if (spec.has_scales) {
    compiled.scales = append_row(dnnl::algorithm::binary_mul, Dtype::kF32);
  }
  if (spec.has_bias && post_ops.len() > 0) {
    compiled.addend = append_row(dnnl::algorithm::binary_add, spec.bias_dtype);
  } else if (spec.has_bias) {
    compiled.has_bias = true;
    compiled.bias = memory::desc({1, columns}, TypeOf(spec.bias_dtype), memory::format_tag::ab);
    bias = compiled.bias;
  }
  if (spec.activation != Activation::kNone) {
    SHARDMESH_ASSIGN_OR_RETURN(const dnnl::algorithm algorithm, AlgorithmOf(spec.activation));
    // For swish, alpha is the factor in its exponent. For relu, alpha is the slope below 0.
    AppendEltwise(post_ops, algorithm, spec.activation == Activation::kSilu ? 1.0f : 0.0f);
  }
  dnnl::primitive_attr attr;
  attr.set_post_ops(post_ops);
  // The caller provides the scratchpad. A scratchpad of oneDNN's own would belong to the thread
  // that compiles.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return DescribeMatmul(DnnlEngine(), compiled.lhs, rhs, bias, compiled.out, attr);
}

// Returns whether oneDNN may use the instruction set.
bool MayUse(dnnl::cpu_isa each) {
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(each)) == static_cast<unsigned>(each);
}

}  // namespace

const dnnl::engine& DnnlEngine() {
  static const dnnl::engine* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

bool DnnlMultiplies(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return false;
    case Dtype::kBF16:
      return MayUse(dnnl::cpu_isa::avx512_core);
    case Dtype::kI8:
      return MayUse(dnnl::cpu_isa::avx512_core_vnni) || MayUse(dnnl::cpu_isa::avx2_vnni);
    default:
      return true;
  }
}

bool DnnlKeepsBitsOfRows(Dtype dtype, int threads) {
  // From this number on, the kernel for AMX considers to split k (nthr / 8 > 1).
  constexpr int kThreadsThatSplitK = 16;
  if (!kAddsInOrder) return false;
  switch (dtype) {
    case Dtype::kF32:
      return MayUse(dnnl::cpu_isa::avx512_core);
    case Dtype::kBF16:
      return MayUse(dnnl::cpu_isa::avx512_core_bf16) &&
             (!MayUse(dnnl::cpu_isa::avx512_core_amx) || threads < kThreadsThatSplitK);
    default:
      return false;  // no program multiplies other types
  }
}

bool DnnlKeepsBitsOfParts(Dtype dtype) {
  return dtype != Dtype::kBF16 || !MayUse(dnnl::cpu_isa::avx512_core_amx);
}

memory::desc MatrixDesc(Dtype dtype, int64_t rows, int64_t columns, int64_t pitch,
                        bool transposed) {
  return memory::desc({rows, columns}, TypeOf(dtype),
                      transposed ? memory::dims{1, pitch} : memory::dims{pitch, 1});
}

std::optional<BlockedLayout> BlockedLayoutOf(const memory::desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  if (desc.get_format_kind() != memory::format_kind::blocked) return std::nullopt;
  return BlockedLayout{desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()};
#else
  if (desc.data.format_kind != dnnl_blocked) return std::nullopt;
  const dnnl_blocking_desc_t& from = desc.data.format_desc.blocking;
  return BlockedLayout{{from.strides, from.strides + desc.data.ndims},
                       {from.inner_blks, from.inner_blks + from.inner_nblks},
                       {from.inner_idxs, from.inner_idxs + from.inner_nblks}};
#endif
}

std::optional<PanelsView> PanelsOf(Dtype dtype, int64_t k, int64_t n, const BlockedLayout& layout,
                                   const char* data) {
  const bool is_f32 = dtype == Dtype::kF32;
  if (!is_f32 &&
      (dtype != Dtype::kBF16 || !MultipliesPairs() || MayUse(dnnl::cpu_isa::avx512_core_amx))) {
    return std::nullopt;
  }
  // Blocks of rows that follow one another, of all columns of a panel, single rows or pairs.
  const memory::dims dims = is_f32 ? memory::dims{0, 1} : memory::dims{0, 1, 0};
  if (layout.inner_dims != dims || (!is_f32 && layout.inner_sizes[2] != 2)) return std::nullopt;
  const int64_t columns = layout.inner_sizes[1];
  const int64_t block_rows = layout.inner_sizes[0] * (is_f32 ? 1 : 2);
  if (columns > kMostPanelColumns || columns % static_cast<int64_t>(kWeightColumnGranule) != 0 ||
      layout.strides[0] != block_rows * columns) {
    return std::nullopt;
  }
  return PanelsView{.form = is_f32 ? PanelForm::kF32 : PanelForm::kBF16Pairs,
                    .data = data,
                    .k = k,
                    .n = n,
                    .columns = columns,
                    .last_pitch = columns,
                    .panel_bytes = layout.strides[1] * (is_f32 ? 4 : 2)};
}

dnnl::matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine, const memory::desc& lhs,
                                            const memory::desc& rhs,
                                            const std::optional<memory::desc>& bias,
                                            const memory::desc& out,
                                            const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return bias ? dnnl::matmul::primitive_desc(engine, lhs, rhs, *bias, out, attr)
              : dnnl::matmul::primitive_desc(engine, lhs, rhs, out, attr);
#else
  return {bias ? dnnl::matmul::desc(lhs, rhs, *bias, out) : dnnl::matmul::desc(lhs, rhs, out), attr,
          engine};
#endif
}

absl::StatusOr<std::shared_ptr<const CompiledProduct>> CompileProduct(const MatmulSpec& spec,
                                                                      int64_t rows, int64_t columns,
                                                                      const memory::desc& rhs) {
  auto compiled = std::make_shared<CompiledProduct>();
  SHARDMESH_ASSIGN_OR_RETURN(const dnnl::matmul::primitive_desc description,
                             Describe(spec, rows, columns, rhs, *compiled));
  compiled->rhs = description.weights_desc();
  compiled->scratch = description.scratchpad_desc();
  compiled->primitive = dnnl::matmul(description);
  return compiled;
}

absl::StatusOr<memory::desc> PreferredLayout(const MatmulSpec& spec, int64_t rows,
                                             int64_t columns) {
  const memory::desc any({spec.k, columns}, TypeOf(spec.rhs_dtype), memory::format_tag::any);
  CompiledProduct unused;
  SHARDMESH_ASSIGN_OR_RETURN(const dnnl::matmul::primitive_desc description,
                             Describe(spec, rows, columns, any, unused));
  return description.weights_desc();
}

}  // namespace shardmesh::worker
