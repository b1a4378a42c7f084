// Times products of matrices.
#include "worker/kernel/kernel_speed.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kSide = 512;
constexpr double kFlops = 2.0 * kSide * kSide * kSide;
constexpr int kMaxRuns = 8;
constexpr double kMaxSeconds = 0.03;

absl::Span<char> AsBytes(std::vector<float>& values) {
  return absl::MakeSpan(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace

double MeasureF32Speed(MatmulKernel* kernel) {
  std::vector<float> lhs(static_cast<size_t>(kSide * kSide), 0.5F);
  std::vector<float> rhs(lhs.size(), 0.25F);
  std::vector<float> out(lhs.size());
  const MatmulSpec spec{.m = kSide, .n = kSide, .k = kSide};
  const MatmulOperands operands{
      .lhs = AsBytes(lhs), .rhs = AsBytes(rhs), .bias = {}, .out = AsBytes(out)};
  // The first run compiles the kernel and starts its threads.
  if (!kernel->Run(spec, operands).ok()) {
    return 0;
  }
  double best_seconds = 0;
  double seconds = 0;
  for (int run = 0; run < kMaxRuns && seconds < kMaxSeconds; ++run) {
    const auto start = std::chrono::steady_clock::now();
    if (!kernel->Run(spec, operands).ok()) {
      return 0;
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best_seconds = run == 0 ? time.count() : std::min(best_seconds, time.count());
    seconds += time.count();
  }
  return best_seconds > 0 ? kFlops / best_seconds : 0;
}

}  // namespace shardmesh::worker
