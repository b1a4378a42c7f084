// Times products of matrices, and loops that read memory.
#include "worker/kernel/kernel_speed.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <numeric>
#include <vector>

#include "absl/base/attributes.h"
#include "process/thread_pool.h"

namespace shardmesh::worker {
namespace {

constexpr int kMaxRuns = 8;

using TestBytes = std::vector<char>;

// Returns elements that are ordinary numbers in each type: all 16-bit words are 0x3F00, which is
// 0.5 in BF16.
TestBytes ElementsOf(Dtype dtype, int64_t count) {
  TestBytes bytes(static_cast<size_t>(count * BitsPerElement(dtype) / 8));
  for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = 0x3F;
  return bytes;
}

// Returns the seconds of a product of `rows` rows by square weights, or by `packed` if this is not
// null; 0 if it fails.
double ProductSeconds(MatmulKernel* kernel, const MatmulSpec& spec, absl::Span<const char> rhs,
                      const PackedWeights* packed) {
  const TestBytes lhs = ElementsOf(spec.lhs_dtype, spec.m * spec.k);
  TestBytes out(static_cast<size_t>(spec.m * spec.n * BitsPerElement(spec.out_dtype) / 8));
  const MatmulOperands operands{
      .lhs = lhs, .rhs = rhs, .bias = {}, .out = absl::MakeSpan(out), .packed = packed};
  // If one of several threads has no core for a while, the others compute until it has. On a busy
  // host few runs are without such waits. Runs that convert weights take too long for many of them.
  const bool is_plain = spec.rhs_dtype == Dtype::kF32 || spec.rhs_dtype == Dtype::kBF16;
  const auto run = [&] { return kernel->Run(spec, operands); };
  return kernel->threads() > 1 && is_plain ? BestSeconds(run, /*enough_seconds=*/0.01)
                                           : BestSeconds(run);
}

MatmulSpec SquareSpec(Dtype lhs, Dtype rhs, int64_t rows, int64_t side) {
  return {.m = rows,
          .n = side,
          .k = side,
          .lhs_dtype = lhs,
          .rhs_dtype = rhs,
          .bias_dtype = lhs,
          .out_dtype = lhs};
}

// Reads all bytes and returns their sum as words. Sanitizers would check each read.
ABSL_ATTRIBUTE_NOINLINE ABSL_ATTRIBUTE_NO_SANITIZE_ADDRESS ABSL_ATTRIBUTE_NO_SANITIZE_THREAD
    ABSL_ATTRIBUTE_NO_SANITIZE_UNDEFINED uint64_t
    SumOfWords(const uint64_t* words, size_t count) {
  // Several sums, so that no addition waits for the one before it.
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t each : sums) sum += each;
  return sum;
}

}  // namespace

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double BestSeconds(absl::FunctionRef<absl::Status()> run, double enough_seconds) {
  if (!run().ok()) return 0;
  double best = 0;
  double total = 0;
  for (int i = 0; i < kMaxRuns && total < enough_seconds; ++i) {
    const double start = ThreadSeconds();
    if (!run().ok()) return 0;
    const double seconds = ThreadSeconds() - start;
    best = i == 0 ? seconds : std::min(best, seconds);
    total += seconds;
  }
  return best;
}

std::vector<double> MeasureProducts(MatmulKernel* kernel, Dtype lhs, Dtype rhs, int64_t side,
                                    absl::Span<const int64_t> rows) {
  if (rows.empty()) return {};
  const TestBytes weights = ElementsOf(rhs, side * side);
  const auto packed = kernel->Pack(SquareSpec(lhs, rhs, rows.back(), side), weights);
  if (!packed.ok()) return {};
  std::vector<double> seconds;
  for (const int64_t number : rows) {
    const MatmulSpec spec = SquareSpec(lhs, rhs, number, side);
    seconds.push_back(ProductSeconds(kernel, spec, weights, packed->get()) /
                      static_cast<double>(side * side));
    if (seconds.back() <= 0) return {};
  }
  return seconds;
}

double MeasurePlainByte(MatmulKernel* kernel) {
  const MatmulSpec spec = SquareSpec(Dtype::kF32, Dtype::kF32, /*rows=*/16, /*side=*/512);
  const TestBytes rhs = ElementsOf(Dtype::kF32, spec.k * spec.n);
  const auto weights = kernel->Pack(spec, rhs);
  if (!weights.ok()) return 0;
  const double packed = ProductSeconds(kernel, spec, rhs, weights->get());
  const double plain = ProductSeconds(kernel, spec, rhs, nullptr);
  if (packed <= 0 || plain <= packed) return 0;
  return (plain - packed) / static_cast<double>(rhs.size());
}

double MeasureProductStart(MatmulKernel* kernel) {
  const MatmulSpec spec = SquareSpec(Dtype::kF32, Dtype::kF32, /*rows=*/16, /*side=*/16);
  return ProductSeconds(kernel, spec, ElementsOf(Dtype::kF32, spec.k * spec.n), nullptr);
}

double MeasureReadByte(absl::Span<const char> memory, int readers) {
  constexpr int kPasses = 2;
  const auto parts = static_cast<size_t>(std::max(readers, 1));
  const size_t words = memory.size() / sizeof(uint64_t) / parts;  // of each part
  if (words == 0) return 0;
  const auto* const first = reinterpret_cast<const uint64_t*>(memory.data());
  std::atomic<uint64_t> sum = 0;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<double> seconds(parts);
    RunOnThreads(parts, parts, [&](size_t part) {
      const double start = ThreadSeconds();
      sum.fetch_add(SumOfWords(first + part * words, words), std::memory_order_relaxed);
      seconds[part] = ThreadSeconds() - start;
    });
    const double mean =
        std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(parts);
    best = pass == 0 ? mean : std::min(best, mean);
  }
  return best / static_cast<double>(words * sizeof(uint64_t));
}

}  // namespace shardmesh::worker
