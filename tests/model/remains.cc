// Finds what a cluster still holds after all work has ended.
#include "tests/model/remains.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/time/clock.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/str_cat.h"

namespace shardmesh::model {
namespace {

// Whether a worker may still use this much when no array is left: a stream between two workers
// reserves its credit for as long as it lives (docs/limits.md), halved while memory is short.
// `streams`: of the worker to others.
bool IsCreditOfStreams(int64_t bytes, int64_t streams) {
  constexpr int64_t kLeast = int64_t{64} << 10;
  constexpr int64_t kMost = int64_t{16} << 20;
  // The credits are powers of two. So few of them at least make the sum.
  const int64_t credits = bytes / kMost + std::popcount(static_cast<uint64_t>(bytes % kMost));
  return bytes % kLeast == 0 && credits <= streams;
}

}  // namespace

std::string AwaitNothingLeft(const Caller& coordinator, absl::Duration within) {
  const absl::Time deadline = absl::Now() + within;
  for (;;) {
    // Released arrays of files stay in memory as a cache.
    v1::DropCacheResponse dropped;
    v1::GetStatusResponse status;
    absl::Status called =
        coordinator.Call("ClusterService.DropCache", v1::DropCacheRequest(), &dropped);
    if (called.ok()) {
      called = coordinator.Call("ClusterService.GetStatus", v1::GetStatusRequest(), &status);
    }
    if (!called.ok()) return called.ToString();
    const bool is_given_back =
        status.arrays() == 0 &&
        std::all_of(status.workers().begin(), status.workers().end(), [&](const auto& worker) {
          return IsCreditOfStreams(worker.used_bytes(), status.workers_size() - 1) &&
                 worker.quarantined_bytes() == 0;
        });
    if (is_given_back) return "";
    if (absl::Now() > deadline) {
      std::string text = StrCat("there are ", status.arrays(), " arrays");
      for (const v1::WorkerStatus& worker : status.workers()) {
        StrAppend(&text, ", ", worker.used_bytes(), " bytes on ", worker.identity(), " and ",
                  worker.quarantined_bytes(), " bytes aside");
      }
      return text;
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
}

}  // namespace shardmesh::model
