// MatmulKernel, implemented with oneDNN versions 2 and 3. Only this file uses oneDNN.
#include "worker/kernel/matmul.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "status/fact_keys.h"
#include "status/lru_cache.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/kernel/aligned_bytes.h"
#include "worker/kernel/epilogue.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/host_share.h"
#include "worker/kernel/weight_loops.h"
#include "worker/kernel/weight_panels.h"

namespace shardmesh::worker {
namespace {

using dnnl::memory;

// Differences between versions 2 and 3 of oneDNN. ----------------------------------------------

void AppendEltwise(dnnl::post_ops& post_ops, dnnl::algorithm algorithm, float alpha) {
#if DNNL_VERSION_MAJOR >= 3
  post_ops.append_eltwise(algorithm, alpha, 0);
#else
  post_ops.append_eltwise(1, algorithm, alpha, 0);
#endif
}

dnnl::matmul::primitive_desc MakePrimitiveDesc(const dnnl::engine& engine, const memory::desc& lhs,
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

// A layout in which an element lies at the sum of the places of its outer blocks, by `strides`, and
// of its place within them, by inner blocks: `inner_sizes[i]` indices of dimension `inner_dims[i]`,
// the outermost first.
struct Blocking {
  memory::dims strides;
  memory::dims inner_sizes;
  memory::dims inner_dims;
};

// Returns nullopt if the layout is not made of blocks.
std::optional<Blocking> BlockingOf(const memory::desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  if (desc.get_format_kind() != memory::format_kind::blocked) return std::nullopt;
  return Blocking{desc.get_strides(), desc.get_inner_blks(), desc.get_inner_idxs()};
#else
  if (desc.data.format_kind != dnnl_blocked) return std::nullopt;
  const dnnl_blocking_desc_t& from = desc.data.format_desc.blocking;
  return Blocking{{from.strides, from.strides + desc.data.ndims},
                  {from.inner_blks, from.inner_blks + from.inner_nblks},
                  {from.inner_idxs, from.inner_idxs + from.inner_nblks}};
#endif
}

// ----------------------------------------------------------------------------------------------

const dnnl::engine& Engine() {
  static const dnnl::engine* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

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

int64_t ElementBytes(Dtype dtype) { return BitsPerElement(dtype) / 8; }

// Runs `body`, which returns a Status or StatusOr, and converts an exception of oneDNN to a status.
template <typename Body>
auto CatchErrors(const MatmulSpec& spec, Body body) -> decltype(body()) {
  const auto what = [&spec] {
    return StrCat("product of ", DtypeName(spec.lhs_dtype), " [", spec.m, ", ", spec.k, "] and ",
                  DtypeName(spec.rhs_dtype), " [", spec.k, ", ", spec.n, "] to ",
                  DtypeName(spec.out_dtype));
  };
  try {
    return body();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) {
      return absl::UnimplementedError(StrCat("oneDNN has no kernel on this CPU for the ", what(),
                                             "; convert the operands to F32"));
    }
    if (error.status == dnnl_out_of_memory) {
      return absl::ResourceExhaustedError(StrCat("no memory for the ", what()));
    }
    return absl::InternalError(StrCat("oneDNN failed in the ", what(), ": ", error.what()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(StrCat("no memory for the ", what()));
  } catch (const std::exception& error) {
    return absl::InternalError(StrCat("the ", what(), " failed: ", error.what()));
  }
}

bool IsShortFloat(Dtype dtype) { return FloatBytes(dtype) != 0; }

// Returns whether the weights are packed as panels, which keep their type.
bool HasPanels(const MatmulSpec& spec) {
  return spec.rhs_dtype == Dtype::kF16 ||
         (spec.rhs_dtype == Dtype::kI8 && spec.lhs_dtype != Dtype::kI8);
}

absl::Status CheckTypes(const MatmulSpec& spec) {
  const bool integers = spec.lhs_dtype == Dtype::kI8 && spec.rhs_dtype == Dtype::kI8;
  const bool floats = IsShortFloat(spec.lhs_dtype) &&
                      (spec.rhs_dtype == spec.lhs_dtype || spec.rhs_dtype == Dtype::kI8);
  const bool out_fits = spec.out_dtype == Dtype::kF32 || spec.out_dtype == spec.lhs_dtype ||
                        (integers && spec.out_dtype == Dtype::kBF16);
  const bool bias_fits = !spec.has_bias || spec.bias_dtype == Dtype::kF32 ||
                         (floats && spec.bias_dtype == spec.lhs_dtype);
  const bool scales_fit = !spec.has_scales || (floats && spec.rhs_dtype == Dtype::kI8);
  if ((floats || integers) && out_fits && IsShortFloat(spec.out_dtype) && bias_fits && scales_fit) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kUnsupportedDtype,
      StrCat("a product of ", DtypeName(spec.lhs_dtype), " and ", DtypeName(spec.rhs_dtype),
             spec.has_scales ? " with scales" : "",
             spec.has_bias ? StrCat(" with a bias of ", DtypeName(spec.bias_dtype)) : "", " to ",
             DtypeName(spec.out_dtype),
             " is not there; the left operand can be F32, BF16 or F16, the right one the same or "
             "I8 with scales, and bias and result the type of the left one or F32; or both are I8, "
             "with a bias of F32 and a result of F32 or BF16"),
      {{fact::kDtype, DtypeName(spec.lhs_dtype)}, {fact::kOp, "matmul"}});
}

absl::Status CheckSizes(const MatmulSpec& spec) {
  const auto fits = [](int64_t a, int64_t b) {
    return a >= 0 && b >= 0 && (b == 0 || a <= std::numeric_limits<int64_t>::max() / 8 / b);
  };
  if (fits(spec.m, spec.k) && fits(spec.k, spec.n) && fits(spec.m, spec.n)) return absl::OkStatus();
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat("a product has m=", spec.m, ", n=", spec.n, ", k=", spec.k,
             "; sizes are at least 0, and their products fit 60 bits"),
      {{fact::kHave, StrCat(spec.m, ",", spec.n, ",", spec.k)}, {fact::kOp, "matmul"}});
}

absl::Status CheckOperand(std::string_view name, size_t size_bytes, Dtype dtype, int64_t elements) {
  const int64_t need_bytes = elements * ElementBytes(dtype);
  if (static_cast<int64_t>(size_bytes) == need_bytes) return absl::OkStatus();
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat(name, " of a product has ", size_bytes, " bytes where ", elements, " elements of ",
             DtypeName(dtype), " are ", need_bytes),
      {{fact::kHave, size_bytes}, {fact::kNeed, need_bytes}, {fact::kOp, "matmul"}});
}

// Returns the descriptor of a rows x columns matrix that is a part of a larger matrix. In the
// larger matrix, rows (columns, if transposed) begin `pitch` elements apart.
memory::desc MatrixDesc(Dtype dtype, int64_t rows, int64_t columns, int64_t pitch,
                        bool transposed) {
  return memory::desc({rows, columns}, TypeOf(dtype),
                      transposed ? memory::dims{1, pitch} : memory::dims{pitch, 1});
}

// While this object exists, parallel regions that this thread starts use the given number of OpenMP
// threads.
class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ScopedThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  const int before_;
};

// Working memory for this thread's runs. The thread keeps up to kKeptScratchBytes of it for its
// next run.
class RunScratch {
 public:
  RunScratch() = default;
  RunScratch(const RunScratch&) = delete;
  RunScratch& operator=(const RunScratch&) = delete;
  ~RunScratch() {
    if (kept_.capacity_bytes > MatmulKernel::kKeptScratchBytes) kept_ = {};
  }

  char* Get(size_t size_bytes) {
    if (size_bytes > kept_.capacity_bytes) {
      kept_ = {};
      kept_.data = AllocateAligned(size_bytes);
      kept_.capacity_bytes = size_bytes;
    }
    return kept_.data.get();
  }

 private:
  struct Kept {
    AlignedBytes data = nullptr;
    size_t capacity_bytes = 0;
  };
  static thread_local Kept kept_;
};
thread_local RunScratch::Kept RunScratch::kept_;

// A panel is a range of columns. Weights are packed panel by panel, and wide products are computed
// panel by panel. A panel has so many columns that a block with kLeastBlockRows rows reaches its
// BlockLimits. With fewer rows in a block, the product would read the weights too often.
constexpr int64_t kLeastBlockRows = 64;
// A panel begins at a multiple of this number of columns. The number is a multiple of the column
// block of every oneDNN kernel.
constexpr int64_t kPanelGranule = 64;

int64_t PanelColumns(const MatmulSpec& spec, const BlockLimits& limits) {
  const auto k = static_cast<double>(spec.k);
  const double columns =
      std::min(limits.flops / (2.0 * static_cast<double>(kLeastBlockRows) * k),
               limits.bytes / (k * static_cast<double>(ElementBytes(spec.rhs_dtype))));
  if (columns >= static_cast<double>(spec.n)) return std::max<int64_t>(spec.n, 1);
  const auto whole = static_cast<int64_t>(columns) / kPanelGranule * kPanelGranule;
  return std::clamp<int64_t>(whole, std::min(kPanelGranule, spec.n), spec.n);
}

// Returns how many rows a block of `columns` columns has.
int64_t BlockRows(const MatmulSpec& spec, int64_t columns, const BlockLimits& limits) {
  const auto k = static_cast<double>(spec.k);
  const auto n = static_cast<double>(columns);
  const double row_bytes = k * static_cast<double>(ElementBytes(spec.lhs_dtype)) +
                           n * static_cast<double>(ElementBytes(spec.out_dtype));
  return static_cast<int64_t>(std::clamp(
      std::min(limits.flops / (2.0 * k * n), limits.bytes / row_bytes),
      static_cast<double>(std::min(kLeastBlockRows, spec.m)), static_cast<double>(spec.m)));
}

// Returns the number of a packed weight layout among those of the same shape and type, for the
// cache's key. A layout keeps its number, above 0, as long as the process runs. Plain row-major
// weights have the number 0.
uint64_t LayoutNumber(const MatmulSpec& spec, int64_t columns, const memory::desc& desc) {
  struct Layouts {
    absl::Mutex mutex;
    absl::flat_hash_map<std::tuple<int64_t, int64_t, Dtype>, std::vector<memory::desc>> by_shape
        ABSL_GUARDED_BY(mutex);
  };
  static auto* const layouts = new Layouts;
  absl::MutexLock lock(&layouts->mutex);
  std::vector<memory::desc>& known = layouts->by_shape[{spec.k, columns, spec.rhs_dtype}];
  const auto found = std::find(known.begin(), known.end(), desc);
  const auto number = static_cast<uint64_t>(found - known.begin()) + 1;
  if (found == known.end()) known.push_back(desc);
  return number;
}

// The compiled product of one block. To compute a block, a run executes it once.
struct Compiled {
  dnnl::matmul primitive;
  memory::desc lhs;
  memory::desc rhs;
  memory::desc out;
  memory::desc bias;  // set if has_bias: oneDNN adds the bias in the product itself
  memory::desc scratch;
  bool has_bias = false;
  // A row of F32 or of the bias's type that a post-op multiplies or adds.
  struct Row {
    memory::desc desc;
    int argument = 0;
  };
  std::optional<Row> scales;
  std::optional<Row> addend;  // the bias, if it is added after scaling
};

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
                                                      Compiled& compiled) {
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
    return Compiled::Row{row, DNNL_ARG_ATTR_MULTIPLE_POST_OP(number) | DNNL_ARG_SRC_1};
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
  return MakePrimitiveDesc(Engine(), compiled.lhs, rhs, bias, compiled.out, attr);
}

absl::StatusOr<std::shared_ptr<const Compiled>> Compile(const MatmulSpec& spec, int64_t rows,
                                                        int64_t columns, const memory::desc& rhs) {
  auto compiled = std::make_shared<Compiled>();
  SHARDMESH_ASSIGN_OR_RETURN(const dnnl::matmul::primitive_desc description,
                             Describe(spec, rows, columns, rhs, *compiled));
  compiled->rhs = description.weights_desc();
  compiled->scratch = description.scratchpad_desc();
  compiled->primitive = dnnl::matmul(description);
  return compiled;
}

// Returns whether oneDNN may use the instruction set.
bool MayUse(dnnl::cpu_isa each) {
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(each)) == static_cast<unsigned>(each);
}

// Returns whether oneDNN multiplies the type on this CPU with correct results. Version 2 has no
// product of F16. Before AVX-512, oneDNN has no product of BF16. Without integer dot products
// (VNNI), it adds pairs of I8 products in 16 bits, and these sums saturate.
bool HasProduct(Dtype dtype) {
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

// Returns a product that differs from `spec` only in its types: both operands are `computed`. If
// that is F32, so are bias and result.
MatmulSpec Converted(MatmulSpec spec, Dtype computed) {
  spec.lhs_dtype = spec.rhs_dtype = computed;
  if (computed == Dtype::kF32) spec.bias_dtype = spec.out_dtype = computed;
  return spec;
}

// Converts elements of I8 to F32 or BF16, or of floats to F32, which is exact.
void Widen(Dtype dtype, const char* from, int64_t elements, Dtype to_dtype, char* to) {
  const auto count = static_cast<size_t>(elements);
  if (dtype != Dtype::kI8) {
    LoadFloats(dtype, from, count, reinterpret_cast<float*>(to));
  } else if (to_dtype == Dtype::kBF16) {
    WeightLoopsOfCpu().i8_to_bf16(reinterpret_cast<const int8_t*>(from), count,
                                  reinterpret_cast<uint16_t*>(to));
  } else {
    WeightLoopsOfCpu().i8_to_f32(reinterpret_cast<const int8_t*>(from), count,
                                 reinterpret_cast<float*>(to));
  }
}

// Like Widen, for `rows` rows of `columns` elements each, which begin `pitch` elements apart.
// Writes rows without gaps.
void WidenRows(Dtype dtype, const char* from, int64_t rows, int64_t columns, int64_t pitch,
               Dtype to_dtype, char* to) {
  for (int64_t row = 0; row < rows; ++row) {
    Widen(dtype, from + row * pitch * ElementBytes(dtype), columns, to_dtype,
          to + row * columns * ElementBytes(to_dtype));
  }
}

// Widens `columns` columns of the spec's right-hand operand, from column `column` on. Writes them
// to `to` as a matrix without gaps.
void WidenPanel(const MatmulSpec& spec, absl::Span<const char> rhs, int64_t column, int64_t columns,
                Dtype to_dtype, char* to) {
  const int64_t bytes = ElementBytes(spec.rhs_dtype);
  if (spec.transpose_rhs) {
    Widen(spec.rhs_dtype, rhs.data() + column * spec.k * bytes, columns * spec.k, to_dtype, to);
  } else {
    WidenRows(spec.rhs_dtype, rhs.data() + column * bytes, spec.k, columns, spec.n, to_dtype, to);
  }
}

// Memory for one block's operands and result in F32.
class ConvertedBlock {
 public:
  // Each argument is the number of elements of one part; 0 for a part that is not needed.
  static absl::StatusOr<ConvertedBlock> Create(BufferPool& pool, int64_t lhs, int64_t rhs,
                                               int64_t bias, int64_t out) {
    constexpr int64_t kGranule = Buffer::kAlignment / sizeof(float);
    ConvertedBlock block;
    int64_t end = 0;
    for (const auto& [part, elements] :
         {std::pair(&block.lhs_, lhs), std::pair(&block.rhs_, rhs), std::pair(&block.bias_, bias),
          std::pair(&block.out_, out)}) {
      *part = end;
      end += (elements + kGranule - 1) / kGranule * kGranule;
    }
    SHARDMESH_ASSIGN_OR_RETURN(block.memory_,
                               pool.Allocate(end * static_cast<int64_t>(sizeof(float)),
                                             "a product's operands, converted to F32"));
    return block;
  }

  char* lhs() { return At(lhs_); }
  char* rhs() { return At(rhs_); }
  char* bias() { return At(bias_); }
  char* out() { return At(out_); }

 private:
  char* At(int64_t offset) { return memory_.data() + offset * static_cast<int64_t>(sizeof(float)); }

  Buffer memory_;
  int64_t lhs_ = 0;
  int64_t rhs_ = 0;
  int64_t bias_ = 0;
  int64_t out_ = 0;
};

// The places of a packed panel's elements along its rows or its columns. In a layout of blocks, an
// element lies at the sum of the place of its row and the place of its column.
struct PanelDimension {
  int64_t stride = 0;                // from one block to the next, in elements
  std::vector<int64_t> places = {};  // of the indices of a block, within it

  int64_t PlaceOf(int64_t index) const {
    const auto block = static_cast<int64_t>(places.size());
    return index / block * stride + places[static_cast<size_t>(index % block)];
  }
};

PanelDimension DimensionOf(const Blocking& layout, int64_t dimension) {
  // Joins the inner blocks of the dimension, the innermost first, to one block.
  PanelDimension result{.stride = layout.strides[static_cast<size_t>(dimension)], .places = {0}};
  int64_t inner_stride = 1;
  const auto extend = [&result](int64_t times, int64_t stride) {
    const std::vector<int64_t> known = result.places;
    for (int64_t i = 1; i < times; ++i) {
      for (const int64_t place : known) result.places.push_back(place + i * stride);
    }
  };
  for (size_t i = layout.inner_sizes.size(); i-- > 0;) {
    if (layout.inner_dims[i] == dimension) extend(layout.inner_sizes[i], inner_stride);
    inner_stride *= layout.inner_sizes[i];
  }
  // A copy of short blocks would spend its time on finding the next one.
  constexpr size_t kLeastBlock = 64;
  const auto times = static_cast<int64_t>(kLeastBlock / result.places.size());
  if (times > 1) {
    extend(times, result.stride);
    result.stride *= times;
  }
  return result;
}

// Copies the elements `begin` to `end` along a dimension of a panel, without gaps. `line` is the
// place of the other index.
template <size_t kBytes>
void CopyAlong(const char* line, const PanelDimension& dimension, int64_t begin, int64_t end,
               char* out) {
  const auto block_elements = static_cast<int64_t>(dimension.places.size());
  for (int64_t i = begin; i < end;) {
    const char* const block =
        line + i / block_elements * dimension.stride * static_cast<int64_t>(kBytes);
    const int64_t first = i % block_elements;
    const int64_t stop = std::min(block_elements, first + end - i);
    for (int64_t j = first; j < stop; ++j, out += kBytes) {
      const int64_t place = dimension.places[static_cast<size_t>(j)];
      std::memcpy(out, block + place * static_cast<int64_t>(kBytes), kBytes);
    }
    i += stop - first;
  }
}

// Returns a pool whose memory counts in no budget.
std::shared_ptr<BufferPool> UncountedPool() {
  static auto* const budget = new MemoryBudget(std::numeric_limits<int64_t>::max());
  return BufferPool::Create(budget, /*max_idle_bytes=*/0);
}

}  // namespace

struct PackedWeights::Rep {
  struct Panel {
    memory::desc desc;
    uint64_t layout = 0;  // LayoutNumber
    AlignedBytes data;
    // Set if the weights can be unpacked.
    PanelDimension rows = {};
    PanelDimension columns = {};
  };

  // Unpack, for elements of kBytes, in numbers of elements.
  template <size_t kBytes>
  void Unpack(int64_t begin, int64_t end, char* out) const;

  Packing packing;
  bool is_widened = false;  // converted to F32
  bool can_unpack = true;
  // Set if the weights keep their type. There are no panels of oneDNN then.
  std::unique_ptr<const WeightPanels> own_panels;
  int64_t panel_columns = 0;
  std::vector<Panel> panels;
  int64_t size_bytes = 0;
};

template <size_t kBytes>
void PackedWeights::Rep::Unpack(int64_t begin, int64_t end, char* out) const {
  // A line of the plain weights is a row, or a column if they are transposed.
  const int64_t line_elements = packing.transpose_rhs ? packing.k : packing.n;
  for (int64_t at = begin; at < end;) {
    const int64_t line = at / line_elements;
    const int64_t first = at % line_elements;
    int64_t stop = std::min(line_elements, first + end - at);
    const int64_t number = (packing.transpose_rhs ? line : first) / panel_columns;
    const Panel& panel = panels[static_cast<size_t>(number)];
    const int64_t panel_begin = number * panel_columns;
    const char* const data = panel.data.get();
    if (packing.transpose_rhs) {
      const int64_t column = panel.columns.PlaceOf(line - panel_begin);
      CopyAlong<kBytes>(data + column * static_cast<int64_t>(kBytes), panel.rows, first, stop, out);
    } else {
      stop = std::min(stop, panel_begin + panel_columns);
      const int64_t row = panel.rows.PlaceOf(line);
      CopyAlong<kBytes>(data + row * static_cast<int64_t>(kBytes), panel.columns,
                        first - panel_begin, stop - panel_begin, out);
    }
    out += (stop - first) * static_cast<int64_t>(kBytes);
    at += stop - first;
  }
}

PackedWeights::PackedWeights(std::unique_ptr<const Rep> rep) : rep_(std::move(rep)) {}
PackedWeights::~PackedWeights() = default;
const Packing& PackedWeights::packing() const { return rep_->packing; }
int64_t PackedWeights::size_bytes() const { return rep_->size_bytes; }
bool PackedWeights::can_unpack() const { return rep_->can_unpack; }

void PackedWeights::Unpack(int64_t offset_bytes, absl::Span<char> out) const {
  const int64_t element_bytes = ElementBytes(rep_->packing.rhs_dtype);
  const int64_t begin = offset_bytes / element_bytes;
  const int64_t end = begin + static_cast<int64_t>(out.size()) / element_bytes;
  if (rep_->own_panels != nullptr) return rep_->own_panels->Unpack(begin, end, out.data());
  switch (element_bytes) {
    case 1:
      return rep_->Unpack<1>(begin, end, out.data());
    case 2:
      return rep_->Unpack<2>(begin, end, out.data());
    default:
      return rep_->Unpack<4>(begin, end, out.data());
  }
}

Packing PackingOf(const MatmulSpec& spec) {
  Packing packing = {.n = spec.n,
                     .k = spec.k,
                     .lhs_dtype = spec.lhs_dtype,
                     .rhs_dtype = spec.rhs_dtype,
                     .out_dtype = spec.out_dtype,
                     .transpose_lhs = spec.transpose_lhs,
                     .transpose_rhs = spec.transpose_rhs};
  if (HasPanels(spec)) {
    packing.lhs_dtype = packing.out_dtype = Dtype::kF32;
    packing.transpose_lhs = false;
  }
  return packing;
}

// LRU cache of compiled products of blocks, by shape, types and layout.
class MatmulKernel::Cache {
 public:
  struct Key {
    MatmulSpec spec;
    int64_t rows;
    int64_t columns;
    // LayoutNumber of the right-hand side. Packings of one shape can have different layouts,
    // because spec.m influences the choice of the layout.
    uint64_t layout;
    // Set only for an unpacked right-hand side; 0 for a packed one. The pitch of a panel that was
    // converted to F32 differs from the pitch of the operand that the panel comes from.
    int64_t rhs_pitch;

    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      const MatmulSpec& s = key.spec;
      return H::combine(std::move(h), s.m, s.n, s.k, s.lhs_dtype, s.rhs_dtype, s.bias_dtype,
                        s.out_dtype, s.transpose_lhs, s.transpose_rhs, s.has_bias, s.has_scales,
                        s.scale, s.activation, key.rows, key.columns, key.layout, key.rhs_pitch);
    }
  };

  using Compilations = LruCache<Key, std::shared_ptr<const Compiled>>;

  explicit Cache(size_t capacity) : compiled_({.entries = std::max<size_t>(capacity, 1)}) {}

  // Returns the compiled product for `key`. `rhs` is the layout of its right-hand side. Compiles
  // the product if it is not in the cache.
  absl::StatusOr<std::shared_ptr<const Compiled>> Get(const Key& key, const memory::desc& rhs)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto* known = compiled_.Find(key); known != nullptr) return *known;
    }
    // Compiling takes milliseconds, so it runs without the lock. If two threads compile the same
    // product, the cache keeps the first result.
    SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<const Compiled> compiled,
                               Compile(key.spec, key.rows, key.columns, rhs));
    Compilations::Forgotten forgotten;  // evicted products, destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    ++compilations_;
    return compiled_.Add(key, std::move(compiled), &forgotten);
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return compiled_.size();
  }
  int64_t compilations() const {
    absl::MutexLock lock(&mutex_);
    return compilations_;
  }

 private:
  mutable absl::Mutex mutex_;
  Compilations compiled_ ABSL_GUARDED_BY(mutex_);
  int64_t compilations_ ABSL_GUARDED_BY(mutex_) = 0;
};

MatmulKernel::MatmulKernel(Options options)
    : threads_(options.threads > 0 ? options.threads : HostShare::OfThisProcess().Threads()),
      limits_{.flops = kBlockSeconds * options.flops_per_second * threads_,
              .bytes = kBlockSeconds * options.bytes_per_second},
      pool_(options.pool != nullptr ? options.pool : UncountedPool()),
      converts_all_(options.converts_all),
      cache_(std::make_unique<Cache>(options.cache_capacity)) {}

MatmulKernel::~MatmulKernel() = default;

size_t MatmulKernel::cached_kernels() const { return cache_->size(); }
int64_t MatmulKernel::compilations() const { return cache_->compilations(); }

absl::Status MatmulKernel::Run(const MatmulSpec& spec, const MatmulOperands& operands,
                               const AbortCheck& abort_check) {
  SHARDMESH_RETURN_IF_ERROR(CheckTypes(spec));
  SHARDMESH_RETURN_IF_ERROR(CheckSizes(spec));
  SHARDMESH_RETURN_IF_ERROR(
      CheckOperand("lhs", operands.lhs.size(), spec.lhs_dtype, spec.m * spec.k));
  SHARDMESH_RETURN_IF_ERROR(
      CheckOperand("bias", operands.bias.size(), spec.bias_dtype, spec.has_bias ? spec.n : 0));
  SHARDMESH_RETURN_IF_ERROR(
      CheckOperand("scales", operands.scales.size(), Dtype::kF32, spec.has_scales ? spec.n : 0));
  SHARDMESH_RETURN_IF_ERROR(
      CheckOperand("out", operands.out.size(), spec.out_dtype, spec.m * spec.n));
  const PackedWeights::Rep* packed =
      operands.packed == nullptr ? nullptr : operands.packed->rep_.get();
  if (packed == nullptr) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckOperand("rhs", operands.rhs.size(), spec.rhs_dtype, spec.k * spec.n));
  } else if (const Packing& have = packed->packing;
             have.k != spec.k || have.n != spec.n || have.rhs_dtype != spec.rhs_dtype ||
             (packed->own_panels != nullptr) != HasPanels(spec)) {
    // One packing in panels serves all floats.
    const std::string_view left =
        packed->own_panels != nullptr ? "floats" : DtypeName(have.lhs_dtype);
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("weights packed as ", DtypeName(have.rhs_dtype), " [", have.k, ", ", have.n,
               "] for a left operand of ", left, " are used as ", DtypeName(spec.rhs_dtype), " [",
               spec.k, ", ", spec.n, "] for one of ", DtypeName(spec.lhs_dtype)),
        {{fact::kHave, StrCat(have.k, ",", have.n)},
         {fact::kNeed, StrCat(spec.k, ",", spec.n)},
         {fact::kOp, "matmul"}});
  }
  if (spec.m == 0 || spec.n == 0) return absl::OkStatus();
  if (spec.k == 0) return RunWithoutSums(spec, operands);
  if (packed != nullptr && packed->own_panels != nullptr &&
      spec.m <= WeightPanels::kMostStreamedRows) {
    return RunStreamed(spec, operands, abort_check);
  }
  return RunBlocks(spec, operands, abort_check);
}

bool MatmulKernel::IsWidened(Dtype dtype) const {
  return dtype != Dtype::kF32 && (converts_all_ || !HasProduct(dtype));
}

Dtype MatmulKernel::ComputedType(const MatmulSpec& spec) const {
  return IsWidened(spec.lhs_dtype) ? Dtype::kF32 : spec.lhs_dtype;
}

bool MatmulKernel::KeepsBitsOfRows(Dtype dtype) const {
  if (dtype == Dtype::kF16) return false;
#if DNNL_VERSION_MAJOR >= 3
  // Version 3 has other kernels, and other rules for threads.
  static_cast<void>(dtype);
  return false;
#else
  // From this number on, the kernel for AMX considers to split k (nthr / 8 > 1).
  constexpr int kThreadsThatSplitK = 16;
  if (IsWidened(dtype)) dtype = Dtype::kF32;  // all products are of F32 then
  switch (dtype) {
    case Dtype::kF32:
      return MayUse(dnnl::cpu_isa::avx512_core);
    case Dtype::kBF16:
      return MayUse(dnnl::cpu_isa::avx512_core_bf16) &&
             (!MayUse(dnnl::cpu_isa::avx512_core_amx) || threads_ < kThreadsThatSplitK);
    default:
      return false;  // no program multiplies other types
  }
#endif
}

bool MatmulKernel::KeepsBitsOfParts(Dtype dtype) const {
  const bool has_amx =
      dtype == Dtype::kBF16 && !IsWidened(dtype) && MayUse(dnnl::cpu_isa::avx512_core_amx);
  return KeepsBitsOfRows(dtype) && !has_amx;
}

BlockLimits MatmulKernel::LimitsFor(bool is_widened) const {
  if (!is_widened) return limits_;
  return {.flops = limits_.flops, .bytes = std::min(limits_.bytes, kWideBlockBytes)};
}

int64_t MatmulKernel::LikelyPackedBytes(const MatmulSpec& spec) const {
  if (HasPanels(spec)) return WeightPanels::SizeBytes(spec.rhs_dtype, spec.k, spec.n);
  return spec.k * spec.n * ElementBytes(IsWidened(spec.rhs_dtype) ? Dtype::kF32 : spec.rhs_dtype);
}

absl::Status MatmulKernel::RunStreamed(const MatmulSpec& spec, const MatmulOperands& operands,
                                       const AbortCheck& abort_check) const {
  return CatchErrors(spec, [&]() -> absl::Status {
    RunScratch scratch;
    auto* lhs = reinterpret_cast<const float*>(operands.lhs.data());
    if (spec.lhs_dtype != Dtype::kF32 || (spec.transpose_lhs && spec.m > 1)) {
      const auto count = static_cast<size_t>(spec.m * spec.k);
      auto* const floats = reinterpret_cast<float*>(scratch.Get(2 * count * sizeof(float)));
      LoadFloats(spec.lhs_dtype, operands.lhs.data(), count, floats);
      lhs = floats;
      if (spec.transpose_lhs) {
        float* const rows = floats + count;
        for (int64_t row = 0; row < spec.m; ++row) {
          for (int64_t i = 0; i < spec.k; ++i) rows[row * spec.k + i] = floats[i * spec.m + row];
        }
        lhs = rows;
      }
    }
    return operands.packed->rep_->own_panels->Multiply(
        {.rows = spec.m,
         .lhs = lhs,
         .scale = spec.scale,
         .scales =
             spec.has_scales ? reinterpret_cast<const float*>(operands.scales.data()) : nullptr,
         .bias_dtype = spec.bias_dtype,
         .bias = spec.has_bias ? operands.bias.data() : nullptr,
         .activation = spec.activation,
         .out_dtype = spec.out_dtype,
         .out = operands.out.data()},
        threads_, PanelColumns(spec, limits_), abort_check);
  });
}

absl::Status MatmulKernel::RunBlocks(const MatmulSpec& spec, const MatmulOperands& operands,
                                     const AbortCheck& abort_check) {
  const PackedWeights::Rep* packed =
      operands.packed == nullptr ? nullptr : operands.packed->rep_.get();
  const WeightPanels* const own_panels = packed == nullptr ? nullptr : packed->own_panels.get();
  // Weights in oneDNN's layout were converted, or not, when they were packed.
  const Dtype computed = packed == nullptr || own_panels != nullptr ? ComputedType(spec)
                         : packed->is_widened                       ? Dtype::kF32
                                                                    : spec.lhs_dtype;
  return CatchErrors(spec, [&]() -> absl::Status {
    const ScopedThreads threads(threads_);
    dnnl::stream stream(Engine());
    MatmulSpec whole = Converted(spec, computed);
    if (own_panels != nullptr) whole.transpose_rhs = false;
    // The parts that differ in type from the spec's.
    const bool has_wide_lhs = whole.lhs_dtype != spec.lhs_dtype;
    const bool has_wide_rhs =
        own_panels != nullptr || (packed == nullptr && whole.rhs_dtype != spec.rhs_dtype);
    const bool has_wide_bias = spec.has_bias && whole.bias_dtype != spec.bias_dtype;
    BlockLimits limits = LimitsFor(has_wide_lhs || has_wide_rhs);
    int64_t panel_columns = packed == nullptr ? PanelColumns(whole, limits) : packed->panel_columns;
    if (own_panels != nullptr) {
      // The product reads the converted weights from a near cache.
      constexpr double kConvertedBytes = 1 << 20;
      panel_columns = PanelColumns(whole, {.flops = limits.flops, .bytes = kConvertedBytes});
    }
    const int64_t widest = std::min(panel_columns, spec.n);
    // oneDNN writes to `out`, unless the result has another type. Where post-ops have rows, only
    // its reference code writes the columns of a wider matrix.
    const bool has_rows = spec.has_scales || (spec.has_bias && spec.scale != 1);
    const bool has_wide_out = whole.out_dtype != spec.out_dtype || (has_rows && widest < spec.n);
    if (has_wide_out) {
      whole.out_dtype = Dtype::kF32;
      limits = LimitsFor(true);
    }
    const int64_t block_rows = BlockRows(whole, widest, limits);
    RunScratch scratch;
    std::optional<ConvertedBlock> wide;
    if (has_wide_lhs || has_wide_rhs || has_wide_bias || has_wide_out) {
      const int64_t rhs_floats =
          (spec.k * widest * ElementBytes(computed) + ElementBytes(Dtype::kF32) - 1) /
          ElementBytes(Dtype::kF32);
      SHARDMESH_ASSIGN_OR_RETURN(
          wide, ConvertedBlock::Create(*pool_, has_wide_lhs ? block_rows * spec.k : 0,
                                       has_wide_rhs ? rhs_floats : 0, has_wide_bias ? widest : 0,
                                       has_wide_out ? block_rows * widest : 0));
    }

    for (int64_t column = 0; column < spec.n; column += panel_columns) {
      if (abort_check && column > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
      const int64_t columns = std::min(panel_columns, spec.n - column);
      const auto panel = static_cast<size_t>(column / panel_columns);
      const int64_t rhs_pitch = whole.transpose_rhs ? spec.k : has_wide_rhs ? columns : spec.n;
      const bool is_plain = packed == nullptr || own_panels != nullptr;  // as oneDNN reads it
      const memory::desc rhs_desc =
          is_plain ? MatrixDesc(whole.rhs_dtype, spec.k, columns, rhs_pitch, whole.transpose_rhs)
                   : packed->panels[panel].desc;
      const uint64_t layout = is_plain ? 0 : packed->panels[panel].layout;
      const char* rhs = nullptr;
      if (own_panels != nullptr) {
        own_panels->Widen(column, columns, computed, threads_, wide->rhs());
        rhs = wide->rhs();
      } else if (packed != nullptr) {
        rhs = packed->panels[panel].data.get();
      } else if (has_wide_rhs) {
        WidenPanel(spec, operands.rhs, column, columns, computed, wide->rhs());
        rhs = wide->rhs();
      } else {
        rhs = operands.rhs.data() +
              column * (spec.transpose_rhs ? spec.k : 1) * ElementBytes(spec.rhs_dtype);
      }
      const char* bias =
          operands.bias.data() + (spec.has_bias ? column * ElementBytes(spec.bias_dtype) : 0);
      if (has_wide_bias) {
        Widen(spec.bias_dtype, bias, columns, Dtype::kF32, wide->bias());
        bias = wide->bias();
      }
      const char* const scales =
          operands.scales.data() + (spec.has_scales ? column * ElementBytes(Dtype::kF32) : 0);
      for (int64_t row = 0; row < spec.m; row += block_rows) {
        if (abort_check && row > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
        const int64_t rows = std::min(block_rows, spec.m - row);
        const char* lhs = operands.lhs.data() +
                          row * (spec.transpose_lhs ? 1 : spec.k) * ElementBytes(spec.lhs_dtype);
        char* out = operands.out.data() + (row * spec.n + column) * ElementBytes(spec.out_dtype);
        char* const out_place = out;
        MatmulSpec block = whole;
        if (has_wide_lhs) {
          // The converted lhs has only the block's rows. If it is transposed, the number of rows is
          // its pitch.
          block.m = rows;
          if (spec.transpose_lhs) {
            WidenRows(spec.lhs_dtype, lhs, spec.k, rows, spec.m, computed, wide->lhs());
          } else {
            Widen(spec.lhs_dtype, lhs, rows * spec.k, computed, wide->lhs());
          }
          lhs = wide->lhs();
        }
        if (has_wide_out) {
          block.n = columns;
          out = wide->out();
        }
        SHARDMESH_ASSIGN_OR_RETURN(
            const std::shared_ptr<const Compiled> compiled,
            cache_->Get({block, rows, columns, layout, is_plain ? rhs_pitch : 0}, rhs_desc));

        // oneDNN takes no const memory, but does not write to operands.
        const auto bind = [](const memory::desc& desc, const char* data) {
          return memory(desc, Engine(), const_cast<char*>(data));
        };
        std::unordered_map<int, memory> arguments = {
            {DNNL_ARG_SRC, bind(compiled->lhs, lhs)},
            {DNNL_ARG_WEIGHTS, bind(compiled->rhs, rhs)},
            {DNNL_ARG_DST, bind(compiled->out, out)},
            {DNNL_ARG_SCRATCHPAD,
             bind(compiled->scratch, scratch.Get(compiled->scratch.get_size()))}};
        if (compiled->has_bias) arguments.emplace(DNNL_ARG_BIAS, bind(compiled->bias, bias));
        if (const auto& factor = compiled->scales; factor.has_value()) {
          arguments.emplace(factor->argument, bind(factor->desc, scales));
        }
        if (const auto& addend = compiled->addend; addend.has_value()) {
          arguments.emplace(addend->argument, bind(addend->desc, bias));
        }
        compiled->primitive.execute(stream, arguments);
        stream.wait();
        for (int64_t i = 0; has_wide_out && i < rows; ++i) {
          StoreFloats(spec.out_dtype, reinterpret_cast<const float*>(wide->out()) + i * columns,
                      static_cast<size_t>(columns),
                      out_place + i * spec.n * ElementBytes(spec.out_dtype));
        }
      }
    }
    return absl::OkStatus();
  });
}

absl::Status MatmulKernel::RunWithoutSums(const MatmulSpec& spec, const MatmulOperands& operands) {
  return CatchErrors(spec, [&]() -> absl::Status {
    EpilogueSpec row;
    row.rows = 1;
    row.columns = spec.n;
    row.bias_dtype = spec.bias_dtype;
    row.out_dtype = spec.out_dtype;
    row.has_bias = spec.has_bias;
    row.activation = spec.activation;
    const std::vector<char> zeros(static_cast<size_t>(spec.n) * sizeof(float));
    const size_t row_bytes = operands.out.size() / static_cast<size_t>(spec.m);
    for (size_t begin = 0; begin < operands.out.size(); begin += row_bytes) {
      SHARDMESH_RETURN_IF_ERROR(
          ApplyEpilogue(row, zeros, operands.bias, operands.out.subspan(begin, row_bytes)));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::shared_ptr<const PackedWeights>> MatmulKernel::Pack(
    const MatmulSpec& spec, absl::Span<const char> rhs, const AbortCheck& abort_check) {
  SHARDMESH_RETURN_IF_ERROR(CheckTypes(spec));
  SHARDMESH_RETURN_IF_ERROR(CheckSizes(spec));
  SHARDMESH_RETURN_IF_ERROR(CheckOperand("rhs", rhs.size(), spec.rhs_dtype, spec.k * spec.n));
  using Result = absl::StatusOr<std::shared_ptr<const PackedWeights>>;
  return CatchErrors(spec, [&]() -> Result {
    auto rep = std::make_unique<PackedWeights::Rep>();
    rep->packing = PackingOf(spec);
    if (HasPanels(spec)) {
      SHARDMESH_ASSIGN_OR_RETURN(
          rep->own_panels,
          WeightPanels::Pack(spec.rhs_dtype, spec.k, spec.n, spec.transpose_rhs, rhs, abort_check));
      rep->size_bytes = rep->own_panels->size_bytes();
      return std::shared_ptr<const PackedWeights>(new PackedWeights(std::move(rep)));
    }
    rep->is_widened = IsWidened(spec.rhs_dtype);
    rep->can_unpack = !rep->is_widened;
    const MatmulSpec whole = rep->is_widened ? Converted(spec, Dtype::kF32) : spec;
    rep->panel_columns = PanelColumns(whole, LimitsFor(rep->is_widened));
    if (spec.k > 0) {
      std::optional<ConvertedBlock> wide;
      if (rep->is_widened) {
        SHARDMESH_ASSIGN_OR_RETURN(
            wide,
            ConvertedBlock::Create(*pool_, 0, spec.k * std::min(rep->panel_columns, spec.n), 0, 0));
      }
      const ScopedThreads threads(threads_);
      dnnl::stream stream(Engine());
      for (int64_t column = 0; column < spec.n; column += rep->panel_columns) {
        if (abort_check && column > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
        const int64_t columns = std::min(rep->panel_columns, spec.n - column);
        const memory::desc any({spec.k, columns}, TypeOf(whole.rhs_dtype), memory::format_tag::any);
        Compiled unused;
        SHARDMESH_ASSIGN_OR_RETURN(
            const dnnl::matmul::primitive_desc description,
            Describe(whole, std::max<int64_t>(spec.m, 1), columns, any, unused));
        PackedWeights::Rep::Panel panel;
        panel.desc = description.weights_desc();
        panel.layout = LayoutNumber(whole, columns, panel.desc);
        const std::optional<Blocking> blocking = BlockingOf(panel.desc);
        rep->can_unpack &= blocking.has_value();
        if (rep->can_unpack) {
          panel.rows = DimensionOf(*blocking, 0);
          panel.columns = DimensionOf(*blocking, 1);
        }
        panel.data = AllocateAligned(panel.desc.get_size());
        const memory::desc plain = MatrixDesc(whole.rhs_dtype, spec.k, columns,
                                              spec.transpose_rhs ? spec.k
                                              : rep->is_widened  ? columns
                                                                 : spec.n,
                                              spec.transpose_rhs);
        const char* from =
            rhs.data() + column * (spec.transpose_rhs ? spec.k : 1) * ElementBytes(spec.rhs_dtype);
        if (rep->is_widened) {
          WidenPanel(spec, rhs, column, columns, Dtype::kF32, wide->rhs());
          from = wide->rhs();
        }
        memory source(plain, Engine(), const_cast<char*>(from));
        memory target(panel.desc, Engine(), panel.data.get());
        dnnl::reorder(source, target).execute(stream, source, target);
        stream.wait();
        rep->size_bytes += static_cast<int64_t>(panel.desc.get_size());
        rep->panels.push_back(std::move(panel));
      }
    }
    return std::shared_ptr<const PackedWeights>(new PackedWeights(std::move(rep)));
  });
}

}  // namespace shardmesh::worker
