// Times products, loops over elements and attention on matrices of zeros and of small numbers.
#include "worker/tensor_op/kernel_probe.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "program/tensor_op.h"
#include "worker/kernel/kernel_speed.h"
#include "worker/tensor_op/tensor_ops.h"

namespace shardmesh::worker {
namespace {

constexpr double kMostSeconds = 0.15;
// Three matrices of F32 that are larger than the second cache of a core. Together they are larger
// than the part of the last cache that most hosts have for each core.
constexpr size_t kMatrixBytes = size_t{16} << 20;
constexpr int64_t kMatrixRows = 4096;
constexpr int64_t kMatrixColumns = kMatrixBytes / sizeof(float) / kMatrixRows;

// The measurements of one worker.
class KernelProbe {
 public:
  KernelProbe(MatmulKernel* kernel, int sharing)
      : kernel_(*kernel), sharing_(std::max(sharing, 1)), memory_(3 * kMatrixBytes) {}

  MeasuredKernels Run() {
    MeasurePlainProducts();
    Set(KernelCost::kReadByte, [this] {
      return MeasureReadByte(memory_, kernel_.threads() * sharing_) / kernel_.threads();
    });
    MeasureElements();
    // These take longest: a host whose loops are slow has no time for them.
    SetProduct(ProductKind::kI8Bf16, Dtype::kBF16, Dtype::kI8);
    SetProduct(ProductKind::kI8, Dtype::kF32, Dtype::kI8);
    SetProduct(ProductKind::kF16, Dtype::kF16, Dtype::kF16);
    return measured_;
  }

 private:
  void MeasurePlainProducts() {
    SetProduct(ProductKind::kF32, Dtype::kF32, Dtype::kF32);
    const double many = measured_.costs.Of(ProductKind::kF32).back();
    if (many > 0) {
      measured_.f32_flops_per_second = 2 * static_cast<double>(kProductRows.back()) / many;
    }
    SetProduct(ProductKind::kBf16, Dtype::kBF16, Dtype::kBF16);
    Set(KernelCost::kPlainByte, [this] { return MeasurePlainByte(&kernel_); });
    Set(KernelCost::kProductStart, [this] { return MeasureProductStart(&kernel_); });
  }

  // Ops on whole matrices in memory, and on some rows in a cache.
  void MeasureElements() {
    const Shape matrix = {kMatrixRows, kMatrixColumns};
    Set(KernelCost::kStreamedByte, [&] {
      const double seconds = SecondsOf(MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}},
                                       {matrix, matrix}, matrix) /
                             (3 * kMatrixBytes);
      // No other worker reads at this time.
      return std::max(seconds, measured_.costs.Of(KernelCost::kReadByte));
    });
    constexpr int64_t kSide = 1024;
    Set(KernelCost::kTransposedElement, [&] {
      return SecondsOf(TransposeOp{.input = 0, .permutation = {1, 0}}, {{kSide, kSide}},
                       {kSide, kSide}) /
             (kSide * kSide);
    });
    const Shape rows = {std::min<int64_t>(32 * kernel_.threads(), kMatrixRows), kSide};
    const auto elements = static_cast<double>(rows[0] * kSide);
    const auto seconds_of_element = [&](const TensorOp& op, const Shape& result,
                                        Dtype dtype = Dtype::kF32) {
      return SecondsOf(op, {rows}, result, dtype) / elements;
    };
    const auto function = [&](MapFunction which) {
      return seconds_of_element(MapOp{.function = which, .inputs = {0}}, rows);
    };
    Set(KernelCost::kFunctionElement, [&] { return function(MapFunction::kExp); });
    Set(KernelCost::kGeluElement, [&] { return function(MapFunction::kGelu); });
    const NormOp norm = {.kind = NormKind::kLayer, .input = 0};
    Set(KernelCost::kNormElement, [&] { return seconds_of_element(norm, rows); });
    Set(KernelCost::kHalfElement, [&] {
      const double seconds = seconds_of_element(norm, rows, Dtype::kBF16);
      return std::max(seconds - measured_.costs.Of(KernelCost::kNormElement), 0.0);
    });
    Set(KernelCost::kSoftmaxElement,
        [&] { return seconds_of_element(SoftmaxOp{.input = 0}, rows); });
    Set(KernelCost::kReducedElement, [&] {
      const double of_columns =
          seconds_of_element(ReduceOp{.input = 0, .dimensions = {0}}, {rows[1]});
      const double of_rows = seconds_of_element(ReduceOp{.input = 0, .dimensions = {1}}, {rows[0]});
      return std::max(of_columns, of_rows);
    });
    MeasureAttention();
  }

  // One sequence with a head for each thread: each takes a part of its own.
  void MeasureAttention() {
    constexpr int64_t kQueries = 128;
    constexpr int64_t kFeatures = 64;
    const Shape heads = {1, kQueries, std::max(kernel_.threads(), 1), kFeatures};
    const double flops = 4.0 * kQueries * kQueries * kFeatures * static_cast<double>(heads[2]);
    Set(KernelCost::kAttentionFlop, [&] {
      return SecondsOf(AttentionOp{.query = 0, .keys = 1, .values = 2, .scale = 0.125F},
                       {heads, heads, heads}, heads) /
             flops;
    });
  }

  void SetProduct(ProductKind kind, Dtype lhs, Dtype rhs) {
    if (IsLate()) return;
    // Weights that the kernel converts do not take their usual time if they are small.
    const bool is_converted = lhs == Dtype::kF16 || rhs == Dtype::kI8;
    const std::vector<double> seconds =
        MeasureProducts(&kernel_, lhs, rhs, is_converted ? 1024 : 512, kProductRows);
    ProductCosts& costs = measured_.costs[kind];
    std::copy(seconds.begin(), seconds.end(), costs.begin());
    // More rows take less time only where other work disturbed the measurement of fewer.
    for (size_t i = costs.size() - 1; i > 0; --i) costs[i - 1] = std::min(costs[i - 1], costs[i]);
  }

  template <typename Measure>
  void Set(KernelCost cost, Measure measure) {
    if (!IsLate()) measured_.costs[cost] = measure();
  }

  bool IsLate() const { return ThreadSeconds() - start_ > kMostSeconds; }

  // Returns the time of an op whose inputs are the first matrices; 0 if it fails. The output is in
  // the last matrix. All have the type `dtype`.
  double SecondsOf(const TensorOp& op, const std::vector<Shape>& inputs, const Shape& result,
                   Dtype dtype = Dtype::kF32) {
    std::vector<OpInput> bound;
    for (const Shape& shape : inputs) {
      bound.push_back({.dtype = dtype,
                       .shape = shape,
                       .tile = Tile::Whole(shape),
                       .bytes = BytesAt(bound.size(), shape, dtype)});
    }
    const size_t last = std::max<size_t>(bound.size(), 2);
    const OpOutput output = {.dtype = dtype,
                             .shape = result,
                             .tile = Tile::Whole(result),
                             .bytes = BytesAt(last, result, dtype)};
    OpContext context;
    context.threads = kernel_.threads();
    return BestSeconds([&] { return RunTensorOp(op, bound, output, context); });
  }

  // Returns memory for a tensor: number `place` of the three matrices, or the end of the last one
  // for a small fourth tensor.
  absl::Span<char> BytesAt(size_t place, const Shape& shape, Dtype dtype) {
    auto size = static_cast<size_t>(BitsPerElement(dtype) / 8);
    for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
    const size_t begin = place < 3 ? place * kMatrixBytes : memory_.size() - size;
    return absl::MakeSpan(memory_).subspan(begin, size);
  }

  MatmulKernel& kernel_;
  const int sharing_;
  const double start_ = ThreadSeconds();
  std::vector<char> memory_;
  MeasuredKernels measured_;
};

}  // namespace

MeasuredKernels MeasureKernels(MatmulKernel* kernel, int sharing) {
  struct Known {
    absl::Mutex mutex;
    // By the numbers of threads and of workers.
    std::map<std::pair<int, int>, MeasuredKernels> measured ABSL_GUARDED_BY(mutex);
  };
  static Known* const known = new Known();
  absl::MutexLock lock(&known->mutex);
  const std::pair<int, int> key(kernel->threads(), sharing);
  const auto found = known->measured.find(key);
  if (found != known->measured.end()) return found->second;
  return known->measured.emplace(key, KernelProbe(kernel, sharing).Run()).first->second;
}

}  // namespace shardmesh::worker
