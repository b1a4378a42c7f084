// MatmulKernel, implemented with oneDNN (dnnl_matmul.h) and with loops of our own.
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
#include "worker/kernel/dnnl_matmul.h"
#include "worker/kernel/epilogue.h"
#include "worker/kernel/float_block.h"
#include "worker/kernel/host_share.h"
#include "worker/kernel/streamed_product.h"
#include "worker/kernel/weight_loops.h"
#include "worker/kernel/weight_panels.h"

namespace shardmesh::worker {
namespace {

using dnnl::memory;

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

// Returns lhs as F32 without gaps, not transposed. Where it is not so already, it is in `scratch`.
const float* FloatsOf(const MatmulSpec& spec, const char* lhs, RunScratch& scratch) {
  const bool turns = spec.transpose_lhs && spec.m > 1;
  if (spec.lhs_dtype == Dtype::kF32 && !turns) return reinterpret_cast<const float*>(lhs);
  const auto count = static_cast<size_t>(spec.m * spec.k);
  auto* const floats = reinterpret_cast<float*>(scratch.Get(2 * count * sizeof(float)));
  LoadFloats(spec.lhs_dtype, lhs, count, floats);
  if (!turns) return floats;
  float* const rows = floats + count;
  for (int64_t row = 0; row < spec.m; ++row) {
    for (int64_t i = 0; i < spec.k; ++i) rows[row * spec.k + i] = floats[i * spec.m + row];
  }
  return rows;
}

// Returns a lhs of BF16 as pairs (StreamedProduct), in `scratch`.
const uint32_t* PairsOf(const MatmulSpec& spec, const char* lhs, RunScratch& scratch) {
  const int64_t pitch = (spec.k + 1) / 2 * 2;
  const auto size_bytes = static_cast<size_t>(spec.m * pitch) * sizeof(uint16_t);
  char* const pairs = scratch.Get(size_bytes);
  std::memset(pairs, 0, size_bytes);
  for (int64_t row = 0; row < spec.m; ++row) {
    char* const to = pairs + row * pitch * 2;
    if (!spec.transpose_lhs) {
      std::memcpy(to, lhs + row * spec.k * 2, static_cast<size_t>(spec.k) * 2);
      continue;
    }
    for (int64_t i = 0; i < spec.k; ++i) std::memcpy(to + i * 2, lhs + (i * spec.m + row) * 2, 2);
  }
  return reinterpret_cast<const uint32_t*>(pairs);
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

PanelDimension DimensionOf(const BlockedLayout& layout, int64_t dimension) {
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
    std::optional<PanelsView> view = std::nullopt;  // for products of few rows
  };

  // Returns whether MultiplyPanels computes a product, or a part of a product of `rows`. Where it
  // could read a layout of oneDNN, activations and scales stay oneDNN's.
  bool IsStreamed(const MatmulSpec& spec, int64_t rows) const {
    if (rows > kMostStreamedRows) return false;
    if (own_panels != nullptr) return true;
    return spec.activation == Activation::kNone && spec.scale == 1 && !is_widened &&
           !panels.empty() && std::all_of(panels.begin(), panels.end(), [](const Panel& panel) {
             return panel.view.has_value();
           });
  }

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

  using Compilations = LruCache<Key, std::shared_ptr<const CompiledProduct>>;

  explicit Cache(size_t capacity) : compiled_({.entries = std::max<size_t>(capacity, 1)}) {}

  // Returns the compiled product for `key`. `rhs` is the layout of its right-hand side. Compiles
  // the product if it is not in the cache.
  absl::StatusOr<std::shared_ptr<const CompiledProduct>> Get(const Key& key,
                                                             const memory::desc& rhs)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto* known = compiled_.Find(key); known != nullptr) return *known;
    }
    // Compiling takes milliseconds, so it runs without the lock. If two threads compile the same
    // product, the cache keeps the first result.
    SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledProduct> compiled,
                               CompileProduct(key.spec, key.rows, key.columns, rhs));
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
  if (packed != nullptr && packed->IsStreamed(spec, std::max(spec.m, operands.rows_of_whole))) {
    return RunStreamed(spec, operands, abort_check);
  }
  return RunBlocks(spec, operands, abort_check);
}

bool MatmulKernel::IsWidened(Dtype dtype) const {
  return dtype != Dtype::kF32 && (converts_all_ || !DnnlMultiplies(dtype));
}

Dtype MatmulKernel::ComputedType(const MatmulSpec& spec) const {
  return IsWidened(spec.lhs_dtype) ? Dtype::kF32 : spec.lhs_dtype;
}

bool MatmulKernel::KeepsBitsOfRows(Dtype dtype) const {
  if (dtype == Dtype::kF16) return false;
  // Products of types that the kernel converts are of F32.
  return DnnlKeepsBitsOfRows(IsWidened(dtype) ? Dtype::kF32 : dtype, threads_);
}

bool MatmulKernel::KeepsBitsOfParts(Dtype dtype) const {
  return KeepsBitsOfRows(dtype) && DnnlKeepsBitsOfParts(IsWidened(dtype) ? Dtype::kF32 : dtype);
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
    const PackedWeights::Rep& packed = *operands.packed->rep_;
    RunScratch scratch;
    StreamedProduct product = {.rows = spec.m,
                               .scale = spec.scale,
                               .bias_dtype = spec.bias_dtype,
                               .activation = spec.activation,
                               .out_dtype = spec.out_dtype,
                               .out_pitch = spec.n};
    const bool converts_to_pairs = packed.own_panels != nullptr && spec.lhs_dtype == Dtype::kBF16 &&
                                   spec.m > kMostRowsOfOnePass && MultipliesPairs();
    if (converts_to_pairs || spec.rhs_dtype == Dtype::kBF16) {
      product.pairs = PairsOf(spec, operands.lhs.data(), scratch);
    } else {
      product.floats = FloatsOf(spec, operands.lhs.data(), scratch);
    }
    const auto multiply = [&](const PanelsView& view, int64_t first) {
      if (spec.has_scales) {
        product.scales = reinterpret_cast<const float*>(operands.scales.data()) + first;
      }
      if (spec.has_bias) {
        product.bias = operands.bias.data() + first * ElementBytes(spec.bias_dtype);
      }
      product.out = operands.out.data() + first * ElementBytes(spec.out_dtype);
      return MultiplyPanels(view, product, threads_, PanelColumns(spec, limits_), abort_check);
    };
    if (packed.own_panels != nullptr) return multiply(packed.own_panels->view(), 0);
    for (int64_t first = 0; first < spec.n; first += packed.panel_columns) {
      if (abort_check && first > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
      SHARDMESH_RETURN_IF_ERROR(
          multiply(*packed.panels[static_cast<size_t>(first / packed.panel_columns)].view, first));
    }
    return absl::OkStatus();
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
    dnnl::stream stream(DnnlEngine());
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
            const std::shared_ptr<const CompiledProduct> compiled,
            cache_->Get({block, rows, columns, layout, is_plain ? rhs_pitch : 0}, rhs_desc));

        // oneDNN takes no const memory, but does not write to operands.
        const auto bind = [](const memory::desc& desc, const char* data) {
          return memory(desc, DnnlEngine(), const_cast<char*>(data));
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
      dnnl::stream stream(DnnlEngine());
      for (int64_t column = 0; column < spec.n; column += rep->panel_columns) {
        if (abort_check && column > 0) SHARDMESH_RETURN_IF_ERROR(abort_check());
        const int64_t columns = std::min(rep->panel_columns, spec.n - column);
        PackedWeights::Rep::Panel panel;
        SHARDMESH_ASSIGN_OR_RETURN(panel.desc,
                                   PreferredLayout(whole, std::max<int64_t>(spec.m, 1), columns));
        panel.layout = LayoutNumber(whole, columns, panel.desc);
        const std::optional<BlockedLayout> blocking = BlockedLayoutOf(panel.desc);
        rep->can_unpack &= blocking.has_value();
        if (rep->can_unpack) {
          panel.rows = DimensionOf(*blocking, 0);
          panel.columns = DimensionOf(*blocking, 1);
        }
        panel.data = AllocateAligned(panel.desc.get_size());
        if (blocking.has_value() && spec.lhs_dtype == spec.rhs_dtype) {
          panel.view = PanelsOf(whole.rhs_dtype, spec.k, columns, *blocking, panel.data.get());
        }
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
        memory source(plain, DnnlEngine(), const_cast<char*>(from));
        memory target(panel.desc, DnnlEngine(), panel.data.get());
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
